//! Tools and platforms.

use std::{fmt, str::FromStr};

use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tool {
    /// OpenTofu (`tofu`).
    OpenTofu,
    /// Terraform (`terraform`).
    Terraform,
    /// Terragrunt (`terragrunt`), which runs one of the others.
    Terragrunt,
}

impl Tool {
    pub const ALL: [Self; 3] = [Self::OpenTofu, Self::Terraform, Self::Terragrunt];

    /// The name as the project writes it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::OpenTofu => "OpenTofu",
            Self::Terraform => "Terraform",
            Self::Terragrunt => "Terragrunt",
        }
    }

    /// The name of the executable.
    pub const fn binary(self) -> &'static str {
        match self {
            Self::OpenTofu => "tofu",
            Self::Terraform => "terraform",
            Self::Terragrunt => "terragrunt",
        }
    }

    /// The name of its directory in images and caches, and its key in `.tool-versions`.
    pub const fn directory(self) -> &'static str {
        match self {
            Self::OpenTofu => "opentofu",
            Self::Terraform => "terraform",
            Self::Terragrunt => "terragrunt",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

impl FromStr for Tool {
    type Err = Error;

    /// Parses the name of the project, the executable or the directory, in any case.
    fn from_str(text: &str) -> Result<Self, Error> {
        let is = |tool: &&Self| {
            [tool.title(), tool.binary(), tool.directory()]
                .iter()
                .any(|name| name.eq_ignore_ascii_case(text))
        };
        let found = Self::ALL.iter().find(is).copied();
        found.ok_or_else(|| {
            Error::configuration(format!(
                "`{text}` is none of the tools OpenTofu, Terraform and Terragrunt"
            ))
        })
    }
}

/// Operating system and architecture in Go's names, which all releases use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Platform {
    /// `linux`, `darwin`.
    pub os: String,
    /// `amd64`, `arm64`.
    pub arch: String,
}

impl Platform {
    /// The platform that this program was built for.
    pub fn here() -> Self {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        let os = if std::env::consts::OS == "macos" {
            "darwin"
        } else {
            std::env::consts::OS
        };
        Self {
            os: os.to_owned(),
            arch: arch.to_owned(),
        }
    }
}

impl fmt::Display for Platform {
    /// `linux_amd64`, as in release names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.os, self.arch)
    }
}
