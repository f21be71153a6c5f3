//! The properties that hold for any input, one function for each target.

use std::{
    io::{Cursor, Write as _},
    slice,
    sync::LazyLock,
    time::{Duration, Instant, SystemTime},
};

use flate2::{Compression, write::GzEncoder};
use tool_versions::{
    Constraints, Digest, Fingerprint, Keyring, Limits, Request, Sums, Tool, Version, archive,
    releases::{
        lists::{self, MOST},
        mirror::ListKind,
    },
    request::{files, required},
    verify::sums,
};

/// Decodes bytes as text files are decoded.
fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// Asserts that a line number is within the text.
fn is_line(text: &str, line: usize) {
    assert!((1..=text.split('\n').count()).contains(&line), "{line}");
}

/// The version of a flat file is part of the reported line.
pub(super) fn version_files(data: &[u8]) {
    let text = text(data);
    let tools = [
        ".opentofu-version",
        ".terraform-version",
        ".terragrunt-version",
        ".tool-versions",
    ];
    let switches = [
        ".tfswitchrc",
        ".tgswitchrc",
        ".tfswitch.toml",
        ".tgswitch.toml",
    ];
    for (tool, name) in Tool::ALL.into_iter().flat_map(|tool| {
        tools
            .into_iter()
            .chain(switches)
            .map(move |name| (tool, name))
    }) {
        let Some((said, line)) =
            files::said(tool, name, &text).expect("flat files are never refused")
        else {
            continue;
        };
        let found = text
            .lines()
            .nth(line - 1)
            .is_some_and(|text| text.contains(&said));
        assert!(found && !said.is_empty(), "{name}:{line}: {said:?}");
    }
}

/// A comment at the end changes nothing; here it has the names without which the text is not parsed.
pub(super) fn hcl(data: &[u8]) {
    let text = text(data);
    let parsed = format!(
        "{text}\n# required_version terraform_version_constraint terragrunt_version_constraint\n"
    );
    for (tool, key) in [
        (Tool::Terraform, "terraform_version_constraint"),
        (Tool::Terragrunt, "terragrunt_version_constraint"),
    ] {
        for (name, input) in [("terragrunt.hcl", &parsed), ("root.hcl.json", &text)] {
            let found = files::said(tool, name, input);
            let Ok(Some((said, line))) = &found else {
                continue;
            };
            is_line(&text, *line);
            assert!(!said.is_empty() && said.trim() == said, "{name}: {said:?}");
            assert_eq!(files::said(tool, name, &text), found);
            let again = serde_json::json!({ key: said }).to_string();
            let expected = (!said.contains("${")).then(|| (said.clone(), 1));
            assert_eq!(
                files::said(tool, "terragrunt.hcl.json", &again)
                    .ok()
                    .flatten(),
                expected,
                "{again}"
            );
        }
    }
    for tool in [Tool::OpenTofu, Tool::Terraform] {
        for (name, input) in [
            ("a.tf", &parsed),
            ("a.tofu", &parsed),
            ("a.tf.json", &text),
            ("a.tofu.json", &text),
        ] {
            let found = required::said(tool, name, input);
            let Ok(all) = &found else { continue };
            for (_, line) in all {
                is_line(&text, *line);
            }
            assert_eq!(required::said(tool, name, &text), found);
        }
    }
}

/// Names are file names, each once, and the sums round-trip through their text.
pub(super) fn sums(data: &[u8]) {
    let Ok(read) = Sums::parse(data) else { return };
    let mut again = Vec::new();
    for name in read.names() {
        assert!(
            !name.is_empty() && name.len() < 256 && name != "." && name != "..",
            "{name:?}"
        );
        assert!(
            !name.contains(['/', '\\', '*'])
                && !name.contains(|c: char| c.is_whitespace() || c.is_control()),
            "{name:?}"
        );
        let digest = read.of(name).expect("it is there");
        read.check(name, &digest).expect("it is the same");
        read.check(name, &Digest::of(name.as_bytes()))
            .expect_err("it is another");
        again.extend(format!("{digest}  {name}\n").into_bytes());
    }
    assert!(read.names().count() <= sums::LINES);
    assert_eq!(Sums::parse(&again).as_ref(), Ok(&read));
    let mut twice = data.to_vec();
    twice.push(b'\n');
    twice.extend_from_slice(data);
    assert_eq!(
        Sums::parse(&twice).ok(),
        Some(read).filter(|_| twice.len() <= sums::LARGEST)
    );
}

/// Versions are newest first, each once.
pub(super) fn lists(data: &[u8]) {
    use ListKind::{Directory, GitHub, HashiCorp, Html, OpenTofu};
    for kind in [HashiCorp, GitHub, OpenTofu, Html, Directory] {
        match lists::read(kind, "it", data) {
            Ok(versions) => {
                assert!(
                    !versions.is_empty() && versions.is_sorted_by(|one, other| one > other),
                    "{kind:?}: {versions:?}"
                );
            }
            Err(error) => {
                assert!(
                    error.text.starts_with("it ")
                        && error.text.len() < 1000
                        && !error.text.contains('\n'),
                    "{error}"
                );
            }
        }
    }
    if let Ok(page) = lists::page("it", data) {
        assert!(page.versions.len() <= page.entries && page.entries <= MOST);
    }
}

