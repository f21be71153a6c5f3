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
pub(super) fn check(spec: &TerraformRunSpec, settings: &Settings, fetches: bool, now: Timestamp) -> Result<(), Failure> {
    let needs = needs(spec, settings, fetches);
    let mut found: Vec<(Reason, String)> = Vec::new();
    for need in &needs {
        found.extend(need.missing(settings).into_iter().map(|text| (need.object.reason, text)));
    }
    let tokens = spec.credentials.tokens();
    let tokens = tokens.iter().map(|token| (token.field, inputs::mounted(&settings.identity.join(token.field), "token")));
    let tokens: Vec<_> = tokens.collect();
    for (field, _) in tokens.iter().filter(|(_, text)| text.is_none()) {
        let message = format!(
            "credentials.{field} has no token in this pod: it needs runner.serviceAccountName, and a controller that knows the field"
        );
        found.push((Reason::InvalidSpec, message));
    }
    let mut judge = |end: Option<Timestamp>, what: String| {
        let end = end.filter(|end| *end <= now);
        found.extend(end.map(|end| (Reason::CredentialsExpired, format!("{what} expired at {end:.0}"))));
    };
    for (name, text) in environment(spec, settings) {
        if SESSION_ENDS.contains(&name.as_str()) {
            judge(text.trim().parse().ok(), format!("the session of AWS that env {name} speaks of"));
        }
        judge(token_end(&text), format!("the token in env {name}"));
    }
    for need in needs.iter().filter(|need| fetches || !need.early) {
        for token in need.tokens() {
            judge(token_end(&token), format!("the token of {}", need.field));
        }
    }
    for (field, text) in &tokens {
        judge(text.as_deref().and_then(token_end), format!("the token of credentials.{field}"));
    }
    let Some((reason, _)) = found.first() else { return Ok(()) };
    let all: Vec<_> = found.iter().map(|(_, text)| text.as_str()).collect();
    Err(reason.failure(all.join("; and ")))
}

/// All referenced objects. An invalid reference is refused where the value is read.
fn needs<'a>(spec: &'a TerraformRunSpec, settings: &Settings, fetches: bool) -> Vec<Need<'a>> {
    let in_pod = settings.folder.is_none();
    let mut needs = Vec::new();
    let mut keys: Vec<(Refs<'a>, String, bool)> = Vec::new();
    for one in &spec.variables {
        keys.push((refs(one.value_from.as_ref()), format!("variable {}", one.name), false));
    }
    for one in &spec.env {
        keys.push((refs(one.value_from.as_ref()), format!("env {}", one.name), false));
    }
    for file in spec.variable_files.iter().filter(|file| file.path.is_none()) {
        let refs = (file.secret_key_ref.as_ref(), file.config_map_key_ref.as_ref());
        keys.push((refs, "a file with variables".to_owned(), false));
    }
    for file in spec.files.iter().filter(|_| in_pod) {
        let refs = (file.secret_key_ref.as_ref(), file.config_map_key_ref.as_ref());
        keys.push((refs, format!("file {}", file.path), false));
    }
    let mut add = |object, part, field: &str| needs.push(Need { object, part, field: field.to_owned(), early: true });
    for object in spec.env_from.iter().filter_map(|from| inputs::named_whole(from, settings)) {
        add(object, Part::Files(&[]), "envFrom");
    }
    // A person's own tools use that person's credentials.
    let credentials = Some(&spec.credentials).filter(|_| in_pod);
    for git in credentials.iter().flat_map(|all| &all.git) {
        let field = format!("credentials.git of {}", git.host);
        add(Object::secret(&git.secret_ref.name, settings), Part::Login, &field);
    }
    for one in credentials.iter().flat_map(|all| &all.registries) {
        keys.push(((Some(&one.secret_key_ref), None), format!("{REGISTRIES} of {}", one.host), true));
    }
    if let Some(config) = credentials.and_then(|all| all.cli_config.as_ref()) {
        keys.push(((Some(&config.secret_key_ref), None), CLI_CONFIG.to_owned(), true));
    }
    match spec.source.kind().filter(|_| fetches) {
        Some(SourceKind::ConfigMap(from)) => {
            add(Object::config_map(&from.name, settings), Part::Files(&from.items), "source.configMapRef");
        }
        Some(SourceKind::Secret(from)) => {
            add(Object::secret(&from.name, settings), Part::Files(&from.items), "source.secretRef");
        }
        _ => {}
    }
    if let Some((name, field)) = source_secret(spec).filter(|_| fetches) {
        add(Object::secret(name, settings), Part::Login, field);
    }
    // A restored plan brings its hooks with it.
    for hook in spec.hooks.iter().filter(|_| fetches) {
        keys.push(((None, hook.config_map_key_ref.as_ref()), format!("hook {}", hook.name), false));
    }
    let keys = keys.into_iter().filter_map(|(refs, field, early)| {
        named(refs, settings).map(|(object, key)| Need { object, part: Part::Key(key), field, early })
    });
    keys.chain(needs).collect()
}

