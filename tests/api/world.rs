//! API servers for the tests: one with the CRDs only, for their own rules, and one with the chart's admission policies as well.

use std::{
    ffi::OsStr,
    future::Future,
    io::Write as _,
    pin::Pin,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use crds::{TerraformRun, names};
use harness::{
    cluster::{
        Access, ControlPlane,
        access::ACTOR,
        gobuild::{Toolset, all_suites},
        objects,
    },
    wait,
};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    authorization::v1::SubjectAccessReview,
    core::v1::{Namespace, Pod, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use serde_json::{Value, json};

use crate::console::oidc::Issuer;

/// The user name of the controller.
pub(crate) const CONTROLLER: &str = "system:serviceaccount:pawl-system:pawl-controller";
/// The API group of Burrito's CRDs, which have the same names as ours.
pub(crate) const FOREIGN: &str = "config.terraform.padok.cloud";
/// A longer wait indicates a defect, not a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The body of a test.
type Body = Box<dyn FnOnce(World) -> Pin<Box<dyn Future<Output = Result<()>>>> + Send>;

/// A test and the world that it needs.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) body: Body,
}

/// Registers functions as tests of the names of their module and of their own, each with the world that it needs.
macro_rules! tests {
    ($($place:ident: $name:ident,)*) => {
        pub(crate) fn tests() -> Vec<crate::world::Test> {
            let module = module_path!().trim_start_matches("api::");
            let name = |name: &str| format!("{module}::{name}");
            vec![$(crate::world::Test::at(crate::world::Place::$place, &name(stringify!($name)), $name)),*]
        }
    };
}
pub(crate) use tests;

/// The content of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The CRDs only.
    Bare,
    /// Everything that the chart installs.
    Guarded,
    /// The same, with the CRDs of a newer version.
    Newer,
}

impl Test {
    pub(crate) fn new<F>(
        name: &str,
        guarded: bool,
        body: impl FnOnce(World) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        Self::at(
            if guarded { Place::Guarded } else { Place::Bare },
            name,
            body,
        )
    }

    pub(crate) fn at<F>(
        place: Place,
        name: &str,
        body: impl FnOnce(World) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        Self {
            name: name.into(),
            place,
            body: Box::new(|world| Box::pin(body(world))),
        }
    }
}

/// The reason why the suite cannot run here, or `None`. With `CI=true` nothing is skipped: a missing prerequisite is a failure.
pub(crate) fn left_out() -> Option<&'static str> {
    let wanted = all_suites()
        || std::env::var_os("KUBEBUILDER_ASSETS").is_some_and(|value| !value.is_empty());
    (!wanted).then_some("set KUBEBUILDER_ASSETS, or run `cargo ci`, which builds one")
}

/// An API server with the CRDs, and helpers for tests.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) access: Access,
    pub(crate) admin: Client,
    /// An OIDC issuer that the API server trusts once it serves.
    pub(crate) issuer: Arc<Issuer>,
    next: Arc<AtomicU32>,
}

impl World {
    /// Starts an API server and installs the CRDs, and with `policies` the rest of the chart.
    pub(crate) async fn start(policies: bool) -> Result<(Self, ControlPlane)> {
        // This server is not shared with other suites: tests simulate kubelet and controllers on it, and the servers of this suite differ
        // in CRDs, policies and version.
        let issuer = Issuer::new()?;
        let plane = ControlPlane::start(&[], &[issuer.trusted()?]).await?;
        let access: Access = (*plane).clone();
        let world = Self {
            admin: access.client().await?,
            access,
            issuer: Arc::new(issuer),
            next: Arc::default(),
        };
        // First, before any kubectl has cached discovery data.
        world.apply(foreign().to_string().as_bytes())?;
        world.established(&format!("crd/terraformruns.{FOREIGN}"))?;
        world
            .access
            .kubectl(&["create", "namespace", "pawl-system"])?;
        if policies {
            world.apply(&rendered("pawl", &["--set=server.hooks.enabled=true"])?)?;
        } else {
            for (_, text) in crds::crd::files()? {
                world.apply(text.as_bytes())?;
            }
            // The controller's own rights here too.
            let rules = "templates/controller-rbac.yaml";
            world.install("pawl", rules, "policies.install=false")?;
        }
        world.established("crd/terraformruns.pawl.run")?;
        if policies {
            world.wait_for_policies().await?;
            crate::rig::Rig::prove_the_gate(world.clone()).await?;
        }
        Ok((world, plane))
    }

    /// Starts an API server with the whole chart, and CRDs newer than ours.
    pub(crate) async fn start_newer() -> Result<(Self, ControlPlane)> {
        let (world, plane) = Self::start(true).await?;
        world.apply(crate::newer::definition()?.to_string().as_bytes())?;
        crate::newer::wait_for(&world).await?;
        Ok((world, plane))
    }

