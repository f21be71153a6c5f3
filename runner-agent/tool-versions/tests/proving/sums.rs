//! `SHA256SUMS`.

use tool_versions::{Digest, Kind, Sums, verify::sums};

use super::failed;

const A: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const B: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Text, and its names. `A` and `B` are placeholders for digests.
const GOOD: &[(&str, &[&str])] = &[
    ("A  x.zip\n", &["x.zip"]),
    ("A  x.zip", &["x.zip"]),
    ("A *x.zip\n", &["x.zip"]),
    ("A x.zip\n", &["x.zip"]),
    ("A  x.zip\r\nB  y.zip\r\n", &["x.zip", "y.zip"]),
    ("\nA  x.zip\n\n\nB  y.zip\n", &["x.zip", "y.zip"]),
    ("A  x.zip\nA  x.zip\n", &["x.zip"]),
    ("A  x\nA  y\n", &["x", "y"]),
    ("A  ...\n", &["..."]),
    (
        "A  tofu_1.10.6_linux_amd64.zip\nB  tofu_1.10.6_linux_amd64.zip.sbom.json\n",
        &[
            "tofu_1.10.6_linux_amd64.zip",
            "tofu_1.10.6_linux_amd64.zip.sbom.json",
        ],
    ),
];

/// Text, and parts of the error.
const BAD: &[(&str, &[&str])] = &[
    ("", &["is empty"]),
    ("\r\n\n", &["is empty"]),
    (
        "<!DOCTYPE html><html><body>Not Found",
        &["line 1", "a page of HTML", "<!DOCTYPE html>"],
    ),
    ("  \n<html>", &["line 1", "a page of HTML"]),
    ("Not Found", &["line 1", "is not a SHA-256", "`Not Found`"]),
    ("{\"message\":\"rate limit\"}", &["line 1", "rate limit"]),
    (
        "A  x.zip\nB  x.zip\n",
        &["line 2", "contradicts", A, "`x.zip`"],
    ),
    ("A  x.zip\nrubbish\n", &["line 2", "`rubbish`"]),
    ("A  x.zip\nAA  y.zip\n", &["line 2"]),
    ("A\n", &["line 1"]),
    ("A  \n", &["line 1"]),
    ("Ax.zip\n", &["line 1"]),
    ("A\tx.zip\n", &["line 1"]),
    ("0A  x.zip\n", &["line 1"]),
    (
        "g3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  x.zip\n",
        &["line 1"],
    ),
    (
        "+3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  x.zip\n",
        &["line 1"],
    ),
    (
        "\u{e9}\u{e9}b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b8555  x.zip\n",
        &["line 1"],
    ),
    (" A  x.zip\n", &["line 1"]),
    ("\\A  x.zip\n", &["line 1"]),
    ("A  a/x.zip\n", &["line 1"]),
    ("A  ./x.zip\n", &["line 1"]),
    ("A  ..\n", &["line 1"]),
    ("A  .\n", &["line 1"]),
    ("A  ../x.zip\n", &["line 1"]),
    ("A  a\\x.zip\n", &["line 1"]),
    ("A  x.zip y.zip\n", &["line 1"]),
    ("A  x.zip \n", &["line 1"]),
    ("A  x\u{1b}[2Jy\n", &["line 1", "\\u{1b}"]),
    ("A  x\0y\n", &["line 1", "\\0"]),
    ("A  **x\n", &["line 1"]),
    ("\u{feff}A  x.zip\n", &["line 1"]),
];

fn filled(text: &str) -> String {
    // Only `A` and `B` at the start of a line and after `0`.
    let line = |line: &str| {
        line.replacen('A', A, 1)
            .replacen('B', B, usize::from(line.starts_with('B')))
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn good_sums_are_parsed() {
    for (text, names) in GOOD {
        let sums = Sums::parse(filled(text).as_bytes())
            .unwrap_or_else(|error| panic!("`{text}`: {error}"));
        assert_eq!(sums.names().collect::<Vec<_>>(), *names, "`{text}`");
    }
}

#[test]
fn bad_sums_are_refused_with_the_line() {
    for (text, says) in BAD {
        failed(Sums::parse(filled(text).as_bytes()), Kind::Integrity, says);
    }
    failed(
        Sums::parse(&[b"\xff\xfe".as_slice(), A.as_bytes()].concat()),
        Kind::Integrity,
        &["line 1"],
    );
}

#[test]
fn names_are_matched_exactly() {
    let text = format!("{A}  x.zip\n{B}  x.zip.sig\n{B}  my-x.zip\n");
    let sums = Sums::parse(text.as_bytes()).unwrap();
    assert_eq!(sums.of("x.zip").unwrap().to_string(), A);
    assert_eq!(sums.of("x.zip.sig").unwrap().to_string(), B);
    for other in ["zip", "x.zi", "X.zip", "x.zip ", "", "-x.zip", "x"] {
        failed(
            sums.of(other),
            Kind::Integrity,
            &[&format!("no sum of `{other}`"), "my-x.zip, x.zip"],
        );
    }
}

#[test]
fn file_is_compared_with_its_sum() {
    let sums = Sums::parse(format!("{A}  x.zip\n").as_bytes()).unwrap();
    sums.check("x.zip", &Digest::of(b"abc")).unwrap();
    failed(
        sums.check("x.zip", &Digest::of(b"")),
        Kind::Integrity,
        &["`x.zip`", A, B],
    );
    failed(
        sums.check("y.zip", &Digest::of(b"abc")),
        Kind::Integrity,
        &["no sum of `y.zip`"],
    );
}

#[test]
fn bytes_lines_and_names_are_bounded() {
    let line = format!("{A}  x\n");
    let lines = |count| line.repeat(count);
    assert!(Sums::parse(lines(sums::LINES).as_bytes()).is_ok());
    failed(
        Sums::parse(lines(sums::LINES + 1).as_bytes()),
        Kind::Integrity,
        &["line 10001", "one too many"],
    );
    let padded = |count: usize| format!("{line}{}", "\n".repeat(count - line.len()));
    assert!(Sums::parse(padded(sums::LARGEST).as_bytes()).is_ok());
    failed(
        Sums::parse(padded(sums::LARGEST + 1).as_bytes()),
        Kind::Integrity,
        &["1048577 bytes", "1048576"],
    );
    let named = |length| format!("{A}  {}\n", "x".repeat(length));
    assert!(Sums::parse(named(255).as_bytes()).is_ok());
    failed(
        Sums::parse(named(256).as_bytes()),
        Kind::Integrity,
        &["line 1"],
    );
}

#[test]
fn messages_are_short() {
    let error = Sums::parse("x".repeat(100_000).as_bytes()).unwrap_err();
    assert!(
        error.text.len() < 300 && error.text.contains('…'),
        "{error}"
    );
}

#[test]
fn digests_match_the_standard() {
    assert_eq!(Digest::of(b"abc").to_string(), A);
    assert_eq!(Digest::read(b"abc".as_slice()).unwrap().to_string(), A);
    assert_eq!(
        A.to_uppercase().parse::<Digest>().unwrap(),
        Digest::of(b"abc")
    );
    for text in [
        "",
        &A[1..],
        &format!("{A}0"),
        &format!("{A}00"),
        &format!("0x{}", &A[2..]),
        &"é".repeat(32),
    ] {
        failed(text.parse::<Digest>(), Kind::Integrity, &["no SHA-256"]);
    }
}
