//! The program that Terragrunt runs in place of OpenTofu or Terraform: this one, under another name. It replaces itself by the
//! tool.
//!
//! Terragrunt runs the tool in directories that it creates: for the unit, and for each unit whose outputs the unit reads. Only this
//! program sees where the tool runs and for which unit. It sets the unit's data directory (`TF_DATA_DIR`) to the stack's
//! `.terraform`, wherever the tool runs. Other units keep their own, since a data directory has one backend. It notes for the agent
//! where the tool ran for the unit.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::symlink, process::CommandExt as _},
    path::{Component, Path, PathBuf},
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tool_versions::Tool;

use crate::backend::of_code;

/// Directory of the links by which this program is called in the tool's place.
pub const DIR: &str = "beneath";
/// The tool to run.
pub const TOOL: &str = "PAWL_TOOL";
/// The unit: the stack's directory.
pub const UNIT: &str = "PAWL_UNIT";
/// The notes file: one line per command that ran for the unit, with its directory, e.g. `init /pawl/work/…`.
pub const NOTES: &str = "PAWL_NOTES";
/// The command that the agent requested from Terragrunt, e.g. `init`.
pub const ASKED: &str = "PAWL_ASKED";
/// Arguments to run in place of `plan`, a list in JSON.
pub const INSTEAD: &str = "PAWL_INSTEAD";

/// The file with the run's own backend.
pub const BACKEND: &str = "PAWL_BACKEND";

/// Reaction to a call by Terragrunt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    /// Run the tool, for another unit or without one (`tofu --version`).
    Other,
    /// Run the tool for the unit, with these arguments.
    Unit(Vec<OsString>),
    /// Do nothing: the command has run already.
    Done,
}

/// Whether this process was called in the tool's place.
pub fn is_called() -> bool {
    let name = env::args_os().next().map(PathBuf::from);
    name.as_deref()
        .and_then(Path::parent)
        .and_then(Path::file_name)
        == Some(OsStr::new(DIR))
        && env::var_os(TOOL).is_some()
}

/// Replaces the process by the tool. Returns an exit code if there is nothing to run, or if the tool cannot run.
pub fn run() -> u8 {
    let var = |name| env::var_os(name).unwrap_or_default();
    let (tool, unit, notes) = (
        var(TOOL),
        PathBuf::from(var(UNIT)),
        PathBuf::from(var(NOTES)),
    );
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let instead = env::var(INSTEAD).unwrap_or_default();
    let instead: Vec<String> = serde_json::from_str(&instead).unwrap_or_default();
    let instead: Vec<&str> = instead.iter().map(String::as_str).collect();
    let is_init = var(ASKED) == "init";
    let here = env::current_dir().unwrap_or_default();
    let mut command = Command::new(&tool);
    for name in [TOOL, UNIT, NOTES, ASKED, INSTEAD, BACKEND] {
        command.env_remove(name);
    }
    match call(
        args.clone(),
        is_of(&here, &unit),
        is_init,
        &instead,
        &noted(&notes),
    ) {
        Call::Done => return 0,
        Call::Other => command.args(args),
        Call::Unit(mut args) => {
            if args.first().is_some_and(|name| name == "init")
                && let Some(given) = env::var_os(BACKEND)
            {
                match place(&tool, &here, Path::new(&given), &notes) {
                    Ok(more) => args.extend(more),
                    Err(error) => {
                        eprintln!("error: the run's backend cannot be written: {error}");
                        return 126;
                    }
                }
            }
            // A failed note does not stop the tool. The agent then reports that the tool did not run.
            let _ = note(
                &notes,
                args.first().map_or(OsStr::new(""), OsString::as_os_str),
                &here,
            );
            let data = unit.join(".terraform");
            show(&data, &here, &unit);
            command.env("TF_DATA_DIR", data).args(args)
        }
    };
    let error = command.exec();
    eprintln!("error: {} cannot be run: {error}", tool.display());
    126
}

/// Brings the run's own backend into force where the tool runs. Notes what becomes of the code's.
fn place(tool: &OsStr, here: &Path, given: &Path, notes: &Path) -> io::Result<Vec<OsString>> {
    let name = Path::new(tool).file_name().unwrap_or_default();
    let tool = if name.as_bytes().starts_with(b"terraform") {
        Tool::Terraform
    } else {
        Tool::OpenTofu
    };
    let done = of_code::place(tool, here, given)?;
    fs::write(placed(notes), done.note.unwrap_or_default())?;
    Ok(done.args)
}

/// The file with the note on the code's backend.
pub fn placed(notes: &Path) -> PathBuf {
    notes.with_extension("backend")
}

fn call(
    args: Vec<OsString>,
    is_unit: bool,
    is_init: bool,
    instead: &[&str],
    before: &[(String, PathBuf)],
) -> Call {
    let named = args
        .first()
        .filter(|first| !first.as_bytes().starts_with(b"-") && *first != "version");
    let Some(name) = named.filter(|_| is_unit) else {
        return Call::Other;
    };
    match name.to_str() {
        // Terragrunt may run `init` before another command. The agent has already run it in phase Init.
        Some("init") if !is_init => Call::Done,
        Some("init") => {
            let missing = instead
                .iter()
                .map(OsString::from)
                .filter(|arg| !args.contains(arg))
                .collect::<Vec<_>>();
            Call::Unit([args, missing].concat())
        }
        // Terragrunt has already run it before `plan`, with its own arguments and hooks.
        Some("plan") if is_init && before.iter().any(|(name, _)| name == "init") => Call::Done,
        Some("plan") if !instead.is_empty() => {
            Call::Unit(instead.iter().map(OsString::from).collect())
        }
        Some(_) | None => Call::Unit(args),
    }
}

