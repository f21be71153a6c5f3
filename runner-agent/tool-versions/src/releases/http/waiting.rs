//! How long to wait before the next try.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// The wait before try `tries` + 1 when the server names none: between half and all of `base` doubled for each try before, so that
/// many pods that failed together do not come again together.
pub fn backoff(base: Duration, tries: u32) -> Duration {
    let most = base.saturating_mul(1 << tries.saturating_sub(1).min(6));
    most.mul_f64(rand::random_range(0.5..=1.0))
}

/// The wait that an answer asks for: `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), else GitHub's `X-RateLimit-Reset`
/// (seconds of the epoch) when nothing of the limit is left. `None` when it asks for none, or in words that are not understood.
pub fn asked_for(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(after) = text(RETRY_AFTER.as_str()) {
        if after.starts_with(|c: char| c.is_ascii_digit()) && after.chars().all(|c| c.is_ascii_digit()) {
            // More digits than a number holds: longer than anyone waits.
            return Some(Duration::from_secs(after.parse().unwrap_or(u64::MAX)));
        }
        let date = DateTimeParser::new().parse_timestamp(after).ok()?;
        return Some(until(date.as_second(), now));
    }
    let reset = is_limit_used_up(headers).then(|| text("x-ratelimit-reset")).flatten()?;
    Some(until(reset.parse().ok()?, now))
}

/// Whether a limit of requests is used up, which GitHub answers with 403 as well as with 429.
pub fn is_limit_used_up(headers: &HeaderMap) -> bool {
    headers.get("x-ratelimit-remaining").is_some_and(|left| left.as_bytes() == b"0")
}

fn until(second: i64, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(u64::try_from(second).unwrap_or_default()).saturating_sub(now)
}
