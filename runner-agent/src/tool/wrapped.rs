//! The program that Terragrunt runs in place of OpenTofu or Terraform: this one, under another name. It replaces itself by the
//! tool.
//!
//! Terragrunt runs the tool in directories that it creates: for the unit, and for each unit whose outputs the unit reads. Only this
//! program sees where the tool runs and for which unit. It sets the unit's data directory (`TF_DATA_DIR`) to the stack's
//! `.terraform`, wherever the tool runs. Other units keep their own, since a data directory has one backend. It notes for the agent
//! where the tool ran for the unit. It seals the variables that Terragrunt gives a plan (`TF_VAR_…`), and does not start an apply that
//! would get other values.

use std::{
    collections::BTreeMap,
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

use crate::{
    backend::of_code,
    sealed_inputs::{GivenVariables, SealedInputs},
};

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
/// The file of the plan's variables: `plan` writes it, `apply` and [`ASK`] compare with it.
pub const INPUTS: &str = "PAWL_INPUTS";
/// The command by which the agent asks Terragrunt for the variables alone. The tool does not run. It is one of those that Terragrunt's own
/// list gives the variables of an apply, and that configurations name neither for mocks nor for hooks.
pub const ASK: &str = "refresh";
/// The command of a note about variables that differ, in place of a directory.
const DIFFERS: &str = "differs";

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
    let inputs = env::var_os(INPUTS).map(PathBuf::from);
    for name in [TOOL, UNIT, NOTES, ASKED, INSTEAD, INPUTS, BACKEND] {
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
            let name = args.first().cloned().unwrap_or_default();
            let asks = inputs.is_some() && name == ASK;
            let weighed = inputs.map(|file| weigh(&file, &name, &variables()));
            match weighed.unwrap_or(Ok(Vec::new())) {
                Ok(others) if !others.is_empty() => {
                    let others = others.join(", ");
                    let _ = note(&notes, DIFFERS.as_ref(), others.as_ref());
                    eprintln!("error: the plan was made with other values of {others}");
                    return 1;
                }
                Ok(_) if asks => return 0,
                Ok(_) => {}
                Err(error) => {
                    eprintln!("error: the variables of the plan are not known: {error}");
                    return 1;
                }
            }
            if name == "init"
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
            let _ = note(&notes, &name, &here);
            if name == "plan" {
                link_outs(&args, &here, &notes);
            }
            let data = unit.join(".terraform");
            show(&data, &here, &unit);
            command.env("TF_DATA_DIR", data).args(args)
        }
    };
    let error = command.exec();
    eprintln!("error: {} cannot be run: {error}", tool.display());
    126
}

