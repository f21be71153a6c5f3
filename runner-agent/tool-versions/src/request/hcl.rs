//! Parses untrusted HCL within bounds.

use std::thread;

use hcl_edit::{parser, structure::Body};

/// The stack of the parsing thread: 16 MiB. The parser nests 64 levels, and without optimization some constructs exceed the
/// default 2 MiB.
const STACK: usize = 16 << 20;

/// The largest text, in bytes: 256 KiB. The parser needs up to 210 bytes of memory for each byte, so 54 MiB.
pub const LARGEST: usize = 256 << 10;

/// Parses the body of a file.
///
/// # Errors
/// The line and the syntax error; or that the text is too large.
pub fn parse(text: &str) -> Result<Body, String> {
    // The tools accept a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > LARGEST {
        return Err(format!("it is larger than {} KiB", LARGEST >> 10));
    }
    let read = || {
        parser::parse_body(text)
            .map_err(|error| format!("line {}: {}", error.location().line(), error.message()))
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, read);
        let thread = thread.map_err(|error| format!("no thread can be started for it: {error}"))?;
        thread
            .join()
            .unwrap_or_else(|_| Err("its parser failed".to_owned()))
    })
}