    fn established(&self, definition: &str) -> Result<()> {
        // Before it has any condition, `kubectl wait --for=condition` fails at once.
        self.access.kubectl(&[
            "wait",
            "--for=jsonpath={.status.conditions}",
            "--timeout=300s",
            definition,
        ])?;
        self.access.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=300s",
            definition,
        ])?;
        Ok(())
    }

    /// Runs text in a shell as administrator; returns its output.
    pub(crate) fn paste(&self, text: &str) -> Result<String> {
        let kubectl = self
            .access
            .kubectl
            .parent()
            .context("kubectl lies in a directory")?
            .display();
        let path = format!("{kubectl}:{}", std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell
            .args(["-euo", "pipefail", "-c", text])
            .env("PATH", path)
            .env("KUBECONFIG", &self.access.kubeconfig);
        let output = shell.env("no_proxy", "*").output()?;
        ensure!(
            output.status.success(),
            "{text}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Installs one template of the chart for another release.
    pub(crate) fn install(&self, release: &str, template: &str, value: &str) -> Result<()> {
        self.apply(&rendered(
            release,
            &["--show-only", template, "--set", value],
        )?)
    }

    fn apply(&self, yaml: &[u8]) -> Result<()> {
        let mut child = self
            .access
            .kubectl_command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        child
            .stdin
            .take()
            .context("no standard input")?
            .write_all(yaml)?;
        ensure!(child.wait()?.success(), "kubectl apply failed");
        Ok(())
    }

    /// A policy takes effect about a second after its creation (measured). Waits until each refuses a probe.
    async fn wait_for_policies(&self) -> Result<()> {
        let namespace = self.namespace().await?;
        let author = self.person("someone", &namespace, "pawl-author").await?;
        let runs: Api<TerraformRun> = Api::namespaced(author, &namespace);
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let automatic = run("probe", &json!({"approval": {"mode": "Automatic"}}))?;
        let mut approved = run("probe", &json!({}))?;
        approved
            .annotations_mut()
            .insert(names::APPROVE.into(), "x".into());
        let look = async || {
            Ok(runs.create(&dry, &automatic).await.is_err()
                && runs.create(&dry, &approved).await.is_err())
        };
        wait::until("the admission policies are in force", PATIENCE, look).await
    }

    /// A new namespace.
    pub(crate) async fn namespace(&self) -> Result<String> {
        let name = format!("test-{}", self.next.fetch_add(1, Ordering::Relaxed));
        objects::create(
            &Api::<Namespace>::all(self.admin.clone()),
            json!({"metadata": {"name": name}}),
        )
        .await?;
        Ok(name)
    }

    /// A client of one of Pawl's processes, with its account.
    pub(crate) async fn process(&self, account: &str) -> Result<Client> {
        let mut config = self.access.config().await?;
        config.auth_info.impersonate = Some(format!("system:serviceaccount:pawl-system:{account}"));
        config.auth_info.impersonate_groups = Some(vec![
            "system:serviceaccounts".into(),
            "system:authenticated".into(),
        ]);
        config.default_namespace = "pawl-system".into();
        Ok(Client::try_from(config)?)
    }

    /// A client that impersonates a user with a ClusterRole in a namespace.
    pub(crate) async fn person(&self, user: &str, namespace: &str, role: &str) -> Result<Client> {
        self.bind_user(namespace, role, user).await?;
        self.until_allowed(user, namespace, role).await?;
        self.access.impersonate(user, &[]).await
    }

    /// Waits until the API server knows a right; before that, RBAC refuses requests that should reach a policy.
    pub(crate) async fn until_allowed(
        &self,
        user: &str,
        namespace: &str,
        role: &str,
    ) -> Result<()> {
        let (resource, verb) = match role {
            "pawl-author" => ("terraformruns", "create"),
            "pawl-approver" => ("terraformruns", "approve"),
            "pawl-autoapprover" => ("terraformruns", "autoapprove"),
            "pawl-abandoner" => ("terraformruns", "abandon"),
            "pawl-repository-admin" => ("terraformrepositories", "create"),
            _ => ("terraformruns", "get"),
        };
        let review: SubjectAccessReview = serde_json::from_value(
            json!({"spec": {"user": user, "resourceAttributes":
            {"group": names::GROUP, "resource": resource, "verb": verb, "namespace": namespace}}}),
        )?;
        let reviews: Api<SubjectAccessReview> = Api::all(self.admin.clone());
        let look = async || {
            let answer = reviews.create(&PostParams::default(), &review).await?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        };
        wait::until(
            format!("{user} may {verb} {resource} in {namespace} as {role}"),
            PATIENCE,
            look,
        )
        .await
    }

    /// Binds a ClusterRole in a namespace.
    pub(crate) async fn bind(&self, namespace: &str, role: &str, subject: &Value) -> Result<()> {
        self.bind_role(namespace, "ClusterRole", role, subject)
            .await
    }

    /// Like [`Self::bind`], for a user.
    pub(crate) async fn bind_user(&self, namespace: &str, role: &str, name: &str) -> Result<()> {
        self.bind(namespace, role, &user(name)).await
    }

    /// Creates a Role and binds it.
    pub(crate) async fn grant(
        &self,
        namespace: &str,
        role: &str,
        rules: &Value,
        subject: &Value,
    ) -> Result<()> {
        let roles: Api<Role> = Api::namespaced(self.admin.clone(), namespace);
        objects::create(&roles, json!({"metadata": {"name": role}, "rules": rules})).await?;
        self.bind_role(namespace, "Role", role, subject).await
    }

    async fn bind_role(
        &self,
        namespace: &str,
        kind: &str,
        role: &str,
        subject: &Value,
    ) -> Result<()> {
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role});
        let binding =
            json!({"metadata": {"generateName": "test-"}, "roleRef": role, "subjects": [subject]});
        objects::create(
            &Api::<RoleBinding>::namespaced(self.admin.clone(), namespace),
            binding,
        )
        .await?;
        Ok(())
    }

    /// Creates a run with an inline source; `spec` is merged into it.
    pub(crate) async fn create(
        &self,
        namespace: &str,
        name: &str,
        spec: &Value,
    ) -> Result<TerraformRun> {
        Ok(self
            .runs(namespace)
            .create(&PostParams::default(), &run(name, spec)?)
            .await?)
    }

    pub(crate) fn runs(&self, namespace: &str) -> Api<TerraformRun> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    /// Patches the status as administrator.
    pub(crate) async fn status(
        &self,
        namespace: &str,
        name: &str,
        status: &Value,
    ) -> kube::Result<TerraformRun> {
        objects::merge_status(&self.runs(namespace), name, status).await
    }

    /// Creates the pod of an attempt (no node runs it), with its own account and an agent's rights, and returns a client with that pod's
    /// token.
    pub(crate) async fn pod(
        &self,
        namespace: &str,
        pod: &str,
        account: &str,
        run: &str,
    ) -> Result<Agent> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), namespace);
        if accounts.get_opt(account).await?.is_none() {
            objects::create(&accounts, json!({"metadata": {"name": account}})).await?;
            let rules = json!([
                {"apiGroups": ["pawl.run"], "resources": ["terraformruns"], "resourceNames": [run], "verbs": ["get", "watch"]},
                {"apiGroups": ["pawl.run"], "resources": ["terraformruns/status"], "resourceNames": [run], "verbs": ["patch"]},
            ]);
            let subject =
                json!({"kind": "ServiceAccount", "name": account, "namespace": namespace});
            self.grant(namespace, account, &rules, &subject).await?;
        }
        let spec = json!({"metadata": {"name": pod}, "spec": {"serviceAccountName": account, "automountServiceAccountToken": false,
            "containers": [{"name": "runner", "image": "none"}]}});
        let created =
            objects::create(&Api::<Pod>::namespaced(self.admin.clone(), namespace), spec).await?;
        let uid = created.uid().context("a pod without UID")?;
        let bound = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}, "audiences": []});
        let client = self.token(namespace, account, &bound, Some(ACTOR)).await?;
        Ok(Agent {
            client,
            uid,
            namespace: namespace.into(),
            run: run.into(),
        })
    }

    /// Creates the pod of an attempt of a run and opens the attempt, as the controller does.
    pub(crate) async fn open(&self, namespace: &str, run: &str, number: u32) -> Result<Agent> {
        let pod = format!("{run}-a{number}");
        let agent = self.pod(namespace, &pod, &pod, run).await?;
        let attempt = json!({"number": number, "podName": pod, "podUID": agent.uid, "open": true, "tries": number});
        self.status(namespace, run, &json!({"attempt": attempt}))
            .await?;
        Ok(agent)
    }

    /// A client with a token, requested in the group of kubelets, since no one else gets one of an attempt.
    pub(crate) async fn token(
        &self,
        namespace: &str,
        account: &str,
        spec: &Value,
        agent: Option<&str>,
    ) -> Result<Client> {
        let groups = ["system:nodes", "system:masters"];
        let kubelet = self.access.impersonate("kubelet", &groups).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(kubelet, namespace);
        let request: TokenRequest = serde_json::from_value(json!({"metadata": {}, "spec": spec}))?;
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        self.access
            .client_for_token(&answer.status.context("no token")?.token, agent)
            .await
    }
}

