//! Rules for texts that people bring from elsewhere: a refusal tells what is allowed, where a pattern gives only itself.

use serde_json::{Value, json};

fn text(pattern: &str, allowed: &str) -> Value {
    json!([{"rule": format!("self.matches(r'{pattern}')"), "message": allowed}])
}

/// The rule of a branch, tag or commit.
pub(super) fn git_ref() -> Value {
    text(
        r"^[A-Za-z0-9_.][A-Za-z0-9_./+@#-]*$",
        "a branch, a tag or a full commit id has letters, digits and the characters _ . / + @ # - and begins with a letter, a digit, _ or .",
    )
}

/// The rule of a repository's URL.
pub(super) fn git_url() -> Value {
    text(
        r"^(https?://([A-Za-z0-9._+~-]+@)?[^\s@]+|ssh://([A-Za-z0-9._+~-]+@)?[^\s@]+|[A-Za-z0-9._+~-]+@[A-Za-z0-9._-]+:[^\s]+)$",
        "url is https://HOST/PATH, http://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH, without spaces; before the host stands at most a user: a password or token belongs in the Secret of secretRef",
    )
}

/// The rule of an archive's URL.
pub(super) fn archive_url() -> Value {
    text(
        r"^https?://[^\s@/?#]+([/?#]\S*)?$",
        "url is https://HOST/PATH or http://HOST/PATH, without spaces and without a user: username and password belong in the Secret of secretRef",
    )
}

/// The rule of the part of a URL that selects a git server's credentials.
pub(super) fn git_host() -> Value {
    text(
        r"^([A-Za-z0-9._+~-]+@)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._~%+-]+)*/?$",
        "host is HOST, HOST:PORT, HOST/PATH or USER@HOST, without https:// and without a password",
    )
}

/// The rule of a registry's host.
pub(super) fn registry_host() -> Value {
    text(
        r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$",
        "host is HOST or HOST:PORT, without https:// and without a path",
    )
}
