//! A forge: real Gitea with its own database. Its webhooks reach this machine only.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use xtask::gobuild::{FORGE, Toolset};

use harness::{cluster::pki::Pair, wait};

/// A longer wait indicates a defect, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The owner of all repositories.
const OWNER: &str = "root";

/// A running Gitea. It ends with this value, or with the thread that started it.
#[derive(Debug)]
pub struct Gitea {
    directory: TempDir,
    program: PathBuf,
    url: String,
    child: Mutex<Child>,
    token: String,
    http: reqwest::Client,
}

impl Gitea {
    /// The program and its files. Builds them if all suites must run; else `None` if they are missing.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn tools() -> Result<Option<Toolset>> {
        Toolset::of_suite(FORGE)
    }

    /// Starts Gitea on a free port of an address, with an administrator. Its webhooks reach loopback and the given networks, as
    /// `10.0.0.0/8,…`.
    ///
    /// # Errors
    /// When it does not respond.
    pub async fn start(tools: &Toolset, bind: IpAddr, networks: &str) -> Result<Self> {
        Self::over(tools, bind, networks, None).await
    }

    /// Like [`Self::start`], by https with a certificate of this authority (PEM).
    ///
    /// # Errors
    /// When it does not respond.
    pub async fn start_tls(
        tools: &Toolset,
        bind: IpAddr,
        pair: &Pair,
        authority: &str,
    ) -> Result<Self> {
        Self::over(tools, bind, "", Some((pair, authority))).await
    }

    async fn over(
        tools: &Toolset,
        bind: IpAddr,
        networks: &str,
        tls: Option<(&Pair, &str)>,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("pawl-gitea-").tempdir()?;
        let address = std::net::TcpListener::bind((bind, 0))?.local_addr()?;
        let program = tools.path("gitea")?.to_owned();
        let mut http = reqwest::Client::builder().no_proxy().timeout(PATIENCE);
        if let Some((pair, authority)) = tls {
            std::fs::write(directory.path().join("tls.crt"), &pair.certificate)?;
            std::fs::write(directory.path().join("tls.key"), &pair.key)?;
            let authority = reqwest::Certificate::from_pem(authority.as_bytes())?;
            http = http.tls_certs_merge([authority]);
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        std::fs::write(
            directory.path().join("app.ini"),
            settings(directory.path(), &program, address, &url, networks)?,
        )?;
        run(&program, directory.path(), &["migrate"])?;
        let password = word(16);
        let user = [
            "--username",
            OWNER,
            "--password",
            &password,
            "--email",
            "root@pawl.invalid",
            "--must-change-password=false",
        ];
        run(
            &program,
            directory.path(),
            &[&["admin", "user", "create", "--admin"][..], &user].concat(),
        )?;
        let token = [
            "admin",
            "user",
            "generate-access-token",
            "-u",
            OWNER,
            "--scopes",
            "all",
            "--raw",
        ];
        // The last line, after log output.
        let token = run(&program, directory.path(), &token)?
            .lines()
            .last()
            .unwrap_or_default()
            .trim()
            .to_owned();
        let gitea = Self {
            child: Mutex::new(web(&program, directory.path())?),
            directory,
            program,
            url,
            token,
            http: http.build()?,
        };
        gitea.wait().await?;
        Ok(gitea)
    }

    /// Ends it, and starts it again with the same address, repositories and hooks.
    ///
    /// # Errors
    /// When it does not respond again.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.child = Mutex::new(web(&self.program, self.directory.path())?);
        self.wait().await
    }

    /// Kills it.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        child.kill()?;
        child.wait().map(drop).context("gitea does not end")
    }

    async fn wait(&self) -> Result<()> {
        let look = async || {
            let answer = self.api(Method::GET, "user", &Value::Null).await;
            let ended = self
                .child
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .try_wait()?;
            ensure!(answer.is_ok() || ended.is_none(), "gitea ended");
            Ok(answer)
        };
        let answered = wait::until("gitea answers", PATIENCE, look).await;
        answered.map(drop).with_context(|| self.log())
    }

    /// Its URL: `http://ADDRESS:PORT`, or `https`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of a repository, without credentials.
    pub fn clone_url(&self, repository: &str) -> String {
        format!("{}/{OWNER}/{repository}.git", self.url())
    }

    /// The user and the token that may clone and push all repositories.
    pub fn credentials(&self) -> (&'static str, &str) {
        (OWNER, &self.token)
    }

    /// The same, with credentials.
    pub fn push_url(&self, repository: &str) -> String {
        let login = format!("://{OWNER}:{}@", self.token);
        self.clone_url(repository).replacen("://", &login, 1)
    }

    /// Creates a repository with a first commit on `main`.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn create(&self, repository: &str) -> Result<()> {
        let body = json!({"name": repository, "auto_init": true, "default_branch": "main", "private": true});
        self.api(Method::POST, "user/repos", &body).await.map(drop)
    }

    /// Writes a file on a branch; returns the commit's id.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn commit(
        &self,
        repository: &str,
        branch: &str,
        path: &str,
        text: &str,
    ) -> Result<String> {
        let place = format!("repos/{OWNER}/{repository}/contents/{path}");
        let there = self
            .api(Method::GET, &format!("{place}?ref={branch}"), &Value::Null)
            .await
            .ok();
        let mut body = json!({"branch": branch, "content": STANDARD.encode(text), "message": format!("Write {path}")});
        let method = match there.as_ref().and_then(|file| file["sha"].as_str()) {
            Some(sha) => {
                body["sha"] = sha.into();
                Method::PUT
            }
            None => Method::POST,
        };
        let answer = self.api(method, &place, &body).await?;
        answer["commit"]["sha"]
            .as_str()
            .map(str::to_owned)
            .context("gitea names no commit")
    }

    /// Creates a webhook for pushes, and for created and deleted branches, as JSON, signed with a secret. Returns the hook's id.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn hook(&self, repository: &str, url: &str, secret: &str) -> Result<i64> {
        let body = json!({"type": "gitea", "active": true, "events": ["push", "create", "delete", "issues"],
            "config": {"url": url, "content_type": "json", "secret": secret}});
        let hook = self
            .api(
                Method::POST,
                &format!("repos/{OWNER}/{repository}/hooks"),
                &body,
            )
            .await?;
        hook["id"].as_i64().context("gitea names no hook")
    }

    /// Creates a person who signs in with this password.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn person(&self, name: &str, password: &str) -> Result<()> {
        let user = json!({"username": name, "email": format!("{name}@pawl.invalid"), "password": password, "must_change_password": false});
        let user = self.api(Method::POST, "admin/users", &user).await;
        user.map(drop)
    }

    /// Creates a confidential OIDC client with this redirect URI. Returns its id and secret.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn client(&self, callback: &str) -> Result<(String, String)> {
        let app = json!({"name": "pawl", "confidential_client": true, "redirect_uris": [callback]});
        let app = self
            .api(Method::POST, "user/applications/oauth2", &app)
            .await?;
        let text = |name: &str| app[name].as_str().map(str::to_owned);
        let client = text("client_id").zip(text("client_secret"));
        client.context("gitea names no client")
    }

    /// Sends a request to the API below `/api/v1/`; null means no body.
    ///
    /// # Errors
    /// Gitea's message, when it refuses.
    pub async fn api(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let mut request = self
            .http
            .request(method.clone(), format!("{}/api/v1/{path}", self.url()));
        request = request.header("authorization", format!("token {}", self.token));
        if !body.is_null() {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let response = request.send().await?;
        let (status, text) = (response.status(), response.text().await?);
        ensure!(
            status.is_success(),
            "gitea: {method} {path}: {status}: {text}"
        );
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let text =
            std::fs::read_to_string(self.directory.path().join("web.log")).unwrap_or_default();
        harness::cluster::command::tail(&text, 20)
    }
}

