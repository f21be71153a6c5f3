//! Runs both sides of a case one after the other at the same path, so that values with the path are equal.

use std::{
    cell::Cell,
    collections::BTreeSet,
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
use harness::cluster::cache;

/// Seconds for a tool to end after a signal.
const GRACE: &str = "20";
/// The tools' lock file of installed providers.
const LOCK_FILE: &str = ".terraform.lock.hcl";

/// Runs a case with the bare tool and with Pawl.
pub(super) fn both(
    lab: &Lab,
    case: &Case,
    tool: &Tool,
    number: usize,
) -> Result<(Outcome, Outcome)> {
    let side = |name, pawl| Side::run(lab, case, tool, &lab.place(number), name, pawl);
    let outcomes = side("bare", false).and_then(|bare| Ok((bare, side("pawl", true)?)));
    lab.leave(number)?;
    outcomes
}

/// A copy of a case, and the side that runs on it.
struct Side<'a> {
    lab: &'a Lab,
    tool: &'a Tool,
    unit: bool,
    /// Whether this is the side of Pawl.
    pawl: bool,
    /// All files of this side; `folder` is in `tree` below it.
    work: PathBuf,
    folder: PathBuf,
    begun: Instant,
    steps: Cell<usize>,
}

struct Ended {
    /// `None` after a timeout.
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

    /// Its JSON output; null without output. Skips text of `run_cmd` before it.
    fn value(&self) -> Value {
        let begins = |line: &str| line.as_ptr().addr() - self.out.as_ptr().addr();
        let json = |line: &str| serde_json::from_str(&self.out[begins(line)..]).ok();
        match self.code {
            Some(0) => self
                .out
                .lines()
                .filter(|line| line.starts_with('{'))
                .find_map(json)
                .unwrap_or_default(),
            _ => Value::String("cannot be read".to_owned()),
        }
    }
}

impl<'a> Side<'a> {
    fn run(
        lab: &'a Lab,
        case: &Case,
        tool: &'a Tool,
        place: &Path,
        name: &str,
        pawl: bool,
    ) -> Result<Outcome> {
        let (work, extent) = (place.join("work"), cases::extent(case)?);
        let tree = work.join("tree");
        cases::copy(&extent, &tree)?;
        for below in ["home", "said"] {
            cache::create_dir(&work.join(below))?;
        }
        let folder = tree.join(case.folder.strip_prefix(&extent)?);
        if case.unit {
            // `--tool` would select Terragrunt, which runs another tool.
            let (name, version) = tool.word.split_once('@').context("a tool has a version")?;
            fs::write(folder.join(format!(".{name}-version")), version)?;
        }
        let before: BTreeSet<_> = cases::files(&tree)?.into_iter().collect();
        let side = Self {
            lab,
            tool,
            unit: case.unit,
            pawl,
            work,
            folder,
            begun: Instant::now(),
            steps: Cell::new(0),
        };
        let mut outcome = side.play()?;
        for file in cases::files(&tree)?
            .into_iter()
            .filter(|file| !before.contains(file))
        {
            let is_lock = Path::new(&file)
                .file_name()
                .is_some_and(|name| name == LOCK_FILE);
            let text = if is_lock {
                fs::read_to_string(tree.join(&file))?
            } else {
                String::new()
            };
            let name = if case.unit {
                in_unit(&file)
            } else {
                Some(file)
            };
            outcome.left.extend(name.map(|name| (name, text)));
        }
        fs::rename(&side.work, place.join(name))
            .with_context(|| format!("{} cannot be moved", side.work.display()))?;
        Ok(outcome)
    }

    fn play(&self) -> Result<Outcome> {
        let planned = |name| {
            if self.pawl {
                self.agent(name, "plan")
            } else {
                self.plan(name, &[])
            }
        };
        let alone = self.alone(|| planned("plan-alone"))?;
        // Terragrunt runs `init` by itself; a separate `init` would lack outputs of other units.
        if !self.pawl && !self.unit {
            let init = self.tool("init", &["init", "-input=false", "-no-color"])?;
            if init.code != Some(0) {
                return Ok(Outcome::planned(
                    alone,
                    Stage::of_tool(init.end(false), &init.said()),
                ));
            }
        }
        let plan = planned("plan")?;
        if !matches!(plan.end, End::Changes | End::NoChanges) {
            return Ok(Outcome::planned(alone, plan));
        }
        let apply = if self.pawl {
            self.agent("apply", "apply")
        } else {
            self.carry_out("apply", &plan)
        }?;
        let (state, outputs) = (self.state("state")?, self.outputs()?);
        let second = planned("second-plan")?;
        let destroy = if self.pawl {
            self.agent("destroy", "destroy")?
        } else {
            self.carry_out("destroy", &self.plan("plan-destroy", &["-destroy"])?)?
        };
        let rest = Some(Rest {
            apply,
            state,
            outputs,
            second,
            destroy,
            after: self.state("state-after")?,
        });
        Ok(Outcome {
            rest,
            ..Outcome::planned(alone, plan)
        })
    }

    /// Plans a unit before its dependencies are applied, then applies them. `None` if it has no dependencies.
    fn alone(&self, plan: impl FnOnce() -> Result<Stage>) -> Result<Option<Stage>> {
        let units = if self.unit {
            cases::dependencies(&self.folder)?
        } else {
            Vec::new()
        };
        if units.is_empty() {
            return Ok(None);
        }
        let planned = plan()?;
        for unit in units {
            let arguments = ["run", "--", "apply", "-auto-approve", "-input=false"];
            self.command_in(&unit, "dependency", Path::new("terragrunt"), &arguments)?;
        }
        Ok(Some(planned))
    }

