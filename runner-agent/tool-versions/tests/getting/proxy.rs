//! The proxy of the environment. A child process reads it: a process with threads cannot change its own environment.

use std::{
    env,
    process::{Command, Stdio},
};

use tool_versions::releases::http::Rules;

use super::{
    get_by, rules,
    server::{Server, ok},
};

/// A host that does not resolve.
const FAR: &str = "http://releases.invalid/tofu.zip";
const NEAR: &str = "PAWL_TEST_NEAR";

#[tokio::test]
#[ignore = "the test below runs it in a child process"]
async fn child() {
    let near = env::var(NEAR).expect("run by another test");
    let rules = Rules { proxies: true, ..rules() };
    assert_eq!(get_by(rules.clone(), FAR).await.unwrap(), b"by the proxy");
    assert_eq!(get_by(rules, &near).await.unwrap(), b"direct");
}

#[tokio::test]
async fn requests_use_the_proxy_unless_no_proxy_matches() {
    let proxy = Server::start(|_, _| ok("", b"by the proxy")).await;
    let near = Server::start(|_, _| ok("", b"direct")).await;
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "getting::proxy::child", "--ignored", "--quiet"]);
    for name in ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "REQUEST_METHOD"] {
        command.env_remove(name);
    }
    for name in ["HTTP_PROXY", "http_proxy"] {
        command.env(name, proxy.url(""));
    }
    for name in ["NO_PROXY", "no_proxy"] {
        command.env(name, "localhost,127.0.0.1,.svc");
    }
    command.env(NEAR, near.url("/")).stdin(Stdio::null()).stdout(Stdio::null());
    let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap().unwrap();
    assert!(status.success());
    let asked: Vec<_> = proxy.seen().into_iter().map(|request| request.path).collect();
    assert_eq!(asked, [FAR], "a proxy gets the absolute URL");
    assert_eq!(near.seen().len(), 1);
}
