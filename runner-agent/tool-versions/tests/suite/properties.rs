//! Properties of every version and constraint.

use std::cmp::Ordering;

use proptest::prelude::*;
use tool_versions::{Constraints, Request, Version};

fn version() -> impl Strategy<Value = Version> {
    let text = (
        "[0-9]{1,3}(\\.[0-9]{1,3}){0,4}",
        prop::option::of("[0-9A-Za-z]{1,4}(\\.[0-9A-Za-z]{1,3}){0,2}"),
    );
    text.prop_map(|(numbers, prerelease)| match prerelease {
        Some(prerelease) => format!("{numbers}-{prerelease}").parse().unwrap(),
        None => numbers.parse().unwrap(),
    })
}

fn constraints() -> impl Strategy<Value = Constraints> {
    let part = (
        "(|=|!=|>|>=|<|<=|~>)",
        "[0-9]{1,2}(\\.[0-9]{1,2}){0,3}(-[a-z]{1,3}[0-9]?)?",
    );
    prop::collection::vec(
        part.prop_map(|(operator, version)| format!("{operator} {version}")),
        1..4,
    )
    .prop_map(|parts| parts.join(",").parse().unwrap())
}

/// Few versions, so that a list has those of a constraint.
fn near() -> impl Strategy<Value = String> {
    "[01](\\.[0-2]){0,2}(-(alpha|rc)[12])?"
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn order_is_total(a in version(), b in version(), c in version()) {
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        prop_assert_eq!(a.cmp(&b) == Ordering::Equal, a == b);
        if a <= b && b <= c {
            prop_assert!(a <= c);
        }
        prop_assert_eq!(a.cmp(&a.clone()), Ordering::Equal);
    }

    #[test]
    fn prerelease_sorts_before_its_release(a in version()) {
        prop_assert_eq!(a.cmp(&a.core()), if a.is_stable() { Ordering::Equal } else { Ordering::Less });
    }

    #[test]
    fn pessimistic_operator_has_its_bounds(numbers in prop::collection::vec(0_u64..9, 1..5), v in version()) {
        let text: Vec<_> = numbers.iter().map(ToString::to_string).collect();
        let lower: Version = text.join(".").parse().unwrap();
        let pessimistic: Constraints = format!("~> {lower_text}", lower_text = text.join(".")).parse().unwrap();
        let mut upper = numbers.clone();
        upper.pop();
        let below = match upper.last_mut() {
            Some(last) => {
                *last += 1;
                let upper: Vec<_> = upper.iter().map(ToString::to_string).collect();
                v < upper.join(".").parse().unwrap()
            }
            // `~> 1` has no upper bound.
            None => true,
        };
        prop_assert_eq!(pessimistic.allow(&v), v.is_stable() && v >= lower && below, "{} for {}", v, pessimistic);
    }

    #[test]
    fn choice_is_the_newest_allowed(c in constraints(), all in prop::collection::vec(version(), 0..20)) {
        let request: Request = c.to_string().parse().unwrap();
        let taken = request.choose(&all, |_| true);
        match &request {
            Request::Exact(wanted) => prop_assert!(taken.is_none_or(|taken| taken == wanted)),
            _ => prop_assert!(all.iter().filter(|v| c.allow(v) && (v.is_stable() || c.names(v))).all(|v| taken.is_some_and(|taken| taken >= v && c.allow(taken)))),
        }
    }

    #[test]
    fn prerelease_is_selected_only_by_its_numbers(
        parts in prop::collection::vec(("(|=|!=|>|>=|<|<=|~>)", near()), 1..4),
        all in prop::collection::vec(near(), 1..30),
    ) {
        let text: Vec<_> = parts.iter().map(|(operator, version)| format!("{operator} {version}")).collect();
        let (text, all): (_, Vec<Version>) = (text.join(","), all.iter().map(|text| text.parse().unwrap()).collect());
        let required: Constraints = text.parse().unwrap();
        let allowed = |version: &Version| required.allow_core(version);
        for request in [text.as_str(), "latest", "latest-allowed", "min-required", "latest:^1", "min:[01]$"] {
            let taken = request.parse::<Request>().unwrap();
            let taken = if request == text { taken.choose(&all, |_| true) } else { taken.choose(&all, allowed) };
            let Some(taken) = taken.filter(|taken| !taken.is_stable()) else { continue };
            let is_named = parts.iter().any(|(operator, version)| {
                let wanted: Version = version.parse().unwrap();
                operator != "!=" && !wanted.is_stable() && wanted.core() == taken.core()
            });
            prop_assert!(request == text && is_named, "{} for {} by {}", taken, request, text);
        }
    }
}
