//! Pods and accounts that somebody with Kubernetes' `edit`, and no right in `pawl.run`, creates in place of an attempt's own.

use anyhow::{Context, Result, ensure};
use crds::{names, reason};
use harness::wait;
use k8s_openapi::api::{
    core::v1::{Pod, ServiceAccount},
    rbac::v1::RoleBinding,
};
use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams},
    core::NamespaceResourceScope,
};
use serde_json::{Value, json};

use crate::{
    rig::{RUN, Rig, is_open, stalls},
    world::{Agent, PATIENCE, World, tests},
};

tests! {
    Guarded: labelled_pod_of_an_editor_is_replaced,
    Guarded: unlabelled_pod_of_an_editor_gets_no_rights,
}

/// The editor's objects.
struct Editor {
    client: Client,
    /// The name of the first attempt's objects.
    name: String,
    labels: Value,
}

impl Editor {
    async fn new(rig: &Rig) -> Result<Self> {
        let run = rig.create(&json!({})).await?;
        let uid = run.uid().context("no UID")?;
        // A cluster's `edit` aggregates it.
        let role = "system:aggregate-to-edit";
        rig.world.bind_user(&rig.namespace, role, "eve").await?;
        Ok(Self {
            client: rig.world.access.impersonate("eve", &[]).await?,
            name: names::attempt_name(RUN, &uid, 1),
            labels: json!({names::LABEL_RUN: RUN, names::LABEL_RUN_UID: uid, names::LABEL_ATTEMPT: "1",
                names::LABEL_MANAGED_BY: names::MANAGED_BY}),
        })
    }

    /// Creates an object as the editor, as soon as RBAC knows her right. If a policy of the chart refuses it, as if that policy had been away.
    async fn create<K>(&self, rig: &Rig, object: &Value) -> Result<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Serialize
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let wanted: K = serde_json::from_value(object.clone())?;
        let (own, any): (Api<K>, Api<K>) = (
            Api::namespaced(self.client.clone(), &rig.namespace),
            Api::namespaced(rig.world.admin.clone(), &rig.namespace),
        );
        let created = async || match own.create(&PostParams::default(), &wanted).await {
            Ok(made) => Ok(Ok(made)),
            Err(kube::Error::Api(status))
                if status.message.contains("ValidatingAdmissionPolicy") =>
            {
                Ok(Ok(any.create(&PostParams::default(), &wanted).await?))
            }
            Err(error) => Ok(Err(error.to_string())),
        };
        wait::until("eve may edit", PATIENCE, created).await
    }

    /// A pod of the attempt's name with this account, and its token.
    async fn pod(&self, rig: &Rig, account: &str, labels: &Value) -> Result<Agent> {
        let meta = |name: &str| json!({"name": name, "labels": labels});
        let _: ServiceAccount = self
            .create(rig, &json!({"metadata": meta(account)}))
            .await?;
        let pod = json!({"metadata": meta(&self.name), "spec": {"serviceAccountName": account,
            "containers": [{"name": "runner", "image": "none"}]}});
        let pod: Pod = self.create(rig, &pod).await?;
        let uid = pod.uid().context("a pod without UID")?;
        let bound = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": self.name, "uid": uid},
            "audiences": []});
        let client = rig
            .world
            .token(&rig.namespace, account, &bound, None)
            .await?;
        Ok(Agent {
            client,
            uid,
            namespace: rig.namespace.clone(),
            run: RUN.into(),
        })
    }
}

/// The foreign pod adopts nothing.
async fn is_refused(rig: &Rig, foreign: &Agent) -> Result<()> {
    for nonce in ['0', 'e'] {
        let answer = foreign.status(&foreign.adoption(1, nonce)).await;
        ensure!(answer.is_err(), "a foreign pod adopted: {answer:?}");
    }
    ensure!(rig.status().await?.adopted.is_none());
    Ok(())
}

async fn labelled_pod_of_an_editor_is_replaced(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    let editor = Editor::new(&rig).await?;
    let foreign = editor.pod(&rig, &editor.name, &editor.labels).await?;
    is_refused(&rig, &foreign).await?;
    rig.look("opened", is_open(1)).await?;
    let recorded = rig.attempt().await?.pod_uid.context("no pod is recorded")?;
    ensure!(recorded != foreign.uid, "the editor's pod was recorded");
    is_refused(&rig, &foreign).await?;
    let own = rig.token().await?;
    ensure!(own.uid == recorded, "the recorded pod is not there");
    own.status(&own.adoption(1, '0'))
        .await
        .context("adoption")?;
    ensure!(rig.forbidden().is_empty(), "{:?}", rig.forbidden());
    Ok(())
}

async fn unlabelled_pod_of_an_editor_gets_no_rights(world: World) -> Result<()> {
    for own_account in [true, false] {
        let rig = Rig::new(world.clone()).await?;
        let editor = Editor::new(&rig).await?;
        let (kind, account) = if own_account {
            ("ServiceAccount", editor.name.as_str())
        } else {
            ("pod", "eve")
        };
        let foreign = editor.pod(&rig, account, &Value::Null).await?;
        let status = rig
            .look("without a pod", |status| {
                stalls(status, reason::POD_REJECTED)
            })
            .await?;
        let message = status.message.unwrap_or_default();
        let said = format!("{kind} {} exists and was not created by Pawl", editor.name);
        ensure!(message.contains(&said), "{message}");
        ensure!(rig.attempt().await?.pod_uid.is_none());
        let bindings: Api<RoleBinding> = Api::namespaced(rig.world.admin.clone(), &rig.namespace);
        ensure!(
            bindings.get_opt(&editor.name).await?.is_none(),
            "{kind} got rights"
        );
        is_refused(&rig, &foreign).await?;
        let at_once = DeleteParams::default().grace_period(0);
        rig.pods().delete(&editor.name, &at_once).await?;
        let accounts: Api<ServiceAccount> =
            Api::namespaced(rig.world.admin.clone(), &rig.namespace);
        accounts.delete(account, &at_once).await?;
        // The wait that follows a refusal.
        rig.later(31);
        rig.look("with its pod", |status| {
            let attempt = status.attempt.as_ref();
            attempt.is_some_and(|attempt| attempt.pod_uid.is_some()) && status.failure.is_none()
        })
        .await?;
        let own = rig.token().await?;
        own.status(&own.adoption(1, '0'))
            .await
            .context("adoption")?;
        ensure!(rig.forbidden().is_empty(), "{:?}", rig.forbidden());
    }
    Ok(())
}
