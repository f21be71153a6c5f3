//! Both sides of a case, run one after the other at the same path, so that what has the path in it is the same.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result};
use crds::{TerraformRunStatus, text::clip};
use serde_json::Value;

use super::{
    cases::{self, Case},
    lab::{Lab, Tool},
    outcome::{End, Outcome, Rest, Stage},
};
use crate::cluster::cache;

/// Seconds that a tool which was told to end has for it.
const GRACE: &str = "20";
/// What the tools write of the providers they installed.
const LOCK_FILE: &str = ".terraform.lock.hcl";

/// Runs a case by the bare tool and by Pawl.
pub(super) fn both(lab: &Lab, case: &Case, tool: &Tool, number: usize) -> Result<(Outcome, Outcome)> {
    let side = |name, play| Side::run(lab, case, tool, &lab.place(number), name, play);
    let outcomes = side("bare", bare).and_then(|bare| Ok((bare, side("pawl", pawl)?)));
    lab.leave(number)?;
    outcomes
}

/// What is done: the first plan, and what comes behind it.
type Play = fn(&Side) -> Result<(Stage, Option<Rest>)>;

fn bare(side: &Side) -> Result<(Stage, Option<Rest>)> {
    let init = side.tool("init", &["init", "-input=false", "-no-color"])?;
    if init.code != Some(0) {
        return Ok((Stage::of_tool(init.end(false), &init.said()), None));
    }
    let plan = side.plan("plan", &[])?;
    if !matches!(plan.end, End::Changes | End::NoChanges) {
        return Ok((plan, None));
    }
    let apply = side.carry_out("apply", &plan)?;
    let (state, outputs) = (side.state("state")?, side.outputs()?);
    let second = side.plan("second-plan", &[])?;
    let destroy = side.carry_out("destroy", &side.plan("plan-destroy", &["-destroy"])?)?;
    let after = side.state("state-after")?;
    Ok((plan, Some(Rest { apply, state, outputs, second, destroy, after })))
}

fn pawl(side: &Side) -> Result<(Stage, Option<Rest>)> {
    let plan = side.agent("plan", "plan")?;
    if !matches!(plan.end, End::Changes | End::NoChanges) {
        return Ok((plan, None));
    }
    let apply = side.agent("apply", "apply")?;
    let (state, outputs) = (side.state("state")?, side.outputs()?);
    let second = side.agent("second-plan", "plan")?;
    let destroy = side.agent("destroy", "destroy")?;
    let after = side.state("state-after")?;
    Ok((plan, Some(Rest { apply, state, outputs, second, destroy, after })))
}

/// A copy of a case, and what works on it.
struct Side<'a> {
    lab: &'a Lab,
    tool: &'a Tool,
    unit: bool,
    /// All that is of this side; `folder` is in `tree` below it.
    work: PathBuf,
    folder: PathBuf,
    begun: Instant,
    steps: Cell<usize>,
}

/// A command that has ended.
struct Ended {
    /// None when it took too long.
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    fn end(&self, tells_changes: bool) -> End {
        match (self.code, tells_changes) {
            (None, _) => End::TimedOut,
            (Some(0), true) => End::NoChanges,
            (Some(0), false) => End::Done,
            (Some(2), true) => End::Changes,
            (Some(_), _) => End::Failed,
        }
    }

    fn said(&self) -> String {
        format!("{}\n{}", self.out, self.err)
    }

    /// What it printed as JSON; nothing when it printed nothing.
    fn value(&self) -> Value {
        match self.code {
            Some(0) => serde_json::from_str(&self.out).unwrap_or_default(),
            _ => Value::String("cannot be read".to_owned()),
        }
    }
}

impl<'a> Side<'a> {
    fn run(lab: &'a Lab, case: &Case, tool: &'a Tool, place: &Path, name: &str, play: Play) -> Result<Outcome> {
        let (work, extent) = (place.join("work"), cases::extent(case)?);
        let tree = work.join("tree");
        cases::copy(&extent, &tree)?;
        for below in ["home", "said"] {
            cache::create_dir(&work.join(below))?;
        }
        let folder = tree.join(case.folder.strip_prefix(&extent)?);
        let before: BTreeSet<_> = cases::files(&tree)?.into_iter().collect();
        let side = Self { lab, tool, unit: case.unit, work, folder, begun: Instant::now(), steps: Cell::new(0) };
        let (plan, rest) = play(&side)?;
        let mut left = BTreeMap::new();
        for file in cases::files(&tree)?.into_iter().filter(|file| !before.contains(file)) {
            let is_lock = Path::new(&file).file_name().is_some_and(|name| name == LOCK_FILE);
            let text = if is_lock { fs::read_to_string(tree.join(&file))? } else { String::new() };
            left.insert(file, text);
        }
        fs::rename(&side.work, place.join(name)).with_context(|| format!("{} cannot be moved", side.work.display()))?;
        Ok(Outcome { plan, rest, left })
    }

