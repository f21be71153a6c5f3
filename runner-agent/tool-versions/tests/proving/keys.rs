//! Built-in and configured keys.

use std::time::SystemTime;

use pgp::crypto::hash::HashAlgorithm;
use tool_versions::{Fingerprint, Keyring, Kind, Tool, verify::keys};

use super::{
    failed,
    making::{BORN, Made, binary, made},
};

#[test]
fn built_in_keys_have_the_pinned_fingerprints() {
    for (tool, fingerprint) in [
        (Tool::Terraform, keys::HASHICORP),
        (Tool::OpenTofu, keys::OPENTOFU),
        (Tool::Terragrunt, keys::GRUNTWORK),
    ] {
        let ring = Keyring::built_in(tool).unwrap();
        assert_eq!(
            ring.fingerprints(),
            [fingerprint.parse::<Fingerprint>().unwrap()],
            "{tool}"
        );
        assert_eq!(ring.is_empty(), tool == Tool::Terragrunt, "{tool}");
    }
    let pinned = [keys::HASHICORP, keys::OPENTOFU, keys::GRUNTWORK];
    let published = [
        "C874011F0AB405110D02105534365D9472D7468F",
        "E3E6E43D84CB852EADB0051D0C0AF313E5FD9F80",
        "68C80F86DF98E710C0F22E2E577774ACA847CC49",
    ];
    assert_eq!(pinned, published);
    // A file is the pinned key and no other.
    let file = include_str!("../../keys/hashicorp.asc");
    let result = Keyring::from_armored(file, &[keys::OPENTOFU.parse().unwrap()]);
    failed(
        result,
        Kind::Configuration,
        &[
            "no key with the fingerprint",
            keys::OPENTOFU,
            keys::HASHICORP,
        ],
    );
}

#[test]
fn only_pinned_keys_count() {
    let (one, two) = (made(""), made("seed=2"));
    let both = format!("Our keys:\n\n{}\nand\n{}", one.armored(), two.armored());
    for pins in [vec![&one], vec![&two], vec![&two, &one]] {
        let pins: Vec<_> = pins.into_iter().map(Made::fingerprint).collect();
        let ring = Keyring::from_armored(&both, &pins).unwrap();
        assert_eq!(ring.fingerprints(), pins);
        for made in [&one, &two] {
            let signature = binary(&made.sign(b"x", BORN, HashAlgorithm::Sha256));
            let proven = ring.verify("x", b"x", &signature, SystemTime::now());
            assert_eq!(
                proven.is_ok(),
                pins.contains(&made.fingerprint()),
                "{proven:?}"
            );
        }
    }
    let result = Keyring::from_armored(&one.armored(), &[one.fingerprint(), two.fingerprint()]);
    failed(
        result,
        Kind::Configuration,
        &[
            &two.fingerprint().to_string(),
            &one.fingerprint().to_string(),
        ],
    );
    failed(
        Keyring::from_armored(&both, &[]),
        Kind::Configuration,
        &["no fingerprint is given"],
    );
    // The fingerprint of a subkey does not identify a key.
    let made = made("sub");
    let result = Keyring::from_armored(&made.armored(), &[made.sub_fingerprint()]);
    failed(
        result,
        Kind::Configuration,
        &["no key with the fingerprint"],
    );
}

#[test]
fn text_that_is_no_key_is_refused() {
    let made = made("");
    let (text, pins) = (made.armored(), [made.fingerprint()]);
    let cut = &text[..text.len() / 2];
    let secret = made
        .secret
        .to_armored_string(pgp::composed::ArmorOptions::default())
        .unwrap();
    let (begin, end) = (
        "-----BEGIN PGP PUBLIC KEY BLOCK-----",
        "-----END PGP PUBLIC KEY BLOCK-----",
    );
    let rows = [
        (String::new(), "there is no `-----BEGIN"),
        ("<html>".to_owned(), "`<html>`"),
        (cut.to_owned(), "a block has no"),
        (format!("{begin}\n\n{end}\n"), "no OpenPGP key can be read"),
        (
            format!("{begin}\n\nAAAA\n{end}\n"),
            "no OpenPGP key can be read",
        ),
        (secret, "there is no `-----BEGIN"),
        ("x".repeat((1 << 20) + 1), "1048577 bytes"),
    ];
    for (text, says) in rows {
        failed(
            Keyring::from_armored(&text, &pins),
            Kind::Configuration,
            &[says],
        );
    }
}

#[test]
fn fingerprints_are_parsed_in_common_formats() {
    let (small, grouped) = (
        "0xc874011f0ab405110d02105534365d9472d7468f",
        "C874 011F 0AB4 0511 0D02  1055 3436 5D94 72D7 468F",
    );
    for text in [keys::HASHICORP, small, grouped] {
        assert_eq!(
            text.parse::<Fingerprint>().unwrap().to_string(),
            keys::HASHICORP
        );
    }
    let odd = format!("x{}", &keys::HASHICORP[1..]);
    for text in [
        "",
        "34365D9472D7468F",
        "72D7468F",
        &keys::HASHICORP[1..],
        &odd,
    ] {
        failed(
            text.parse::<Fingerprint>(),
            Kind::Configuration,
            &["no fingerprint"],
        );
    }
}
