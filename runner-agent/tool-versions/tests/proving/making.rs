//! Generated keys and signatures.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use pgp::{
    composed::{
        ArmorOptions, DetachedSignature, KeyType, SecretKeyParamsBuilder, SignedKeyDetails,
        SignedPublicKey, SignedPublicSubKey, SignedSecretKey, SubkeyParamsBuilder, SubpacketConfig,
    },
    crypto::hash::HashAlgorithm::{self, Sha1, Sha256, Sha512},
    packet::{
        KeyFlags, Signature, SignatureConfig, SignatureType, Subpacket, SubpacketData, UserId,
    },
    ser::Serialize as _,
    types::{
        Duration, KeyDetails, PacketHeaderVersion, Password, SignedUser, SigningKey, Tag, Timestamp,
    },
};
use rand_08::{SeedableRng as _, rngs::StdRng};
use tool_versions::Fingerprint;

/// The creation time of keys: November 2023.
pub(crate) const BORN: u32 = 1_700_000_000;

pub(crate) const DAY: u32 = 86_400;

/// The words of a [`Plan`].
const WORDS: [&str; 17] = [
    // Another key than the one without this word.
    "seed",
    // The primary key is RSA, which also accepts weak hashes, and takes seconds to generate.
    "rsa",
    // The primary key may not sign.
    "certifies",
    // Days until the primary key expires.
    "lasts",
    // The same in a newer self-signature.
    "prolonged",
    // That is a direct-key signature, not one over the user ID.
    "directly",
    "revoked",
    // The user ID is revoked.
    "disowned",
    // The key signed itself over SHA-1.
    "weak",
    // There is a subkey. The other words for it begin in the same way.
    "sub",
    "sub-certifies",
    "sub-lasts",
    "sub-revoked",
    "sub-weak",
    // The subkey does not countersign.
    "sub-silent",
    // The subkey countersigns for another primary key.
    "sub-for-another",
    // Another key signed the binding.
    "sub-by-another",
];

/// The parameters of a key: words, some with `=NUMBER`.
#[derive(Clone, Copy)]
struct Plan<'a>(&'a str);

impl Plan<'_> {
    fn has(self, name: &str) -> bool {
        self.0.split_whitespace().any(|word| word == name)
    }

    fn number(self, name: &str) -> Option<u32> {
        let mut words = self
            .0
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        words
            .find(|(word, _)| *word == name)
            .map(|(_, number)| number.parse().unwrap())
    }

    fn lasts(self, name: &str) -> Option<u32> {
        self.number(name).map(|days| days * DAY)
    }

    fn hash(self, weak: &str) -> HashAlgorithm {
        if self.has(weak) { Sha1 } else { Sha512 }
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

fn secret(seed: u32, rsa: bool) -> SignedSecretKey {
    /// Generated secrets: RSA takes seconds.
    static SECRETS: Mutex<BTreeMap<(u32, bool), SignedSecretKey>> = Mutex::new(BTreeMap::new());
    let kind = KeyType::ECDSA(pgp::crypto::ecc_curve::ECCCurve::P256);
    let born = Timestamp::from_secs(BORN);
    let mut params = SecretKeyParamsBuilder::default();
    params
        .key_type(if rsa {
            KeyType::Rsa(2048)
        } else {
            kind.clone()
        })
        .created_at(born)
        .can_sign(true);
    let sub = SubkeyParamsBuilder::default()
        .key_type(kind)
        .created_at(born)
        .can_sign(true)
        .build();
    params
        .primary_user_id("Test".into())
        .subkeys(vec![sub.unwrap()]);
    let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    let generate = || {
        params
            .build()
            .unwrap()
            .generate(StdRng::seed_from_u64(seed.into()))
            .unwrap()
    };
    secrets.entry((seed, rsa)).or_insert_with(generate).clone()
}

/// Makes a key as these [`WORDS`] describe it.
pub(crate) fn made(words: &str) -> Made {
    let name = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    assert!(
        words
            .split_whitespace()
            .all(|word| WORDS.contains(&name(word).as_str())),
        "{words}"
    );
    let plan = Plan(words);
    let secret = secret(plan.number("seed").unwrap_or(1), plan.has("rsa"));
    let (key, primary, none) = (
        &secret.primary_key,
        secret.primary_key.public_key(),
        Password::empty(),
    );
    let (hash, signs) = (plan.hash("weak"), !plan.has("certifies"));
    let id = UserId::from_str(PacketHeaderVersion::New, "Test <test@example.org>").unwrap();
    let about = |kind, at, lasts| {
        let config = config(key, kind, at, lasts, hash, signs);
        config
            .sign_certification(key, primary, &none, Tag::UserId, &id)
            .unwrap()
    };
    let over_key = |kind, at, lasts, signs| {
        config(key, kind, at, lasts, hash, signs)
            .sign_key(key, &none, primary)
            .unwrap()
    };
    let mut names = vec![about(
        SignatureType::CertPositive,
        BORN,
        plan.lasts("lasts"),
    )];
    let mut direct = Vec::new();
    let prolonged = plan.lasts("prolonged");
    if plan.has("directly") {
        direct.push(over_key(
            SignatureType::Key,
            BORN + DAY / 2,
            prolonged,
            signs,
        ));
    } else if prolonged.is_some() {
        // An older one may come after a newer one.
        names.insert(0, about(SignatureType::CertPositive, BORN + DAY, prolonged));
    }
    if plan.has("disowned") {
        names.push(about(SignatureType::CertRevocation, BORN + 2 * DAY, None));
    }
    let revocation = || over_key(SignatureType::KeyRevocation, BORN + DAY, None, false);
    let revocations = plan.has("revoked").then(revocation).into_iter().collect();
    let subkeys = plan
        .has("sub")
        .then(|| bound(plan, &secret))
        .into_iter()
        .collect();
    let details = SignedKeyDetails::new(
        revocations,
        direct,
        vec![SignedUser::new(id.clone(), names)],
        Vec::new(),
    );
    let public = SignedPublicKey {
        primary_key: primary.clone(),
        details,
        public_subkeys: subkeys,
    };
    Made { secret, public }
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
        part(SubpacketData::SignatureCreationTime(Timestamp::from_secs(
            at,
        ))),
        part(SubpacketData::IssuerFingerprint(key.fingerprint())),
        part(SubpacketData::KeyFlags(flags)),
    ];
    config.hashed_subpackets.extend(
        lasts.map(|lasts| part(SubpacketData::KeyExpirationTime(Duration::from_secs(lasts)))),
    );
    config
}

