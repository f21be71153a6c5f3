//! A Git server by ssh: Debian's `sshd`, unpacked into the cache, in a mount namespace with its own users.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use xtask::{cache::Cache, packages};

use super::repo::Repo;
use harness::wait;

/// The default port.
const SSH: u16 = 22;
/// Time limit until it listens.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. It ends with this value, and with this process.
#[derive(Debug)]
pub struct SshServer {
    server: Child,
    dir: tempfile::TempDir,
    root: PathBuf,
    addr: SocketAddr,
}

impl SshServer {
    /// Serves the bare repositories below `root` to the holder of its key. Needs root to mount its own `/etc/passwd`.
    pub fn start(ip: IpAddr, root: &Path) -> Result<Self> {
        Self::start_at((ip, 0).into(), root)
    }

    /// Like [`Self::start`], at a given port. Uses a free port if it is in use, for example by the machine's own `sshd`.
    pub fn start_at(wanted: SocketAddr, root: &Path) -> Result<Self> {
        let sshd = packages::unpacked(&Cache::open()?, "sshd", &["openssh-server", "libwrap0"])?;
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "identity", "other"] {
            keygen(&[
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                "tests",
                "-f",
                &at(key),
            ])?;
        }
        keygen(&[
            "-q",
            "-t",
            "ed25519",
            "-N",
            "passphrase",
            "-C",
            "tests",
            "-f",
            &at("locked"),
        ])?;
        std::fs::create_dir_all(root)?;
        // A free port, which sshd binds a moment later.
        let free = TcpListener::bind(wanted).or_else(|_| TcpListener::bind((wanted.ip(), 0)));
        let addr = free?.local_addr()?;
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
        // The tests' repositories belong to root, so this user has UID 0; its shell is git's.
        let home = root.display();
        write(
            "passwd",
            format!(
                "sshd:x:105:65534::/run/sshd:/usr/sbin/nologin\ngit:x:0:0::{home}:/usr/bin/git-shell\nroot:x:0:0::/root:/bin/sh\n"
            ),
        )?;
        write(
            "shadow",
            "sshd:*:::::::\ngit:*:::::::\nroot:*:::::::\n".to_owned(),
        )?;
        // The kernel closes this process's end of the pipe when it ends, even after a kill.
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
        let mut server = Self {
            server,
            dir,
            root: root.to_owned(),
            addr,
        };
        let listens = wait::until_blocking(format!("sshd listens on {addr}"), PATIENCE, || {
            let answer = TcpStream::connect(addr);
            ensure!(
                answer.is_ok() || server.server.try_wait()?.is_none(),
                "sshd ended"
            );
            Ok(answer)
        });
        listens.with_context(|| server.log())?;
        Ok(server)
    }

    pub fn create(&self, repo: &str) -> Result<Repo> {
        Repo::create(&self.root.join(format!("{repo}.git")))
    }

    /// The clone URL of `repo`; in scp form at the default port.
    pub fn url(&self, repo: &str) -> String {
        if self.addr.port() == SSH {
            format!("git@{}:{repo}.git", self.addr.ip())
        } else {
            self.long_url(repo)
        }
    }

    /// The `ssh://` URL with the port.
    pub fn long_url(&self, repo: &str) -> String {
        format!("ssh://git@{}/~/{repo}.git", self.addr)
    }

    /// A private key: `identity` is authorised, `other` is not, `locked` has a passphrase.
    pub fn key(&self, name: &str) -> Result<String> {
        std::fs::read_to_string(self.dir.path().join(name))
            .with_context(|| format!("there is no key {name}"))
    }

    /// The `known_hosts` line of this server.
    pub fn known_hosts(&self) -> Result<String> {
        self.line("host.pub")
    }

    /// A `known_hosts` line with another key.
    pub fn other_known_hosts(&self) -> Result<String> {
        self.line("other.pub")
    }

    fn line(&self, public: &str) -> Result<String> {
        let key = self.key(public)?;
        let words: Vec<&str> = key.split(' ').take(2).collect();
        let host = match self.addr.port() {
            SSH => self.addr.ip().to_string(),
            port => format!("[{}]:{port}", self.addr.ip()),
        };
        Ok(format!("{host} {}", words.join(" ")))
    }

    /// `SHA256:…` of its key.
    pub fn fingerprint(&self) -> Result<String> {
        let output = Command::new("ssh-keygen")
            .arg("-lf")
            .arg(self.dir.path().join("host.pub"))
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split(' ')
            .nth(1)
            .map(str::to_owned)
            .with_context(|| format!("no fingerprint in {text}"))
    }

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
    let output = Command::new("ssh-keygen")
        .args(args)
        .output()
        .context("failed to start `ssh-keygen`; is openssh-client there?")?;
    ensure!(
        output.status.success(),
        "ssh-keygen: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
