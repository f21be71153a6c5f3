//! Large files and certificate authorities, with real git and git-lfs.

use std::{ffi::OsString, fs, io, net::SocketAddr, path::Path};

use source::{Credentials, Login, Refusal, Repository, lfs::ContentsError, lfs::pointers};
use xtask::{cache::Cache, packages};

use super::{Fetched, redirecting, refusal};
use servers::{
    auth::Access,
    git::GitServer,
    large::{oid, pointer},
    local_git::LocalGit,
    repo::{Change, Repo},
};

const LOOPBACK: &str = "127.0.0.1:0";
const ASKED: &[u8] = b"*.zip filter=lfs diff=lfs merge=lfs -text\n";

/// The environment of git, with Debian's `git-lfs`, installed or unpacked into the cache. `None` without it; under `CI`
/// that tests an error.
fn env() -> Option<Vec<(OsString, OsString)>> {
    let path = if Path::new("/usr/bin/git-lfs").exists() {
        "/usr/bin:/bin".to_owned()
    } else {
        let unpacked =
            Cache::open().and_then(|cache| packages::unpacked(&cache, "git-lfs", &["git-lfs"]));
        match unpacked {
            Ok(dir) => format!("{}/usr/bin:/usr/bin:/bin", dir.display()),
            Err(error) if std::env::var_os("CI").is_none() => {
                println!("left out: Debian's package git-lfs is not there: {error:#}");
                return None;
            }
            Err(error) => panic!("{error:#}"),
        }
    };
    Some(
        [
            ("PATH", path.as_str()),
            ("no_proxy", "*"),
            ("HOME", "/nowhere"),
        ]
        .map(|(k, v)| (k.into(), v.into()))
        .into(),
    )
}

/// A login for requests to the server.
fn login(addr: SocketAddr) -> Login {
    Login {
        origin: format!("http://{addr}/"),
        http: Some(Credentials::Bearer("t0ken".into())),
        ..Login::default()
    }
}

/// Fetches as the agent does, with the authorities of some origins.
async fn fetch(
    url: &str,
    logins: &[Login],
    authorities: &[(String, &Path)],
    env: &[(OsString, OsString)],
    root: &Path,
) -> (Fetched, Result<(), ContentsError<io::Error>>) {
    let mut repository = Repository::new::<io::Error>(url, "main")
        .unwrap()
        .with_logins::<io::Error>(logins)
        .unwrap();
    for (origin, file) in authorities {
        repository = repository.with_authority(origin, file.to_path_buf());
    }
    let fetched = repository.fetch(&LocalGit, env.to_vec(), root).await;
    let contents = if fetched.is_ok() {
        repository
            .fetch_contents(&LocalGit, env.to_vec(), root)
            .await
    } else {
        Ok(())
    };
    (fetched, contents)
}

