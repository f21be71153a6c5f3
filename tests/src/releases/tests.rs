//! What is published here, read by those who will read what is published elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tool_versions::releases::http::{Auth, Rules};
use tool_versions::releases::mirror::{Assets, ListKind, Location};
use tool_versions::releases::source::List;
use tool_versions::{Digest, Kind, Limits, Platform, Result, Source, Sums, Tool, archive};

use super::*;
use crate::servers::auth::Access;

const LOOPBACK: &str = "127.0.0.1:0";

/// A directory with one release of each tool, of programs that only look like ones.
struct Fixture {
    dir: tempfile::TempDir,
    tree: Tree,
    releases: Vec<Release>,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    // It does not pack well, so that there is something to cut.
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
    let second = Duration::from_secs(1);
    Rules {
        connect: second,
        // What a test waits for, and what no busy machine keeps.
        silence: 4 * second,
        small: 120 * second,
        large: 120 * second,
        backoff: Duration::from_millis(5),
        proxies: false,
        ..Rules::default()
    }
}

fn source(mirror: tool_versions::Mirror) -> Source {
    Source::new(mirror, rules()).unwrap()
}

fn below(mirror: &Mirror, tool: Tool) -> tool_versions::Mirror {
    let mut below = tool_versions::Mirror::below(tool, Location::read("the base", &mirror.base()).unwrap());
    below.authority = mirror.authority().map(str::to_owned);
    below
}

fn assets(source: &Source, release: &Release) -> Assets {
    source.mirror().assets(&release.version, &release.platform)
}

/// Gets and proves a release as an installer does; the digest of its program.
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