/// CRDs with the names of Burrito's. A cluster has both during a migration, and kubectl prefers Burrito's group, which is first in the
/// alphabet.
fn foreign() -> Value {
    let definitions: Vec<Value> = [
        ("terraformruns", "TerraformRun", ["run", "runs", "tfrun", "tfruns"].as_slice()),
        ("terraformlayers", "TerraformLayer", &["layer", "layers", "tfl", "tfls"]),
        ("terraformrepositories", "TerraformRepository", &["repo", "tfr", "tfrs", "repository", "repositories"]),
    ]
    .iter()
    .map(|(plural, kind, short)| {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{FOREIGN}")},
            "spec": {"group": FOREIGN, "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "shortNames": short},
                "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": schema}]}})
    })
    .collect();
    json!({"apiVersion": "v1", "kind": "List", "items": definitions})
}

/// Renders the chart for a release.
pub(crate) fn rendered<A: AsRef<OsStr>>(release: &str, more: &[A]) -> Result<Vec<u8>> {
    let tools = Toolset::ensure(&["helm"])?;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/pawl");
    let output = Command::new(tools.path("helm")?)
        .args([
            "template",
            release,
            chart,
            "--namespace",
            "pawl-system",
            "--kube-version",
            "1.34.4",
        ])
        .args(more)
        .output()
        .context("cannot run helm")?;
    ensure!(
        output.status.success(),
        "helm template failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// A pod's token, used without the checks that the honest agent makes before its writes.
pub(crate) struct Agent {
    pub(crate) client: Client,
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) run: String,
}

impl Agent {
    /// Patches the status of its run.
    pub(crate) async fn status(&self, status: &Value) -> kube::Result<TerraformRun> {
        objects::merge_status(
            &Api::namespaced(self.client.clone(), &self.namespace),
            &self.run,
            status,
        )
        .await
    }

    /// Adopts an attempt and records its plan.
    pub(crate) async fn plans(&self, attempt: u32) -> Result<()> {
        self.status(&self.adoption(attempt, '0'))
            .await
            .context("adoption")?;
        for phase in ["Init", "Plan"] {
            self.status(&json!({"phase": phase})).await?;
        }
        Ok(())
    }

    /// Claims the plan whose checksum repeats one digit.
    pub(crate) async fn claims(
        &self,
        attempt: u32,
        nonce: char,
        digit: char,
    ) -> kube::Result<TerraformRun> {
        self.status(&self.claim(attempt, nonce, digit)).await
    }

    /// The status patch that adopts an attempt.
    pub(crate) fn adoption(&self, attempt: u32, nonce: char) -> Value {
        json!({"phase": "Setup", "adopted": {"attempt": attempt, "podUID": self.uid, "nonce": nonce.to_string().repeat(32),
            "version": crds::release::VERSION}})
    }

    /// The status patch that claims the plan whose checksum repeats one digit.
    pub(crate) fn claim(&self, attempt: u32, nonce: char, digit: char) -> Value {
        json!({"phase": "Apply", "claim": {"checksum": sum(digit), "attempt": attempt, "podUID": self.uid,
            "nonce": nonce.to_string().repeat(32), "at": "2026-01-01T00:00:00Z"}})
    }
}

/// A user as the subject of a binding.
pub(crate) fn user(name: &str) -> Value {
    json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name})
}

