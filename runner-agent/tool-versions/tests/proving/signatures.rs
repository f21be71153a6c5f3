//! The rules for signatures: signer, content, time.

use std::time::{Duration, SystemTime};

use pgp::{
    composed::DetachedSignature,
    crypto::hash::HashAlgorithm::{Md5, Ripemd160, Sha1, Sha256, Sha512},
    packet::{Signature, SignatureConfig, SignatureType, Subpacket, SubpacketData},
    types::{Fingerprint, KeyDetails as _, Password, Timestamp},
};
use rand_08::{SeedableRng as _, rngs::StdRng};
use tool_versions::{Keyring, Kind, Result, Signed, Tool};

use super::{
    failed,
    making::{BORN, DAY, Made, armored, binary, made, sign},
};
use crate::{fails, table};

const DATA: &[u8] = b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  x.zip\n";

/// 1000 days after the creation of the key.
const NOW: u32 = BORN + 1000 * DAY;

fn at(seconds: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into())
}

fn opened(made: &Made) -> Result<Keyring> {
    Keyring::from_armored(&made.armored(), &[made.fingerprint()])
}

/// Verifies the bytes of a signature file over data.
fn read(made: &Made, data: &[u8], signature: &[u8]) -> Result<Signed> {
    opened(made)
        .unwrap()
        .verify("SHA256SUMS", data, signature, at(NOW))
}

fn verified(made: &Made, signature: &Signature) -> Result<Signed> {
    read(made, DATA, &binary(signature))
}

/// Asserts a result: `good`, `good until NOW` for a key that has expired since, or a part of the error.
#[track_caller]
fn is(result: Result<Signed>, wanted: &str, what: &str) {
    let found = result.map(|signed| {
        if signed.has_expired {
            "good until NOW"
        } else {
            "good"
        }
    });
    match found {
        Ok(found) => assert_eq!(found, wanted, "{what}"),
        Err(error) => assert!(
            error.kind == Kind::Integrity && error.text.contains(wanted),
            "{what}: {error}"
        ),
    }
}

#[test]
fn good_signature_reports_signer_and_time() {
    let made = made("");
    let signature = made.sign(DATA, BORN + DAY, Sha256);
    let expected = Signed {
        key: made.fingerprint(),
        by: made.fingerprint(),
        at: at(BORN + DAY),
        has_expired: false,
    };
    let stranger = self::made("seed=2").sign(DATA, BORN + DAY, Sha256);
    for bytes in [
        binary(&signature),
        armored(&signature),
        // With CR LF, and as one of several.
        String::from_utf8(armored(&signature))
            .unwrap()
            .replace('\n', "\r\n")
            .into_bytes(),
        [&stranger, &signature].map(binary).concat(),
        [&signature, &stranger].map(binary).concat(),
    ] {
        assert_eq!(read(&made, DATA, &bytes).unwrap(), expected);
    }
}

#[test]
fn other_bytes_are_refused() {
    let made = made("");
    let signature = binary(&made.sign(DATA, BORN + DAY, Sha256));
    let named = made.fingerprint().to_string();
    for data in [
        b"".as_slice(),
        &DATA[1..],
        &[DATA, b"\n"].concat(),
        &DATA.to_ascii_uppercase(),
    ] {
        failed(
            read(&made, data, &signature),
            Kind::Integrity,
            &["SHA256SUMS", "does not match", &named],
        );
    }
}

/// A signature whose hashed part is the time, and an issuer if there is one.
fn claimed(by: &Made, issuer: Option<Fingerprint>) -> Signature {
    let key = &by.secret.primary_key;
    let mut config = SignatureConfig::v4(SignatureType::Binary, key.algorithm(), Sha256);
    let time = SubpacketData::SignatureCreationTime(Timestamp::from_secs(BORN + DAY));
    let parts = [Some(time), issuer.map(SubpacketData::IssuerFingerprint)];
    config.hashed_subpackets = parts
        .into_iter()
        .flatten()
        .map(|part| Subpacket::regular(part).unwrap())
        .collect();
    config.sign(key, &Password::empty(), DATA).unwrap()
}

