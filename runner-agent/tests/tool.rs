//! `runner-agent tool`, the program itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on ends here")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for (tool, version, binary) in
            [("opentofu", "1.9.4", "tofu"), ("opentofu", "1.10.6", "tofu"), ("terraform", "1.5.7", "terraform")]
        {
            put(&place.0.path().join("tools").join(tool).join(version).join(binary), "#!/bin/sh\n");
        }
        // The top of a repository.
        fs::create_dir_all(place.0.path().join("repo/.git")).unwrap();
        fs::create_dir_all(place.0.path().join("repo/a")).unwrap();
        place
    }

    fn put(&self, path: &str, text: &str) {
        put(&self.0.path().join("repo").join(path), text);
    }

    fn tool(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_runner-agent"))
            .arg("tool")
            .args(arguments)
            .current_dir(self.0.path().join("repo/a"))
            .env("PATH", "/nowhere")
            .env("HOME", self.0.path())
            .env("PAWL_TOOLS", self.0.path().join("tools"))
            .output()
            .unwrap()
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.tool(arguments);
        format!(
            "{}{}{}",
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    }
}

#[test]
fn it_says_tool_version_and_reason() {
    let place = Place::new();
    assert_eq!(place.said(&["resolve"]), "0OpenTofu 1.10.6, the newest at hand\n");
    place.put(".opentofu-version", "~> 1.9.0\n");
    assert_eq!(place.said(&["resolve"]), "0OpenTofu 1.9.4, from .opentofu-version\n");
    assert_eq!(place.said(&["resolve", "--tool", "terraform"]), "0Terraform 1.5.7, the newest at hand\n");
    assert_eq!(place.said(&["resolve", "--tool", "tofu@latest"]), "0OpenTofu 1.10.6, from --tool\n");
    place.put("a/main.tf", "terraform {\n  required_version = \"< 1.9\"\n}\n");
    assert_eq!(
        place.said(&["resolve", "."]),
        "1error: no OpenTofu `~> 1.9.0` (from .opentofu-version:1) with `< 1.9` (a/main.tf:2); versions at hand: 1.10.6, 1.9.4\n"
    );
    assert_eq!(
        place.said(&["resolve", "--tool", "tofu@1.9.4"]),
        "1error: OpenTofu 1.9.4 (from --tool) is not what the code requires: `< 1.9` (a/main.tf:2)\n"
    );
    assert_eq!(place.said(&["resolve", "b"]), "1error: there is no directory b\n");
    assert!(place.said(&["resolve", "--tool", "pulumi"]).starts_with("64"));
}

#[test]
fn a_program_reads_it_as_json() {
    let place = Place::new();
    place.put("a/terragrunt.hcl", "terraform_version_constraint = local.v\n");
    place.put("a/main.tf", "terraform {\n  required_version = \"< 1.10\"\n}\n");
    let output = place.tool(&["resolve", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&said["tool"], &said["version"], &said["asked"]),
        (&"OpenTofu".into(), &"1.9.4".into(), &"latest-allowed".into())
    );
    assert_eq!(said["reason"], "the newest that a/main.tf allows");
    assert_eq!(said["required"][0], serde_json::json!({"constraint": "< 1.10", "file": "a/main.tf", "line": 2}));
    assert!(said["binary"].as_str().unwrap().ends_with("opentofu/1.9.4/tofu"));
    assert_eq!(said["notes"][0], "a/terragrunt.hcl: line 1: terraform_version_constraint is no plain text and is not evaluated");
}

#[test]
fn it_lists_what_is_at_hand() {
    let place = Place::new();
    let said = place.said(&["list"]);
    let lines: Vec<_> = said.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(lines, ["0OpenTofu 1.10.6", "OpenTofu 1.9.4", "Terraform 1.5.7"]);
}
