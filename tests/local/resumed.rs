//! A waiting plan outlives its process, however that ended, and is applied once.

use anyhow::{Result, ensure};
use crds::{Changed, Phase, RunResult, reason};
use nix::sys::signal::Signal;

use crate::{
    place::{End as _, Lab, Test, approval, ended, holds},
    terminal::{CTRL_C, Terminal},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "resumed::other_applies_make_a_waiting_plan_stale",
            overtaken,
        ),
        Test::new("resumed::printed_line_with_variables_applies", pasted),
        Test::new(
            "resumed::option_that_contradicts_the_plan_is_refused",
            contradicted,
        ),
        Test::new(
            "resumed::plan_waits_after_any_end_at_the_question",
            at_the_question,
        ),
        Test::new(
            "resumed::only_keys_after_the_question_answer_it",
            typed_ahead,
        ),
    ]
}

/// The printed line has no value of a variable.
fn pasted(lab: &Lab) -> Result<()> {
    let main = "variable \"word\" {}\nvariable \"n\" {}\nresource \"terraform_data\" \"a\" {\n  input = \"${var.word} ${var.n}\"\n}\n";
    let place = lab.place("tofu", &[("main.tf", main), ("n.tfvars", "n = 1\n")])?;
    let apply = [
        "apply",
        "--var",
        "word=first-thing",
        "--var-file",
        "n.tfvars",
    ];
    let line = approval(&place.ends(2, &apply)?)?;
    holds(&line, "--var 'word=…' --var-file n.tfvars --approve")?;
    let text = place
        .paste(&line.replace("word=…", "word=other"))?
        .with(1)?;
    holds(&text, "the plan was not made with --var word=other")?;
    let text = place.came_to(RunResult::Applied, place.paste(&line)?)?;
    ensure!(place.resources()? == Some(1), "{text}");
    let state = std::fs::read_to_string(place.stack().join("terraform.tfstate"))?;
    holds(&state, "first-thing 1")
}

fn overtaken(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let line = approval(&place.ends(2, &["apply"])?)?;
    place.ends(0, &["apply", "--auto-approve"])?;
    let text = place.paste(&line)?.with(1)?;
    ensure!(place.resources()? == Some(2), "{text}");
    holds(&text, "no longer waits: the apply of ")?;
    ensure!(
        place.records()?.swap_remove(0).result == Some(RunResult::Superseded),
        "it still waits: {text}"
    );
    // A new plan waits for its own answer.
    let text = place.ends(2, &["destroy"])?;
    place.came_to(RunResult::Destroyed, place.paste(&approval(&text)?)?)?;
    // A person who uses the tool by hand is in no record, and the tool refuses the plan.
    let line = approval(&place.ends(2, &["apply"])?)?;
    ended(&mut place.program("tofu", &["apply", "-auto-approve", "-no-color"]))?.with(0)?;
    let text = place.came_to(RunResult::Failed, place.paste(&line)?)?;
    let failure = place.failure()?;
    ensure!(
        failure.reason == reason::STALE_PLAN && failure.changes == Changed::None,
        "{failure:?}: {text}"
    );
    Ok(())
}

fn contradicted(lab: &Lab) -> Result<()> {
    let code = "variable \"title\" {}\noutput \"title\" {\n  value = var.title\n}\n";
    let place = lab.place("tofu", &[("main.tf", code)])?;
    let given = ["--var", "title=one", "--workspace", "default"];
    place.ends(2, &[&["apply"][..], &given].concat())?;
    let sum = place
        .record()?
        .plan
        .map(|plan| plan.checksum)
        .unwrap_or_default();
    for other in [
        &["apply", "--var", "title=OTHER"][..],
        &["apply", "--workspace", "other"],
        &["apply", "--target", "output.title"],
        &["apply", "--parallelism=3"],
        &["apply", "--tool", "opentofu@1.0.0"],
        &["destroy"],
    ] {
        let text = place.ends(1, &[other, &["--approve", &sum]].concat())?;
        holds(&text, "nothing was applied")?;
        ensure!(
            place.record()?.phase == Some(Phase::AwaitingApproval),
            "{other:?}: {text}"
        );
    }
    let same = [&["apply"][..], &given, &["--approve", &sum]].concat();
    let text = place.comes_to(RunResult::Applied, &same)?;
    holds(&text, "title = \"one\"")
}

/// A hook's program types `y` into its controlling terminal.
const TYPES: &str = r#"apiVersion: pawl.run/v1alpha1
kind: TerraformRun
spec:
  hooks:
    - name: types
      when: AfterPlan
      inline: perl -e 'for my $key (split //, "y\n") { ioctl(STDIN, 0x5412, $key) }' </dev/tty || echo no terminal
"#;

fn typed_ahead(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    std::fs::write(place.stack().join("pawl.yaml"), TYPES)?;
    let mut terminal = place.at_terminal(&[])?;
    terminal.press("y\n")?;
    terminal.answer("n")?;
    let text = place.came_to(RunResult::Rejected, terminal.end()?)?;
    holds(&text, "no terminal")
}

fn at_the_question(lab: &Lab) -> Result<()> {
    type Act = fn(&mut Terminal) -> Result<()>;
    let acts: [(&str, Act, i32, bool); 4] = [
        ("Ctrl-C", |terminal| terminal.press(CTRL_C), 2, true),
        ("end of file", |terminal| terminal.press("\x04"), 2, true),
        (
            "closed terminal",
            |terminal| terminal.signal(Signal::SIGHUP),
            2,
            false,
        ),
        (
            "kill",
            |terminal| terminal.signal(Signal::SIGKILL),
            128 + Signal::SIGKILL as i32,
            false,
        ),
    ];
    for (act, end, code, prints) in acts {
        let place = lab.fixture("tofu", "hello")?;
        let mut terminal = place.at_terminal(&[])?;
        terminal.until("[y/N]")?;
        end(&mut terminal)?;
        let text = terminal.end()?.with(code)?;
        ensure!(
            place.record()?.phase == Some(Phase::AwaitingApproval),
            "{act}: it does not wait: {text}"
        );
        ensure!(place.resources()?.is_none(), "{act}: {text}");
        let line = if prints {
            approval(&text)?
        } else {
            place.record()?.next_step.unwrap_or_default()
        };
        let text = place.came_to(RunResult::Applied, place.paste(&line)?)?;
        ensure!(
            place.records()?.len() == 1 && place.resources()? == Some(2),
            "{act}: not the plan that waited: {text}"
        );
        let history = place.record()?.history.join("\n");
        ensure!(
            history.matches("  Plan  ").count() == 1,
            "{act}: planned again:\n{history}"
        );
    }
    Ok(())
}
