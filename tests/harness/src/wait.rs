//! Polls until a condition holds.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

/// Bounds of the delay between two polls. It begins short, so that a fast result is seen at once, and grows, so that a slow one is not
/// polled often.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(200);

/// The result of one poll.
pub trait Look {
    /// The value that the caller waits for.
    type Found;

    /// Returns the value, or a description of the present state.
    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(String::new)
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Display> Look for Result<T, E> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|error| format!(": {error:#}"))
    }
}

/// Polls until the value is found or `within` has passed. An error of `look` itself ends the wait.
pub async fn until<L, F>(
    what: impl Display,
    within: Duration,
    mut look: impl FnMut() -> F,
) -> Result<L::Found>
where
    L: Look,
    F: Future<Output = Result<L>>,
{
    let begun = Instant::now();
    loop {
        match look().await?.found() {
            Ok(found) => return Ok(found),
            Err(instead) => tokio::time::sleep(pause(&what, within, begun, &instead)?).await,
        }
    }
}

/// Like [`until`], but blocks the thread.
pub fn until_blocking<L: Look>(
    what: impl Display,
    within: Duration,
    mut look: impl FnMut() -> Result<L>,
) -> Result<L::Found> {
    let begun = Instant::now();
    loop {
        match look()?.found() {
            Ok(found) => return Ok(found),
            Err(instead) => std::thread::sleep(pause(&what, within, begun, &instead)?),
        }
    }
}

fn pause(what: &impl Display, within: Duration, begun: Instant, instead: &str) -> Result<Duration> {
    ensure!(
        begun.elapsed() < within,
        "not within {within:?}: {what}{instead}"
    );
    Ok((begun.elapsed() / 10).clamp(SHORTEST, LONGEST))
}

/// Waits until `done` holds for an object.
pub async fn object<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    within: Duration,
    done: impl Fn(&K) -> bool,
) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let look = async || {
        let found = api
            .get(name)
            .await
            .with_context(|| format!("cannot read {name}"))?;
        Ok(if done(&found) {
            Ok(found)
        } else {
            Err(format!("{:#}", json!(found)["status"]))
        })
    };
    until(format!("{name} is {what}"), within, look).await
}

/// Waits until an object is deleted.
pub async fn gone<K: Clone + Debug + DeserializeOwned>(
    api: &Api<K>,
    name: &str,
    within: Duration,
) -> Result<()> {
    let look = async || {
        Ok(api
            .get_opt(name)
            .await?
            .map_or(Ok(()), |found| Err(format!("{found:?}"))))
    };
    until(format!("{name} is gone"), within, look).await
}
