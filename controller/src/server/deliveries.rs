//! The last deliveries whose sender was proven, for people.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

/// The most deliveries that are kept.
const KEPT: usize = 100;
/// The most of them of one repository: one that is busy does not push out what others had.
const OF_ONE: usize = 20;

/// What became of a delivery whose sender was proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The repository is looked at.
    Accepted,
    /// The event moves no ref.
    Ignored,
    /// The body is a form.
    Form,
}

impl Verdict {
    /// The word in metrics and answers.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Ignored => "ignored",
            Self::Form => "form",
        }
    }

    /// The code of the answer. Forges give a hook up that answers anything but 2xx for a while.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Accepted | Self::Ignored => StatusCode::ACCEPTED,
            Self::Form => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    /// Why, for people.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Accepted => "the refs of the repository are looked at",
            Self::Ignored => "this event moves no ref; nothing is looked at",
            Self::Form => "the body is a form; choose application/json as the content type of the webhook",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// When it had come.
    pub time: Timestamp,
    /// `NAMESPACE/NAME` of the repository.
    pub repository: String,
    pub forge: &'static str,
    /// What happened, in the forge's words.
    pub event: Option<String>,
    /// The forge's id of it.
    pub id: Option<String>,
    pub verdict: Verdict,
    pub reason: &'static str,
}

/// The last of them, of this process.
#[derive(Default)]
pub struct Deliveries(Mutex<VecDeque<Delivery>>);

impl Deliveries {
    pub fn push(&self, delivery: Delivery) {
        let mut all = self.lock();
        let mut of_one = all.iter().enumerate().filter(|(_, other)| other.repository == delivery.repository);
        let oldest = of_one.next().map(|(index, _)| index);
        if of_one.count() + 1 >= OF_ONE {
            oldest.and_then(|index| all.remove(index));
        } else if all.len() >= KEPT {
            all.pop_front();
        }
        all.push_back(delivery);
    }

    /// Those of a repository, the newest first.
    pub fn of(&self, namespace: &str, name: &str) -> Vec<Delivery> {
        let repository = format!("{namespace}/{name}");
        self.lock().iter().rev().filter(|one| one.repository == repository).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Delivery>> {
        // Whole between any two deliveries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::t0;

    fn delivery(repository: &str, id: usize) -> Delivery {
        let verdict = Verdict::Accepted;
        Delivery {
            time: t0(),
            repository: repository.into(),
            forge: "Gitea",
            event: Some("push".into()),
            id: Some(id.to_string()),
            verdict,
            reason: verdict.reason(),
        }
    }

    #[test]
    fn the_last_hundred_are_kept_and_of_one_repository_its_last_twenty() {
        let deliveries = Deliveries::default();
        let ids = |name: &str| deliveries.of("team", name).into_iter().filter_map(|one| one.id).collect::<Vec<_>>();
        deliveries.push(delivery("team/quiet", 0));
        for id in 0..500 {
            deliveries.push(delivery("team/busy", id));
        }
        let busy = ids("busy");
        assert_eq!((busy.len(), busy[0].as_str(), busy[19].as_str(), ids("quiet")), (OF_ONE, "499", "480", vec!["0".to_owned()]));
        for id in 0..500 {
            deliveries.push(delivery(&format!("team/r{}", id % 50), id));
        }
        assert_eq!((0..50).map(|n| ids(&format!("r{n}")).len()).sum::<usize>(), KEPT);
        assert_eq!((ids("r0"), ids("busy")), (vec!["450".to_owned(), "400".to_owned()], vec![]));
    }

    #[test]
    fn they_are_read_as_json() {
        let text = serde_json::to_value(delivery("team/net", 7)).unwrap();
        let reason = Verdict::Accepted.reason();
        assert_eq!(
            text,
            serde_json::json!({"time": t0().to_string(), "repository": "team/net", "forge": "Gitea", "event": "push", "id": "7",
                "verdict": "accepted", "reason": reason})
        );
    }
}