/// Whether a directory belongs to the unit: it is the unit's, lies below its `.terragrunt-cache`, or, with a central cache, below a
/// directory named by the digest of the unit's path (`tf/source.go`, unchanged since Terragrunt's first versions).
fn is_of(here: &Path, unit: &Path) -> bool {
    let bears = URL_SAFE_NO_PAD.encode(digest(
        &SHA1_FOR_LEGACY_USE_ONLY,
        unit.as_os_str().as_bytes(),
    ));
    here == unit
        || here.starts_with(unit.join(".terragrunt-cache"))
        || here
            .components()
            .any(|part| part == Component::Normal(bears.as_ref()))
}

/// Creates a link to the unit's data directory where Terragrunt looks for it. Without the link Terragrunt would run `init` and its hooks
/// each time.
fn show(data: &Path, here: &Path, unit: &Path) {
    let Ok(below) = here.strip_prefix(unit) else {
        return;
    };
    if below.as_os_str().is_empty() {
        return;
    }
    let up: PathBuf = below.components().map(|_| "..").collect();
    // An existing one comes from a manual run of Terragrunt and remains.
    let _ = symlink(
        up.join(data.file_name().unwrap_or_default()),
        here.join(".terraform"),
    );
    // This file makes Terragrunt run `init`.
    let _ = fs::remove_file(here.join(".terragrunt-init-required"));
}

fn note(notes: &Path, command: &OsStr, here: &Path) -> io::Result<()> {
    let mut file = fs::File::options().append(true).create(true).open(notes)?;
    let line = [command.as_bytes(), b" ", here.as_os_str().as_bytes(), b"\n"].concat();
    file.write_all(&line)
}

/// The commands that ran for the unit, with their directories, oldest first.
pub fn noted(notes: &Path) -> Vec<(String, PathBuf)> {
    let text = crate::files::regular(notes)
        .and_then(io::read_to_string)
        .unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs
        .map(|(command, here)| (command.to_owned(), PathBuf::from(here)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_directories_of_the_unit_are_its_own() {
        let unit = Path::new("/live/x/b");
        for (here, of) in [
            ("/live/x/b", true),
            // Directory names as of Terragrunt 1.1.3.
            (
                "/live/x/b/.terragrunt-cache/kiFe37zDHueXg0Lp7im6gjl61-A/vFrEUT0nt3anD-1z2Ql3KqSRc4Y",
                true,
            ),
            (
                "/var/cache/kiFe37zDHueXg0Lp7im6gjl61-A/vFrEUT0nt3anD-1z2Ql3KqSRc4Y/modules/net",
                true,
            ),
            (
                "/var/cache/NB30OKvkoNWCVxvkmC9-I0fJYpw/vFrEUT0nt3anD-1z2Ql3KqSRc4Y",
                false,
            ),
            ("/live/x/a/.terragrunt-cache/1/2", false),
            ("/live/x/b/inner", false),
            ("/live/x/bb", false),
        ] {
            assert_eq!(is_of(Path::new(here), unit), of, "{here}");
        }
    }

    #[test]
    fn init_runs_only_when_requested() {
        let init = ["init", "-input=false"];
        let before = [("init".to_owned(), PathBuf::from("/s"))];
        assert_eq!(
            call(words("init -no-color"), true, true, &[], &[]),
            Call::Unit(words("init -no-color"))
        );
        assert_eq!(
            call(words("init -no-color"), true, false, &[], &[]),
            Call::Done
        );
        assert_eq!(
            call(words("plan -out=x"), true, false, &[], &before),
            Call::Unit(words("plan -out=x"))
        );
        // When run as part of `plan`, Terragrunt runs `init` first or skips it.
        assert_eq!(
            call(words("init -no-color"), true, true, &init, &[]),
            Call::Unit(words("init -no-color -input=false"))
        );
        assert_eq!(call(words("plan"), true, true, &init, &before), Call::Done);
        assert_eq!(
            call(words("plan"), true, true, &init, &[]),
            Call::Unit(words("init -input=false"))
        );
        let unlock = ["force-unlock", "-force", "1"];
        assert_eq!(call(words("init"), true, false, &unlock, &[]), Call::Done);
        assert_eq!(
            call(words("plan"), true, false, &unlock, &[]),
            Call::Unit(words("force-unlock -force 1"))
        );
    }

    #[test]
    fn other_units_are_unchanged() {
        for args in ["init -get=false", "output -json", "plan"] {
            assert_eq!(
                call(words(args), false, false, &["init"], &[]),
                Call::Other,
                "{args}"
            );
        }
        for args in ["-version", "version -json"] {
            assert_eq!(
                call(words(args), true, true, &["init"], &[]),
                Call::Other,
                "{args}"
            );
        }
    }

    #[test]
    fn terragrunt_sees_the_data_directory_in_its_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (unit, copy) = (dir.path(), dir.path().join(".terragrunt-cache/1/2"));
        fs::create_dir_all(&copy).unwrap();
        show(&unit.join(".terraform"), &copy, unit);
        assert_eq!(
            fs::read_link(copy.join(".terraform")).unwrap(),
            Path::new("../../../.terraform")
        );
        show(&unit.join(".terraform"), unit, unit);
        assert!(!unit.join(".terraform").is_symlink());
    }

    #[test]
    fn notes_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let notes = dir.path().join("notes");
        assert_eq!(noted(&notes), []);
        note(&notes, OsStr::new("init"), Path::new("/a b/c")).unwrap();
        note(&notes, OsStr::new("plan"), Path::new("/d")).unwrap();
        assert_eq!(
            noted(&notes),
            [
                ("init".to_owned(), PathBuf::from("/a b/c")),
                ("plan".to_owned(), PathBuf::from("/d"))
            ]
        );
    }
}
