//! Generated keys and signatures.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use pgp::{
    composed::{
        ArmorOptions, DetachedSignature, KeyType, SecretKeyParamsBuilder, SignedKeyDetails, SignedPublicKey, SignedPublicSubKey,
        SignedSecretKey, SubkeyParamsBuilder, SubpacketConfig,
    },
    crypto::hash::HashAlgorithm,
    packet::{KeyFlags, Signature, SignatureConfig, SignatureType, Subpacket, SubpacketData, UserId},
    ser::Serialize as _,
    types::{Duration, KeyDetails, PacketHeaderVersion, Password, SignedUser, SigningKey, Tag, Timestamp},
};
use rand_08::{SeedableRng as _, rngs::StdRng};
use tool_versions::Fingerprint;

/// The creation time of keys: November 2023.
pub(crate) const BORN: u32 = 1_700_000_000;

pub(crate) const DAY: u32 = 86_400;

/// The parameters of a key.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub seed: u64,
    /// Whether the primary key is RSA, which also accepts weak hashes, and takes seconds to generate.
    pub rsa: bool,
    /// Whether the primary key may sign.
    pub signs: bool,
    /// Seconds until the primary key expires.
    pub lasts: Option<u32>,
    /// A newer self-signature with another expiry.
    pub prolonged: Option<u32>,
    /// Whether that is a direct-key signature, not one over the user ID.
    pub directly: bool,
    pub revoked: bool,
    /// Whether the user ID is revoked.
    pub disowned: bool,
    pub hash: HashAlgorithm,
    pub sub: Option<Sub>,
}

/// The parameters of its subkey.
#[derive(Clone, Debug)]
pub(crate) struct Sub {
    pub signs: bool,
    pub lasts: Option<u32>,
    pub revoked: bool,
    pub flaw: Option<Flaw>,
    pub hash: HashAlgorithm,
}

/// A flaw in the binding of a subkey.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flaw {
    /// The subkey does not countersign.
    Silent,
    /// The subkey countersigns for another primary key.
    AgreesToAnother,
    /// Another key signed the binding.
    BoundByAnother,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 1,
            rsa: false,
            signs: true,
            lasts: None,
            prolonged: None,
            directly: false,
            revoked: false,
            disowned: false,
            hash: HashAlgorithm::Sha512,
            sub: None,
        }
    }
}

impl Default for Sub {
    fn default() -> Self {
        Self { signs: true, lasts: None, revoked: false, flaw: None, hash: HashAlgorithm::Sha512 }
    }
}

/// A key pair.
pub(crate) struct Made {
    pub secret: SignedSecretKey,
    pub public: SignedPublicKey,
}

fn part(data: SubpacketData) -> Subpacket {
    Subpacket::regular(data).unwrap()
}

/// Generated secrets by seed and kind: RSA takes seconds.
static SECRETS: Mutex<BTreeMap<(u64, bool), SignedSecretKey>> = Mutex::new(BTreeMap::new());

impl Plan {
    fn secret(&self) -> SignedSecretKey {
        let kind = KeyType::ECDSA(pgp::crypto::ecc_curve::ECCCurve::P256);
        let mut params = SecretKeyParamsBuilder::default();
        params
            .key_type(if self.rsa { KeyType::Rsa(2048) } else { kind.clone() })
            .created_at(Timestamp::from_secs(BORN))
            .can_sign(true)
            .primary_user_id("Test".into());
        let sub = SubkeyParamsBuilder::default().key_type(kind).created_at(Timestamp::from_secs(BORN)).can_sign(true).build();
        params.subkeys(vec![sub.unwrap()]);
        let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
        let generate = || params.build().unwrap().generate(StdRng::seed_from_u64(self.seed)).unwrap();
        secrets.entry((self.seed, self.rsa)).or_insert_with(generate).clone()
    }

    pub(crate) fn make(&self) -> Made {
        let secret = self.secret();
        let primary = secret.primary_key.public_key();

        let id = UserId::from_str(PacketHeaderVersion::New, "Test <test@example.org>").unwrap();
        let about = |kind, at, lasts, hash| {
            let config = config(&secret.primary_key, kind, at, lasts, hash, self.signs);
            config.sign_certification(&secret.primary_key, primary, &Password::empty(), Tag::UserId, &id).unwrap()
        };
        let mut names = vec![about(SignatureType::CertPositive, BORN, self.lasts, self.hash)];
        let mut direct = Vec::new();
        if self.directly {
            let config = config(&secret.primary_key, SignatureType::Key, BORN + DAY / 2, self.prolonged, self.hash, self.signs);
            direct.push(config.sign_key(&secret.primary_key, &Password::empty(), primary).unwrap());
        } else if let Some(lasts) = self.prolonged {
            // An older one may come after a newer one.
            names.insert(0, about(SignatureType::CertPositive, BORN + DAY, Some(lasts), self.hash));
        }
        if self.disowned {
            names.push(about(SignatureType::CertRevocation, BORN + 2 * DAY, None, self.hash));
        }
        let mut revocations = Vec::new();
        if self.revoked {
            let config = config(&secret.primary_key, SignatureType::KeyRevocation, BORN + DAY, None, self.hash, false);
            revocations.push(config.sign_key(&secret.primary_key, &Password::empty(), primary).unwrap());
        }
        let subkeys = self.sub.iter().map(|plan| bound(plan, &secret)).collect();
        let details = SignedKeyDetails::new(revocations, direct, vec![SignedUser::new(id.clone(), names)], Vec::new());
        let public = SignedPublicKey { primary_key: primary.clone(), details, public_subkeys: subkeys };
        Made { secret, public }
    }
}

