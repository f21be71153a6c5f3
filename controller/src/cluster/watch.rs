//! What all watches have in common: they begin again by themselves, and say that they do.

use std::time::Duration;

use kube::runtime::watcher;

/// Between failures of a watch. A controller that is installed before its rights or its CRD is not to be late for a minute.
pub(crate) fn backoff() -> watcher::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter()
        .into()
}

/// Says that a watch failed. The watch begins again by itself; the runtime would slow all its streams down for one of them.
pub(crate) fn loud<K>(what: &'static str, event: watcher::Result<watcher::Event<K>>) -> Option<watcher::Event<K>> {
    event.inspect_err(|error| tracing::warn!(what, %error, "a watch failed; it begins again")).ok()
}
