//! The agent's own lines in the container's log, among the tool's output. They are few, and begin with `pawl: `.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    registry::LookupSpan,
};

use crate::report::sanitize::sanitize;

/// Environment variable with a filter of `tracing` for these lines, such as `info` or `runner_agent=debug`.
pub const FILTER: &str = "PAWL_LOG";

/// A subscriber that writes warnings and errors, or the lines that [`FILTER`] selects.
pub fn subscriber<W>(writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_writer(writer)
        .with_env_filter(filter)
        .event_format(Prefixed)
        .finish()
}

/// Formats an event as one line, e.g. `pawl: warning: could not be removed path=/pawl/work/x`. Without a time, since the container
/// runtime records it.
struct Prefixed;

impl<S, N> FormatEvent<S, N> for Prefixed
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        writeln!(
            writer,
            "pawl: {level}{}",
            sanitize(&text, false).replace('\n', " ")
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// Collects the output.
    #[derive(Clone, Default)]
    pub(crate) struct Kept(pub(crate) Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn warning_is_one_line_with_a_prefix_and_info_is_omitted() {
        let kept = Kept::default();
        let writer = kept.clone();
        tracing::subscriber::with_default(subscriber(move || writer.clone()), || {
            tracing::warn!(path = %"/x", error = %"first\nsecond \u{1b}[2J", "could not be removed");
            tracing::error!("the driver ended");
            tracing::info!("a write was not acknowledged");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "pawl: warning: could not be removed path=/x error=first second ^[[2J\npawl: error: the driver ended\n"
        );
    }
}
