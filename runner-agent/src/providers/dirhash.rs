//! The `h1:` hash of a provider's package in lock files: Go's `dirhash.Hash1`.
//!
//! It covers names and contents of files, but not modes or empty directories.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tool_versions::Digest;

/// The hash of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct H1([u8; 32]);

impl H1 {
    /// Hashes files by their names below the package's directory, with `/`, in any order.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, Digest)>) -> Self {
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_unstable_by_key(|(name, _)| *name);
        let lines: Vec<_> = files
            .iter()
            .map(|(name, digest)| format!("{digest}  {name}\n"))
            .collect();
        Self(*Digest::of(lines.concat().as_bytes()).as_bytes())
    }

    /// 64 lower-case hex digits, which unlike base64 are a valid directory name.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for H1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h1:{}", STANDARD.encode(self.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no h1: hash")]
pub struct NoH1;

impl FromStr for H1 {
    type Err = NoH1;

    fn from_str(text: &str) -> Result<Self, NoH1> {
        let bytes = STANDARD
            .decode(text.strip_prefix("h1:").ok_or(NoH1)?)
            .map_err(|_| NoH1)?;
        bytes.try_into().map(Self).map_err(|_| NoH1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h1(files: &[(&str, &str)]) -> String {
        H1::of(
            files
                .iter()
                .map(|(name, content)| (*name, Digest::of(content.as_bytes()))),
        )
        .to_string()
    }

    /// Written by Terraform 1.5.7 and OpenTofu 1.10.6 to their lock files for these files in a filesystem mirror.
    #[test]
    fn hash_matches_the_tools() {
        let one = h1(&[("terraform-provider-one_v1.2.3", "binary\n")]);
        assert_eq!(one, "h1:VlY+K7RPfQ3/gGEpG6qQdhvCbbzqpnd0br0XwBzOdY8=");
        let several = [
            ("terraform-provider-several_v1.2.3", "binary\n"),
            ("docs/deep/none", ""),
            ("LICENSE.txt", "licence\n"),
            ("ä b", "z"),
            ("docs.b", "y"),
            ("docs-a", "x"),
        ];
        assert_eq!(
            h1(&several),
            "h1:lE+kcBqRAJkGv6DSFXXZYmCT7XbTeTc2pZu2jM+mK98="
        );
    }

    #[test]
    fn hash_round_trips() {
        let text = "h1:VlY+K7RPfQ3/gGEpG6qQdhvCbbzqpnd0br0XwBzOdY8=";
        let h1: H1 = text.parse().unwrap();
        assert_eq!(
            (h1.to_string().as_str(), &h1.hex()[..8]),
            (text, "56563e2b")
        );
        let no = [
            "zh:56563e2b",
            "h1:",
            "h1:VlY+",
            "VlY+K7RPfQ3/gGEpG6qQdhvCbbzqpnd0br0XwBzOdY8=",
            "h2:VlY+K7RPfQ3/gGEpG6qQdhvCbbzqpnd0br0XwBzOdY8=",
        ];
        for text in no {
            assert_eq!(text.parse::<H1>(), Err(NoH1), "{text}");
        }
    }
}
