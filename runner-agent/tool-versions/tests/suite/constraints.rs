//! Constraints.

use tool_versions::{Constraints, Version};

use super::By::{self, GoVersion, Ours, Tenv};

/// Constraint, version, and whether it is allowed; `None` when the constraint is invalid.
const ROWS: &[(By, &str, &str, Option<bool>)] = &[
    (GoVersion, ">= 1.0", "1.2", Some(true)),
    (GoVersion, ">= 1.0", "0.9", Some(false)),
    (GoVersion, ">= 1.0", "1.0.0", Some(true)),
    (GoVersion, "> 1.0", "1.0.0", Some(false)),
    (GoVersion, "< 1.0", "0.9.9", Some(true)),
    (GoVersion, "<= 1.0", "1.0.0", Some(true)),
    (GoVersion, "<= 1.0", "1.0.1", Some(false)),
    (GoVersion, ">= 1.0, < 1.2", "1.1.5", Some(true)),
    (GoVersion, ">= 1.0, < 1.2, != 1.1.5", "1.1.5", Some(false)),
    (GoVersion, "< 1.0, < 1.2", "1.1.5", Some(false)),
    (GoVersion, ">=1.8,<2", "1.10.6", Some(true)),
    (GoVersion, ">1.9", "1.10.0", Some(true)),
    (GoVersion, " >=   1.0 ,<2 ", "1.5", Some(true)),
    (GoVersion, "= 1.0", "1.1.5", Some(false)),
    (GoVersion, "= 1.0", "1.0.0", Some(true)),
    (GoVersion, "1.0", "1.0.0", Some(true)),
    (GoVersion, "1.0", "1.0.1", Some(false)),
    (GoVersion, "= v1.2.3", "1.2.3", Some(true)),
    (GoVersion, ">= v1.2", "1.2.3", Some(true)),
    (GoVersion, "~> 1.0", "2.0", Some(false)),
    (GoVersion, "~> 1.0", "1.1", Some(true)),
    (GoVersion, "~> 1.0", "1.2.3", Some(true)),
    (GoVersion, "~> 1.2", "1.1.9", Some(false)),
    (GoVersion, "~> 1.2", "1.99.0", Some(true)),
    (GoVersion, "~> 1.2", "2.0.0", Some(false)),
    (GoVersion, "~> 1.0.0", "1.2.3", Some(false)),
    (GoVersion, "~> 1.0.0", "1.0.7", Some(true)),
    (GoVersion, "~> 1.0.0", "1.1.0", Some(false)),
    (GoVersion, "~> 1.0.7", "1.0.4", Some(false)),
    (GoVersion, "~> 1.0.7", "1.0.7", Some(true)),
    (GoVersion, "~> 1.0.7", "1.0.8", Some(true)),
    (GoVersion, "~> 1.0.7", "1.0.7.5", Some(true)),
    (GoVersion, "~> 1.0.7.1", "1.0.7.5", Some(true)),
    (GoVersion, "~> 1.0.7.1", "1.0.8", Some(false)),
    (GoVersion, "~> 1.0.4", "1.0.5-beta", Some(false)),
    (GoVersion, "~> 2.1.0-a", "2.1.0-beta", Some(true)),
    (GoVersion, "~> 2.1.0-a", "2.1.0", Some(false)),
    (GoVersion, "~> 2.1.0-a", "2.1.1", Some(false)),
    (GoVersion, "~> 2.1.0-a", "2.1.1-beta", Some(false)),
    (GoVersion, "~> 2.1.0-a", "2.2.0", Some(false)),
    (GoVersion, "~> 1", "2.5.0", Some(true)),
    (GoVersion, "~> 1", "0.9.0", Some(false)),
    (GoVersion, "~> 1", "99.0.0", Some(true)),
    (GoVersion, "= 2.0", "2.1.0-beta1", Some(false)),
    (GoVersion, "= 2.1.0-beta1", "2.1.0-beta1", Some(true)),
    (GoVersion, "1.11.0-beta1", "1.11.0-beta1", Some(true)),
    (GoVersion, "> 2.0", "2.1.0-beta1", Some(false)),
    (GoVersion, ">= 2.1.0-a", "2.1.0-beta", Some(true)),
    (GoVersion, ">= 2.1.0-a", "2.1.1-beta", Some(false)),
    (GoVersion, ">= 2.0.0", "2.1.0-beta", Some(false)),
    (GoVersion, ">= 2.1.0-a", "2.1.1", Some(true)),
    (GoVersion, ">= 2.1.0-a", "2.1.0", Some(true)),
    (GoVersion, "<= 2.1.0-a", "2.0.0", Some(true)),
    (GoVersion, "<= 2.1.0-b", "2.1.0-a", Some(true)),
    (GoVersion, "<= 2.1.0-a", "2.1.0", Some(false)),
    (GoVersion, "< 2.1.0", "2.1.0-beta", Some(false)),
    (GoVersion, "> 2.1.0-a", "2.1.0-b", Some(true)),
    (GoVersion, "!= 1.0", "1.0", Some(false)),
    (GoVersion, "!= 1.0", "1.0.1", Some(true)),
    (GoVersion, "!= 1.0", "1.1.0-rc1", Some(true)),
    (GoVersion, "!= 1.1.0-rc1", "1.1.0-rc1", Some(false)),
    (GoVersion, ">= 1.0, != 1.5.1", "1.5.1", Some(false)),
    (GoVersion, ">= 1.0, 1.5.1", "1.5.1", Some(true)),
    (GoVersion, ">= 1.2beta1", "1.2.0", Some(true)),
    (GoVersion, ">= 0.13", "0.13.0", Some(true)),
    (Ours, "~> 1.0+meta", "1.4.0", Some(true)),
    (Tenv, "", "1.0.0", None),
    (Tenv, "1.5.x", "1.5.0", None),
    (Tenv, "1.5.*", "1.5.0", None),
    (Tenv, "*", "1.5.0", None),
    (GoVersion, "== 1.0", "1.0.0", None),
    (GoVersion, "=> 1.0", "1.0.0", None),
    (GoVersion, "=< 1.0", "1.0.0", None),
    (GoVersion, "~ 1.0", "1.0.0", None),
    (GoVersion, "^1.0", "1.0.0", None),
    (GoVersion, "<> 1.0", "1.0.0", None),
    (GoVersion, ">= 1.0 || < 2", "1.0.0", None),
    (GoVersion, ">= 1.0,", "1.0.0", None),
    (GoVersion, ", 1.0", "1.0.0", None),
    (GoVersion, ">= 1.0 < 2.0", "1.0.0", None),
    (GoVersion, "1.0 2.0", "1.0.0", None),
    (GoVersion, ">=", "1.0.0", None),
    (GoVersion, ">= foo", "1.0.0", None),
    (GoVersion, "1.0 - 2.0", "1.0.0", None),
];

