//! Placeholder of the first build.
fn main() {}
