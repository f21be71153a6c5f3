//! An executable: from the cache, or downloaded, verified and installed by one process at a time.

use std::{
    fs::File,
    io::{self, BufReader, Seek as _},
    time::{Duration, Instant, SystemTime},
};

use super::{Channel, Installer, Keys, Verification};
use crate::{
    Digest, Error, Kind, Limits, Platform, Result, Signed, Source, Sums, Tool, Version, archive,
    cache::store::{
        Installed,
        install::{Proof, Turn},
        verify::InUse,
    },
    releases::{http, mirror::Assets},
    verify::{digest::beginning, signature, sums},
};

/// The origin of an executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Cached,
    Installed {
        /// The base of the mirror, without credentials.
        from: String,
        /// The fingerprint of the signer.
        signer: Option<String>,
        /// The length of the archive in bytes.
        bytes: u64,
        /// The duration, with verification and installation.
        took: Duration,
    },
}

/// A verified executable.
#[derive(Debug)]
pub struct Got {
    /// The version is not pruned while this lives.
    pub in_use: InUse,
    pub origin: Origin,
    /// A caveat about the verification.
    pub remark: Option<String>,
}

impl Installer {
    /// Returns the executable of a version. A verified version costs a few system calls. One process installs a missing version;
    /// the others wait and find it.
    ///
    /// # Errors
    /// Integrity when downloaded or cached bytes are not the published ones; they are removed. Configuration when there is no
    /// such version, unavailable when the mirror or another installer does not finish in time, storage for the disk.
    pub async fn get(
        &self,
        tool: Tool,
        version: &Version,
        progress: http::Progress<'_>,
    ) -> Result<Got> {
        if let Some(got) = self.cached(tool, version).await? {
            return Ok(got);
        }
        let begun = Instant::now();
        let channel = self
            .channel(tool)
            .filter(|channel| self.may_read(channel))
            .ok_or_else(|| {
                let why = if self.offline {
                    "the network is not used (offline)"
                } else {
                    "there is no mirror of it"
                };
                Error::configuration(format!("{tool} {version} is not at hand, and {why}"))
            })?;
        let (store, of, patience) = (self.store.clone(), version.clone(), self.patience);
        let turn = apart(move || store.turn(tool, &of, patience)).await?;
        // The previous holder of the lock has most likely installed it.
        if let Some(got) = self.cached(tool, version).await? {
            return Ok(got);
        }
        let (installed, signer, bytes) = self.install(channel, turn, progress).await?;
        let in_use = self.take(installed).await?;
        let from = channel.mirror.base.to_string();
        let origin = Origin::Installed {
            from,
            signer,
            bytes,
            took: begun.elapsed(),
        };
        let remark = channel
            .verification
            .lowered()
            .map(|how| format!("{how} ({})", channel.mirror.base));
        Ok(Got {
            in_use,
            origin,
            remark,
        })
    }

    /// The cached version, if its proof meets the current settings. A version that was installed with less verification, or signed by a key
    /// that left the ring, is verified again.
    async fn cached(&self, tool: Tool, version: &Version) -> Result<Option<Got>> {
        let all = self.store.all(tool, version)?;
        if all.is_empty() {
            return Ok(None);
        }
        let ring = match self.channel(tool).map(|channel| &channel.verification) {
            None => Some(Keys::BuiltIn.ring(tool)?),
            Some(Verification::Signature(keys)) => Some(keys.ring(tool)?),
            Some(Verification::Sums | Verification::Nothing) => None,
        };
        for installed in all {
            let proof = self.store.proof(&installed)?;
            let proven = match (&proof.signer, &ring) {
                (_, None) => true,
                (Some(signer), Some(ring)) => ring.has(signer),
                (None, Some(_)) => false,
            };
            if proven {
                let remark = proof
                    .signer
                    .is_none()
                    .then(|| format!("installed from {} without a signature", proof.source));
                return Ok(Some(Got {
                    in_use: self.take(installed).await?,
                    origin: Origin::Cached,
                    remark,
                }));
            }
        }
        Ok(None)
    }

    /// Takes a version into use. The signed sums of Terragrunt do not name the version, so an older release would verify as any version.
    /// Therefore its executable is run once with `--version`.
    async fn take(&self, installed: Installed) -> Result<InUse> {
        let (store, ask) = (self.store.clone(), self.ask.clone());
        let runs_here = self.platform == Platform::here();
        apart(move || {
            let in_use = store.take(installed)?;
            let Installed { tool, version, binary, .. } = &in_use.installed;
            if *tool != Tool::Terragrunt || !runs_here {
                return Ok(in_use);
            }
            let (mut proof, wanted) = (store.proof(&in_use.installed)?, version.to_string());
            if proof.said.as_ref() == Some(&wanted) {
                return Ok(in_use);
            }
            let said = ask.version_of(binary).map_err(|error| Error::storage(binary.display(), &error))?;
            if said.split_whitespace().any(|word| word.parse::<Version>().is_ok_and(|said| said == *version)) {
                proof.said = Some(wanted);
                // A read-only cache asks again the next time.
                let _ = in_use.installed.set_proof(&proof);
                return Ok(in_use);
            }
            let said = beginning(said.as_bytes());
            let text =
                format!("the download of {tool} {version} reports version `{said}`: it is another release; it was removed");
            store.discard(in_use)?;
            Err(Error::integrity(text))
        })
        .await
    }

