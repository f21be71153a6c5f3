//! The cache of lists of versions.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tool_versions::{
    Kind, Mirror, Source, Tool,
    releases::{
        list_cache::{Known, known},
        mirror::{ListKind, Location},
    },
};

use super::{
    rules,
    server::{Server, answer, ok},
};
use crate::fails;

/// A server with one more version at each request, and with failures.
struct World {
    server: Server,
    /// 0: healthy; 1: 503; 2: an HTML page; 3: 404; 4: always 304.
    mode: Arc<AtomicUsize>,
    directory: tempfile::TempDir,
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

impl World {
    async fn new() -> Self {
        let mode = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&mode);
        let server = Server::start(move |request, count| match shared.load(Ordering::SeqCst) {
            1 => answer("503 Away\nContent-Length: 0", b""),
            2 => ok("Content-Type: text/html", b"<html>"),
            3 => answer("404 Not Found\nContent-Length: 0", b""),
            4 => {
                assert!(
                    request.header("if-none-match").is_none()
                        || request.header("if-none-match") == Some("\"t\"")
                );
                answer("304 Not Modified", b"")
            }
            _ => ok(
                "ETag: \"t\"",
                format!("{{\"versions\":[{{\"id\":\"1.{count}.0\"}}]}}").as_bytes(),
            ),
        })
        .await;
        Self {
            server,
            mode,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    async fn known(&self, seconds: u64) -> tool_versions::Result<Known> {
        known(&self.source(), &self.cache(), at(seconds)).await
    }

    fn source(&self) -> Source {
        let mut mirror = Mirror::below(Tool::OpenTofu, Location::Url(self.server.url("")));
        (mirror.list, mirror.list_kind) = (
            Location::Url(self.server.url("/api.json")),
            ListKind::OpenTofu,
        );
        Source::new(mirror, rules()).unwrap()
    }

    fn cache(&self) -> std::path::PathBuf {
        self.directory.path().join("lists")
    }

    fn asked(&self) -> usize {
        self.server.seen().len()
    }

    fn set(&self, mode: usize) {
        self.mode.store(mode, Ordering::SeqCst);
    }
}

fn newest(known: &Known) -> String {
    known.versions[0].to_string()
}

#[tokio::test]
async fn list_is_fresh_for_an_hour() {
    let world = World::new().await;
    let first = world.known(0).await.unwrap();
    assert_eq!(
        (newest(&first).as_str(), first.age, first.stale.clone()),
        ("1.0.0", Duration::ZERO, None)
    );
    let second = world.known(3599).await.unwrap();
    assert_eq!(
        (newest(&second).as_str(), second.age, second.stale),
        ("1.0.0", Duration::from_secs(3599), None)
    );
    assert_eq!(world.asked(), 1);
    let third = world.known(3600).await.unwrap();
    assert_eq!(
        (newest(&third).as_str(), third.age),
        ("1.1.0", Duration::ZERO)
    );
    assert_eq!(
        world.server.seen()[1].header("if-none-match"),
        Some("\"t\"")
    );
    let left: Vec<_> = fs::read_dir(world.cache())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["opentofu.json"]);
}

#[tokio::test]
async fn not_modified_makes_a_list_fresh_again() {
    let world = World::new().await;
    world.known(0).await.unwrap();
    world.set(4);
    let again = world.known(4000).await.unwrap();
    assert_eq!(
        (newest(&again).as_str(), again.age, again.stale),
        ("1.0.0", Duration::ZERO, None)
    );
    let more = world.known(7000).await.unwrap();
    assert_eq!((more.age, world.asked()), (Duration::from_secs(3000), 2));
}

#[tokio::test]
async fn stale_list_serves_when_the_server_fails() {
    let world = World::new().await;
    world.known(0).await.unwrap();
    for (day, says) in [(1, "503"), (2, "page of HTML")] {
        world.set(day);
        let old = world.known(90_000).await.unwrap();
        assert_eq!(
            (newest(&old).as_str(), old.age),
            ("1.0.0", Duration::from_secs(90_000))
        );
        assert!(old.stale.as_deref().unwrap().contains(says), "{old:?}");
    }
    // A stale list does not hide a wrong address.
    world.set(3);
    fails(
        world.known(90_000).await,
        Kind::Configuration,
        "there is no list of versions of OpenTofu at",
    );
    world.set(0);
    assert_eq!(world.known(90_000).await.unwrap().stale, None);
}

#[tokio::test]
async fn without_a_list_the_servers_error_is_returned() {
    let world = World::new().await;
    for (day, kind) in [
        (1, Kind::Unavailable),
        (2, Kind::Unavailable),
        (3, Kind::Configuration),
        (4, Kind::Integrity),
    ] {
        world.set(day);
        fails(world.known(0).await, kind, "");
    }
}

#[tokio::test]
async fn unusable_cache_files_are_replaced() {
    let world = World::new().await;
    fs::create_dir_all(world.cache()).unwrap();
    let path = world.cache().join("opentofu.json");
    let from = world.server.url("/api.json");
    let at_time = |from: &str, fetched: u64, versions: &str| {
        format!(
            "{{\"from\":\"{from}\",\"etag\":null,\"fetched\":{fetched},\"versions\":{versions}}}"
        )
    };
    let other = |from: &str, versions: &str| at_time(from, 1_000_000, versions);
    let bad = [
        String::new(),
        "{".into(),
        "[]".into(),
        "\0\0\0\0".into(),
        other(&from, "[]"),
        other(&from, "[\"x\"]"),
        other(&from, "7"),
        other("https://elsewhere.example.org/api.json", "[\"9.9.9\"]"),
        at_time(&from, 1_000_001, "[\"9.9.9\"]"),
    ];
    for (count, bad) in bad.iter().enumerate() {
        fs::write(&path, bad).unwrap();
        assert_eq!(
            newest(&world.known(0).await.unwrap()),
            format!("1.{count}.0"),
            "{bad}"
        );
    }
    fs::write(&path, other(&from, "[\"9.9.9\", \"x\"]")).unwrap();
    assert_eq!(newest(&world.known(0).await.unwrap()), "9.9.9");
    // A directory in place of the file.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(world.known(0).await.is_ok());
    assert_eq!(fs::read_dir(world.cache()).unwrap().count(), 1);
    // The directory cannot be made.
    fs::remove_dir_all(world.cache()).unwrap();
    fs::write(world.cache(), b"a file").unwrap();
    assert!(world.known(0).await.is_ok());
}

#[tokio::test]
async fn concurrent_requests_leave_a_valid_list() {
    let world = World::new().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (source, cache) = (world.source(), world.cache());
        tasks.spawn(async move { known(&source, &cache, at(0)).await });
    }
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
    let asked = world.asked();
    let cached = world.known(1).await.unwrap();
    assert_eq!((cached.stale, world.asked()), (None, asked));
}

#[tokio::test]
async fn list_of_a_directory_is_not_cached() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("terraform/1.9.8")).unwrap();
    let mirror = Mirror::below(Tool::Terraform, Location::File(directory.path().to_owned()));
    let source = Source::new(mirror, rules()).unwrap();
    let lists: &Path = &directory.path().join("lists");
    assert_eq!(
        newest(&known(&source, lists, at(0)).await.unwrap()),
        "1.9.8"
    );
    fs::create_dir_all(directory.path().join("terraform/1.10.0")).unwrap();
    let seen = known(&source, lists, at(1)).await.unwrap();
    assert_eq!(
        (newest(&seen).as_str(), seen.age, seen.stale),
        ("1.10.0", Duration::ZERO, None)
    );
    assert!(!lists.exists());
}
