//! Inputs of the tool: variable files, environments, files, and arguments.

use std::{fs, path::Path};

use crate::common::{Attempt, start_with};
use crds::{FailureClass, RunResult, reason};
use serde_json::{Value, json};

/// An attempt with Secrets and ConfigMaps, none of which code of the stack can read.
fn attempt(more: &Value, env: &[(&str, &str)], mounted: &Path) -> Attempt {
    for (path, text) in [
        ("secrets/aws/credentials", "key = t0k3n-of-home\n"),
        ("secrets/aws/token", "t0k3n-of-source\n"),
        ("secrets/vars/prod.tfvars", "p = \"hunter22\"\n"),
        ("secrets/all/FIRST", "one-of-all"),
        ("secrets/all/not-a-name", "x"),
        ("secrets/bad/PATH", "/evil"),
        ("configmaps/plain/file", "plain\n"),
        ("configmaps/plain/SECOND", "two"),
    ] {
        let path = mounted.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    start_with(more, env, |settings, _| {
        settings.secrets = mounted.join("secrets");
        settings.config_maps = mounted.join("configmaps");
    })
}

#[tokio::test]
async fn files_of_secrets_are_restored_before_the_claim() {
    let mounted = tempfile::tempdir().unwrap();
    let key = |kind: &str, name: &str, key: &str| json!({kind: {"name": name, "key": key}});
    let mut files = [
        key("secretKeyRef", "aws", "credentials"),
        key("secretKeyRef", "aws", "token"),
        key("configMapKeyRef", "plain", "file"),
    ];
    for (file, (path, place)) in files.iter_mut().zip([
        (".aws/credentials", "Home"),
        ("conf/token", "Source"),
        ("conf/plain", "Source"),
    ]) {
        file["path"] = path.into();
        file["in"] = place.into();
    }
    let reads = "cat conf/token conf/plain $HOME/.aws/credentials >> $LEDGER; cat conf/token";
    let plan = format!("{reads}; echo evil > conf/token; echo evil > $HOME/.aws/credentials");
    for mode in ["Automatic", "Manual"] {
        let more = json!({"files": files, "approval": {"mode": mode}});
        let mut a = attempt(&more, &[("PLAN", &plan), ("APPLY", reads)], mounted.path());
        a.approve_in(mode).await;
        assert_eq!(a.end().await, 0, "{mode}: {:#?}", a.api.status());
        let read = ["t0k3n-of-source", "plain", "key = t0k3n-of-home"];
        let wanted = [
            &["init", "plan"][..],
            &read,
            &["show", "show", "apply"],
            &read,
        ]
        .concat();
        assert_eq!(a.ledger(), wanted, "{mode}");
        assert!(
            !a.log().contains("t0k3n") && a.log().contains("(sensitive value)"),
            "{}",
            a.log()
        );
    }
}

#[tokio::test]
async fn changed_file_of_a_config_map_is_not_applied() {
    let mounted = tempfile::tempdir().unwrap();
    let more = json!({"approval": {"mode": "Manual"},
        "files": [{"path": "file", "in": "Source", "configMapKeyRef": {"name": "plain", "key": "file"}}]});
    let mut a = attempt(&more, &[], mounted.path());
    a.waits().await;
    fs::write(a.stack().join("file"), "evil").unwrap();
    a.api.approve();
    assert_eq!(a.end().await, 1);
    assert_eq!(
        (
            a.api.status().failure.unwrap().reason.as_str(),
            a.ran("apply")
        ),
        (reason::CHECKSUM_MISMATCH, 0)
    );
}

#[tokio::test]
async fn variables_and_environments_are_given_and_masked() {
    let mounted = tempfile::tempdir().unwrap();
    let more = json!({
        "variableFiles": [{"secretKeyRef": {"name": "vars", "key": "prod.tfvars"}}],
        "variables": [{"name": "p", "value": "last"}],
        "envFrom": [{"secretRef": {"name": "all"}}, {"prefix": "OF_", "configMapRef": {"name": "plain"}}],
    });
    let plan =
        "cat zz_pawl-00-prod.auto.tfvars; echo all $FIRST $OF_SECOND; ls zz_pawl* >> $LEDGER";
    let mut a = attempt(&more, &[("PLAN", plan)], mounted.path());
    a.ends(0).await;
    let log = a.log();
    assert!(
        log.contains("p = \"(sensitive value)\"") && log.contains("all (sensitive value) two"),
        "{log}"
    );
    assert!(
        log.contains("pawl: key not-a-name of Secret all is left out of envFrom: not-a-name is no name of a variable"),
        "{log}"
    );
    assert_eq!(
        a.ledger()[2..4],
        ["zz_pawl-00-prod.auto.tfvars", "zz_pawl.auto.tfvars.json"]
    );
    let mut refused = attempt(
        &json!({"envFrom": [{"secretRef": {"name": "bad"}}]}),
        &[],
        mounted.path(),
    );
    let failure = refused
        .fails(FailureClass::Configuration, reason::INVALID_SPEC)
        .await;
    assert!(
        failure
            .message
            .starts_with("envFrom: PATH of Secret bad is refused"),
        "{}",
        failure.message
    );
}

/// An apply reads ephemeral variables again, and the checksum excludes the files that contain them.
#[tokio::test]
async fn variable_files_are_restored_before_claim_and_apply() {
    let mounted = tempfile::tempdir().unwrap();
    let evil = "for file in zz_pawl*; do echo evil > $file; done; rm -f zz_pawl.auto.tfvars.json; echo evil > zz_pawl-99-x.auto.tfvars";
    let reads = "cat zz_pawl* >> $LEDGER; echo >> $LEDGER";
    let wanted = ["p = \"hunter22\"", "{\"p\":\"last\"}"];
    for (mode, hooks, plan) in [
        ("Automatic", json!([]), evil),
        ("Manual", json!([]), evil),
        (
            "Automatic",
            json!([{"name": "evil", "when": "BeforeApply", "inline": evil}]),
            "",
        ),
    ] {
        let more = json!({
            "variableFiles": [{"secretKeyRef": {"name": "vars", "key": "prod.tfvars"}}],
            "variables": [{"name": "p", "value": "last"}],
            "approval": {"mode": mode},
            "hooks": hooks,
        });
        let mut a = attempt(&more, &[("PLAN", plan), ("APPLY", reads)], mounted.path());
        a.approve_in(mode).await;
        assert_eq!(a.end().await, 0, "{mode}: {:#?}", a.api.status());
        assert_eq!(
            a.ledger(),
            [&["init", "plan", "show", "show", "apply"][..], &wanted].concat(),
            "{mode}, hooks {hooks}"
        );
    }
    // A run without variable files does not read one that code of the stack created.
    let mut a = attempt(
        &json!({}),
        &[
            ("PLAN", "echo evil > zz_pawl.auto.tfvars.json"),
            ("APPLY", "ls >> $LEDGER"),
        ],
        mounted.path(),
    );
    a.ends(0).await;
    assert!(
        !a.ledger().iter().any(|line| line.starts_with("zz_pawl")),
        "{:?}",
        a.ledger()
    );
}

#[tokio::test]
async fn arguments_are_given_to_their_commands_only() {
    let mounted = tempfile::tempdir().unwrap();
    let says = "echo \"$@\" >> $LEDGER";
    let more = json!({"targets": ["a.b"], "replace": ["a.c"], "refresh": false, "parallelism": 3,
        "arguments": {"init": ["-upgrade"], "plan": ["-exclude=a.d"], "apply": ["-concise"]}});
    let mut a = attempt(
        &more,
        &[("INIT", says), ("PLAN", says), ("APPLY", says)],
        mounted.path(),
    );
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    let said = |command: &str| {
        a.ledger()
            .into_iter()
            .find(|line| line.starts_with(&format!("{command} ")))
            .unwrap()
    };
    assert!(
        said("init").contains(" -upgrade") && !said("init").contains("-target"),
        "{}",
        said("init")
    );
    assert!(
        said("plan")
            .contains(" -target=a.b -replace=a.c -refresh=false -parallelism=3 -exclude=a.d"),
        "{}",
        said("plan")
    );
    assert!(
        said("apply").contains(" -parallelism=3 -concise ") && !said("apply").contains("-target"),
        "{}",
        said("apply")
    );
    let mut refused = attempt(
        &json!({"arguments": {"plan": ["-destroy"]}}),
        &[],
        mounted.path(),
    );
    assert_eq!(refused.end().await, 1);
    let failure = refused.api.status().failure.unwrap();
    assert!(
        failure
            .message
            .contains("it is spec.operation; allowed are -exclude=…"),
        "{}",
        failure.message
    );
    assert!(refused.ledger().is_empty());
}

#[tokio::test]
async fn variables_without_a_value_are_all_named() {
    let mounted = tempfile::tempdir().unwrap();
    let code = "variable \"p\" {}\n\nvariable \"q\" {}\nvariable \"r\" {}\n";
    let source = json!({"inline": {"files": {"main.tf": code}}});
    let mut a = attempt(
        &json!({"source": source, "variables": [{"name": "r", "value": 1}]}),
        &[],
        mounted.path(),
    );
    let failure = a
        .fails(FailureClass::Configuration, reason::VARIABLE_NOT_SET)
        .await;
    let status = a.api.status();
    assert_eq!(
        failure.message,
        "2 variables have no value: p (main.tf:1), q (main.tf:3)"
    );
    assert_eq!(
        status.step().unwrap(),
        "create a run with p and q in spec.variables (a spec never changes)"
    );
    assert!(a.ledger().is_empty());
}