#[test]
fn issuer_selects_the_key_and_proves_nothing() {
    let (made, stranger) = (made(""), made("seed=2"));
    let result = verified(&made, &stranger.sign(DATA, BORN + DAY, Sha256));
    let (expected, found) = (
        made.fingerprint().to_string(),
        stranger.fingerprint().to_string(),
    );
    let says = [
        format!("key {found}, which is not known"),
        format!("has to be signed by {expected}"),
    ];
    failed(
        result,
        Kind::Integrity,
        &says.each_ref().map(String::as_str),
    );
    // A false issuer does not help.
    fails(
        verified(&made, &claimed(&stranger, Some(made.public.fingerprint()))),
        Kind::Integrity,
        "does not match",
    );
    // Without an issuer all keys are tried.
    assert_eq!(
        verified(&made, &claimed(&made, None)).unwrap().by,
        made.fingerprint()
    );
    let result = verified(&made, &claimed(&stranger, None));
    failed(
        result,
        Kind::Integrity,
        &["a key that it does not name", "does not match"],
    );
}

#[test]
fn text_that_is_no_signature_is_refused() {
    let made = made("");
    let good = binary(&made.sign(DATA, BORN + DAY, Sha256));
    let key = made.armored();
    let large = vec![b'x'; 65_537];
    let cosign = b"MEUCIQDwcG2oPGNbzTT8J8aW6hcVOWlzmOqJVkSvUXV7kyn0RAIgEPvDBPcKRLlUzXo=";
    let rows: [(&[u8], &str); 8] = [
        (b"", "that file is empty"),
        (b" \r\n", "that file is empty"),
        (b"<!DOCTYPE html><html>", "a page of HTML"),
        (b"Not Found", "`Not Found`"),
        (cosign, "`MEUCIQDwcG2oPGN"),
        (key.as_bytes(), "-----BEGIN PGP PUBLIC KEY"),
        (&good[..good.len() - 1], "no OpenPGP signature"),
        (&large, "65537 bytes"),
    ];
    for (bytes, says) in rows {
        let says = [
            "SHA256SUMS has no signature",
            says,
            &made.fingerprint().to_string(),
        ];
        failed(read(&made, DATA, bytes), Kind::Integrity, &says);
    }
    // A signature over text.
    let (key, rng) = (&made.secret.primary_key, StdRng::seed_from_u64(1));
    let text =
        DetachedSignature::sign_text_data(rng, key, &Password::empty(), Sha256, DATA).unwrap();
    failed(
        verified(&made, &text.signature),
        Kind::Integrity,
        &["not one over the bytes of a file", "Text"],
    );
}

#[test]
fn weak_hashes_are_refused() {
    let rsa = made("rsa");
    is(
        verified(&rsa, &rsa.sign(DATA, BORN + DAY, Sha256)),
        "good",
        "",
    );
    for hash in [Md5, Sha1, Ripemd160] {
        let signature = rsa.sign(DATA, BORN + DAY, hash);
        failed(
            verified(&rsa, &signature),
            Kind::Integrity,
            &["over a hash that proves nothing", &hash.to_string()],
        );
    }
    // The same for self-signatures and bindings.
    fails(
        opened(&made("rsa weak")),
        Kind::Configuration,
        "has not signed itself",
    );
    let weak = made("rsa sub sub-weak");
    is(
        verified(&weak, &weak.sub_sign(DATA, BORN + DAY)),
        "is not known",
        "",
    );
}

/// A key, the time of the signature in days after its creation with a difference in seconds, and the result.
const EXPIRY: &str = "
    lasts=100 | 1d | good until NOW
    lasts=100 | 100d-1 | good until NOW
    lasts=100 | 100d | after the key had expired
    lasts=100 | 1000d | after the key had expired
    | 0d-1 | before the key was
    | 0d | good
    lasts=0 | 1000d | good
    lasts=2000 | 1000d | good
    # The newest self-signature counts, in any order.
    lasts=100 prolonged=2000 | 1000d | good
    prolonged=100 | 1000d | after the key had expired
    lasts=100 prolonged=2000 directly | 1000d | good
    prolonged=100 directly | 1000d | after the key had expired
    # A day of difference between clocks is tolerated.
    | 1001d | good
    | 1001d+1 | in the future
";

