//! Downloads an artifact (an archive on a web server), compares it with the digest in the run's spec, then unpacks it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crds::{ArtifactSource, Failure, Reason};
use tool_versions::{
    Error, Kind, Limits, archive,
    releases::http::{Ask, Auth, Client, Rules, address::shown_text},
};

use super::{PhaseRunner, fetch::files, inputs};
use crate::{
    classify::{OrInternal as _, internal, is_disk_full},
    files::Scratch,
    ports::{Notice, Notices},
};

/// Maximum archive size in bytes: 256 MiB.
const MOST: u64 = 256 << 20;
/// Limits of the unpacked content: 1 GiB, 50000 files and directories, 200 times the archive's size.
const LIMITS: Limits = Limits {
    size: 1 << 30,
    ratio: 200,
    entries: 50_000,
};
/// Time limit for unpacking.
const UNPACKING: Duration = Duration::from_secs(120);
/// Bytes between two progress notices.
const TELL: u64 = 1 << 20;

impl PhaseRunner {
    /// Downloads and unpacks an artifact into an empty directory. Returns its description for people.
    pub(super) async fn fetch_artifact(
        &self,
        artifact: &ArtifactSource,
        root: &Path,
        notices: &Notices,
    ) -> Result<String, Failure> {
        self.fetching(self.get_artifact(artifact, root, notices), notices)
            .await
    }

    async fn get_artifact(
        &self,
        artifact: &ArtifactSource,
        root: &Path,
        notices: &Notices,
    ) -> Result<String, Failure> {
        let secret = artifact
            .secret_ref
            .as_ref()
            .map(|secret| secret.name.as_str());
        let (auth, own) = secret.map_or(Ok((Auth::None, None)), |secret| {
            self.artifact_secret(secret)
        })?;
        let authorities: Vec<String> = self.settings.ca.iter().cloned().chain(own).collect();
        let authorities = (!authorities.is_empty()).then(|| authorities.join("\n"));
        let client = Client::new(Rules::default(), authorities.as_deref()).map_err(|_| {
            Reason::SourceUnauthorized
                .failure("ca.crt of the Secret of source.artifact.secretRef is no PEM with a certificate in it")
        })?;
        let kept = |error| internal("the artifact cannot be kept", &error);
        let packed = Scratch::create(&self.settings.kept).map_err(kept)?;
        let mut file = tokio::fs::File::from_std(packed.file().try_clone().map_err(kept)?);
        let ask = Ask {
            url: &artifact.url,
            what: "artifact",
            auth: &auth,
            cap: MOST,
            html: false,
        };
        let mut told = 0;
        let mut progress = |bytes: u64, _: Option<u64>| {
            if bytes < told || bytes - told >= TELL {
                told = bytes;
                let _ = notices.send(Notice::Happened);
            }
        };
        let at = shown_text(&artifact.url);
        client
            .download(ask, &mut file, &mut progress)
            .await
            .map_err(|error| of_fetch(error, &at, secret))?;
        let (wanted, name, root) = (artifact.digest.clone(), at.clone(), root.to_owned());
        let unpacked = tokio::task::spawn_blocking(move || unpack(&packed, &wanted, &name, &root));
        let count = unpacked
            .await
            .or_internal("the artifact cannot be unpacked")??;
        let _ = notices.send(Notice::Happened);
        let digest: String = artifact
            .digest
            .trim_start_matches("sha256:")
            .chars()
            .take(7)
            .collect();
        Ok(format!("artifact {digest} of {at}, {}", files(count)))
    }

    /// Reads a Secret's credentials and certificate authority. Both are used for this server only.
    fn artifact_secret(&self, secret: &str) -> Result<(Auth, Option<String>), Failure> {
        let dir = self.settings.secrets.join(secret);
        let credentials = ::source::Credentials::of(|key| inputs::mounted(&dir, key));
        let authority = inputs::mounted(&dir, "ca.crt");
        if credentials.is_none() && authority.is_none() {
            let message = format!(
                "Secret {secret} has none of the keys username and password, bearerToken, ca.crt"
            );
            return Err(Reason::SecretNotFound.failure(message));
        }
        credentials
            .iter()
            .flat_map(::source::Credentials::secrets)
            .for_each(|text| self.redactor.add(&text));
        let auth = match credentials {
            Some(::source::Credentials::Bearer(token)) if token.contains(['\n', '\r', '\0']) => {
                let message = format!("Secret {secret} holds a line break within a credential");
                return Err(Reason::SourceUnauthorized.failure(message));
            }
            Some(::source::Credentials::Bearer(token)) => Auth::Bearer(token),
            Some(::source::Credentials::Basic(user, password)) => Auth::Basic { user, password },
            None => Auth::None,
        };
        Ok((auth, authority))
    }
}

/// Compares an archive with its digest and unpacks it only if they match. Returns the number of files.
fn unpack(packed: &Scratch, wanted: &str, name: &str, root: &Path) -> Result<usize, Failure> {
    let found = packed.digest().or_internal("the artifact cannot be read")?;
    if found != wanted {
        let message = format!(
            "the content at {name} has the digest {found}, and the run names {wanted}; nothing was unpacked"
        );
        return Err(Reason::ArtifactMismatch.failure(message));
    }
    let unpacked = archive::unpack(
        name,
        packed.file(),
        &LIMITS,
        Instant::now() + UNPACKING,
        root,
    );
    unpacked
        .map(|unpacked| unpacked.files)
        .map_err(|error| match error.kind {
            Kind::Storage => on_disk(error),
            Kind::Configuration | Kind::Contradiction | Kind::Unavailable | Kind::Integrity => {
                Reason::SourceInvalid.failure(format!("the artifact {}", error.text))
            }
        })
}

fn of_fetch(error: Error, at: &str, secret: Option<&str>) -> Failure {
    let reason = match (error.status, error.kind) {
        (Some(404 | 410), _) => Reason::ArtifactNotFound,
        (Some(status @ (401 | 403)), Kind::Configuration) => {
            let what = secret.map_or_else(
                || "name a Secret with credentials in source.artifact.secretRef".to_owned(),
                |secret| format!("it does not take the credentials of Secret {secret}"),
            );
            return Reason::SourceUnauthorized.failure(format!(
                "{at} does not give the artifact ({status}): {what}"
            ));
        }
        (Some(status), Kind::Configuration) => {
            return Reason::SourceInvalid
                .failure(format!("{at} refuses to give the artifact ({status})"));
        }
        (_, Kind::Unavailable) => Reason::SourceUnreachable,
        (_, Kind::Storage) => return on_disk(error),
        (_, Kind::Configuration | Kind::Contradiction | Kind::Integrity) => Reason::SourceInvalid,
    };
    reason.failure(error.text)
}

fn on_disk(error: Error) -> Failure {
    let reason = if is_disk_full(&error.text) {
        Reason::DiskFull
    } else {
        Reason::AgentFault
    };
    reason.failure(error.text)
}