async fn list(source: &Source) -> Vec<String> {
    match source.list(None).await.unwrap() {
        List::New { versions, .. } => versions.iter().map(ToString::to_string).collect(),
        List::NotModified => panic!("nobody asked whether it is another"),
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> Kind {
    result.unwrap_err().kind
}

#[tokio::test]
async fn the_directory_and_the_server_are_mirrors_of_every_tool() {
    let fixture = fixture();
    let (plain, safe) =
        (fixture.serve().await, Mirror::start_tls(LOOPBACK.parse().unwrap(), fixture.tree.root(), &["localhost"]));
    let safe = safe.await.unwrap();
    for release in &fixture.releases {
        let newest = if release.tool == Tool::OpenTofu { vec!["1.12.6", "1.9.4"] } else { vec![] };
        let newest: Vec<_> =
            if newest.is_empty() { vec![release.version.to_string()] } else { newest.iter().map(|v| (*v).to_owned()).collect() };
        for source in [fixture.on_disk(release.tool), source(below(&plain, release.tool)), source(below(&safe, release.tool))] {
            assert_eq!(list(&source).await, newest, "{:?}", source.mirror());
            let digest = get(&source, release, fixture.tree.key(), &fixture.path("got")).await;
            assert_eq!(digest.unwrap(), release.digest().unwrap(), "{:?}", source.mirror());
        }
        assert_eq!((plain.downloads(release), safe.downloads(release)), (1, 1));
    }
    let digests: std::collections::BTreeSet<_> = fixture.releases.iter().map(|release| release.digest().unwrap()).collect();
    assert_eq!(digests.len(), fixture.releases.len(), "each version has bytes of its own");
    assert!(list(&source(tool_versions::Mirror { authority: None, ..below(&plain, Tool::Terraform) })).await.len() == 1);
    let stranger = source(tool_versions::Mirror { authority: None, ..below(&safe, Tool::Terraform) });
    assert!(stranger.list(None).await.is_err(), "the authority is nobody's");
}

#[tokio::test]
async fn lists_are_there_in_every_form() {
    let fixture = fixture();
    let mirror = fixture.serve().await;
    let of = |tool, path: &str, list_kind| {
        let list = Location::Url(format!("{}/{path}", mirror.base()));
        source(tool_versions::Mirror { list, list_kind, ..below(&mirror, tool) })
    };
    let opentofu = of(Tool::OpenTofu, "tofu/api.json", ListKind::OpenTofu);
    assert_eq!(list(&opentofu).await, ["1.12.6", "1.9.4"]);
    assert_eq!(list(&of(Tool::Terraform, "terraform/index.json", ListKind::HashiCorp)).await, ["1.8.5"]);
    assert_eq!(list(&of(Tool::Terragrunt, "repos/gruntwork-io/terragrunt/releases", ListKind::GitHub)).await, ["0.93.10"]);
    assert_eq!(list(&of(Tool::OpenTofu, "repos/opentofu/opentofu/releases", ListKind::GitHub)).await, ["1.12.6", "1.9.4"]);
    assert_eq!(lists::github(fixture.tree.root(), "opentofu/opentofu", 2, 1).unwrap()[0]["tag_name"], "v1.9.4");
    assert_eq!(lists::github(fixture.tree.root(), "opentofu/opentofu", 3, 1).unwrap(), serde_json::json!([]));

    let List::New { etag, .. } = opentofu.list(None).await.unwrap() else { panic!("a list") };
    assert_eq!(opentofu.list(etag.as_deref()).await.unwrap(), List::NotModified);
    fixture.tree.add(&Release::scripted(Tool::OpenTofu, "1.13.0", &fixture.path("program")).unwrap()).unwrap();
    assert_eq!(list(&opentofu).await, ["1.13.0", "1.12.6", "1.9.4"]);
    assert!(matches!(opentofu.list(etag.as_deref()).await.unwrap(), List::New { .. }));

    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(fixture.tree.root().join("terraform/index.json")).unwrap()).unwrap();
    let version = &index["versions"]["1.8.5"];
    assert_eq!(version["builds"][0]["filename"], fixture.of(Tool::Terraform).archive());
    assert_eq!(version["builds"][0]["os"], Platform::here().os);
    assert_eq!(version["shasums_signature"], "terraform_1.8.5_SHA256SUMS.sig");
}

#[tokio::test]
async fn several_platforms_are_in_one_file_of_sums() {
    let fixture = fixture();
    let other = fixture.of(Tool::Terraform).clone().on("plan9", "mips");
    fixture.tree.add(&other).unwrap();
    let source = fixture.on_disk(Tool::Terraform);
    for release in [&other, fixture.of(Tool::Terraform)] {
        get(&source, release, fixture.tree.key(), &fixture.path("got")).await.unwrap();
    }
    let sums = fs::read(fixture.tree.root().join(other.directory()).join(other.sums())).unwrap();
    assert_eq!(Sums::parse(&sums).unwrap().names().count(), 2);
}

#[tokio::test]
async fn what_is_forged_is_found() {
    let fixture = fixture();
    let (release, to) = (fixture.of(Tool::Terraform), fixture.path("got"));
    let mirror = fixture.serve().await;
    let source = source(below(&mirror, Tool::Terraform));
    let directory = format!("/{}", release.directory());

    assert_eq!(kind(get(&source, release, &Key::of(2).unwrap(), &to).await), Kind::Integrity, "another's key");
    let path = format!("/{}", release.path());
    mirror.trouble(&path, Trouble::Replaced(Bytes::from_static(b"PK\x03\x04 nothing")));
    assert_eq!(kind(get(&source, release, fixture.tree.key(), &to).await), Kind::Integrity, "another archive");
    mirror.heal(&path);
    let sums = format!("{directory}/{}", release.sums());
    mirror.trouble(&sums, Trouble::Replaced(Bytes::from(format!("{}  {}\n", Digest::of(b"x"), release.archive()))));
    assert_eq!(kind(get(&source, release, fixture.tree.key(), &to).await), Kind::Integrity, "other sums");
    mirror.heal(&sums);
    assert!(get(&source, release, fixture.tree.key(), &to).await.is_ok());
}

#[tokio::test]
async fn it_misbehaves_as_it_is_told_and_is_well_afterwards() {
    let fixture = fixture();
    let (release, to) = (fixture.of(Tool::OpenTofu), fixture.path("got"));
    let mirror = fixture.serve().await;
    let other = fixture.serve().await;
    let source = source(below(&mirror, Tool::OpenTofu));
    let path = format!("/{}", release.path());
    let size = fs::metadata(fixture.tree.root().join(release.path())).unwrap().len();
    let got = async || {
        let before = mirror.downloads(release);
        let result = get(&source, release, fixture.tree.key(), &to).await;
        (result.map(|digest| digest == release.digest().unwrap()), mirror.downloads(release) - before)
    };

    let started = Instant::now();
    mirror.trouble_times(&path, 1, Trouble::too_many(1));
    assert_eq!(got().await, (Ok(true), 2));
    assert!(started.elapsed() >= Duration::from_secs(1), "it was asked to wait");

    mirror.trouble_times(&path, 2, Trouble::status(503));
    assert_eq!(got().await, (Ok(true), 3));

    mirror.trouble_times(&path, 1, Trouble::Cut(70_000));
    assert_eq!(got().await, (Ok(true), 2));
    let served: Vec<_> = mirror.served().into_iter().filter(|served| served.path == path).collect();
    let [.., cut, rest] = served.as_slice() else { panic!("{served:?}") };
    assert_eq!((cut.status, cut.bytes, cut.range.clone()), (Some(200), 70_000, None));
    assert_eq!((rest.status, rest.bytes), (Some(206), size - 70_000), "{rest:?}");
    assert_eq!(rest.range.as_deref(), Some("bytes=70000-"));

    mirror.trouble_times(&path, 1, Trouble::Drip { bytes: 50_000, every: Duration::from_millis(100) });
    let started = Instant::now();
    assert_eq!(got().await, (Ok(true), 1));
    assert!(started.elapsed() >= Duration::from_millis(300));

    mirror.trouble_times(&path, 1, Trouble::Redirect(other.base()));
    assert_eq!(got().await, (Ok(true), 1));
    assert_eq!(other.downloads(release), 1);

    mirror.trouble_times(&path, 1, Trouble::Hang);
    assert_eq!(got().await, (Ok(true), 2));

    mirror.trouble(&path, Trouble::Html);
    assert_eq!(got().await.0.map_err(|error| error.kind), Err(Kind::Unavailable));
    mirror.heal(&path);

    mirror.refuse().await;
    assert_eq!(got().await.0.map_err(|error| error.kind), Err(Kind::Unavailable));
    mirror.accept().await.unwrap();
    assert_eq!(got().await, (Ok(true), 1));
}

#[tokio::test]
async fn only_who_may_read_does() {
    let fixture = fixture();
    let mirror = fixture.serve().await;
    let release = fixture.of(Tool::OpenTofu);
    mirror.set_access(Access::basic("me", "secret"));
    let with = |auth| source(tool_versions::Mirror { auth, ..below(&mirror, Tool::OpenTofu) });
    let basic = |password: &str| Auth::Basic { user: "me".to_owned(), password: password.to_owned() };
    let to = fixture.path("got");
    assert!(get(&with(basic("secret")), release, fixture.tree.key(), &to).await.is_ok());
    for auth in [Auth::None, basic("other")] {
        assert_eq!(kind(get(&with(auth), release, fixture.tree.key(), &to).await), Kind::Configuration);
    }
    assert_eq!(mirror.served().iter().filter(|served| served.status == Some(401)).count(), 2);
}

#[tokio::test]
async fn nothing_else_is_served() {
    let fixture = fixture();
    let mirror = fixture.serve().await;
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build().unwrap();
    fs::write(fixture.path("secret"), "s").unwrap();
    for (path, status) in [("/", 200), ("/terraform/", 200), ("/terraform", 302), ("/nothing", 404), ("/%2e%2e/secret", 404)] {
        let response = client.get(format!("{}{path}", mirror.base())).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
    let archive = format!("{}/{}", mirror.base(), fixture.of(Tool::Terraform).path());
    let head = client.head(&archive).send().await.unwrap();
    assert_eq!(head.headers()["content-type"], "application/zip");
    assert!(head.headers()["etag"].to_str().unwrap().starts_with('"'));
    let stale = client.get(&archive).header("Range", "bytes=5-").header("If-Range", "\"old\"").send().await.unwrap();
    assert_eq!(stale.status().as_u16(), 200);
    let beyond = client.get(&archive).header("Range", "bytes=99999999-").send().await.unwrap();
    assert_eq!(beyond.status().as_u16(), 416);
    let same = client.get(&archive).header("If-None-Match", &head.headers()["etag"]).send().await.unwrap();
    assert_eq!(same.status().as_u16(), 304);
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
