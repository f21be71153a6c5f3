//! Checks all inputs of a run before anything is fetched or started, and reports everything missing, empty or expired at once.
//!
//! Pure except for reads of mounted files. Cannot check what only a server knows, such as whether it accepts a password.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use crds::{Failure, ObjectSource, Reason, SourceKind, TerraformRunSpec, ValueFrom};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    inputs,
    objects::{Object, Refs, keys, named},
};
use crate::{providers::UserConfig, settings::Settings};

/// Environment variables that hold credentials, so an empty one is a mistake.
const CREDENTIALS: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_CREDENTIALS",
    "GOOGLE_OAUTH_ACCESS_TOKEN",
    "ARM_CLIENT_SECRET",
    "ARM_CLIENT_ID",
    "ARM_TENANT_ID",
    "ARM_ACCESS_KEY",
    "ARM_OIDC_TOKEN",
    "VAULT_TOKEN",
];
const CREDENTIAL_PREFIX: &str = "TF_TOKEN_";
/// Variables with the expiry of an AWS session, as set by `export-credentials` of the AWS CLI and by aws-vault.
const SESSION_ENDS: [&str; 2] = ["AWS_CREDENTIAL_EXPIRATION", "AWS_SESSION_EXPIRATION"];
/// Credential keys of a Secret that may not be empty.
const LOGIN_KEYS: [&str; 3] = ["username", "password", "bearerToken"];
const REGISTRIES: &str = "credentials.registries";

/// Problems found so far.
#[derive(Default)]
struct Found(Vec<(Reason, String)>);

/// Checks all references of the run. The failure lists everything missing or empty, then everything expired.
pub(super) fn check(spec: &TerraformRunSpec, settings: &Settings, fetches: bool, now: Timestamp) -> Result<(), Failure> {
    let mut found = Found::default();
    for variable in &spec.variables {
        found.value(settings, refs(variable.value_from.as_ref()), &format!("variable {}", variable.name));
    }
    for variable in &spec.env {
        found.value(settings, refs(variable.value_from.as_ref()), &format!("env {}", variable.name));
    }
    found.inputs(spec, settings);
    // A person's own tools use that person's credentials.
    if settings.folder.is_none() {
        found.credentials(spec, settings);
    }
    if fetches {
        found.source(spec, settings);
        // A restored plan brings its hooks with it.
        for hook in &spec.hooks {
            found.value(settings, (None, hook.config_map_key_ref.as_ref()), &format!("hook {}", hook.name));
        }
    }
    for token in spec.credentials.tokens() {
        if inputs::mounted(&settings.identity.join(token.field), "token").is_none() {
            let message = format!(
                "credentials.{} has no token in this pod: it needs runner.serviceAccountName, and a controller that knows the field",
                token.field
            );
            found.0.push((Reason::InvalidSpec, message));
        }
    }
    found.expired(spec, settings, fetches, now);
    let Some((reason, _)) = found.0.first() else { return Ok(()) };
    let reason = *reason;
    let all: Vec<String> = found.0.into_iter().map(|(_, text)| text).collect();
    Err(reason.failure(all.join("; and ")))
}

impl Found {
    /// Checks a key of a Secret or ConfigMap.
    fn value(&mut self, settings: &Settings, refs: Refs<'_>, wanted: &str) {
        // Invalid references are refused where the values are read.
        let Some((object, key)) = named(refs, settings) else { return };
        match inputs::mounted(&object.dir, key) {
            None => self.0.push((object.reason, object.wanted(key, wanted, settings))),
            Some(text) if text.trim().is_empty() && is_credential(wanted) => {
                self.0.push((object.reason, nothing_at(&object, key, wanted)));
            }
            Some(_) => {}
        }
    }

    /// Checks variable files, files for the tool, and `envFrom`.
    fn inputs(&mut self, spec: &TerraformRunSpec, settings: &Settings) {
        for file in spec.variable_files.iter().filter(|file| file.path.is_none()) {
            let refs = (file.secret_key_ref.as_ref(), file.config_map_key_ref.as_ref());
            self.value(settings, refs, "a file with variables");
        }
        for file in spec.files.iter().filter(|_| settings.folder.is_none()) {
            let refs = (file.secret_key_ref.as_ref(), file.config_map_key_ref.as_ref());
            self.value(settings, refs, &format!("file {}", file.path));
        }
        for object in spec.env_from.iter().filter_map(|whole| inputs::named_whole(whole, settings)) {
            if inputs::is_empty(&object.dir) {
                self.0.push((object.reason, inputs::not_whole(&object, settings)));
            }
        }
    }

