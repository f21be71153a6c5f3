//! Sources of an attempt's tools: directories of the image, the cache, and the mirrors that the operator configures.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crds::{
    ToolName,
    tools::{ToolMirror, ToolSettings, ToolVerification},
};
use tool_versions::{
    Channel, Defaults, Error, Installer, Limits, Mirror, Platform, Result, Store, Tool,
    Verification, Version,
    install::{Ask, Keys, PATIENCE},
    releases::{
        http::{Auth, Rules},
        mirror::environment::{self, Named},
    },
};

/// An available version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalTool {
    pub name: ToolName,
    pub version: Version,
    pub binary: PathBuf,
}

#[derive(Debug)]
pub struct ToolSources {
    /// Directories of the image in order, with the layout `TOOL/VERSION/BINARY`.
    pub dirs: Vec<PathBuf>,
    /// Tools found elsewhere, on PATH.
    pub others: Vec<LocalTool>,
    /// Cache and mirrors.
    pub installer: Installer,
    pub defaults: Defaults,
    /// Size of the cache in bytes above which the oldest tools are pruned.
    pub most: u64,
}

impl ToolSources {
    /// The operator's configuration, with credentials below `secrets`. tenv's environment variables apply where the operator sets
    /// nothing.
    ///
    /// # Errors
    /// Configuration: a mirror, a key or a default is invalid.
    pub fn new(
        settings: &ToolSettings,
        dirs: Vec<PathBuf>,
        cache: &Path,
        secrets: &Path,
    ) -> Result<Self> {
        let environment = |name: &str| std::env::var(name).ok();
        let mut channels = Vec::new();
        for name in ToolName::KNOWN {
            let Some(tool) = known(name) else { continue };
            let said = settings.mirrors.iter().find(|mirror| mirror.tool == name);
            channels.push(match said {
                Some(said) => channel(tool, said, secrets)?,
                None => Channel {
                    mirror: Mirror::from_environment(tool, environment)?,
                    rules: Rules::default(),
                    verification: Verification::Signature(Keys::BuiltIn),
                    refusal: None,
                },
            });
        }
        let versions = settings.default.versions.iter();
        let versions = versions.filter_map(|(name, version)| {
            Some((known(*name)?, version.clone(), "the operator".to_owned()))
        });
        let platform = environment::platform(Tool::OpenTofu, environment)?;
        let of_dirs = Self::at(dirs, cache, platform);
        Ok(Self {
            installer: Installer {
                channels,
                offline: settings.offline,
                ..of_dirs.installer
            },
            defaults: Defaults {
                tool: settings
                    .default
                    .name
                    .and_then(known)
                    .unwrap_or(Defaults::default().tool),
                versions: versions.collect(),
            },
            most: settings.cache.max_size_mib.saturating_mul(1 << 20),
            ..of_dirs
        })
    }

    /// Makes all mirrors trust these PEM authorities, besides the system's and their own.
    pub fn trust(&mut self, authorities: &str) {
        for channel in &mut self.installer.channels {
            let all = channel.mirror.authority.get_or_insert_default();
            all.push('\n');
            all.push_str(authorities);
        }
    }

    /// Directories of the image only, without network.
    pub fn of_dirs(dirs: Vec<PathBuf>, cache: &Path) -> Self {
        Self::at(dirs, cache, Platform::here())
    }

    fn at(dirs: Vec<PathBuf>, cache: &Path, platform: Platform) -> Self {
        Self {
            dirs,
            others: Vec::new(),
            installer: Installer {
                store: Store::at(cache.join("tools"), platform.clone()),
                lists: cache.join("lists"),
                channels: Vec::new(),
                platform,
                offline: true,
                limits: Limits::default(),
                ask: Ask::default(),
                patience: PATIENCE,
            },
            defaults: Defaults::default(),
            most: u64::MAX,
        }
    }
}

/// The crate's type for a tool.
pub(crate) const fn known(name: ToolName) -> Option<Tool> {
    match name {
        ToolName::OpenTofu => Some(Tool::OpenTofu),
        ToolName::Terraform => Some(Tool::Terraform),
        ToolName::Terragrunt => Some(Tool::Terragrunt),
        // A run with an unknown tool is not adopted, and the command line cannot name one.
        ToolName::Unknown => None,
    }
}

/// The API's type for a tool.
pub const fn name_of(tool: Tool) -> ToolName {
    match tool {
        Tool::OpenTofu => ToolName::OpenTofu,
        Tool::Terraform => ToolName::Terraform,
        Tool::Terragrunt => ToolName::Terragrunt,
    }
}

