//! The Git server, and the object server of the demo's layer, in a process that outlives the demo: the cluster stays up, and manual runs
//! need the servers.
//!
//! The process writes a note to the cluster's state directory, and ends when the note is gone, so removing the cluster ends its servers
//! too.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use harness::cluster::{Cluster, cache};
use harness::wait;
use servers::git::GitServer;
use servers::objects::ObjectServer;
use servers::port_forward::forward;

/// The port is fixed, so that older runs find their repository after a restart. The address belongs to the cluster.
const GIT_PORT: u16 = 3080;
/// The port of the object server, fixed for the same reason.
const OBJECT_PORT: u16 = 3081;
/// The loopback port of the web console.
const WEB_PORT: u16 = 3082;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Servers {
    pid: i32,
    git: SocketAddr,
    objects: SocketAddr,
    /// The address of the web console for a browser of this machine.
    pub(super) web: Option<SocketAddr>,
    /// The directory of the repositories.
    repositories: PathBuf,
}

impl Servers {
    /// Finds the servers of a cluster, or starts them.
    pub(super) async fn ensure(cluster: &Cluster) -> Result<Self> {
        if let Some(servers) = Self::find(cluster.state()) {
            return Ok(servers);
        }
        let directory = directory(cluster.state());
        cache::create_dir(&directory)?;
        let log_path = directory.join("servers.log");
        let log = std::fs::File::create(&log_path)
            .with_context(|| format!("cannot write {}", log_path.display()))?;
        let program = std::env::current_exe().context("this program does not know where it is")?;
        let child = Command::new(program)
            .arg("--serve")
            .arg(cluster.state())
            .args(["--address", &cluster.host().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share a log file")?)
            .stderr(log)
            .spawn()
            .context("cannot start the git server")?;
        let what = format!(
            "the git server comes up; see {}, then try `cargo demo --fresh`",
            log_path.display()
        );
        let child = Mutex::new(child);
        wait::until(what, Duration::from_secs(10), async || {
            let found = Self::find(cluster.state());
            if found.is_none()
                && let Some(status) = child
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .try_wait()?
            {
                let said = std::fs::read_to_string(&log_path).unwrap_or_default();
                bail!(
                    "the git server ended with {status}: {}; try `cargo demo --fresh`",
                    said.trim()
                );
            }
            Ok(found)
        })
        .await
    }

    pub(super) fn of(git: SocketAddr, objects: SocketAddr, repositories: &Path) -> Self {
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        Self {
            pid,
            git,
            objects,
            web: None,
            repositories: repositories.to_owned(),
        }
    }

    /// Ends the servers of a cluster, if they run.
    pub(super) fn end(state: &Path) {
        if let Some(servers) = Self::find(state) {
            // It may have ended meanwhile.
            let _ = kill(Pid::from_raw(servers.pid), Signal::SIGTERM);
        }
    }

    pub(super) fn git_url(&self, repository: &str) -> String {
        format!("http://{}/{repository}.git", self.git)
    }

    pub(super) fn object_url(&self, name: &str) -> String {
        format!("http://{}/objects/{name}", self.objects)
    }

    pub(super) async fn change_by_hand(&self, name: &str, text: &str) -> Result<()> {
        let asked = reqwest::Client::builder()
            .no_proxy()
            .build()?
            .put(self.object_url(name))
            .body(text.to_owned());
        asked
            .send()
            .await?
            .error_for_status()
            .context("the text cannot be changed")?;
        Ok(())
    }

    /// The path of a repository.
    pub(super) fn repository(&self, repository: &str) -> PathBuf {
        self.repositories.join(format!("{repository}.git"))
    }

    fn find(state: &Path) -> Option<Self> {
        let servers: Self = serde_json::from_slice(&std::fs::read(note(state)).ok()?).ok()?;
        servers.runs().then_some(servers)
    }

    /// Whether its process is alive, and not another with the same id.
    fn runs(&self) -> bool {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"--serve")
    }
}

fn directory(state: &Path) -> PathBuf {
    state.join("demo")
}

/// The file with the console's address in the cluster.
pub(super) fn web_target(state: &Path) -> PathBuf {
    directory(state).join("web")
}

fn note(state: &Path) -> PathBuf {
    directory(state).join("servers.json")
}

/// Serves the repositories of the cluster with this state directory, until its note is gone.
pub async fn serve(state: &Path, address: Ipv4Addr) -> Result<()> {
    // In a session of its own, so that Ctrl-C or a closed terminal only ends the demo.
    nix::unistd::setsid().context("cannot leave the session")?;
    let at = |port| SocketAddr::new(IpAddr::V4(address), port);
    let repositories = directory(state).join("repositories");
    let git = match GitServer::start(at(GIT_PORT), &repositories).await {
        Ok(server) => server,
        Err(_) => GitServer::start(at(0), &repositories).await?,
    };
    let objects = match ObjectServer::start(at(OBJECT_PORT)).await {
        Ok(server) => server,
        Err(_) => ObjectServer::start(at(0)).await?,
    };
    let loopback = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let web = match loopback(WEB_PORT).await {
        Ok(listener) => listener,
        Err(_) => loopback(0).await?,
    };
    let web_address = web.local_addr()?;
    let target = web_target(state);
    tokio::spawn(forward(web, move || std::fs::read_to_string(&target).ok()));
    let pid = i32::try_from(std::process::id()).context("a process id is out of range")?;
    let servers = Servers {
        pid,
        git: git.addr(),
        objects: objects.addr(),
        web: Some(web_address),
        repositories,
    };
    let draft = directory(state).join(".servers.json");
    cache::write(&draft, serde_json::to_vec(&servers)?)?;
    std::fs::rename(&draft, note(state)).context("cannot note where the servers are")?;
    while Servers::find(state).is_some_and(|noted| noted.pid == pid) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
