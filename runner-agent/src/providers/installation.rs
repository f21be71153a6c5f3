//! The places from which the tool takes each provider.
//!
//! | the stack's lock file | places |
//! |---|---|
//! | locks a version that the cache or the image's mirror has | that mirror alone: no registry is asked |
//! | locks another version | the registry |
//! | does not list the provider, or `-upgrade` | the registry, and the mirrors beside it |

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use tool_versions::Platform;

use super::{Lock, Served, in_mirror};

/// A directory with providers, and those that the tool may take from it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirror {
    name: &'static str,
    path: PathBuf,
    providers: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    mirrors: Vec<Mirror>,
    /// The providers that come from a mirror alone.
    alone: BTreeSet<String>,
    /// Why it is not the first choice, in words.
    pub note: Option<String>,
}

impl Installation {
    /// The first choice, for `image`, the image's mirror (laid out `HOST/NAMESPACE/NAME/…`), and the packages `served` in the run's
    /// own `mirror`.
    pub fn of(image: &Path, mirror: &Path, served: &[Served], lock: &Lock, upgrades: bool) -> Self {
        let served: BTreeSet<String> = served.iter().map(|one| one.provider.to_string()).collect();
        let mut alone = if upgrades {
            BTreeSet::new()
        } else {
            served.clone()
        };
        let mut of_image = BTreeSet::new();
        for name in in_mirror(image) {
            match lock.versions.get(&name).filter(|_| !upgrades) {
                _ if alone.contains(&name) => {}
                None => drop(of_image.insert(name)),
                Some(version) if versions(image, &name).contains(version) => {
                    of_image.insert(name.clone());
                    alone.insert(name);
                }
                Some(_) => {}
            }
        }
        let all = [
            ("cache", mirror, served),
            ("image's mirror", image, of_image),
        ];
        let mirrors = all
            .into_iter()
            .filter(|(.., providers)| !providers.is_empty());
        Self {
            mirrors: mirrors
                .map(|(name, path, providers)| Mirror {
                    name,
                    path: path.to_owned(),
                    providers,
                })
                .collect(),
            alone,
            note: None,
        }
    }

    /// The same without the registries of providers that a mirror has; `None` if it asks none of them.
    pub fn offline(&self) -> Option<Self> {
        let providers = self.mirrors.iter().flat_map(|mirror| &mirror.providers);
        let all: BTreeSet<String> = providers.cloned().collect();
        (all != self.alone).then(|| {
            let asked: Vec<_> = all.difference(&self.alone).map(String::as_str).collect();
            let note = format!(
                "the registry cannot be reached; a mirror alone serves {}",
                asked.join(", ")
            );
            Self {
                alone: all.clone(),
                note: Some(note),
                ..self.clone()
            }
        })
    }

    /// The same without the mirrors' packages of providers that `message` names; `None` if no mirror alone serves one.
    pub fn without(&self, message: &str) -> Option<Self> {
        let named: BTreeSet<String> = self
            .alone
            .iter()
            .filter(|name| is_named(message, name))
            .cloned()
            .collect();
        if named.is_empty() {
            return None;
        }
        let mut other = self.clone();
        for mirror in &mut other.mirrors {
            mirror.providers.retain(|name| !named.contains(name));
        }
        other.mirrors.retain(|mirror| !mirror.providers.is_empty());
        other.alone.retain(|name| !named.contains(name));
        let names: Vec<_> = named.into_iter().collect();
        other.note = Some(format!(
            "the lock file lists other packages than the mirror has; the registry serves {}",
            names.join(", ")
        ));
        Some(other)
    }

    /// The mirrors that answered for the providers that a message names.
    pub fn answered(&self, message: &str) -> Vec<String> {
        let mut told = Vec::new();
        for mirror in &self.mirrors {
            for name in &mirror.providers {
                if !is_named(message, name) {
                    continue;
                }
                let has = versions(&mirror.path, name).into_iter().collect::<Vec<_>>();
                let besides = if self.alone.contains(name) {
                    "no registry was asked"
                } else {
                    "its registry was asked too"
                };
                told.push(format!(
                    "the {} {} has {name} {}, and {besides}",
                    mirror.name,
                    mirror.path.display(),
                    has.join(", ")
                ));
            }
        }
        told
    }

    /// The block of the tool's CLI configuration; empty if everything comes from registries.
    pub(super) fn text(&self) -> String {
        if self.mirrors.is_empty() {
            return String::new();
        }
        let list = |names: &BTreeSet<String>| {
            let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
            names.join(", ")
        };
        let mut text = String::from("provider_installation {\n");
        for mirror in &self.mirrors {
            let (path, names) = (mirror.path.display(), list(&mirror.providers));
            let _ = write!(
                text,
                "  filesystem_mirror {{\n    path    = \"{path}\"\n    include = [{names}]\n  }}\n"
            );
        }
        let alone = list(&self.alone);
        let _ = write!(text, "  direct {{\n    exclude = [{alone}]\n  }}\n}}\n");
        text
    }
}

/// Whether a message names a provider, with or without its host.
fn is_named(message: &str, provider: &str) -> bool {
    let short = provider
        .split_once('/')
        .map_or(provider, |(_, short)| short);
    message.contains(short)
}