fn config(
    key: &impl KeyDetails,
    kind: SignatureType,
    at: u32,
    lasts: Option<u32>,
    hash: HashAlgorithm,
    signs: bool,
) -> SignatureConfig {
    let mut config = SignatureConfig::v4(kind, key.algorithm(), hash);
    let mut flags = KeyFlags::default();
    flags.set_certify(true);
    flags.set_sign(signs);
    config.hashed_subpackets = vec![
        part(SubpacketData::SignatureCreationTime(Timestamp::from_secs(at))),
        part(SubpacketData::IssuerFingerprint(key.fingerprint())),
        part(SubpacketData::KeyFlags(flags)),
    ];
    config.hashed_subpackets.extend(lasts.map(|lasts| part(SubpacketData::KeyExpirationTime(Duration::from_secs(lasts)))));
    config
}

fn bound(plan: &Sub, secret: &SignedSecretKey) -> SignedPublicSubKey {
    let sub = &secret.secret_subkeys[0].key;
    let (primary, none) = (secret.primary_key.public_key(), Password::empty());
    let mut binding = config(&secret.primary_key, SignatureType::SubkeyBinding, BORN, plan.lasts, plan.hash, plan.signs);
    let stranger = Plan { seed: 9, ..Plan::default() }.secret().primary_key;
    if !matches!(plan.flaw, Some(Flaw::Silent)) {
        let to = if matches!(plan.flaw, Some(Flaw::AgreesToAnother)) { stranger.public_key() } else { primary };
        let back = config(sub, SignatureType::KeyBinding, BORN, None, HashAlgorithm::Sha256, false);
        let back = back.sign_primary_key_binding(sub, sub.public_key(), &none, to).unwrap();
        binding.hashed_subpackets.push(part(SubpacketData::EmbeddedSignature(Box::new(back))));
    }
    let by = if matches!(plan.flaw, Some(Flaw::BoundByAnother)) { &stranger } else { &secret.primary_key };
    let mut signatures = vec![binding.sign_subkey_binding(by, primary, &none, sub.public_key()).unwrap()];
    if plan.revoked {
        let gone = config(&secret.primary_key, SignatureType::SubkeyRevocation, BORN + DAY, None, plan.hash, false);
        signatures.push(gone.sign_subkey_binding(&secret.primary_key, primary, &none, sub.public_key()).unwrap());
    }
    SignedPublicSubKey::new(sub.public_key().clone(), signatures)
}

impl Made {
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.secret.primary_key.fingerprint().to_string().parse().unwrap()
    }

    pub(crate) fn sub_fingerprint(&self) -> Fingerprint {
        self.secret.secret_subkeys[0].key.fingerprint().to_string().parse().unwrap()
    }

    pub(crate) fn armored(&self) -> String {
        self.public.to_armored_string(ArmorOptions::default()).unwrap()
    }

    /// A signature by the primary key.
    pub(crate) fn sign(&self, data: &[u8], at: u32, hash: HashAlgorithm) -> Signature {
        sign(&self.secret.primary_key, data, at, hash, None)
    }

    /// A signature by the subkey.
    pub(crate) fn sub_sign(&self, data: &[u8], at: u32) -> Signature {
        sign(&self.secret.secret_subkeys[0].key, data, at, HashAlgorithm::Sha256, None)
    }
}

pub(crate) fn sign(key: &impl SigningKey, data: &[u8], at: u32, hash: HashAlgorithm, lasts: Option<u32>) -> Signature {
    let mut hashed = vec![
        part(SubpacketData::IssuerFingerprint(key.fingerprint())),
        part(SubpacketData::SignatureCreationTime(Timestamp::from_secs(at))),
    ];
    hashed.extend(lasts.map(|lasts| part(SubpacketData::SignatureExpirationTime(Duration::from_secs(lasts)))));
    let unhashed = vec![part(SubpacketData::IssuerKeyId(key.legacy_key_id()))];
    let parts = SubpacketConfig::UserDefined { hashed, unhashed };
    let rng = StdRng::seed_from_u64(7);
    DetachedSignature::sign_binary_data_with_subpackets(rng, key, &Password::empty(), hash, data, parts).unwrap().signature
}

/// The format of a `.sig`.
pub(crate) fn binary(signature: &Signature) -> Vec<u8> {
    DetachedSignature::new(signature.clone()).to_bytes().unwrap()
}

/// The format of a `.asc`.
pub(crate) fn armored(signature: &Signature) -> Vec<u8> {
    DetachedSignature::new(signature.clone()).to_armored_bytes(ArmorOptions::default()).unwrap()
}
