//! The tool cache: the cost of a cached version for a run, and of a download, against `curl`, `sha256sum` and `unzip` of the same file from
//! the same server. Needs no cluster. Measured in this process: hashing and inflating are optimised in every profile.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tool_versions::install::{Ask, Keys, Origin, PATIENCE};
use tool_versions::releases::http::Rules;
use tool_versions::releases::mirror::{ListKind, Location};
use tool_versions::{
    Channel, Defaults, Installer, Limits, Mirror as Source, Platform, Requested, Store, Tool, Verification, decide,
};

use super::bundles::need;
use super::samples::{Samples, Unit};
use super::table::Table;
use harness::cluster::gobuild::Toolset;
use releases::{Key, Mirror, Release, Tree};

/// Bound for a cached version.
const CACHED: Duration = Duration::from_millis(20);
/// Bound for the ratio of an installation to the three programs.
const RATIO: f64 = 1.2;

pub(super) async fn measure(times: usize, table: &mut Table) -> Result<()> {
    need("curl")?;
    let unzip = Command::new("unzip").arg("-v").output();
    ensure!(unzip.is_ok_and(|output| output.status.success()), "there is no unzip: apt-get install unzip");
    let dir = tempfile::tempdir()?;
    let tools = Toolset::ensure(&["tofu"])?;
    let release = Release::new(Tool::OpenTofu, tools.version("tofu")?, tools.path("tofu")?)?;
    let tree = Tree::create(&dir.path().join("mirror"), Key::test()?)?;
    tree.add(&release)?;
    let mirror = Mirror::start(SocketAddr::from(([127, 0, 0, 1], 0)), tree.root()).await?;
    let (stack, version) = (dir.path().join("stack"), release.version.to_string());
    fs::create_dir(&stack)?;
    fs::write(stack.join("main.tf"), "terraform {\n  required_version = \">= 1.6\"\n}\n")?;

    let (mut ours, mut theirs, mut ratio) = (Samples::default(), Samples::default(), Samples::default());
    let script = format!(
        "curl -fsS -o archive.zip {0}/{1} && curl -fsS -o sums {0}/{2}/{3} && grep -F ' {4}' sums | sed 's|{4}|archive.zip|' | sha256sum -c --quiet && unzip -q -o archive.zip tofu",
        mirror.base(),
        release.path(),
        release.directory(),
        release.sums(),
        release.archive()
    );
    for n in 0..=times {
        let (by_hand, cache) = (dir.path().join("by-hand"), dir.path().join("cache"));
        for dir in [&by_hand, &cache] {
            let _ = fs::remove_dir_all(dir);
            fs::create_dir(dir)?;
        }
        // Alternating, so that neither always benefits from the other's page cache.
        let mut took = [Duration::ZERO; 2];
        for which in if n % 2 == 0 { [0, 1] } else { [1, 0] } {
            let begun = Instant::now();
            if which == 0 {
                let mut command = Command::new("sh");
                command.args(["-e", "-c", &script]).current_dir(&by_hand);
                let status = tokio::task::block_in_place(|| command.status())?;
                ensure!(status.success(), "{script}: {status}");
            } else {
                let got = installer(&cache, &mirror, &tree).get(Tool::OpenTofu, &release.version, &mut |_, _| {}).await?;
                ensure!(matches!(got.origin, Origin::Installed { .. }), "it was there already");
            }
            took[which] = begun.elapsed();
        }
        if n > 0 {
            theirs.seconds(took[0]);
            ours.seconds(took[1]);
            ratio.push(took[1].as_secs_f64() / took[0].as_secs_f64());
        }
    }
    let size = fs::metadata(tools.path("tofu")?)?.len() >> 20;
    let name = format!("OpenTofu {version}, {size} MiB");
    table.plain(&format!("{name}: curl, sha256sum and unzip"), theirs.spread(Unit::Seconds));
    table.plain(&format!("{name}: got, signature and sum checked, installed, on disk"), ours.spread(Unit::Seconds));
    let met = ratio.median() <= RATIO;
    table.bound("  ratio", ratio.spread(Unit::Ratio), &format!("at most {RATIO}"), met);

    let cache = dir.path().join("cache");
    for (what, file) in
        [("an exact version", format!("{version}\n")), ("a constraint, by a list that is at hand", "~> 1.10\n".to_owned())]
    {
        fs::write(stack.join(".opentofu-version"), file)?;
        let mut samples = Samples::default();
        for n in 0..=times.max(10) {
            let begun = Instant::now();
            let installer = installer(&cache, &mirror, &tree);
            let decision = decide(&Requested::default(), &stack, &stack, &Defaults::default())?;
            let chosen = installer.choose(&decision, &[]).await?;
            let got = installer.get(decision.tool, &chosen.version, &mut |_, _| {}).await?;
            let took = begun.elapsed();
            ensure!(got.origin == Origin::Cached, "it was not there");
            if n > 0 {
                samples.seconds(took);
            }
        }
        let met = samples.max() <= CACHED.as_secs_f64();
        let figure = format!("{name}, verified before: {what}, decided, chosen and verified");
        table.bound(&figure, samples.spread(Unit::Millis), "at most 20 ms", met);
    }
    // The cost without the record of verified files, as in a copied cache.
    let stamps: Vec<_> = walk(&cache, "seen.json");
    ensure!(!stamps.is_empty(), "nothing is remembered");
    stamps.iter().try_for_each(fs::remove_file).context("cannot forget")?;
    let begun = Instant::now();
    installer(&cache, &mirror, &tree).get(Tool::OpenTofu, &release.version, &mut |_, _| {}).await?;
    table.plain(&format!("{name}, not verified before: read once"), format!("{:.0} ms", begun.elapsed().as_secs_f64() * 1000.0));
    Ok(())
}

fn installer(cache: &Path, mirror: &Mirror, tree: &Tree) -> Installer {
    let mut source = Source::below(Tool::OpenTofu, Location::Url(mirror.base()));
    (source.list, source.list_kind) = (source.base.join("tofu/api.json"), ListKind::OpenTofu);
    let key = tree.key();
    let keys = Keys::Own { armored: key.armored().to_owned(), fingerprints: vec![key.fingerprint().clone()] };
    let platform = Platform::here();
    Installer {
        store: Store::at(cache.join("tools"), platform.clone()),
        lists: cache.join("lists"),
        channels: vec![Channel {
            mirror: source,
            rules: Rules { proxies: false, ..Rules::default() },
            verification: Verification::Signature(keys),
            refusal: None,
        }],
        platform,
        offline: false,
        limits: Limits::default(),
        ask: Ask::default(),
        patience: PATIENCE,
    }
}

/// Files of a name below a directory.
fn walk(dir: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(walk(&entry.path(), name));
        } else if entry.file_name() == name {
            found.push(entry.path());
        }
    }
    found
}
