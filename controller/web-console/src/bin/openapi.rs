//! Writes the description of the REST API, from which the types of the UI are made.

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(web_console::openapi::FILE);
    fs::write(path, web_console::openapi::text())
}
