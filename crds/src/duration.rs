//! Durations in the notation of Go and Kubernetes: `10m`, `1h30m`, `500ms`.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Pattern for the API server's validation: parts of one number and one unit.
pub const PATTERN: &str = "^([0-9]{1,6}(h|m|s|ms))+$";

/// A duration, written as in Go and Kubernetes (`72h`, `1h30m`, `500ms`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

impl Span {
    /// A span of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// A span of whole minutes.
    pub const fn minutes(minutes: u64) -> Self {
        Self::seconds(minutes * 60)
    }

    /// A span of whole hours.
    pub const fn hours(hours: u64) -> Self {
        Self::minutes(hours * 60)
    }
}

/// The text is not a duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a duration; write numbers with units, as in `10m`, `1h30m` or `500ms`")]
pub struct InvalidSpan(String);

impl FromStr for Span {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidSpan(text.chars().take(40).collect());
        let mut rest = text;
        let mut total = Duration::ZERO;
        while !rest.is_empty() {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let number: u32 = rest
                .get(..digits)
                .and_then(|n| n.parse().ok())
                .ok_or_else(invalid)?;
            let tail = rest.get(digits..).unwrap_or_default();
            // Try `ms` before `m`.
            let (unit, size) = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
                .into_iter()
                .find(|(unit, _)| tail.starts_with(unit))
                .ok_or_else(invalid)?;
            total += Duration::from_millis(u64::from(number) * size);
            rest = tail.get(unit.len()..).unwrap_or_default();
        }
        if text.is_empty() {
            Err(invalid())
        } else {
            Ok(Self(total))
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let parts = [
            (millis / 3_600_000, "h"),
            (millis / 60_000 % 60, "m"),
            (millis / 1_000 % 60, "s"),
            (millis % 1_000, "ms"),
        ];
        if millis == 0 {
            return f.write_str("0s");
        }
        for (number, unit) in parts.into_iter().filter(|(number, _)| *number > 0) {
            write!(f, "{number}{unit}")?;
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 16, "pattern": PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printed_forms_and_their_like_are_parsed() {
        for text in ["10m", "72h", "1h30m", "500ms", "1m1s1ms", "0s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("90m".parse::<Span>().unwrap().to_string(), "1h30m");
        for text in ["", "10", "m", "10 m", "-1m", "1d", "1h 2m", "99999999999h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
