//! Snapshots: only the tree of their commit is made of them, whatever an archive has.

use std::{
    fs,
    io::{self, Cursor},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use source::{
    FetchError, Fetched, Refusal,
    lfs::{Pointer, pointers},
    snapshot::{Header, PackError, UnpackError, pack, unpack},
};

use servers::{
    large::pointer,
    local_git::LocalGit,
    repo::{Change, Repo},
};

const URL: &str = "https://git.invalid/team/stack.git";

/// A bare repository.
fn repo() -> (tempfile::TempDir, Repo) {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repo::create(&dir.path().join("mirror")).unwrap();
    (dir, repo)
}

fn header(commit: &str) -> Header {
    Header {
        remotes: vec![(URL.to_owned(), commit.to_owned())],
        ..Header::default()
    }
}

fn packed(repo: &Repo, header: Header, large: &[Pointer]) -> Result<Vec<u8>, PackError> {
    let (git, mut into) = (Command::new("git"), Vec::new());
    let scratch = repo.dir().join("scratch");
    pack(git, repo.dir(), header, large, &scratch, &mut into).map(|()| into)
}

type Made = (Result<Fetched, UnpackError<io::Error>>, tempfile::TempDir);

/// The tree that an agent makes of an archive.
async fn made(archive: &[u8], revision: &str) -> Made {
    made_of(archive, revision, None).await
}

/// The tree as of a ref.
async fn made_of(archive: &[u8], revision: &str, git_ref: Option<&str>) -> Made {
    let (scratch, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let until = Instant::now() + Duration::from_secs(600);
    let env = [("PATH", "/usr/bin:/bin"), ("HOME", "/nowhere")];
    let env = env.map(|(key, value)| (key.into(), value.into())).to_vec();
    let unpacked = unpack(Cursor::new(archive), scratch.path(), revision, until);
    let fetched = match unpacked {
        Ok(unpacked) => unpacked.fetch(&LocalGit, env, git_ref, root.path()).await,
        Err(error) => Err(error),
    };
    let fetched = fetched.map(|(fetched, contents)| {
        contents.unwrap();
        fetched
    });
    (fetched, root)
}

/// The entries of an archive, with changes.
fn changed(archive: &[u8], change: impl Fn(&str, Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let (mut from, mut to) = (tar::Archive::new(archive), tar::Builder::new(Vec::new()));
    for entry in from.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (path, mut content) = (entry.path().unwrap().into_owned(), Vec::new());
        io::Read::read_to_end(&mut entry, &mut content).unwrap();
        let content = change(path.to_str().unwrap(), content);
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        to.append_data(&mut header, path, content.as_slice())
            .unwrap();
    }
    to.into_inner().unwrap()
}

#[tokio::test]
async fn tampered_snapshot_makes_no_tree() {
    let (_dir, repo) = repo();
    let other = repo.commit("main", &[("main.tf", "# evil\n")]).unwrap();
    let commit = repo.commit("main", &[("main.tf", "# one\n")]).unwrap();
    let (good, evil) = (header(&commit), header(&other));
    let good = packed(&repo, good, &[]).unwrap();
    let (fetched, root) = made(&good, &commit).await;
    assert_eq!(fetched.unwrap().commit, commit);
    assert_eq!(
        fs::read_to_string(root.path().join("main.tf")).unwrap(),
        "# one\n"
    );
    assert!(!root.path().join(".git/hooks").exists());

    let evil = packed(&repo, evil, &[]).unwrap();
    let evil = |from: &str| {
        let mut entries = tar::Archive::new(&*evil);
        let mut entries = entries.entries().unwrap().map(Result::unwrap);
        let mut entry = entries
            .find(|entry| entry.path().unwrap().to_str() == Some(from))
            .unwrap();
        let mut content = Vec::new();
        io::Read::read_to_end(&mut entry, &mut content).unwrap();
        content
    };
    let named = |from: &str, to: &str| {
        changed(&good, |path, content| {
            if path.contains("snapshot") {
                String::from_utf8(content).unwrap().replace(from, to).into()
            } else {
                content
            }
        })
    };
    let rows = [
        (
            changed(&good, |path, content| {
                if path == "objects.pack" {
                    evil(path)
                } else {
                    content
                }
            }),
            "there is no commit",
        ),
        (
            changed(&good, |path, mut content| {
                if path == "objects.pack" {
                    let middle = content.len() / 2;
                    content[middle] ^= 1;
                }
                content
            }),
            "its objects are damaged",
        ),
        (named(&commit, &other), "is of commit"),
        (named("\"version\":2", "\"version\":1"), "format version 1"),
        (named(URL, "file:///etc"), "has no name for"),
        (named("\"remotes\"", "\"others\""), "malformed"),
        (b"not an archive".to_vec(), "neither a .tar.gz"),
    ];
    for (archive, why) in rows {
        let (fetched, root) = made(&archive, &commit).await;
        let error = fetched.unwrap_err();
        assert!(
            matches!(&error, UnpackError::Integrity(text) if text.contains(why)),
            "{why}: {error:?}"
        );
        assert!(!root.path().join("main.tf").exists(), "{why}");
    }
}

#[tokio::test]
async fn content_that_differs_from_its_pointer_is_not_written() {
    let (_dir, repo) = repo();
    let text = pointer(b"large");
    let of = Pointer::parse(text.as_bytes()).unwrap();
    let files = [
        Change::File(".gitattributes", b"*.zip filter=lfs\n"),
        Change::File("a.zip", text.as_bytes()),
    ];
    let commit = repo.commit_changes("main", &files).unwrap();
    let place = repo.dir().join("lfs/objects").join(of.place());
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::write(&place, "large").unwrap();
    let good = packed(&repo, header(&commit), &[of]).unwrap();
    let evil = changed(&good, |path, content| {
        if path.starts_with("lfs/") {
            b"other".to_vec()
        } else {
            content
        }
    });
    for (archive, left) in [(good, 0), (evil, 1)] {
        let (fetched, root) = made(&archive, &commit).await;
        fetched.unwrap();
        assert_eq!(pointers(root.path()).len(), left);
    }
}

/// The output of git in a bare repository.
fn git(repo: &Repo, args: &[&str], input: &str) -> String {
    let mut git = Command::new("git");
    git.arg("--git-dir").arg(repo.dir()).args(args);
    for role in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{role}_NAME"), "n");
        git.env(format!("GIT_{role}_EMAIL"), "e@pawl.invalid");
    }
    let git = git.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut git = git.spawn().unwrap();
    io::Write::write_all(&mut git.stdin.take().unwrap(), input.as_bytes()).unwrap();
    let output = git.wait_with_output().unwrap();
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn annotated_tag_remains_one() {
    let (_dir, repo) = repo();
    let commit = repo.commit("main", &[("main.tf", "")]).unwrap();
    // Its id comes after that of the commit.
    let tag = (0..).find_map(|second| {
        let text = format!(
            "object {commit}\ntype commit\ntag v1\ntagger n <e@pawl.invalid> {second} +0000\n\nm\n"
        );
        Some(git(&repo, &["mktag"], &text)).filter(|tag| *tag > commit)
    });
    let tag = tag.unwrap();
    let header = Header {
        tags: vec![("v1".to_owned(), tag.clone())],
        ..header(&commit)
    };
    let archive = packed(&repo, header, &[]).unwrap();
    for git_ref in ["v1", "refs/tags/v1"] {
        let (fetched, root) = made_of(&archive, &commit, Some(git_ref)).await;
        assert_eq!(fetched.unwrap().commit, commit);
        let own = fs::read_to_string(root.path().join(".git/refs/tags/v1")).unwrap();
        assert_eq!(own.trim(), tag, "{git_ref}");
    }
}

#[tokio::test]
async fn hostile_commit_is_refused_in_the_same_words() {
    let (_dir, repo) = repo();
    let blob = git(&repo, &["hash-object", "-w", "--stdin"], "x");
    let mut tree = git(&repo, &["mktree"], &format!("100644 blob {blob}\tf\n"));
    for _ in 0..9 {
        let entries = (0..10).map(|n| format!("040000 tree {tree}\td{n}\n"));
        tree = git(&repo, &["mktree"], &entries.collect::<String>());
    }
    let bomb = git(&repo, &["commit-tree", &tree, "-m", "m"], "");
    let modules = |url: &str| format!("[submodule \"m\"]\n\tpath = m\n\turl = {url}\n");
    let own = format!("file://{}", repo.dir().display());
    let local = {
        let text = modules(&own);
        let link = Change::Submodule("m", &bomb);
        let files = [Change::File(".gitmodules", text.as_bytes()), link];
        repo.commit_changes("local", &files).unwrap()
    };
    // A tree with a link and a directory of one name, which no index can have.
    let deep = git(&repo, &["mktree"], &format!("160000 commit {bomb}\tm\n"));
    let (link, text) = (
        git(&repo, &["hash-object", "-w", "--stdin"], "/tmp"),
        modules(URL).replace("path = m", "path = d/m"),
    );
    let text = git(&repo, &["hash-object", "-w", "--stdin"], &text);
    let twice =
        format!("100644 blob {text}\t.gitmodules\n120000 blob {link}\td\n040000 tree {deep}\td\n");
    let twice = git(&repo, &["mktree"], &twice);
    let twice = git(&repo, &["commit-tree", &twice, "-m", "m"], "");
    for (commit, why) in [
        (&bomb, "was not checked out: it has more than 200000 files"),
        (&local, "which is neither https nor ssh"),
        (&twice, ""),
    ] {
        let archive = packed(&repo, header(commit), &[]).unwrap();
        let (fetched, root) = made(&archive, commit).await;
        let error = fetched.unwrap_err();
        let is_refused = match &error {
            UnpackError::Fetch(FetchError::Refused {
                refusal: Refusal::Invalid,
                message,
            }) => message.contains(why),
            _ => why.is_empty(),
        };
        assert!(is_refused, "{why}: {error:?}");
        assert!(!root.path().join("d0").exists());
    }
    assert!(!std::path::Path::new("/tmp/m").exists());
}

#[tokio::test]
async fn corrupt_mirror_makes_no_snapshot() {
    let (_dir, repo) = repo();
    let commit = repo.commit("main", &[("main.tf", "# one\n")]).unwrap();
    let missing = "1".repeat(40);
    let error = packed(&repo, header(&missing), &[]).unwrap_err();
    assert!(matches!(error, PackError::Mirror(_)), "{error:?}");
    let blob = git(&repo, &["rev-parse", &format!("{commit}:main.tf")], "");
    let place = repo.dir().join("objects").join(&blob[..2]).join(&blob[2..]);
    let mut bytes = fs::read(&place).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::remove_file(&place).unwrap();
    fs::write(&place, bytes).unwrap();
    let error = packed(&repo, header(&commit), &[]).unwrap_err();
    assert!(matches!(error, PackError::Mirror(_)), "{error:?}");
}
