//! Tests of `runner-agent local` as a program, in a folder with a scripted tool on PATH.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Records its calls; evaluates `$APPLY` while it applies.
const TOOL: &str = r#"#!/bin/sh
case "$1" in
version) echo '{"terraform_version":"'"${VERSION:-1.10.6}"'"}'; exit 0 ;;
esac
echo "$1" >> "$LEDGER"
case "$1" in
init) mkdir -p .terraform; echo '# lock' > .terraform.lock.hcl ;;
plan)
  for a in "$@"; do case $a in -out=*) out=${a#-out=} ;; esac; done
  # An archive with a plan file of one resource, a.b, and a number in place of a time.
  [ "${ACTION:-create}" = create ] && number=001 || number=000
  size='\036\000\000\000\036\000\000\000\006\000\000\000'
  printf "PK\003\004\024\000\000\000\000\000\000\000\000\000\000\000\000\000${size}tfplan" > "$out"
  printf "\010\003\032\011\152\003a.b\112\002\010\\$number\252\001\016%14d" $$ >> "$out"
  printf "PK\001\002\024\000\024\000\000\000\000\000\000\000\000\000\000\000\000\000$size" >> "$out"
  printf '\000\000\000\000\000\000\000\000\000\000\000\000\000\000tfplan' >> "$out"
  printf 'PK\005\006\000\000\000\000\001\000\001\000\064\000\000\000\102\000\000\000\000\000' >> "$out"
  echo "$*" >> "$LEDGER.arguments"
  eval "$PLAN"
  exit "${PLAN_EXIT:-2}" ;;
show)
  if [ "$2" = -json ]; then echo '{"errored":false,"resource_changes":[{"address":"a.b","change":{"actions":["'"${ACTION:-create}"'"]}}]}'
  else echo 'OpenTofu will perform the following actions:'; fi ;;
apply)
  echo "$*" >> "$LEDGER.arguments"
  echo '{"@message":"a.b: Creating...","type":"apply_start","hook":{"resource":{"addr":"a.b"},"action":"create"}}'
  eval "$APPLY"
  echo state > terraform.tfstate
  echo '{"@message":"a.b: Creation complete","type":"apply_complete","hook":{"resource":{"addr":"a.b"},"action":"create"}}' ;;
esac
"#;

