//! The last authenticated deliveries, for people.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

/// Maximum number of stored deliveries.
const KEPT: usize = 100;
/// Maximum per repository, so that a busy one does not displace others.
const OF_ONE: usize = 20;

/// The outcome of an authenticated delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// A reconcile of the repository is requested.
    Accepted,
    /// The event moves no ref.
    Ignored,
    /// The body is an HTML form.
    Form,
    /// An unsigned test of the connection.
    Ping,
}

impl Verdict {
    /// The name in metrics and responses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Ignored => "ignored",
            Self::Form => "form",
            Self::Ping => "ping",
        }
    }

    /// The HTTP code of the response. Forges disable a webhook that returns other codes than 2xx for some time.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Accepted | Self::Ignored => StatusCode::ACCEPTED,
            Self::Form => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Ping => StatusCode::OK,
        }
    }

    /// The reason, for people.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Accepted => "the refs of the repository are checked",
            Self::Ignored => "this event moves no ref; nothing is checked",
            Self::Form => {
                "the body is a form; choose application/json as the content type of the webhook"
            }
            Self::Ping => {
                "the address is right; this test is not signed, so nothing is checked, and only signed deliveries are accepted"
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// Time of arrival.
    pub time: Timestamp,
    /// `NAMESPACE/NAME` of the repository.
    pub repository: String,
    pub forge: &'static str,
    /// The event, as named by the forge.
    pub event: Option<String>,
    /// The forge's delivery id.
    pub id: Option<String>,
    pub verdict: Verdict,
    pub reason: &'static str,
}

/// The last deliveries of this process.
#[derive(Default)]
pub struct Deliveries(Mutex<VecDeque<Delivery>>);

impl Deliveries {
    pub fn push(&self, delivery: Delivery) {
        let mut all = self.lock();
        let mut of_one = all
            .iter()
            .enumerate()
            .filter(|(_, other)| other.repository == delivery.repository);
        let oldest = of_one.next().map(|(index, _)| index);
        if of_one.count() + 1 >= OF_ONE {
            oldest.and_then(|index| all.remove(index));
        } else if all.len() >= KEPT {
            all.pop_front();
        }
        all.push_back(delivery);
    }

    /// The deliveries of a repository, newest first.
    pub fn of(&self, namespace: &str, name: &str) -> Vec<Delivery> {
        let repository = format!("{namespace}/{name}");
        self.lock()
            .iter()
            .rev()
            .filter(|one| one.repository == repository)
            .cloned()
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Delivery>> {
        // Consistent between any two deliveries, so a poisoned lock still holds a valid value.
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
    fn last_100_deliveries_are_stored_at_most_20_per_repository() {
        let deliveries = Deliveries::default();
        let ids = |name: &str| {
            deliveries
                .of("team", name)
                .into_iter()
                .filter_map(|one| one.id)
                .collect::<Vec<_>>()
        };
        deliveries.push(delivery("team/quiet", 0));
        for id in 0..500 {
            deliveries.push(delivery("team/busy", id));
        }
        let busy = ids("busy");
        assert_eq!(
            (
                busy.len(),
                busy[0].as_str(),
                busy[19].as_str(),
                ids("quiet")
            ),
            (OF_ONE, "499", "480", vec!["0".to_owned()])
        );
        for id in 0..500 {
            deliveries.push(delivery(&format!("team/r{}", id % 50), id));
        }
        assert_eq!(
            (0..50).map(|n| ids(&format!("r{n}")).len()).sum::<usize>(),
            KEPT
        );
        assert_eq!(
            (ids("r0"), ids("busy")),
            (vec!["450".to_owned(), "400".to_owned()], vec![])
        );
    }

    #[test]
    fn deliveries_serialize_as_json() {
        let text = serde_json::to_value(delivery("team/net", 7)).unwrap();
        let reason = Verdict::Accepted.reason();
        assert_eq!(
            text,
            serde_json::json!({"time": t0().to_string(), "repository": "team/net", "forge": "Gitea", "event": "push", "id": "7",
                "verdict": "accepted", "reason": reason})
        );
    }
}