    /// Checks the credentials for `init`.
    fn credentials(&mut self, spec: &TerraformRunSpec, settings: &Settings) {
        let credentials = &spec.credentials;
        for git in &credentials.git {
            self.login(&git.secret_ref.name, &format!("credentials.git of {}", git.host), settings);
        }
        for registry in &credentials.registries {
            let refs = (Some(&registry.secret_key_ref), None);
            self.value(settings, refs, &format!("{REGISTRIES} of {}", registry.host));
        }
        if let Some(config) = &credentials.cli_config {
            self.value(settings, (Some(&config.secret_key_ref), None), "credentials.cliConfig");
        }
    }

    /// Checks a Secret with credentials for a host.
    fn login(&mut self, name: &str, wanted: &str, settings: &Settings) {
        let object = Object::secret(name, settings);
        if inputs::is_empty(&object.dir) {
            return self.0.push((object.reason, format!("{}; {wanted} wants it", object.absent())));
        }
        for key in LOGIN_KEYS {
            if inputs::mounted(&object.dir, key).is_some_and(|text| text.trim().is_empty()) {
                self.0.push((object.reason, nothing_at(&object, key, wanted)));
            }
        }
    }

    /// Checks the objects that are the source, and the Secret for its fetch.
    fn source(&mut self, spec: &TerraformRunSpec, settings: &Settings) {
        match spec.source.kind() {
            Some(SourceKind::ConfigMap(from)) => {
                self.files(&Object::config_map(&from.name, settings), from, "source.configMapRef");
            }
            Some(SourceKind::Secret(from)) => self.files(&Object::secret(&from.name, settings), from, "source.secretRef"),
            _ => {}
        }
        if let Some((name, wanted)) = source_secret(spec) {
            self.login(name, wanted, settings);
        }
    }

    fn files(&mut self, object: &Object<'_>, from: &ObjectSource, wanted: &str) {
        if inputs::is_empty(&object.dir) {
            self.0.push((object.reason, format!("{}; {wanted} wants it", object.absent())));
            return;
        }
        for item in from.items.iter().filter(|item| inputs::mounted(&object.dir, &item.key).is_none()) {
            self.0.push((object.reason, format!("{}; {wanted} wants it", object.lacks(&item.key))));
        }
    }

