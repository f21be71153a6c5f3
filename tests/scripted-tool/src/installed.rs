//! The tool and version that a copy of this program plays: a line after the end of the executable, which the loader ignores. So each
//! version has different bytes, and a different digest.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

const MARK: &str = "pawl-scripted-tool ";
/// Upper bound of the line's length, in bytes.
const LONGEST: u64 = 128;

/// The tool and version of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installed {
    /// Name of the executable: `tofu` or `terraform`.
    pub(super) tool: String,
    pub(super) version: String,
}

/// The trailer to append to the program, so that it plays this version of the tool.
pub fn trailer(tool: &str, version: &str) -> String {
    format!("\n{MARK}{tool} {version}\n")
}

impl Installed {
    /// The tool and version of this program, if it has a trailer.
    pub(super) fn own() -> Option<Self> {
        Self::read(&std::env::current_exe().ok()?)
    }

    fn read(program: &Path) -> Option<Self> {
        let mut file = File::open(program).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LONGEST)))
            .ok()?;
        let mut end = Vec::new();
        file.take(LONGEST).read_to_end(&mut end).ok()?;
        let end = end.strip_suffix(b"\n")?;
        let line = end.rsplit(|byte| *byte == b'\n').next()?;
        let (tool, version) = std::str::from_utf8(line)
            .ok()?
            .strip_prefix(MARK)?
            .split_once(' ')?;
        Some(Self {
            tool: tool.to_owned(),
            version: version.to_owned(),
        })
    }
}
