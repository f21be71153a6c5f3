//! Fetches with real git, ssh and git-lfs from servers that the test starts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on ends here"
)]

mod large;
mod snapshots;

use std::{
    ffi::OsString,
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header},
    response::IntoResponse,
};
use source::{Credentials, FetchError, Login, Refusal, Repository, SshFiles};

use servers::{
    auth::{Access, basic_header},
    git::GitServer,
    listener::Listener,
    local_git::LocalGit,
    repo::Change,
    ssh::SshServer,
};

pub(crate) type Fetched = Result<source::Fetched, FetchError<io::Error>>;

/// Fetches as the agent does; returns the directory too.
async fn fetch(
    url: &str,
    revision: &str,
    secret: &[(&str, String)],
) -> (Fetched, tempfile::TempDir) {
    let (into, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = keys.path().join("keys");
    let repository = Repository::new::<io::Error>(url, revision).unwrap();
    let value = |name: &str| {
        secret
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.clone())
    };
    let host = repository.url().host().to_owned();
    let logins = [Login::of(&format!("https://{host}/"), &host, value).unwrap()];
    let files = SshFiles::create(&keys, &logins, "").unwrap();
    let env = vec![
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("HOME".into(), into.path().into()),
    ];
    let fetched = repository
        .with_ssh(keys.clone())
        .fetch(&LocalGit, env, into.path())
        .await;
    files.remove().unwrap();
    assert!(!keys.exists(), "keys are left");
    (fetched, into)
}

/// A server. Needs root; under `CI` it is always started.
fn server(repos: &Path) -> Option<SshServer> {
    let may = nix::unistd::geteuid().is_root() || std::env::var_os("CI").is_some();
    may.then(|| SshServer::start("127.0.0.1".parse().unwrap(), repos).unwrap())
}

