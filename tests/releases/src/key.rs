//! The signing key of test releases.

use std::io::Cursor;
use std::sync::Arc;

use anyhow::{Context, Result};
use pgp::composed::{
    ArmorOptions, DetachedSignature, KeyType, SecretKeyParamsBuilder, SignedSecretKey,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::ser::Serialize as _;
use pgp::types::{KeyDetails as _, Password, Timestamp};
use rand_08::SeedableRng as _;
use rand_08::rngs::StdRng;
use tool_versions::Fingerprint;

/// Creation time of all keys: November 2023, in Unix seconds.
const BORN: u32 = 1_700_000_000;

/// An OpenPGP key that is always the same: settings with its fingerprint outlive the program that signs. Everyone can derive it, so it
/// proves nothing outside of tests.
#[derive(Clone)]
pub struct Key {
    secret: Arc<SignedSecretKey>,
    armored: Arc<str>,
    fingerprint: Fingerprint,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.fingerprint)
    }
}

impl Key {
    pub fn test() -> Result<Self> {
        let params = SecretKeyParamsBuilder::default()
            .key_type(KeyType::Ed25519Legacy)
            .created_at(Timestamp::from_secs(BORN))
            .can_sign(true)
            .primary_user_id("Releases of tests <releases@example.org>".into())
            .build()
            .context("cannot describe a key")?;
        let secret = params
            .generate(StdRng::seed_from_u64(1))
            .context("cannot make a key")?;
        let public = secret.to_public_key();
        let armored = public
            .to_armored_string(ArmorOptions::default())
            .context("cannot write a key")?;
        let fingerprint = public.primary_key.fingerprint().to_string().parse()?;
        Ok(Self {
            secret: Arc::new(secret),
            armored: armored.into(),
            fingerprint,
        })
    }

    /// The public key, as in a `.asc`.
    pub fn armored(&self) -> &str {
        &self.armored
    }

    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// A binary signature over bytes, dated now, as in a `.sig` or `.gpgsig`.
    pub fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        // Only used for a salt, so it need not be secret.
        let any = StdRng::seed_from_u64(bytes.len() as u64);
        let (key, hash) = (&self.secret.primary_key, HashAlgorithm::Sha512);
        let signature = DetachedSignature::sign_binary_data(
            any,
            key,
            &Password::empty(),
            hash,
            Cursor::new(bytes),
        );
        signature
            .and_then(|signature| signature.to_bytes())
            .context("cannot sign")
    }
}
