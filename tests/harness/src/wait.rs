//! Waiting for what comes by itself.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

/// Between two looks: what comes at once is seen at once, and what lasts is not asked for all the time.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(200);

/// What a look finds.
pub trait Look {
    /// What is waited for.
    type Found;

    /// What is waited for, or what is there in its place.
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

/// Looks again and again until it is there. A look that fails by itself ends the waiting.
pub async fn until<L, F>(what: impl Display, within: Duration, mut look: impl FnMut() -> F) -> Result<L::Found>
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

/// The same for those who may keep their thread.
pub fn until_blocking<L: Look>(what: impl Display, within: Duration, mut look: impl FnMut() -> Result<L>) -> Result<L::Found> {
    let begun = Instant::now();
    loop {
        match look()?.found() {
            Ok(found) => return Ok(found),
            Err(instead) => std::thread::sleep(pause(&what, within, begun, &instead)?),
        }
    }
}

fn pause(what: &impl Display, within: Duration, begun: Instant, instead: &str) -> Result<Duration> {
    ensure!(begun.elapsed() < within, "not within {within:?}: {what}{instead}");
    Ok((begun.elapsed() / 10).clamp(SHORTEST, LONGEST))
}

/// Waits until an object is as asked.
pub async fn object<K>(api: &Api<K>, name: &str, what: &str, within: Duration, done: impl Fn(&K) -> bool) -> Result<K>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let look = async || {
        let found = api.get(name).await.with_context(|| format!("cannot read {name}"))?;
        Ok(if done(&found) { Ok(found) } else { Err(format!("{:#}", json!(found)["status"])) })
    };
    until(format!("{name} is {what}"), within, look).await
}

/// Waits until an object is no more.
pub async fn gone<K: Clone + Debug + DeserializeOwned>(api: &Api<K>, name: &str, within: Duration) -> Result<()> {
    let look = async || Ok(api.get_opt(name).await?.map_or(Ok(()), |found| Err(format!("{found:?}"))));
    until(format!("{name} is gone"), within, look).await
}