pub(crate) fn refusal(fetched: Fetched) -> (Refusal, String) {
    match fetched {
        Err(FetchError::Refused { refusal, message }) => (refusal, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_a_known_host_is_fetched_from() {
    let repos = tempfile::tempdir().unwrap();
    let Some(server) = server(repos.path()) else {
        return;
    };
    let repo = server.create("team/stack").unwrap();
    let first = repo.commit("main", &[("main.tf", "# one\n")]).unwrap();
    let last = repo.commit("main", &[("main.tf", "# two\n")]).unwrap();
    let url = server.url("team/stack");
    let known = ("known_hosts", server.known_hosts().unwrap());
    let key = |name: &str| ("identity", server.key(name).unwrap());

    let secret = [key("identity"), known.clone()];
    for (revision, commit, text) in [
        ("main", &last, "# two\n"),
        (first.as_str(), &first, "# one\n"),
    ] {
        let (fetched, into) = fetch(&url, revision, &secret).await;
        assert_eq!(&fetched.unwrap().commit, commit, "{}", server.log());
        assert_eq!(
            fs::read_to_string(into.path().join("main.tf")).unwrap(),
            text
        );
    }
    let (fetched, _) = fetch(&server.url("team/none"), "main", &secret).await;
    assert_eq!(refusal(fetched).0, Refusal::NoRepository);
    let (fetched, _) = fetch(&url, "none", &secret).await;
    assert_eq!(refusal(fetched).0, Refusal::NoRevision);
    let (refused, message) = refusal(fetch(&url, "main", &[key("other"), known]).await.0);
    assert!(
        refused == Refusal::Unauthorized && message.contains("Permission denied"),
        "{message}"
    );

    let fingerprint = server.fingerprint().unwrap();
    let (refused, message) = refusal(fetch(&url, "main", &[key("identity")]).await.0);
    assert_eq!(refused, Refusal::HostKey);
    assert!(
        message.contains("known_hosts has no key of") && message.contains(&fingerprint),
        "{message}"
    );
    assert!(
        message.ends_with(&server.known_hosts().unwrap()),
        "{message}"
    );
    let other = ("known_hosts", server.other_known_hosts().unwrap());
    let (refused, message) = refusal(fetch(&url, "main", &[key("identity"), other]).await.0);
    assert_eq!(refused, Refusal::HostKey);
    assert!(
        message.contains("known_hosts has another one") && message.contains(&fingerprint),
        "{message}"
    );
    assert!(source::identity::Identity::parse(&server.key("locked").unwrap()).is_err());
}

#[tokio::test]
async fn submodules_are_fetched_and_hostile_urls_refused() {
    let repos = tempfile::tempdir().unwrap();
    let Some(server) = server(repos.path()) else {
        return;
    };
    let secret = [
        ("identity", server.key("identity").unwrap()),
        ("known_hosts", server.known_hosts().unwrap()),
    ];
    let deep = server.create("lib/deep").unwrap();
    let deep_commit = deep.commit("main", &[("deep.tf", "# deep\n")]).unwrap();
    let module = server.create("lib/module").unwrap();
    module.commit("main", &[("module.tf", "# old\n")]).unwrap();
    let nested = "[submodule \"deep\"]\n\tpath = deep\n\turl = ../deep.git\n";
    let module_commit = module
        .commit_changes(
            "main",
            &[
                Change::File("module.tf", b"# new\n"),
                Change::File(".gitmodules", nested.as_bytes()),
                Change::Submodule("deep", &deep_commit),
            ],
        )
        .unwrap();
    module
        .commit("main", &[("module.tf", "# newer\n")])
        .unwrap();
    let stack = server.create("team/stack").unwrap();
    let modules = |url: &str| format!("[submodule \"m\"]\n\tpath = modules/m\n\turl = {url}\n");
    let commit = |url: &str| {
        let text = modules(url);
        let changes = [
            Change::File(".gitmodules", text.as_bytes()),
            Change::Submodule("modules/m", &module_commit),
        ];
        stack.commit_changes("main", &changes).unwrap()
    };
    let url = server.url("team/stack");
    commit("../../lib/module.git");
    let (fetched, into) = fetch(&url, "main", &secret).await;
    fetched.unwrap_or_else(|error| panic!("{error}: {}", server.log()));
    let read = |path: &str| fs::read_to_string(into.path().join("modules/m").join(path)).unwrap();
    assert_eq!(
        (read("module.tf"), read("deep/deep.tf")),
        ("# new\n".to_owned(), "# deep\n".to_owned())
    );

    let own = format!("file://{}", deep.dir().display());
    for evil in [
        own.as_str(),
        "ext::sh -c touch% /tmp/pawned",
        "--upload-pack=touch /tmp/pawned",
        "git@-oProxyCommand=x:y",
    ] {
        commit(evil);
        let (fetched, into) = fetch(&url, "main", &secret).await;
        assert!(
            matches!(fetched, Err(FetchError::Refused { .. })),
            "{evil}: {fetched:?}"
        );
        assert!(!into.path().join("modules/m/deep.tf").exists(), "{evil}");
    }
    assert!(!Path::new("/tmp/pawned").exists());
}

/// A server that redirects every request to another, and the credentials that it received.
pub(crate) async fn redirecting(to: String) -> (Listener, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = told.clone();
    let app = Router::new().fallback(move |request: Request| {
        let (to, seen) = (to.clone(), seen.clone());
        async move {
            let sent = request
                .headers()
                .get(header::AUTHORIZATION)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default();
            seen.lock().unwrap().push(sent.to_owned());
            let place = format!("{to}{}", request.uri());
            (StatusCode::FOUND, [(header::LOCATION, place)]).into_response()
        }
    });
    (
        Listener::start("127.0.0.1:0".parse().unwrap(), app, None)
            .await
            .unwrap(),
        told,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_not_sent_to_redirect_targets() {
    let repos = tempfile::tempdir().unwrap();
    let server = GitServer::start("127.0.0.1:0".parse().unwrap(), repos.path())
        .await
        .unwrap();
    server
        .create("stack")
        .unwrap()
        .commit("main", &[("main.tf", "# one\n")])
        .unwrap();
    let fetch = async |url: &str, origin: &str, http: &Credentials| {
        let login = Login {
            origin: origin.to_owned(),
            http: Some(http.clone()),
            ..Login::default()
        };
        let into = tempfile::tempdir().unwrap();
        let repository = Repository::new::<io::Error>(url, "main")
            .unwrap()
            .with_logins::<io::Error>(&[login])
            .unwrap();
        let env: Vec<(OsString, OsString)> = [("PATH", "/usr/bin:/bin"), ("no_proxy", "*")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
        repository.fetch(&LocalGit, env, into.path()).await
    };
    let own = format!("http://{}/", server.addr());
    for (access, http, sent) in [
        (
            Access::Bearer("t0ken".into()),
            Credentials::Bearer("t0ken".into()),
            "Bearer t0ken".to_owned(),
        ),
        (
            Access::basic("u", "p4ss"),
            Credentials::Basic("u".into(), "p4ss".into()),
            basic_header("u", "p4ss"),
        ),
    ] {
        server.set_access("stack", access);
        let (listener, told) = redirecting(format!("http://{}", server.addr())).await;
        let url = format!("http://{}/stack.git", listener.addr());
        fetch(&server.url("stack"), &own, &http).await.unwrap();
        let (refused, message) =
            refusal(fetch(&url, &format!("http://{}/", listener.addr()), &http).await);
        assert!(
            refused == Refusal::Invalid && message.contains("redirects elsewhere"),
            "{message}"
        );
        assert_eq!(*told.lock().unwrap(), [sent]);
        // A request without credentials is redirected without any.
        let (refused, message) = refusal(fetch(&url, &own, &http).await);
        assert_eq!(refused, Refusal::Unauthorized, "{message}");
        assert_eq!(told.lock().unwrap()[1], "");
    }
}
