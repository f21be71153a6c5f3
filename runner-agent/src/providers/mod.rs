//! A cache of providers that runs share, for Terraform and OpenTofu.
//!
//! The tools write to their own `plugin_cache_dir` concurrently, and so can the code that they run. Here a run gets its own
//! filesystem mirror with links into a cache that it cannot write to (`design/0018-provider-cache.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`lock`] | the stack's lock file |
//! | [`installation`] | the places from which the tool takes each provider |
//! | [`dirhash`] | the `h1:` hash of a package |
//! | [`cache`] | the cache and the mirror of a run |
//! | [`populate`] | storing packages in the cache |
//! | [`package`] | the files of a package and the check that they are unchanged |
//! | [`prune`] | removal of the least recently used |
//! | [`user_config`] | the run's additions to the tool's CLI configuration |

pub mod cache;
pub mod dirhash;
pub mod installation;
pub mod lock;
mod package;
pub mod populate;
mod prune;
pub mod user_config;

use std::{fs, path::Path};

pub use cache::{Cache, Served, Serving};
pub use dirhash::H1;
pub use installation::Installation;
pub use lock::{LOCK_FILE, Lock, Locked, Provider};
pub use populate::Kept;
pub use user_config::UserConfig;

/// The tool's CLI configuration. A run that configures `provider_installation` itself overrides the installation.
pub fn cli_config(installation: &Installation, own: &UserConfig) -> String {
    let mut text = if own.leaves_checkpoint() {
        String::from("disable_checkpoint = true\n")
    } else {
        String::new()
    };
    if !own.installs {
        text.push_str(&installation.text());
    }
    text.push_str(own.text());
    text
}

/// The providers of an image's mirror.
fn in_mirror(mirror: &Path) -> Vec<String> {
    let names = |dir: &Path| -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| {
                name.chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            })
            .collect();
        names.sort();
        names
    };
    let mut providers = Vec::new();
    for host in names(mirror) {
        for namespace in names(&mirror.join(&host)) {
            for name in names(&mirror.join(&host).join(&namespace)) {
                providers.push(format!("{host}/{namespace}/{name}"));
            }
        }
    }
    providers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_may_configure_the_installation() {
        let (none, mirror) = (Path::new("/not-there"), Path::new("/run/mirror"));
        let served = [Served::of_test(
            "registry.opentofu.org/hashicorp/time",
            "0.12.0",
        )];
        let installation = Installation::of(none, mirror, &served, &Lock::default(), false);
        let own = "provider_installation {\n  network_mirror {\n    url = \"https://m/\"\n  }\n}\n";
        let config = UserConfig::of(&[], Some(own)).unwrap();
        assert_eq!(
            cli_config(&installation, &config),
            format!("disable_checkpoint = true\n{own}")
        );
        let token = UserConfig::of(&[("r".to_owned(), "t".to_owned())], None).unwrap();
        let text = cli_config(&installation, &token);
        assert!(
            text.contains("filesystem_mirror")
                && text.ends_with("credentials \"r\" {\n  token = \"t\"\n}\n"),
            "{text}"
        );
    }
}
