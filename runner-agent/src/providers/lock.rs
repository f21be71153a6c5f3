//! The stack's `.terraform.lock.hcl`.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use hcl_edit::expr::Expression;
use tool_versions::request::hcl;

use super::dirhash::H1;

/// The file name.
pub const LOCK_FILE: &str = ".terraform.lock.hcl";
/// The largest file, in bytes. An entry has about twenty hashes, so this is more than a hundred providers.
const MOST: u64 = hcl::LARGEST as u64;

/// The address of a provider; each part is a directory name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Provider {
    /// `registry.opentofu.org`.
    pub host: String,
    /// `hashicorp`.
    pub namespace: String,
    /// `time`.
    pub name: String,
}

impl Provider {
    /// Parses `HOST/NAMESPACE/NAME`; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<_> = text.split('/').collect();
        let [host, namespace, name] = parts[..] else {
            return None;
        };
        let all = is_name(host, ":.-_") && is_name(namespace, ".-_") && is_name(name, ".-_");
        all.then(|| Self {
            host: host.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Its directory in a mirror.
    pub fn path(&self) -> PathBuf {
        [&self.host, &self.namespace, &self.name].iter().collect()
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.host, self.namespace, self.name)
    }
}

/// Whether a text is a plain directory name that is not hidden.
fn is_name(text: &str, besides: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || besides.contains(c))
}

/// A provider in the lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locked {
    pub provider: Provider,
    /// The locked version.
    pub version: String,
    /// The hashes of its packages, for several platforms. The file does not map hashes to platforms.
    pub packages: Vec<H1>,
}

/// A lock file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// All providers with a package hash.
    pub providers: Vec<Locked>,
    /// The version of each provider, with or without a hash.
    pub versions: BTreeMap<String, String>,
}

impl Lock {
    /// Reads the lock file of a stack; a missing file locks nothing.
    ///
    /// # Errors
    /// It cannot be read, or is no lock file.
    pub fn of(stack: &Path) -> io::Result<Self> {
        let flags = nix::libc::O_NONBLOCK;
        let file = match fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(stack.join(LOCK_FILE))
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            file => file?,
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut text = String::new();
        file.take(MOST + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MOST {
            return Err(io::Error::other(format!(
                "it is larger than {} KiB",
                MOST >> 10
            )));
        }
        Self::parse(&text).map_err(io::Error::other)
    }

    /// Parses a lock file. Skips invalid entries, which the tool reports.
    ///
    /// # Errors
    /// It is no HCL.
    pub fn parse(text: &str) -> Result<Self, String> {
        let body = hcl::parse(text)?;
        let (mut providers, mut versions) = (Vec::new(), BTreeMap::new());
        for block in body
            .blocks()
            .filter(|block| block.ident.as_str() == "provider")
        {
            let [label] = block.labels.as_slice() else {
                continue;
            };
            let value = |name: &str| {
                block
                    .body
                    .get_attribute(name)
                    .map(|attribute| &attribute.value)
            };
            let version = value("version")
                .and_then(Expression::as_str)
                .filter(|version| is_name(version, ".-+"));
            let (Some(provider), Some(version)) = (Provider::parse(label.as_str()), version) else {
                continue;
            };
            versions.insert(provider.to_string(), version.to_owned());
            let hashes = value("hashes")
                .and_then(Expression::as_array)
                .into_iter()
                .flatten();
            let mut packages: Vec<H1> = hashes
                .filter_map(|hash| hash.as_str()?.parse().ok())
                .collect();
            packages.sort_unstable();
            packages.dedup();
            if !packages.is_empty() {
                providers.push(Locked {
                    provider,
                    version: version.to_owned(),
                    packages,
                });
            }
        }
        Ok(Self {
            providers,
            versions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "h1:VlY+K7RPfQ3/gGEpG6qQdhvCbbzqpnd0br0XwBzOdY8=";
    const B: &str = "h1:lE+kcBqRAJkGv6DSFXXZYmCT7XbTeTc2pZu2jM+mK98=";

    #[test]
    fn lock_file_is_parsed() {
        let text = format!(
            "# This file is maintained automatically by \"tofu init\".\n\nprovider \"registry.opentofu.org/hashicorp/time\" {{\n  \
             version     = \"0.13.1\"\n  constraints = \"~> 0.13\"\n  hashes = [\n    \"{B}\",\n    \"{A}\",\n    \"{A}\",\n    \
             \"zh:02cb9aab1002f0f2a94a4f85acec8893297dc75915f7404c165983f720a54b74\",\n  ]\n}}\n\n\
             provider \"registry.opentofu.org/hashicorp/null\" {{\n  version = \"3.2.4\"\n  hashes = [\"zh:00\"]\n}}\n"
        );
        let provider = Provider::parse("registry.opentofu.org/hashicorp/time").unwrap();
        let packages = vec![A.parse().unwrap(), B.parse().unwrap()];
        let lock = Lock::parse(&text).unwrap();
        assert_eq!(
            lock.providers,
            [Locked {
                provider,
                version: "0.13.1".into(),
                packages
            }]
        );
    }

    #[test]
    fn unsafe_names_are_refused() {
        let of = |address: &str, version: &str| {
            let text = format!(
                "provider \"{address}\" {{\n  version = \"{version}\"\n  hashes = [\"{A}\"]\n}}\n"
            );
            Lock::parse(&text).unwrap().providers.len()
        };
        assert_eq!(of("registry.example.com:8443/a-b/c_d", "1.0.0-rc1+x.2"), 1);
        for address in [
            "../a/b",
            "a/../b",
            "a/b",
            "a/b/c/d",
            "a//b",
            "/a/b",
            ".aside/a/b",
            "a/b/c\\\"",
            "a/b/..",
            "a/b/c d",
            "ä/b/c",
        ] {
            assert_eq!(of(address, "1.0.0"), 0, "{address}");
        }
        for version in ["", "..", "../x", "1.0/..", ".locks", "1 0"] {
            assert_eq!(of("a/b/c", version), 0, "{version}");
        }
    }

    #[test]
    fn missing_or_invalid_file_locks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Lock::of(dir.path()).unwrap(), Lock::default());
        let path = dir.path().join(LOCK_FILE);
        for text in ["provider {", "\u{0}", &" ".repeat(2 << 20)] {
            fs::write(&path, text).unwrap();
            assert!(Lock::of(dir.path()).is_err());
        }
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(
            Lock::of(dir.path()).is_err(),
            "and does not wait for a writer"
        );
    }
}
