//! Tools and providers on a volume that the runs of a namespace share: an operator's PersistentVolumeClaim, mounted in non-root pods.

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crds::RunResult;
use harness::cluster::{
    chart::Values,
    gobuild::{BUCKETS, IN_PODS, Toolset},
    pki::Pki,
};
use runner_agent::providers::{H1, LOCK_FILE};
use serde_json::{Value, json};
use servers::{
    bucket::{self, Bucket},
    forward::ForwardProxy,
};
use tool_versions::{Digest, Platform};
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::{
    archive,
    stored::{approve_waiting, released},
    suite::{LATER, Scene, Test, holds, with},
};

/// The operator's settings affect the whole cluster.
pub(crate) fn alone() -> Vec<Test> {
    vec![Test::new(
        "caches::claim_proxy_and_bucket_serve_tools_and_providers",
        claim,
    )]
}

const CLAIM: &str = "tools";
const GROUP: u32 = 65532;

const MAIN: &str = r#"
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_static" "it" {}
resource "terraform_data" "code" {
  provisioner "local-exec" {
    command = <<-EOT
      find /pawl/cache -type d -exec touch '{}/made' ';' 2> /dev/null
      echo "code made $(find /pawl/cache -name made | wc -l) files among $(find /pawl/cache -name 'terraform-provider-*' | wc -l)"
    EOT
  }
}
"#;

async fn claim(scene: Scene) -> Result<()> {
    let dir = volume(&scene)?;
    let cluster = &scene.suite.cluster;
    // Downloads use a proxy and trust the mirror's certificate; stored data is in a bucket behind TLS.
    let (host, files) = (IpAddr::V4(cluster.host()), tempfile::tempdir()?);
    let authority = Pki::bare(files.path(), "pawl-test-bucket")?;
    let bucket = Bucket::start(
        Toolset::ensure(BUCKETS)?.path("versitygw")?,
        &authority,
        host,
    )?;
    let proxy = ForwardProxy::start(SocketAddr::new(host, 0)).await?;
    let mut values = values(&scene, &bucket, &authority.authority(), &proxy)?;
    // The empty bucket takes the place of the cluster's store. The next installation adopts that store again.
    values.insert("datastore.adopt".to_owned(), cluster.expected_store()?);
    let result = async {
        cluster.install(&values).await?;
        kept(&scene, &dir).await?;
        elsewhere(&scene, &bucket, &proxy).await
    }
    .await;
    cluster.install(&scene.suite.values).await?;
    result
}

/// Creates a directory owned by root, like a volume, and a claim for it.
fn volume(scene: &Scene) -> Result<PathBuf> {
    let dir = scene.suite.releases.cache.with_file_name("volume");
    fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let (size, namespace) = (json!({"storage": "1Gi"}), &scene.namespace);
    let anywhere = json!([{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]);
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace}, "spec": {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
            // Of the volume types without a driver, the one for which the kubelet sets the group.
            "local": {"path": dir}, "nodeAffinity": {"required": {"nodeSelectorTerms": anywhere}},
            "claimRef": {"namespace": namespace, "name": CLAIM}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM, "namespace": namespace}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": namespace, "resources": {"requests": size}}},
    ]});
    let file = dir.with_extension("json");
    fs::write(&file, objects.to_string())?;
    scene.kubectl(&["apply", "-f", &file.display().to_string()])?;
    Ok(dir)
}

fn values(scene: &Scene, bucket: &Bucket, authority: &str, proxy: &ForwardProxy) -> Result<Values> {
    let mut values = scene.suite.values.clone();
    let tools = values
        .get_mut("runner.tools")
        .context("the suite says nothing about tools")?;
    let mut said: Value = serde_json::from_str(tools)?;
    said["cache"] = json!({"claimName": CLAIM, "fsGroup": GROUP});
    *tools = said.to_string();
    let env: Value = bucket
        .variables()
        .into_iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let open = scene
        .suite
        .releases
        .open
        .authority()
        .context("the server has no authority")?;
    for (path, value) in [
        ("datastore.store", format!("s3://{}/kept", bucket::NAME)),
        ("datastore.ca", authority.to_owned()),
        ("datastore.env", env.to_string()),
        ("runner.proxy.https", proxy.url()),
        ("runner.ca", open.to_owned()),
    ] {
        values.insert(path.to_owned(), value);
    }
    Ok(values)
}

