//! The rules for signatures: signer, content, time.

use std::time::{Duration, SystemTime};

use pgp::{
    composed::DetachedSignature,
    crypto::hash::HashAlgorithm::{Md5, Ripemd160, Sha1, Sha256, Sha512},
    packet::{Signature, SignatureConfig, SignatureType, Subpacket, SubpacketData},
    types::{KeyDetails as _, Password, Timestamp},
};
use rand_08::{SeedableRng as _, rngs::StdRng};
use tool_versions::{Keyring, Kind, Result, Signed, Tool};

use super::{
    failed,
    making::{BORN, DAY, Flaw, Made, Plan, Sub, armored, binary, sign},
};

const DATA: &[u8] = b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  x.zip\n";

fn at(seconds: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into())
}

/// 1000 days after the creation of the key.
const NOW: u32 = BORN + 1000 * DAY;

fn ring(made: &Made) -> Keyring {
    Keyring::from_armored(&made.armored(), &[made.fingerprint()]).unwrap()
}

fn verified(made: &Made, signature: &Signature) -> Result<Signed> {
    ring(made).verify("SHA256SUMS", DATA, &binary(signature), at(NOW))
}

#[test]
fn good_signature_reports_signer_and_time() {
    let made = Plan::default().make();
    let signature = made.sign(DATA, BORN + DAY, Sha256);
    let expected = Signed { key: made.fingerprint(), by: made.fingerprint(), at: at(BORN + DAY), has_expired: false };
    for bytes in [binary(&signature), armored(&signature)] {
        assert_eq!(ring(&made).verify("SHA256SUMS", DATA, &bytes, at(NOW)).unwrap(), expected);
    }
    // With CR LF, and as one of several.
    let crlf = String::from_utf8(armored(&signature)).unwrap().replace('\n', "\r\n");
    assert_eq!(ring(&made).verify("SHA256SUMS", DATA, crlf.as_bytes(), at(NOW)).unwrap(), expected);
    let stranger = Plan { seed: 2, ..Plan::default() }.make().sign(DATA, BORN + DAY, Sha256);
    for both in [[&stranger, &signature], [&signature, &stranger]] {
        let bytes = both.map(binary).concat();
        assert_eq!(ring(&made).verify("SHA256SUMS", DATA, &bytes, at(NOW)).unwrap(), expected);
    }
}

#[test]
fn other_bytes_are_refused() {
    let made = Plan::default().make();
    let signature = made.sign(DATA, BORN + DAY, Sha256);
    let named = made.fingerprint().to_string();
    for data in [b"".as_slice(), &DATA[1..], &[DATA, b"\n"].concat(), &DATA.to_ascii_uppercase()] {
        let result = ring(&made).verify("terraform_1.5.7_SHA256SUMS", data, &binary(&signature), at(NOW));
        failed(result, Kind::Integrity, &["terraform_1.5.7_SHA256SUMS", "does not match", &named]);
    }
}

#[test]
fn unknown_key_is_reported_with_the_expected() {
    let made = Plan::default().make();
    let stranger = Plan { seed: 2, ..Plan::default() }.make();
    let result = verified(&made, &stranger.sign(DATA, BORN + DAY, Sha256));
    let (expected, found) = (made.fingerprint().to_string(), stranger.fingerprint().to_string());
    failed(result, Kind::Integrity, &[&format!("key {found}, which is not known"), &format!("has to be signed by {expected}")]);
    // A false issuer does not help.
    let key = &stranger.secret.primary_key;
    let mut config = SignatureConfig::v4(SignatureType::Binary, key.algorithm(), Sha256);
    config.hashed_subpackets = vec![
        Subpacket::regular(SubpacketData::SignatureCreationTime(Timestamp::from_secs(BORN + DAY))).unwrap(),
        Subpacket::regular(SubpacketData::IssuerFingerprint(made.public.fingerprint())).unwrap(),
    ];
    failed(verified(&made, &config.sign(key, &Password::empty(), DATA).unwrap()), Kind::Integrity, &["does not match"]);
}

#[test]
fn signature_without_issuer_is_tried_with_all_keys() {
    let made = Plan::default().make();
    for (seed, good) in [(1, true), (2, false)] {
        let made_by = Plan { seed, ..Plan::default() }.make();
        let key = &made_by.secret.primary_key;
        let mut config = SignatureConfig::v4(SignatureType::Binary, key.algorithm(), Sha256);
        let when = SubpacketData::SignatureCreationTime(Timestamp::from_secs(BORN + DAY));
        config.hashed_subpackets = vec![Subpacket::regular(when).unwrap()];
        let result = verified(&made, &config.sign(key, &Password::empty(), DATA).unwrap());
        if good {
            assert_eq!(result.unwrap().by, made.fingerprint());
        } else {
            failed(result, Kind::Integrity, &["a key that it does not name", "does not match"]);
        }
    }
}

