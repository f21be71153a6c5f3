use super::*;
use crate::phases::tests::settings;
use serde_json::json;
use std::fs;

const NOW: i64 = 1_800_000_000;

fn token(end: i64) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!(
        "{}.{}.c2lnbmF0dXJl",
        part(json!({"alg": "RS256"})),
        part(json!({"exp": end, "sub": "x"}))
    )
}

fn checked(files: &[(&str, &str)], spec: &Value, fetches: bool) -> Result<(), (String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(dir.path());
    settings.identity = dir.path().join("identity");
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut whole = json!({"source": {"inline": {"files": {}}}});
    whole
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let spec = serde_json::from_value(whole).unwrap();
    let now = Timestamp::from_second(NOW).unwrap();
    check(&spec, &settings, fetches, now).map_err(|failure| (failure.reason, failure.message))
}

fn assert_fails(
    files: &[(&str, &str)],
    spec: &Value,
    fetches: bool,
    reason: Reason,
    message: &str,
) {
    let said = checked(files, spec, fetches);
    assert_eq!(said, Err((reason.as_str().to_owned(), message.to_owned())));
}

#[test]
fn all_missing_and_empty_inputs_are_reported_at_once() {
    let secret = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
    let spec = json!({
        "source": {"git": {"url": "https://h/r", "secretRef": {"name": "git"}}},
        "variables": [
            {"name": "p", "valueFrom": secret("gone", "k")},
            {"name": "c", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
            {"name": "e", "valueFrom": secret("aws", "empty")},
        ],
        "env": [
            {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": secret("aws", "empty")},
            {"name": "MAY_BE_EMPTY", "valueFrom": secret("aws", "empty")},
        ],
    });
    let files = [
        ("configmaps/cm/other", "x"),
        ("secrets/aws/empty", "\n"),
        ("secrets/git/username", "u"),
        ("secrets/git/password", ""),
    ];
    let all = "Secret gone does not exist or is empty; variable p wants gone/k; and ConfigMap cm has no key k; variable c wants \
                   cm/k; and Secret aws has nothing at its key empty; env AWS_SECRET_ACCESS_KEY wants it; and Secret git has nothing at \
                   its key password; source.git.secretRef wants it";
    assert_fails(&files, &spec, true, Reason::SecretNotFound, all);
    let restored = checked(&files, &spec, false).unwrap_err().1;
    assert!(
        !restored.contains("source.git"),
        "a plan that is there needs no source: {restored}"
    );
    assert_eq!(checked(&[], &json!({}), true), Ok(()));
}

#[test]
fn missing_init_credentials_and_scripts_are_named() {
    let key = |name: &str| json!({"name": name, "key": "k"});
    let spec = json!({
        "credentials": {
            "git": [{"host": "a", "secretRef": {"name": "gone"}}, {"host": "b:8443", "secretRef": {"name": "git"}}],
            "registries": [{"host": "r", "secretKeyRef": key("gone")}, {"host": "s", "secretKeyRef": key("empty")}],
            "cliConfig": {"secretKeyRef": key("git")},
        },
        "hooks": [{"name": "tell", "when": "Always", "configMapKeyRef": key("scripts")}],
    });
    let files = [("secrets/git/bearerToken", " "), ("secrets/empty/k", "")];
    let all = "Secret gone does not exist or is empty; credentials.registries of r wants gone/k; and Secret empty has nothing at \
                   its key k; credentials.registries of s wants it; and Secret git has no key k; credentials.cliConfig wants git/k";
    let hook = "; and ConfigMap scripts does not exist or is empty; hook tell wants scripts/k";
    let git = "; and Secret gone does not exist or is empty; credentials.git of a wants it; and Secret git has nothing at its \
                   key bearerToken; credentials.git of b:8443 wants it";
    assert_fails(
        &files,
        &spec,
        true,
        Reason::SecretNotFound,
        &format!("{all}{hook}{git}"),
    );
    // A restored plan brings its scripts with it.
    assert_fails(
        &files,
        &spec,
        false,
        Reason::SecretNotFound,
        &format!("{all}{git}"),
    );
}

#[test]
fn expired_token_is_found_in_every_place() {
    let (past, future) = (token(NOW - 1), token(NOW + 60));
    let key = json!({"secretKeyRef": {"name": "s", "key": "k"}});
    let config = format!("credentials \"r\" {{\n  token = \"{past}\"\n}}\n");
    let git = json!({"credentials": {"git": [{"host": "h", "secretRef": {"name": "g"}}]}});
    let registries = json!([{"host": "r", "secretKeyRef": key["secretKeyRef"]}]);
    let rows = [
        (
            git.clone(),
            ("secrets/g/bearerToken", past.as_str()),
            "the token of credentials.git of h",
        ),
        (
            git,
            ("secrets/g/password", &past),
            "the token of credentials.git of h",
        ),
        (
            json!({"credentials": {"registries": registries}}),
            ("secrets/s/k", &past),
            "the token of credentials.registries of r",
        ),
        (
            json!({"credentials": {"cliConfig": key}}),
            ("secrets/s/k", &config),
            "the token of credentials.cliConfig",
        ),
        (
            json!({"variables": [{"name": "t", "valueFrom": key}]}),
            ("secrets/s/k", &past),
            "the token of variable t",
        ),
        (
            json!({"envFrom": [{"prefix": "A_", "secretRef": {"name": "s"}}]}),
            ("secrets/s/k", &past),
            "the token in env A_k",
        ),
    ];
    for (spec, file, said) in rows {
        let said = format!("{said} expired at 2027-01-15T07:59:59Z");
        assert_fails(&[file], &spec, true, Reason::CredentialsExpired, &said);
        let good = file.1.replace(&past, &future);
        assert_eq!(checked(&[(file.0, &good)], &spec, true), Ok(()), "{said}");
    }
    // `env` overrides `envFrom`; and a public value is not a credential.
    let both =
        json!({"envFrom": [{"secretRef": {"name": "s"}}], "env": [{"name": "k", "value": "x"}]});
    assert_eq!(checked(&[("secrets/s/k", &past)], &both, true), Ok(()));
    let public = json!({"variables": [{"name": "t", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}, {"name": "u", "value": past}]});
    assert_eq!(checked(&[("configmaps/m/k", &past)], &public, true), Ok(()));
}

#[test]
fn expired_token_is_named_but_not_shown() {
    let env = |name: &str, value: &str| json!({"env": [{"name": name, "value": value}]});
    let (past, future) = (token(NOW - 1), token(NOW + 60));
    let said = "the token in env TOKEN expired at 2027-01-15T07:59:59Z";
    assert_fails(
        &[],
        &env("TOKEN", &past),
        true,
        Reason::CredentialsExpired,
        said,
    );
    for (name, value) in [
        ("TOKEN", future.as_str()),
        ("TOKEN", "a.b.c"),
        ("TOKEN", "1.10.6"),
        ("AWS_CREDENTIAL_EXPIRATION", "2027-01-15T09:00:00+00:00"),
        ("AWS_CREDENTIAL_EXPIRATION", "soon"),
    ] {
        assert_eq!(
            checked(&[], &env(name, value), true),
            Ok(()),
            "{name}={value}"
        );
    }
    let ended = env("AWS_CREDENTIAL_EXPIRATION", "2027-01-15T07:00:00+00:00");
    assert_eq!(
        checked(&[], &ended, true).unwrap_err().0,
        Reason::CredentialsExpired
    );
    let artifact =
        json!({"artifact": {"url": "https://h/a", "digest": "d", "secretRef": {"name": "flux"}}});
    let said = "the token of source.artifact.secretRef expired at 2027-01-15T07:59:59Z";
    let file = ("secrets/flux/bearerToken", past.as_str());
    assert_fails(
        &[file],
        &json!({"source": artifact}),
        true,
        Reason::CredentialsExpired,
        said,
    );
}

#[test]
fn identity_without_token_names_the_missing_setting() {
    let aws = json!({"credentials": {"aws": {"roleArn": "arn:aws:iam::111122223333:role/r"}}});
    let said = checked(&[], &aws, true).unwrap_err();
    assert_eq!(said.0, Reason::InvalidSpec);
    assert!(said.1.contains("runner.serviceAccountName"), "{}", said.1);
    assert_eq!(
        checked(&[("identity/aws/token", &token(NOW + 60))], &aws, true),
        Ok(())
    );
    assert_eq!(
        checked(&[("identity/aws/token", &token(NOW - 60))], &aws, true)
            .unwrap_err()
            .0,
        Reason::CredentialsExpired
    );
}

#[test]
fn missing_keys_of_a_source_are_reported() {
    let spec = json!({"source": {"configMapRef": {"name": "net", "items": [{"key": "a", "path": "a.tf"}, {"key": "b", "path": "b.tf"}]}}});
    assert_eq!(
        checked(
            &[("configmaps/net/a", "x"), ("configmaps/net/b", "x")],
            &spec,
            true
        ),
        Ok(())
    );
    let lacks = "ConfigMap net has no key b; source.configMapRef wants it";
    assert_fails(
        &[("configmaps/net/a", "x")],
        &spec,
        true,
        Reason::ConfigMapNotFound,
        lacks,
    );
    let absent = "ConfigMap net does not exist or is empty; source.configMapRef wants it";
    assert_fails(&[], &spec, true, Reason::ConfigMapNotFound, absent);
}
