use std::{fs, io, sync::Mutex};

use super::*;
use crate::{clone::Fetched, credentials::Credentials, git_errors::Refusal};

fn repository(url: &str, revision: &str) -> Repository {
    Repository::new::<io::Error>(url, revision).unwrap()
}

fn login(origin: &str, http: Credentials) -> Login {
    Login {
        origin: origin.into(),
        http: Some(http),
        ..Login::default()
    }
}

#[test]
fn unsafe_urls_and_revisions_are_refused() {
    assert!(matches!(
        Repository::new::<io::Error>("file:///etc", "main"),
        Err(FetchError::IllegalUrl)
    ));
    assert!(matches!(
        Repository::new::<io::Error>("https://h/r", "-x"),
        Err(FetchError::IllegalRevision(_))
    ));
}

/// The configuration that git gets through its environment.
fn config(env: &[(OsString, OsString)]) -> Vec<(String, String)> {
    let value = |name: String| {
        let found = env.iter().find(|(key, _)| *key == *name);
        found.map(|(_, value)| value.to_str().unwrap().to_owned())
    };
    let count: usize = value("GIT_CONFIG_COUNT".into()).unwrap().parse().unwrap();
    let at = |i: usize| {
        (
            value(format!("GIT_CONFIG_KEY_{i}")).unwrap(),
            value(format!("GIT_CONFIG_VALUE_{i}")).unwrap(),
        )
    };
    (0..count).map(at).collect()
}

/// Burrito 11.24: credentials went to every URL that contained the URL of their repository.
#[test]
fn credentials_go_to_one_host_in_one_header() {
    let token = |text: &str| Credentials::Bearer(text.into());
    let logins = [
        login("https://h:1/", token("t")),
        login("https://h:1/", token("later")),
        login("https://other/", Credentials::Basic("u".into(), "p".into())),
    ];
    let env = repository("https://h:1/r.git", "main")
        .with_logins::<io::Error>(&logins)
        .unwrap()
        .env(Vec::new(), &[]);
    let config = config(&env);
    let headers: Vec<_> = config
        .iter()
        .filter(|(key, _)| key.ends_with("extraHeader"))
        .collect();
    assert_eq!(
        headers,
        [
            &(
                "http.https://h:1/.extraHeader".to_owned(),
                "Authorization: Bearer t".to_owned()
            ),
            &(
                "http.https://other/.extraHeader".to_owned(),
                "Authorization: Basic dTpw".to_owned()
            ),
        ]
    );
    for origin in ["https://h:1/", "https://other/"] {
        assert!(config.contains(&(format!("http.{origin}.followRedirects"), "false".into())));
    }
    let broken =
        repository("https://h/r.git", "main").with_logins(&[login("https://h/", token("t\nX: y"))]);
    assert!(matches!(broken, Err(FetchError::<io::Error>::LineBreak)));
}

#[test]
fn ssh_requires_a_key() {
    let http = repository("https://h/r.git", "main");
    let with = http.clone().with_ssh("/keys".into());
    for (repository, allowed, command) in [
        (http, "never", "false"),
        (with, "always", "ssh -F '/keys/config'"),
    ] {
        let env = repository.env(Vec::new(), &[]);
        assert!(config(&env).contains(&("protocol.ssh.allow".into(), allowed.into())));
        assert!(env.contains(&("GIT_SSH_COMMAND".into(), command.into())));
    }
}

#[test]
fn authority_applies_to_one_origin() {
    let given = || {
        vec![
            ("PATH".into(), "/bin".into()),
            (CA_OF_ALL.into(), "/kept/ca.crt".into()),
        ]
    };
    let plain = repository("https://h/r.git", "main");
    assert!(
        plain.env(given(), &[]).contains(&given()[1]),
        "it stays where it was"
    );
    let own = plain
        .with_authority("https://h/", "/a".into())
        .with_authority("https://h/", "/b".into());
    let env = own.env(given(), &[("lfs.x", "y".to_owned())]);
    assert!(
        env.contains(&given()[0]) && !env.iter().any(|(name, _)| name == CA_OF_ALL),
        "it would go before"
    );
    let config = config(&env);
    let files: Vec<_> = config
        .iter()
        .filter(|(key, _)| key.ends_with("sslCAInfo"))
        .collect();
    let wanted = [
        ("http.sslCAInfo", "/kept/ca.crt"),
        ("http.https://h/.sslCAInfo", "/a"),
    ];
    assert_eq!(
        files,
        wanted
            .map(|(key, file)| (key.to_owned(), file.to_owned()))
            .iter()
            .collect::<Vec<_>>()
    );
    assert!(config.contains(&("lfs.x".to_owned(), "y".to_owned())));
}

type Answer = Result<Fetched, FetchError<io::Error>>;

/// Answers each command with the first row whose word it contains, and records the commands.
struct Played<'a>(&'a [(&'a str, &'a str)], Mutex<Vec<String>>);