#[test]
fn text_that_is_no_signature_is_refused() {
    let made = Plan::default().make();
    let good = binary(&made.sign(DATA, BORN + DAY, Sha256));
    let key = made.armored();
    let large = vec![b'x'; 65_537];
    let rows: [(&[u8], &str); 8] = [
        (b"", "that file is empty"),
        (b" \r\n", "that file is empty"),
        (b"<!DOCTYPE html><html>", "a page of HTML"),
        (b"Not Found", "`Not Found`"),
        (b"MEUCIQDwcG2oPGNbzTT8J8aW6hcVOWlzmOqJVkSvUXV7kyn0RAIgEPvDBPcKRLlUzXo=", "`MEUCIQDwcG2oPGN"),
        (key.as_bytes(), "-----BEGIN PGP PUBLIC KEY"),
        (&good[..good.len() - 1], "no OpenPGP signature"),
        (&large, "65537 bytes"),
    ];
    for (bytes, says) in rows {
        let result = ring(&made).verify("SHA256SUMS", DATA, bytes, at(NOW));
        failed(result, Kind::Integrity, &["SHA256SUMS has no signature", says, &made.fingerprint().to_string()]);
    }
}

#[test]
fn weak_hashes_are_refused() {
    let rsa = Plan { rsa: true, ..Plan::default() };
    let made = rsa.make();
    assert!(verified(&made, &made.sign(DATA, BORN + DAY, Sha256)).is_ok());
    for hash in [Md5, Sha1, Ripemd160] {
        let signature = made.sign(DATA, BORN + DAY, hash);
        failed(verified(&made, &signature), Kind::Integrity, &["over a hash that proves nothing", &hash.to_string()]);
    }
    // The same for self-signatures and bindings.
    let weak = Plan { hash: Sha1, ..rsa.clone() }.make();
    failed(Keyring::from_armored(&weak.armored(), &[weak.fingerprint()]), Kind::Configuration, &["has not signed itself"]);
    let weak = Plan { sub: Some(Sub { hash: Sha1, ..Sub::default() }), ..rsa }.make();
    failed(verified(&weak, &weak.sub_sign(DATA, BORN + DAY)), Kind::Integrity, &["is not known"]);
}

#[test]
fn key_expiry_is_judged_at_signing_time() {
    let lasts = Some(100 * DAY);
    let end = BORN + 100 * DAY;
    let rows = [
        (Plan { lasts, ..Plan::default() }, BORN + DAY, Ok(true)),
        (Plan { lasts, ..Plan::default() }, end - 1, Ok(true)),
        (Plan { lasts, ..Plan::default() }, end, Err("after the key had expired")),
        (Plan { lasts, ..Plan::default() }, NOW, Err("after the key had expired")),
        (Plan::default(), BORN - 1, Err("before the key was")),
        (Plan::default(), BORN, Ok(false)),
        (Plan { lasts: Some(0), ..Plan::default() }, NOW, Ok(false)),
        (Plan { lasts: Some(2000 * DAY), ..Plan::default() }, NOW, Ok(false)),
        // The newest self-signature counts, in any order.
        (Plan { lasts, prolonged: Some(2000 * DAY), ..Plan::default() }, NOW, Ok(false)),
        (Plan { prolonged: lasts, ..Plan::default() }, NOW, Err("after the key had expired")),
        (Plan { lasts, prolonged: Some(2000 * DAY), directly: true, ..Plan::default() }, NOW, Ok(false)),
        (Plan { prolonged: lasts, directly: true, ..Plan::default() }, NOW, Err("after the key had expired")),
    ];
    for (plan, when, expected) in rows {
        let made = plan.make();
        let result = verified(&made, &made.sign(DATA, when, Sha512));
        match expected {
            Ok(has_expired) => assert_eq!(result.unwrap().has_expired, has_expired, "{plan:?} at {when}"),
            Err(says) => failed(result, Kind::Integrity, &[says, &made.fingerprint().to_string()]),
        }
    }
}

#[test]
fn newest_self_signature_counts() {
    let lasts = Some(100 * DAY);
    // A direct-key signature, and half a day later one over the user ID.
    let mut made = Plan { lasts, prolonged: Some(2000 * DAY), ..Plan::default() }.make();
    let direct = Plan { prolonged: lasts, directly: true, ..Plan::default() }.make();
    made.public.details.direct_signatures = direct.public.details.direct_signatures;
    assert!(verified(&made, &made.sign(DATA, NOW, Sha512)).is_ok());
}

#[test]
fn signature_expiry_and_future_times_are_judged() {
    let made = Plan::default().make();
    let lasting = |lasts| sign(&made.secret.primary_key, DATA, NOW - 10, Sha256, Some(lasts));
    assert!(verified(&made, &lasting(11)).is_ok());
    assert!(verified(&made, &lasting(0)).is_ok());
    failed(verified(&made, &lasting(10)), Kind::Integrity, &["that has expired"]);
    assert!(verified(&made, &made.sign(DATA, NOW + DAY, Sha256)).is_ok(), "clocks differ");
    failed(verified(&made, &made.sign(DATA, NOW + DAY + 1, Sha256)), Kind::Integrity, &["in the future"]);
}

