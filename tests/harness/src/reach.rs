//! A program that tries to reach into another process, as code of a stack would: `fixtures/hostile/reach.c`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

const SOURCE: &str = include_str!("../../fixtures/hostile/reach.c");

/// The ways that it tries, in order.
pub const WAYS: &[&str] = &[
    "traced",
    #[cfg(target_arch = "x86_64")]
    "traced_as_x32",
    #[cfg(target_arch = "x86_64")]
    "traced_as_i386",
    "memory_read",
    "memory_written",
    "file_taken",
    "memory_opened",
    "settings_written",
    "output_opened",
    "output_written",
    "errors_opened",
    "errors_written",
    "signalled",
];

/// Compiles it in a directory. It needs no library.
pub fn build(dir: &Path) -> Result<PathBuf> {
    let (source, program) = (dir.join("reach.c"), dir.join("reach"));
    std::fs::write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    cc.args(["-static", "-O1", "-o"]).args([&program, &source]);
    let status = cc.status().context("there is no C compiler `cc`")?;
    ensure!(status.success(), "{} cannot be compiled", source.display());
    Ok(program)
}
