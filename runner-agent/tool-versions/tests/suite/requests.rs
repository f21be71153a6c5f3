//! The grammar of requests.

use tool_versions::Request;

use super::By::{self, GoVersion, Ours, Tenv};

/// Source, text, and its kind with the printed form; `None` when it is invalid.
type Row = (By, &'static str, Option<(&'static str, &'static str)>);

const ROWS: &[Row] = &[
    (Tenv, "1.5", Some(("exact", "1.5.0"))),
    (Tenv, "1.5.7", Some(("exact", "1.5.7"))),
    (Tenv, "v1.5.7", Some(("exact", "1.5.7"))),
    (
        Tenv,
        "1.6.0-alpha20230816",
        Some(("exact", "1.6.0-alpha20230816")),
    ),
    (Tenv, "1.10.0-rc1\n", Some(("exact", "1.10.0-rc1"))),
    (Tenv, "latest", Some(("latest", "latest"))),
    (Tenv, "latest-stable", Some(("latest", "latest"))),
    (Tenv, "latest-pre", Some(("latest-pre", "latest-pre"))),
    (
        Tenv,
        "latest-allowed",
        Some(("latest-allowed", "latest-allowed")),
    ),
    (Tenv, "min-required", Some(("min-required", "min-required"))),
    (Tenv, "latest:^1.5", Some(("matching", "latest:^1.5"))),
    (Tenv, "latest: ^1\\.5", Some(("matching", "latest:^1\\.5"))),
    (Tenv, "min:^1\\.(5|6)", Some(("oldest", "min:^1\\.(5|6)"))),
    (GoVersion, "~> 1.5", Some(("within", "~> 1.5"))),
    (GoVersion, "~> 1.5.0", Some(("within", "~> 1.5.0"))),
    (GoVersion, "~>1", Some(("within", "~> 1"))),
    (GoVersion, ">= 1.2 , < 2", Some(("within", ">= 1.2, < 2"))),
    (GoVersion, "!= 1.5", Some(("within", "!= 1.5"))),
    (GoVersion, "= 1.5", Some(("within", "1.5"))),
    (GoVersion, ">= 1.2-beta1", Some(("within", ">= 1.2-beta1"))),
    (Ours, "", None),
    (Ours, " \n ", None),
    (Ours, "latest:", None),
    (Ours, "latest:(", None),
    (Ours, "min:[", None),
    (Ours, "newest", None),
    (Ours, "Latest", None),
    (Ours, "stable", None),
    (Ours, "system", None),
    (Ours, "alpha20250101", None),
    (GoVersion, "1.5.x", None),
    (GoVersion, "1.5 || 1.6", None),
    (GoVersion, "^1.5", None),
    (Ours, "../1.5", None),
];

fn kind(request: &Request) -> &'static str {
    match request {
        Request::Exact(_) => "exact",
        Request::Latest => "latest",
        Request::LatestPrerelease => "latest-pre",
        Request::LatestMatching(_) => "matching",
        Request::OldestMatching(_) => "oldest",
        Request::LatestAllowed => "latest-allowed",
        Request::OldestAllowed => "min-required",
        Request::Within(_) => "within",
    }
}

#[test]
fn each_row() {
    for (by, text, expected) in ROWS {
        let read = text
            .parse::<Request>()
            .ok()
            .map(|request| (kind(&request), request.to_string()));
        assert_eq!(
            read.as_ref().map(|(kind, text)| (*kind, text.as_str())),
            *expected,
            "`{text}`, by {by:?}"
        );
    }
}

#[test]
fn error_lists_the_valid_words() {
    let error = "newest".parse::<Request>().unwrap_err().to_string();
    assert!(
        error.contains("`newest` is no version") && error.contains("latest-allowed"),
        "{error}"
    );
    assert!(
        format!("latest:{}", "a".repeat(201))
            .parse::<Request>()
            .is_err()
    );
}
