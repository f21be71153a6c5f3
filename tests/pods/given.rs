//! In real pods, what the guide shows of private repositories and registries, replaced objects, refresh-only runs, and a run's
//! inputs and outputs.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult, TerraformRunStatus};
use harness::{
    cluster::{
        gobuild::{IN_PODS, Toolset},
        pki::Pki,
    },
    guide,
};
use serde_json::{Value, json};
use servers::{auth::Access, git::GitServer, registry::Registry};

use crate::suite::{LATER, SOON, Scene, Test, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "given::private_sources_modules_and_providers_are_fetched",
            private,
        ),
        Test::new(
            "given::stack_is_replaced_refreshed_read_and_destroyed",
            life,
        ),
        Test::new(
            "given::terraform_has_the_same_inputs_hooks_and_outputs",
            terraform,
        ),
    ]
}

/// The repository in the guide.
const REPOSITORY: &str = "https://git.example.com/platform/stacks.git";

/// Creates a run of the guide under a name, with a spec merged over it and texts replaced.
async fn create(
    scene: &Scene,
    file: &str,
    name: &str,
    texts: &[(&str, &str)],
    more: Value,
) -> Result<()> {
    let text = texts.iter().fold(guide::block(file)?, |text, (from, to)| {
        text.replace(from, to)
    });
    let manifest: Value = serde_saphyr::from_str(&text)?;
    scene
        .create_bare(name, with(manifest["spec"].clone(), more))
        .await
        .map(drop)
}

/// An HTTPS repository with its own authority and a password, modules from git and from a registry, a provider from a mirror, each with its
/// own token, and certificates of an unknown authority.
async fn private(scene: Scene) -> Result<()> {
    let (ip, dir) = (scene.suite.cluster.host(), tempfile::tempdir()?);
    let address = ip.to_string();
    let git = GitServer::start_tls(SocketAddr::new(ip.into(), 0), &dir.path().join("git")).await?;
    let pki = Pki::bare(dir.path(), "pawl-test-private")?;
    let modules =
        Registry::start_on(&address, &pki, Access::Bearer("modules-token".into())).await?;
    let mirror = Registry::start_on(&address, &pki, Access::Bearer("mirror-token".into())).await?;
    let archives = Registry::start_on(&address, &pki, Access::Public).await?;
    modules.publish_code(
        "acme/part/local",
        "resource \"terraform_data\" \"part\" {}\n",
        &archives,
    )?;
    let tools = Toolset::ensure(IN_PODS)?;
    let provider = "terraform-provider-time";
    mirror.mirror(
        "registry.opentofu.org",
        "time",
        (tools.version(provider)?, tools.path(provider)?),
        &archives,
    )?;

    let part =
        "variable \"zone\" {}\nresource \"terraform_data\" \"zone\" {\n  input = var.zone\n}\n";
    git.create("platform/stacks")?
        .commit("main", &[("network/main.tf", part)])?;
    git.set_access("platform/stacks", Access::basic("pawl", "glpat-example"));
    git.create("platform/module")?.commit(
        "main",
        &[("main.tf", "resource \"terraform_data\" \"far\" {}\n")],
    )?;
    git.set_access("platform/module", Access::Bearer("module-t0ken".into()));
    let host = git.addr().to_string();
    let authority = git.authority().context("the server has no authority")?;
    scene.config_map("settings", &[("zone", "north")])?;
    scene.secret(
        "git",
        &[
            ("username", "pawl"),
            ("password", "glpat-example"),
            ("ca.crt", authority),
        ],
    )?;
    create(
        &scene,
        "private.yaml",
        "private",
        &[("git.example.com", &host)],
        json!({}),
    )
    .await?;

    // Its source is public, but `init` needs credentials.
    let main = format!(
        "terraform {{\n  required_providers {{\n    time = {{ source = \"hashicorp/time\" }}\n  }}\n}}\nresource \"time_static\" \"it\" {{}}\n\
         module \"part\" {{\n  source  = \"{}/acme/part/local\"\n  version = \"1.0.0\"\n}}\n\
         module \"far\" {{\n  source = \"git::https://{host}/platform/module.git\"\n}}\n",
        modules.host()
    );
    let (url, _) = scene.repository("stacks", &[("network/main.tf", &main)])?;
    scene.secret(
        "module",
        &[("bearerToken", "module-t0ken"), ("ca.crt", authority)],
    )?;
    scene.secret("modules", &[("token", "modules-token")])?;
    let config = format!(
        "credentials \"{}\" {{\n  token = \"mirror-token\"\n}}\nprovider_installation {{\n  network_mirror {{\n    url = \"{}\"\n  }}\n}}\n",
        mirror.host(),
        mirror.url("/p/")
    );
    scene.secret("tools", &[("terraformrc", &config)])?;
    scene.config_map("authorities", &[("ca.crt", &pki.authority())])?;
    let more = json!({
        "tool": {"name": "OpenTofu", "version": "1.10.6"},
        "credentials": {"git": [{"host": host, "secretRef": {"name": "module"}}]},
        // The tool trusts these authorities instead of the image's.
        "files": [{"path": "authorities.crt", "configMapKeyRef": {"name": "authorities", "key": "ca.crt"}}],
        "env": [{"name": "SSL_CERT_FILE", "value": "/pawl/work/home/authorities.crt"}],
    });
    create(
        &scene,
        "registries.yaml",
        "modules",
        &[
            (REPOSITORY, &url),
            ("registry.example.com", &modules.host()),
        ],
        more,
    )
    .await?;
    for (name, summary) in [("private", "+1 ~0 -0"), ("modules", "+3 ~0 -0")] {
        let plan = scene
            .phase(name, Phase::AwaitingApproval)
            .await?
            .plan
            .context("no plan")?;
        ensure!(plan.summary.starts_with(summary), "{name}: {plan:?}");
    }
    for (server, token) in [
        (&modules, Some("Bearer modules-token")),
        (&mirror, Some("Bearer mirror-token")),
        (&archives, None),
    ] {
        let asked = server.asked();
        let asked: Vec<_> = asked
            .iter()
            .filter(|(path, _)| !path.starts_with("/.well-known/"))
            .collect();
        ensure!(
            !asked.is_empty() && asked.iter().all(|(_, sent)| sent.as_deref() == token),
            "{token:?}: {asked:?}"
        );
    }
    let shown = scene.kubectl(&["get", "tfrun", "-o", "yaml"])?;
    ensure!(
        !["modules-token", "mirror-token", "module-t0ken"]
            .iter()
            .any(|token| shown.contains(token)),
        "{shown}"
    );
    Ok(())
}