impl Need<'_> {
    /// A message for each part that is missing or may not be empty.
    fn missing(&self, settings: &Settings) -> Vec<String> {
        let Self { object, field, .. } = self;
        let read = |key: &str| inputs::mounted(&object.dir, key);
        let is_blank = |key: &str| read(key).is_some_and(|text| text.trim().is_empty());
        let blank = |key: &str| format!("{} {} has nothing at its key {key}; {field} wants it", object.kind, object.name);
        match self.part {
            Part::Key(key) if read(key).is_none() => vec![object.wanted(key, field, settings)],
            Part::Key(key) if is_credential(field) && is_blank(key) => vec![blank(key)],
            Part::Key(_) => Vec::new(),
            _ if inputs::is_empty(&object.dir) => vec![object.absent_for(field, settings)],
            Part::Login => LOGIN_KEYS.into_iter().filter(|key| is_blank(key)).map(blank).collect(),
            Part::Files(items) => {
                let missing = items.iter().filter(|item| read(&item.key).is_none());
                missing.map(|item| format!("{}; {field} wants it", object.lacks(&item.key))).collect()
            }
        }
    }

    /// The texts of a Secret that may be tokens, except those of the environment.
    fn tokens(&self) -> Vec<String> {
        let is_secret = self.object.reason == Reason::SecretNotFound;
        let read = |key: &str| inputs::mounted(&self.object.dir, key).filter(|_| is_secret);
        match self.part {
            Part::Key(_) if self.field.starts_with("env ") => Vec::new(),
            Part::Key(key) if self.field == CLI_CONFIG => {
                UserConfig::of(&[], read(key).as_deref()).map(|config| config.secrets).unwrap_or_default()
            }
            Part::Key(key) => read(key).into_iter().collect(),
            Part::Login => ["bearerToken", "password"].into_iter().filter_map(read).collect(),
            Part::Files(_) => Vec::new(),
        }
    }
}

/// The environment from the run's spec, as far as its values exist.
fn environment(spec: &TerraformRunSpec, settings: &Settings) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (from, object) in spec.env_from.iter().filter_map(|from| Some((from, inputs::named_whole(from, settings)?))) {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let pair = |key: String| Some((format!("{prefix}{key}"), inputs::mounted(&object.dir, &key)?));
        all.extend(keys(&object.dir).into_iter().filter_map(pair));
    }
    for variable in &spec.env {
        let mounted = || {
            let (object, key) = named(refs(variable.value_from.as_ref()), settings)?;
            inputs::mounted(&object.dir, key)
        };
        let Some(text) = variable.value.clone().or_else(mounted) else { continue };
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
    let of_env = |name: &str| CREDENTIALS.split(' ').any(|one| one == name) || name.starts_with(CREDENTIAL_PREFIX);
    wanted.starts_with(REGISTRIES) || wanted.strip_prefix("env ").is_some_and(of_env)
}

/// The references of a value; empty for another stack's output.
fn refs(from: Option<&ValueFrom>) -> Refs<'_> {
    let from = from.filter(|from| from.output_of.is_none());
    (from.and_then(|from| from.secret_key_ref.as_ref()), from.and_then(|from| from.config_map_key_ref.as_ref()))
}

/// Expiry time of a JSON Web Token (RFC 7519); `None` for other text or a token without `exp`. Does not verify the signature.
fn token_end(text: &str) -> Option<Timestamp> {
    let mut parts = text.trim().split('.');
    let (header, payload, Some(_), None) = (parts.next()?, parts.next()?, parts.next(), parts.next()) else { return None };
    let part = |text: &str| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(text).ok()?).ok();
    part(header)?.get("alg")?.as_str()?;
    let end = part(payload)?.get("exp").cloned()?;
    // `exp` may have a fraction.
    let seconds = end.as_i64().or_else(|| end.as_f64().and_then(whole_seconds))?;
    Timestamp::from_second(seconds).ok()
}