/// The versions of a provider in a mirror, for this platform: directories, or archives.
fn versions(mirror: &Path, provider: &str) -> BTreeSet<String> {
    let (dir, platform) = (mirror.join(provider), Platform::here().to_string());
    let name = provider.rsplit('/').next().unwrap_or_default();
    let (head, tail) = (
        format!("terraform-provider-{name}_"),
        format!("_{platform}.zip"),
    );
    let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|entry| {
            let packed = entry
                .strip_prefix(&head)
                .and_then(|rest| rest.strip_suffix(&tail));
            let unpacked = || dir.join(&entry).join(&platform).is_dir();
            packed
                .map(str::to_owned)
                .or_else(|| unpacked().then_some(entry.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &str = "registry.opentofu.org/hashicorp/time";
    const RANDOM: &str = "registry.opentofu.org/hashicorp/random";

    fn image() -> tempfile::TempDir {
        let (dir, platform) = (tempfile::tempdir().unwrap(), Platform::here());
        fs::create_dir_all(
            dir.path()
                .join(TIME)
                .join("0.14.2")
                .join(platform.to_string()),
        )
        .unwrap();
        let random = dir.path().join(RANDOM);
        fs::create_dir_all(&random).unwrap();
        let archive = format!("terraform-provider-random_3.9.0_{platform}.zip");
        fs::write(random.join(archive), "").unwrap();
        dir
    }

    fn locks(versions: &[(&str, &str)]) -> Lock {
        let versions = versions
            .iter()
            .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
        Lock {
            versions: versions.collect(),
            ..Lock::default()
        }
    }

    #[test]
    fn registry_is_asked_unless_a_mirror_has_the_locked_version() {
        let (image, run) = (image(), Path::new("/run/mirror"));
        let of = |served: &[Served], lock: &Lock, upgrades| {
            Installation::of(image.path(), run, served, lock, upgrades)
        };
        let text = |mirrors: &[(&Path, &[&str])], alone: &[&str]| {
            let list = |names: &[&str]| {
                names
                    .iter()
                    .map(|n| format!("\"{n}\""))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let mut text = String::from("provider_installation {\n");
            for (path, names) in mirrors {
                let _ = write!(
                    text,
                    "  filesystem_mirror {{\n    path    = \"{}\"\n    include = [{}]\n  }}\n",
                    path.display(),
                    list(names)
                );
            }
            text + &format!("  direct {{\n    exclude = [{}]\n  }}\n}}\n", list(alone))
        };
        let at = image.path();
        let both = locks(&[(TIME, "0.14.2"), (RANDOM, "3.9.0")]);
        assert_eq!(
            of(&[], &both, false).text(),
            text(&[(at, &[RANDOM, TIME])], &[RANDOM, TIME])
        );
        let none = Lock::default();
        for (lock, upgrades) in [(&none, false), (&none, true), (&both, true)] {
            assert_eq!(
                of(&[], lock, upgrades).text(),
                text(&[(at, &[RANDOM, TIME])], &[])
            );
        }
        // The image's mirror has not what is locked.
        let newer = locks(&[(TIME, "0.15.0")]);
        assert_eq!(of(&[], &newer, false).text(), text(&[(at, &[RANDOM])], &[]));
        // The cached package is the locked one.
        let served = || [Served::of_test(TIME, "0.15.0")];
        let cached = of(&served(), &newer, false);
        assert_eq!(
            cached.text(),
            text(&[(run, &[TIME]), (at, &[RANDOM])], &[TIME])
        );
        let upgraded = of(&served(), &newer, true);
        assert_eq!(
            upgraded.text(),
            text(&[(run, &[TIME]), (at, &[RANDOM, TIME])], &[])
        );
        let nowhere = Installation::of(Path::new("/not-there"), run, &[], &none, false);
        assert_eq!(nowhere.text(), "");
    }

    #[test]
    fn mirror_serves_alone_while_the_registry_is_away() {
        let image = image();
        let of = |lock| Installation::of(image.path(), Path::new("/run"), &[], lock, false);
        let none = Lock::default();
        let open = of(&none);
        let message = "Could not resolve provider hashicorp/time: no available releases match";
        assert_eq!(
            open.answered(message),
            [format!(
                "the image's mirror {} has {TIME} 0.14.2, and its registry was asked too",
                image.path().display()
            )]
        );
        let away = open.offline().unwrap();
        assert_eq!(away.alone.len(), 2);
        assert!(away.note.as_ref().unwrap().contains(TIME));
        assert!(away.answered(message)[0].ends_with("no registry was asked"));
        assert_eq!(away.offline(), None);
        // Another package than the lock file lists.
        let lock = locks(&[(TIME, "0.14.2")]);
        let locked = of(&lock);
        let other = locked
            .without("provider registry.opentofu.org/hashicorp/time")
            .unwrap();
        assert!(!other.text().contains(TIME) && other.text().contains(RANDOM));
        assert_eq!(
            (locked.without("hashicorp/random"), open.without(message)),
            (None, None)
        );
    }
}
