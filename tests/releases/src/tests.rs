//! Reads these releases with the code that installs real ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use tool_versions::releases::http::{Auth, Rules};
use tool_versions::releases::mirror::{Assets, ListKind, Location};
use tool_versions::releases::source::List;
use tool_versions::{Digest, Kind, Limits, Result, Source, Sums, Tool, Version, archive};

use super::*;
use servers::auth::Access;

const LOOPBACK: &str = "127.0.0.1:0";

/// A directory with one release of each tool, with fake programs.
struct Fixture {
    dir: tempfile::TempDir,
    tree: Tree,
    releases: Vec<Release>,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    // Hard to compress, so that the download can be cut.
    let noise: Vec<u8> = (0..20_000_u32).flat_map(|number| Digest::of(&number.to_le_bytes()).as_bytes()[..10].to_vec()).collect();
    fs::write(&program, noise).unwrap();
    let tree = Tree::packing_into(&dir.path().join("tree"), Key::test().unwrap(), &dir.path().join("packed")).unwrap();
    let known =
        [(Tool::OpenTofu, "1.9.4"), (Tool::OpenTofu, "1.12.6"), (Tool::Terraform, "1.8.5"), (Tool::Terragrunt, "0.93.10")];
    let releases: Vec<_> = known.iter().map(|(tool, version)| Release::scripted(*tool, version, &program).unwrap()).collect();
    for release in &releases {
        tree.add(release).unwrap();
    }
    Fixture { dir, tree, releases }
}

impl Fixture {
    async fn serve(&self) -> Mirror {
        Mirror::start(LOOPBACK.parse().unwrap(), self.tree.root()).await.unwrap()
    }

    fn of(&self, tool: Tool) -> &Release {
        self.releases.iter().find(|release| release.tool == tool).unwrap()
    }