#[test]
fn revoked_key_never_counts() {
    let made = Plan { revoked: true, sub: Some(Sub::default()), ..Plan::default() }.make();
    for signature in [made.sign(DATA, BORN, Sha256), made.sub_sign(DATA, BORN)] {
        failed(verified(&made, &signature), Kind::Integrity, &["which was revoked"]);
    }
    // A revocation by another key has no effect.
    let stranger = Plan { seed: 2, revoked: true, ..Plan::default() }.make();
    let mut made = Plan::default().make();
    made.public.details.revocation_signatures = stranger.public.details.revocation_signatures;
    assert!(verified(&made, &made.sign(DATA, BORN, Sha256)).is_ok());
    // A key whose only user ID is revoked has no self-signature.
    let made = Plan { disowned: true, ..Plan::default() }.make();
    failed(Keyring::from_armored(&made.armored(), &[made.fingerprint()]), Kind::Configuration, &["has not signed itself"]);
}

#[test]
fn subkeys_with_a_signing_binding_count() {
    let lasts = Some(100 * DAY);
    let rows = [
        (None, Sub::default(), Ok(false)),
        (None, Sub { signs: false, ..Sub::default() }, Err("is not known")),
        (None, Sub { flaw: Some(Flaw::Silent), ..Sub::default() }, Err("is not known")),
        (None, Sub { flaw: Some(Flaw::AgreesToAnother), ..Sub::default() }, Err("is not known")),
        (None, Sub { flaw: Some(Flaw::BoundByAnother), ..Sub::default() }, Err("is not known")),
        (None, Sub { revoked: true, ..Sub::default() }, Err("which was revoked")),
        (None, Sub { lasts: Some(99 * DAY), ..Sub::default() }, Err("after the key had expired")),
        (None, Sub { lasts, ..Sub::default() }, Ok(true)),
        // A subkey expires with its primary key.
        (Some(99 * DAY), Sub::default(), Err("after the key had expired")),
        (lasts, Sub::default(), Ok(true)),
    ];
    for (lasts, sub, expected) in rows {
        for signs in [true, false] {
            let plan = Plan { lasts, signs, sub: Some(sub.clone()), ..Plan::default() };
            let made = plan.make();
            if !signs && (!sub.signs || sub.flaw.is_some()) {
                let ring = Keyring::from_armored(&made.armored(), &[made.fingerprint()]);
                failed(ring, Kind::Configuration, &["is not one to sign with"]);
                continue;
            }
            let result = verified(&made, &made.sub_sign(DATA, BORN + 100 * DAY - 1));
            match expected {
                Ok(has_expired) => {
                    let signed = result.unwrap();
                    assert_eq!((signed.key, signed.by), (made.fingerprint(), made.sub_fingerprint()), "{plan:?}");
                    assert_eq!(signed.has_expired, has_expired, "{plan:?}");
                }
                Err(says) => failed(result, Kind::Integrity, &[says]),
            }
            if !signs {
                failed(verified(&made, &made.sign(DATA, BORN, Sha256)), Kind::Integrity, &["is not known"]);
            }
        }
    }
    // A subkey that another key bound does not count.
    let stranger = Plan { seed: 2, sub: Some(Sub::default()), ..Plan::default() }.make();
    let mut made = Plan::default().make();
    made.public.public_subkeys = stranger.public.public_subkeys.clone();
    failed(verified(&made, &stranger.sub_sign(DATA, BORN + DAY)), Kind::Integrity, &["is not known"]);
}

#[test]
fn text_signature_is_refused() {
    let made = Plan::default().make();
    let key = &made.secret.primary_key;
    let text = DetachedSignature::sign_text_data(StdRng::seed_from_u64(1), key, &Password::empty(), Sha256, DATA).unwrap();
    let now = SystemTime::now();
    let result = ring(&made).verify("SHA256SUMS", DATA, &binary(&text.signature), now);
    failed(result, Kind::Integrity, &["not one over the bytes of a file", "Text"]);
}

#[test]
fn keyring_without_its_key_is_an_error() {
    let ring = Keyring::built_in(Tool::Terragrunt).unwrap();
    assert!(ring.is_empty());
    let result = ring.verify("SHA256SUMS", DATA, b"", at(NOW));
    failed(result, Kind::Configuration, &["68C80F86DF98E710C0F22E2E577774ACA847CC49", "has to be configured"]);
}

#[test]
fn changed_signature_is_refused() {
    let made = Plan::default().make();
    let signature = binary(&made.sign(DATA, BORN + DAY, Sha256));
    let ring = ring(&made);
    let mut good = 0;
    for at_byte in 0..signature.len() {
        let mut changed = signature.clone();
        changed[at_byte] ^= 0x10;
        if let Ok(signed) = ring.verify("SHA256SUMS", DATA, &changed, at(NOW)) {
            // Only in unsigned fields: the hint to the issuer, and lengths.
            assert_eq!((signed.by, signed.at), (made.fingerprint(), at(BORN + DAY)), "byte {at_byte}");
            good += 1;
        }
    }
    assert!(good < 16, "{good} changed ones are good");
}
