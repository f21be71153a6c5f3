//! The grammar and the order of versions.

use tool_versions::Version;

use super::By::{self, GoVersion, Ours, Tenv};

/// Text and its printed form; `None` when it is invalid.
const READ: &[(By, &str, Option<&str>)] = &[
    (GoVersion, "1.2.3", Some("1.2.3")),
    (Tenv, "1.5", Some("1.5.0")),
    (Tenv, "1", Some("1.0.0")),
    (Tenv, "v1.2.3", Some("1.2.3")),
    (GoVersion, "1.2.3.4", Some("1.2.3.4")),
    (GoVersion, "1.2.0-x.Y.0", Some("1.2.0-x.Y.0")),
    (GoVersion, "1.2.0beta1", Some("1.2.0-beta1")),
    (GoVersion, "1.2-5", Some("1.2.0-5")),
    (Ours, "1.2.0-x.Y.0+metadata", Some("1.2.0-x.Y.0")),
    (Ours, "1.2.0+metadata", Some("1.2.0")),
    (GoVersion, "1.7rc1", Some("1.7.0-rc1")),
    (GoVersion, "1.0.0-rc.1-1-g123", Some("1.0.0-rc.1-1-g123")),
    (Tenv, "1.6.0-alpha20230816", Some("1.6.0-alpha20230816")),
    (Tenv, "  1.2.3 ", Some("1.2.3")),
    (GoVersion, "", None),
    (GoVersion, "v", None),
    (GoVersion, "1.", None),
    (GoVersion, ".1", None),
    (GoVersion, "1..2", None),
    (GoVersion, "1.2.beta", None),
    (GoVersion, "foo", None),
    (Ours, "1.2-", None),
    (GoVersion, "1.2.3+", None),
    (GoVersion, "1.5.x", None),
    (Ours, "V1.2.3", None),
    (GoVersion, "-1.2", None),
    (GoVersion, "1.2.3 4", None),
    (GoVersion, "1.2.3-a..b", None),
    (GoVersion, "../../etc/passwd", None),
    (GoVersion, "18446744073709551616.0.0", None),
    (Ours, "1.2.3.4.5.6.7.8.9", None),
];

#[test]
fn versions_are_parsed_and_printed() {
    for (by, text, printed) in READ {
        let read = text
            .parse::<Version>()
            .ok()
            .map(|version| version.to_string());
        assert_eq!(read.as_deref(), *printed, "`{text}`, by {by:?}");
    }
}

/// From oldest to newest; versions on one line are equal.
const ORDER: &[(By, &[&str])] = &[
    (GoVersion, &["0.9", "0.9.0"]),
    (GoVersion, &["1.0.0-1"]),
    (GoVersion, &["1.0.0-2"]),
    (GoVersion, &["1.0.0-11"]),
    (Ours, &["1.0.0-alpha"]),
    (Ours, &["1.0.0-alpha.1", "1.0.0-alpha.01"]),
    (GoVersion, &["1.0.0-alpha.beta"]),
    (GoVersion, &["1.0.0-beta"]),
    (GoVersion, &["1.0.0-beta.2"]),
    (GoVersion, &["1.0.0-beta.11"]),
    (GoVersion, &["1.0.0-rc1", "1.0.0rc1"]),
    (Ours, &["1.0.0", "1", "1.0", "v1.0", "1.0.0.0", "1.0+abc"]),
    (GoVersion, &["1.0.0.1"]),
    (GoVersion, &["1.0.1"]),
    (GoVersion, &["1.2.0-beta"]),
    (GoVersion, &["1.2"]),
    (GoVersion, &["1.9.9"]),
    (GoVersion, &["1.10.0"]),
    (GoVersion, &["2.0.0-rc.1-1-g123"]),
    (GoVersion, &["2"]),
];

#[test]
fn versions_are_ordered() {
    let all: Vec<Vec<Version>> = ORDER
        .iter()
        .map(|(_, texts)| texts.iter().map(|text| text.parse().unwrap()).collect())
        .collect();
    for (i, equal) in all.iter().enumerate() {
        for (j, others) in all.iter().enumerate() {
            for (a, b) in equal
                .iter()
                .flat_map(|a| others.iter().map(move |b| (a, b)))
            {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a} and {b}, by {:?}", ORDER[i].0);
            }
        }
    }
}
