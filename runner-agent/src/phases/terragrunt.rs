//! Differences when Terragrunt runs the tool: its environment, the tool's working directory, and an end without a plan.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead as _, BufReader, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use crds::{Changes, Failure, Reason};

use super::{Initialised, PhaseRunner, Planned, Shell, terragrunt_mocks::RENDER};
use crate::{
    classify::{self, OrInternal as _, Said},
    files,
    ports::PlanReport,
    process::{Command, Role},
    sealed_inputs::GivenVariables,
    tool::{Found, wrapped},
};

/// Terragrunt's message if a dependency has no outputs and mocks are not allowed for the command.
const NO_OUTPUTS: &str = "detected no outputs";
/// Terragrunt's message if it ignores an error as configured.
const IGNORED: &str = "Ignoring error, reason:";
/// File name of the variables that a plan was given, and its maximum size in bytes.
const INPUTS: &str = "inputs.json";
const MAX_INPUTS: u64 = 4 << 20;
const UNKEPT: &str = "the variables of the plan cannot be kept";

/// Arguments of a Terragrunt call, and its environment besides the tool's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
}

/// Makes Terragrunt non-interactive and forward the tool's output unchanged. Contains the names before and since version 0.73
/// (<https://terragrunt.gruntwork.io/docs/migrate/cli-redesign/>); each version ignores the others.
const TOLD: [&str; 7] = [
    "TG_NON_INTERACTIVE",
    "TERRAGRUNT_NON_INTERACTIVE",
    // It would cache providers in HOME, which is emptied before the claim.
    "TG_NO_AUTO_PROVIDER_CACHE_DIR",
    // Without it each line has a prefix and is no JSON any more.
    "TG_TF_FORWARD_STDOUT",
    "TERRAGRUNT_FORWARD_TF_STDOUT",
    "TG_NO_COLOR",
    "TERRAGRUNT_NO_COLOR",
];
/// A plan is applied once. A partly applied plan cannot be applied again.
const NO_RETRY: [&str; 2] = ["TG_NO_AUTO_RETRY", "TERRAGRUNT_NO_AUTO_RETRY"];

impl Call {
    /// Builds the call for a command of the tool. With `as_plan` the command runs as part of `plan`, since Terragrunt has mocks of outputs
    /// for `plan` only.
    fn of(terragrunt: &Found, args: Vec<OsString>, as_plan: bool) -> Self {
        let name = args
            .first()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let told = TOLD
            .iter()
            .chain(NO_RETRY.iter().filter(|_| name == "apply"));
        let mut env: Vec<(OsString, OsString)> =
            told.map(|name| (name.into(), "true".into())).collect();
        let is_render = name == RENDER[0];
        let own = is_render || ["plan", "apply", wrapped::ASK].contains(&name.as_str());
        let args = if as_plan && !own {
            let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
            let words = serde_json::json!(words).to_string();
            env.push((wrapped::INSTEAD.into(), words.into()));
            vec!["plan".into()]
        } else {
            args
        };
        env.push((wrapped::ASKED.into(), name.into()));
        // Since 1.0 only some commands work without it.
        let run = if terragrunt.version.at_least(1, 0) && !is_render {
            vec!["run".into(), "--".into()]
        } else {
            Vec::new()
        };
        Self {
            args: [run, args].concat(),
            env,
        }
    }
}

impl Shell {
    /// Whether Terragrunt runs the tool.
    pub(super) fn is_terragrunt(&self) -> bool {
        self.tool.found.beneath.is_some()
    }

    /// Whether Terragrunt's configuration made it ignore the cause of a failed command.
    pub(super) fn ignored(&self, said: &Said) -> bool {
        self.is_terragrunt() && said.tail.iter().any(|line| line.contains(IGNORED))
    }

