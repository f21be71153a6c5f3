//! The choice of a version, with and without a list.

use std::time::{Duration, SystemTime};

use tool_versions::{Decision, Defaults, Installer, Kind, Requested, Tool, Version, decide};

use super::{
    server::answer,
    version,
    world::{World, list},
};

/// The decision for a request without code.
fn asked(text: &str) -> Decision {
    let dir = tempfile::tempdir().unwrap();
    let requested = Requested {
        tool: Some(Tool::OpenTofu),
        version: Some(text.to_owned()),
        origin: "the test".to_owned(),
    };
    decide(&requested, dir.path(), dir.path(), &Defaults::default()).unwrap()
}

async fn chosen(installer: &Installer, text: &str, local: &[&str]) -> (String, String) {
    let local: Vec<Version> = local.iter().map(|text| version(text)).collect();
    let chosen = installer.choose(&asked(text), &local).await.unwrap();
    (
        chosen.version.to_string(),
        chosen.remark.unwrap_or_default(),
    )
}

#[tokio::test]
async fn list_decides_over_local_versions() {
    let world = World::new().await;
    let installer = world.installer();
    let none = String::new();
    assert_eq!(
        chosen(&installer, "latest", &["1.9.4"]).await,
        ("1.10.6".into(), none.clone())
    );
    assert_eq!(
        chosen(&installer, "~> 1.9.0", &["1.9.3"]).await,
        ("1.9.4".into(), none.clone())
    );
    assert_eq!(
        chosen(&installer, "latest:^1\\.11.*rc", &[]).await,
        ("1.11.0-rc1".into(), none.clone())
    );
    // A version that no list has may be local.
    assert_eq!(
        chosen(&installer, "~> 0.0.1", &["0.0.1"]).await,
        ("0.0.1".into(), none.clone())
    );
    assert_eq!(world.asked("api.json"), 1, "the list is cached");
    let requests = world.server.seen().len();
    assert_eq!(chosen(&installer, "1.5", &[]).await, ("1.5.0".into(), none));
    assert_eq!(
        world.server.seen().len(),
        requests,
        "an exact version needs no list"
    );
    let error = installer.choose(&asked("~> 7.0"), &[]).await.unwrap_err();
    assert_eq!(error.kind, Kind::Configuration);
    assert!(
        error.text.contains("no OpenTofu `~> 7.0` (from the test)")
            && error.text.contains("1.10.6"),
        "{error}"
    );
}

#[tokio::test]
async fn without_a_list_local_versions_serve_with_a_remark() {
    let world = World::new().await;
    world.set("/tofu/api.json", answer("503 Away\nContent-Length: 0", b""));
    let installer = world.installer();
    let (version, remark) = chosen(&installer, "~> 1.9", &["1.9.4", "1.9.7", "1.8.0"]).await;
    assert_eq!(version, "1.9.7");
    assert!(
        remark.contains("the newest at hand") && remark.contains("503"),
        "{remark}"
    );
    let error = installer
        .choose(&asked("~> 3.0"), &["1.9.4".parse().unwrap()])
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "a later try may have a list");
    assert!(
        error.text.contains("no OpenTofu `~> 3.0`") && error.text.contains("503"),
        "{error}"
    );
    // Installed versions are local as well.
    world.get().await.unwrap();
    assert_eq!(chosen(&installer, "latest", &["1.9.4"]).await.0, "1.10.6");
    // Local versions do not hide a wrong address.
    world.set(
        "/tofu/api.json",
        answer("404 Not Found\nContent-Length: 0", b""),
    );
    assert_eq!(
        installer
            .choose(&asked("latest"), &[])
            .await
            .unwrap_err()
            .kind,
        Kind::Configuration
    );
}

#[tokio::test]
async fn stale_list_serves_with_its_age() {
    let world = World::new().await;
    world.set("/tofu/api.json", list(&["1.9.4"]));
    let installer = world.installer();
    assert_eq!(chosen(&installer, "latest", &[]).await.0, "1.9.4");
    let path = world.root().join("lists/opentofu.json");
    let three_hours_ago = SystemTime::now() - Duration::from_secs(3 * 3600 + 60);
    let seconds = three_hours_ago
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let mut cached: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    cached["fetched"] = seconds.into();
    std::fs::write(&path, cached.to_string()).unwrap();
    world.set("/tofu/api.json", answer("503 Away\nContent-Length: 0", b""));
    let (version, remark) = chosen(&installer, "latest", &[]).await;
    assert_eq!(version, "1.9.4");
    assert!(
        remark.starts_with("by a list that is 3 h old: ") && remark.contains("503"),
        "{remark}"
    );
}

#[tokio::test]
async fn offline_only_local_versions_count() {
    let world = World::new().await;
    let mut installer = world.installer();
    installer.offline = true;
    let chosen = installer
        .choose(&asked("latest"), &["1.9.4".parse().unwrap()])
        .await
        .unwrap();
    assert_eq!(
        (chosen.version.to_string().as_str(), chosen.local),
        ("1.9.4", true)
    );
    let error = installer
        .choose(&asked("~> 3.0"), &["1.9.4".parse().unwrap()])
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::Configuration);
    assert!(
        error.text.contains("offline") && error.text.contains("1.9.4"),
        "{error}"
    );
    assert_eq!(world.server.seen().len(), 0);
}
