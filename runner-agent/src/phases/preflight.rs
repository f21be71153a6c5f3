//! Checks all inputs of a run before anything is fetched or started, and reports everything missing, empty or expired at once.
//!
//! Pure except for reads of mounted files. Cannot check what only a server knows, such as whether it accepts a password.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use crds::{Failure, KeyPath, Reason, SourceKind, TerraformRunSpec, ValueFrom};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    inputs,
    mounted_objects::{Object, Refs, keys, named},
};
use crate::{providers::UserConfig, settings::Settings};

/// Environment variables that hold credentials, so an empty one is a mistake.
const CREDENTIALS: &str = "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN GOOGLE_CREDENTIALS \
    GOOGLE_OAUTH_ACCESS_TOKEN ARM_CLIENT_SECRET ARM_CLIENT_ID ARM_TENANT_ID ARM_ACCESS_KEY ARM_OIDC_TOKEN VAULT_TOKEN";
const CREDENTIAL_PREFIX: &str = "TF_TOKEN_";
/// Variables with the expiry of an AWS session, as set by `export-credentials` of the AWS CLI and by aws-vault.
const SESSION_ENDS: [&str; 2] = ["AWS_CREDENTIAL_EXPIRATION", "AWS_SESSION_EXPIRATION"];
/// Credential keys of a Secret that may not be empty.
const LOGIN_KEYS: [&str; 3] = ["username", "password", "bearerToken"];
const REGISTRIES: &str = "credentials.registries";
const CLI_CONFIG: &str = "credentials.cliConfig";

/// The part of an object that a field of the spec reads.
enum Part<'a> {
    Key(&'a str),
    /// Credentials for a host.
    Login,
    /// Any key, and these.
    Files(&'a [KeyPath]),
}

/// A Secret or ConfigMap that a field of the spec references.
struct Need<'a> {
    object: Object<'a>,
    part: Part<'a>,
    field: String,
    /// Only the fetch or `init` uses it, so a restored plan does not depend on its expiry.
    early: bool,
}

/// Checks all references of the run. The failure lists everything missing or empty, then everything expired.
pub(super) fn check(
    spec: &TerraformRunSpec,
    settings: &Settings,
    fetches: bool,
    now: Timestamp,
) -> Result<(), Failure> {
    let needs = needs(spec, settings, fetches);
    let mut found: Vec<(Reason, String)> = Vec::new();
    for need in &needs {
        found.extend(
            need.missing(settings)
                .into_iter()
                .map(|text| (need.object.reason, text)),
        );
    }
    let tokens = spec.credentials.tokens();
    let tokens = tokens.iter().map(|token| {
        (
            token.field,
            inputs::mounted(&settings.identity.join(token.field), "token"),
        )
    });
    let tokens: Vec<_> = tokens.collect();
    for (field, _) in tokens.iter().filter(|(_, text)| text.is_none()) {
        let message = format!(
            "credentials.{field} has no token in this pod: it needs runner.serviceAccountName, and a controller that knows the field"
        );
        found.push((Reason::InvalidSpec, message));
    }
    let mut judge = |end: Option<Timestamp>, what: String| {
        let end = end.filter(|end| *end <= now);
        found.extend(end.map(|end| {
            (
                Reason::CredentialsExpired,
                format!("{what} expired at {end:.0}"),
            )
        }));
    };
    for (name, text) in environment(spec, settings) {
        if SESSION_ENDS.contains(&name.as_str()) {
            judge(
                text.trim().parse().ok(),
                format!("the session of AWS that env {name} speaks of"),
            );
        }
        judge(token_end(&text), format!("the token in env {name}"));
    }
    for need in needs.iter().filter(|need| fetches || !need.early) {
        for token in need.tokens() {
            judge(token_end(&token), format!("the token of {}", need.field));
        }
    }
    for (field, text) in &tokens {
        judge(
            text.as_deref().and_then(token_end),
            format!("the token of credentials.{field}"),
        );
    }
    let Some((reason, _)) = found.first() else {
        return Ok(());
    };
    let all: Vec<_> = found.iter().map(|(_, text)| text.as_str()).collect();
    Err(reason.failure(all.join("; and ")))
}