    /// A command that needs no values of Terragrunt, run directly with the tool in the unit's working directory. Output of
    /// Terragrunt's hooks does not mix with it, and no outputs of other units are read.
    fn plain_command(&self, ran_in: Option<&Path>, args: &[&str]) -> Option<Command> {
        let (beneath, dir) = (self.tool.found.beneath.as_ref()?, ran_in?);
        let mut env = self.env.clone();
        env.push(("TF_DATA_DIR".into(), self.stack.join(".terraform").into()));
        let args = self.with_variables(args.iter().map(OsString::from).collect());
        Some(Command {
            program: beneath.binary.clone(),
            args,
            env,
            dir: dir.to_path_buf(),
            role: Role::Tool,
        })
    }
}

impl PhaseRunner {
    /// Builds the Terragrunt call for a command of the tool. Deletes the notes of the previous command.
    pub(super) fn call_terragrunt(
        &self,
        shell: &Shell,
        args: Vec<OsString>,
    ) -> Result<Call, Failure> {
        let (stack, tool) = (&shell.stack, &shell.tool.found);
        let Some(beneath) = &tool.beneath else {
            return Ok(Call {
                args,
                env: Vec::new(),
            });
        };
        let failed = "the settings for Terragrunt cannot be written";
        let stands_in = self.stands_in(beneath).or_internal(failed)?;
        let notes = self.notes();
        gone(&notes).or_internal(failed)?;
        let inputs = match args.first().and_then(|name| name.to_str()) {
            Some("plan") => Some(self.seen_inputs()),
            Some("apply" | wrapped::ASK) if !shell.rotates => {
                Some(self.kept_inputs()).filter(|file| file.is_file())
            }
            _ => None,
        };
        let mut call = Call::of(tool, args, shell.as_plan.load(Ordering::Relaxed));
        if let Some(given) = &shell.backend {
            call.env.push((wrapped::BACKEND.into(), given.into()));
        }
        call.env
            .extend(inputs.map(|file| (wrapped::INPUTS.into(), file.into())));
        for name in ["TG_TF_PATH", "TERRAGRUNT_TFPATH"] {
            call.env.push((name.into(), stands_in.clone().into()));
        }
        // If PWD is set, Terragrunt identifies units by that path.
        for (name, path) in [
            ("PWD", stack),
            (wrapped::UNIT, stack),
            (wrapped::TOOL, &beneath.binary),
            (wrapped::NOTES, &notes),
        ] {
            call.env.push((name.into(), path.into()));
        }
        Ok(call)
    }

    /// The link to this program that Terragrunt calls in place of the tool. It has the tool's name, which Terragrunt shows in
    /// messages.
    fn stands_in(&self, beneath: &Found) -> io::Result<PathBuf> {
        let dir = self.settings.kept.join(wrapped::DIR);
        let link = dir.join(beneath.binary.file_name().unwrap_or_default());
        let agent = std::env::current_exe()?;
        if fs::read_link(&link).is_ok_and(|target| target == agent) {
            return Ok(link);
        }
        fs::create_dir_all(&dir)?;
        gone(&link)?;
        symlink(agent, &link)?;
        Ok(link)
    }

    /// Path of the notes on the unit's commands. The stack's code can write there, as to other inputs of the tool.
    fn notes(&self) -> PathBuf {
        self.settings.tmp().join("ran")
    }

    /// What became of the code's backend when Terragrunt ran `init`, in words.
    pub(super) fn placed_by_stand_in(&self) -> Option<String> {
        let text = files::regular(&wrapped::placed(&self.notes())).and_then(io::read_to_string);
        Some(self.redactor.clean(text.ok()?.lines().last()?))
    }

    /// The directory in which the last Terragrunt command ran the tool; `None` if that command did not run the tool.
    pub(super) fn ran_in(&self) -> Option<PathBuf> {
        wrapped::noted(&self.notes()).pop().map(|(_, dir)| dir)
    }

    /// Path where the stand-in writes the variables of a plan. The stack's code can write there.
    fn seen_inputs(&self) -> PathBuf {
        self.settings.tmp().join(INPUTS)
    }

    /// Path of the kept variables, which the stack's code cannot change.
    fn kept_inputs(&self) -> PathBuf {
        self.settings.kept.join(INPUTS)
    }