const NETWORK: &str = "variable \"of_map\" {}\nresource \"terraform_data\" \"vpc\" {\n  input = \"${var.of_map} ${file(\"conf/zone\")}\"\n}\n\
    output \"vpc_id\" {\n  value = terraform_data.vpc.output\n}\n";

/// Whether the tool refreshed the existing resources, according to the log of an applied run.
async fn looked(scene: &Scene, name: &str) -> Result<bool> {
    Ok(scene
        .log(name)
        .await?
        .contains("terraform_data.vpc: Refreshing state"))
}

fn published(scene: &Scene) -> Result<String> {
    scene.kubectl(&[
        "get",
        "configmap",
        "network",
        "-o",
        "jsonpath={.data.vpc_id}",
    ])
}

async fn life(scene: Scene) -> Result<()> {
    let (url, _) = scene.repository(
        "stacks",
        &[
            ("network/main.tf", NETWORK),
            ("network/conf/zone", "of the source"),
        ],
    )?;
    scene.config_map("settings", &[("of_map", "mapped"), ("no.name", "left out")])?;
    scene.config_map("zones", &[("zone", "of a map")])?;
    // All runs of the stack have the same inputs.
    let given = |more: Value| {
        let given = json!({
            "tool": {"name": "OpenTofu", "version": "1.10.6"},
            "envFrom": [{"prefix": "TF_VAR_", "configMapRef": {"name": "settings"}}],
            "files": [{"path": "conf/zone", "in": "Source", "overwrite": true, "configMapKeyRef": {"name": "zones", "key": "zone"}}],
            "outputs": {"configMap": {"name": "network"}, "onDestroy": "Keep"},
        });
        with(given, more)
    };
    let texts = [(REPOSITORY, url.as_str())];
    let plain = json!({"source": {"git": {"url": url, "revision": "main", "path": "network"}}, "stack": "network",
        "approval": {"mode": "Automatic"}, "backend": null});
    scene.create("made", given(plain)).await?;
    scene.ends_within("made", RunResult::Applied, LATER).await?;
    ensure!(
        published(&scene)? == "mapped of a map",
        "{}",
        published(&scene)?
    );

    // Automatic, unless something is replaced.
    create(&scene, "replace.yaml", "replaces", &texts, given(json!({}))).await?;
    let plan = scene
        .phase("replaces", Phase::AwaitingApproval)
        .await?
        .plan
        .context("no plan")?;
    ensure!(
        plan.counts.replace == 1 && plan.changes.len() == 2,
        "{plan:?}"
    );
    scene.approve("replaces").await?;
    scene
        .ends_within("replaces", RunResult::Applied, LATER)
        .await?;
    ensure!(!looked(&scene, "replaces").await?, "refresh: false");

    // Nothing has changed. In parallel another stack reads this one's output.
    create(
        &scene,
        "look.yaml",
        "looks",
        &texts,
        given(json!({"outputs": null})),
    )
    .await?;
    let takes = "resource \"terraform_data\" \"a\" {\n  provisioner \"local-exec\" {\n    command = \"test \\\"$VPC\\\" = 'mapped of a map'\"\n  }\n}\n";
    let from =
        json!([{"name": "VPC", "valueFrom": {"outputOf": {"stack": "network", "name": "vpc_id"}}}]);
    scene
        .real(
            "takes",
            takes,
            json!({"env": from, "approval": {"mode": "Automatic"}}),
        )
        .await?;
    let status = scene
        .ends_within("looks", RunResult::NoChanges, LATER)
        .await?;
    ensure!(
        status.claim.is_none() && looked(&scene, "looks").await?,
        "{status:?}"
    );
    scene
        .ends_within("takes", RunResult::Applied, LATER)
        .await?;

    let destroys =
        json!({"operation": "Destroy", "approval": {"mode": "Automatic"}, "variables": []});
    create(&scene, "destroy.yaml", "gone", &texts, given(destroys)).await?;
    scene
        .ends_within("gone", RunResult::Destroyed, LATER)
        .await?;
    ensure!(
        published(&scene)? == "mapped of a map",
        "what is kept is gone"
    );
    Ok(())
}