/// All referenced objects. An invalid reference is refused where the value is read.
fn needs<'a>(spec: &'a TerraformRunSpec, settings: &Settings, fetches: bool) -> Vec<Need<'a>> {
    let in_pod = settings.folder.is_none();
    let mut needs = Vec::new();
    let mut keys: Vec<(Refs<'a>, String, bool)> = Vec::new();
    for one in &spec.variables {
        keys.push((
            refs(one.value_from.as_ref()),
            format!("variable {}", one.name),
            false,
        ));
    }
    for one in &spec.env {
        keys.push((
            refs(one.value_from.as_ref()),
            format!("env {}", one.name),
            false,
        ));
    }
    for file in spec
        .variable_files
        .iter()
        .filter(|file| file.path.is_none())
    {
        let refs = (
            file.secret_key_ref.as_ref(),
            file.config_map_key_ref.as_ref(),
        );
        keys.push((refs, "a file with variables".to_owned(), false));
    }
    for file in spec.files.iter().filter(|_| in_pod) {
        let refs = (
            file.secret_key_ref.as_ref(),
            file.config_map_key_ref.as_ref(),
        );
        keys.push((refs, format!("file {}", file.path), false));
    }
    let mut add = |object, part, field: &str| {
        needs.push(Need {
            object,
            part,
            field: field.to_owned(),
            early: true,
        });
    };
    for object in spec
        .env_from
        .iter()
        .filter_map(|from| inputs::named_whole(from, settings))
    {
        add(object, Part::Files(&[]), "envFrom");
    }
    // A person's own tools use that person's credentials.
    let credentials = Some(&spec.credentials).filter(|_| in_pod);
    for git in credentials.iter().flat_map(|all| &all.git) {
        let field = format!("credentials.git of {}", git.host);
        add(
            Object::secret(&git.secret_ref.name, settings),
            Part::Login,
            &field,
        );
    }
    for one in credentials.iter().flat_map(|all| &all.registries) {
        keys.push((
            (Some(&one.secret_key_ref), None),
            format!("{REGISTRIES} of {}", one.host),
            true,
        ));
    }
    if let Some(config) = credentials.and_then(|all| all.cli_config.as_ref()) {
        keys.push((
            (Some(&config.secret_key_ref), None),
            CLI_CONFIG.to_owned(),
            true,
        ));
    }
    match spec.source.kind().filter(|_| fetches) {
        Some(SourceKind::ConfigMap(from)) => {
            add(
                Object::config_map(&from.name, settings),
                Part::Files(&from.items),
                "source.configMapRef",
            );
        }
        Some(SourceKind::Secret(from)) => {
            add(
                Object::secret(&from.name, settings),
                Part::Files(&from.items),
                "source.secretRef",
            );
        }
        _ => {}
    }
    if let Some((name, field)) = source_secret(spec).filter(|_| fetches) {
        add(Object::secret(name, settings), Part::Login, field);
    }
    // A restored plan brings its hooks with it.
    for hook in spec.hooks.iter().filter(|_| fetches) {
        keys.push((
            (None, hook.config_map_key_ref.as_ref()),
            format!("hook {}", hook.name),
            false,
        ));
    }
    let keys = keys.into_iter().filter_map(|(refs, field, early)| {
        named(refs, settings).map(|(object, key)| Need {
            object,
            part: Part::Key(key),
            field,
            early,
        })
    });
    keys.chain(needs).collect()
}

