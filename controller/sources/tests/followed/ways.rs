//! Two ways to one tree: a run's fetch and a layer's snapshot give what `git clone --depth=1 --recurse-submodules` gives.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Command,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use servers::local_git::LocalGit;
use source::Repository;

use super::{World, env};

/// Git without a person's settings.
fn git(dir: &Path, args: &[&str]) -> (bool, String) {
    let mut git = Command::new("git");
    git.current_dir(dir).args(args);
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("no_proxy", "*"),
    ] {
        git.env(name, value);
    }
    for who in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{who}_NAME"), "n");
        git.env(format!("GIT_{who}_EMAIL"), "e@pawl.invalid");
    }
    let output = git.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim_end().to_owned();
    (output.status.success(), said)
}

fn done(dir: &Path, args: &[&str]) -> String {
    let (well, said) = git(dir, args);
    assert!(well, "{args:?}: {said}");
    said
}

/// All paths of a tree with mode and content, without git's own.
fn digest(root: &Path) -> BTreeMap<String, String> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if entry.file_name() == ".git" {
                continue;
            }
            let meta = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let content = if meta.is_symlink() {
                format!("-> {}", path.read_link().unwrap().display())
            } else if meta.is_dir() {
                dirs.push(path);
                "/".to_owned()
            } else {
                let run = meta.permissions().mode() & 0o111 != 0;
                let bytes = fs::read(path).unwrap();
                let sum = crds::digest::hex_digest(
                    ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref(),
                );
                format!("{run} {} {sum}", bytes.len())
            };
            found.insert(name, content);
        }
    }
    found
}

/// Questions of programs to git in any repository.
const QUESTIONS: [&str; 6] = [
    "rev-parse HEAD",
    "rev-parse --abbrev-ref HEAD",
    "remote get-url origin",
    "config --get-regexp ^(core.hookspath|http|credential|url)",
    "ls-files --stage",
    "rev-parse --show-cdup",
];
/// Questions about the source alone; submodules have no history in a shallow clone either way.
const OF_SOURCE: [&str; 9] = [
    "log --format=%H",
    "rev-parse --is-shallow-repository",
    "rev-parse --abbrev-ref @{upstream}",
    "symbolic-ref --short HEAD",
    "describe --tags --exact-match",
    "tag --list",
    "branch --list",
    "submodule status",
    "submodule summary",
];

/// The answers of git in a tree.
fn answers(root: &Path, questions: &[&str]) -> Vec<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"]).1;
    let answer = |question: &&str| {
        let args: Vec<&str> = question.split(' ').collect();
        let said = git(root, &args).1;
        // Which of its refs describes the commit of a submodule.
        let said = said.split(" (").next().unwrap_or_default();
        format!("{question}: {said}")
    };
    let all = questions.iter().map(answer);
    all.chain([format!("top {:?}", Path::new(&top).file_name())])
        .collect()
}

const NAMES: [&str; 8] = [
    "main.tf",
    "dev-disk-by\\x2dlabel.device",
    "a b.txt",
    "-x",
    "grün.txt",
    "C:evil",
    "quo\"te'.txt",
    "x.txt",
];
const LINKS: [&str; 6] = [
    "/opt/tools/1.2",
    "../../../outside",
    "x.txt",
    ".",
    "not/there",
    "../../.git/config",
];
const ATTRIBUTES: [&str; 6] = [
    "*.txt text eol=crlf",
    "*.tf ident",
    "x.txt working-tree-encoding=UTF-16",
    "* text=auto",
    "*.device export-ignore",
    "*.txt export-subst ident",
];