#[test]
fn each_row() {
    for (by, text, version, expected) in ROWS {
        let allowed = text
            .parse::<Constraints>()
            .ok()
            .map(|constraints| constraints.allow(&version.parse().unwrap()));
        assert_eq!(allowed, *expected, "{version} for `{text}`, by {by:?}");
    }
}

#[test]
fn error_names_the_invalid_part() {
    for (text, part) in [
        ("== 1.0", "`==` is written `=`"),
        (">= 1.0 || < 2", "there is no `||`"),
        (">= 1.0,", "a part of it is empty"),
        (">= 1.0, 1.5.x", "`1.5.x` is not understood"),
    ] {
        let error = text.parse::<Constraints>().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(vec!["!= 1.0"; 65].join(",").parse::<Constraints>().is_err());
}

#[test]
fn any_from_finds_an_allowed_release() {
    let first = Version::release(1, 6, 0);
    for (texts, any) in [
        (&[][..], true),
        (&[">= 1.5"], true),
        (&["~> 1.5"], true),
        (&["~> 1.5.0"], false),
        (&["1.5.7"], false),
        (&["= 1.6.0"], true),
        (&["< 1.6"], false),
        (&["<= 1.6"], true),
        (&["> 1.8.0, < 1.9.0"], true),
        (&["> 1.5.7, < 1.6.0"], false),
        (&["!= 1.6.0, ~> 1.6.0"], true),
        (&["!= 1.6.0, <= 1.6.0"], false),
        (&[">= 2, != 2.0.0"], true),
        (&[">= 1.3", "< 1.6"], false),
        (&["~> 1.14.0"], true),
    ] {
        let all: Vec<Constraints> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(Constraints::any_from(&all, &first), any, "{texts:?}");
    }
}