    /// Keeps the variables that Terragrunt gave the plan.
    pub(super) async fn keep_inputs(&self, shell: &Shell, mocked: bool) -> Result<(), Failure> {
        if !shell.is_terragrunt() {
            return Ok(());
        }
        let silent = self.silent_mocks(shell).await?;
        let mocked = mocked || !silent.is_empty();
        if mocked {
            let why = mocks(&silent);
            self.say(format!(
                "mocks of outputs are in this plan: it is not applied; {why}, and plan again"
            ))
            .await;
        }
        let seen = files::left(&self.seen_inputs(), MAX_INPUTS).or_internal(UNKEPT)?;
        let given: GivenVariables = serde_json::from_reader(seen).or_internal(UNKEPT)?;
        self.put_inputs(&GivenVariables {
            mocked,
            silent,
            ..given
        })
    }

    pub(super) fn put_inputs(&self, given: &GivenVariables) -> Result<(), Failure> {
        let file = files::create(&self.kept_inputs()).or_internal(UNKEPT)?;
        serde_json::to_writer(file, given).or_internal(UNKEPT)
    }

    /// The variables that Terragrunt gave the plan.
    pub(super) fn given_inputs(&self) -> Option<GivenVariables> {
        serde_json::from_reader(files::regular(&self.kept_inputs()).ok()?).ok()
    }

    /// Refuses a plan with mocks, or with other variables than Terragrunt gives now.
    pub(super) async fn compare_inputs(&self, shell: &Shell) -> Result<(), Failure> {
        let given = self.given_inputs().filter(|_| shell.is_terragrunt());
        let Some(given) = given else {
            return Ok(());
        };
        if given.mocked {
            let why = mocks(&given.silent);
            let message = format!(
                "the plan has mocks in place of another unit's outputs; {why}, and plan again"
            );
            return Err(Reason::InputsChanged.failure(message));
        }
        if shell.rotates {
            return Ok(());
        }
        let (notices, _unseen) = tokio::sync::mpsc::unbounded_channel();
        let command = self.command(shell, [wrapped::ASK])?;
        let mut events = self.events(&shell.stack, &notices);
        let exit = self.children.run(&command, &mut events).await;
        let exit = exit.map_err(|error| classify::not_run("inputs", &error))?;
        self.have_inputs_changed()?;
        if exit.code == 0 {
            return Ok(());
        }
        Err(classify::failure("inputs", exit, &events.said()))
    }

    /// Whether the stand-in did not start the tool, for other variables than the plan's.
    pub(super) fn have_inputs_changed(&self) -> Result<(), Failure> {
        let Some(names) = wrapped::differing(&self.notes()) else {
            return Ok(());
        };
        let allows = if self.host.keeps_disk() {
            ""
        } else {
            ", or allow it by spec.approval.allowRotation"
        };
        let message = format!(
            "Terragrunt gives {names} another value than the plan was made with; plan again{allows}"
        );
        Err(Reason::InputsChanged.failure(self.redactor.clean(&message)))
    }

    /// Commands that show the plan, in order: each is tried if the previous one fails. `ran_in` is the directory in which
    /// Terragrunt made the plan.
    pub(super) fn showing(
        &self,
        shell: &Shell,
        ran_in: Option<&Path>,
        args: &[&str],
    ) -> Result<Vec<Command>, Failure> {
        let as_terragrunt_runs_it = self.command(shell, args.iter().copied())?;
        Ok(shell
            .plain_command(ran_in, args)
            .into_iter()
            .chain([as_terragrunt_runs_it])
            .collect())
    }

    /// Whether a command failed because outputs are missing that Terragrunt replaces by mocks for `plan` only
    /// (`mock_outputs_allowed_terraform_commands`). From then on all commands except `plan` and `apply` run as part of `plan`.
    pub(super) async fn takes_mocks(&self, shell: &Shell, said: &Said) -> bool {
        let lacks_outputs = || said.tail.iter().any(|line| line.contains(NO_OUTPUTS));
        if !shell.is_terragrunt() || shell.as_plan.load(Ordering::Relaxed) || !lacks_outputs() {
            return false;
        }
        shell.as_plan.store(true, Ordering::Relaxed);
        self.say(
            "it is tried as a part of `terragrunt plan`, for which mocks of outputs may be allowed",
        )
        .await;
        true
    }