/// Blocks the tool until [`Place::open`], or until its test has ended.
const GATE: &str = "until [ -e $LEDGER.open ] || [ ! -e $LEDGER ]; do sleep 0.02; done";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("bin")).unwrap();
        fs::create_dir_all(dir.path().join("stack")).unwrap();
        fs::write(dir.path().join("bin/tofu"), TOOL).unwrap();
        fs::set_permissions(
            dir.path().join("bin/tofu"),
            PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        fs::write(
            dir.path().join("stack/main.tf"),
            "variable \"a\" { default = 1 }\nvariable \"token\" { default = 1 }\n",
        )
        .unwrap();
        Self { dir }
    }

    fn stack(&self) -> PathBuf {
        self.dir.path().join("stack")
    }

    fn command(&self, arguments: &[&str], env: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner-agent"));
        command
            .arg("local")
            .args(arguments)
            .arg(self.stack())
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display()),
            )
            .env("LEDGER", self.dir.path().join("ledger"))
            .env("USER", "alice")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str], env: &[(&str, &str)]) -> Output {
        self.command(arguments, env).output().unwrap()
    }

    fn start(&self, arguments: &[&str], env: &[(&str, &str)]) -> Child {
        self.command(arguments, env).spawn().unwrap()
    }

    fn ran(&self, word: &str) -> usize {
        let text = fs::read_to_string(self.dir.path().join("ledger")).unwrap_or_default();
        text.lines().filter(|line| *line == word).count()
    }

    /// Releases commands that block at a [`GATE`].
    fn open(&self) {
        fs::write(self.dir.path().join("ledger.open"), "").unwrap();
    }

    fn until_ran(&self, word: &str) {
        let start = Instant::now();
        while self.ran(word) == 0 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "never ran: {word}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The records, oldest first.
    fn records(&self) -> Vec<serde_json::Value> {
        let mut dirs: Vec<_> = fs::read_dir(self.stack().join(".pawl/runs"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        dirs.sort();
        dirs.iter()
            .map(|dir| serde_json::from_slice(&fs::read(dir.join("run.json")).unwrap()).unwrap())
            .collect()
    }
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

/// The checksum in the approve command of the output.
fn checksum(output: &Output) -> String {
    let text = text(output);
    let at = text
        .find("--approve sha256:")
        .unwrap_or_else(|| panic!("no line that approves in {text}"));
    text[at + "--approve ".len()..]
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn waiting_plan_is_applied_later_once_and_unchanged() {
    let place = Place::new();
    let planned = place.run(&["apply"], &[]);
    assert_eq!(code(&planned), 2, "{}", text(&planned));
    let sum = checksum(&planned);
    assert_eq!(
        fs::read_to_string(place.stack().join(".pawl/.gitignore")).unwrap(),
        "*\n"
    );
    assert_eq!(
        fs::metadata(place.stack().join(".pawl"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    let other = format!("sha256:{}", "0".repeat(64));
    let wrong = place.run(&["apply", "--approve", &other], &[]);
    assert_eq!(code(&wrong), 1);
    assert!(text(&wrong).contains(&format!(
        "the plan that waits is {sum}, not {other}; nothing was applied"
    )));
    let short = place.run(&["apply", "--approve", &sum[..20]], &[]);
    assert_eq!(code(&short), 64, "{}", text(&short));
    assert_eq!(place.ran("apply"), 0);
    let applied = place.run(&["apply", "--approve", &sum], &[]);
    assert_eq!(code(&applied), 0, "{}", text(&applied));
    assert_eq!(
        (place.ran("init"), place.ran("plan"), place.ran("apply")),
        (1, 1, 1),
        "it is the plan that waited"
    );
    let again = place.run(&["apply", "--approve", &sum], &[]);
    assert_eq!(
        (code(&again), place.ran("apply")),
        (1, 1),
        "{}",
        text(&again)
    );
    let record = &place.records()[0];
    assert_eq!(
        (
            record["status"]["result"].as_str(),
            record["status"]["approval"]["by"].as_str()
        ),
        (Some("Applied"), Some("alice"))
    );
}

#[test]
fn files_changed_after_the_plan_prevent_the_apply() {
    for change in ["main.tf", "new.sh", ".terraform.lock.hcl"] {
        let place = Place::new();
        let sum = checksum(&place.run(&["apply"], &[]));
        fs::write(place.stack().join(change), "changed").unwrap();
        let refused = place.run(&["apply", "--approve", &sum], &[]);
        assert_eq!(
            (code(&refused), place.ran("apply")),
            (1, 0),
            "{change}: {}",
            text(&refused)
        );
        assert_eq!(
            place.records()[0]["status"]["failure"]["class"],
            "Integrity",
            "{change}"
        );
        let named = format!(
            "{change} changed after the plan was made, so that it was not applied; nothing was changed"
        );
        assert!(text(&refused).contains(&named), "{}", text(&refused));
    }
}

#[test]
fn auto_approve_applies_without_a_question() {
    let place = Place::new();
    let applied = place.run(&["--auto-approve", "--var", "a=1"], &[]);
    assert_eq!(
        (code(&applied), place.ran("apply")),
        (0, 1),
        "{}",
        text(&applied)
    );
    assert!(
        fs::read_to_string(place.dir.path().join("ledger.arguments"))
            .unwrap()
            .contains("-var a=1")
    );
    let nothing = place.run(&["apply"], &[("PLAN_EXIT", "0"), ("ACTION", "no-op")]);
    assert_eq!(
        (code(&nothing), place.ran("apply")),
        (0, 1),
        "{}",
        text(&nothing)
    );
    let planned = place.run(&["plan"], &[]);
    assert_eq!(
        (code(&planned), place.ran("apply")),
        (0, 1),
        "{}",
        text(&planned)
    );
    assert!(
        !place.stack().join("zz_pawl.auto.tfvars.json").exists(),
        "nothing of ours is left in the code"
    );
}

#[test]
fn variables_are_passed_to_an_apply_that_takes_them() {
    for (version, again) in [("1.10.6", false), ("1.11.0", true), ("1.12.6", true)] {
        let place = Place::new();
        fs::write(place.stack().join("a.tfvars"), "").unwrap();
        let file = place.stack().join("a.tfvars").display().to_string();
        let arguments = ["-var", "token=it's", "--var-file", &file];
        let waits = place.run(&arguments, &[("VERSION", version)]);
        assert_eq!(code(&waits), 2, "{}", text(&waits));
        // The printed command, as a person pastes it.
        let said = text(&waits);
        let line = said
            .lines()
            .find(|line| line.contains(" --approve sha256:"))
            .unwrap();
        let line = line.trim().replace(
            "runner-agent ",
            &format!("{} ", env!("CARGO_BIN_EXE_runner-agent")),
        );
        // The value is the person's to write.
        assert!(line.contains("--var 'token=…'"), "{line}");
        let line = line.replace("'token=…'", r#""token=it's""#);
        let mut pasted = place.command(&[], &[("VERSION", version)]);
        let env: Vec<_> = pasted
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        pasted = Command::new("/bin/sh");
        let applied = pasted
            .args(["-c", &line])
            .envs(env)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(
            (code(&applied), place.ran("plan"), place.ran("apply")),
            (0, 1, 1),
            "{line}: {}",
            text(&applied)
        );
        let arguments = fs::read_to_string(place.dir.path().join("ledger.arguments")).unwrap();
        let apply = arguments
            .lines()
            .find(|line| line.starts_with("apply "))
            .unwrap();
        assert_eq!(
            apply.contains(&format!("-var token=it's -var-file {file} ")),
            again,
            "{version}: {apply}"
        );
    }
}

#[test]
fn second_run_of_a_folder_is_refused() {
    let place = Place::new();
    let mut first = place.start(&["--auto-approve"], &[("APPLY", GATE)]);
    place.until_ran("apply");
    let second = place.run(&["plan"], &[]);
    place.open();
    assert_eq!(code(&second), 1);
    assert!(
        text(&second).contains("another run works on"),
        "{}",
        text(&second)
    );
    assert!(first.wait().unwrap().success());
}

#[test]
fn sigint_is_sent_once_and_the_tool_ends_by_itself() {
    // Interrupted in plan, nothing was changed. Interrupted in apply, the tool reports its changes.
    let place = Place::new();
    let child = place.start(
        &["--auto-approve"],
        &[(
            "PLAN",
            "trap 'exit 1' INT; echo ready >> $LEDGER; sleep 60 & wait",
        )],
    );
    place.until_ran("ready");
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (code(&output), place.ran("apply")),
        (3, 0),
        "{}",
        text(&output)
    );

    let place = Place::new();
    let apply = format!(
        "n=0; trap 'n=$((n+1)); echo told >> $LEDGER' INT; echo ready >> $LEDGER; {GATE}; echo signals $n >> $LEDGER"
    );
    let child = place.start(&["--auto-approve"], &[("APPLY", &apply)]);
    place.until_ran("ready");
    for _ in 0..3 {
        kill(
            Pid::from_raw(child.id().try_into().unwrap()),
            Signal::SIGINT,
        )
        .unwrap();
        place.until_ran("told");
        std::thread::sleep(Duration::from_millis(50));
    }
    place.open();
    let output = child.wait_with_output().unwrap();
    assert_eq!(place.ran("signals 1"), 1, "exactly one: {}", text(&output));
    assert_eq!(
        code(&output),
        0,
        "the tool ended well, so it is applied: {}",
        text(&output)
    );
}

#[test]
fn kill_in_apply_is_indeterminate_and_before_it_harmless() {
    let place = Place::new();
    let mut child = place.start(&["--auto-approve"], &[("APPLY", GATE)]);
    place.until_ran("apply");
    child.kill().unwrap();
    child.wait().unwrap();
    let next = place.run(&["plan"], &[]);
    assert!(
        text(&next).contains("not known what was applied"),
        "{}",
        text(&next)
    );
    assert_eq!(place.records()[0]["status"]["result"], "Indeterminate");

    let place = Place::new();
    let mut child = place.start(&["apply"], &[("PLAN", GATE)]);
    place.until_ran("plan");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(code(&place.run(&["plan"], &[])), 0);
    let first = &place.records()[0];
    assert_eq!(
        (
            first["status"]["result"].as_str(),
            first["status"]["failure"]["changes"].as_str()
        ),
        (Some("Failed"), Some("None"))
    );
}

#[test]
fn invalid_command_line_exits_with_usage() {
    let place = Place::new();
    for arguments in [
        &["aply"][..],
        &["--tool", "helm"],
        &["--var", "x"],
        &["--approve"],
    ] {
        assert_eq!(code(&place.run(arguments, &[])), 64, "{arguments:?}");
    }
    let refused = place.run(&["plan", "-out=a"], &[]);
    assert_eq!(
        (code(&refused), text(&refused).lines().count()),
        (64, 1),
        "{}",
        text(&refused)
    );
    assert!(!place.stack().join(".pawl").exists());
}
