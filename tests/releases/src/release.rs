//! One version of a tool for one platform, and the names of its files.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tool_versions::{Digest, Platform, Tool, Version};

use scripted_tool::trailer;

/// A release: a program, and its tool and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub tool: Tool,
    pub version: Version,
    pub platform: Platform,
    program: PathBuf,
    /// Appended to the program.
    trailer: String,
}

impl Release {
    /// A program unchanged, for this platform. Its own version output is not checked.
    pub fn new(tool: Tool, version: &str, program: &Path) -> Result<Self> {
        let version = version.parse()?;
        Ok(Self {
            tool,
            version,
            platform: Platform::here(),
            program: program.to_owned(),
            trailer: String::new(),
        })
    }

    /// The scripted tool as this version, which it then reports; `program` is [the one](scripted_tool) without a version.
    pub fn scripted(tool: Tool, version: &str, program: &Path) -> Result<Self> {
        let release = Self::new(tool, version, program)?;
        Ok(Self {
            trailer: trailer(tool.binary(), &release.version.to_string()),
            ..release
        })
    }

    /// The digest of the installed program.
    pub fn digest(&self) -> Result<Digest> {
        Digest::read(self.open()?)
            .with_context(|| format!("cannot read {}", self.program.display()))
    }

    /// The program's bytes.
    pub(super) fn open(&self) -> Result<impl Read> {
        let file = File::open(&self.program)
            .with_context(|| format!("cannot open {}", self.program.display()))?;
        Ok(file.chain(Cursor::new(self.trailer.clone())))
    }

    /// The directory of its files below a mirror's base, as in its project.
    pub fn directory(&self) -> String {
        let version = &self.version;
        match self.tool {
            Tool::Terraform => format!("terraform/{version}"),
            Tool::OpenTofu => format!("opentofu/opentofu/releases/download/v{version}"),
            Tool::Terragrunt => format!("gruntwork-io/terragrunt/releases/download/v{version}"),
        }
    }

    /// Name of the file that contains or is the program.
    pub fn archive(&self) -> String {
        let Self {
            tool,
            version,
            platform,
            ..
        } = self;
        let name = tool.binary();
        match tool {
            Tool::OpenTofu | Tool::Terraform => format!("{name}_{version}_{platform}.zip"),
            Tool::Terragrunt => format!("{name}_{platform}"),
        }
    }

    /// Path of that file below a mirror's base.
    pub fn path(&self) -> String {
        format!("{}/{}", self.directory(), self.archive())
    }

    /// Name of the checksum file.
    pub fn sums(&self) -> String {
        let Self { tool, version, .. } = self;
        match tool {
            Tool::OpenTofu | Tool::Terraform => format!("{}_{version}_SHA256SUMS", tool.binary()),
            Tool::Terragrunt => "SHA256SUMS".to_owned(),
        }
    }

    /// Names of the signature files.
    pub(super) fn signatures(&self) -> Vec<String> {
        let sums = self.sums();
        match self.tool {
            Tool::Terraform => vec![format!("{sums}.sig"), format!("{sums}.72D7468F.sig")],
            Tool::OpenTofu | Tool::Terragrunt => vec![format!("{sums}.gpgsig")],
        }
    }

    /// Files next to the program in its archive: name and text.
    pub(super) fn companions(&self) -> Vec<(&'static str, String)> {
        let text = |what: &str| {
            format!(
                "{what} of {} {}, as it is served by tests.\n",
                self.tool, self.version
            )
        };
        match self.tool {
            Tool::OpenTofu => ["CHANGELOG.md", "LICENSE", "README.md"]
                .map(|name| (name, text(name)))
                .to_vec(),
            Tool::Terraform => vec![("LICENSE.txt", text("LICENSE.txt"))],
            Tool::Terragrunt => Vec::new(),
        }
    }
}
