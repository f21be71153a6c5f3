//! Repositories and URLs that attack: trees of endless paths, and places that only this process can reach.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use axum::{Router, response::Redirect};
use serde_json::json;
use servers::{auth::Access, git::GitServer, repo::Change};
use tokio::net::TcpListener;

use super::{FILES, World};

/// The output of git in a bare repository.
fn git(dir: &Path, args: &[&str], input: &str) -> String {
    let mut git = Command::new("git");
    git.arg("--git-dir").arg(dir).args(args);
    for role in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{role}_NAME"), "n");
        git.env(format!("GIT_{role}_EMAIL"), "e@pawl.invalid");
    }
    let mut git = git
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut git.stdin.take().unwrap(), input.as_bytes()).unwrap();
    let output = git.wait_with_output().unwrap();
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A branch whose nine levels of ten names each lead to one tree: 10^9 paths in ten objects.
fn bomb(dir: &Path, branch: &str, leaf: &str) {
    let mut tree = git(dir, &["mktree"], leaf);
    for _ in 0..9 {
        let entries: Vec<_> = (0..10)
            .map(|n| format!("040000 tree {tree}\td{n}"))
            .collect();
        tree = git(dir, &["mktree"], &(entries.join("\n") + "\n"));
    }
    let commit = git(dir, &["commit-tree", &tree, "-m", "m"], "");
    git(
        dir,
        &["update-ref", &format!("refs/heads/{branch}"), &commit],
        "",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_paths_are_refused_at_once() {
    let layers = [
        ("good", json!({"path": "stacks/app"})),
        ("files", json!({"ref": "files"})),
        ("empty", json!({"ref": "empty"})),
    ];
    let mut world = World::new(&layers).await;
    world.commit("main", FILES);
    let dir = world.repo.dir().to_owned();
    let blob = git(&dir, &["hash-object", "-w", "--stdin"], "x");
    bomb(&dir, "files", &format!("100644 blob {blob}\tf\n"));
    // Without a file, a listing of files would print nothing for ever.
    bomb(&dir, "empty", "");
    let begun = Instant::now();
    assert_eq!(world.look().await, ["good"]);
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    for name in ["files", "empty"] {
        let known = world.status().refs.iter().find(|known| known.name == name);
        let failure = known.unwrap().failure.clone().unwrap();
        assert_eq!(failure.reason, "SourceInvalid", "{}", failure.message);
        assert!(
            failure
                .message
                .contains("more than 200000 files and directories"),
            "{}",
            failure.message
        );
    }
}

/// A pack of 175 bytes: a file of 64 KiB, one of 250 of these, and one of 40 of the latter, 655 MB.
const DELTAS: &[u8] = include_bytes!("deltas.pack");
/// Its files.
const DELTA_FILES: [&str; 3] = [
    "787b93fd36990ef95ebe37fbaff756f7153bfa3e",
    "c97c12f9b0a24bfc19c74a2b265a97c924137775",
    "3ec87bddbe74e4da47967a2533797ce6331a48ed",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_beyond_gits_memory_is_refused() {
    let layers = [
        ("good", json!({"path": "stacks/app"})),
        ("large", json!({"ref": "large"})),
    ];
    let mut world = World::new(&layers).await;
    world.commit("main", FILES);
    let dir = world.repo.dir().to_owned();
    let pack = dir.join("objects/pack/pack-1.pack");
    std::fs::write(&pack, DELTAS).unwrap();
    git(&dir, &["index-pack", pack.to_str().unwrap()], "");
    // Otherwise the server sends the whole file, which git streams to the disk.
    git(&dir, &["config", "core.bigFileThreshold", "1g"], "");
    let entries = DELTA_FILES.map(|id| format!("100644 blob {id}\t{id}\n"));
    let tree = git(&dir, &["mktree"], &entries.concat());
    let commit = git(&dir, &["commit-tree", &tree, "-m", "m"], "");
    git(&dir, &["update-ref", "refs/heads/large", &commit], "");
    assert_eq!(world.look().await, ["good"]);
    let refs = &world.status().refs;
    let known = refs.iter().find(|known| known.name == "large").unwrap();
    let failure = known.failure.clone().unwrap();
    assert_eq!(failure.reason, "SourceInvalid", "{}", failure.message);
    assert!(
        failure.message.contains("512 MiB of memory"),
        "{}",
        failure.message
    );
}

/// A port that counts its connections and closes them.
async fn port(at: &str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(at).await.unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let (at, counted) = (listener.local_addr().unwrap(), Arc::clone(&count));
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (at, count)
}

/// The tests allow loopback, except 127.0.0.2, which stands for it here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_without_a_repository_gets_one_message() {
    let mut world = World::new(&[("app", json!({"path": "stacks/app"}))]).await;
    world.commit("main", FILES);
    let (denied, arrived) = port("127.0.0.2:0").await;
    let (closing, _) = port("127.0.0.1:0").await;
    let dir = tempfile::tempdir().unwrap();
    let other = GitServer::start("127.0.0.1:0".parse().unwrap(), dir.path())
        .await
        .unwrap();
    other.create("private").unwrap();
    other.set_access("private", Access::basic("u", "p"));
    let tls = GitServer::start_tls("127.0.0.1:0".parse().unwrap(), dir.path())
        .await
        .unwrap();
    let to = format!("http://{denied}/r.git/info/refs?service=git-upload-pack");
    let redirect = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let redirects = redirect.local_addr().unwrap();
    let router = Router::new().fallback(async move || Redirect::temporary(&to));
    tokio::spawn(async { axum::serve(redirect, router).await });

    let closed = "http://127.0.0.1:1/r.git".to_owned();
    let of_anybody = [
        format!("http://{denied}/r.git"),
        format!("http://{closing}/r.git"),
        closed.clone(),
        other.url("absent"),
        "http://no-such-host.invalid/r.git".to_owned(),
        format!("http://{redirects}/r.git"),
    ];
    let of_pushers = [
        other.url("private"),
        tls.url("private"),
        "git@127.0.0.2:r.git".to_owned(),
    ];
    let told = |message: &str, url: &str| message.replace(url, "URL");
    let mut messages = Vec::new();
    for url in of_anybody.iter().chain(&of_pushers) {
        let modules = format!("[submodule \"m\"]\n\tpath = m\n\turl = {url}\n");
        let changes = [
            Change::File(".gitmodules", modules.as_bytes()),
            Change::Submodule("m", "1111111111111111111111111111111111111111"),
        ];
        world.repo.commit_changes("main", &changes).unwrap();
        world.look().await;
        let failure = world.status().refs[0].failure.clone().unwrap();
        assert_eq!(
            failure.reason, "SourceUnreachable",
            "{url}: {}",
            failure.message
        );
        messages.push(told(&failure.message, url));
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:#?}");

    let mut messages = Vec::new();
    for url in &of_anybody {
        world.repository.spec.url.clone_from(url);
        world.look().await;
        let [status, reason, message] = world.condition("Synced");
        assert_eq!(
            (status, reason),
            ("False", "SourceUnreachable"),
            "{url}: {message}"
        );
        messages.push(told(message, url));
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:#?}");
    assert_eq!(arrived.load(Ordering::SeqCst), 0, "it was connected to");
}
