//! Reads HCL that somebody else wrote, within bounds.

use std::thread;

use hcl_edit::{parser, structure::Body};

/// The stack to read with: 16 MiB. The parser goes 64 levels deep and no deeper, and for some of them the 2 MiB that threads have
/// otherwise are not enough without optimization.
const STACK: usize = 16 << 20;

/// The largest text that is parsed: 256 KiB. The parser needs up to 210 bytes of memory for each byte, so these are 54 MiB.
pub const LARGEST: usize = 256 << 10;

/// The body of a file.
///
/// # Errors
/// The line, and why it is not understood; or that it is too large.
pub fn parse(text: &str) -> Result<Body, String> {
    if text.len() > LARGEST {
        return Err(format!("it is larger than {} KiB", LARGEST >> 10));
    }
    let read = || parser::parse_body(text).map_err(|error| format!("line {}: {}", error.location().line(), error.message()));
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, read);
        let thread = thread.map_err(|error| format!("no thread can be started for it: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("its parser failed".to_owned()))
    })
}
