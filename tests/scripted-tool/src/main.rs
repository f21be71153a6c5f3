//! A fake `tofu` or `terraform` that executes a script; see [`scripted_tool`].

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = scripted_tool::run(std::env::args());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