/// The mirror that the operator configures.
fn channel(tool: Tool, said: &ToolMirror, secrets: &Path) -> Result<Channel> {
    let named = |name: &str, text: &str| Named {
        name: name.to_owned(),
        text: text.trim().to_owned(),
    };
    let (base, list) = (
        named("url", &said.url),
        said.list_url.as_deref().map(|url| named("listUrl", url)),
    );
    let mut mirror =
        Mirror::placed(tool, Some(&base), list.as_ref(), None).map_err(|error| Error {
            text: format!("the operator's mirror of {tool}: {}", error.text),
            ..error
        })?;
    mirror.authority.clone_from(&said.ca);
    let mut refusal = None;
    match said
        .secret_name
        .as_ref()
        .map(|secret| auth(tool, secret, &secrets.join(tool.directory())))
    {
        Some(Ok(auth)) => mirror.auth = auth,
        Some(Err(error)) => refusal = Some(error),
        None => {}
    }
    let fingerprints = said.fingerprints.iter().map(|text| text.parse());
    let keys = match &said.keys {
        Some(armored) => Keys::Own {
            armored: armored.clone(),
            fingerprints: fingerprints.collect::<Result<_>>()?,
        },
        None => Keys::BuiltIn,
    };
    let verification = match said.verification {
        ToolVerification::Signature => Verification::Signature(keys),
        ToolVerification::Sums => Verification::Sums,
        ToolVerification::None => Verification::Nothing,
    };
    Ok(Channel {
        mirror,
        rules: Rules::default(),
        verification,
        refusal,
    })
}

/// Credentials from the files of a Secret.
fn auth(tool: Tool, secret: &str, dir: &Path) -> Result<Auth> {
    let read = |key: &str| {
        let text = fs::read_to_string(dir.join(key)).ok()?;
        Some(text.trim_end_matches('\n').to_owned()).filter(|text| !text.is_empty())
    };
    match (read("token"), read("username"), read("password")) {
        (Some(token), ..) => Ok(Auth::Bearer(token)),
        (None, Some(user), Some(password)) => Ok(Auth::Basic { user, password }),
        (None, ..) => Err(Error::configuration(format!(
            "the mirror of {tool} wants credentials: there is no Secret {secret} in this namespace with username and password, or token"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_has_the_operators_settings_and_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            ToolSources::new(&text.parse().unwrap(), Vec::new(), dir.path(), dir.path())
        };
        let text = r#"{"mirrors":[{"tool":"OpenTofu","url":"https://m.example.org/x","secretName":"mirror","verification":"Sums"}],
            "default":{"name":"Terraform","versions":{"Terraform":"~> 1.5"}}}"#;
        let missing = of(text).unwrap().installer.channels[0]
            .refusal
            .clone()
            .unwrap();
        assert!(
            missing.text.contains("no Secret mirror in this namespace"),
            "{missing}"
        );
        fs::create_dir(dir.path().join("opentofu")).unwrap();
        fs::write(dir.path().join("opentofu/token"), "t\n").unwrap();
        let sources = of(text).unwrap();
        let channel = &sources.installer.channels[0];
        assert_eq!(
            (
                channel.mirror.base.to_string().as_str(),
                &channel.mirror.auth
            ),
            ("https://m.example.org/x", &Auth::Bearer("t".into()))
        );
        assert!(matches!(channel.verification, Verification::Sums) && channel.refusal.is_none());
        assert_eq!(
            sources.installer.channels[1].mirror,
            Mirror::official(Tool::Terraform)
        );
        let mut trusting =
            of(&text.replace(r#""secretName""#, r#""ca":"OWN","secretName""#)).unwrap();
        trusting.trust("ALL");
        let trusted = |index: usize| {
            trusting.installer.channels[index]
                .mirror
                .authority
                .as_deref()
        };
        assert_eq!((trusted(0), trusted(1)), (Some("OWN\nALL"), Some("\nALL")));
        assert_eq!(
            (sources.defaults.tool, sources.defaults.versions.len()),
            (Tool::Terraform, 1)
        );
        let bad = r#"{"mirrors":[{"tool":"Terraform","url":"https://me:pw@m.example.org"}]}"#;
        let error = of(bad).unwrap_err();
        assert!(
            error
                .text
                .starts_with("the operator's mirror of Terraform: url")
                && !error.text.contains("pw"),
            "{error}"
        );
    }
}
