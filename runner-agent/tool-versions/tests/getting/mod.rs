//! Getting: where releases are, lists of versions, and HTTP against a server that behaves as badly as real ones do.

mod cache;
mod environment;
mod exchange;
mod lists;
mod mirrors;
mod properties;
mod proxy;
mod redirects;
mod resume;
pub(crate) mod server;
mod sources;
mod waiting;

use std::time::Duration;

use tool_versions::{
    Error, Kind, Result,
    releases::http::{Answer, Ask, Auth, Client, Rules},
};

/// Deadlines that a machine with much else to do keeps to.
pub(crate) fn rules() -> Rules {
    Rules {
        connect: Duration::from_secs(30),
        silence: Duration::from_secs(30),
        small: Duration::from_secs(120),
        large: Duration::from_secs(120),
        tries: 3,
        backoff: Duration::from_millis(5),
        longest_wait: Duration::from_millis(1500),
        proxies: false,
    }
}

/// Deadlines that a test waits for, of a server that never answers.
fn short() -> Rules {
    Rules { connect: Duration::from_millis(300), silence: Duration::from_millis(300), ..rules() }
}

/// A silence that a test waits for, and that no busy machine keeps.
const SILENCE: Duration = Duration::from_secs(4);

fn client() -> Client {
    Client::new(rules(), None).unwrap()
}

fn ask<'a>(url: &'a str, auth: &'a Auth) -> Ask<'a> {
    Ask { url, what: "OpenTofu 1.99.0", auth, cap: 1 << 20, html: false }
}

/// Gets without credentials.
async fn get(url: &str) -> Result<Vec<u8>> {
    get_by(rules(), url).await
}

async fn get_by(rules: Rules, url: &str) -> Result<Vec<u8>> {
    let client = Client::new(rules, None).unwrap();
    client.get(ask(url, &Auth::None), None).await.map(|answer| match answer {
        Answer::Body { bytes, .. } => bytes,
        Answer::NotModified => panic!("no tag was sent"),
    })
}

/// The error, which is of a kind and says something.
#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T>, kind: Kind, says: &str) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.text.contains(says), "`{error}` does not say `{says}`");
    error
}
