//! OpenPGP keys, and which of them may sign.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use pgp::{
    composed::{Deserializable as _, SignedPublicKey, SignedPublicSubKey},
    crypto::hash::HashAlgorithm,
    packet::{PublicKey, PublicSubkey, Signature, SignatureType},
    types::{KeyDetails, Tag},
};

use crate::{Error, Result, Tool, verify::digest::beginning};

/// The largest text of keys, in bytes: 1 MiB.
const LARGEST: usize = 1 << 20;

const BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

const END: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// HashiCorp's key of 2021, for Terraform. Its subkey `374EC75B485913604A831CC7C820C6D5CD27AB87` signs releases. This copy
/// expires on 2030-03-01; copies from before 2026-02 expired in 2026-04 (see [`crate::verify::signature`]).
pub const HASHICORP: &str = "C874011F0AB405110D02105534365D9472D7468F";

/// OpenTofu's key of 2023, for stable releases. It does not expire.
pub const OPENTOFU: &str = "E3E6E43D84CB852EADB0051D0C0AF313E5FD9F80";

/// Gruntwork's key of 2026, for Terragrunt. The key itself is not built in and must be configured.
pub const GRUNTWORK: &str = "68C80F86DF98E710C0F22E2E577774ACA847CC49";

/// The fingerprint of a key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(Vec<u8>);

impl Fingerprint {
    pub(crate) fn of(key: &impl KeyDetails) -> Self {
        Self(key.fingerprint().as_bytes().to_vec())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    /// Parses 40 or 64 hex digits (keys of version 4 and 6) in any case and grouping. A key ID is an error, since collisions can
    /// be produced.
    fn from_str(text: &str) -> Result<Self> {
        let digits: String = text.split_whitespace().collect();
        let bytes = hex::decode(digits.strip_prefix("0x").unwrap_or(&digits))
            .ok()
            .filter(|bytes| matches!(bytes.len(), 20 | 32));
        let fault = || {
            let text = beginning(text.as_bytes());
            Error::configuration(format!(
                "`{text}` is no fingerprint of an OpenPGP key, which has 40 or 64 hexadecimal digits"
            ))
        };
        bytes.map(Self).ok_or_else(fault)
    }
}

/// The keys that may sign.
#[derive(Clone, Debug)]
pub struct Keyring {
    expected: Vec<Fingerprint>,
    pub(crate) signers: Vec<Signer>,
}

impl Keyring {
    /// The key of the project of a tool.
    ///
    /// For Terragrunt only the fingerprint is built in: [`Keyring::verify`] then fails, and [`Keyring::from_armored`] takes the
    /// key together with [`GRUNTWORK`].
    pub fn built_in(tool: Tool) -> Result<Self> {
        let (fingerprint, text) = match tool {
            Tool::OpenTofu => (OPENTOFU, include_str!("../../keys/opentofu.asc")),
            Tool::Terraform => (HASHICORP, include_str!("../../keys/hashicorp.asc")),
            Tool::Terragrunt => {
                return Ok(Self {
                    expected: vec![GRUNTWORK.parse()?],
                    signers: Vec::new(),
                });
            }
        };
        Self::from_armored(text, &[fingerprint.parse()?])
    }

    /// Reads an operator's keys: armored blocks with any text between them. Only parts that the key itself has signed count.
    ///
    /// Ignores keys with other fingerprints. Configuration: a fingerprint has no key, the text is no key, or a key cannot sign.
    pub fn from_armored(text: &str, fingerprints: &[Fingerprint]) -> Result<Self> {
        if text.len() > LARGEST {
            return Err(Error::configuration(format!(
                "keys of {} bytes, and {LARGEST} at most are read",
                text.len()
            )));
        }
        if fingerprints.is_empty() {
            return Err(Error::configuration(
                "no fingerprint is given of the keys, and none is taken without",
            ));
        }
        let mut found = Vec::new();
        let mut signers = Vec::new();
        for key in blocks(text)? {
            let fingerprint = Fingerprint::of(&key.primary_key);
            if fingerprints.contains(&fingerprint) && !found.contains(&fingerprint) {
                signers.extend(signers_of(&key, &fingerprint)?);
            }
            found.push(fingerprint);
        }
        if let Some(missing) = fingerprints
            .iter()
            .find(|fingerprint| !found.contains(fingerprint))
        {
            let found = list(&found);
            return Err(Error::configuration(format!(
                "there is no key with the fingerprint {missing}, only {found}"
            )));
        }
        Ok(Self {
            expected: fingerprints.to_vec(),
            signers,
        })
    }