/// A run with an inline source; `spec` is merged into its spec.
pub(crate) fn run(name: &str, spec: &Value) -> Result<TerraformRun> {
    let mut whole = json!({"source": {"inline": {"files": {"main.tf": ""}}}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    Ok(TerraformRun::new(name, serde_json::from_value(whole)?))
}

/// A checksum that repeats one digit.
pub(crate) fn sum(digit: char) -> String {
    format!("sha256:{}", digit.to_string().repeat(64))
}

pub(crate) fn plan(attempt: u32, digit: char) -> Value {
    json!({"checksum": sum(digit), "attempt": attempt, "summary": "+1 ~0 -0", "add": 1, "change": 0, "destroy": 0, "import": 0,
        "replace": 0, "forget": 0, "outputs": 0, "tool": "OpenTofu 1.10.6"})
}

/// Fails unless the API server refused with a message that contains `text`.
pub(crate) fn refused<T>(what: &str, answer: kube::Result<T>, text: &str) -> Result<()> {
    match answer {
        Ok(_) => anyhow::bail!("{what}: was admitted"),
        Err(kube::Error::Api(status)) => {
            ensure!(
                status.message.contains(text),
                "{what}: refused, but with \"{}\" in place of \"{text}\"",
                status.message
            );
            Ok(())
        }
        Err(error) => Err(anyhow::Error::new(error).context(what.to_owned())),
    }
}
