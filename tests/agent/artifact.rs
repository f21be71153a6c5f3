//! Archives as sources, and identities: a web server, mounted objects and tokens, and the attempt that uses them.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Response, header},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use crds::{FailureClass, Phase, RunResult, reason};
use serde_json::{Value, json};
use tool_versions::Digest;

use crate::common::{Attempt, start, start_with};

/// A request: host and path, and the credentials sent.
type Asked = (String, Option<String>);

/// A server of one archive.
#[derive(Clone)]
struct Server {
    archive: Arc<Vec<u8>>,
    port: u16,
    seen: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    async fn start(archive: Vec<u8>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            archive: Arc::new(archive),
            port: listener.local_addr().unwrap().port(),
            seen: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn digest(&self) -> String {
        format!("sha256:{}", Digest::of(&self.archive))
    }

    fn source(&self, path: &str, more: &Value) -> Value {
        let mut artifact = json!({"url": self.url(path), "digest": self.digest()});
        artifact
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"stack": "net", "source": {"artifact": artifact}})
    }

    fn asked(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().clone()
    }
}

async fn answer(State(server): State<Server>, request: Request) -> Response<Body> {
    let text = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let (host, path) = (
        text(header::HOST).unwrap_or_default(),
        request.uri().path().to_owned(),
    );
    let auth = text(header::AUTHORIZATION);
    let before = {
        let mut seen = server.seen.lock().unwrap();
        seen.push((format!("{host}{path}"), auth.clone()));
        seen.len() - 1
    };
    let answer = Response::builder();
    let plain = |status: u16| {
        Response::builder()
            .status(status)
            .body(Body::from("no"))
            .unwrap()
    };
    match path.as_str() {
        "/closed.tar" if auth.is_none() => plain(401),
        "/gone.tar" => plain(404),
        "/down.tar" => answer
            .status(503)
            .header("Retry-After", "100000")
            .body(Body::empty())
            .unwrap(),
        "/busy.tar" if before == 0 => answer
            .status(429)
            .header("Retry-After", "1")
            .body(Body::empty())
            .unwrap(),
        "/moved.tar" => {
            let to = format!("http://localhost:{}/a.tar", server.port);
            answer
                .status(302)
                .header(header::LOCATION, to)
                .body(Body::empty())
                .unwrap()
        }
        _ => answer
            .body(Body::from(server.archive.as_ref().clone()))
            .unwrap(),
    }
}

fn tar_of(files: &[(&str, &str)], links: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let header = |kind, size: usize| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(size as u64);
        header
    };
    for (name, text) in files {
        archive
            .append_data(
                &mut header(tar::EntryType::Regular, text.len()),
                name,
                text.as_bytes(),
            )
            .unwrap();
    }
    for (name, to) in links {
        archive
            .append_link(&mut header(tar::EntryType::Symlink, 0), name, to)
            .unwrap();
    }
    archive.into_inner().unwrap()
}

fn good() -> Vec<u8> {
    tar_of(
        &[("README.md", "x"), ("stacks/net/main.tf", "locals {}\n")],
        &[("stacks/net/shared.tf", "main.tf")],
    )
}

fn secret(attempt: &std::path::Path, name: &str, keys: &[(&str, &str)]) {
    fs::create_dir_all(attempt.join(name)).unwrap();
    for (key, text) in keys {
        fs::write(attempt.join(name).join(key), text).unwrap();
    }
}

fn setup(a: &Attempt) -> String {
    a.api
        .status()
        .history
        .into_iter()
        .find(|line| line.contains("Setup"))
        .unwrap_or_default()
}