/// Fetches an artifact through the proxy, from a server that only the operator's authorities vouch for. Another pod restores its plan from
/// the bucket, and a later run reads its state from there.
async fn elsewhere(scene: &Scene, bucket: &Bucket, proxy: &ForwardProxy) -> Result<()> {
    let (url, digest) = archive::published(scene, "net.tar.gz")?;
    let spec = json!({"stack": "net", "backend": null, "source": {"artifact": {"url": url, "digest": digest, "path": "net"}},
        "tool": {"name": "OpenTofu", "version": "1.10.6"}, "approval": {"holdFor": "0s"}});
    scene.create("fetched", spec.clone()).await?;
    let waiting = released(scene, "fetched").await?;
    approve_waiting(scene, &waiting)?;
    scene
        .ends_within("fetched", RunResult::Applied, LATER)
        .await?;
    scene.create("again", spec).await?;
    scene
        .ends_within("again", RunResult::NoChanges, LATER)
        .await?;
    let asked = proxy.asked();
    ensure!(
        asked.iter().any(|target| url.contains(target.as_str())),
        "{url} was not asked for: {asked:?}"
    );
    let host = format!("{}:", scene.suite.cluster.host());
    ensure!(
        asked.iter().all(|target| target.starts_with(&host)),
        "the cluster was asked for: {asked:?}"
    );
    let states = bucket.objects().join("kept/states").join(&scene.namespace);
    ensure!(states.is_dir(), "no state at {}", states.display());
    Ok(())
}

/// A stack with a lock file and a packed provider, which replaces the unreachable registry.
fn stack(folder: &Path, version: &str, provider: &Path) -> Result<()> {
    let (name, program) = (
        format!("terraform-provider-time_v{version}"),
        fs::read(provider)?,
    );
    let plugins = folder.join("terraform.d/plugins/registry.opentofu.org/hashicorp/time");
    fs::create_dir_all(&plugins)?;
    let archive = format!("terraform-provider-time_{version}_{}.zip", Platform::here());
    let mut zip = ZipWriter::new(BufWriter::new(File::create(plugins.join(archive))?));
    zip.start_file(&name, SimpleFileOptions::default().unix_permissions(0o755))?;
    zip.write_all(&program)?;
    zip.finish()?.flush()?;
    let h1 = H1::of([(name.as_str(), Digest::of(&program))]);
    let locked = format!(
        "provider \"registry.opentofu.org/hashicorp/time\" {{\n  version = \"{version}\"\n  hashes  = [\n    \"{h1}\",\n  ]\n}}\n"
    );
    for (path, text) in [
        ("main.tf", MAIN),
        (LOCK_FILE, &locked),
        (".opentofu-version", "1.10.6\n"),
    ] {
        fs::write(folder.join(path), text)?;
    }
    Ok(())
}

async fn kept(scene: &Scene, dir: &Path) -> Result<()> {
    let (tools, provider) = (Toolset::ensure(IN_PODS)?, "terraform-provider-time");
    let (version, folder) = (tools.version(provider)?, tempfile::tempdir()?);
    stack(folder.path(), version, tools.path(provider)?)?;
    let name = scene.path("cached");
    scene
        .suite
        .git
        .create(&name)?
        .commit_folder("main", folder.path())?;
    let spec = json!({"source": {"git": {"url": scene.suite.git.url(&name), "revision": "main"}},
        "approval": {"mode": "Automatic"},
        "runner": {"image": scene.suite.releases.image, "imagePullPolicy": "Never"}});
    let (installed, title) = (
        "OpenTofu 1.10.6 is installed",
        format!("registry.opentofu.org/hashicorp/time {version}"),
    );
    let (kept, served) = (
        format!("pawl: kept in the cache of providers: {title}"),
        format!("pawl: from the cache of providers: {title}"),
    );
    for (run, seen, unseen) in [
        ("first", [installed, kept.as_str()], ["", served.as_str()]),
        ("second", ["", &served], [installed, &kept]),
    ] {
        // Each has a state of its own, so they are two stacks.
        scene
            .create(run, with(spec.clone(), json!({"stack": run})))
            .await?;
        scene.ends_within(run, RunResult::Applied, LATER).await?;
        let log = scene.log(run).await?;
        for part in seen {
            holds(&log, part)?;
        }
        for part in unseen.into_iter().filter(|part| !part.is_empty()) {
            ensure!(!log.contains(part), "{run} has `{part}`:\n{log}");
        }
        // The first run also had the provider in its own folder and in the cache, which stores it before code of the stack runs.
        holds(&log, "code made 0 files among 1")?;
    }
    let group = |path: &str| {
        fs::metadata(dir.join(path))
            .with_context(|| format!("there is no {path}"))
            .map(|meta| meta.gid())
    };
    for path in [
        "tools/opentofu/1.10.6",
        &format!("providers/registry.opentofu.org/hashicorp/time/{version}"),
    ] {
        ensure!(group(path)? == GROUP, "{path} is of group {}", group(path)?);
    }
    Ok(())
}
