//! The choice among several versions.

use tool_versions::{Constraints, Request, Version};

use super::By::{self, GoVersion, Ours, Tenv, Terraform};

const VERSIONS: [&str; 12] = [
    "0.15.5",
    "1.5.0",
    "1.5.7",
    "1.6.0-alpha20230816",
    "1.6.0",
    "1.9.4",
    "1.10.0-rc1",
    "1.10.0",
    "1.10.6",
    "1.11.0-rc2",
    "2.0.0",
    "2.1.0-beta1",
];

/// Request, requirement of the code, and the version chosen.
const ROWS: &[(By, &str, &str, Option<&str>)] = &[
    (Tenv, "1.5", "", Some("1.5.0")),
    (Tenv, "1.5.7", "", Some("1.5.7")),
    (Tenv, "1.5.8", "", None),
    (Tenv, "1.10.0-rc1", "", Some("1.10.0-rc1")),
    (Tenv, "latest", "", Some("2.0.0")),
    (Tenv, "latest-pre", "", Some("2.1.0-beta1")),
    (Tenv, "latest:^1\\.5", "", Some("1.5.7")),
    // tenv takes 1.11.0-rc2, and 1.6.0-alpha20230816 below: no pattern here names a prerelease.
    (Ours, "latest:^1.1", "", Some("1.10.6")),
    (Ours, "latest:2$", "", None),
    (Ours, "latest:^2.[0-9]", "", Some("2.0.0")),
    (Ours, "latest:-rc\\d$", "", Some("1.11.0-rc2")),
    (Ours, "latest:^1\\.11\\.0-rc", "", Some("1.11.0-rc2")),
    (Tenv, "latest:rc", "", Some("1.11.0-rc2")),
    (Tenv, "latest:^3", "", None),
    (Tenv, "min:^1\\.5", "", Some("1.5.0")),
    (Ours, "min:^1\\.6", "", Some("1.6.0")),
    (Ours, "min:alpha", "", Some("1.6.0-alpha20230816")),
    (Tenv, "min:5", "", Some("0.15.5")),
    (Tenv, "latest-allowed", "", Some("2.0.0")),
    (Tenv, "latest-allowed", ">= 1.0", Some("2.0.0")),
    (Tenv, "latest-allowed", "~> 1.9", Some("1.10.6")),
    (Tenv, "latest-allowed", "< 1.6", Some("1.5.7")),
    (Tenv, "latest-allowed", "~> 3.0", None),
    (Tenv, "min-required", ">= 1.5.1", Some("1.5.7")),
    (Tenv, "min-required", "~> 1.9", Some("1.9.4")),
    (Ours, "min-required", "", Some("0.15.5")),
    (GoVersion, "~> 1.9", "", Some("1.10.6")),
    (GoVersion, "~> 1.9.0", "", Some("1.9.4")),
    (GoVersion, ">= 1.10.0-rc1, < 1.10.1", "", Some("1.10.0")),
    (GoVersion, "~> 1.10.0-rc1", "", Some("1.10.0-rc1")),
    (GoVersion, ">= 2.1.0-alpha", "", Some("2.1.0-beta1")),
    (GoVersion, "< 1", "", Some("0.15.5")),
    (Ours, "!= 2.0.0", "", Some("1.10.6")),
    (Ours, "!= 2.1.0-alpha1", "", Some("2.0.0")),
    (Ours, "> 1.10.0, != 2.0.0", "", Some("1.10.6")),
    (Ours, "~> 1.5", "< 1.10", Some("1.9.4")),
    (Ours, "latest", "< 1.10", Some("1.9.4")),
    (Ours, "latest-pre", "< 1.10", Some("1.9.4")),
    (Ours, "latest:^1", "< 1.10", Some("1.9.4")),
    (Ours, "~> 1.10", "< 1.10", None),
    (Terraform, "1.11.0-rc2", ">= 1.11", Some("1.11.0-rc2")),
    (
        Terraform,
        "1.6.0-alpha20230816",
        ">= 1.6",
        Some("1.6.0-alpha20230816"),
    ),
];

#[test]
fn each_row() {
    let versions: Vec<Version> = VERSIONS
        .iter()
        .rev()
        .map(|text| text.parse().unwrap())
        .collect();
    for (by, asked, required, expected) in ROWS {
        let request: Request = asked.parse().unwrap();
        let required: Option<Constraints> =
            (!required.is_empty()).then(|| required.parse().unwrap());
        let taken = request.choose(&versions, |version| {
            required
                .as_ref()
                .is_none_or(|required| required.allow_core(version))
        });
        assert_eq!(
            taken.map(ToString::to_string).as_deref(),
            *expected,
            "`{asked}` with {required:?}, by {by:?}"
        );
    }
}
