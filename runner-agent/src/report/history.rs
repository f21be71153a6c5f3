//! History lines: time, phase, duration, event.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

/// A phase's start time and duration.
#[derive(Clone, Copy, Debug)]
pub struct Clocked {
    pub since: Timestamp,
    pub took: Duration,
}

/// A history line: `10:00:01  Setup  1.1s  git 4c1d2e3 of main`.
pub fn line(at: Clocked, phase: &str, text: &str) -> String {
    let time = at
        .since
        .to_zoned(TimeZone::UTC)
        .strftime("%H:%M:%S")
        .to_string();
    let line = format!("{time}  {phase}  {}  {text}", span(at.took));
    line.trim_end().to_owned()
}

/// Formats a duration for people: `0.4s`, `12s`, `3m5s`, `2h10m`.
pub fn span(took: Duration) -> String {
    let seconds = took.as_secs();
    match seconds {
        0..=9 => format!("{:.1}s", took.as_secs_f64()),
        10..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_time_phase_and_duration() {
        let at = Clocked {
            since: "2026-11-21T10:00:01Z".parse().unwrap(),
            took: Duration::from_millis(1_120),
        };
        assert_eq!(
            line(at, "Setup", "git 4c1d2e3 of main"),
            "10:00:01  Setup  1.1s  git 4c1d2e3 of main"
        );
    }

    #[test]
    fn durations_are_short() {
        for (millis, text) in [
            (40, "0.0s"),
            (1_149, "1.1s"),
            (12_900, "12s"),
            (185_000, "3m5s"),
            (7_800_000, "2h10m"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }
}
