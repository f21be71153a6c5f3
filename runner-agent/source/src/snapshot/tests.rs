use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Read as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use servers::large::{oid, pointer};
use tar::{Archive, Builder, EntryType};
use tempfile::TempDir;

use super::*;
use crate::check_links;
use tool_versions::Limits;

/// A repository with a work tree.
struct Repo(TempDir);

impl Repo {
    fn new() -> Self {
        let repo = Self(tempfile::tempdir().unwrap());
        repo.git(&["init", "-q", "-b", "main", "."]);
        repo
    }

    fn git(&self, args: &[&str]) -> String {
        let ended = git()
            .current_dir(self.0.path())
            .args(args)
            .output()
            .unwrap();
        assert!(
            ended.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&ended.stderr)
        );
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn commit(&self) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", "x"]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join(".git")
    }

    fn pack(&self, revision: &str) -> Result<(Packed, Vec<u8>), PackError> {
        let mut into = Vec::new();
        pack(git(), &self.dir(), revision, &mut into).map(|packed| (packed, into))
    }
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.envs([
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("LC_ALL", "C"),
    ]);
    for who in ["AUTHOR", "COMMITTER"] {
        git.envs([
            (format!("GIT_{who}_NAME"), "a"),
            (format!("GIT_{who}_EMAIL"), "a@b"),
        ]);
        git.env(format!("GIT_{who}_DATE"), "1700000000 +0000");
    }
    git
}

fn unpacked(snapshot: &[u8], revision: &str) -> Result<(Unpacked, TempDir), UnpackError> {
    let dir = tempfile::tempdir().unwrap();
    let until = Instant::now() + Duration::from_secs(600);
    unpack(Cursor::new(snapshot), dir.path(), revision, until).map(|unpacked| (unpacked, dir))
}

/// All paths below a directory: links with their targets, files with their content.
fn found(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let meta = path.symlink_metadata().unwrap();
            if meta.is_dir() {
                found.insert(format!("{name}/"), String::new());
                dirs.push(path);
            } else if meta.is_symlink() {
                found.insert(name, format!("-> {}", path.read_link().unwrap().display()));
            } else {
                let run = if meta.permissions().mode() & 0o111 == 0 {
                    ""
                } else {
                    "run: "
                };
                found.insert(
                    name,
                    format!("{run}{}", String::from_utf8_lossy(&fs::read(path).unwrap())),
                );
            }
        }
    }
    found
}

/// An archive entry as an attacker writes it.
#[derive(Clone)]
struct Raw {
    kind: EntryType,
    name: String,
    mode: u32,
    content: Vec<u8>,
    link: String,
}

fn file(name: &str, content: &[u8]) -> Raw {
    Raw {
        kind: EntryType::Regular,
        name: name.into(),
        mode: 0o644,
        content: content.into(),
        link: String::new(),
    }
}

fn opened(snapshot: &[u8]) -> Vec<Raw> {
    let mut archive = Archive::new(GzDecoder::new(snapshot));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let (kind, mode) = (entry.header().entry_type(), entry.header().mode().unwrap());
        let link = entry
            .link_name()
            .unwrap()
            .map(|link| link.display().to_string())
            .unwrap_or_default();
        Raw {
            kind,
            name: entry.path().unwrap().display().to_string(),
            mode,
            content,
            link,
        }
    });
    entries.collect()
}

