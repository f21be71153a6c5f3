//! The release that controller, agents and admission policies are of. They work together when their major and minor versions are equal
//! (`design/0014-upgrades.md`).

/// The version of this release; the chart has the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How the admission policy `pawl-status` begins its refusal of an agent of another minor release.
pub const REFUSED: &str = "the agent of this image is not of release";

/// Major and minor version, with a dot between them.
pub fn minor() -> &'static str {
    VERSION.match_indices('.').nth(1).map_or(VERSION, |(end, _)| &VERSION[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_is_of_this_version() {
        let chart = include_str!("../../charts/pawl/Chart.yaml");
        for field in ["version", "appVersion"] {
            assert!(chart.lines().any(|line| line == format!("{field}: {VERSION}")), "{field} is not {VERSION}");
        }
    }

    #[test]
    fn the_policy_refuses_in_these_words() {
        let policy = include_str!("../../charts/pawl/templates/policies/status.yaml");
        assert!(policy.contains(&format!("message: {REFUSED} ")));
    }

    #[test]
    fn a_minor_release_is_the_first_two_numbers() {
        assert!(VERSION.starts_with(&format!("{}.", minor())) && minor().split('.').count() == 2, "{}", minor());
    }
}