    /// A command of the tool in the case's folder.
    fn tool(&self, name: &str, arguments: &[&str]) -> Result<Ended> {
        if self.unit {
            return self.command(name, Path::new("terragrunt"), &[&["run", "--"], arguments].concat());
        }
        self.command(name, Path::new(self.tool.binary), arguments)
    }

    /// A plan of the bare tool, which is shown as well.
    fn plan(&self, name: &str, more: &[&str]) -> Result<Stage> {
        let (file, out) = (self.plan_file(), format!("-out={}", self.plan_file()));
        let arguments = [&["plan", "-json", "-input=false", "-detailed-exitcode", &out], more].concat();
        let plan = self.tool(name, &arguments)?;
        let mut stage = Stage::of_tool(plan.end(true), &plan.said());
        if matches!(stage.end, End::NoChanges | End::Changes) {
            let show = self.tool("show", &["show", "-json", &file])?;
            if show.code != Some(0) {
                stage = Stage::of_tool(show.end(false), &show.said());
            }
        }
        Ok(stage)
    }

    /// Applies the plan that was made last. One with nothing to do is not applied: Pawl applies none, and whoever looks at the exit
    /// code does not. `destroy` itself would write an empty state.
    fn carry_out(&self, name: &str, plan: &Stage) -> Result<Stage> {
        match plan.end {
            End::Changes => {
                let apply = self.tool(name, &["apply", "-json", "-input=false", &self.plan_file()])?;
                Ok(Stage { counts: plan.counts, ..Stage::of_tool(apply.end(false), &apply.said()) })
            }
            End::NoChanges => Ok(Stage { end: End::Done, ..plan.clone() }),
            End::Done | End::Failed | End::TimedOut => Ok(plan.clone()),
        }
    }

    /// Where the bare tool's plan is; not among what is left in the folder.
    fn plan_file(&self) -> String {
        self.work.join("plan.bin").display().to_string()
    }

    /// A run of Pawl.
    fn agent(&self, name: &str, verb: &str) -> Result<Stage> {
        let mut arguments = vec!["local", verb, ".", "--json"];
        if verb != "plan" {
            arguments.push("--auto-approve");
        }
        if !self.unit {
            arguments.extend(["--tool", &self.tool.word]);
        }
        let ended = self.command(name, &self.lab.agent, &arguments)?;
        // Each change of the status is a line; the last one is how it ended.
        let status = ended.out.lines().rev().find_map(|line| serde_json::from_str::<TerraformRunStatus>(line).ok());
        let mut stage = Stage::of_run(&status.clone().unwrap_or_default(), verb == "plan");
        if status.is_none() {
            stage.words = clip(&ended.err, 1024);
        }
        if ended.code.is_none() {
            stage.end = End::TimedOut;
        }
        Ok(stage)
    }

    fn state(&self, name: &str) -> Result<Value> {
        Ok(self.tool(name, &["state", "pull"])?.value())
    }

    fn outputs(&self) -> Result<Value> {
        Ok(self.tool("output", &["output", "-json"])?.value())
    }

    /// Runs a program to its end, or to the end of the time that the case has. What it prints goes to files: what it leaves running
    /// may hold them for ever.
    fn command(&self, name: &str, program: &Path, arguments: &[&str]) -> Result<Ended> {
        let step = self.steps.replace(self.steps.get() + 1);
        let said = |end: &str| self.work.join("said").join(format!("{step:02}-{name}.{end}"));
        let create = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        let (out, err) = (said("out"), said("err"));
        let left = self.lab.limit.saturating_sub(self.begun.elapsed().as_secs()).max(1);
        let mut command = Command::new("timeout");
        command.args(["--signal=INT", "--kill-after", GRACE, &left.to_string()]).arg(program).args(arguments);
        command
            .current_dir(&self.folder)
            .env_clear()
            .env("HOME", self.work.join("home"))
            .env("PATH", self.lab.path(self.tool))
            .env("TF_CLI_CONFIG_FILE", self.lab.config())
            .env("CHECKPOINT_DISABLE", "1")
            .env("USER", "alice");
        if self.unit {
            command
                .env("TG_TF_PATH", self.tool.binary)
                .env("TG_NON_INTERACTIVE", "true")
                .env("TG_NO_COLOR", "true")
                .env("TG_TF_FORWARD_STDOUT", "true");
        }
        let status = command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?).status();
        let status = status.context("cannot start timeout, of coreutils")?;
        let text = |path: &PathBuf| -> Result<String> {
            let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        // 124 is what `timeout` says of a program that it told to end; where it had to kill it, it dies in the same way.
        let code = status.code().filter(|code| *code != 124);
        Ok(Ended { code, out: text(&out)?, err: text(&err)? })
    }
}