    /// A command of the tool in the case's folder.
    fn tool(&self, name: &str, arguments: &[&str]) -> Result<Ended> {
        if self.unit {
            return self.command(
                name,
                Path::new("terragrunt"),
                &[&["run", "--"], arguments].concat(),
            );
        }
        self.command(name, Path::new(self.tool.binary), arguments)
    }

    /// A plan of the bare tool, which is shown as well.
    fn plan(&self, name: &str, more: &[&str]) -> Result<Stage> {
        let (file, out) = (self.plan_file(), format!("-out={}", self.plan_file()));
        let arguments = [
            &["plan", "-json", "-input=false", "-detailed-exitcode", &out],
            more,
        ]
        .concat();
        let plan = self.tool(name, &arguments)?;
        // With `-detailed-exitcode` Terragrunt exits with the code of an error that it ignored.
        let ignored = self.unit && plan.err.contains("Ignoring error");
        let mut stage = self.of_tool(
            if ignored {
                End::NoChanges
            } else {
                plan.end(true)
            },
            &plan,
        );
        // For a unit, `show` may read outputs that only a plan may take from mocks.
        if matches!(stage.end, End::NoChanges | End::Changes) && !self.unit {
            let show = self.tool("show", &["show", "-json", &file])?;
            if show.code != Some(0) {
                stage = self.of_tool(show.end(false), &show);
            }
        }
        Ok(stage)
    }

    fn of_tool(&self, end: End, ended: &Ended) -> Stage {
        let said = ended.said();
        let stage = Stage::of_tool(end, &said);
        // Terragrunt's last words are advice.
        if self.unit {
            Stage {
                said: said.split_whitespace().collect::<Vec<_>>().join(" "),
                ..stage
            }
        } else {
            stage
        }
    }

    /// Applies the last plan. A plan without changes is not applied: Pawl does not, nor does a user who checks the exit code. `destroy`
    /// itself would write an empty state.
    fn carry_out(&self, name: &str, plan: &Stage) -> Result<Stage> {
        match plan.end {
            End::Changes => {
                let apply =
                    self.tool(name, &["apply", "-json", "-input=false", &self.plan_file()])?;
                Ok(Stage {
                    counts: plan.counts,
                    ..self.of_tool(apply.end(false), &apply)
                })
            }
            End::NoChanges => Ok(Stage {
                end: End::Done,
                ..plan.clone()
            }),
            End::Done | End::Failed | End::TimedOut => Ok(plan.clone()),
        }
    }

    /// Path of the bare tool's plan, outside the folder whose new files are compared.
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
        // Each change of the status is a line; the last one is the final status.
        let status = ended
            .out
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str::<TerraformRunStatus>(line).ok());
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

    fn command(&self, name: &str, program: &Path, arguments: &[&str]) -> Result<Ended> {
        self.command_in(&self.folder, name, program, arguments)
    }

    /// Runs a program with the time limit of the case. Its output goes to files: processes that it leaves could hold a pipe open forever.
    fn command_in(
        &self,
        folder: &Path,
        name: &str,
        program: &Path,
        arguments: &[&str],
    ) -> Result<Ended> {
        let step = self.steps.replace(self.steps.get() + 1);
        let said = |end: &str| {
            self.work
                .join("said")
                .join(format!("{step:02}-{name}.{end}"))
        };
        let create = |path: &PathBuf| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let (out, err) = (said("out"), said("err"));
        let left = self
            .lab
            .limit
            .saturating_sub(self.begun.elapsed().as_secs())
            .max(1);
        let mut command = Command::new("timeout");
        command
            .args(["--signal=INT", "--kill-after", GRACE, &left.to_string()])
            .arg(program)
            .args(arguments);
        command
            .current_dir(folder)
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
        let status = command
            .stdin(Stdio::null())
            .stdout(create(&out)?)
            .stderr(create(&err)?)
            .status();
        let status = status.context("cannot start timeout, of coreutils")?;
        let text = |path: &PathBuf| -> Result<String> {
            let bytes =
                fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        // 124 is the exit code of `timeout` after SIGTERM; after SIGKILL it dies by the same signal.
        let code = status.code().filter(|code| *code != 124);
        Ok(Ended {
            code,
            out: text(&out)?,
            err: text(&err)?,
        })
    }
}

/// A uniform name for a file in the data directory. With Pawl this is the unit's own directory, without it one in Terragrunt's copy (design
/// 0017). `None` for the link between the two, and for provider locks: Terragrunt's cache writes them, which Pawl disables.
fn in_unit(file: &str) -> Option<String> {
    let parts: Vec<_> = file.split('/').collect();
    if file.contains(".terraform/providers/")
        && Path::new(file).extension().is_some_and(|end| end == "lock")
    {
        return None;
    }
    let copy = parts.iter().position(|part| *part == ".terragrunt-cache");
    match copy.filter(|copy| parts.get(copy + 3) == Some(&".terraform")) {
        Some(copy) if parts.len() == copy + 4 => None,
        Some(copy) => Some([&parts[..copy], &parts[copy + 3..]].concat().join("/")),
        None => Some(file.to_owned()),
    }
}