#[test]
fn key_expiry_is_judged_at_signing_time() {
    for [words, when, wanted] in table(EXPIRY) {
        let (days, seconds) = when.split_once('d').unwrap();
        let when = i64::from(BORN)
            + days.parse::<i64>().unwrap() * i64::from(DAY)
            + seconds.parse().unwrap_or(0);
        let made = made(words);
        is(
            verified(&made, &made.sign(DATA, when.try_into().unwrap(), Sha512)),
            wanted,
            words,
        );
    }
    // A direct-key signature, and half a day later one over the user ID.
    let mut made = made("lasts=100 prolonged=2000");
    made.public.details.direct_signatures = self::made("prolonged=100 directly")
        .public
        .details
        .direct_signatures;
    is(verified(&made, &made.sign(DATA, NOW, Sha512)), "good", "");
    // The expiry of the signature itself.
    let made = self::made("");
    for (lasts, wanted) in [(11, "good"), (0, "good"), (10, "that has expired")] {
        is(
            verified(
                &made,
                &sign(
                    &made.secret.primary_key,
                    DATA,
                    NOW - 10,
                    Sha256,
                    Some(lasts),
                ),
            ),
            wanted,
            "",
        );
    }
}

#[test]
fn revoked_key_never_counts() {
    let revoked = made("revoked sub");
    for signature in [
        revoked.sign(DATA, BORN, Sha256),
        revoked.sub_sign(DATA, BORN),
    ] {
        is(verified(&revoked, &signature), "which was revoked", "");
    }
    // A revocation by another key has no effect.
    let mut other = made("");
    other.public.details.revocation_signatures =
        made("seed=2 revoked").public.details.revocation_signatures;
    is(
        verified(&other, &other.sign(DATA, BORN, Sha256)),
        "good",
        "",
    );
    // A key whose only user ID is revoked has no self-signature.
    fails(
        opened(&made("disowned")),
        Kind::Configuration,
        "has not signed itself",
    );
}

/// A subkey, and the result for its signature.
const SUBKEYS: &str = "
    sub | good
    sub sub-certifies | is not known
    sub sub-silent | is not known
    sub sub-for-another | is not known
    sub sub-by-another | is not known
    sub sub-revoked | which was revoked
    sub sub-lasts=99 | after the key had expired
    sub sub-lasts=100 | good until NOW
    # A subkey expires with its primary key.
    sub lasts=99 | after the key had expired
    sub lasts=100 | good until NOW
";

#[test]
fn subkeys_with_a_signing_binding_count() {
    for [words, wanted] in table(SUBKEYS) {
        let (signing, certifying) = (made(words), made(&format!("{words} certifies")));
        let sub = |made: &Made| verified(made, &made.sub_sign(DATA, BORN + 100 * DAY - 1));
        is(sub(&signing), wanted, words);
        if wanted == "is not known" {
            fails(
                opened(&certifying),
                Kind::Configuration,
                "is not one to sign with",
            );
            continue;
        }
        is(sub(&certifying), wanted, words);
        is(
            verified(&certifying, &certifying.sign(DATA, BORN, Sha256)),
            "is not known",
            words,
        );
        if let Ok(signed) = sub(&signing) {
            assert_eq!(
                (signed.key, signed.by),
                (signing.fingerprint(), signing.sub_fingerprint()),
                "{words}"
            );
        }
    }
    // A subkey that another key bound does not count.
    let (stranger, mut made) = (made("seed=2 sub"), made(""));
    made.public.public_subkeys = stranger.public.public_subkeys.clone();
    is(
        verified(&made, &stranger.sub_sign(DATA, BORN + DAY)),
        "is not known",
        "",
    );
}

#[test]
fn keyring_without_its_key_is_an_error() {
    let ring = Keyring::built_in(Tool::Terragrunt).unwrap();
    assert!(ring.is_empty());
    let result = ring.verify("SHA256SUMS", DATA, b"", at(NOW));
    failed(
        result,
        Kind::Configuration,
        &[
            "68C80F86DF98E710C0F22E2E577774ACA847CC49",
            "has to be configured",
        ],
    );
}

#[test]
fn changed_signature_is_refused() {
    let made = made("");
    let signature = binary(&made.sign(DATA, BORN + DAY, Sha256));
    let mut good = 0;
    for at_byte in 0..signature.len() {
        let mut changed = signature.clone();
        changed[at_byte] ^= 0x10;
        if let Ok(signed) = read(&made, DATA, &changed) {
            // Only in unsigned fields: the hint to the issuer, and lengths.
            assert_eq!(
                (signed.by, signed.at),
                (made.fingerprint(), at(BORN + DAY)),
                "byte {at_byte}"
            );
            good += 1;
        }
    }
    assert!(good < 16, "{good} changed ones are good");
}
