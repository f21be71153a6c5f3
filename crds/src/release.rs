//! The release of controller, agents and admission policies. They are compatible when their major and minor versions
//! are equal (`design/0014-upgrades.md`).

/// The version of this release, equal to the chart's.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The beginning of the message by which the admission policy `pawl-status` refuses an agent of another minor release.
pub const REFUSED: &str = "the agent of this image is not of release";

/// The version as `MAJOR.MINOR`.
pub fn minor() -> &'static str {
    VERSION
        .match_indices('.')
        .nth(1)
        .map_or(VERSION, |(end, _)| &VERSION[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_has_the_version_of_this_release() {
        let chart = include_str!("../../charts/pawl/Chart.yaml");
        for field in ["version", "appVersion"] {
            assert!(
                chart
                    .lines()
                    .any(|line| line == format!("{field}: {VERSION}")),
                "{field} is not {VERSION}"
            );
        }
    }

    #[test]
    fn policy_message_equals_the_release_constant() {
        let policy = include_str!("../../charts/pawl/templates/policies/status.yaml");
        assert!(policy.contains(&format!("message: {REFUSED} ")));
    }

    #[test]
    fn minor_release_is_the_first_two_numbers() {
        assert!(
            VERSION.starts_with(&format!("{}.", minor())) && minor().split('.').count() == 2,
            "{}",
            minor()
        );
    }
}
