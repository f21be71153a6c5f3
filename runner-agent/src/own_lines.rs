//! The agent's own lines in the container's log, among the tool's words: few, and each begins with `pawl: `.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    registry::LookupSpan,
};

use crate::report::sanitize::sanitize;

/// The environment variable that says which lines are written: a filter of `tracing`, such as `info` or `runner_agent=debug`.
pub const FILTER: &str = "PAWL_LOG";

/// A subscriber that writes warnings and errors, or what [`FILTER`] asks for.
pub fn subscriber<W>(writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_writer(writer).with_env_filter(filter).event_format(Prefixed).finish()
}

/// `pawl: warning: could not be removed path=/pawl/work/x`: one line, whatever is in it. Who reads a log knows the time of a line from it.
struct Prefixed;

impl<S, N> FormatEvent<S, N> for Prefixed
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        writeln!(writer, "pawl: {level}{}", sanitize(&text, false).replace('\n', " "))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// Keeps what is written.
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
    fn a_warning_is_one_line_that_says_whose_it_is_and_the_rest_is_not_written() {
        let kept = Kept::default();
        let writer = kept.clone();
        tracing::subscriber::with_default(subscriber(move || writer.clone()), || {
            tracing::warn!(path = %"/x", error = %"first\nsecond \u{1b}[2J", "could not be removed");
            tracing::error!("the driver ended");
            tracing::info!("a write was not acknowledged");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "pawl: warning: could not be removed path=/x error=first second ^[[2J\npawl: error: the driver ended\n");
    }
}
