//! A git server by ssh: Debian's own `sshd`, unpacked into the cache, in a mount namespace with users of its own.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use xtask::{cache::Cache, packages};

use super::repo::Repo;

/// How long it may take until it listens.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server; it ends with this value, and with this process.
#[derive(Debug)]
pub struct SshServer {
    server: Child,
    dir: tempfile::TempDir,
    root: PathBuf,
    addr: SocketAddr,
}

impl SshServer {
    /// Serves the bare repositories below `root` to whoever has its key. Needs root: it has an `/etc/passwd` of its own.
    pub fn start(ip: IpAddr, root: &Path) -> Result<Self> {
        let sshd = packages::unpacked(&Cache::open()?, "sshd", &["openssh-server", "libwrap0"])?;
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "identity", "other"] {
            keygen(&["-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", &at(key)])?;
        }
        keygen(&["-q", "-t", "ed25519", "-N", "passphrase", "-C", "tests", "-f", &at("locked")])?;
        std::fs::create_dir_all(root)?;
        // Free a moment ago.
        let addr = TcpListener::bind((ip, 0))?.local_addr()?;
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text);
        write(
            "sshd_config",
            format!(
                "ListenAddress {addr}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\nUseDNS no\n\
                 PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nAllowUsers git\n",
                at("host"),
                at("identity.pub"),
            ),
        )?;
        // Repositories of tests are root's, and so is this user, who has no shell but git's.
        let home = root.display();
        write(
            "passwd",
            format!(
                "sshd:x:105:65534::/run/sshd:/usr/sbin/nologin\ngit:x:0:0::{home}:/usr/bin/git-shell\nroot:x:0:0::/root:/bin/sh\n"
            ),
        )?;
        write("shadow", "sshd:*:::::::\ngit:*:::::::\nroot:*:::::::\n".to_owned())?;
        // Its end of the pipe closes with this process, however that ends.
        let script = "mount --bind \"$1/passwd\" /etc/passwd && mount --bind \"$1/shadow\" /etc/shadow && mount -t tmpfs tmpfs /run \
            && mkdir -m 755 /run/sshd || exit 1\n\
            LD_LIBRARY_PATH=\"$2/usr/lib/$(uname -m)-linux-gnu\" \"$2/usr/sbin/sshd\" -D -e -f \"$1/sshd_config\" &\nread -r _\nkill $!";
        let log = std::fs::File::create(dir.path().join("log"))?;
        let server = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .args([dir.path(), &sshd])
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("failed to start `unshare`")?;
        let mut server = Self { server, dir, root: root.to_owned(), addr };
        let begun = Instant::now();
        while TcpStream::connect(addr).is_err() {
            let ended = server.server.try_wait()?;
            ensure!(ended.is_none() && begun.elapsed() < PATIENCE, "sshd does not listen on {addr}: {}", server.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Creates an empty repository.
    pub fn create(&self, repo: &str) -> Result<Repo> {
        Repo::create(&self.root.join(format!("{repo}.git")))
    }

    /// The URL to clone `repo` from.
    pub fn url(&self, repo: &str) -> String {
        format!("ssh://git@{}/~/{repo}.git", self.addr)
    }

    /// A private key: `identity` is let in, `other` is not, `locked` has a passphrase.
    pub fn key(&self, name: &str) -> Result<String> {
        std::fs::read_to_string(self.dir.path().join(name)).with_context(|| format!("there is no key {name}"))
    }

    /// The line of `known_hosts` that makes this server known.
    pub fn known_hosts(&self) -> Result<String> {
        self.line("host.pub")
    }

    /// The same with a key that is not this server's.
    pub fn other_known_hosts(&self) -> Result<String> {
        self.line("other.pub")
    }

    fn line(&self, public: &str) -> Result<String> {
        let key = self.key(public)?;
        let words: Vec<&str> = key.split(' ').take(2).collect();
        Ok(format!("[{}]:{} {}", self.addr.ip(), self.addr.port(), words.join(" ")))
    }

    /// `SHA256:…` of its key.
    pub fn fingerprint(&self) -> Result<String> {
        let output = Command::new("ssh-keygen").arg("-lf").arg(self.dir.path().join("host.pub")).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split(' ').nth(1).map(str::to_owned).with_context(|| format!("no fingerprint in {text}"))
    }

    /// What it wrote down.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.server.stdin.take() {
            let _ = pipe.write_all(b"\n");
        }
        let _ = self.server.wait();
    }
}