#[tokio::test]
async fn artifact_is_fetched_verified_and_applied() {
    let server = Server::start(good()).await;
    // The server asks for one retry.
    let mut a = start(
        &server.source("/busy.tar", &json!({"path": "stacks/net"})),
        &[],
    );
    let status = a.ends(0).await;
    assert_eq!(status.result, Some(RunResult::Applied));
    assert_eq!(status.plan.unwrap().revision, Some(server.digest()));
    let wanted = format!(
        "artifact {} of {}, 3 files",
        &server.digest()[7..14],
        server.url("/busy.tar")
    );
    assert!(setup(&a).contains(&wanted), "{}", setup(&a));
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn credentials_are_sent_to_their_host_only() {
    let server = Server::start(good()).await;
    let with = |path: &str| {
        server.source(
            path,
            &json!({"path": "stacks/net", "secretRef": {"name": "flux"}}),
        )
    };
    // Separate from the work directory, so that code cannot read it nor later files beside it.
    let secrets = tempfile::tempdir().unwrap();
    let given = |settings: &mut runner_agent::settings::Settings| {
        secrets.path().join("all").clone_into(&mut settings.secrets);
        secret(
            &settings.secrets,
            "flux",
            &[("username", "u"), ("password", "hunter22\n")],
        );
    };
    let mut a = start_with(&with("/closed.tar"), &[], |settings, _| given(settings));
    a.ends(0).await;
    let basic = Some("Basic dTpodW50ZXIyMg==".to_owned());
    assert_eq!(
        server.asked(),
        [(
            format!("127.0.0.1:{}/closed.tar", server.port),
            basic.clone()
        )]
    );
    let mut a = start_with(&with("/moved.tar"), &[], |settings, _| given(settings));
    a.fails(FailureClass::Configuration, reason::SOURCE_INVALID)
        .await;
    let elsewhere: Vec<_> = server
        .asked()
        .into_iter()
        .filter(|(at, _)| !at.starts_with("127.0.0.1"))
        .collect();
    assert!(
        elsewhere.iter().all(|(_, auth)| auth.is_none()),
        "{elsewhere:?}"
    );
}

#[tokio::test]
async fn unavailable_artifact_fails_before_the_tool_starts() {
    let server = Server::start(good()).await;
    let other = format!("sha256:{}", "0".repeat(64));
    let named = json!({"secretRef": {"name": "flux"}});
    let rows = [
        (
            "/a.tar",
            json!({"digest": other}),
            FailureClass::Integrity,
            reason::ARTIFACT_MISMATCH,
            "nothing was unpacked",
        ),
        (
            "/gone.tar",
            json!({}),
            FailureClass::Configuration,
            reason::ARTIFACT_NOT_FOUND,
            "404",
        ),
        (
            "/closed.tar",
            json!({}),
            FailureClass::Credentials,
            reason::SOURCE_UNAUTHORIZED,
            "source.artifact.secretRef",
        ),
        (
            "/a.tar",
            named,
            FailureClass::Configuration,
            reason::SECRET_NOT_FOUND,
            "Secret flux does not exist or is empty",
        ),
        (
            "/down.tar",
            json!({}),
            FailureClass::Transient,
            reason::SOURCE_UNREACHABLE,
            "too late",
        ),
        (
            "/a.tar",
            json!({"path": "stacks/app"}),
            FailureClass::Configuration,
            reason::PATH_NOT_FOUND,
            "stacks",
        ),
    ];
    for (path, more, class, reason, says) in rows {
        let mut a = start(&server.source(path, &more), &[]);
        let failure = a.fails(class, reason).await;
        assert!(failure.message.contains(says), "{failure:?}");
        assert!(a.ledger().is_empty(), "{:?}", a.ledger());
    }
}

#[tokio::test]
async fn hostile_archive_is_refused_before_the_tool_starts() {
    let links: [&[(&str, &str)]; 3] = [
        &[("out", "/etc/passwd")],
        &[("out", "../../../etc/passwd")],
        // Each of the two alone stays inside.
        &[("a/down", ".."), ("a/b/up", "../down/../..")],
    ];
    for links in links {
        let server = Server::start(tar_of(&[("main.tf", ""), ("a/b/x.tf", "")], links)).await;
        let mut a = start(&server.source("/a.tar", &json!({})), &[]);
        a.fails(FailureClass::Configuration, reason::SOURCE_INVALID)
            .await;
        assert!(a.ledger().is_empty());
    }
}

#[tokio::test]
async fn files_of_a_config_map_are_a_stack() {
    let source = json!({"source": {"configMapRef": {"name": "net"}}});
    let mut a = start_with(&source, &[], |settings, _| {
        secret(
            &settings.config_maps,
            "net",
            &[("main.tf", "locals {}\n"), ("out.tf", "")],
        );
    });
    a.ends(0).await;
    assert!(
        setup(&a).contains("ConfigMap net, 2 files"),
        "{}",
        setup(&a)
    );
    assert_eq!(a.api.status().plan.unwrap().revision, None);
    let mut a = start(&source, &[]);
    let status = a.ends(1).await;
    assert_eq!(
        (status.phase, status.failure.unwrap().reason.as_str()),
        (Some(Phase::Failed), reason::CONFIG_MAP_NOT_FOUND)
    );
}

#[tokio::test]
async fn identity_is_given_to_sdks_and_its_token_masked() {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let token = format!(
        "{}.{}.c2lnbmF0dXJl",
        part(json!({"alg": "RS256"})),
        part(json!({"exp": 4_000_000_000_i64}))
    );
    let aws = json!({"credentials": {"aws": {"roleArn": "arn:aws:iam::111122223333:role/r", "region": "eu-west-1"}}});
    let init =
        "env | grep ^AWS_ | sort >&2; echo \"is $(cat \"$AWS_WEB_IDENTITY_TOKEN_FILE\")\" >&2";
    let place = |settings: &mut runner_agent::settings::Settings, token: &str| {
        settings.identity = settings.secrets.with_file_name("identity");
        secret(&settings.identity, "aws", &[("token", token)]);
    };
    let mut a = start_with(&aws, &[("INIT", init)], |settings, _| {
        place(settings, &token);
    });
    a.ends(0).await;
    let log = a.log();
    for line in [
        "AWS_REGION=eu-west-1\n",
        "AWS_ROLE_ARN=arn:aws:iam::111122223333:role/r\n",
        "AWS_ROLE_SESSION_NAME=pawl-vpc\n",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert!(
        log.contains("is (sensitive value)") && !log.contains(&token),
        "{log}"
    );
    // The agent does not override variables of the run.
    let mut twice = aws.clone();
    twice["env"] = json!([{"name": "AWS_REGION", "value": "us-east-1"}]);
    let mut a = start_with(&twice, &[], |settings, _| place(settings, &token));
    let failure = a
        .fails(FailureClass::Configuration, reason::INVALID_SPEC)
        .await;
    assert!(
        failure
            .message
            .starts_with("env AWS_REGION is set by credentials.aws as well"),
        "{failure:?}"
    );
    assert!(a.ledger().is_empty());
}
