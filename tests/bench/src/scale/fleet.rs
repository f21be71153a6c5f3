//! Repositories, their layers, and runs that ended long ago.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::{TerraformLayer, TerraformRepository, TerraformRun, names};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::lab::{self, Lab};
use harness::wait;
use servers::repo::Repo;

/// Number of concurrent requests of this program.
const AT_ONCE: usize = 24;
/// Number of namespaces over which repositories are spread.
const NAMESPACES: usize = 20;
/// Time after which a changed CRD or policy is in force.
pub(crate) const IN_FORCE: Duration = Duration::from_secs(3);
/// Page size of a list.
const PAGE: u32 = 500;

/// A repository and its number of layers.
struct Followed {
    repo: Repo,
    namespace: String,
    name: String,
    layers: usize,
}

#[derive(Default)]
pub(super) struct Fleet {
    repositories: Vec<Followed>,
    layers: usize,
    /// Makes each commit different.
    commits: usize,
}

impl Fleet {
    pub(super) fn repositories(&self) -> usize {
        self.repositories.len()
    }

    pub(super) fn layers(&self) -> usize {
        self.layers
    }

    /// Adds repositories and layers up to these numbers.
    pub(super) async fn grow(
        &mut self,
        lab: &Lab,
        repositories: usize,
        layers: usize,
        interval: &str,
    ) -> Result<()> {
        if self.repositories.is_empty() {
            for number in 0..NAMESPACES {
                let namespace: Namespace =
                    serde_json::from_value(json!({"metadata": {"name": namespace(number)}}))?;
                Api::all(lab.admin.clone())
                    .create(&PostParams::default(), &namespace)
                    .await
                    .context("namespaces of teams")?;
            }
        }
        let (before, added) = (self.repositories.len(), layers.saturating_sub(self.layers));
        let count = repositories.saturating_sub(before).min(added);
        let of = |number: usize| added / count.max(1) + usize::from(number < added % count.max(1));
        for number in 0..count {
            self.repositories.push(tokio::task::block_in_place(|| {
                made(lab, before + number, of(number))
            })?);
        }
        let new = &self.repositories[before..];
        all_of(new.iter().map(|followed| follow(lab, followed, interval))).await?;
        let layers = new
            .iter()
            .flat_map(|followed| (0..followed.layers).map(move |number| (followed, number)));
        all_of(layers.map(|(followed, number)| layer(lab, followed, number))).await?;
        self.layers += new.iter().map(|followed| followed.layers).sum::<usize>();
        Ok(())
    }

    /// Commits to repositories until `layers`, or all, are affected, and requests the repositories. Returns the number of affected layers.
    pub(super) async fn commit(&mut self, lab: &Lab, layers: usize) -> Result<usize> {
        self.commits += 1;
        let mut concerned = 0;
        let is_chosen = |followed: &&Followed| {
            concerned < layers && {
                concerned += followed.layers;
                true
            }
        };
        let chosen: Vec<&Followed> = self.repositories.iter().take_while(is_chosen).collect();
        for followed in &chosen {
            tokio::task::block_in_place(|| push(&followed.repo, followed.layers, self.commits))?;
        }
        let request = Patch::Merge(
            json!({"metadata": {"annotations": {names::RECONCILE: format!("commit {}", self.commits)}}}),
        );
        for followed in &chosen {
            let api: Api<TerraformRepository> =
                Api::namespaced(lab.admin.clone(), &followed.namespace);
            api.patch(&followed.name, &PatchParams::default(), &request)
                .await
                .context("a request")?;
        }
        Ok(concerned)
    }
}