fn bound(plan: Plan<'_>, secret: &SignedSecretKey) -> SignedPublicSubKey {
    let (key, sub) = (&secret.primary_key, &secret.secret_subkeys[0].key);
    let (primary, none, hash) = (key.public_key(), Password::empty(), plan.hash("sub-weak"));
    let (lasts, signs) = (plan.lasts("sub-lasts"), !plan.has("sub-certifies"));
    let mut binding = config(key, SignatureType::SubkeyBinding, BORN, lasts, hash, signs);
    let stranger = self::secret(9, false).primary_key;
    if !plan.has("sub-silent") {
        let to = if plan.has("sub-for-another") {
            stranger.public_key()
        } else {
            primary
        };
        let back = config(sub, SignatureType::KeyBinding, BORN, None, Sha256, false);
        let back = back
            .sign_primary_key_binding(sub, sub.public_key(), &none, to)
            .unwrap();
        binding
            .hashed_subpackets
            .push(part(SubpacketData::EmbeddedSignature(Box::new(back))));
    }
    let by = if plan.has("sub-by-another") {
        &stranger
    } else {
        key
    };
    let mut signatures = vec![
        binding
            .sign_subkey_binding(by, primary, &none, sub.public_key())
            .unwrap(),
    ];
    if plan.has("sub-revoked") {
        let gone = config(
            key,
            SignatureType::SubkeyRevocation,
            BORN + DAY,
            None,
            hash,
            false,
        );
        signatures.push(
            gone.sign_subkey_binding(key, primary, &none, sub.public_key())
                .unwrap(),
        );
    }
    SignedPublicSubKey::new(sub.public_key().clone(), signatures)
}

fn fingerprint(key: &impl KeyDetails) -> Fingerprint {
    key.fingerprint().to_string().parse().unwrap()
}

impl Made {
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.secret.primary_key)
    }

    pub(crate) fn sub_fingerprint(&self) -> Fingerprint {
        fingerprint(&self.secret.secret_subkeys[0].key)
    }

    pub(crate) fn armored(&self) -> String {
        self.public
            .to_armored_string(ArmorOptions::default())
            .unwrap()
    }

    /// A signature by the primary key.
    pub(crate) fn sign(&self, data: &[u8], at: u32, hash: HashAlgorithm) -> Signature {
        sign(&self.secret.primary_key, data, at, hash, None)
    }

    /// A signature by the subkey.
    pub(crate) fn sub_sign(&self, data: &[u8], at: u32) -> Signature {
        sign(&self.secret.secret_subkeys[0].key, data, at, Sha256, None)
    }
}

pub(crate) fn sign(
    key: &impl SigningKey,
    data: &[u8],
    at: u32,
    hash: HashAlgorithm,
    lasts: Option<u32>,
) -> Signature {
    let mut hashed = vec![
        part(SubpacketData::IssuerFingerprint(key.fingerprint())),
        part(SubpacketData::SignatureCreationTime(Timestamp::from_secs(
            at,
        ))),
    ];
    hashed.extend(lasts.map(|lasts| {
        part(SubpacketData::SignatureExpirationTime(Duration::from_secs(
            lasts,
        )))
    }));
    let unhashed = vec![part(SubpacketData::IssuerKeyId(key.legacy_key_id()))];
    let parts = SubpacketConfig::UserDefined { hashed, unhashed };
    let rng = StdRng::seed_from_u64(7);
    DetachedSignature::sign_binary_data_with_subpackets(
        rng,
        key,
        &Password::empty(),
        hash,
        data,
        parts,
    )
    .unwrap()
    .signature
}

/// The format of a `.sig`.
pub(crate) fn binary(signature: &Signature) -> Vec<u8> {
    DetachedSignature::new(signature.clone())
        .to_bytes()
        .unwrap()
}

/// The format of a `.asc`.
pub(crate) fn armored(signature: &Signature) -> Vec<u8> {
    DetachedSignature::new(signature.clone())
        .to_armored_bytes(ArmorOptions::default())
        .unwrap()
}