    fn on_disk(&self, tool: Tool) -> Source {
        source(tool_versions::Mirror::below(tool, Location::File(self.tree.root().to_owned())))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn rules() -> Rules {
    Rules { backoff: Duration::from_millis(5), proxies: false, ..Rules::default() }
}

fn source(mirror: tool_versions::Mirror) -> Source {
    Source::new(mirror, rules()).unwrap()
}

fn below(mirror: &Mirror, tool: Tool) -> tool_versions::Mirror {
    let said = mirror_settings(tool, mirror, &Key::test().unwrap());
    let location = |field: &str| Location::read("the address", said[field].as_str().unwrap()).unwrap();
    let list_kind = match tool {
        Tool::OpenTofu => ListKind::OpenTofu,
        Tool::Terraform => ListKind::HashiCorp,
        Tool::Terragrunt => ListKind::GitHub,
    };
    let authority = said["ca"].as_str().map(str::to_owned);
    tool_versions::Mirror {
        list: location("listUrl"),
        list_kind,
        authority,
        ..tool_versions::Mirror::below(tool, location("url"))
    }
}

fn assets(source: &Source, release: &Release) -> Assets {
    source.mirror().assets(&release.version, &release.platform)
}

/// Downloads and verifies a release like the installer; returns the digest of its program.
async fn get(source: &Source, release: &Release, key: &Key, to: &Path) -> Result<Digest> {
    let assets = assets(source, release);
    let what = format!("{} {}", release.tool, release.version);
    let sums = source.small(&assets.sums.location, &what, 1 << 20).await?;
    for signature in &assets.signatures {
        let signature = source.small(&signature.location, &what, 1 << 16).await?;
        key.ring().unwrap().verify(&assets.sums.name, &sums, &signature, SystemTime::now())?;
    }
    let mut file = tokio::fs::File::options().create(true).truncate(false).read(true).write(true).open(to).await.unwrap();
    source.download(&assets.archive, &what, &mut file, 100 << 20, &mut |_, _| {}).await?;
    let mut file = file.into_std().await;
    let found = Digest::read(fs::File::open(to).unwrap()).unwrap();
    Sums::parse(&sums)?.check(&assets.archive.name, &found)?;
    Ok(archive::take(&assets.archive.name, &mut file, &assets.entry, &Limits::default(), &mut std::io::sink())?.digest)
}

async fn list(source: &Source) -> Vec<Version> {
    match source.list(None).await.unwrap() {
        List::New { versions, .. } => versions,
        List::NotModified => panic!("nobody asked whether it is another"),
    }
}

#[tokio::test]
async fn the_directory_and_the_server_are_mirrors_of_every_tool() {
    let fixture = fixture();
    let (plain, safe) = (fixture.serve().await, Mirror::start_tls(LOOPBACK.parse().unwrap(), fixture.tree.root()).await.unwrap());
    for release in &fixture.releases {
        let published = fixture.releases.iter().filter(|other| other.tool == release.tool);
        let mut newest: Vec<_> = published.map(|other| other.version.clone()).collect();
        newest.sort_by(|one, other| other.cmp(one));
        let served = [&plain, &safe].map(|mirror| source(below(mirror, release.tool)));
        for source in [fixture.on_disk(release.tool)].iter().chain(&served) {
            assert_eq!(list(source).await, newest, "{:?}", source.mirror());
            let digest = get(source, release, fixture.tree.key(), &fixture.path("got")).await;
            assert_eq!(digest.unwrap(), release.digest().unwrap(), "{:?}", source.mirror());
        }
        assert_eq!((plain.downloads(release), safe.downloads(release)), (1, 1));
    }
    let digests: std::collections::BTreeSet<_> = fixture.releases.iter().map(|release| release.digest().unwrap()).collect();
    assert_eq!(digests.len(), fixture.releases.len(), "each version has bytes of its own");
    let stranger = source(tool_versions::Mirror { authority: None, ..below(&safe, Tool::Terraform) });
    assert!(stranger.list(None).await.is_err(), "the authority is nobody's");
}

#[tokio::test]
async fn it_fails_and_refuses_as_it_is_told() {
    let fixture = fixture();
    let mirror = fixture.serve().await;
    let (release, to) = (fixture.of(Tool::OpenTofu), fixture.path("got"));
    let with = async |auth| {
        let source = source(tool_versions::Mirror { auth, ..below(&mirror, Tool::OpenTofu) });
        get(&source, release, fixture.tree.key(), &to).await.map(drop).map_err(|error| error.kind)
    };
    mirror.fail(release, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(with(Auth::None).await, Err(Kind::Unavailable));
    mirror.heal(release);
    assert_eq!(with(Auth::None).await, Ok(()));
    mirror.set_access(Access::basic("me", "secret"));
    let basic = |password: &str| Auth::Basic { user: "me".to_owned(), password: password.to_owned() };
    assert_eq!(with(basic("secret")).await, Ok(()));
    for auth in [Auth::None, basic("other")] {
        assert_eq!(with(auth).await, Err(Kind::Configuration));
    }
}

#[test]
fn archives_are_packed_once() {
    let fixture = fixture();
    let release = fixture.of(Tool::OpenTofu);
    let packed = || pack::packed(release, &fixture.path("packed")).unwrap();
    fs::write(packed(), "spoiled").unwrap();
    fixture.tree.add(release).unwrap();
    assert_eq!(fs::read(fixture.tree.root().join(release.path())).unwrap(), b"spoiled");
    fs::write(fixture.tree.root().join(release.path()), "spoiled again").unwrap();
    assert_eq!(fs::read(packed()).unwrap(), b"spoiled", "what is served is a copy");
    fs::write(fixture.path("program"), "another program").unwrap();
    assert_ne!(fs::read(packed()).unwrap(), b"spoiled");
}

#[test]
fn archives_of_last_week_are_forgotten() {
    let fixture = fixture();
    let packed = fixture.path("packed");
    let kept = pack::packed(fixture.of(Tool::Terraform), &packed).unwrap();
    let old = pack::packed(fixture.of(Tool::OpenTofu), &packed).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 24 * 60 * 60);
    fs::File::open(old.parent().unwrap()).unwrap().set_modified(long_ago).unwrap();
    pack::forget_old(&packed).unwrap();
    assert!(kept.exists() && !old.exists());
    pack::forget_old(&fixture.path("nothing")).unwrap();
}
