//! Compares local mode with the bare tool in the same folder: `init`, `plan`, `apply`, alternating, on this machine without a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::samples::{Samples, Unit};
use super::table::Table;
use harness::cluster::gobuild::Toolset;
use harness::cluster::images::{self, Profile};

/// Permitted overhead in seconds, if 5 % would be less.
const ADDED: f64 = 0.100;

/// A stack, and the variables written each time, so that there is always a change.
struct Stack {
    name: &'static str,
    code: &'static str,
}

const STACKS: [Stack; 2] = [
    Stack { name: "tiny", code: "variable \"n\" {}\nresource \"terraform_data\" \"a\" {\n  input = var.n\n}\n" },
    Stack {
        name: "3 s",
        code: "variable \"n\" {}\nresource \"terraform_data\" \"a\" {\n  input            = var.n\n  triggers_replace = var.n\n  \
               provisioner \"local-exec\" {\n    command = \"sleep 3\"\n  }\n}\n",
    },
];

/// The folder that both use alternately.
struct Bench {
    tools: Toolset,
    agent: PathBuf,
    dir: tempfile::TempDir,
    turn: usize,
}

pub(super) fn measure(times: usize, table: &mut Table) -> Result<()> {
    for stack in &STACKS {
        let mut bench = Bench::new(stack)?;
        let (mut bare, mut shown, mut local) = (Samples::default(), Samples::default(), Samples::default());
        let (mut added, mut added_to_shown, mut ratio) = (Samples::default(), Samples::default(), Samples::default());
        // The first repetition is a warm-up: it fills caches.
        for n in 0..=times {
            let script = bench.time(|bench| bench.bare(false))?;
            let run = bench.time(Bench::local)?;
            let with_show = bench.time(|bench| bench.bare(true))?;
            if n == 0 {
                continue;
            }
            bare.seconds(script);
            local.seconds(run);
            shown.seconds(with_show);
            added.push(run.as_secs_f64() - script.as_secs_f64());
            added_to_shown.push(run.as_secs_f64() - with_show.as_secs_f64());
            ratio.push(run.as_secs_f64() / script.as_secs_f64());
        }
        let name = format!("local mode, {} stack", stack.name);
        table.plain(&format!("{name}: bare tool"), bare.spread(Unit::Seconds));
        table.plain(&format!("{name}: bare tool that shows the plan"), shown.spread(Unit::Seconds));
        table.plain(&format!("{name}: runner-agent local"), local.spread(Unit::Seconds));
        table.plain(&format!("{name}: against the bare tool"), ratio.spread(Unit::Percent));
        let met = |added: &Samples| added.median() <= ADDED || local.median() <= 1.05 * (local.median() - added.median());
        let bound = "at most 5 % or 100 ms";
        table.bound(&format!("{name}: adds"), added.spread(Unit::Millis), bound, met(&added));
        let figure = format!("{name}: adds to a script that shows the plan");
        table.bound(&figure, added_to_shown.spread(Unit::Millis), bound, met(&added_to_shown));
    }
    Ok(())
}

impl Bench {
    fn new(stack: &Stack) -> Result<Self> {
        let tools = Toolset::ensure(&["tofu"])?;
        let agent = images::programs(&["runner-agent"], Profile::Dist)?.remove(0);
        let dir = tempfile::tempdir()?;
        tools.link_into(&dir.path().join("bin"))?;
        fs::create_dir(dir.path().join("stack"))?;
        fs::write(dir.path().join("stack/main.tf"), stack.code)?;
        Ok(Self { tools, agent, dir, turn: 0 })
    }

    /// Times one turn, each with another value of the variable.
    fn time(&mut self, run: impl FnOnce(&Self) -> Result<()>) -> Result<Duration> {
        self.turn += 1;
        fs::write(self.stack().join("n.auto.tfvars"), format!("n = {}\n", self.turn))?;
        let begun = Instant::now();
        run(self)?;
        let took = begun.elapsed();
        let state = fs::read_to_string(self.stack().join("terraform.tfstate")).context("nothing was applied")?;
        ensure!(state.contains(&format!("\"value\":{},", self.turn)), "turn {} was not applied:\n{state}", self.turn);
        Ok(took)
    }

    fn stack(&self) -> PathBuf {
        self.dir.path().join("stack")
    }

    fn bare(&self, shows: bool) -> Result<()> {
        let show = if shows { "tofu show -json plan.bin > plan.json; tofu show -no-color plan.bin;" } else { "" };
        let script = format!(
            "tofu init -input=false -no-color; tofu plan -input=false -no-color -out=plan.bin; {show} \
             tofu apply -input=false -no-color plan.bin; rm -f plan.bin plan.json"
        );
        self.run(Path::new("/bin/sh"), &["-e", "-c", &script])
    }

    fn local(&self) -> Result<()> {
        self.run(&self.agent, &["local", "apply", "--auto-approve"])
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Result<()> {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(self.stack())
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display()))
            .env("HOME", self.dir.path())
            .env("CHECKPOINT_DISABLE", "1")
            .stdin(Stdio::null())
            .output()?;
        let version = self.tools.version("tofu")?;
        ensure!(
            output.status.success(),
            "{} with OpenTofu {version}: {}{}",
            program.display(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}