impl Drop for Gitea {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Gitea's settings: it listens only on the given address, sends no mail and downloads nothing.
fn settings(
    directory: &Path,
    program: &Path,
    address: SocketAddr,
    url: &str,
    networks: &str,
) -> Result<String> {
    let data = directory.display();
    let shared = program
        .parent()
        .context("a program lies in a directory")?
        .display();
    let hosts = if networks.is_empty() {
        "loopback".to_owned()
    } else {
        format!("loopback,{networks}")
    };
    let (ip, port) = (address.ip(), address.port());
    let mut text = String::from("RUN_MODE = prod\nI_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true\n");
    let sections: &[(&str, &[(&str, String)])] = &[
        (
            "server",
            &[
                ("HTTP_ADDR", ip.to_string()),
                ("HTTP_PORT", port.to_string()),
                ("ROOT_URL", format!("{url}/")),
                ("PROTOCOL", url.split(':').next().unwrap_or_default().into()),
                ("CERT_FILE", format!("{data}/tls.crt")),
                ("KEY_FILE", format!("{data}/tls.key")),
                ("STATIC_ROOT_PATH", shared.to_string()),
                ("APP_DATA_PATH", format!("{data}/data")),
                ("DISABLE_SSH", "true".into()),
                ("OFFLINE_MODE", "true".into()),
            ],
        ),
        (
            "database",
            &[
                ("DB_TYPE", "sqlite3".into()),
                ("PATH", format!("{data}/gitea.db")),
            ],
        ),
        ("repository", &[("ROOT", format!("{data}/repositories"))]),
        ("git", &[("HOME_PATH", format!("{data}/home"))]),
        (
            "security",
            &[
                ("INSTALL_LOCK", "true".into()),
                ("SECRET_KEY", word(32)),
                ("INTERNAL_TOKEN", word(64)),
            ],
        ),
        // 32 bytes, as base64url without padding.
        ("oauth2", &[("JWT_SECRET", format!("{}A", word(42)))]),
        ("webhook", &[("ALLOWED_HOST_LIST", hosts)]),
        ("queue", &[("TYPE", "channel".into())]),
        ("indexer", &[("ISSUE_INDEXER_TYPE", "db".into())]),
        ("service", &[("DISABLE_REGISTRATION", "true".into())]),
        ("mailer", &[("ENABLED", "false".into())]),
        (
            "log",
            &[("MODE", "console".into()), ("LEVEL", "Warn".into())],
        ),
        ("cron", &[("ENABLED", "false".into())]),
        ("actions", &[("ENABLED", "false".into())]),
    ];
    for (section, entries) in sections {
        writeln!(text, "[{section}]")?;
        for (key, value) in *entries {
            writeln!(text, "{key} = {value}")?;
        }
    }
    Ok(text)
}

/// Starts the forge itself. It ends with its parent, even after a kill.
fn web(program: &Path, directory: &Path) -> Result<Child> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("web.log"))?;
    let mut web = command(Path::new("setpriv"), directory);
    web.args(["--pdeathsig", "KILL"])
        .arg(program)
        .args(["web", "--config"])
        .arg(directory.join("app.ini"));
    web.stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start gitea")
}

/// Runs a command of the program with the settings of a directory.
fn run(program: &Path, directory: &Path, arguments: &[&str]) -> Result<String> {
    let output = command(program, directory)
        .args(arguments)
        .arg("--config")
        .arg(directory.join("app.ini"))
        .output();
    let output = output.context("cannot run gitea")?;
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        output.status.success(),
        "gitea {}: {said}{complained}",
        arguments[0]
    );
    Ok(said.into_owned())
}

fn command(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
        .env("HOME", directory)
        .env("GITEA_WORK_DIR", directory)
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}

/// Random letters and digits.
fn word(length: usize) -> String {
    use rand::Rng as _;
    rand::rng()
        .sample_iter(rand::distr::Alphanumeric)
        .take(length)
        .map(char::from)
        .collect()
}
