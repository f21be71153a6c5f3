//! Programs on this machine, without a cluster: local mode, against the bare tool in the same folder; and the tool cache, against `curl`,
//! `sha256sum` and `unzip` of the same file from the same server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tool_versions::install::{Ask, Keys, Origin, PATIENCE};
use tool_versions::releases::http::Rules;
use tool_versions::releases::mirror::{ListKind, Location};
use tool_versions::{
    Channel, Defaults, Installer, Limits, Mirror as Source, Platform, Requested, Store, Tool,
    Verification, decide,
};

use super::stored::need;
use super::table::{Limit, Table, Unit};
use harness::cluster::command::run;
use harness::cluster::gobuild::Toolset;
use harness::cluster::images::{self, Profile};
use releases::{Key, Mirror, Release, Tree};

/// Permitted overhead of local mode in seconds, if 5 % would be less.
const ADDED: f64 = 0.1;

/// Stacks by name. The variable is written each time, so that there is always a change.
const STACKS: [(&str, &str); 2] = [
    (
        "tiny",
        "variable \"n\" {}\nresource \"terraform_data\" \"a\" {\n  input = var.n\n}\n",
    ),
    (
        "3 s",
        "variable \"n\" {}\nresource \"terraform_data\" \"a\" {\n  input            = var.n\n  triggers_replace = var.n\n  \
         provisioner \"local-exec\" {\n    command = \"sleep 3\"\n  }\n}\n",
    ),
];

/// The folder that the bare tool and local mode use alternately.
struct Folder {
    agent: PathBuf,
    dir: tempfile::TempDir,
    turn: usize,
}

/// Measures local mode. The first repetition is a warm-up: it fills caches.
pub(super) fn local(times: usize, table: &mut Table) -> Result<()> {
    for (stack, code) in STACKS {
        let mut folder = Folder::new(code)?;
        let of = |figure: &str| format!("local mode, {stack} stack: {figure}");
        let (bare, adds) = (
            of("bare tool"),
            [of("adds"), of("adds to a script that shows the plan")],
        );
        let ours = of("runner-agent local");
        for n in 0..=times {
            let script = folder.time(|folder| folder.bare(false))?;
            let local = folder
                .time(|folder| folder.run(&folder.agent, &["local", "apply", "--auto-approve"]))?;
            let shown = folder.time(|folder| folder.bare(true))?;
            if n == 0 {
                continue;
            }
            table.seconds(&bare, script);
            table.seconds(&of("bare tool that shows the plan"), shown);
            table.seconds(&ours, local);
            table.sample(
                &of("against the bare tool"),
                Unit::Percent,
                local.as_secs_f64() / script.as_secs_f64(),
            );
            for (adds, theirs) in adds.iter().zip([script, shown]) {
                table.sample(
                    adds,
                    Unit::Millis,
                    local.as_secs_f64() - theirs.as_secs_f64(),
                );
            }
        }
        for adds in &adds {
            let five_percent = 0.05 * (table.median(&ours) - table.median(adds));
            table.limit(adds, Limit::Median(ADDED.max(five_percent)));
        }
        table.close();
    }
    Ok(())
}

impl Folder {
    fn new(code: &str) -> Result<Self> {
        let agent = images::programs(&["runner-agent"], Profile::Dist)?.remove(0);
        let dir = tempfile::tempdir()?;
        Toolset::ensure(&["tofu"])?.link_into(&dir.path().join("bin"))?;
        fs::create_dir(dir.path().join("stack"))?;
        fs::write(dir.path().join("stack/main.tf"), code)?;
        Ok(Self {
            agent,
            dir,
            turn: 0,
        })
    }

    /// Times one turn, each with another value of the variable.
    fn time(&mut self, run: impl FnOnce(&Self) -> Result<()>) -> Result<Duration> {
        self.turn += 1;
        fs::write(
            self.stack().join("n.auto.tfvars"),
            format!("n = {}\n", self.turn),
        )?;
        let begun = Instant::now();
        run(self)?;
        let took = begun.elapsed();
        let state = fs::read_to_string(self.stack().join("terraform.tfstate"))
            .context("nothing was applied")?;
        ensure!(
            state.contains(&format!("\"value\":{},", self.turn)),
            "turn {} was not applied:\n{state}",
            self.turn
        );
        Ok(took)
    }

    fn stack(&self) -> PathBuf {
        self.dir.path().join("stack")
    }

    fn bare(&self, shows: bool) -> Result<()> {
        let show = if shows {
            "tofu show -json plan.bin > plan.json; tofu show -no-color plan.bin;"
        } else {
            ""
        };
        let script = format!(
            "tofu init -input=false -no-color; tofu plan -input=false -no-color -out=plan.bin; {show} \
             tofu apply -input=false -no-color plan.bin; rm -f plan.bin plan.json"
        );
        self.run(Path::new("/bin/sh"), &["-e", "-c", &script])
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.stack())
            .env_clear();
        command.env(
            "PATH",
            format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display()),
        );
        run(command
            .env("HOME", self.dir.path())
            .env("CHECKPOINT_DISABLE", "1"))
        .map(drop)
    }
}

