//! The wait before a retry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// The wait before try `tries` + 1 when the server names none: exponential backoff with a jitter of 50 to 100 %, so that pods that
/// failed together do not retry together. The exponent stops at 6.
pub fn backoff(base: Duration, tries: u32) -> Duration {
    let most = base.saturating_mul(1 << tries.saturating_sub(1).min(6));
    most.mul_f64(rand::random_range(0.5..=1.0))
}

/// The wait that an answer requests: `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), else GitHub's `X-RateLimit-Reset`
/// (Unix seconds) when the rate limit is used up. `None` when there is none, or it cannot be parsed.
pub fn asked_for(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
    };
    if let Some(after) = text(RETRY_AFTER.as_str()) {
        if after.starts_with(|c: char| c.is_ascii_digit())
            && after.chars().all(|c| c.is_ascii_digit())
        {
            // A number that overflows is longer than any wait.
            return Some(Duration::from_secs(after.parse().unwrap_or(u64::MAX)));
        }
        let date = DateTimeParser::new().parse_timestamp(after).ok()?;
        return Some(until(date.as_second(), now));
    }
    let reset = is_limit_used_up(headers)
        .then(|| text("x-ratelimit-reset"))
        .flatten()?;
    Some(until(reset.parse().ok()?, now))
}

/// Whether the rate limit is used up. GitHub then answers 403 as well as 429.
pub fn is_limit_used_up(headers: &HeaderMap) -> bool {
    headers
        .get("x-ratelimit-remaining")
        .is_some_and(|left| left.as_bytes() == b"0")
}

fn until(second: i64, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(u64::try_from(second).unwrap_or_default()).saturating_sub(now)
}
