//! Questions to the API server: the owner of a token, and the rights of a user.

use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

use crds::clock::ServerClock;

use crate::call::{Reply, call};

/// The owner of a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// The user's name: `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    pub pod: Option<PodIdentity>,
    /// The complete user info, with the groups for RBAC.
    pub info: UserInfo,
}

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace, equal to the ServiceAccount's.
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Reviews by the API server. A trait, so that tests can fake them.
pub trait Reviewer: Send + Sync + 'static {
    /// The API server's time.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
    /// The owner of a token; `None` when it has another audience or is invalid.
    fn review<'a>(&'a self, token: &'a str) -> Reply<'a, Option<Identity>>;
    /// Whether the API server would allow this access. Denies by default, for services that authorize by other rules.
    fn allows<'a>(&'a self, _: &'a Identity, _: ResourceAttributes) -> Reply<'a, bool> {
        Box::pin(async { Ok(false) })
    }
}

/// Reviews by a real API server.
pub struct Reviews {
    client: Client,
    clock: ServerClock,
    audience: &'static str,
}

impl Reviews {
    /// Accepts tokens of one audience. Tokens for the API server have another audience, so callers never send those.
    pub fn new(client: Client, clock: ServerClock, audience: &'static str) -> Self {
        Self {
            client,
            clock,
            audience,
        }
    }
}

impl Reviewer for Reviews {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn review<'a>(&'a self, token: &'a str) -> Reply<'a, Option<Identity>> {
        Box::pin(async move {
            let spec = TokenReviewSpec {
                audiences: Some(vec![self.audience.into()]),
                token: Some(token.to_owned()),
            };
            let review = TokenReview {
                spec,
                ..TokenReview::default()
            };
            let api: Api<TokenReview> = Api::all(self.client.clone());
            let answer = call(
                "review a token",
                api.create(&PostParams::default(), &review),
            )
            .await?;
            Ok(identity(answer, self.audience))
        })
    }

    fn allows<'a>(&'a self, caller: &'a Identity, access: ResourceAttributes) -> Reply<'a, bool> {
        Box::pin(async move {
            let UserInfo {
                groups, uid, extra, ..
            } = caller.info.clone();
            let user = Some(caller.user.clone());
            let spec = SubjectAccessReviewSpec {
                resource_attributes: Some(access),
                user,
                groups,
                uid,
                extra,
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview {
                spec,
                ..SubjectAccessReview::default()
            };
            let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
            let answer = call(
                "review an access",
                api.create(&PostParams::default(), &review),
            )
            .await?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        })
    }
}

fn identity(review: TokenReview, audience: &str) -> Option<Identity> {
    let status = review.status?;
    let audiences = status.audiences.unwrap_or_default();
    // Without a list of audiences, the API server did not check them.
    if status.authenticated != Some(true) || !audiences.iter().any(|of| of == audience) {
        return None;
    }
    let info = status.user?;
    let user = info.username.clone()?;
    let extra = |key: &str| match info.extra.as_ref()?.get(key)?.as_slice() {
        [one] => Some(one.clone()),
        _ => None,
    };
    let namespace = user
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'))
        .map(|(ns, _)| ns.to_owned());
    let (name, uid) = (
        extra("authentication.kubernetes.io/pod-name"),
        extra("authentication.kubernetes.io/pod-uid"),
    );
    let pod = match (namespace, name, uid) {
        (Some(namespace), Some(name), Some(uid)) => Some(PodIdentity {
            namespace,
            name,
            uid,
        }),
        _ => None,
    };
    Some(Identity { user, pod, info })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AUDIENCE: &str = "pawl-datastore";

    fn review(status: &serde_json::Value) -> Option<Identity> {
        identity(
            serde_json::from_value(json!({"spec": {}, "metadata": {}, "status": status})).unwrap(),
            AUDIENCE,
        )
    }

    #[test]
    fn token_of_another_audience_is_rejected() {
        let user = json!({"username": "system:serviceaccount:team:net-abcde-a1", "extra": {
            "authentication.kubernetes.io/pod-name": ["net-abcde-a1"], "authentication.kubernetes.io/pod-uid": ["u1"]}});
        let found =
            review(&json!({"authenticated": true, "audiences": [AUDIENCE], "user": user})).unwrap();
        assert_eq!(
            found.pod,
            Some(PodIdentity {
                namespace: "team".into(),
                name: "net-abcde-a1".into(),
                uid: "u1".into()
            })
        );
        for status in [
            json!({"authenticated": true, "user": user}),
            json!({"authenticated": true, "audiences": ["https://kubernetes.default.svc"], "user": user}),
            json!({"authenticated": false, "audiences": [AUDIENCE], "user": user}),
            json!({"audiences": [AUDIENCE], "user": user}),
            json!({"authenticated": true, "audiences": [AUDIENCE]}),
        ] {
            assert_eq!(review(&status), None, "{status}");
        }
        let unbound = json!({"username": "system:serviceaccount:team:x"});
        assert_eq!(
            review(&json!({"authenticated": true, "audiences": [AUDIENCE], "user": unbound}))
                .unwrap()
                .pod,
            None
        );
    }
}