/// No more is written than the limits allow, and the result describes the written bytes. A tar is also packed with gzip, since random
/// input has no valid checksum.
pub(super) fn archives(data: &[u8]) {
    let limits = Limits {
        size: 4096,
        ratio: 20,
        entries: 8,
    };
    for name in ["x", "x.zip"] {
        let mut into = Vec::new();
        let taken = archive::take(name, Cursor::new(data), "tofu", &limits, &mut into);
        assert!(
            into.len() as u64 <= limits.size,
            "{name}: {} bytes were written",
            into.len()
        );
        match taken {
            Ok(taken) => assert_eq!(
                (taken.size, taken.digest),
                (into.len() as u64, Digest::of(&into)),
                "{name}"
            ),
            Err(error) => is_short(&error),
        }
    }
    unpack(data, &limits);
    if data.get(257..262) == Some(b"ustar") {
        let mut packed = GzEncoder::new(Vec::new(), Compression::none());
        packed.write_all(data).expect("it goes to memory");
        unpack(&packed.finish().expect("it goes to memory"), &limits);
    }
}

fn unpack(data: &[u8], limits: &Limits) {
    let root = tempfile::tempdir().expect("a directory can be made");
    let until = Instant::now() + Duration::from_secs(600);
    match archive::unpack("x", Cursor::new(data), limits, until, root.path()) {
        Ok(unpacked) => assert!(unpacked.files <= limits.entries && unpacked.bytes <= limits.size),
        Err(error) => is_short(&error),
    }
}

fn is_short(error: &tool_versions::Error) {
    assert!(
        error.text.len() < 4000 && error.kind == tool_versions::Kind::Integrity,
        "{error}"
    );
}

const SIGNED: &[u8] = include_bytes!("../../corpus/signatures/signed");
const STRANGER: &[u8] = include_bytes!("../../corpus/signatures/bad-stranger.sig");
const FINGERPRINT: &str = include_str!("../../corpus/signatures/key.fingerprint");

static KEY: LazyLock<Fingerprint> = LazyLock::new(|| FINGERPRINT.parse().expect("it is one"));
static RING: LazyLock<Keyring> = LazyLock::new(|| {
    Keyring::from_armored(
        include_str!("../../corpus/signatures/key.asc"),
        slice::from_ref(&*KEY),
    )
    .expect("it can be read")
});

/// A valid signature is by the expected key, and never valid for other data. A keyring with the expected fingerprint does not verify another
/// key's signature.
pub(super) fn signature(data: &[u8]) {
    // A fixed day in 2033, so that a failure is reproducible.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    match RING.verify("it", SIGNED, data, now) {
        Ok(signed) => {
            assert_eq!(signed.key, *KEY);
            assert!(signed.at < now + Duration::from_secs(48 * 60 * 60));
            RING.verify("it", b"other", data, now)
                .expect_err("these bytes were not signed");
        }
        Err(error) => assert!(error.text.len() < 5000, "{error}"),
    }
    match Keyring::from_armored(&text(data), slice::from_ref(&*KEY)) {
        Ok(ring) => {
            assert_eq!(ring.fingerprints(), slice::from_ref(&*KEY));
            ring.verify("it", SIGNED, STRANGER, now)
                .expect_err("a stranger signed it");
        }
        Err(error) => assert!(error.text.len() < 5000, "{error}"),
    }
}

static VERSIONS: LazyLock<Vec<Version>> = LazyLock::new(|| {
    let all = "0 0.1 1 1.0.1 1.2.0-alpha 1.2.0-rc1 1.2 1.2.3.4 1.10 1.10.1-beta.2 2.0.0-0 2 18446744073709551615";
    all.split(' ')
        .map(|version| version.parse().expect("it is one"))
        .collect()
});

/// Printed values parse again, print the same and mean the same.
pub(super) fn constraint(data: &[u8]) {
    let text = text(data);
    if let Ok(version) = text.parse::<Version>() {
        let again: Version = version.to_string().parse().expect("it was printed");
        assert_eq!((&again, again.to_string()), (&version, version.to_string()));
        for other in VERSIONS.iter() {
            assert_eq!(version.cmp(other), other.cmp(&version).reverse());
        }
        assert!(version <= version.core() && version.core().is_stable());
    }
    if let Ok(constraints) = text.parse::<Constraints>() {
        let again: Constraints = constraints.to_string().parse().expect("it was printed");
        assert_eq!(again.to_string(), constraints.to_string());
        for version in VERSIONS.iter() {
            assert_eq!(
                again.allow(version),
                constraints.allow(version),
                "{constraints} of {version}"
            );
        }
    }
    if let Ok(request) = text.parse::<Request>() {
        let again: Request = request.to_string().parse().expect("it was printed");
        // `=2` is printed as `2`, which is one version, `2.0.0`.
        let settled: Request = again.to_string().parse().expect("it was printed");
        assert_eq!(settled.to_string(), again.to_string());
        let chosen = request.choose(VERSIONS.iter(), |_| true);
        assert_eq!(again.choose(VERSIONS.iter(), |_| true), chosen, "{request}");
    }
}