/// Hooks, inputs and outputs work the same with both tools.
async fn terraform(scene: Scene) -> Result<()> {
    let main = "variable \"zone\" {}\nvariable \"word\" {\n  sensitive = true\n}\nvariable \"size\" {}\nresource \"terraform_data\" \"a\" {\n  \
        input = \"${var.zone} ${var.size}\"\n  provisioner \"local-exec\" {\n    command = \"test \\\"$LATE $(cat $HOME/.example)\\\" = 'evening of-home'\"\n  }\n}\n\
        output \"said\" {\n  value = terraform_data.a.output\n}\noutput \"word\" {\n  value     = var.word\n  sensitive = true\n}\n";
    scene.config_map("vars", &[("all.tfvars", "size = 3\n")])?;
    scene.secret(
        "words",
        &[("TF_VAR_word", "correct-horse"), ("home", "of-home")],
    )?;
    let spec = json!({
        "source": {"inline": {"files": {"main.tf": main}}},
        "tool": {"name": "Terraform"},
        "approval": {"mode": "Automatic"},
        "variableFiles": [{"configMapKeyRef": {"name": "vars", "key": "all.tfvars"}}],
        "env": [{"name": "TF_VAR_word", "valueFrom": {"secretKeyRef": {"name": "words", "key": "TF_VAR_word"}}}],
        "files": [{"path": ".example", "secretKeyRef": {"name": "words", "key": "home"}}],
        "arguments": {"plan": ["-compact-warnings"]},
        "hooks": [
            {"name": "zone", "when": "BeforeInit", "inline": "echo TF_VAR_zone=north > $PAWL_HOOK_VALUES"},
            {"name": "shown", "when": "AfterPlan", "inline": "terraform show -no-color \"$PAWL_PLAN_FILE\" | grep -q terraform_data.a"},
            {"name": "late", "when": "BeforeApply", "inline": "echo LATE=evening > $PAWL_HOOK_VALUES"},
            {"name": "said", "when": "AfterApply", "inline": "echo $PAWL_RESULT by terraform"},
        ],
        "outputs": {"configMap": {"name": "said"}, "secret": {"name": "word", "items": [{"output": "word"}]}, "status": true},
    });
    scene.create("a", spec).await?;
    let status: TerraformRunStatus = scene.ends_within("a", RunResult::Applied, SOON).await?;
    ensure!(status.failed_hook.is_none(), "{status:?}");
    let plan = status.plan.context("no plan")?;
    ensure!(plan.tool.starts_with("Terraform "), "{plan:?}");
    // The state is with a backend, so the tool reads them.
    let outputs = status.outputs.context("no outputs")?;
    // An output with a value that a hook handed over is named and not shown.
    ensure!(
        !outputs.values.contains_key("said")
            && outputs.message.contains("hold a secret: said")
            && outputs.message.contains("Secret word (1 key)"),
        "{outputs:?}"
    );
    holds(&scene.log("a").await?, "Applied by terraform")
}
