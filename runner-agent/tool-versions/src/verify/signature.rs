//! Detached OpenPGP signatures over `SHA256SUMS` (`.sig`, `.gpgsig`).
//!
//! # Keys that expire A signature from before the expiry of its key stays valid, since projects do not sign releases again. The time of a
//! signature is the signer's claim, and a thief of the key can claim any time. So expiry does not protect against theft. Revocation does,
//! if the copy of the key contains it. Built-in copies are as new as the program, configured ones as their file. A copy may also be older
//! than the last extension of the key, such as copies of HashiCorp's key from before 2026-02, which expire in 2026-04: they refuse newer
//! releases, and report [`Signed::has_expired`] for older ones.

use std::time::{Duration, SystemTime};

use pgp::{
    composed::{Deserializable as _, DetachedSignature},
    packet::{Signature, SignatureType, SignatureVersion},
};

use crate::{
    Error, Result,
    verify::{
        digest::beginning,
        keys::{Fingerprint, Keyring, Signer, is_strong, list, says, time},
        sums::is_html,
    },
};

/// The largest signature file, in bytes: 64 KiB. A signature has 100 to 1000 bytes.
pub const LARGEST: usize = 64 << 10;

/// The most signatures of a file that are checked.
const MOST: usize = 16;

/// The tolerated clock skew of a signature in the future.
const AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// The signer and time of a valid signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The fingerprint of the primary key.
    pub key: Fingerprint,
    /// The fingerprint of the signing key: the same, or a subkey.
    pub by: Fingerprint,
    /// The signing time, as the signer claims.
    pub at: SystemTime,
    /// Whether the key has expired since.
    pub has_expired: bool,
}

impl Keyring {
    /// Verifies a signature over these bytes by one of the keys. `what` names them in messages; `signature` is binary or armored,
    /// with one or more signatures, of which one must be valid; `now` is the time to judge by.
    ///
    /// Integrity, with the expected and the found fingerprints: no signature; an unknown, revoked or expired key, or one created
    /// later; other bytes; a weak hash (MD5, SHA-1); a text signature; an expired signature, or one from the future.
    /// Configuration: the ring has a fingerprint and no key.
    pub fn verify(
        &self,
        what: &str,
        data: &[u8],
        signature: &[u8],
        now: SystemTime,
    ) -> Result<Signed> {
        let expected = list(self.fingerprints());
        if self.is_empty() {
            return Err(Error::configuration(format!(
                "{what} cannot be verified: the key with the fingerprint {expected} is not built in and has to be configured"
            )));
        }
        let fault = |fault: &str| {
            Error::integrity(format!("{what} {fault}; it has to be signed by {expected}"))
        };
        let mut faults = Vec::new();
        for signature in read(signature).map_err(|found| fault(&found))? {
            match self.judge(&signature, data, now) {
                Ok(signed) => return Ok(signed),
                Err(found) => faults.push(found),
            }
        }
        Err(fault(&faults.join(", and ")))
    }

    /// Verifies one signature; the error is a part of a sentence.
    fn judge(&self, signature: &Signature, data: &[u8], now: SystemTime) -> Result<Signed, String> {
        let found = maker(signature);
        let mut candidates = self
            .signers
            .iter()
            .filter(|signer| signer.is_named_by(signature))
            .peekable();
        if candidates.peek().is_none() {
            return Err(format!("is signed by {found}, which is not known"));
        }
        if !matches!(
            signature.version(),
            SignatureVersion::V4 | SignatureVersion::V6
        ) {
            return Err(format!(
                "has a signature by {found} in format {:?}, which is too old",
                signature.version()
            ));
        }
        if signature.typ() != Some(SignatureType::Binary) {
            return Err(format!(
                "has a signature by {found} that is not one over the bytes of a file, but {:?}",
                signature.typ()
            ));
        }
        if !is_strong(signature.hash_alg()) {
            let hash = signature
                .hash_alg()
                .map_or_else(|| "an unknown one".to_owned(), |hash| hash.to_string());
            return Err(format!(
                "has a signature by {found} over a hash that proves nothing, {hash}"
            ));
        }
        let signer = candidates.find(|signer| signer.made(signature, data));
        let signer = signer
            .ok_or_else(|| format!("is not what {found} signed: the signature does not match"))?;
        in_time(signature, signer, now).map_err(|why| format!("has a signature by {found}, {why}"))
    }
}

/// Checks the times of a matching signature.
fn in_time(
    signature: &Signature,
    signer: &Signer,
    now: SystemTime,
) -> Result<Signed, &'static str> {
    if signer.revoked {
        return Err("which was revoked");
    }
    let at = u64::from(
        signature
            .created()
            .ok_or("that does not say when it was made")?
            .as_secs(),
    );
    if at < signer.from {
        return Err("that was made before the key was");
    }
    if signer.until.is_some_and(|until| at >= until) {
        return Err("that was made after the key had expired");
    }
    if time(at) > now + AHEAD {
        return Err("that was made in the future");
    }
    let lasts = signature
        .signature_expiration_time()
        .map_or(0, pgp::types::Duration::as_secs);
    if lasts > 0 && time(at + u64::from(lasts)) <= now {
        return Err("that has expired");
    }
    let has_expired = signer.until.is_some_and(|until| time(until) <= now);
    Ok(Signed {
        key: signer.primary.clone(),
        by: signer.fingerprint(),
        at: time(at),
        has_expired,
    })
}

/// Parses the signatures of a file; at least one.
fn read(bytes: &[u8]) -> Result<Vec<Signature>, String> {
    if bytes.trim_ascii().is_empty() {
        return Err("has no signature: that file is empty".to_owned());
    }
    if bytes.len() > LARGEST {
        return Err(format!(
            "has no signature: that file has {} bytes, and {LARGEST} at most are read",
            bytes.len()
        ));
    }
    let fault = |error: &str| {
        let html = if is_html(bytes) {
            "a page of HTML"
        } else {
            "no OpenPGP signature"
        };
        format!(
            "has no signature: that file is {html} ({error}), it begins with `{}`",
            beginning(bytes)
        )
    };
    let (signatures, _) =
        DetachedSignature::from_reader_many_buf(bytes).map_err(|error| fault(&says(&error)))?;
    let read: Result<Vec<_>, _> = signatures
        .take(MOST)
        .map(|signature| signature.map(|signature| signature.signature))
        .collect();
    let read = read.map_err(|error| fault(&says(&error)))?;
    if read.is_empty() {
        Err(fault("nothing of it can be read"))
    } else {
        Ok(read)
    }
}

/// The issuer, as the signature claims.
fn maker(signature: &Signature) -> String {
    let fingerprints = signature
        .issuer_fingerprint()
        .into_iter()
        .map(ToString::to_string);
    let ids = signature
        .issuer_key_id()
        .into_iter()
        .map(ToString::to_string);
    match fingerprints.chain(ids).next() {
        Some(found) => format!("key {}", found.to_uppercase()),
        None => "a key that it does not name".to_owned(),
    }
}