fn closed(entries: &[Raw]) -> Vec<u8> {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for Raw {
        kind,
        name,
        mode,
        content,
        link,
    } in entries
    {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        // The library refuses to write these.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_slice()).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// The same entries with another description.
fn described(entries: &[Raw], from: &str, to: &str) -> Vec<Raw> {
    changed(entries, HEADER, |entry| {
        entry.content = String::from_utf8_lossy(&entry.content)
            .replace(from, to)
            .into_bytes();
    })
}

/// The same entries with one changed.
fn changed(entries: &[Raw], name: &str, change: impl FnOnce(&mut Raw)) -> Vec<Raw> {
    let mut entries = entries.to_vec();
    change(entries.iter_mut().find(|entry| entry.name == name).unwrap());
    entries
}

fn refused(entries: &[Raw], revision: &str, why: &str) {
    match unpacked(&closed(entries), revision) {
        Err(UnpackError::Integrity(text)) => assert!(text.contains(why), "{text}, not {why}"),
        other => panic!("{why}: {other:?}"),
    }
}

#[test]
fn snapshot_round_trips_and_is_deterministic() {
    let repo = Repo::new();
    // Each of these would change a checkout or `git archive`.
    repo.write(
        ".gitattributes",
        "*.tf text eol=crlf\nsecret.txt export-ignore\nversion.txt export-subst ident\n",
    );
    repo.write("main.tf", "a\nb\n");
    repo.write("secret.txt", "kept");
    repo.write("version.txt", "$Format:%H$ $Id$\n");
    repo.write("a.tf", "");
    repo.write("a/b/c.bin", [0, 255, 13, 10]);
    let long = format!("a/{}/{}.tf", "d".repeat(120), "f".repeat(120));
    repo.write(&long, "long");
    let script = repo.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    symlink("../main.tf", repo.0.path().join("a/link")).unwrap();
    symlink(&long, repo.0.path().join("long-link")).unwrap();
    symlink("nowhere/yet", repo.0.path().join("dangling")).unwrap();
    let revision = repo.commit();
    let mut expected = found(repo.0.path());
    expected.retain(|name, _| !name.starts_with(".git/"));
    repo.write("later.tf", "x");
    repo.commit();
    let (packed, snapshot) = repo.pack(&revision).unwrap();
    assert_eq!((packed.files, packed.without.len()), (11, 0));
    assert_eq!(repo.pack(&revision).unwrap().1, snapshot);
    let (unpacked, dir) = unpacked(&snapshot, &revision).unwrap();
    assert_eq!((unpacked.files, unpacked.without.len()), (11, 0));
    check_links(dir.path()).unwrap();
    assert_eq!(found(dir.path()), expected);
}

#[test]
fn empty_commit_round_trips() {
    let repo = Repo::new();
    let revision = repo.commit();
    let snapshot = repo.pack(&revision).unwrap().1;
    let empty = Unpacked {
        files: 0,
        without: vec![],
    };
    assert_eq!(unpacked(&snapshot, &revision).unwrap().0, empty);
}

/// A repository with a submodule that its mirror has and one that it lacks.
fn with_submodules() -> (Repo, String) {
    let (inner, repo) = (Repo::new(), Repo::new());
    inner.write("mod.tf", "inner");
    let commit = inner.commit();
    repo.write("main.tf", "outer");
    repo.git(&["fetch", "-q", inner.0.path().to_str().unwrap(), &commit]);
    for (commit, name) in [(commit, "net"), ("c".repeat(40), "app")] {
        let link = format!("160000,{commit},modules/{name}");
        repo.git(&["update-index", "--add", "--cacheinfo", &link]);
    }
    repo.git(&["add", "main.tf"]);
    repo.git(&["commit", "-q", "-m", "x"]);
    let revision = repo.git(&["rev-parse", "HEAD"]);
    (repo, revision)
}

#[test]
fn submodules_are_included_if_mirrored() {
    let (repo, revision) = with_submodules();
    let (packed, snapshot) = repo.pack(&revision).unwrap();
    assert_eq!(
        (packed.files, packed.without),
        (2, vec!["modules/app".to_owned()])
    );
    let (unpacked, dir) = unpacked(&snapshot, &revision).unwrap();
    assert_eq!(unpacked.without, ["modules/app"]);
    let found: Vec<_> = found(dir.path())
        .into_iter()
        .map(|(name, text)| name + ":" + &text)
        .collect();
    assert_eq!(
        found.join(" "),
        "main.tf:outer modules/: modules/app/: modules/net/: modules/net/mod.tf:inner"
    );
}

/// A repository with a large file that its mirror has and one that it lacks.
fn with_large_files() -> (Repo, String) {
    let repo = Repo::new();
    let content = b"large".repeat(1000);
    let oid = oid(&content);
    repo.write("net/code.zip", pointer(&content));
    repo.write("net/other.zip", pointer(b"other"));
    let revision = repo.commit();
    repo.write(
        &format!(".git/lfs/objects/{}/{}/{oid}", &oid[..2], &oid[2..4]),
        content,
    );
    (repo, revision)
}

#[test]
fn large_files_are_included_if_mirrored() {
    let (repo, revision) = with_large_files();
    let (_, snapshot) = repo.pack(&revision).unwrap();
    let (_, dir) = unpacked(&snapshot, &revision).unwrap();
    assert_eq!(
        fs::read(dir.path().join("net/code.zip")).unwrap(),
        b"large".repeat(1000)
    );
    assert!(
        fs::read_to_string(dir.path().join("net/other.zip"))
            .unwrap()
            .starts_with("version https")
    );
    // The stored content was changed without changing its size.
    let store = repo.dir().join("lfs/objects");
    let path = found(&store)
        .into_keys()
        .find(|name| name.len() > 60)
        .unwrap();
    fs::write(store.join(path), b"LARGE".repeat(1000)).unwrap();
    let error = repo.pack(&revision).unwrap_err();
    assert!(
        matches!(&error, PackError::Mirror(what) if what.contains("is not what net/code.zip points to")),
        "{error}"
    );
}

#[test]
fn tampered_snapshot_is_refused() {
    let repo = Repo::new();
    repo.write("main.tf", "abc");
    repo.write("net/vars.tf", "def");
    symlink("main.tf", repo.0.path().join("link")).unwrap();
    let revision = repo.commit();
    repo.write("main.tf", "other");
    let other = repo.commit();
    let snapshot = repo.pack(&revision).unwrap().1;
    let refused = |entries: &[Raw], why: &str| refused(entries, &revision, why);
    let entries = opened(&snapshot);
    assert!(
        unpacked(&closed(&entries), &revision).is_ok(),
        "unchanged it is accepted"
    );
    let changed = |name: &str, change: fn(&mut Raw)| changed(&entries, name, change);
    let and = |raw: Raw| [entries.as_slice(), &[raw]].concat();
    let files = "has other files than commit";
    refused(&changed("main.tf", |entry| entry.content[1] ^= 1), files);
    refused(&changed("main.tf", |entry| entry.mode = 0o755), files);
    refused(
        &changed("main.tf", |entry| entry.name = "Main.tf".into()),
        files,
    );
    refused(
        &changed("link", |entry| entry.link = "net/vars.tf".into()),
        files,
    );
    refused(
        &changed("net/vars.tf", |entry| entry.name = "vars.tf".into()),
        files,
    );
    refused(&and(file("extra.tf", b"")), files);
    refused(
        &entries
            .iter()
            .filter(|entry| entry.name != "main.tf")
            .cloned()
            .collect::<Vec<_>>(),
        files,
    );
    let dir = Raw {
        kind: EntryType::Directory,
        ..file("empty", b"")
    };
    refused(&and(dir), "an empty directory `empty`");
    // In the header.
    refused(&entries[1..], "its description is missing");
    refused(&and(file(HEADER, b"{}")), "twice");
    let said = |from: &str, to: &str| described(&entries, from, to);
    refused(&said("{", "x"), "its description is malformed");
    refused(&said("\"version\":1", "\"version\":2"), "format version 2");
    refused(&said(&revision, &other), "is of commit");
    let others = opened(&repo.pack(&other).unwrap().1);
    refused(&others, "is of commit");
    // The files of one commit with the id of another.
    refused(&[&entries[..1], &others[1..]].concat(), files);
    refused(
        &[&described(&others, &other, &revision)[..1], &entries[1..]].concat(),
        "that has another id",
    );
    let gone = "describes `gone`, which is not in it";
    for (more, why) in [
        (
            r#""gitlinks":{"net":"x"}"#,
            "the snapshot has files in `net`",
        ),
        (
            r#""lfs":{"main.tf":"x"}"#,
            "differs from its Git LFS pointer",
        ),
        (r#""gitlinks":{"gone":"x"}"#, gone),
        (r#""lfs":{"gone":"x"}"#, gone),
    ] {
        let entries = said("{\"version\"", &format!("{{{more},\"version\""));
        refused(&entries, why);
    }
    // Content that no snapshot may have.
    let kind = |kind, name: &str, link: &str| Raw {
        kind,
        link: link.into(),
        ..file(name, b"")
    };
    refused(&and(file("../out", b"")), "leads out");
    refused(&and(file("/etc/out", b"")), "absolute");
    refused(&and(file(".git/config", b"")), "git's own");
    refused(&and(file("link/below", b"")), "below a file or a link");
    refused(
        &and(kind(EntryType::Symlink, "out", "../../etc")),
        "leads out",
    );
    refused(&and(kind(EntryType::Symlink, "out", "/etc")), "absolute");
    refused(
        &and(kind(EntryType::Link, "hard", "main.tf")),
        "a hard link",
    );
    refused(&and(kind(EntryType::Char, "null", "")), "a device");
    refused(&and(kind(EntryType::Fifo, "pipe", "")), "a named pipe");
    refused(
        &and(Raw {
            mode: 0o4755,
            ..file("su", b"")
        }),
        "set-user-id",
    );
    // In the compressed bytes.
    for bytes in [
        &snapshot[..snapshot.len() / 2],
        &[snapshot.as_slice(), b"x"].concat(),
    ] {
        let error = unpacked(bytes, &revision).unwrap_err();
        assert!(matches!(error, UnpackError::Integrity(_)), "{error}");
    }
}

#[test]
fn foreign_submodules_and_large_files_are_refused() {
    let (repo, revision) = with_submodules();
    let entries = opened(&repo.pack(&revision).unwrap().1);
    let foreign = changed(&entries, "modules/net/mod.tf", |entry| {
        entry.content = b"inneR".into();
    });
    refused(
        &foreign,
        &revision,
        "the submodule `modules/net` has other files",
    );
    refused(
        &[entries.as_slice(), &[file("modules/app/x", b"")]].concat(),
        &revision,
        "no commit that they are of",
    );
    let foreign = described(&entries, &"c".repeat(40), &"d".repeat(40));
    refused(&foreign, &revision, "the snapshot has other files");
    let (repo, revision) = with_large_files();
    let entries = opened(&repo.pack(&revision).unwrap().1);
    let foreign = changed(&entries, "net/code.zip", |entry| entry.content[0] ^= 1);
    refused(&foreign, &revision, "differs from its Git LFS pointer");
    let foreign = described(
        &described(&entries, &oid(&b"large".repeat(1000)), &oid(b"evil")),
        "5000",
        "4",
    );
    let foreign = changed(&foreign, "net/code.zip", |entry| {
        entry.content = b"evil".into();
    });
    refused(&foreign, &revision, "the snapshot has other files");
}

#[test]
fn bomb_is_refused() {
    let repo = Repo::new();
    repo.write("zeros", vec![0; 2 << 20]);
    repo.write("a/b", "");
    let revision = repo.commit();
    let snapshot = repo.pack(&revision).unwrap().1;
    let within = |limits: Limits, until: Instant| {
        let dir = tempfile::tempdir().unwrap();
        unpack::unpack_within(
            Cursor::new(&snapshot),
            dir.path(),
            &revision,
            until,
            &limits,
        )
        .map_err(|error| error.to_string())
    };
    let later = Instant::now() + Duration::from_secs(600);
    assert!(within(LIMITS, later).is_ok());
    assert!(
        within(
            Limits {
                size: 1 << 20,
                ..LIMITS
            },
            later
        )
        .unwrap_err()
        .contains("more than 1048576 bytes")
    );
    assert!(
        within(
            Limits {
                entries: 3,
                ..LIMITS
            },
            later
        )
        .unwrap_err()
        .contains("more than 3 files and directories")
    );
    let late = Instant::now()
        .checked_sub(Duration::from_millis(1))
        .unwrap();
    assert!(within(LIMITS, late).unwrap_err().contains("takes too long"));
}

#[test]
fn forbidden_content_is_refused_at_packing() {
    let refused = |make: &dyn Fn(&Repo), why: &str| {
        let repo = Repo::new();
        make(&repo);
        let revision = repo.commit();
        match repo.pack(&revision) {
            Err(PackError::Refused(text)) => assert!(text.contains(why), "{text}, not {why}"),
            other => panic!("{why}: {other:?}"),
        }
    };
    let link = |target: &'static str| {
        move |repo: &Repo| symlink(target, repo.0.path().join("link")).unwrap()
    };
    refused(&link("../etc"), "a link that leads out");
    refused(&link("/etc"), "a link to an absolute path");
    refused(&|repo| drop(repo.write("a\\b", "")), "a path elsewhere");
    refused(&|repo| drop(repo.write("a\nb", "")), "invisible characters");
    refused(
        &|repo| drop(repo.write(HEADER, "")),
        "a snapshot uses itself",
    );
    let repo = Repo::new();
    repo.commit();
    assert!(
        matches!(repo.pack(&"a".repeat(64)).unwrap_err(), PackError::Refused(text) if text.contains("no commit of SHA-1"))
    );
    assert!(
        matches!(repo.pack(&"a".repeat(40)).unwrap_err(), PackError::Mirror(text) if text.contains("has no aaaa"))
    );
    let tree = repo.git(&["rev-parse", "HEAD^{tree}"]);
    assert!(
        matches!(repo.pack(&tree).unwrap_err(), PackError::Mirror(text) if text.contains("is a tree"))
    );
    let none = pack(
        Command::new("/nowhere/git"),
        &repo.dir(),
        &"a".repeat(40),
        Vec::new(),
    )
    .unwrap_err();
    assert!(matches!(none, PackError::NotRun(_)));
}

#[test]
fn corrupt_mirror_makes_no_snapshot() {
    let repo = Repo::new();
    repo.write("main.tf", "right");
    let revision = repo.commit();
    let blob = repo.git(&["rev-parse", "HEAD:main.tf"]);
    let wrong = repo.write("wrong", "wrong");
    let other = repo.git(&["hash-object", "-w", wrong.to_str().unwrap()]);
    repo.git(&["replace", &blob, &other]);
    let (_, snapshot) = repo.pack(&revision).unwrap();
    let (_, dir) = unpacked(&snapshot, &revision).unwrap();
    assert_eq!(
        fs::read_to_string(dir.path().join("main.tf")).unwrap(),
        "right"
    );
    fs::remove_file(repo.dir().join("objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    assert!(
        matches!(repo.pack(&revision).unwrap_err(), PackError::Mirror(text) if text.contains(&blob))
    );
}