/// Writes a tree of awkward entries.
fn awkward(dice: &mut StdRng, root: &Path) {
    for dir in ["live/app", "ansible/files", "tools"] {
        let dir = root.join(dir);
        fs::create_dir_all(&dir).unwrap();
        for name in NAMES {
            if dice.random_range(0..3) == 0 {
                continue;
            }
            let text = match dice.random_range(0..5) {
                0 => String::new(),
                1 => "one\r\ntwo\n$Id$ $Format:%H$\n".to_owned(),
                2 => "x".repeat(dice.random_range(0..300_000)),
                _ => format!("# {} é\n$Id$\n", dice.random_range(0..1000)),
            };
            let path = dir.join(name);
            fs::write(&path, text).unwrap();
            if dice.random_range(0..4) == 0 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        for (n, target) in LINKS.into_iter().enumerate() {
            if dice.random_range(0..2) == 0 {
                symlink(target, dir.join(format!("link{n}"))).unwrap();
            }
        }
    }
}

/// A repository of awkward entries, with these submodules; `push` publishes its `HEAD` as a branch, with its tags.
struct Work(tempfile::TempDir, std::path::PathBuf);

impl Work {
    fn new(dice: &mut StdRng, to: &Path, modules: &str, links: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        done(root, &["init", "--quiet"]);
        awkward(dice, root);
        fs::write(root.join(".gitmodules"), modules).unwrap();
        done(root, &["add", "--all"]);
        // Afterwards, since git would convert or refuse the files.
        let mut attributes = String::new();
        for line in ATTRIBUTES.iter().filter(|_| dice.random_range(0..2) == 0) {
            attributes.extend([*line, "\n"]);
        }
        fs::write(root.join(".gitattributes"), attributes).unwrap();
        done(root, &["add", ".gitattributes"]);
        for (path, commit) in links {
            let link = format!("160000,{commit},{path}");
            done(root, &["update-index", "--add", "--cacheinfo", &link]);
        }
        Self(dir, to.to_owned())
    }

    fn git(&self, args: &[&str]) -> String {
        done(self.0.path(), args)
    }

    fn push(&self, branch: &str) -> String {
        self.git(&["commit", "--quiet", "--allow-empty", "-m", branch]);
        let (head, to) = (
            format!("+HEAD:refs/heads/{branch}"),
            self.1.to_str().unwrap(),
        );
        self.git(&["push", "--quiet", to, &head, "--tags", "--force"]);
        self.git(&["rev-parse", "HEAD"])
    }
}

/// A tree of each way, in a directory of the same name.
struct Trees(tempfile::TempDir);

impl Trees {
    fn of(&self, way: &str) -> std::path::PathBuf {
        let dir = self.0.path().join(way).join("stacks");
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}

/// Clones as a person does. Git itself gives up at a submodule without an entry, so the others are then asked for by name.
fn cloned(url: &str, name: &str, orphan: bool, into: &Path) {
    let mut args = vec!["clone", "--quiet", "--depth=1"];
    if !orphan {
        args.push("--recurse-submodules");
    }
    if name != "HEAD" {
        args.extend(["--branch", name]);
    }
    args.extend([url, into.to_str().unwrap()]);
    done(into, &args);
    if orphan {
        let update = "submodule --quiet update --init --recursive --depth=1 modules/m";
        done(into, &update.split(' ').collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_and_layer_get_the_tree_of_a_clone() {
    let refs = ["main", "HEAD", "feature/x", "v1"];
    for seed in 0..2 {
        let (mut dice, orphan) = (StdRng::seed_from_u64(seed), seed % 2 == 1);
        let mut world = World::new(&[]).await;
        for (n, name) in refs.into_iter().enumerate() {
            let layer = json!({"path": "live/app", "ref": name});
            world.layer(&format!("l{n}"), &layer);
        }
        let deep = world.server.create("team/deep").unwrap();
        let deep = deep.commit("main", &[("deep.tf", "# deep\n")]).unwrap();
        let nested = "[submodule \"d\"]\n\tpath = nested/deep\n\turl = ../deep.git\n";
        let module = world.server.create("team/module").unwrap();
        let links = [("nested/deep", deep.as_str())];
        let module = Work::new(&mut dice, module.dir(), nested, &links).push("main");
        let modules = format!(
            "[submodule \"m.x\"]\n\tpath = modules/m\n\turl = ../module.git\n\
             [submodule \"private\"]\n\tpath = private\n\turl = {}\n\tupdate = none\n",
            world.server.url("team/nobody")
        );
        let mut links = vec![("modules/m", module.as_str()), ("private", &module)];
        if orphan {
            links.push(("vendor/old", &deep));
        }
        let work = Work::new(&mut dice, world.repo.dir(), &modules, &links);
        work.push("older");
        work.push("main");
        work.git(&["tag", "light"]);
        work.push("feature/x");
        work.git(&["tag", "-a", "v1", "-m", "one"]);
        work.git(&["tag", "light2"]);
        work.push("last");
        let url = world.server.url("team/stacks");
        let told = world.look().await;
        assert_eq!(told.len(), refs.len(), "{:?}", world.status());
        for name in refs {
            let trees = Trees(tempfile::tempdir().unwrap());
            let plain = trees.of("clone");
            cloned(&url, name, orphan, &plain);
            let repository = Repository::new::<std::io::Error>(&url, name).unwrap();
            let run = repository.fetch(&LocalGit, env(), &trees.of("run")).await;
            let (kept, revision) = (&world.syncer.snapshots, world.revision(name));
            let layer = kept.tree(&revision, Some(name), &trees.of("layer")).await;
            assert_eq!(run.unwrap(), layer);
            let mut empty = vec!["private (update = none)"];
            empty.extend(orphan.then_some("vendor/old (no URL in .gitmodules)"));
            assert_eq!(layer.empty, empty);
            for way in ["run", "layer"] {
                let dir = trees.of(way);
                assert_eq!(digest(&dir), digest(&plain), "{seed} {name} {way}");
                for below in ["", "modules/m", "modules/m/nested/deep"] {
                    let all = [&QUESTIONS[..], &OF_SOURCE].concat();
                    let asked = if below.is_empty() {
                        &all
                    } else {
                        &QUESTIONS[..]
                    };
                    let [own, clones] =
                        [&dir, &plain].map(|root| answers(&root.join(below), asked));
                    assert_eq!(own, clones, "{seed} {name} {way} {below}");
                }
                assert!(!dir.join(".git/hooks").exists());
            }
        }
    }
}