impl Git for Played<'_> {
    type Error = io::Error;

    async fn run_git(
        &self,
        args: &[&str],
        _env: &[(OsString, OsString)],
        dir: &Path,
    ) -> io::Result<Ended> {
        let line = args.join(" ");
        self.1.lock().unwrap().push(line.clone());
        if line.contains("+refs/heads/*") {
            let of = "\t\tbranch 'main' of http://h/r\n";
            fs::create_dir_all(dir.join(".git")).unwrap();
            fs::write(dir.join(".git/FETCH_HEAD"), "d".repeat(40) + of).unwrap();
        }
        if args[0] == "checkout" {
            let git_dir = if dir.join(".git").is_file() {
                dir.join("../.git/modules/1")
            } else {
                dir.join(".git")
            };
            fs::create_dir_all(&git_dir).unwrap();
            fs::write(git_dir.join("HEAD"), "c".repeat(40)).unwrap();
        }
        let output = self
            .0
            .iter()
            .find(|(word, _)| line.contains(word))
            .map_or("", |(_, said)| said);
        Ok(Ended {
            code: if output.is_empty() { 0 } else { 128 },
            output: output.to_owned(),
            ..Ended::default()
        })
    }

    async fn read_git<T: Send + 'static>(
        &self,
        args: &[&str],
        _env: &[(OsString, OsString)],
        dir: &Path,
        read: fn(File) -> T,
    ) -> io::Result<Option<T>> {
        let is_top = dir.join(".gitmodules").exists();
        let text = match args[0] {
            "ls-tree" if is_top => format!("160000 commit {} -\tm\0", "c".repeat(40)),
            "config" => "submodule.m.path\nm\0submodule.m.url\n../m.git\0".to_owned(),
            "ls-remote" => "ref: refs/heads/main\tHEAD\n".to_owned(),
            _ => String::new(),
        };
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        Ok(Some(read(file)))
    }
}

/// Fetches with these answers; returns the commands too.
async fn played(
    url: &str,
    revision: &str,
    answers: &[(&str, &str)],
    dir: &Path,
) -> (Answer, Vec<String>) {
    let played = Played(answers, Mutex::default());
    let fetched = repository(url, revision)
        .fetch(&played, Vec::new(), dir)
        .await;
    (fetched, played.1.into_inner().unwrap())
}

#[tokio::test]
async fn unadvertised_commit_is_fetched_with_branches() {
    let dir = tempfile::tempdir().unwrap();
    let commit = "c".repeat(40);
    let asked = async |revision: &str, answers: &[(&str, &str)]| {
        played("http://h/r.git", revision, answers, dir.path()).await
    };
    let (fetched, lines) = asked("main", &[]).await;
    assert_eq!((fetched.unwrap().commit, lines.len()), (commit.clone(), 3));
    assert!(lines[2].contains("FETCH_HEAD"), "{lines:?}");
    let (fetched, lines) = asked(
        &commit,
        &[(
            "--depth=1",
            "fatal: remote error: upload-pack: not our ref c",
        )],
    )
    .await;
    assert_eq!((fetched.unwrap().commit, lines.len()), (commit.clone(), 4));
    assert!(
        lines[2].contains("+refs/heads/*") && lines[3].contains(&format!("--detach {commit}")),
        "{lines:?}"
    );
    let (fetched, lines) = asked(
        "main",
        &[("--depth=1", "fatal: couldn't find remote ref main")],
    )
    .await;
    assert!(
        matches!(
            fetched,
            Err(FetchError::Refused {
                refusal: Refusal::NoRevision,
                ..
            })
        ),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 2, "nothing else is asked");
}

#[tokio::test]
async fn submodules_are_fetched_if_present() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".gitmodules"), "").unwrap();
    let asked =
        async |answers: &[(&str, &str)]| played("git@h:r.git", "main", answers, dir.path()).await;
    let (fetched, lines) = asked(&[]).await;
    assert_eq!(fetched.unwrap().commit, "c".repeat(40));
    let config = fs::read_to_string(dir.path().join(".git/config")).unwrap();
    assert!(
        config.contains("[submodule \"m\"]\n\tactive = true\n\turl = \"git@h:m.git\"\n"),
        "{config}"
    );
    assert_eq!(
        fs::read_to_string(dir.path().join("m/.git")).unwrap(),
        "gitdir: ../.git/modules/1\n"
    );
    assert!(
        lines[4].starts_with("fetch --quiet --no-recurse-submodules --depth=1")
            && lines[4].contains("-- git@h:m.git +cccc"),
        "{lines:?}"
    );
    let (fetched, _) = asked(&[("git@h:m.git", "fatal: transport 'file' not allowed")]).await;
    let Err(FetchError::Refused {
        refusal: Refusal::Invalid,
        message,
    }) = fetched
    else {
        panic!("{fetched:?}")
    };
    assert!(
        message.starts_with("submodule m: git@h:m.git leads to a transport"),
        "{message}"
    );
}