/// Sends requests, some at once.
pub(crate) async fn all_of(
    requests: impl Iterator<Item = impl Future<Output = Result<()>>>,
) -> Result<()> {
    stream::iter(requests)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// The namespace of a team.
pub(super) fn namespace(number: usize) -> String {
    format!("team-{:02}", number % NAMESPACES)
}

fn push(repo: &Repo, layers: usize, commit: usize) -> Result<()> {
    let text = format!("# commit {commit}\nterraform {{\n  backend \"http\" {{}}\n}}\n");
    let files: Vec<(String, String)> = (0..layers)
        .map(|number| (format!("live/{number:03}/main.tf"), text.clone()))
        .collect();
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    repo.commit("main", &files).map(drop)
}

fn made(lab: &Lab, number: usize, layers: usize) -> Result<Followed> {
    let name = format!("repository-{number:04}");
    let repo = lab.git.create(&name)?;
    push(&repo, layers, 0)?;
    Ok(Followed {
        repo,
        namespace: namespace(number),
        name,
        layers,
    })
}

async fn follow(lab: &Lab, followed: &Followed, interval: &str) -> Result<()> {
    let Followed {
        namespace, name, ..
    } = followed;
    let repository = json!({"metadata": {"name": name}, "spec": {"url": lab.git.url(name), "interval": interval}});
    let api: Api<TerraformRepository> = Api::namespaced(lab.admin.clone(), namespace);
    api.create(&PostParams::default(), &serde_json::from_value(repository)?)
        .await
        .with_context(|| name.clone())
        .map(drop)
}

async fn layer(lab: &Lab, followed: &Followed, number: usize) -> Result<()> {
    let name = format!("{}-stack-{number:03}", followed.name);
    let spec = json!({"repository": {"name": followed.name}, "path": format!("live/{number:03}")});
    let layer = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
    let api: Api<TerraformLayer> = Api::namespaced(lab.admin.clone(), &followed.namespace);
    api.create(&PostParams::default(), &layer)
        .await
        .context(name)
        .map(drop)
}

pub(super) async fn runs(admin: &Client) -> Result<usize> {
    let first = Api::<TerraformRun>::all(admin.clone())
        .list_metadata(&ListParams::default().limit(1))
        .await?;
    let more = first.metadata.remaining_item_count.unwrap_or(0);
    Ok(first.items.len() + usize::try_from(more)?)
}

/// All runs, page by page.
async fn all(admin: &Client) -> Result<Vec<TerraformRun>> {
    let (api, mut found, mut params) = (
        Api::<TerraformRun>::all(admin.clone()),
        Vec::new(),
        ListParams::default().limit(PAGE),
    );
    loop {
        let page = api.list(&params).await.context("cannot list runs")?;
        found.extend(page.items);
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => return Ok(found),
        }
    }
}

/// Ends all open runs like the run `like`, and stores copies of ended runs of layers up to `count`. Returns the number of runs.
///
/// The statuses are written directly, without a controller and with a CRD without its rules, which would require every phase of each: real
/// runs would take much longer.
pub(super) async fn store(lab: &Lab, like: Option<(&str, &str)>, count: usize) -> Result<usize> {
    without_rules(lab).await?;
    let done = stored(lab, like, count).await;
    with_rules(lab).await?;
    done
}

async fn stored(lab: &Lab, like: Option<(&str, &str)>, count: usize) -> Result<usize> {
    let mut there = all(&lab.admin).await?;
    if let Some((namespace, name)) = like {
        let pattern = there
            .iter()
            .find(|run| run.namespace().as_deref() == Some(namespace) && run.name_any() == name);
        let pattern = pattern
            .and_then(|run| run.status.clone())
            .context("the run that others end like is gone")?;
        let open: Vec<TerraformRun> = there.iter().filter(|run| is_open(run)).cloned().collect();
        all_of(open.iter().map(|run| ends(lab, run, &pattern))).await?;
        there = all(&lab.admin).await?;
    }
    let missing = count.saturating_sub(there.len());
    let is_original =
        |run: &&TerraformRun| !is_open(run) && run.labels().contains_key(names::LABEL_LAYER);
    let originals: Vec<&TerraformRun> = there.iter().filter(is_original).collect();
    ensure!(
        missing == 0 || !originals.is_empty(),
        "there is no ended run to copy"
    );
    let numbered = originals.iter().cycle().zip(there.len()..).take(missing);
    all_of(numbered.map(|(run, number)| copy(lab, run, number))).await?;
    runs(&lab.admin).await
}

