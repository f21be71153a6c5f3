//! The run's additions to the tool's CLI configuration: registry tokens and a text of its own. The text is parsed and refused
//! where it changes Pawl's settings: a provider cache that others write to, or providers that no lock file lists.

use std::fmt::Write as _;

use hcl_edit::{expr::Expression, structure::Block};
use tool_versions::request::hcl;

/// The run's additions.
#[derive(Clone, Debug, Default)]
pub struct UserConfig {
    text: String,
    /// Whether the text configures the installation of providers.
    pub installs: bool,
    /// Whether the text configures the check for new versions.
    checkpoint: bool,
    /// Texts in it to redact.
    pub secrets: Vec<String>,
}

impl UserConfig {
    /// Reads tokens by host and a configuration in HCL.
    ///
    /// # Errors
    /// The refused setting with the reason, without secrets.
    pub fn of(tokens: &[(String, String)], own: Option<&str>) -> Result<Self, String> {
        let mut config = Self::default();
        if let Some(own) = own {
            config.take(own)?;
        }
        for (host, token) in tokens {
            if token.is_empty()
                || !token
                    .chars()
                    .all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '$' | '%'))
            {
                return Err(format!(
                    "the token of {host} is invalid: a token is one word"
                ));
            }
            if config.text.contains(&format!("credentials \"{host}\"")) {
                return Err(format!(
                    "{host} has two tokens, one in credentials.registries and one in credentials.cliConfig"
                ));
            }
            let _ = write!(
                config.text,
                "credentials \"{host}\" {{\n  token = \"{token}\"\n}}\n"
            );
            config.secrets.push(token.clone());
        }
        Ok(config)
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text, which follows Pawl's settings.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether Pawl configures the check for new versions.
    pub const fn leaves_checkpoint(&self) -> bool {
        !self.checkpoint
    }

    fn take(&mut self, own: &str) -> Result<(), String> {
        // Checked before parsing: its quoted provider names are no valid HCL 2.
        if own.contains("dev_overrides") {
            return Err(
                "dev_overrides is refused: such a provider is in no lock file, so its digest cannot be approved".to_owned()
            );
        }
        // A parser message could contain a part of the text.
        let body = hcl::parse(own).map_err(|error| {
            let place = error
                .split(':')
                .next()
                .filter(|place| place.starts_with("line "))
                .unwrap_or("the whole");
            format!("it is no CLI configuration in HCL: {place} is not understood")
        })?;
        for attribute in body.attributes() {
            match attribute.key.as_str() {
                name @ ("plugin_cache_dir" | "plugin_cache_may_break_dependency_lock_file") => {
                    return Err(format!(
                        "{name} is refused: Pawl has a cache of providers, which code of the stack cannot write to"
                    ));
                }
                "disable_checkpoint" => self.checkpoint = true,
                "disable_checkpoint_signature" => {}
                // The tools take a block that is written as an attribute as well.
                name => {
                    return Err(format!(
                        "{name} is refused as an attribute: the configuration has blocks of hosts, credentials and mirrors"
                    ));
                }
            }
        }
        for block in body.blocks() {
            match block.ident.as_str() {
                "provider_installation" => {
                    if block.body.blocks().next().is_none() {
                        return Err("provider_installation is refused: it names neither a mirror nor direct".to_owned());
                    }
                    self.installs = true;
                }
                "credentials_helper" => {
                    return Err("credentials_helper is refused: it is a program that no pod has; use credentials".to_owned());
                }
                name if name.contains("credentials") => secrets(block, &mut self.secrets),
                _ => {}
            }
        }
        self.text.push_str(own.trim_end());
        self.text.push('\n');
        Ok(())
    }
}

/// All string values of a block.
fn secrets(block: &Block, found: &mut Vec<String>) {
    found.extend(
        block
            .body
            .attributes()
            .filter_map(|attribute| match &attribute.value {
                Expression::String(text) => Some(text.value().clone()),
                _ => None,
            }),
    );
    block.body.blocks().for_each(|block| secrets(block, found));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(own: &str) -> String {
        UserConfig::of(&[], Some(own)).unwrap_err()
    }

    #[test]
    fn each_host_has_one_token_block() {
        let tokens = [("registry.example.com".to_owned(), "abc.def".to_owned())];
        let config = UserConfig::of(&tokens, None).unwrap();
        assert_eq!(
            config.text(),
            "credentials \"registry.example.com\" {\n  token = \"abc.def\"\n}\n"
        );
        assert_eq!(config.secrets, ["abc.def"]);
        assert!(!config.installs && config.leaves_checkpoint());
        for token in ["", "two words", "a\"\n}", "${x}"] {
            let error = UserConfig::of(&[("h".to_owned(), token.to_owned())], None).unwrap_err();
            assert!(
                error.contains("token of h") && (token.len() < 2 || !error.contains(token)),
                "{error}"
            );
        }
        let own = "credentials \"registry.example.com\" { token = \"x\" }";
        assert!(
            UserConfig::of(&tokens, Some(own))
                .unwrap_err()
                .contains("has two tokens")
        );
        assert!(UserConfig::of(&[], None).unwrap().is_empty());
    }

    #[test]
    fn own_configuration_is_parsed() {
        let own = "disable_checkpoint = true\ncredentials \"app.terraform.io\" {\n  token = \"s3cret\"\n}\nhost \"r.example.com\" {\n  \
            services = { \"modules.v1\" = \"https://r.example.com/v1/\" }\n}\nprovider_installation {\n  network_mirror {\n    \
            url = \"https://mirror.example.com/\"\n  }\n}";
        let config = UserConfig::of(&[], Some(own)).unwrap();
        assert_eq!(config.text(), format!("{own}\n"));
        assert!(config.installs && !config.leaves_checkpoint());
        assert_eq!(config.secrets, ["s3cret"]);
    }

    #[test]
    fn pawls_settings_are_refused() {
        assert!(refused("plugin_cache_dir = \"/tmp\"").starts_with("plugin_cache_dir is refused"));
        assert!(
            refused("credentials_helper \"x\" {\n  args = []\n}")
                .starts_with("credentials_helper is refused")
        );
        let dev = "provider_installation {\n  dev_overrides {\n    \"a/b\" = \"/tmp\"\n  }\n  direct {}\n}";
        assert!(
            refused(dev).starts_with("dev_overrides is refused"),
            "{}",
            refused(dev)
        );
        assert!(refused("provider_installation {\n}").contains("names neither a mirror"));
        let broken = "credentials \"h\" {\n  token = s3cret s3cret\n}";
        let error = refused(broken);
        assert!(
            error.starts_with("it is no CLI configuration in HCL: line ")
                && !error.contains("s3cret"),
            "{error}"
        );
        assert!(refused("{\"credentials\": {}}").contains("no CLI configuration in HCL"));
    }
}
