//! Release servers: mirrors, lists of versions, and the HTTP client against a server that misbehaves as real ones do.

mod cache;
mod environment;
mod http;
mod lists;
mod mirrors;
pub(crate) mod server;
mod sources;

use std::time::Duration;

use tool_versions::{
    Result,
    releases::http::{Answer, Ask, Auth, Client, Rules},
};

/// Deadlines that a busy machine meets.
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

/// Short deadlines, for a server that never answers.
fn short() -> Rules {
    Rules {
        connect: Duration::from_millis(300),
        silence: Duration::from_millis(300),
        ..rules()
    }
}

fn client() -> Client {
    Client::new(rules(), None).unwrap()
}

fn ask<'a>(url: &'a str, auth: &'a Auth) -> Ask<'a> {
    Ask {
        url,
        what: "OpenTofu 1.99.0",
        auth,
        cap: 1 << 20,
        html: false,
    }
}

/// Requests without credentials.
async fn get(url: &str) -> Result<Vec<u8>> {
    get_by(rules(), url).await
}

async fn get_by(rules: Rules, url: &str) -> Result<Vec<u8>> {
    let client = Client::new(rules, None).unwrap();
    client
        .get(ask(url, &Auth::None), None)
        .await
        .map(|answer| match answer {
            Answer::Body { bytes, .. } => bytes,
            Answer::NotModified => panic!("no tag was sent"),
        })
}