fn is_open(run: &TerraformRun) -> bool {
    !run.status
        .as_ref()
        .is_some_and(crds::TerraformRunStatus::is_terminal)
}

/// The status of a run that has ended like another.
fn status_like(run: &TerraformRun, pattern: &crds::TerraformRunStatus) -> Result<Value> {
    let mut status = pattern.clone();
    if let Some(plan) = &mut status.plan {
        let namespace = run.namespace().unwrap_or_default();
        plan.state_key = crds::state_key::expected(&namespace, &run.name_any(), &run.spec, true);
    }
    serde_json::to_value(status).context("a status that is none")
}

async fn ends(lab: &Lab, run: &TerraformRun, pattern: &crds::TerraformRunStatus) -> Result<()> {
    let mut status = status_like(run, pattern)?;
    status["nextStep"] = Value::Null;
    write(lab, run, &status).await
}

/// Writes the attempt first: a plan without an open attempt is not admitted.
async fn write(lab: &Lab, run: &TerraformRun, status: &Value) -> Result<()> {
    let api: Api<TerraformRun> =
        Api::namespaced(lab.admin.clone(), &run.namespace().unwrap_or_default());
    for part in [&json!({"attempt": status["attempt"]}), status] {
        let patch = Patch::Merge(json!({"status": part}));
        api.patch_status(&run.name_any(), &PatchParams::default(), &patch)
            .await
            .with_context(|| run.name_any())?;
    }
    Ok(())
}

async fn copy(lab: &Lab, run: &TerraformRun, number: usize) -> Result<()> {
    let api: Api<TerraformRun> =
        Api::namespaced(lab.admin.clone(), &run.namespace().unwrap_or_default());
    let mut metadata = json!({"labels": run.labels(), "ownerReferences": run.owner_references(), "finalizers": run.finalizers()});
    metadata["annotations"] = serde_json::to_value(run.annotations())?;
    let name = run.name_any();
    let end = name
        .char_indices()
        .nth(crds::names::MAX_RUN_NAME - 6)
        .map_or(name.len(), |(end, _)| end);
    metadata["name"] = format!("{}-{number:05}", &name[..end]).into();
    let spec = serde_json::to_value(&run.spec)?;
    let new: TerraformRun = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?;
    let made = api
        .create(&PostParams::default(), &new)
        .await
        .with_context(|| format!("a copy of {name}"))?;
    let status = run
        .status
        .as_ref()
        .context("it has ended without a status")?;
    write(lab, &made, &status_like(&made, status)?).await
}

/// Removes the rules at the root from the CRD.
async fn without_rules(lab: &Lab) -> Result<()> {
    let patch = r#"[{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations"}]"#;
    let arguments = [
        "patch",
        "crd",
        "terraformruns.pawl.run",
        "--type=json",
        "-p",
        patch,
    ];
    tokio::task::block_in_place(|| lab.plane.kubectl(&arguments))?;
    tokio::time::sleep(IN_FORCE).await;
    Ok(())
}

/// Restores them.
async fn with_rules(lab: &Lab) -> Result<()> {
    let file = xtask::root().join("charts/pawl/files/crds/terraformruns.yaml");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    tokio::task::block_in_place(|| lab::apply(&lab.plane, &text))?;
    tokio::time::sleep(IN_FORCE).await;
    Ok(())
}

/// Creates a run as a person, and waits until it has an open attempt.
pub(super) async fn person(admin: &Client, name: &str) -> Result<Duration> {
    let api: Api<TerraformRun> = Api::namespaced(admin.clone(), &namespace(0));
    let spec = json!({"operation": "Plan", "source": {"inline": {"files": {"main.tf": ""}}}});
    let begun = std::time::Instant::now();
    let run = TerraformRun::new(name, serde_json::from_value(spec)?);
    api.create(&PostParams::default(), &run)
        .await
        .context("a person's run")?;
    let has_begun = |run: &TerraformRun| {
        run.status
            .as_ref()
            .is_some_and(|status| status.attempt.is_some())
    };
    wait::object(&api, name, "begun", Duration::from_secs(300), has_begun).await?;
    Ok(begun.elapsed())
}