    /// Checks credentials that contain their own expiry time.
    fn expired(&mut self, spec: &TerraformRunSpec, settings: &Settings, fetches: bool, now: Timestamp) {
        let mut judge = |end: Option<Timestamp>, what: &dyn Fn() -> String| {
            if let Some(end) = end.filter(|end| *end <= now) {
                self.0.push((Reason::CredentialsExpired, format!("{} expired at {end:.0}", what())));
            }
        };
        let of = |refs| named(refs, settings).and_then(|(object, key)| inputs::mounted(&object.dir, key));
        for (name, text) in environment(spec, settings) {
            if SESSION_ENDS.contains(&name.as_str()) {
                judge(text.trim().parse().ok(), &|| format!("the AWS session in env {name}"));
            }
            judge(token_end(&text), &|| format!("the token in env {name}"));
        }
        // A literal value in the run or a value of a ConfigMap is not treated as a credential.
        for variable in &spec.variables {
            let end = of((refs(variable.value_from.as_ref()).0, None)).as_deref().and_then(token_end);
            judge(end, &|| format!("the token in variable {}", variable.name));
        }
        for token in spec.credentials.tokens() {
            let text = inputs::mounted(&settings.identity.join(token.field), "token");
            judge(text.as_deref().and_then(token_end), &|| format!("the token of credentials.{}", token.field));
        }
        // A restored plan needs no fetch.
        if !fetches {
            return;
        }
        let git = &spec.credentials.git;
        let git = git.iter().map(|git| (git.secret_ref.name.as_str(), format!("credentials.git of {}", git.host)));
        let git = git.filter(|_| settings.folder.is_none());
        let source = source_secret(spec).map(|(name, wanted)| (name, wanted.to_owned()));
        for (name, wanted) in source.into_iter().chain(git) {
            for key in ["bearerToken", "password"] {
                let text = inputs::mounted(&settings.secrets.join(name), key);
                let end = text.as_deref().and_then(token_end);
                judge(end, &|| format!("the token at key {key} of Secret {name}, which {wanted} wants,"));
            }
        }
        for registry in &spec.credentials.registries {
            let end = of((Some(&registry.secret_key_ref), None)).as_deref().and_then(token_end);
            judge(end, &|| format!("the token of {REGISTRIES} of {}", registry.host));
        }
        let config = spec.credentials.cli_config.as_ref();
        let config = config.and_then(|config| UserConfig::of(&[], of((Some(&config.secret_key_ref), None)).as_deref()).ok());
        for token in config.iter().flat_map(|config| &config.secrets) {
            judge(token_end(token), &|| "a token in credentials.cliConfig".to_owned());
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

/// The error message for an empty key.
fn nothing_at(object: &Object<'_>, key: &str, wanted: &str) -> String {
    format!("{} {} has nothing at its key {key}; {wanted} wants it", object.kind, object.name)
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
    let of_env = |name: &str| CREDENTIALS.contains(&name) || name.starts_with(CREDENTIAL_PREFIX);
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

    fn fails(reason: Reason, message: &str) -> Result<(), (String, String)> {
        Err((reason.as_str().to_owned(), message.to_owned()))
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
        assert_eq!(
            checked(&files, &spec, true),
            fails(
                Reason::SecretNotFound,
                "Secret gone does not exist or is empty; variable p wants gone/k; and ConfigMap cm has no key k; variable c wants \
                 cm/k; and Secret aws has nothing at its key empty; env AWS_SECRET_ACCESS_KEY wants it; and Secret git has nothing at \
                 its key password; source.git.secretRef wants it"
            )
        );
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
        let all = "Secret gone does not exist or is empty; credentials.git of a wants it; and Secret git has nothing at its key bearerToken; \
                   credentials.git of b:8443 wants it; and Secret gone does not exist or is empty; credentials.registries of r wants gone/k; \
                   and Secret empty has nothing at its key k; credentials.registries of s wants it; and Secret git has no key k; \
                   credentials.cliConfig wants git/k";
        let hook = "; and ConfigMap scripts does not exist or is empty; hook tell wants scripts/k";
        assert_eq!(checked(&files, &spec, true), fails(Reason::SecretNotFound, &format!("{all}{hook}")));
        // A restored plan brings its scripts with it.
        assert_eq!(checked(&files, &spec, false), fails(Reason::SecretNotFound, all));
    }

    #[test]
    fn expired_token_is_found_in_every_place() {
        let (past, future) = (token(NOW - 1), token(NOW + 60));
        let key = json!({"secretKeyRef": {"name": "s", "key": "k"}});
        let config = format!("credentials \"r\" {{\n  token = \"{past}\"\n}}\n");
        let git = json!({"credentials": {"git": [{"host": "h", "secretRef": {"name": "g"}}]}});
        let rows = [
            (
                git.clone(),
                ("secrets/g/bearerToken", past.as_str()),
                "the token at key bearerToken of Secret g, which credentials.git of h wants,",
            ),
            (git, ("secrets/g/password", &past), "the token at key password of Secret g, which credentials.git of h wants,"),
            (
                json!({"credentials": {"registries": [{"host": "r", "secretKeyRef": key["secretKeyRef"]}]}}),
                ("secrets/s/k", &past),
                "the token of credentials.registries of r",
            ),
            (json!({"credentials": {"cliConfig": key}}), ("secrets/s/k", &config), "a token in credentials.cliConfig"),
            (json!({"variables": [{"name": "t", "valueFrom": key}]}), ("secrets/s/k", &past), "the token in variable t"),
            (json!({"envFrom": [{"prefix": "A_", "secretRef": {"name": "s"}}]}), ("secrets/s/k", &past), "the token in env A_k"),
        ];
        for (spec, file, said) in rows {
            let said = format!("{said} expired at 2027-01-15T07:59:59Z");
            assert_eq!(checked(&[file], &spec, true), fails(Reason::CredentialsExpired, &said));
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
        let said = checked(&[], &env("TOKEN", &past), true);
        assert_eq!(said, fails(Reason::CredentialsExpired, "the token in env TOKEN expired at 2027-01-15T07:59:59Z"));
        for (name, value) in [
            ("TOKEN", future.as_str()),
            ("TOKEN", "a.b.c"),
            ("TOKEN", "1.10.6"),
            ("AWS_CREDENTIAL_EXPIRATION", "2027-01-15T09:00:00+00:00"),
            ("AWS_CREDENTIAL_EXPIRATION", "soon"),
        ] {
            assert_eq!(checked(&[], &env(name, value), true), Ok(()), "{name}={value}");
        }
        let said = checked(&[], &env("AWS_CREDENTIAL_EXPIRATION", "2027-01-15T07:00:00+00:00"), true).unwrap_err();
        assert_eq!(said.0, Reason::CredentialsExpired);
        let artifact = json!({"artifact": {"url": "https://h/a", "digest": "d", "secretRef": {"name": "flux"}}});
        let said = checked(&[("secrets/flux/bearerToken", &past)], &json!({"source": artifact}), true).unwrap_err();
        assert_eq!(said.0, Reason::CredentialsExpired);
        assert!(said.1.contains("bearerToken of Secret flux") && !said.1.contains(&past), "{}", said.1);
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
        let said = checked(&[("configmaps/net/a", "x")], &spec, true);
        assert_eq!(said, fails(Reason::ConfigMapNotFound, "ConfigMap net has no key b; source.configMapRef wants it"));
        let said = checked(&[], &spec, true);
        assert_eq!(
            said,
            fails(Reason::ConfigMapNotFound, "ConfigMap net does not exist or is empty; source.configMapRef wants it")
        );
    }
}