    /// The result if Terragrunt exits with 0 and the tool made no plan, as configured (`exclude`, `errors { ignore … }`). There is
    /// nothing to apply.
    pub(super) async fn planned_nothing(
        &self,
        made: Initialised,
    ) -> Result<(PlanReport, Planned), Failure> {
        let why = if self.ran_in().is_some() {
            "it was told to ignore the error above"
        } else {
            "it ran nothing in this unit"
        };
        self.say(format!("Terragrunt made no plan, as its configuration wants it: {why}; there is nothing to apply")).await;
        // The checksum covers an empty plan file.
        files::create(&self.settings.plan_file()).or_internal("the plan cannot be kept")?;
        let (checksum, parts) = self.checksum(&made.shell, &made.facts).await?;
        let platform = made.facts.platform.clone();
        Ok((
            PlanReport {
                checksum,
                platform,
                ..PlanReport::default()
            },
            Planned::of(made, Some(parts), Changes::default()),
        ))
    }
}

/// The remedy for the mocks in a plan.
fn mocks(silent: &[String]) -> String {
    match silent {
        [] => "apply the unit that has the outputs".to_owned(),
        _ => silent.join("; "),
    }
}

fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Skips lines that Terragrunt code (`run_cmd`) may print before a command's JSON.
pub(super) fn json<R: Read>(from: R) -> io::Result<BufReader<R>> {
    let mut reader = BufReader::with_capacity(64 * 1024, from);
    while reader.fill_buf()?.first().is_some_and(|byte| *byte != b'{') {
        reader.skip_until(b'\n')?;
    }
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::ToolName;

    fn call(version: &str, args: &[&str], as_plan: bool) -> Call {
        let found = Found::at(
            ToolName::Terragrunt,
            version.parse().unwrap(),
            PathBuf::from("/t"),
        );
        Call::of(&found, args.iter().map(OsString::from).collect(), as_plan)
    }

    fn has(call: &Call, name: &str) -> Option<String> {
        call.env
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.to_string_lossy().into_owned())
    }

    #[test]
    fn each_terragrunt_version_gets_its_own_syntax() {
        let old = call("0.54.0", &["workspace", "select", "a"], false);
        assert_eq!(old.args, ["workspace", "select", "a"]);
        let new = call("1.1.3", &["workspace", "select", "a"], false);
        assert_eq!(new.args, ["run", "--", "workspace", "select", "a"]);
        for call in [old, new] {
            for name in ["TG_NON_INTERACTIVE", "TERRAGRUNT_NON_INTERACTIVE"] {
                assert_eq!(has(&call, name).as_deref(), Some("true"), "{name}");
            }
            assert_eq!(has(&call, wrapped::ASKED).as_deref(), Some("workspace"));
        }
    }

    #[test]
    fn terragrunt_retries_every_command_but_apply() {
        for (name, retries) in [("init", true), ("plan", true), ("apply", false)] {
            assert_eq!(
                has(&call("1.1.3", &[name], false), "TG_NO_AUTO_RETRY").is_none(),
                retries,
                "{name}"
            );
        }
    }

    #[test]
    fn other_commands_run_as_part_of_plan_for_mocks() {
        let init = call("1.1.3", &["init", "-json"], true);
        assert_eq!(init.args, ["run", "--", "plan"]);
        assert_eq!(
            has(&init, wrapped::INSTEAD).as_deref(),
            Some("[\"init\",\"-json\"]")
        );
        assert_eq!(has(&init, wrapped::ASKED).as_deref(), Some("init"));
        for name in ["plan", "apply", wrapped::ASK] {
            let call = call("0.90.0", &[name, "-json"], true);
            assert_eq!(
                (call.args.len(), has(&call, wrapped::INSTEAD)),
                (2, None),
                "{name}"
            );
        }
    }

    #[test]
    fn text_before_the_json_is_skipped() {
        let read = |text: &'static str| io::read_to_string(json(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(read("noise\n  {no\n\n{\"a\":1}\n"), "{\"a\":1}\n");
        assert_eq!(read("{}"), "{}");
        assert_eq!(read("noise"), "");
    }
}