fn left(root: &Path) -> Vec<String> {
    pointers(root)
        .into_iter()
        .map(|pointer| pointer.name)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_are_fetched() {
    let Some(env) = env() else { return };
    let (repos, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = GitServer::start(LOOPBACK.parse().unwrap(), repos.path())
        .await
        .unwrap();
    let (code, part) = (b"large \0 code".as_slice(), b"of a submodule".as_slice());
    server.add_large(code);
    server.add_large(part);
    let module = server.create("module").unwrap();
    let text = pointer(part);
    let files = [
        Change::File(".gitattributes", ASKED),
        Change::File("part.zip", text.as_bytes()),
    ];
    let commit = module.commit_changes("main", &files).unwrap();
    let (text, gone) = (pointer(code), pointer(b"missing"));
    let stack = server.create("stack").unwrap();
    let files = [
        Change::File(".gitattributes", ASKED),
        Change::Executable("net/code.zip", text.as_bytes()),
        Change::File("again.zip", text.as_bytes()),
        Change::File("other/gone.zip", gone.as_bytes()),
        Change::File(
            ".gitmodules",
            b"[submodule \"m\"]\n\tpath = m\n\turl = ../module.git\n",
        ),
        Change::Submodule("m", &commit),
    ];
    stack.commit_changes("main", &files).unwrap();
    for repo in ["stack", "module"] {
        server.set_access(repo, Access::Bearer("t0ken".into()));
    }
    let root = into.path();
    let (fetched, contents) = fetch(
        &server.url("stack"),
        &[login(server.addr())],
        &[],
        &env,
        root,
    )
    .await;
    fetched.unwrap();
    let error = contents.unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
    assert_eq!(
        left(root),
        ["other/gone.zip"],
        "what the server has is there"
    );
    let read = |name: &str| fs::read(root.join(name)).unwrap();
    assert_eq!(
        (read("net/code.zip"), read("again.zip"), read("m/part.zip")),
        (code.to_vec(), code.to_vec(), part.to_vec())
    );
    assert!(!root.join(".git/lfs").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_lfs_settings_are_ignored() {
    let Some(env) = env() else { return };
    let (repos, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = GitServer::start(LOOPBACK.parse().unwrap(), repos.path())
        .await
        .unwrap();
    let code = b"worth stealing".as_slice();
    server.add_large(code);
    server.set_access("stack", Access::Bearer("t0ken".into()));
    let stack = server.create("stack").unwrap();
    // A local repository with the contents: for a `file:` URL, git-lfs would copy them.
    let victim = Repo::create(&dir.path().join("victim.git")).unwrap();
    let object = victim.dir().join(format!(
        "lfs/objects/{}/{}/{}",
        &oid(code)[..2],
        &oid(code)[2..4],
        oid(code)
    ));
    fs::create_dir_all(object.parent().unwrap()).unwrap();
    fs::write(&object, code).unwrap();
    // A host with credentials redirects to one without.
    let (stranger, told) = redirecting("http://127.0.0.1:1".to_owned()).await;
    let (listener, asked) = redirecting(format!("http://{}", stranger.addr())).await;
    let logins = [login(server.addr()), login(listener.addr())];
    let pawned = dir.path().join("pawned");
    let touch = format!("touch {}", pawned.display());
    let agent = format!(
        "[lfs \"customtransfer.x\"]\n path = sh\n args = -c '{touch}'\n concurrent = false\n"
    );
    let rows = [
        format!("[lfs]\n url = file://{}\n", victim.dir().display()),
        format!("[lfs]\n url = {}\n", victim.dir().display()),
        format!(
            "[remote \"origin\"]\n lfsurl = file://{}\n",
            victim.dir().display()
        ),
        format!(
            "[lfs]\n url = file://{}\n standaloneTransferAgent = x\n{agent}",
            victim.dir().display()
        ),
        "[lfs]\n url = ssh://git@127.0.0.1/stack\n".to_owned(),
        format!("[lfs]\n url = \"ssh://-oProxyCommand={touch}/stack\"\n"),
        format!(
            "[lfs]\n url = http://{}/stack.git/info/lfs\n skipDownloadErrors = true\n",
            listener.addr()
        ),
    ];
    let large = pointer(code);
    for text in &rows {
        let files = [
            Change::File(".gitattributes", ASKED),
            Change::File("code.zip", large.as_bytes()),
            Change::File(".lfsconfig", text.as_bytes()),
        ];
        stack.commit_changes("main", &files).unwrap();
        let into = tempfile::tempdir().unwrap();
        let (fetched, contents) =
            fetch(&server.url("stack"), &logins, &[], &env, into.path()).await;
        fetched.unwrap();
        let Err(ContentsError::Fetch(error)) = contents else {
            panic!("{text}: {contents:?}")
        };
        let (refused, message) = refusal(Err(error));
        // It was rejected before any access.
        assert!(
            !text.contains("file:") || refused == Refusal::Invalid,
            "{text}: {message}"
        );
        assert_eq!(left(into.path()), ["code.zip"], "{text}");
    }
    assert!(
        !pawned.exists(),
        "a program from the repository was started"
    );
    assert!(
        asked
            .lock()
            .unwrap()
            .iter()
            .any(|sent| sent == "Bearer t0ken")
    );
    let told = told.lock().unwrap().clone();
    assert!(
        !told.is_empty() && told.iter().all(String::is_empty),
        "{told:?}"
    );
    // Programs and their settings are ignored, and the rest is fetched.
    let text = format!("[lfs]\n standaloneTransferAgent = x\n{agent}");
    stack
        .commit_changes("main", &[Change::File(".lfsconfig", text.as_bytes())])
        .unwrap();
    let into = tempfile::tempdir().unwrap();
    let (_, contents) = fetch(
        &server.url("stack"),
        &[login(server.addr())],
        &[],
        &env,
        into.path(),
    )
    .await;
    contents.unwrap();
    assert!(left(into.path()).is_empty() && !pawned.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authority_applies_to_its_host() {
    let Some(env) = env() else { return };
    let (repos, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = async |name: &str| {
        let server = GitServer::start_tls(LOOPBACK.parse().unwrap(), &repos.path().join(name))
            .await
            .unwrap();
        let file = files.path().join(name);
        fs::write(&file, server.authority().unwrap()).unwrap();
        (server, file)
    };
    let ((a, of_a), (b, of_b)) = (start("a").await, start("b").await);
    let code = b"large".as_slice();
    a.add_large(code);
    let commit = b
        .create("module")
        .unwrap()
        .commit("main", &[("module.tf", "")])
        .unwrap();
    let modules = format!(
        "[submodule \"m\"]\n\tpath = m\n\turl = {}\n",
        b.url("module")
    );
    let stack = a.create("stack").unwrap();
    let text = pointer(code);
    let large = [
        Change::File(".gitattributes", ASKED),
        Change::File("code.zip", text.as_bytes()),
    ];
    stack.commit_changes("main", &large).unwrap();
    let origin = |server: &GitServer| format!("https://{}/", server.addr());
    let fetch = async |authorities: &[(String, &Path)], of_all: Option<&Path>| {
        let into = tempfile::tempdir().unwrap();
        let mut env = env.clone();
        env.extend(of_all.map(|file| ("GIT_SSL_CAINFO".into(), file.into())));
        let (fetched, contents) = fetch(&a.url("stack"), &[], authorities, &env, into.path()).await;
        if fetched.is_ok() {
            contents.unwrap();
            assert!(left(into.path()).is_empty());
        }
        fetched
    };
    let (refused, message) = refusal(fetch(&[(origin(&b), &of_a)], None).await);
    assert!(
        refused == Refusal::Invalid && message.contains("certificate that is not trusted"),
        "{message}"
    );
    fetch(&[(origin(&a), &of_a)], None).await.unwrap();
    // The common authorities apply only to hosts without their own.
    fetch(&[(origin(&b), &of_b)], Some(&of_a)).await.unwrap();
    assert_eq!(
        refusal(fetch(&[(origin(&a), &of_b)], Some(&of_a)).await).0,
        Refusal::Invalid
    );

    stack
        .commit_changes(
            "main",
            &[
                Change::File(".gitmodules", modules.as_bytes()),
                Change::Submodule("m", &commit),
            ],
        )
        .unwrap();
    let (refused, message) = refusal(fetch(&[(origin(&a), &of_a)], None).await);
    assert!(
        refused == Refusal::Invalid && message.starts_with("submodule m: "),
        "{message}"
    );
    fetch(&[(origin(&a), &of_a), (origin(&b), &of_b)], None)
        .await
        .unwrap();
    fetch(&[(origin(&a), &of_a)], Some(&of_b)).await.unwrap();
}
