//! The program that Terragrunt is told to run in place of OpenTofu or Terraform: this one, by another name. It becomes the tool at once.
//!
//! Terragrunt runs the tool in directories of its own making: for the unit, and for each unit whose outputs that one takes. Only here, where
//! the tool is started, is it seen for which of them and where. The unit's data directory (`TF_DATA_DIR`) is the stack's `.terraform`, wherever the tool runs;
//! every other unit keeps its own, since a data directory holds one backend. Where the tool ran for the unit is noted for the agent.

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

/// The directory of the links by which this program is called in the tool's place.
pub const DIR: &str = "beneath";
/// The tool that is to be run.
pub const TOOL: &str = "PAWL_TOOL";
/// The unit: the stack's directory.
pub const UNIT: &str = "PAWL_UNIT";
/// The file that notes, one a line, which command ran for the unit and where: `init /pawl/work/…`.
pub const NOTES: &str = "PAWL_NOTES";
/// What the agent asked Terragrunt for: `init`.
pub const ASKED: &str = "PAWL_ASKED";
/// What to run in place of `plan`, one argument a line.
pub const INSTEAD: &str = "PAWL_INSTEAD";

/// What to do when Terragrunt calls for the tool.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    /// The tool itself, for another unit or for nobody: `tofu --version`.
    Other,
    /// The tool itself for the unit, with these arguments.
    Unit(Vec<OsString>),
    /// Nothing: it has been done.
    Done,
}

/// Whether this process was called in the tool's place.
pub fn is_called() -> bool {
    let name = env::args_os().next().map(PathBuf::from);
    name.as_deref().and_then(Path::parent).and_then(Path::file_name) == Some(OsStr::new(DIR)) && env::var_os(TOOL).is_some()
}

/// Becomes the tool; the exit code when there is nothing to run, or it cannot be run.
pub fn run() -> u8 {
    let var = |name| env::var_os(name).unwrap_or_default();
    let (tool, unit, notes) = (var(TOOL), PathBuf::from(var(UNIT)), PathBuf::from(var(NOTES)));
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let instead = env::var(INSTEAD).unwrap_or_default();
    let instead: Vec<&str> = instead.lines().collect();
    let is_init = var(ASKED) == "init";
    let here = env::current_dir().unwrap_or_default();
    let mut command = Command::new(&tool);
    for name in [TOOL, UNIT, NOTES, ASKED, INSTEAD] {
        command.env_remove(name);
    }
    match call(args.clone(), is_of(&here, &unit), is_init, &instead, &noted(&notes)) {
        Call::Done => return 0,
        Call::Other => command.args(args),
        Call::Unit(args) => {
            // What is not noted is missed by the agent, which says so; the tool's own work does not depend on it.
            let _ = note(&notes, args.first().map_or(OsStr::new(""), OsString::as_os_str), &here);
            let data = unit.join(".terraform");
            show(&data, &here, &unit);
            command.env("TF_DATA_DIR", data).args(args)
        }
    };
    let error = command.exec();
    eprintln!("error: {} cannot be run: {error}", tool.display());
    126
}

fn call(args: Vec<OsString>, is_unit: bool, is_init: bool, instead: &[&str], before: &[(String, PathBuf)]) -> Call {
    let named = args.first().filter(|first| !first.as_bytes().starts_with(b"-") && *first != "version");
    let Some(name) = named.filter(|_| is_unit) else { return Call::Other };
    match name.to_str() {
        // Terragrunt deems it due before another command; the agent has had it run when it was its turn.
        Some("init") if !is_init => Call::Done,
        Some("init") => {
            let missing = instead.iter().map(OsString::from).filter(|arg| !args.contains(arg)).collect::<Vec<_>>();
            Call::Unit([args, missing].concat())
        }
        // Terragrunt had it run before what it was asked for, with its own arguments and hooks.
        Some("plan") if is_init && before.iter().any(|(name, _)| name == "init") => Call::Done,
        Some("plan") if !instead.is_empty() => Call::Unit(instead.iter().map(OsString::from).collect()),
        Some(_) | None => Call::Unit(args),
    }
}

/// Whether a directory is the unit's, or one that Terragrunt made for it: below its own `.terragrunt-cache`, or, wherever units
/// keep their copies, below one that bears the digest of the unit's path (`tf/source.go`, the same since its first versions).
fn is_of(here: &Path, unit: &Path) -> bool {
    let bears = URL_SAFE_NO_PAD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, unit.as_os_str().as_bytes()));
    here == unit
        || here.starts_with(unit.join(".terragrunt-cache"))
        || here.components().any(|part| part == Component::Normal(bears.as_ref()))
}