/// Brings the run's own backend into force where the tool runs. Notes the effect on the code's. Returns one more argument.
fn place(tool: &OsStr, here: &Path, given: &Path, notes: &Path) -> io::Result<Option<OsString>> {
    let name = Path::new(tool).file_name().unwrap_or_default();
    let tool = if name.as_bytes().starts_with(b"terraform") {
        Tool::Terraform
    } else {
        Tool::OpenTofu
    };
    let done = of_code::place(tool, here, given)?;
    fs::write(placed(notes), done.note.unwrap_or_default())?;
    Ok(done.arg)
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
        Some(_) | None => {
            // With it, the code's own arguments would make an exit code of 2 a success.
            let args = args.into_iter().filter(|arg| arg != "-detailed-exitcode");
            Call::Unit(args.collect())
        }
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

/// Lets hooks read the plan at the paths that the code gives besides the agent's, the last one: the tool writes that alone. The agent removes
/// these links.
fn link_outs(args: &[OsString], here: &Path, notes: &Path) {
    let outs = args.iter().filter_map(|arg| {
        let path = arg.to_str()?.trim_start_matches('-').strip_prefix("out=")?;
        Some(here.join(path))
    });
    let mut outs: Vec<_> = outs.collect();
    let Some(plan) = outs.pop() else { return };
    for path in &outs {
        // The tool could not write there either.
        let _ = fs::remove_file(path);
        let _ = symlink(&plan, path);
    }
    let _ = fs::write(linked(notes), serde_json::json!(outs).to_string());
}

/// The file with the links to a plan, a list in JSON.
fn linked(notes: &Path) -> PathBuf {
    notes.with_extension("links")
}

/// Removes the links to a plan. The stack's code could name others.
pub fn unlink_outs(notes: &Path, plan: &Path) {
    let list = linked(notes);
    let text = crate::files::regular(&list).and_then(io::read_to_string);
    let outs: Vec<PathBuf> = serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default();
    for path in outs {
        if fs::read_link(&path).is_ok_and(|target| target == plan) {
            let _ = fs::remove_file(path);
        }
    }
    let _ = fs::remove_file(list);
}

/// The variables of this process.
fn variables() -> BTreeMap<String, String> {
    let text = |word: OsString| word.to_string_lossy().into_owned();
    env::vars_os()
        .map(|(name, value)| (text(name), text(value)))
        .filter(|(name, _)| name.starts_with("TF_VAR_"))
        .collect()
}

/// Seals the variables of a plan. Of another command, returns the names of those with other values than the plan's. A variable that is gone
/// keeps the plan's value.
fn weigh(
    file: &Path,
    command: &OsStr,
    variables: &BTreeMap<String, String>,
) -> io::Result<Vec<String>> {
    if command == "plan" {
        let given = GivenVariables {
            sealed: SealedInputs::of(variables).map_err(io::Error::other)?,
            ..GivenVariables::default()
        };
        fs::write(file, serde_json::to_vec(&given)?)?;
        return Ok(Vec::new());
    }
    let given: GivenVariables = serde_json::from_reader(crate::files::regular(file)?)?;
    let mut others = given.sealed.changed(variables);
    others.retain(|name| variables.contains_key(name));
    // Some of them belong to other commands.
    if command != ASK {
        others.extend(given.sealed.added(variables));
    }
    Ok(others)
}

fn note(notes: &Path, command: &OsStr, here: &Path) -> io::Result<()> {
    let mut file = fs::File::options().append(true).create(true).open(notes)?;
    let line = [command.as_bytes(), b" ", here.as_os_str().as_bytes(), b"\n"].concat();
    file.write_all(&line)
}

/// The names of the variables for whose values the tool was not started.
pub fn differing(notes: &Path) -> Option<String> {
    let mut all = lines(notes).into_iter();
    let (_, names) = all.find(|(command, _)| command == DIFFERS)?;
    Some(names.display().to_string())
}

/// The commands that ran for the unit, with their directories, oldest first.
pub fn noted(notes: &Path) -> Vec<(String, PathBuf)> {
    let mut all = lines(notes);
    all.retain(|(command, _)| command != DIFFERS);
    all
}

fn lines(notes: &Path) -> Vec<(String, PathBuf)> {
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
        assert_eq!(
            call(
                words("plan -detailed-exitcode -out=x"),
                true,
                false,
                &[],
                &before
            ),
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
        assert_eq!(differing(&notes), None);
        note(&notes, DIFFERS.as_ref(), "TF_VAR_a, TF_VAR_b".as_ref()).unwrap();
        assert_eq!(noted(&notes).len(), 2);
        assert_eq!(differing(&notes).as_deref(), Some("TF_VAR_a, TF_VAR_b"));
    }

    #[test]
    fn apply_with_other_variables_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("inputs");
        let variables = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let of = |command: &str, pairs: &[(&str, &str)]| {
            weigh(&file, OsStr::new(command), &variables(pairs)).unwrap()
        };
        let planned = [("TF_VAR_range", "10.9.0.0"), ("TF_VAR_zone", "a")];
        assert!(of("plan", &planned).is_empty());
        assert!(!fs::read_to_string(&file).unwrap().contains("10.9"));
        for command in ["apply", ASK] {
            assert!(of(command, &planned).is_empty());
            assert!(of(command, &planned[1..]).is_empty(), "one that is gone");
            let other = [("TF_VAR_range", "10.0.0.0/16"), ("TF_VAR_zone", "a")];
            assert_eq!(of(command, &other), ["TF_VAR_range"]);
        }
        let more = [planned[0], planned[1], ("TF_VAR_new", "x")];
        assert_eq!(of("apply", &more), ["TF_VAR_new"]);
        assert!(of(ASK, &more).is_empty());
        assert!(
            weigh(
                &dir.path().join("none"),
                OsStr::new("apply"),
                &BTreeMap::new()
            )
            .is_err()
        );
    }
}
