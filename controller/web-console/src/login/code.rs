//! Logging in by a link: a program with a token gets a code, and a browser exchanges the code once for a session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    Console,
    api_server::Token,
    person::{Method, Person},
    problem::{Problem, json},
    session::{Session, fill},
};

use super::{establish, parsed};

/// Lifetime of a code.
const LIFE: Duration = Duration::from_secs(60);
/// Most codes of all people, and of one.
const MOST: usize = 256;
const OF_ONE: usize = 8;

/// The codes of this replica that were not used yet, by their SHA-256: so a lookup takes the same time for each wrong code.
#[derive(Default)]
pub struct Codes(Mutex<HashMap<[u8; 32], Waiting>>);

struct Waiting {
    user: String,
    token: Token,
    until: Instant,
}

impl Codes {
    /// A new code for the person's token.
    ///
    /// # Errors
    /// Too many codes wait.
    fn make(&self, person: &Person) -> Result<String, Problem> {
        let mut bytes = [0; 32];
        fill(&mut bytes)?;
        let code = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let now = Instant::now();
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, waiting| now < waiting.until);
        let own = codes
            .values()
            .filter(|waiting| waiting.user == person.name());
        if codes.len() >= MOST || own.count() >= OF_ONE {
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyCodes",
                format!(
                    "too many codes wait to be used; each expires after {} s",
                    LIFE.as_secs()
                ),
            ));
        }
        let waiting = Waiting {
            user: person.name().to_owned(),
            token: person.token.clone(),
            until: now + LIFE,
        };
        codes.insert(hash(&code), waiting);
        Ok(code)
    }

    /// The token of a code, which cannot be used again.
    fn take(&self, code: &str) -> Option<Token> {
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = codes.remove(&hash(code))?;
        (Instant::now() < waiting.until).then_some(waiting.token)
    }
}

fn hash(code: &str) -> [u8; 32] {
    Sha256::digest(code).into()
}

/// A code, and the link that uses it.
#[derive(Serialize, JsonSchema)]
pub struct Code {
    code: String,
    /// The code is in the fragment, which browsers do not send.
    link: String,
}

pub(super) async fn make(
    State(console): State<Arc<Console>>,
    person: Person,
) -> Result<Response, Problem> {
    if person.method != Method::Bearer {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "BearerRequired",
            "a code is made with a token in the header Authorization, not with a session",
        ));
    }
    let code = console.codes.make(&person)?;
    let link = format!("{}/#code={code}", console.address);
    Ok(json(StatusCode::CREATED, &Code { code, link }))
}

/// The body of this login.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "GivenCode")]
pub struct Given {
    code: String,
}

pub(super) async fn log_in(
    State(console): State<Arc<Console>>,
    Extension(earlier): Extension<Option<Session>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: Given = parsed(&body)?;
    let token = console.codes.take(&given.code).ok_or_else(|| {
        Problem::new(
            StatusCode::FORBIDDEN,
            "InvalidCode",
            format!(
                "this link was used, or is older than {} s; ask for another",
                LIFE.as_secs()
            ),
        )
    })?;
    establish(&console, &headers, earlier, token).await
}