/// Lets Terragrunt find the unit's data directory where it looks for it: it would deem `init` due, and run its hooks, each time.
fn show(data: &Path, here: &Path, unit: &Path) {
    let Ok(below) = here.strip_prefix(unit) else { return };
    if below.as_os_str().is_empty() {
        return;
    }
    let up: PathBuf = below.components().map(|_| "..").collect();
    // One that is there is of Terragrunt run by hand, and stays.
    let _ = symlink(up.join(data.file_name().unwrap_or_default()), here.join(".terraform"));
    // It says that `init` is due.
    let _ = fs::remove_file(here.join(".terragrunt-init-required"));
}

fn note(notes: &Path, command: &OsStr, here: &Path) -> io::Result<()> {
    let mut file = fs::File::options().append(true).create(true).open(notes)?;
    let line = [command.as_bytes(), b" ", here.as_os_str().as_bytes(), b"\n"].concat();
    file.write_all(&line)
}

/// What ran for the unit: commands and where, oldest first.
pub fn noted(notes: &Path) -> Vec<(String, PathBuf)> {
    let text = crate::files::regular(notes).and_then(io::read_to_string).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(command, here)| (command.to_owned(), PathBuf::from(here))).collect()
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
            // As Terragrunt 1.1.3 makes them.
            ("/live/x/b/.terragrunt-cache/kiFe37zDHueXg0Lp7im6gjl61-A/vFrEUT0nt3anD-1z2Ql3KqSRc4Y", true),
            ("/var/cache/kiFe37zDHueXg0Lp7im6gjl61-A/vFrEUT0nt3anD-1z2Ql3KqSRc4Y/modules/net", true),
            ("/var/cache/NB30OKvkoNWCVxvkmC9-I0fJYpw/vFrEUT0nt3anD-1z2Ql3KqSRc4Y", false),
            ("/live/x/a/.terragrunt-cache/1/2", false),
            ("/live/x/b/inner", false),
            ("/live/x/bb", false),
        ] {
            assert_eq!(is_of(Path::new(here), unit), of, "{here}");
        }
    }

    #[test]
    fn init_runs_when_it_is_asked_for() {
        let init = ["init", "-input=false"];
        let before = [("init".to_owned(), PathBuf::from("/s"))];
        assert_eq!(call(words("init -no-color"), true, true, &[], &[]), Call::Unit(words("init -no-color")));
        assert_eq!(call(words("init -no-color"), true, false, &[], &[]), Call::Done);
        assert_eq!(call(words("plan -out=x"), true, false, &[], &before), Call::Unit(words("plan -out=x")));
        // By way of `plan`: Terragrunt runs it before that, or finds that it need not.
        assert_eq!(call(words("init -no-color"), true, true, &init, &[]), Call::Unit(words("init -no-color -input=false")));
        assert_eq!(call(words("plan"), true, true, &init, &before), Call::Done);
        assert_eq!(call(words("plan"), true, true, &init, &[]), Call::Unit(words("init -input=false")));
        let unlock = ["force-unlock", "-force", "1"];
        assert_eq!(call(words("init"), true, false, &unlock, &[]), Call::Done);
        assert_eq!(call(words("plan"), true, false, &unlock, &[]), Call::Unit(words("force-unlock -force 1")));
    }

    #[test]
    fn other_units_are_let_be() {
        for args in ["init -get=false", "output -json", "plan"] {
            assert_eq!(call(words(args), false, false, &["init"], &[]), Call::Other, "{args}");
        }
        for args in ["-version", "version -json"] {
            assert_eq!(call(words(args), true, true, &["init"], &[]), Call::Other, "{args}");
        }
    }

    #[test]
    fn terragrunt_sees_the_data_directory_in_its_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (unit, copy) = (dir.path(), dir.path().join(".terragrunt-cache/1/2"));
        fs::create_dir_all(&copy).unwrap();
        show(&unit.join(".terraform"), &copy, unit);
        assert_eq!(fs::read_link(copy.join(".terraform")).unwrap(), Path::new("../../../.terraform"));
        show(&unit.join(".terraform"), unit, unit);
        assert!(!unit.join(".terraform").is_symlink());
    }

    #[test]
    fn what_is_noted_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let notes = dir.path().join("notes");
        assert_eq!(noted(&notes), []);
        note(&notes, OsStr::new("init"), Path::new("/a b/c")).unwrap();
        note(&notes, OsStr::new("plan"), Path::new("/d")).unwrap();
        assert_eq!(noted(&notes), [("init".to_owned(), PathBuf::from("/a b/c")), ("plan".to_owned(), PathBuf::from("/d"))]);
    }
}
