//! The datastore's data of ended runs: read before it is deleted, searched for the secret, and stored for the check if needed.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::Request;
use crds::TerraformRun;
use kube::{Api, Client};

use harness::wait;

/// Time limit for reads: runs are deleted a minute after their end.
const PATIENCE: Duration = Duration::from_secs(40);

/// Journals by run, leaks, and counts of reads.
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
        // Consistent between any two changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads plan, log and journal of a run and searches them for the secret. Ignores a run that was deleted meanwhile.
    pub(super) async fn take(&self, client: &Client, namespace: &str, name: &str, secret: &str) {
        let runs: Api<TerraformRun> = Api::namespaced(client.clone(), namespace);
        for what in ["plan", "log", "journal"] {
            let text = there(client, namespace, &format!("terraformruns/{name}/{what}")).await;
            let is_known = match text.as_deref() {
                Some("") => matches!(runs.get_opt(name).await, Ok(Some(_))),
                text => text.is_some(),
            };
            let Some(text) = text.filter(|_| is_known) else {
                self.read().unread += 1;
                continue;
            };
            let mut read = self.read();
            read.texts += usize::from(!text.is_empty());
            if text.contains(secret) {
                read.leaks
                    .push(format!("the {what} of {name} holds the secret"));
            }
            if what == "journal" {
                read.journals.insert(format!("{namespace}/{name}"), text);
            }
        }
    }

    pub(super) fn journals(&self) -> BTreeMap<String, String> {
        self.read().journals.clone()
    }

    pub(super) fn leaks(&self) -> Vec<String> {
        self.read().leaks.clone()
    }

    /// Number of texts read, and of requests without an answer.
    pub(super) fn counts(&self) -> (usize, usize) {
        let read = self.read();
        (read.texts, read.unread)
    }
}

/// Reads from the datastore's read API, by path below a namespace.
pub(super) async fn read(client: &Client, namespace: &str, path: &str) -> kube::Result<String> {
    let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/{namespace}/{path}");
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|error| kube::Error::Service(error.into()))?;
    // The client itself would retry for minutes.
    let read = tokio::time::timeout(Duration::from_secs(10), client.request_text(request)).await;
    read.map_err(|late| kube::Error::Service(late.into()))?
}

/// A text; empty if there is none. `None` without an answer.
async fn there(client: &Client, namespace: &str, path: &str) -> Option<String> {
    let answer = async || {
        Ok(match read(client, namespace, path).await {
            // Excludes the API server's own 404 for an extension API without a backend.
            Err(kube::Error::Api(status))
                if status.reason == "NotFound"
                    && !status.message.contains("the requested resource") =>
            {
                Ok(String::new())
            }
            answer => answer,
        })
    };
    wait::until(format!("{path} is answered"), PATIENCE, answer)
        .await
        .ok()
}
