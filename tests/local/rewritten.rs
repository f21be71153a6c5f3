//! A provider stops the tool while it plans, and rewrites the plan file that the tool wrote: what no list tells is not applied.

use std::{
    fs::{self, File},
    io::{Cursor, Read as _, Write as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use crds::FailureClass;
use serde_json::{Value, json};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

use crate::{
    place::{Lab, Test, ended, holds},
    plans::hostile_provider,
};

const STACK: &str =
    "resource \"time_static\" \"a\" {}\nresource \"terraform_data\" \"precious\" {}\n";
/// Runs of the tool until the provider stopped it in time.
const TRIES: u32 = 10;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("rewritten::object_is_not_forgotten", forgotten),
        Test::new("rewritten::provisioner_does_not_run", provisioned),
        Test::new("rewritten::changed_object_is_listed", changed),
        Test::new("rewritten::state_goes_to_no_other_backend", elsewhere),
        Test::new("rewritten::part_of_a_plan_is_not_the_plan", partial),
    ]
}

/// The result of a run whose plan file was rewritten.
struct Attacked {
    code: i32,
    text: String,
    place: crate::place::Place,
}

type Edit = fn(&str, Vec<u8>) -> Result<Vec<u8>>;

/// Copies an archive, and passes each member through `edit`.
fn rewrite(path: &Path, edit: Edit) -> Result<()> {
    let mut old = ZipArchive::new(Cursor::new(fs::read(path)?))?;
    let mut new = ZipWriter::new(Cursor::new(Vec::new()));
    for at in 0..old.len() {
        let mut member = old.by_index(at)?;
        let (name, mut bytes) = (member.name()?.into_owned(), Vec::new());
        member.read_to_end(&mut bytes)?;
        new.start_file(&name, SimpleFileOptions::default())?;
        new.write_all(&edit(&name, bytes)?)?;
    }
    Ok(File::create(path)?.write_all(new.finish()?.get_ref())?)
}

/// Applies a stack, and then applies a change of it with the hostile provider.
fn attacked(lab: &Lab, edit: Edit) -> Result<Attacked> {
    for _ in 0..TRIES {
        let place = lab.place("tofu", &[("main.tf", STACK)])?;
        place.ends(0, &["apply", "--auto-approve"])?;
        let more = format!("{STACK}resource \"terraform_data\" \"new\" {{}}\n");
        fs::write(place.stack().join("main.tf"), more)?;
        let (config, _) = hostile_provider(lab, &place, "rewrite.sh")?;
        let mut command = place.agent(&["apply", "--auto-approve"]);
        command.env("TF_CLI_CONFIG_FILE", &config);
        let running = thread::spawn(move || ended(&mut command));
        let attack = place.home().join("attack");
        let (stopped, begun) = (attack.join("stopped"), Instant::now());
        while !running.is_finished() && begun.elapsed() < Duration::from_secs(60) {
            if stopped.exists() && !attack.join("rewritten").exists() {
                let path = fs::read_to_string(&stopped)?;
                let done = rewrite(Path::new(path.trim_end()), edit);
                fs::write(attack.join("rewritten"), "")?;
                done?;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let Ok(end) = running.join() else {
            bail!("the run panicked")
        };
        let (code, text) = end?;
        if stopped.exists() {
            return Ok(Attacked { code, text, place });
        }
    }
    bail!("the provider never stopped the tool in time")
}

/// Fails unless the run was refused and changed nothing.
fn refused(attacked: &Attacked, what: &str) -> Result<()> {
    let Attacked { code, text, place } = attacked;
    holds(text, what)?;
    let (failure, record) = (place.failure()?, place.record()?);
    ensure!(
        *code == 1 && failure.class == FailureClass::Integrity && record.claim.is_none(),
        "{code} {failure:?}: {text}"
    );
    ensure!(place.resources()? == Some(2), "{text}");
    Ok(())
}

fn state(bytes: &[u8], edit: impl FnOnce(&mut Vec<Value>)) -> Result<Vec<u8>> {
    let mut state: Value = serde_json::from_slice(bytes)?;
    edit(state["resources"].as_array_mut().context("no resources")?);
    Ok(state.to_string().into_bytes())
}

fn forgotten(lab: &Lab) -> Result<()> {
    let end = attacked(lab, |name, bytes| match name {
        "tfstate" | "tfstate-prev" => {
            state(&bytes, |all| all.retain(|one| one["name"] != "precious"))
        }
        _ => Ok(bytes),
    })?;
    refused(
        &end,
        "the plan file has no terraform_data.precious in its state",
    )
}

fn provisioned(lab: &Lab) -> Result<()> {
    let end = attacked(lab, |name, bytes| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(if name == "tfconfig/m-/main.tf" {
            let with =
                "\"new\" {\n  provisioner \"local-exec\" {\n    command = \"touch ran\"\n  }\n";
            text.replace("\"new\" {", with).into_bytes()
        } else {
            bytes
        })
    })?;
    ensure!(!end.place.stack().join("ran").exists(), "{}", end.text);
    refused(
        &end,
        "the plan file has \"/main.tf\", which was not in the stack",
    )
}

/// Adds a field of the plan with a text in it: the tool takes the last value.
fn with(mut plan: Vec<u8>, field: u8, text: &[u8]) -> Result<Vec<u8>> {
    plan.extend([field << 3 | 2, u8::try_from(text.len())?]);
    plan.extend(text);
    Ok(plan)
}

fn elsewhere(lab: &Lab) -> Result<()> {
    let end = attacked(lab, |name, bytes| match name {
        "tfplan" => with(bytes, 13, b"\x0a\x04http"),
        _ => Ok(bytes),
    })?;
    refused(
        &end,
        "the plan file has another backend (http) than the stack",
    )
}

fn partial(lab: &Lab) -> Result<()> {
    let end = attacked(lab, |name, bytes| match name {
        "tfplan" => with(bytes, 5, b"time_static.a"),
        _ => Ok(bytes),
    })?;
    refused(
        &end,
        "the plan file has targets, which the run does not have",
    )
}

fn changed(lab: &Lab) -> Result<()> {
    let end = attacked(lab, |name, bytes| match name {
        "tfstate" | "tfstate-prev" => state(&bytes, |all| {
            for one in all.iter_mut().filter(|one| one["name"] == "precious") {
                one["instances"][0]["attributes"]["id"] = json!("of-another-object");
            }
        }),
        _ => Ok(bytes),
    })?;
    let plan = end.place.record()?.plan.context("no plan")?;
    let line = "! terraform_data.precious (changed in the state)".to_owned();
    ensure!(
        plan.changes.contains(&line) && plan.counts.drifted == 1,
        "{plan:?} {}",
        end.text
    );
    Ok(())
}
