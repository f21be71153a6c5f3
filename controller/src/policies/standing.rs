//! Which policies were proven last: kept in a Lease, so that a restarted controller knows whether they have stood since.

use std::collections::BTreeSet;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt as _,
    api::{ObjectMeta, PostParams},
};
use serde::{Deserialize, Serialize};

use crds::names;

use super::{Prober, Voids, installed::Policies};
use crate::{
    cluster::Cluster,
    error::{Error, ErrorKind},
};

/// What the Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The policies that were proven last; none before the first time.
    #[serde(default)]
    policies: Option<Policies>,
    /// Namespaces in which a policy let its probe through since.
    #[serde(default)]
    unproven: BTreeSet<String>,
}

/// Where the policies were not enforced since the last proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    None,
    /// In the namespace of this proof.
    Here,
    /// Perhaps everywhere.
    Everywhere,
}

impl Standing {
    /// What a proof in a namespace says of the time since.
    fn gap(&self, namespace: &str, policies: &Policies) -> Gap {
        if !self.policies.as_ref().is_some_and(|before| policies.have_stood_since(before)) {
            Gap::Everywhere
        } else if self.unproven.contains(namespace) {
            Gap::Here
        } else {
            Gap::None
        }
    }

    fn proven(mut self, namespace: &str, policies: &Policies) -> Self {
        self.policies = Some(policies.clone());
        self.unproven.remove(namespace);
        self
    }
}

/// How often a Lease that somebody else writes at the same moment is looked at again.
const TRIES: usize = 4;

impl Prober {
    /// The policies were proven in a namespace: what was set while they may not have stood is taken away first.
    pub(super) async fn stands(&self, namespace: &str, policies: &Policies, ctx: &impl Voids) -> Result<(), Error> {
        let mut known = self.standing.lock().await;
        let proven = |standing: &Standing| standing.clone().proven(namespace, policies);
        if known.as_ref().is_some_and(|known| *known == proven(known)) {
            return Ok(());
        }
        for _ in 1..TRIES {
            match close(namespace, policies, ctx).await {
                // Another controller wrote at the same moment: what it proved stands there now.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Conflict) => {}
                closed => {
                    *known = Some(closed?);
                    return Ok(());
                }
            }
        }
        *known = Some(close(namespace, policies, ctx).await?);
        Ok(())
    }

    /// A policy let its probe through in a namespace, which is kept before anything else is decided.
    pub(super) async fn falls(&self, namespace: &str, ctx: &Cluster) -> Result<(), Error> {
        let mut known = self.standing.lock().await;
        if known.as_ref().is_some_and(|known| known.unproven.contains(namespace)) {
            return Ok(());
        }
        let (lease, before) = read(ctx).await?;
        let mut after = before.unwrap_or_default();
        after.unproven.insert(namespace.to_owned());
        write(lease, &after, ctx).await?;
        *known = Some(after);
        Ok(())
    }
}

/// Takes away what was set since the last proof, as far as the policies were not enforced, and says that they are.
async fn close(namespace: &str, policies: &Policies, ctx: &impl Voids) -> Result<Standing, Error> {
    let (lease, before) = read(ctx).await?;
    // Where no proof was ever tried, nobody can have counted on a policy; what was created then is what the operator began with.
    let creations = before.as_ref().is_some_and(|standing| standing.policies.is_some());
    let before = before.unwrap_or_default();
    let scopes = match before.gap(namespace, policies) {
        Gap::None => Vec::new(),
        Gap::Here => vec![Some(namespace.to_owned())],
        Gap::Everywhere => ctx.settings.scopes(),
    };
    for scope in scopes {
        ctx.void(scope.as_deref(), creations).await?;
    }
    let after = before.proven(namespace, policies);
    write(lease, &after, ctx).await?;
    Ok(after)
}

/// The Lease, and what it says. One that says nothing that can be read says that the policies are others.
async fn read(ctx: &Cluster) -> Result<(Option<Lease>, Option<Standing>), Error> {
    let api: Api<Lease> = Api::default_namespaced(ctx.client.clone());
    let lease = ctx.call_opt("read the lease of the policies", api.get(names::POLICIES_LEASE)).await?;
    let standing = lease.as_ref().map(|lease| {
        let text = lease.annotations().get(names::POLICIES_PROVEN);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    });
    Ok((lease, standing))
}

/// Writes over the Lease as it was read; any other one is left alone, and the proof is made again.
async fn write(lease: Option<Lease>, standing: &Standing, ctx: &Cluster) -> Result<(), Error> {
    const WHAT: &str = "write the lease of the policies";
    let api: Api<Lease> = Api::default_namespaced(ctx.client.clone());
    let text = serde_json::to_string(standing).map_err(|source| Error::Encode { what: WHAT, source })?;
    let (params, before) = (PostParams::default(), lease.and_then(|lease| lease.metadata.resource_version));
    let is_new = before.is_none();
    let wanted = Lease {
        metadata: ObjectMeta {
            name: Some(names::POLICIES_LEASE.to_owned()),
            resource_version: before,
            labels: Some([(names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned())].into()),
            annotations: Some([(names::POLICIES_PROVEN.to_owned(), text)].into()),
            ..ObjectMeta::default()
        },
        spec: None,
    };
    if is_new {
        ctx.call(WHAT, api.create(&params, &wanted)).await?;
    } else {
        ctx.call(WHAT, api.replace(names::POLICIES_LEASE, &params, &wanted)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(uid: &str) -> Policies {
        Policies([("policy/pawl-status".to_owned(), (uid.to_owned(), 1))].into())
    }

    #[test]
    fn a_proof_of_the_same_policies_leaves_no_gap_across_a_restart() {
        let kept = Standing::default().proven("team", &policies("a"));
        let read: Standing = serde_json::from_str(&serde_json::to_string(&kept).unwrap()).unwrap();
        assert_eq!(read.gap("team", &policies("a")), Gap::None);
        assert_eq!(read.gap("other", &policies("a")), Gap::None);
        assert_eq!(read.gap("team", &policies("made again")), Gap::Everywhere);
        assert_eq!(Standing::default().gap("team", &policies("a")), Gap::Everywhere, "the first");
    }

    #[test]
    fn a_namespace_in_which_a_probe_was_let_through_has_a_gap_of_its_own() {
        let mut kept = Standing::default().proven("team", &policies("a"));
        kept.unproven.insert("team".to_owned());
        assert_eq!((kept.gap("team", &policies("a")), kept.gap("other", &policies("a"))), (Gap::Here, Gap::None));
        assert_eq!(kept.proven("team", &policies("a")).gap("team", &policies("a")), Gap::None);
    }

    #[test]
    fn what_cannot_be_read_is_no_proof() {
        let read: Standing = serde_json::from_str("{}").unwrap();
        assert_eq!(read.gap("team", &policies("a")), Gap::Everywhere);
    }
}
