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
        file.seek(SeekFrom::Start(length.saturating_sub(LONGEST))).ok()?;
        let mut end = Vec::new();
        file.take(LONGEST).read_to_end(&mut end).ok()?;
        let end = end.strip_suffix(b"\n")?;
        let line = end.rsplit(|byte| *byte == b'\n').next()?;
        let (tool, version) = std::str::from_utf8(line).ok()?.strip_prefix(MARK)?.split_once(' ')?;
        Some(Self { tool: tool.to_owned(), version: version.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    fn read(content: &[u8]) -> Option<Installed> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        Installed::read(file.path())
    }

    #[test]
    fn the_last_line_says_what_it_is() {
        let appended = |tool, version| read(&[&[0xff; 300], trailer(tool, version).as_bytes()].concat());
        let expected = Installed { tool: "terraform".to_owned(), version: "1.8.5".to_owned() };
        assert_eq!(appended("terraform", "1.8.5"), Some(expected.clone()));
        assert_eq!(read(trailer("terraform", "1.8.5").as_bytes()), Some(expected));
        let again = format!("{}{}", trailer("tofu", "1.0.0"), trailer("tofu", "1.12.6"));
        assert_eq!(read(again.as_bytes()).unwrap().version, "1.12.6");
        for other in ["", "\n", "a program", "pawl-scripted-tool tofu 1.0.0", "\npawl-scripted-tool tofu\n", "\nx tofu 1.0.0\n"] {
            assert_eq!(read(other.as_bytes()), None, "{other:?}");
        }
    }

    /// The output of a copy of the program, installed as this tool and version.
    fn says(tool: &str, version: &str, arguments: &[&str]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(tool);
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mut file = File::options().append(true).open(&program).unwrap();
        file.write_all(trailer(tool, version).as_bytes()).unwrap();
        drop(file);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(&program);
        crate::tests::as_tool(&mut command, arguments);
        let output = command.current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_copy_is_the_version_that_it_was_installed_as() {
        assert!(says("terraform", "1.8.5", &["version"]).contains("\nTerraform v1.8.5\non "));
        assert!(says("tofu", "1.12.6", &["-version"]).contains("\nOpenTofu v1.12.6\non "));
        assert!(says("tofu", "1.9.4", &["version", "-json"]).contains("\"terraform_version\":\"1.9.4\""));
    }
}