fn whole_seconds(seconds: f64) -> Option<i64> {
    jiff::SignedDuration::try_from_secs_f64(seconds).ok().map(|duration| duration.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::tests::settings;
    use serde_json::json;
    use std::fs;

    const NOW: i64 = 1_800_000_000;

    fn token(end: i64) -> String {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.c2lnbmF0dXJl", part(json!({"alg": "RS256"})), part(json!({"exp": end, "sub": "x"})))
    }

    fn checked(files: &[(&str, &str)], spec: &Value, fetches: bool) -> Result<(), (String, String)> {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = settings(dir.path());
        settings.identity = dir.path().join("identity");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut whole = json!({"source": {"inline": {"files": {}}}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let spec = serde_json::from_value(whole).unwrap();
        let now = Timestamp::from_second(NOW).unwrap();
        check(&spec, &settings, fetches, now).map_err(|failure| (failure.reason, failure.message))
    }

    fn assert_fails(files: &[(&str, &str)], spec: &Value, fetches: bool, reason: Reason, message: &str) {
        let said = checked(files, spec, fetches);
        assert_eq!(said, Err((reason.as_str().to_owned(), message.to_owned())));
    }

    #[test]
    fn all_missing_and_empty_inputs_are_reported_at_once() {
        let secret = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
        let spec = json!({
            "source": {"git": {"url": "https://h/r", "secretRef": {"name": "git"}}},
            "variables": [
                {"name": "p", "valueFrom": secret("gone", "k")},
                {"name": "c", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
                {"name": "e", "valueFrom": secret("aws", "empty")},
            ],
            "env": [
                {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": secret("aws", "empty")},
                {"name": "MAY_BE_EMPTY", "valueFrom": secret("aws", "empty")},
            ],
        });
        let files = [
            ("configmaps/cm/other", "x"),
            ("secrets/aws/empty", "\n"),
            ("secrets/git/username", "u"),
            ("secrets/git/password", ""),
        ];
        let all = "Secret gone does not exist or is empty; variable p wants gone/k; and ConfigMap cm has no key k; variable c wants \
                   cm/k; and Secret aws has nothing at its key empty; env AWS_SECRET_ACCESS_KEY wants it; and Secret git has nothing at \
                   its key password; source.git.secretRef wants it";
        assert_fails(&files, &spec, true, Reason::SecretNotFound, all);
        let restored = checked(&files, &spec, false).unwrap_err().1;
        assert!(!restored.contains("source.git"), "a plan that is there needs no source: {restored}");
        assert_eq!(checked(&[], &json!({}), true), Ok(()));
    }

    #[test]
    fn missing_init_credentials_and_scripts_are_named() {
        let key = |name: &str| json!({"name": name, "key": "k"});
        let spec = json!({
            "credentials": {
                "git": [{"host": "a", "secretRef": {"name": "gone"}}, {"host": "b:8443", "secretRef": {"name": "git"}}],
                "registries": [{"host": "r", "secretKeyRef": key("gone")}, {"host": "s", "secretKeyRef": key("empty")}],
                "cliConfig": {"secretKeyRef": key("git")},
            },
            "hooks": [{"name": "tell", "when": "Always", "configMapKeyRef": key("scripts")}],
        });
        let files = [("secrets/git/bearerToken", " "), ("secrets/empty/k", "")];
        let all = "Secret gone does not exist or is empty; credentials.registries of r wants gone/k; and Secret empty has nothing at \
                   its key k; credentials.registries of s wants it; and Secret git has no key k; credentials.cliConfig wants git/k";
        let hook = "; and ConfigMap scripts does not exist or is empty; hook tell wants scripts/k";
        let git = "; and Secret gone does not exist or is empty; credentials.git of a wants it; and Secret git has nothing at its \
                   key bearerToken; credentials.git of b:8443 wants it";
        assert_fails(&files, &spec, true, Reason::SecretNotFound, &format!("{all}{hook}{git}"));
        // A restored plan brings its scripts with it.
        assert_fails(&files, &spec, false, Reason::SecretNotFound, &format!("{all}{git}"));
    }

    #[test]
    fn expired_token_is_found_in_every_place() {
        let (past, future) = (token(NOW - 1), token(NOW + 60));
        let key = json!({"secretKeyRef": {"name": "s", "key": "k"}});
        let config = format!("credentials \"r\" {{\n  token = \"{past}\"\n}}\n");
        let git = json!({"credentials": {"git": [{"host": "h", "secretRef": {"name": "g"}}]}});
        let registries = json!([{"host": "r", "secretKeyRef": key["secretKeyRef"]}]);
        let rows = [
            (git.clone(), ("secrets/g/bearerToken", past.as_str()), "the token of credentials.git of h"),
            (git, ("secrets/g/password", &past), "the token of credentials.git of h"),
            (
                json!({"credentials": {"registries": registries}}),
                ("secrets/s/k", &past),
                "the token of credentials.registries of r",
            ),
            (json!({"credentials": {"cliConfig": key}}), ("secrets/s/k", &config), "the token of credentials.cliConfig"),
            (json!({"variables": [{"name": "t", "valueFrom": key}]}), ("secrets/s/k", &past), "the token of variable t"),
            (json!({"envFrom": [{"prefix": "A_", "secretRef": {"name": "s"}}]}), ("secrets/s/k", &past), "the token in env A_k"),
        ];
        for (spec, file, said) in rows {
            let said = format!("{said} expired at 2027-01-15T07:59:59Z");
            assert_fails(&[file], &spec, true, Reason::CredentialsExpired, &said);
            let good = file.1.replace(&past, &future);
            assert_eq!(checked(&[(file.0, &good)], &spec, true), Ok(()), "{said}");
        }
        // `env` overrides `envFrom`; and a public value is not a credential.
        let both = json!({"envFrom": [{"secretRef": {"name": "s"}}], "env": [{"name": "k", "value": "x"}]});
        assert_eq!(checked(&[("secrets/s/k", &past)], &both, true), Ok(()));
        let public = json!({"variables": [{"name": "t", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}, {"name": "u", "value": past}]});
        assert_eq!(checked(&[("configmaps/m/k", &past)], &public, true), Ok(()));
    }

    #[test]
    fn expired_token_is_named_but_not_shown() {
        let env = |name: &str, value: &str| json!({"env": [{"name": name, "value": value}]});
        let (past, future) = (token(NOW - 1), token(NOW + 60));
        let said = "the token in env TOKEN expired at 2027-01-15T07:59:59Z";
        assert_fails(&[], &env("TOKEN", &past), true, Reason::CredentialsExpired, said);
        for (name, value) in [
            ("TOKEN", future.as_str()),
            ("TOKEN", "a.b.c"),
            ("TOKEN", "1.10.6"),
            ("AWS_CREDENTIAL_EXPIRATION", "2027-01-15T09:00:00+00:00"),
            ("AWS_CREDENTIAL_EXPIRATION", "soon"),
        ] {
            assert_eq!(checked(&[], &env(name, value), true), Ok(()), "{name}={value}");
        }
        let ended = env("AWS_CREDENTIAL_EXPIRATION", "2027-01-15T07:00:00+00:00");
        assert_eq!(checked(&[], &ended, true).unwrap_err().0, Reason::CredentialsExpired);
        let artifact = json!({"artifact": {"url": "https://h/a", "digest": "d", "secretRef": {"name": "flux"}}});
        let said = "the token of source.artifact.secretRef expired at 2027-01-15T07:59:59Z";
        let file = ("secrets/flux/bearerToken", past.as_str());
        assert_fails(&[file], &json!({"source": artifact}), true, Reason::CredentialsExpired, said);
    }

    #[test]
    fn identity_without_token_names_the_missing_setting() {
        let aws = json!({"credentials": {"aws": {"roleArn": "arn:aws:iam::111122223333:role/r"}}});
        let said = checked(&[], &aws, true).unwrap_err();
        assert_eq!(said.0, Reason::InvalidSpec);
        assert!(said.1.contains("runner.serviceAccountName"), "{}", said.1);
        assert_eq!(checked(&[("identity/aws/token", &token(NOW + 60))], &aws, true), Ok(()));
        assert_eq!(checked(&[("identity/aws/token", &token(NOW - 60))], &aws, true).unwrap_err().0, Reason::CredentialsExpired);
    }

    #[test]
    fn missing_keys_of_a_source_are_reported() {
        let spec = json!({"source": {"configMapRef": {"name": "net", "items": [{"key": "a", "path": "a.tf"}, {"key": "b", "path": "b.tf"}]}}});
        assert_eq!(checked(&[("configmaps/net/a", "x"), ("configmaps/net/b", "x")], &spec, true), Ok(()));
        let lacks = "ConfigMap net has no key b; source.configMapRef wants it";
        assert_fails(&[("configmaps/net/a", "x")], &spec, true, Reason::ConfigMapNotFound, lacks);
        let absent = "ConfigMap net does not exist or is empty; source.configMapRef wants it";
        assert_fails(&[], &spec, true, Reason::ConfigMapNotFound, absent);
    }
}
