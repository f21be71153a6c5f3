//! An S3-compatible server with its own folder, behind TLS with a certificate of a private authority.

use std::{
    collections::HashMap,
    fs::{self, File},
    net::{IpAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use harness::cluster::pki::{Identity, Pki};
use harness::wait;

/// The bucket's name.
pub const NAME: &str = "pawl";
const ACCESS: &str = "pawl-test";
const SECRET: &str = "pawl-test-secret";

/// A running server; drop ends it.
#[derive(Debug)]
pub struct Bucket {
    server: Child,
    address: String,
    folder: TempDir,
}

impl Bucket {
    /// Starts the server at an address, with a certificate of that authority, and waits until it responds.
    ///
    /// # Errors
    /// When it does not respond.
    pub fn start(program: &Path, authority: &Pki, host: IpAddr) -> Result<Self> {
        let pair = authority.issue(Identity {
            file: "s3",
            user: "s3",
            group: "test",
            hosts: &[&host.to_string()],
        })?;
        let folder = tempfile::tempdir()?;
        let (data, metadata) = (folder.path().join("data"), folder.path().join("metadata"));
        fs::create_dir_all(data.join(NAME))?;
        fs::create_dir_all(&metadata)?;
        let (certificate, key) = (folder.path().join("crt"), folder.path().join("key"));
        fs::write(&certificate, pair.certificate)?;
        fs::write(&key, pair.key)?;
        let log = File::create(folder.path().join("log"))?;
        // A free port, which the server binds a moment later.
        let address = TcpListener::bind((host, 0))?.local_addr()?.to_string();
        let server = Command::new(program)
            .args([
                "--access",
                ACCESS,
                "--secret",
                SECRET,
                "--port",
                &address,
                "--quiet",
                "--keep-alive",
            ])
            .arg("--cert")
            .arg(&certificate)
            .arg("--key")
            .arg(&key)
            .args(["posix", "--sidecar"])
            .args([&metadata, &data])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut bucket = Self {
            server,
            address,
            folder,
        };
        wait::until_blocking("the S3 server answers", Duration::from_secs(60), || {
            let answer = TcpStream::connect(&bucket.address);
            if answer.is_err()
                && let Some(status) = bucket.server.try_wait()?
            {
                let log = fs::read_to_string(bucket.folder.path().join("log")).unwrap_or_default();
                bail!("the S3 server ended with {status}: {log}");
            }
            Ok(answer)
        })?;
        Ok(bucket)
    }

    /// The directory of its objects on this machine.
    pub fn objects(&self) -> PathBuf {
        self.folder.path().join("data").join(NAME)
    }

    /// The environment variables of the datastore's pod for it.
    pub fn variables(&self) -> HashMap<String, String> {
        [
            ("AWS_ACCESS_KEY_ID", ACCESS),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT", &format!("https://{}", self.address)),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
