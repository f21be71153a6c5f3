//! Credentials of a run for its tool: real git, called like by the tool, and the tool's CLI configuration.

use std::{fs, path::Path};

use crate::common::start_with;
use crds::{FailureClass, RunResult, reason};
use harness::cluster::pki::Pki;
use runner_agent::settings::Settings;
use serde_json::{Value, json};
use servers::{auth::Access, git::GitServer, registry::Registry};

fn secret(settings: &Settings, path: &str, text: &str) {
    let path = settings.secrets.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn credentials() -> Value {
    let git = [
        ("a.example.org", "a"),
        ("b.example.org:8443", "b"),
        ("c.example.org", "c"),
    ];
    let git: Vec<_> = git
        .map(|(host, name)| json!({"host": host, "secretRef": {"name": name}}))
        .into();
    let key = |key: &str| json!({"name": "registry", "key": key});
    json!({"git": git, "registries": [{"host": "r.example.org", "secretKeyRef": key("token")}], "cliConfig": {"secretKeyRef": key("rc")}})
}

/// Credentials that the tool records during `init`, in files next to its ledger.
const ASK: &str = r#"
ask() { printf 'protocol=https\nhost=%s\n\n' "$1" | GIT_TERMINAL_PROMPT=0 git credential fill 2>/dev/null | grep password= || echo nothing; }
for host in a.example.org other.example.org a.example.org.evil.com a.example.org:444; do echo "$host $(ask $host)" >> $LEDGER.asked; done
for url in https://b.example.org:8443/m.git https://b.example.org/m.git http://b.example.org:8443/m.git https://other.example.org/m.git; do
  echo "$url $(git config --get-urlmatch http.extraHeader $url || echo nothing)" >> $LEDGER.asked
done
for host in a.example.org other.example.org; do
  file=$(git config --get-urlmatch http.sslCAInfo https://$host/m.git || echo nothing)
  echo "authority of $host ${file##*/} $(cat "$file" 2>/dev/null)" >> $LEDGER.asked
done
echo "redirects $(git config --get-urlmatch http.followRedirects https://b.example.org:8443/m.git)" >> $LEDGER.asked
cat "$TF_CLI_CONFIG_FILE" > $LEDGER.rc
eval "$GIT_SSH_COMMAND -G c.example.org" | grep -iE '^(identityfile|stricthostkeychecking)' > $LEDGER.ssh
eval "$GIT_SSH_COMMAND -G other.example.org" | grep -i '^identityfile' >> $LEDGER.ssh
echo "for an argument: hunter-token"
"#;

#[tokio::test]
async fn each_host_gets_its_own_credentials_only() {
    let rc = "credentials \"app.example.org\" {\n  token = \"hunter-token\"\n}\n";
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    // As in a pod, Secrets are outside of the work directory.
    let secrets = tempfile::tempdir().unwrap();
    let mut a = start_with(
        &json!({"credentials": credentials()}),
        &[("INIT", ASK)],
        |s, _| {
            s.secrets = secrets.path().join("secrets");
            for (path, text) in [
                ("a/username", "robot"),
                ("a/password", "a-word"),
                ("a/ca.crt", "pem-of-a"),
                ("b/bearerToken", "b-token"),
                ("c/identity", key),
                ("registry/token", "r-token\n"),
                ("registry/rc", rc),
            ] {
                secret(s, path, text);
            }
        },
    );
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    let read = |name: &str| fs::read_to_string(a.dir.path().join(name)).unwrap();
    let asked = read("ledger.asked");
    let wanted = [
        "a.example.org password=a-word",
        "other.example.org nothing",
        "a.example.org.evil.com nothing",
        "a.example.org:444 nothing",
        "https://b.example.org:8443/m.git Authorization: Bearer b-token",
        "https://b.example.org/m.git nothing",
        "http://b.example.org:8443/m.git nothing",
        "https://other.example.org/m.git nothing",
        "authority of a.example.org git-ca-0.crt pem-of-a",
        "authority of other.example.org nothing ",
        "redirects false",
    ];
    assert_eq!(asked.lines().collect::<Vec<_>>(), wanted);
    let config = read("ledger.rc");
    assert!(
        config.contains("disable_checkpoint = true\n") && config.contains(rc),
        "{config}"
    );
    assert!(
        config.contains("credentials \"r.example.org\" {\n  token = \"r-token\"\n}\n"),
        "{config}"
    );
    let ssh = read("ledger.ssh");
    assert!(ssh.contains("stricthostkeychecking true"), "{ssh}");
    assert_eq!(
        ssh.lines()
            .filter(|line| line.ends_with("identity-2"))
            .count(),
        1,
        "of c.example.org alone: {ssh}"
    );
    for seen in [
        a.log(),
        a.api.state.lock().unwrap().object["status"].to_string(),
    ] {
        for word in ["hunter-token", "a-word", "b-token", "r-token"] {
            assert!(!seen.contains(word), "{word} in {seen}");
        }
    }
}

/// Module servers redirect authenticated requests to another server with the same credentials: the tool's git arrives there without
/// credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirected_git_sends_no_credentials() {
    crate::common::alone();
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::bare(dir.path(), "pawl-test-redirect").unwrap();
    let path = "/stack.git/info/refs";
    for (address, access, secret) in [
        (
            "127.0.0.1",
            Access::basic("robot", "p4ss-word"),
            vec![("username", "robot"), ("password", "p4ss-word")],
        ),
        (
            "127.0.0.2",
            Access::basic("robot", "p4ss-word"),
            vec![("username", "robot"), ("password", "p4ss-word")],
        ),
        (
            "127.0.0.2",
            Access::Bearer("t0ken-word".into()),
            vec![("bearerToken", "t0ken-word")],
        ),
    ] {
        let repos = tempfile::tempdir().unwrap();
        let other = GitServer::start_tls(format!("{address}:0").parse().unwrap(), repos.path())
            .await
            .unwrap();
        other
            .create("stack")
            .unwrap()
            .commit("main", &[("main.tf", "")])
            .unwrap();
        other.set_access("stack", access.clone());
        let host = Registry::start(&pki, access).await.unwrap();
        host.redirect(
            path,
            &format!("{}/info/refs?service=git-upload-pack", other.url("stack")),
        )
        .unwrap();
        let named = |host: String, name: &str| json!({"host": host, "secretRef": {"name": name}});
        let git = json!([
            named(host.host(), "own"),
            named(other.addr().to_string(), "other")
        ]);
        let clone = |url: &str, to: &str| {
            format!(
                "git clone -q {url} $TMPDIR/{to} 2>> $LEDGER.said && echo {to} >> $LEDGER.cloned || :\n"
            )
        };
        let init = clone(&host.url("/stack.git"), "redirected");
        // As in a pod, Secrets are outside of the work directory.
        let secrets = tempfile::tempdir().unwrap();
        let mut a = start_with(
            &json!({"credentials": {"git": git}}),
            &[("INIT", &init)],
            |s, _| {
                s.secrets = secrets.path().join("secrets");
                for (key, text) in &secret {
                    self::secret(s, &format!("own/{key}"), text);
                }
                // With the other CA as well, so that git refuses and not the TLS handshake.
                self::secret(
                    s,
                    "own/ca.crt",
                    &format!("{}{}", pki.authority(), other.authority().unwrap()),
                );
                self::secret(s, "other/ca.crt", other.authority().unwrap());
                s.inherited.push(("no_proxy".into(), "*".into()));
            },
        );
        assert_eq!(a.end().await, 0, "{}", a.log());
        let said = fs::read_to_string(a.dir.path().join("ledger.said")).unwrap_or_default();
        assert!(
            !a.dir.path().join("ledger.cloned").exists(),
            "{address} took it: {said}"
        );
        let asked = host.asked();
        assert!(
            asked.iter().any(|(_, sent)| sent.is_some()),
            "the host got its own: {asked:?} {said}"
        );
        // Git asks for a password again, and does not follow at all with a token.
        assert_eq!(other.requests("stack") > 0, secret.len() == 2, "{said}");
    }
}

#[tokio::test]
async fn invalid_credentials_fail_before_the_tool_starts() {
    let rows: [(&str, &str, FailureClass, &str, &str); 3] = [
        (
            "registry/rc",
            "plugin_cache_dir = \"/x\"",
            FailureClass::Configuration,
            reason::INVALID_SPEC,
            "plugin_cache_dir is refused",
        ),
        (
            "c/identity",
            "ssh-ed25519 AAAA",
            FailureClass::Credentials,
            reason::UNAUTHORIZED,
            "Secret c is no private key",
        ),
        (
            "a/password",
            "",
            FailureClass::Configuration,
            reason::SECRET_NOT_FOUND,
            "Secret a has none of the keys",
        ),
    ];
    for (path, text, class, reason, message) in rows {
        let good: [(&str, &str); 5] = [
            ("a/password", "a-word"),
            ("b/bearerToken", "b-token"),
            (
                "c/identity",
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
            ),
            ("registry/token", "r-token"),
            ("registry/rc", ""),
        ];
        let mut a = start_with(&json!({"credentials": credentials()}), &[], |s, _| {
            for (path, text) in good.into_iter().chain([(path, text)]) {
                secret(s, path, text);
            }
            if text.is_empty() {
                let gone: &Path = &s.secrets.join(path);
                fs::rename(gone, gone.with_extension("other")).unwrap();
            }
        });
        let failure = a.fails(class, reason).await;
        assert!(
            failure.message.contains(message),
            "{path}: {}",
            failure.message
        );
        assert!(a.ledger().is_empty(), "{path}: the tool ran");
    }
}

/// As a webhook of the cluster sets them in the pod.
#[tokio::test]
async fn identity_of_the_cluster_reaches_tool_and_hooks() {
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "eyJ0.of-the-cluster").unwrap();
    let see = r#"echo "$0 $AWS_ROLE_ARN $AZURE_CLIENT_ID $AWS_REGION$AWS_CONFIG_FILE" | sed 's#.*/##' >> $LEDGER.seen"#;
    let hook = json!({"name": "see", "when": "BeforeInit", "inline": see});
    let ends = format!(
        "{see}; cat $AWS_WEB_IDENTITY_TOKEN_FILE; echo 'Error: error configuring S3 Backend: no valid credential sources for S3 Backend found.' >&2; exit 1"
    );
    for (runner, seen, said) in [
        (
            json!({"serviceAccountName": "team"}),
            "see arn:of-the-cluster id own\ntofu arn:of-the-cluster id own\n",
            "; the cluster gave the pod AWS_CONFIG_FILE, which the code does not get, since they would bring code",
        ),
        (
            json!({}),
            "see   own\ntofu   own\n",
            "; the cluster gave the pod AWS_ROLE_ARN, AWS_REGION, AWS_CONFIG_FILE, AWS_WEB_IDENTITY_TOKEN_FILE, AZURE_CLIENT_ID, which the code \
             does not get, since the run names no account: runner.serviceAccountName",
        ),
    ] {
        let env = json!([{"name": "AWS_REGION", "value": "own"}]);
        let more = json!({"runner": runner, "hooks": [hook], "env": env});
        let mut a = start_with(&more, &[("INIT", &ends)], |settings, _| {
            settings.injected = [
                ("AWS_ROLE_ARN", "arn:of-the-cluster"),
                ("AWS_REGION", "theirs"),
                ("AWS_CONFIG_FILE", "/evil"),
                (
                    "AWS_WEB_IDENTITY_TOKEN_FILE",
                    token.path().to_str().unwrap(),
                ),
                ("AZURE_CLIENT_ID", "id"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        });
        let failure = a.ends(1).await.failure.unwrap();
        let found = fs::read_to_string(a.dir.path().join("ledger.seen")).unwrap();
        assert_eq!(found, seen, "{}", a.log());
        assert_eq!(failure.class, FailureClass::Credentials);
        assert!(failure.message.contains(said), "{}", failure.message);
        assert!(
            a.log().contains(said.trim_start_matches("; ")),
            "{}",
            a.log()
        );
        assert!(!a.log().contains("eyJ0"), "{}", a.log());
    }
}
