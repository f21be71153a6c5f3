//! Values of variables against real OpenTofu's own: what it makes of `TF_VAR_…`, beside files and flags of the code that give others.

use std::{fmt::Write as _, fs, os::unix::fs::symlink, path::Path, process::Command};

use harness::cluster::gobuild::Toolset;
use serde_json::{Value, json};
use servers::state::StateServer;

use crate::common::{alone, start_with};

/// Types of the language, with texts that the tool takes for them.
const MEMBERS: &[(&str, &[&str])] = &[
    (
        "",
        &["a", "[\"a\"]", "null", "3", "", "a\nb\n", "${a}", "%{a}"],
    ),
    (
        "string",
        &["a", "[\"a\"]", "null", "true", "\"q\"", "é \\n", "$${a}"],
    ),
    ("number", &["3", "-1.5", "1e3"]),
    ("bool", &["true", "false"]),
    (
        "any",
        &["[\"a\", 1]", "{ a = [true] }", "\"a\"", "null", "3"],
    ),
    (
        "list(string)",
        &[
            "[\"a\",\"b\"]",
            "[\n  \"a\", # one\n]\n",
            "[]",
            "null",
            "[1]",
        ],
    ),
    ("set(number)", &["[1, 2, 1]"]),
    (
        "map(string)",
        &["{ a = \"b\", \"c d\" = \"$${e}\" }", "{\"a\":\"b\"}", "{}"],
    ),
    ("tuple([string, bool])", &["[\"a\", true] // end"]),
    (
        "object({ a = string, b = optional(list(number), [1]) })",
        &[
            "{ a = \"x\" }",
            "{\"a\": \"y\", \"b\": [2]}",
            "{\n  a = <<EOT\nline\nEOT\n}",
        ],
    ),
];

/// Each member as a variable: its name, its declaration, its text.
fn members() -> Vec<(String, String, &'static str)> {
    let all = MEMBERS
        .iter()
        .flat_map(|(of, texts)| texts.iter().map(move |text| (of, text)));
    all.enumerate()
        .map(|(at, (of, text))| {
            let of = if of.is_empty() {
                String::new()
            } else {
                format!("  type = {of}\n")
            };
            (
                format!("v{at}"),
                format!("variable \"v{at}\" {{\n{of}}}\n"),
                *text,
            )
        })
        .collect()
}

/// The value that the tool itself has for each variable with this environment.
fn bare(tofu: &Path, code: &str, env: &[(String, &str)]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("main.tf"), code).unwrap();
    let run = |args: &[&str]| {
        let vars = env
            .iter()
            .map(|(name, text)| (format!("TF_VAR_{name}"), text));
        let out = Command::new(tofu)
            .args(args)
            .current_dir(dir.path())
            .env("TF_CLI_CONFIG_FILE", "/dev/null")
            .envs(vars)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        out.stdout
    };
    run(&["init", "-no-color"]);
    run(&["apply", "-auto-approve", "-no-color"]);
    let all: Value = serde_json::from_slice(&run(&["output", "-json"])).unwrap();
    serde_json::from_str(all["all"]["value"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn texts_arrive_as_the_tool_reads_its_environment() {
    let Some(tools) = Toolset::of_suite(&["tofu"]).unwrap() else {
        return;
    };
    alone();
    let tofu = tools.path("tofu").unwrap();
    let members = members();
    let mut code: String = members.iter().map(|(_, code, _)| code.as_str()).collect();
    let pairs: String = members.iter().fold(String::new(), |mut all, (name, ..)| {
        let _ = writeln!(all, "    {name} = var.{name}");
        all
    });
    let _ = write!(
        code,
        "output \"all\" {{\n  value = jsonencode({{\n{pairs}  }})\n}}\n"
    );
    let env: Vec<_> = members
        .iter()
        .map(|(name, _, text)| (name.clone(), *text))
        .collect();
    let wanted = bare(tofu, &code, &env);
    // The code gives all of them others, in files that the tool loads later, and a block that the agent's parser refuses.
    let others: String = members.iter().fold(String::new(), |mut all, (name, ..)| {
        let _ = writeln!(all, "{name} = null");
        all
    });
    let states = StateServer::start("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    for (kind, place) in [
        ("secretKeyRef", "secrets"),
        ("configMapKeyRef", "configmaps"),
    ] {
        let variables: Vec<_> = members
            .iter()
            .map(
                |(name, ..)| json!({"name": name, "valueFrom": {kind: {"name": "o", "key": name}}}),
            )
            .collect();
        let files = json!({
            "main.tf": code,
            "refused.tf": "locals {\n  t = { N = 1, N = 2 }\n}\n",
            "terraform.tfvars": others,
            "zzz.auto.tfvars": others,
        });
        let more = json!({
            "source": {"inline": {"files": files}},
            "backend": {"type": "http", "config": states.backend_config(place)},
            "outputs": {"status": true},
            "variables": variables,
        });
        let mounted = tempfile::tempdir().unwrap();
        let mut a = start_with(&more, &[], |settings, _| {
            let of_script = settings.tools[0].join("opentofu/1.10.6/tofu");
            fs::remove_file(&of_script).unwrap();
            symlink(tofu, of_script).unwrap();
            settings.secrets = mounted.path().join("secrets");
            settings.config_maps = mounted.path().join("configmaps");
            let dir = mounted.path().join(place).join("o");
            fs::create_dir_all(&dir).unwrap();
            for (name, _, text) in &members {
                fs::write(dir.join(name), text).unwrap();
            }
        });
        a.ends(0).await;
        let state = states.current(place).unwrap();
        let found: Value =
            serde_json::from_str(state["outputs"]["all"]["value"].as_str().unwrap()).unwrap();
        for (name, code, text) in &members {
            assert_eq!(found[name], wanted[name], "{kind} {text:?} of {code}");
        }
    }
}