    /// The expected fingerprints, of primary keys.
    pub fn fingerprints(&self) -> &[Fingerprint] {
        &self.expected
    }

    /// Whether the key with this fingerprint, in hex, is in the ring and not revoked.
    pub(crate) fn has(&self, fingerprint: &str) -> bool {
        self.signers
            .iter()
            .any(|signer| signer.primary.to_string() == fingerprint && !signer.revoked)
    }

    /// Whether there is no key to verify with.
    pub fn is_empty(&self) -> bool {
        self.signers.is_empty()
    }
}

/// Joins fingerprints for a message.
pub(crate) fn list(fingerprints: &[Fingerprint]) -> String {
    fingerprints
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A key or subkey that may sign.
#[derive(Clone, Debug)]
pub(crate) struct Signer {
    pub key: Public,
    /// The fingerprint of the primary key.
    pub primary: Fingerprint,
    /// Creation time, in Unix seconds.
    pub from: u64,
    /// Expiry in Unix seconds, if any: its own or that of the primary key.
    pub until: Option<u64>,
    /// Whether it or the primary key is revoked.
    pub revoked: bool,
}

/// The public key.
#[derive(Clone, Debug)]
pub(crate) enum Public {
    Primary(PublicKey),
    Sub(PublicSubkey),
}

impl Signer {
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        match &self.key {
            Public::Primary(key) => Fingerprint::of(key),
            Public::Sub(key) => Fingerprint::of(key),
        }
    }

    /// Whether a signature names this key as its issuer, or no issuer at all.
    pub(crate) fn is_named_by(&self, signature: &Signature) -> bool {
        let (fingerprint, id) = match &self.key {
            Public::Primary(key) => (key.fingerprint(), key.legacy_key_id()),
            Public::Sub(key) => (key.fingerprint(), key.legacy_key_id()),
        };
        let (fingerprints, ids) = (signature.issuer_fingerprint(), signature.issuer_key_id());
        if fingerprints.is_empty() {
            ids.is_empty() || ids.contains(&&id)
        } else {
            fingerprints.contains(&&fingerprint)
        }
    }

    /// Whether this key made a signature over these bytes.
    pub(crate) fn made(&self, signature: &Signature, data: &[u8]) -> bool {
        let made = match &self.key {
            Public::Primary(key) => signature.verify(key, data),
            Public::Sub(key) => signature.verify(key, data),
        };
        made.is_ok()
    }
}

/// Whether a hash resists collisions. MD5, SHA-1 and RIPEMD-160 do not, or not for long.
pub(crate) const fn is_strong(hash: Option<HashAlgorithm>) -> bool {
    use HashAlgorithm as H;
    matches!(
        hash,
        Some(H::Sha256 | H::Sha384 | H::Sha512 | H::Sha3_256 | H::Sha3_512)
    )
}

/// The text of a library error, without the backtrace that it adds when `RUST_BACKTRACE` is set.
pub(crate) fn says(error: &pgp::errors::Error) -> String {
    let text = error.to_string();
    let text = text.split("backtrace").next().unwrap_or_default();
    beginning(text.trim_end_matches([' ', ',', '{', '(']).as_bytes())
}

/// Parses the keys of a text.
fn blocks(text: &str) -> Result<Vec<SignedPublicKey>> {
    let fault = |what: &str| Error::configuration(format!("no OpenPGP key can be read: {what}"));
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some((_, block)) = rest.split_once(BEGIN) {
        let (block, after) = block
            .split_once(END)
            .ok_or_else(|| fault(&format!("a block has no `{END}`")))?;
        rest = after;
        let block = format!("{BEGIN}{block}{END}\n");
        let (read, _) = SignedPublicKey::from_armor_many(block.as_bytes())
            .map_err(|error| fault(&says(&error)))?;
        for key in read {
            keys.push(key.map_err(|error| fault(&says(&error)))?);
        }
    }
    if keys.is_empty() {
        return Err(fault(&format!(
            "there is no `{BEGIN}`, it begins with `{}`",
            beginning(text.as_bytes())
        )));
    }
    Ok(keys)
}

/// The key and subkeys that may sign.
fn signers_of(key: &SignedPublicKey, fingerprint: &Fingerprint) -> Result<Vec<Signer>> {
    let fault = |what: &str| Error::configuration(format!("the key {fingerprint} {what}"));
    let primary = &key.primary_key;
    let itself = self_signature(key)
        .ok_or_else(|| fault("has not signed itself, or only with a hash that proves nothing"))?;
    let revoked = key
        .details
        .revocation_signatures
        .iter()
        .any(|signature| signature.verify_key(primary).is_ok());
    let created = u64::from(primary.created_at().as_secs());
    let until = end(created, itself);
    let mut signers = Vec::new();
    if itself.key_flags().sign() {
        let key = Public::Primary(primary.clone());
        signers.push(Signer {
            key,
            primary: fingerprint.clone(),
            from: created,
            until,
            revoked,
        });
    }
    for sub in &key.public_subkeys {
        let Some(binding) = binding_of(sub, primary) else {
            continue;
        };
        let is_revocation =
            |signature: &&Signature| signature.typ() == Some(SignatureType::SubkeyRevocation);
        let own = sub
            .signatures
            .iter()
            .filter(is_revocation)
            .any(|s| s.verify_subkey_binding(primary, &sub.key).is_ok());
        let from = u64::from(sub.key.created_at().as_secs()).max(created);
        signers.push(Signer {
            key: Public::Sub(sub.key.clone()),
            primary: fingerprint.clone(),
            from,
            until: [until, end(sub.key.created_at().as_secs().into(), binding)]
                .into_iter()
                .flatten()
                .min(),
            revoked: revoked || own,
        });
    }
    if signers.is_empty() {
        return Err(fault(
            "is not one to sign with, and neither has it a subkey that is",
        ));
    }
    Ok(signers)
}

/// The expiry of a key, from the signature that states its properties.
fn end(created: u64, signature: &Signature) -> Option<u64> {
    let lasts = signature
        .key_expiration_time()
        .map(|lasts| u64::from(lasts.as_secs()));
    lasts
        .filter(|lasts| *lasts > 0)
        .map(|lasts| created + lasts)
}

/// The newest self-signature: a direct-key one, or one over a user ID that is not revoked.
fn self_signature(key: &SignedPublicKey) -> Option<&Signature> {
    let primary = &key.primary_key;
    let direct = key
        .details
        .direct_signatures
        .iter()
        .filter(|signature| signature.verify_key(primary).is_ok());
    let named = key.details.users.iter().filter_map(|user| {
        let valid = |signature: &&Signature| {
            signature
                .verify_certification(primary, Tag::UserId, &user.id)
                .is_ok()
        };
        let newest = user
            .signatures
            .iter()
            .filter(valid)
            .max_by_key(|s| (s.created(), s.typ() == Some(SignatureType::CertRevocation)));
        newest.filter(|signature| signature.typ() != Some(SignatureType::CertRevocation))
    });
    direct
        .chain(named)
        .filter(|signature| is_strong(signature.hash_alg()))
        .max_by_key(|signature| signature.created())
}

/// The newest binding of a subkey that permits signing and has the countersignature of the subkey. Without the latter anyone
/// could bind another's subkey to a key of their own.
fn binding_of<'a>(sub: &'a SignedPublicSubKey, primary: &PublicKey) -> Option<&'a Signature> {
    let valid = |signature: &&Signature| {
        signature.typ() == Some(SignatureType::SubkeyBinding)
            && is_strong(signature.hash_alg())
            && signature.verify_subkey_binding(primary, &sub.key).is_ok()
    };
    let newest = sub
        .signatures
        .iter()
        .filter(valid)
        .max_by_key(|signature| signature.created())?;
    let back = newest
        .embedded_signature()
        .filter(|back| is_strong(back.hash_alg()))?;
    (newest.key_flags().sign() && back.verify_primary_key_binding(&sub.key, primary).is_ok())
        .then_some(newest)
}

/// Converts an OpenPGP time.
pub(crate) fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