fn keygen(args: &[&str]) -> Result<()> {
    let output =
        Command::new("ssh-keygen").args(args).output().context("failed to start `ssh-keygen`; is openssh-client there?")?;
    ensure!(output.status.success(), "ssh-keygen: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, fs, io};

    use source::{Ended, FetchError, Git, Login, Refusal, Repository, SshFiles};

    use super::*;
    use crate::servers::repo::Change;

    /// The git of this machine.
    struct Real;

    impl Git for Real {
        type Error = io::Error;

        async fn run_git(&self, args: &[&str], env: &[(OsString, OsString)], dir: &Path) -> io::Result<Ended> {
            let mut command = Command::new("git");
            command.args(args).env_clear().envs(env.iter().map(|(k, v)| (k, v))).current_dir(dir).stdin(Stdio::null());
            let output = command.output()?;
            Ok(Ended {
                code: output.status.code().unwrap_or(-1),
                output: String::from_utf8_lossy(&output.stderr).into_owned(),
                ..Ended::default()
            })
        }
    }

    type Fetched = Result<String, FetchError<io::Error>>;

    /// Fetches as the agent does; where it was fetched to.
    async fn fetch(url: &str, revision: &str, secret: &[(&str, String)]) -> (Fetched, tempfile::TempDir) {
        let (into, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let keys = keys.path().join("keys");
        let repository = Repository::new::<io::Error>(url, revision).unwrap();
        let value = |name: &str| secret.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        let host = repository.url().host().to_owned();
        let logins = [Login::of(&format!("https://{host}/"), &host, value).unwrap()];
        let files = SshFiles::create(&keys, &logins).unwrap();
        let env = vec![("PATH".into(), "/usr/bin:/bin".into()), ("HOME".into(), into.path().into())];
        let fetched = repository.with_ssh(keys.clone()).fetch(&Real, env, into.path()).await;
        files.remove().unwrap();
        assert!(!keys.exists(), "keys are left");
        (fetched, into)
    }

    fn refusal(fetched: Fetched) -> (Refusal, String) {
        match fetched {
            Err(FetchError::Refused { refusal, message }) => (refusal, message),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_repository_is_fetched_from_the_host_that_is_known_and_from_no_other() {
        let repos = tempfile::tempdir().unwrap();
        let server = SshServer::start("127.0.0.1".parse().unwrap(), repos.path()).unwrap();
        let repo = server.create("team/stack").unwrap();
        let first = repo.commit("main", &[("main.tf", "# one\n")]).unwrap();
        let last = repo.commit("main", &[("main.tf", "# two\n")]).unwrap();
        let url = server.url("team/stack");
        let known = ("known_hosts", server.known_hosts().unwrap());
        let key = |name: &str| ("identity", server.key(name).unwrap());

        let secret = [key("identity"), known.clone()];
        for (revision, commit, text) in [("main", &last, "# two\n"), (first.as_str(), &first, "# one\n")] {
            let (fetched, into) = fetch(&url, revision, &secret).await;
            assert_eq!(&fetched.unwrap(), commit, "{}", server.log());
            assert_eq!(fs::read_to_string(into.path().join("main.tf")).unwrap(), text);
        }
        let (fetched, _) = fetch(&server.url("team/none"), "main", &secret).await;
        assert_eq!(refusal(fetched).0, Refusal::NoRepository);
        let (fetched, _) = fetch(&url, "none", &secret).await;
        assert_eq!(refusal(fetched).0, Refusal::NoRevision);
        let (refused, message) = refusal(fetch(&url, "main", &[key("other"), known]).await.0);
        assert!(refused == Refusal::Unauthorized && message.contains("Permission denied"), "{message}");

        let fingerprint = server.fingerprint().unwrap();
        let (refused, message) = refusal(fetch(&url, "main", &[key("identity")]).await.0);
        assert_eq!(refused, Refusal::HostKey);
        assert!(message.contains("no key is known of") && message.contains(&fingerprint), "{message}");
        assert!(message.ends_with(&server.known_hosts().unwrap()), "{message}");
        let other = ("known_hosts", server.other_known_hosts().unwrap());
        let (refused, message) = refusal(fetch(&url, "main", &[key("identity"), other]).await.0);
        assert_eq!(refused, Refusal::HostKey);
        assert!(message.contains("another one is known of it") && message.contains(&fingerprint), "{message}");
        assert!(source::identity::Identity::parse(&server.key("locked").unwrap()).is_err());
    }

    #[tokio::test]
    async fn submodules_come_with_it_and_lead_nowhere_else() {
        let repos = tempfile::tempdir().unwrap();
        let server = SshServer::start("127.0.0.1".parse().unwrap(), repos.path()).unwrap();
        let secret = [("identity", server.key("identity").unwrap()), ("known_hosts", server.known_hosts().unwrap())];
        let deep = server.create("lib/deep").unwrap();
        let deep_commit = deep.commit("main", &[("deep.tf", "# deep\n")]).unwrap();
        let module = server.create("lib/module").unwrap();
        module.commit("main", &[("module.tf", "# old\n")]).unwrap();
        let nested = "[submodule \"deep\"]\n\tpath = deep\n\turl = ../deep.git\n";
        let module_commit = module
            .commit_changes(
                "main",
                &[
                    Change::File("module.tf", b"# new\n"),
                    Change::File(".gitmodules", nested.as_bytes()),
                    Change::Submodule("deep", &deep_commit),
                ],
            )
            .unwrap();
        module.commit("main", &[("module.tf", "# newer\n")]).unwrap();
        let stack = server.create("team/stack").unwrap();
        let modules = |url: &str| format!("[submodule \"m\"]\n\tpath = modules/m\n\turl = {url}\n");
        let commit = |url: &str| {
            let text = modules(url);
            let changes = [Change::File(".gitmodules", text.as_bytes()), Change::Submodule("modules/m", &module_commit)];
            stack.commit_changes("main", &changes).unwrap()
        };
        let url = server.url("team/stack");
        commit("../../lib/module.git");
        let (fetched, into) = fetch(&url, "main", &secret).await;
        fetched.unwrap_or_else(|error| panic!("{error}: {}", server.log()));
        let read = |path: &str| fs::read_to_string(into.path().join("modules/m").join(path)).unwrap();
        assert_eq!((read("module.tf"), read("deep/deep.tf")), ("# new\n".to_owned(), "# deep\n".to_owned()));

        let own = format!("file://{}", deep.dir().display());
        for evil in [own.as_str(), "ext::sh -c touch% /tmp/pawned", "--upload-pack=touch /tmp/pawned", "git@-oProxyCommand=x:y"] {
            commit(evil);
            let (fetched, into) = fetch(&url, "main", &secret).await;
            assert!(matches!(fetched, Err(FetchError::Refused { .. })), "{evil}: {fetched:?}");
            assert!(!into.path().join("modules/m/deep.tf").exists(), "{evil}");
        }
        assert!(!Path::new("/tmp/pawned").exists());
    }
}
