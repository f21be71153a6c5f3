//! Tokens of the run's account for clouds and Vault.

use crds::{Attempt, TerraformRun, datastore};
use k8s_openapi::api::core::v1::Volume;

use super::{projected, token_of};

pub(super) const VOLUME: &str = "identity";

/// A volume with a token for each identity of the run, as `FIELD/token`. `None` without an account selected by the
/// user, because clouds do not trust an attempt's own account. The kubelet renews the tokens.
pub(super) fn volume(run: &TerraformRun, attempt: &Attempt) -> Option<Volume> {
    run.spec.runner.account(attempt.restores.is_some())?;
    // The schema rejects the datastore's audience as well: with such a token, code of the stack could write plans that people approve.
    let tokens = run
        .spec
        .credentials
        .tokens()
        .into_iter()
        .filter(|token| token.audience != datastore::AUDIENCE);
    let sources: Vec<_> = tokens
        .map(|token| token_of(format!("{}/token", token.field), Some(&token.audience)))
        .collect();
    (!sources.is_empty()).then(|| projected(VOLUME, sources))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use serde_json::json;

    #[test]
    fn identity_tokens_need_an_account_and_exclude_the_datastore() {
        let mut run = testing::run();
        let aws = json!({"roleArn": "arn:aws:iam::111122223333:role/r"});
        run.spec.credentials =
            serde_json::from_value(json!({"aws": aws, "vault": {"address": "https://v"}})).unwrap();
        let attempt = |restores| Attempt {
            number: 1,
            restores,
            ..Attempt::default()
        };
        assert_eq!(
            volume(&run, &attempt(None)),
            None,
            "the attempt's own account"
        );
        run.spec.runner.plan_service_account_name = Some("reader".into());
        assert_eq!(
            volume(&run, &attempt(Some(1))),
            None,
            "that of the apply is the attempt's own"
        );
        let of = |run: &TerraformRun| {
            let sources = volume(run, &attempt(None))
                .unwrap()
                .projected
                .unwrap()
                .sources
                .unwrap();
            let tokens = sources
                .into_iter()
                .map(|source| source.service_account_token.unwrap());
            tokens
                .map(|token| (token.path, token.audience.unwrap()))
                .collect::<Vec<_>>()
        };
        let aws = ("aws/token".to_owned(), "sts.amazonaws.com".to_owned());
        assert_eq!(
            of(&run),
            [aws.clone(), ("vault/token".to_owned(), "vault".to_owned())]
        );
        run.spec.credentials.vault.as_mut().unwrap().audience = datastore::AUDIENCE.into();
        assert_eq!(of(&run), [aws]);
    }
}