/// Measures the tool cache in this process: hashing and inflating are optimised in every profile.
pub(super) async fn tools(times: usize, table: &mut Table) -> Result<()> {
    need("curl")?;
    let unzip = Command::new("unzip")
        .arg("-v")
        .stdout(Stdio::null())
        .status();
    ensure!(
        unzip.is_ok_and(|status| status.success()),
        "there is no unzip: apt-get install unzip"
    );
    let dir = tempfile::tempdir()?;
    let tools = Toolset::ensure(&["tofu"])?;
    let release = Release::new(Tool::OpenTofu, tools.version("tofu")?, tools.path("tofu")?)?;
    let tree = Tree::create(&dir.path().join("mirror"), Key::test()?)?;
    tree.add(&release)?;
    let mirror = Mirror::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), tree.root()).await?;
    let (stack, version) = (dir.path().join("stack"), release.version.to_string());
    fs::create_dir(&stack)?;
    fs::write(
        stack.join("main.tf"),
        "terraform {\n  required_version = \">= 1.6\"\n}\n",
    )?;

    let (by_hand, cache) = (dir.path().join("by-hand"), dir.path().join("cache"));
    let name = format!(
        "OpenTofu {version}, {} MiB",
        fs::metadata(tools.path("tofu")?)?.len() >> 20
    );
    let script = format!(
        "curl -fsS -o archive.zip {0}/{1} && curl -fsS -o sums {0}/{2}/{3} && grep -F ' {4}' sums | sed 's|{4}|archive.zip|' | sha256sum -c --quiet && unzip -q -o archive.zip tofu",
        mirror.base(),
        release.path(),
        release.directory(),
        release.sums(),
        release.archive()
    );
    for n in 0..=times {
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
                tokio::task::block_in_place(|| run(command))?;
            } else {
                let got = installer(&cache, &mirror, &tree)
                    .get(Tool::OpenTofu, &release.version, &mut |_, _| {})
                    .await?;
                ensure!(
                    matches!(got.origin, Origin::Installed { .. }),
                    "it was there already"
                );
            }
            took[which] = begun.elapsed();
        }
        if n > 0 {
            table.seconds(&format!("{name}: curl, sha256sum and unzip"), took[0]);
            table.seconds(
                &format!("{name}: got, signature and sum checked, installed, on disk"),
                took[1],
            );
            table.ratio("  ratio", took[1], took[0]);
        }
    }
    table.limit("  ratio", Limit::Median(1.2));

    for (what, file) in [
        ("an exact version", format!("{version}\n")),
        (
            "a constraint, by a list that is at hand",
            "~> 1.10\n".to_owned(),
        ),
    ] {
        let figure = format!("{name}, verified before: {what}, decided, chosen and verified");
        fs::write(stack.join(".opentofu-version"), file)?;
        for n in 0..=times.max(10) {
            let begun = Instant::now();
            let installer = installer(&cache, &mirror, &tree);
            let decision = decide(&Requested::default(), &stack, &stack, &Defaults::default())?;
            let chosen = installer.choose(&decision, &[]).await?;
            let got = installer
                .get(decision.tool, &chosen.version, &mut |_, _| {})
                .await?;
            let took = begun.elapsed();
            ensure!(got.origin == Origin::Cached, "it was not there");
            if n > 0 {
                table.millis(&figure, took);
            }
        }
        table.limit(&figure, Limit::Max(0.02));
    }
    // The cost without the record of verified files, as in a copied cache.
    run(Command::new("find")
        .arg(&cache)
        .args(["-name", "seen.json", "-delete"]))
    .context("cannot forget")?;
    let begun = Instant::now();
    installer(&cache, &mirror, &tree)
        .get(Tool::OpenTofu, &release.version, &mut |_, _| {})
        .await?;
    table.millis(
        &format!("{name}, not verified before: read once"),
        begun.elapsed(),
    );
    Ok(())
}

fn installer(cache: &Path, mirror: &Mirror, tree: &Tree) -> Installer {
    let mut source = Source::below(Tool::OpenTofu, Location::Url(mirror.base()));
    (source.list, source.list_kind) = (source.base.join("tofu/api.json"), ListKind::OpenTofu);
    let key = tree.key();
    let keys = Keys::Own {
        armored: key.armored().to_owned(),
        fingerprints: vec![key.fingerprint().clone()],
    };
    let platform = Platform::here();
    Installer {
        store: Store::at(cache.join("tools"), platform.clone()),
        lists: cache.join("lists"),
        channels: vec![Channel {
            mirror: source,
            rules: Rules {
                proxies: false,
                ..Rules::default()
            },
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
