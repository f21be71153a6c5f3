//! Tests of `runner-agent tool` as a program.

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
        for (tool, version, binary) in [
            ("opentofu", "1.9.4", "tofu"),
            ("opentofu", "1.10.6", "tofu"),
            ("terraform", "1.5.7", "terraform"),
        ] {
            put(
                &place
                    .0
                    .path()
                    .join("tools")
                    .join(tool)
                    .join(version)
                    .join(binary),
                "#!/bin/sh\n",
            );
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
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner-agent"));
        command
            .arg("tool")
            .args(arguments)
            .current_dir(self.0.path().join("repo/a"))
            .env("PATH", "/nowhere")
            .env("HOME", self.0.path())
            .env("PAWL_TOOL_SETTINGS", r#"{"offline":true}"#)
            .env("PAWL_TOOLS", self.0.path().join("tools"));
        command
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
fn resolve_prints_tool_version_and_reason() {
    let place = Place::new();
    assert_eq!(
        place.said(&["resolve"]),
        "0OpenTofu 1.10.6, the newest at hand; OpenTofu by default\n"
    );
    place.put(".opentofu-version", "~> 1.9.0\n");
    assert_eq!(
        place.said(&["resolve"]),
        "0OpenTofu 1.9.4, from .opentofu-version\n"
    );
    assert_eq!(
        place.said(&["resolve", "--tool", "terraform"]),
        "0Terraform 1.5.7, the newest at hand\n"
    );
    assert_eq!(
        place.said(&["resolve", "--tool", "tofu@latest"]),
        "0OpenTofu 1.10.6, from --tool\n"
    );
    place.put(
        "a/main.tf",
        "terraform {\n  required_version = \"< 1.9\"\n}\n",
    );
    assert_eq!(
        place.said(&["resolve", "."]),
        "1error: no OpenTofu `~> 1.9.0` (from .opentofu-version:1) with `< 1.9` (a/main.tf:2); versions at hand (offline): 1.10.6, 1.9.4\n"
    );
    assert_eq!(
        place.said(&["resolve", "--tool", "tofu@1.9.4"]),
        "1error: OpenTofu 1.9.4 (from --tool) is not what the code requires: `< 1.9` (a/main.tf:2)\n"
    );
    assert_eq!(
        place.said(&["resolve", "b"]),
        "1error: there is no directory b\n"
    );
    assert!(
        place
            .said(&["resolve", "--tool", "pulumi"])
            .starts_with("64")
    );
}

#[test]
fn resolve_explains_the_tool_and_names_the_alternative() {
    let place = Place::new();
    put(
        &place.0.path().join("tools/opentofu/1.12.6/tofu"),
        "#!/bin/sh\n",
    );
    let requires = |text: &str| {
        place.put(
            "a/main.tf",
            &format!("terraform {{\n  required_version = \"{text}\"\n}}\n"),
        );
    };
    requires("~> 1.5.0");
    let terraform = "Terraform since `~> 1.5.0` (a/main.tf:2) allows no OpenTofu";
    assert_eq!(
        place.said(&["resolve"]),
        format!("0Terraform 1.5.7, the newest that a/main.tf allows; {terraform}\n")
    );
    let told = "`~> 1.5.0` (a/main.tf:2) is for Terraform: since 1.12 OpenTofu reads required_version in .tofu files only";
    assert_eq!(
        place.said(&["resolve", "--tool", "opentofu@1.12.6"]),
        format!("0OpenTofu 1.12.6, from --tool; {told}\n")
    );
    assert_eq!(
        place.said(&["resolve", "--tool", "opentofu"]),
        format!("0OpenTofu 1.12.6, the newest; {told}\n")
    );
    let refused = place.said(&["resolve", "--tool", "opentofu@1.10.6"]);
    assert_eq!(
        refused,
        "1error: OpenTofu 1.10.6 (from --tool) is not what the code requires: `~> 1.5.0` (a/main.tf:2)\n"
    );
    requires("~> 1.4.0");
    let none = place.said(&["resolve"]);
    assert!(
        none.contains("allows no OpenTofu; `--tool opentofu` asks for OpenTofu\n"),
        "{none}"
    );
    requires(">= 1.13");
    let none = place.said(&["resolve"]);
    let why = "no file selects the tool, so it is OpenTofu by default; `--tool opentofu` or `--tool terraform` selects it\n";
    assert!(
        none.starts_with("1error: no OpenTofu ") && none.ends_with(why),
        "{none}"
    );
}

#[test]
fn resolve_prints_json() {
    let place = Place::new();
    place.put(
        "a/terragrunt.hcl",
        "terraform_version_constraint = local.v\n",
    );
    place.put(
        "a/main.tf",
        "terraform {\n  required_version = \"< 1.10\"\n}\n",
    );
    let said = |arguments: &[&str]| {
        serde_json::from_slice::<serde_json::Value>(&place.tool(arguments).stdout).unwrap()
    };
    // Terragrunt, which is not installed yet, runs OpenTofu.
    assert!(place.said(&["resolve"]).contains("no Terragrunt `latest`"));
    put(
        &place.0.path().join("tools/terragrunt/0.93.0/terragrunt"),
        "#!/bin/sh\n",
    );
    let both = said(&["resolve", "--json"]);
    assert_eq!(
        (&both["tool"], &both["version"], &both["reason"]),
        (
            &"Terragrunt".into(),
            &"0.93.0".into(),
            &"the newest at hand".into()
        )
    );
    assert_eq!(
        (&both["beneath"]["tool"], &both["beneath"]["version"]),
        (&"OpenTofu".into(), &"1.9.4".into())
    );
    let said = said(&["resolve", "--json", "--tool", "opentofu"]);
    assert_eq!(
        (&said["tool"], &said["version"], &said["asked"]),
        (
            &"OpenTofu".into(),
            &"1.9.4".into(),
            &"latest-allowed".into()
        )
    );
    assert_eq!(said["reason"], "the newest that a/main.tf allows");
    assert_eq!(
        said["required"][0],
        serde_json::json!({"constraint": "< 1.10", "file": "a/main.tf", "line": 2})
    );
    assert!(
        said["binary"]
            .as_str()
            .unwrap()
            .ends_with("opentofu/1.9.4/tofu")
    );
    assert_eq!(
        said["notes"][0],
        "a/terragrunt.hcl: line 1: terraform_version_constraint is no plain text and is not evaluated"
    );
}

#[test]
fn list_prints_the_available_versions() {
    let place = Place::new();
    let said = place.said(&["list"]);
    let lines: Vec<_> = said
        .lines()
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    assert_eq!(
        lines,
        ["0OpenTofu 1.10.6", "OpenTofu 1.9.4", "Terraform 1.5.7"]
    );
}

/// A directory as a mirror. Terragrunt is a single file, so the test needs no archive.
#[test]
fn install_from_a_directory_and_prune() {
    let place = Place::new();
    let arch = tool_versions::Platform::here().arch;
    let (binary, text) = (
        format!("terragrunt_linux_{arch}"),
        "#!/bin/sh\necho terragrunt version v0.93.0\n",
    );
    let release = place
        .0
        .path()
        .join("mirror/gruntwork-io/terragrunt/releases/download/v0.93.0");
    put(&release.join(&binary), text);
    let sum = tool_versions::Digest::of(text.as_bytes());
    put(&release.join("SHA256SUMS"), &format!("{sum}  {binary}\n"));
    let tool = |arguments: &[&str]| {
        let mirror = place.0.path().join("mirror");
        let said = serde_json::json!({"mirrors": [{"tool": "Terragrunt", "url": mirror, "verification": "Sums"}], "offline": true});
        let output = place
            .command(arguments)
            .env("PAWL_TOOL_SETTINGS", said.to_string())
            .output()
            .unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let install = ["install", "--tool", "terragrunt@~> 0.93"];
    let (code, out, err) = tool(&install);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with(
            "Terragrunt 0.93.0 with OpenTofu 1.10.6, from --tool (no signature is checked"
        ),
        "{out}"
    );
    assert!(err.contains("Terragrunt 0.93.0 is installed"), "{err}");
    let installed = out.lines().nth(1).unwrap();
    assert_eq!(
        Command::new(installed).output().unwrap().stdout,
        b"terragrunt version v0.93.0\n"
    );
    let again = tool(&install);
    assert!(
        again.0 == 0
            && !again.2.contains("is installed")
            && again.1.contains("without a signature"),
        "{again:?}"
    );
    assert!(tool(&["list"]).1.contains("Terragrunt 0.93.0"));
    put(
        &release.join("SHA256SUMS"),
        &format!("{}  {binary}\n", "0".repeat(64)),
    );
    assert_eq!(
        tool(&["prune", "--max-size", "0"]).1,
        "Terragrunt 0.93.0  0 MiB removed\n"
    );
    let (code, _, err) = tool(&install);
    assert_eq!(code, 1);
    assert!(
        err.contains("has the SHA-256") && err.contains("was published with 0000"),
        "{err}"
    );
    assert!(!Path::new(installed).exists());
    let missing = tool(&["install", "--tool", "terragrunt@0.1.0"]);
    assert!(missing.0 == 1 && missing.2.contains("0.1.0"), "{missing:?}");
}
