//! The datastore's store, with the same checks on a folder and on an S3-compatible server behind TLS: conditional writes, multipart
//! uploads, logs, claims, states and their locks. Needs neither root nor a cluster.
//!
//! As in the chart's pod, environment variables configure the trusted authorities: a directory in addition to the system's file. So the
//! checks run in a second process, whose environment the first one sets.

mod checks;

use std::{
    collections::HashMap,
    env,
    net::Ipv4Addr,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
};

use anyhow::{Context, Result};
use datastore::{
    blob::{sealed::Sealed, store::Store},
    crypt::keys::Keys,
};
use futures::future::BoxFuture;
use harness::cluster::{
    gobuild::{BUCKETS, Toolset},
    pki::Pki,
};
use libtest_mimic::{Arguments, Trial};
use servers::bucket::{self, Bucket};
use tempfile::TempDir;

/// A separate store for one check.
pub(crate) struct Place {
    url: String,
    variables: HashMap<String, String>,
    keys: TempDir,
    _folder: Option<TempDir>,
}

impl Place {
    fn folder() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let url = format!("file://{}", folder.path().display());
        Ok(Self {
            url,
            variables: HashMap::new(),
            keys: keys()?,
            _folder: Some(folder),
        })
    }

    fn bucket(bucket: &Bucket, prefix: &str) -> Result<Self> {
        Ok(Self {
            url: format!("s3://{}/{prefix}", bucket::NAME),
            variables: bucket.variables(),
            keys: keys()?,
            _folder: None,
        })
    }

    /// Opens it like a process; each replica has its own connection.
    pub(crate) fn open(&self) -> Result<Sealed> {
        Ok(Sealed::new(
            self.store()?,
            Arc::new(Keys::open(self.keys.path())?),
        ))
    }

    pub(crate) fn store(&self) -> Result<Store> {
        Ok(Store::open(&self.url, &self.variables)?)
    }

    /// The same store with a wrong secret.
    pub(crate) fn of_a_stranger(&self) -> Option<Result<Store>> {
        let mut variables = self.variables.clone();
        variables
            .insert("AWS_SECRET_ACCESS_KEY".into(), "wrong".into())
            .map(|_| Ok(Store::open(&self.url, &variables)?))
    }
}

fn keys() -> Result<TempDir> {
    let keys = tempfile::tempdir()?;
    // Base64 of 32 zero bytes.
    std::fs::write(
        keys.path().join("k1"),
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    )?;
    std::fs::write(keys.path().join("active"), "k1")?;
    Ok(keys)
}

type Check = Arc<dyn Fn(Arc<Place>) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// In the second process: the directory of its trusted authorities.
const TRUSTED: &str = "PAWL_STORE_TRUSTED";

fn main() -> Result<ExitCode> {
    let Some(trusted) = env::var_os(TRUSTED) else {
        let trusted = tempfile::tempdir()?;
        let mut again = Command::new(env::current_exe()?);
        again
            .args(env::args_os().skip(1))
            .env(TRUSTED, trusted.path());
        again
            .env("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
            .env("SSL_CERT_DIR", trusted.path());
        let code = again
            .status()?
            .code()
            .and_then(|code| u8::try_from(code).ok());
        return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
    };
    let files = tempfile::tempdir()?;
    let authority = Pki::bare(files.path(), "pawl-test-bucket")?;
    std::fs::copy(
        files.path().join("ca.crt"),
        Path::new(&trusted).join("ca.crt"),
    )?;
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    // Fails only if one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bucket = match Toolset::of_suite(BUCKETS)? {
        Some(tools) if !arguments.list => Some(Arc::new(Bucket::start(
            tools.path("versitygw")?,
            &authority,
            Ipv4Addr::LOCALHOST.into(),
        )?)),
        Some(_) => None,
        None => {
            println!(
                "left out: the checks on S3 (its server is not built yet; `PAWL_SUITES=1` builds it)"
            );
            None
        }
    };
    let mut trials = Vec::new();
    for (name, check) in checks::all() {
        let on_s3 = check.clone();
        trials.push(Trial::test(format!("folder: {name}"), move || {
            run(&check, Place::folder())
        }));
        if let Some(bucket) = bucket.clone() {
            let place = move || Place::bucket(&bucket, &name.replace(' ', "-"));
            trials.push(Trial::test(format!("s3: {name}"), move || {
                run(&on_s3, place())
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!(
        "{} passed, {} failed",
        conclusion.num_passed, conclusion.num_failed
    );
    Ok(conclusion.exit_code())
}

fn run(check: &Check, place: Result<Place>) -> Result<(), libtest_mimic::Failed> {
    let checked = place.and_then(|place| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("no runtime")?;
        runtime.block_on(check(Arc::new(place)))
    });
    checked.map_err(|error| format!("{error:#}").into())
}