    async fn install(
        &self,
        channel: &Channel,
        turn: Turn,
        progress: http::Progress<'_>,
    ) -> Result<(Installed, Option<String>, u64)> {
        let (tool, version) = (turn.tool(), turn.version().clone());
        let source = channel.source()?;
        let assets = channel.mirror.assets(&version, &self.platform);
        let what = format!("{tool} {version} for {}", self.platform);
        // The sums are small, and without a valid signature the archive is not downloaded.
        let (sums, signed) = sums_of(channel, &source, &assets, &what).await?;
        let mut file = tokio::fs::File::from_std(turn.nameless()?);
        let bytes = source
            .download(
                &assets.archive,
                &what,
                &mut file,
                self.limits.size,
                progress,
            )
            .await?;
        let file = file.into_std().await;
        let signer = signed.map(|signed| signed.key.to_string());
        let (limits, source, by) = (
            self.limits,
            assets.archive.location.to_string(),
            signer.clone(),
        );
        let (name, entry) = (assets.archive.name, assets.entry);
        let installed = apart(move || {
            unpack(
                &turn,
                file,
                &Wanted {
                    name,
                    entry,
                    limits,
                    source,
                    sums,
                    signer: by,
                },
            )
        })
        .await?;
        Ok((installed, signer, bytes))
    }
}

/// The expected content of an archive.
struct Wanted {
    name: String,
    entry: String,
    limits: Limits,
    source: String,
    sums: Option<Sums>,
    signer: Option<String>,
}

/// Downloads the sums, verifies their signature, and checks that they list the archive.
async fn sums_of(
    channel: &Channel,
    source: &Source,
    assets: &Assets,
    what: &str,
) -> Result<(Option<Sums>, Option<Signed>)> {
    let keys = match &channel.verification {
        Verification::Signature(keys) => Some(keys.ring(channel.mirror.tool)?),
        Verification::Sums => None,
        Verification::Nothing => return Ok((None, None)),
    };
    let text = source
        .small(
            &assets.sums.location,
            &format!("the sums of {what}"),
            sums::LARGEST as u64,
        )
        .await?;
    let signed = match keys {
        Some(keys) => {
            let signature = signature_of(source, assets, what).await?;
            Some(keys.verify(&assets.sums.name, &text, &signature, SystemTime::now())?)
        }
        None => None,
    };
    let sums = Sums::parse(&text)?;
    sums.of(&assets.archive.name)?;
    Ok((Some(sums), signed))
}

/// Returns the first signature that exists.
async fn signature_of(source: &Source, assets: &Assets, what: &str) -> Result<Vec<u8>> {
    let mut missing = Vec::new();
    for asset in &assets.signatures {
        let what = format!("the signature of {what}");
        match source
            .small(&asset.location, &what, signature::LARGEST as u64)
            .await
        {
            Err(error) if error.kind == Kind::Configuration => missing.push(error.text),
            answer => return answer,
        }
    }
    Err(Error::integrity(format!(
        "{what} is not signed: {}; nothing was installed",
        missing.join("; ")
    )))
}

/// Compares the archive with its sum and installs its executable.
fn unpack(turn: &Turn, mut file: File, wanted: &Wanted) -> Result<Installed> {
    let Wanted {
        name,
        entry,
        limits,
        ..
    } = wanted;
    let storage = |error: &io::Error| Error::storage(name, error);
    file.rewind().map_err(|error| storage(&error))?;
    let found = Digest::read(BufReader::with_capacity(256 * 1024, &file))
        .map_err(|error| storage(&error))?;
    if let Some(sums) = &wanted.sums {
        sums.check(name, &found)?;
    }
    let mut staging = turn.begin()?;
    archive::take(
        name,
        BufReader::with_capacity(256 * 1024, &file),
        entry,
        limits,
        &mut staging,
    )?;
    staging.commit(&Proof {
        source: wanted.source.clone(),
        archive: found.to_string(),
        signer: wanted.signer.clone(),
        said: None,
    })
}

/// Runs blocking work.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(Error::storage(
            "the cache of tools",
            &io::Error::other(error),
        ))
    })
}
