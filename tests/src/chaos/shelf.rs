//! What the datastore gives people of runs that have ended: read while it is there, searched for the secret, and kept where it is wanted
//! for the check.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::lab::{Lab, SECRET};

/// How long it is asked for: runs go a minute after their end.
const PATIENCE: Duration = Duration::from_secs(40);

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Shelf(Mutex<Read>);

#[derive(Debug, Default)]
struct Read {
    /// By `NAMESPACE/NAME`.
    journals: BTreeMap<String, String>,
    leaks: Vec<String>,
    texts: usize,
    unread: usize,
}

impl Shelf {
    fn read(&self) -> MutexGuard<'_, Read> {
        // Whole between any two changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads plan, log and journal of a run.
    pub(super) async fn take(&self, lab: &Lab, name: &str) {
        for what in ["plan", "log", "journal"] {
            let Some(text) = there(lab, &format!("terraformruns/{name}/{what}")).await else {
                self.read().unread += 1;
                continue;
            };
            let mut read = self.read();
            read.texts += usize::from(!text.is_empty());
            if text.contains(SECRET) {
                read.leaks.push(format!("the {what} of {name} holds the secret"));
            }
            if what == "journal" {
                read.journals.insert(format!("{}/{name}", lab.namespace), text);
            }
        }
    }

    pub(super) fn journals(&self) -> BTreeMap<String, String> {
        self.read().journals.clone()
    }

    pub(super) fn leaks(&self) -> Vec<String> {
        self.read().leaks.clone()
    }

    /// How many texts were read, and how often nobody answered.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.read().texts, self.read().unread)
    }
}

/// A text; empty when there is none. `None` when nobody says so.
async fn there(lab: &Lab, path: &str) -> Option<String> {
    let begun = Instant::now();
    loop {
        match lab.read(path).await {
            Ok(text) => return Some(text),
            // Not the API server's word for a path that nobody serves at the moment.
            Err(kube::Error::Api(status))
                if status.reason == "NotFound" && !status.message.contains("the requested resource") =>
            {
                return Some(String::new());
            }
            Err(_) if begun.elapsed() > PATIENCE => return None,
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}
