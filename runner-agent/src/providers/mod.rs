//! A cache of providers that runs share, for Terraform and OpenTofu.
//!
//! The tools write to their own `plugin_cache_dir` concurrently, and so can the code that they run. Here a run gets its own
//! filesystem mirror with links into a cache that it cannot write to (`design/0018-provider-cache.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`lock`] | the stack's lock file |
//! | [`dirhash`] | the `h1:` hash of a package |
//! | [`cache`] | the cache and the mirror of a run |
//! | [`populate`] | storing packages in the cache |
//! | [`package`] | the files of a package and the check that they are unchanged |
//! | [`prune`] | removal of the least recently used |
//! | [`user_config`] | the run's additions to the tool's CLI configuration |

pub mod cache;
pub mod dirhash;
pub mod lock;
mod package;
pub mod populate;
mod prune;
pub mod user_config;

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

pub use cache::{Cache, Served, Serving};
pub use dirhash::H1;
pub use lock::{LOCK_FILE, Lock, Locked, Provider};
pub use populate::Kept;
pub use user_config::UserConfig;

/// The tool's CLI configuration. Cached providers come from the run's mirror, which has exactly the locked version, so no
/// registry is asked for it. Others come from the image's mirror if it has them (laid out `HOST/NAMESPACE/NAME/…`), the rest from
/// their registries. A run that configures `provider_installation` itself overrides this.
pub fn cli_config(image: &Path, mirror: &Path, served: &[Served], own: &UserConfig) -> String {
    let mut text = if own.leaves_checkpoint() {
        String::from("disable_checkpoint = true\n")
    } else {
        String::new()
    };
    if !own.installs {
        text.push_str(&installation(image, mirror, served));
    }
    text.push_str(own.text());
    text
}

fn installation(image: &Path, mirror: &Path, served: &[Served]) -> String {
    let served: BTreeSet<String> = served
        .iter()
        .map(|served| served.provider.to_string())
        .collect();
    let image_has: BTreeSet<String> = in_mirror(image)
        .into_iter()
        .filter(|name| !served.contains(name))
        .collect();
    let list = |names: &mut dyn Iterator<Item = &String>| {
        names
            .map(|name| format!("\"{name}\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if served.is_empty() && image_has.is_empty() {
        return String::new();
    }
    let mut text = String::from("provider_installation {\n");
    for (path, names) in [(mirror, &served), (image, &image_has)]
        .iter()
        .filter(|(_, names)| !names.is_empty())
    {
        let (path, names) = (path.display(), list(&mut names.iter()));
        let _ = write!(
            text,
            "  filesystem_mirror {{\n    path    = \"{path}\"\n    include = [{names}]\n  }}\n"
        );
    }
    let all = list(&mut served.union(&image_has));
    let _ = write!(text, "  direct {{\n    exclude = [{all}]\n  }}\n}}\n");
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
    fn local_providers_come_from_their_mirrors() {
        let dir = tempfile::tempdir().unwrap();
        let mirror = Path::new("/run/mirror");
        let cli_config = |image: &Path, mirror: &Path, served: &[Served]| {
            cli_config(image, mirror, served, &UserConfig::default())
        };
        assert_eq!(
            cli_config(dir.path(), mirror, &[]),
            "disable_checkpoint = true\n"
        );
        for name in ["random", "time"] {
            fs::create_dir_all(
                dir.path()
                    .join("registry.opentofu.org/hashicorp")
                    .join(name)
                    .join("0.13.1/linux_amd64"),
            )
            .unwrap();
        }
        let (time, random) = (
            "\"registry.opentofu.org/hashicorp/time\"",
            "\"registry.opentofu.org/hashicorp/random\"",
        );
        let image = dir.path().display().to_string();
        let block = |path: &str, names: &str| {
            format!(
                "  filesystem_mirror {{\n    path    = \"{path}\"\n    include = [{names}]\n  }}\n"
            )
        };
        let text = |blocks: &str, all: &str| {
            format!(
                "disable_checkpoint = true\nprovider_installation {{\n{blocks}  direct {{\n    exclude = [{all}]\n  }}\n}}\n"
            )
        };
        let both = format!("{random}, {time}");
        assert_eq!(
            cli_config(dir.path(), mirror, &[]),
            text(&block(&image, &both), &both)
        );
        // The cached version is the locked one, so the image's mirror is not used.
        let served = Served::of_test("registry.opentofu.org/hashicorp/time", "0.12.0");
        let blocks = block("/run/mirror", time) + &block(&image, random);
        assert_eq!(
            cli_config(dir.path(), mirror, std::slice::from_ref(&served)),
            text(&blocks, &both)
        );
        assert_eq!(
            cli_config(Path::new("/not-there"), mirror, &[served]),
            text(&block("/run/mirror", time), time)
        );
    }

    #[test]
    fn run_may_configure_the_installation() {
        let (none, mirror) = (Path::new("/not-there"), Path::new("/run/mirror"));
        let served = [Served::of_test(
            "registry.opentofu.org/hashicorp/time",
            "0.12.0",
        )];
        let own = "provider_installation {\n  network_mirror {\n    url = \"https://m/\"\n  }\n}\n";
        let config = UserConfig::of(&[], Some(own)).unwrap();
        assert_eq!(
            cli_config(none, mirror, &served, &config),
            format!("disable_checkpoint = true\n{own}")
        );
        let token = UserConfig::of(&[("r".to_owned(), "t".to_owned())], None).unwrap();
        let text = cli_config(none, mirror, &served, &token);
        assert!(
            text.contains("filesystem_mirror")
                && text.ends_with("credentials \"r\" {\n  token = \"t\"\n}\n"),
            "{text}"
        );
    }
}