impl Need<'_> {
    /// A message for each part that is missing or may not be empty.
    fn missing(&self, settings: &Settings) -> Vec<String> {
        let Self { object, field, .. } = self;
        let read = |key: &str| inputs::mounted(&object.dir, key);
        let is_blank = |key: &str| read(key).is_some_and(|text| text.trim().is_empty());
        let blank = |key: &str| {
            format!(
                "{} {} has nothing at its key {key}; {field} wants it",
                object.kind, object.name
            )
        };
        match self.part {
            Part::Key(key) if read(key).is_none() => vec![object.wanted(key, field, settings)],
            Part::Key(key) if is_credential(field) && is_blank(key) => vec![blank(key)],
            Part::Key(_) => Vec::new(),
            _ if inputs::is_empty(&object.dir) => vec![object.absent_for(field, settings)],
            Part::Login => LOGIN_KEYS
                .into_iter()
                .filter(|key| is_blank(key))
                .map(blank)
                .collect(),
            Part::Files(items) => {
                let missing = items.iter().filter(|item| read(&item.key).is_none());
                missing
                    .map(|item| format!("{}; {field} wants it", object.lacks(&item.key)))
                    .collect()
            }
        }
    }

    /// The texts of a Secret that may be tokens, except those of the environment.
    fn tokens(&self) -> Vec<String> {
        let is_secret = self.object.reason == Reason::SecretNotFound;
        let read = |key: &str| inputs::mounted(&self.object.dir, key).filter(|_| is_secret);
        match self.part {
            Part::Key(_) if self.field.starts_with("env ") => Vec::new(),
            Part::Key(key) if self.field == CLI_CONFIG => UserConfig::of(&[], read(key).as_deref())
                .map(|config| config.secrets)
                .unwrap_or_default(),
            Part::Key(key) => read(key).into_iter().collect(),
            Part::Login => ["bearerToken", "password"]
                .into_iter()
                .filter_map(read)
                .collect(),
            Part::Files(_) => Vec::new(),
        }
    }
}

/// The environment from the run's spec, as far as its values exist.
fn environment(spec: &TerraformRunSpec, settings: &Settings) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (from, object) in spec
        .env_from
        .iter()
        .filter_map(|from| Some((from, inputs::named_whole(from, settings)?)))
    {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let pair = |key: String| {
            Some((
                format!("{prefix}{key}"),
                inputs::mounted(&object.dir, &key)?,
            ))
        };
        all.extend(keys(&object.dir).into_iter().filter_map(pair));
    }
    for variable in &spec.env {
        let mounted = || {
            let (object, key) = named(refs(variable.value_from.as_ref()), settings)?;
            inputs::mounted(&object.dir, key)
        };
        let Some(text) = variable.value.clone().or_else(mounted) else {
            continue;
        };
        all.retain(|(name, _)| *name != variable.name);
        all.push((variable.name.clone(), text));
    }
    all
}

/// The Secret for the fetch of the source, and the field that references it.
fn source_secret(spec: &TerraformRunSpec) -> Option<(&str, &'static str)> {
    let (secret, wanted) = match spec.source.kind()? {
        SourceKind::Git(git) => (&git.secret_ref, "source.git.secretRef"),
        SourceKind::Artifact(artifact) => (&artifact.secret_ref, "source.artifact.secretRef"),
        _ => return None,
    };
    Some((secret.as_ref()?.name.as_str(), wanted))
}

/// Whether a field takes a credential.
fn is_credential(wanted: &str) -> bool {
    let of_env = |name: &str| {
        CREDENTIALS.split(' ').any(|one| one == name) || name.starts_with(CREDENTIAL_PREFIX)
    };
    wanted.starts_with(REGISTRIES) || wanted.strip_prefix("env ").is_some_and(of_env)
}

/// The references of a value; empty for another stack's output.
fn refs(from: Option<&ValueFrom>) -> Refs<'_> {
    let from = from.filter(|from| from.output_of.is_none());
    (
        from.and_then(|from| from.secret_key_ref.as_ref()),
        from.and_then(|from| from.config_map_key_ref.as_ref()),
    )
}

/// Expiry time of a JSON Web Token (RFC 7519); `None` for other text or a token without `exp`. Does not verify the signature.
fn token_end(text: &str) -> Option<Timestamp> {
    let mut parts = text.trim().split('.');
    let (header, payload, Some(_), None) =
        (parts.next()?, parts.next()?, parts.next(), parts.next())
    else {
        return None;
    };
    let part =
        |text: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(text).ok()?).ok();
    part(header)?.get("alg")?.as_str()?;
    let end = part(payload)?.get("exp").cloned()?;
    // `exp` may have a fraction.
    let seconds = end
        .as_i64()
        .or_else(|| end.as_f64().and_then(whole_seconds))?;
    Timestamp::from_second(seconds).ok()
}

fn whole_seconds(seconds: f64) -> Option<i64> {
    jiff::SignedDuration::try_from_secs_f64(seconds)
        .ok()
        .map(|duration| duration.as_secs())
}

#[cfg(test)]
mod tests;
