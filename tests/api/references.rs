//! The writer of a repository has the right to each object that Pawl reads for it, or that its layers get by its defaults.

use anyhow::{Context as _, Result, ensure};
use crds::{names, references::IN_DEFAULTS};
use harness::guide;
use serde_json::{Value, json};

use crate::{
    scene::Scene,
    world::{World, tests, user},
};

tests! {
    Guarded: repository_names_only_secrets_that_its_writer_may_read,
    Guarded: defaults_name_only_what_their_writer_may_reach,
}

const SECRET: &str = "needs the verb get on it";
const OBJECTS: &str = "needs the verb get on them";

/// `host` has the role of the chart and no other right. `grace` may read Secret `infra-git` as well, as in the guide, and ConfigMap `map`. `eve`
/// may read all Secrets and ConfigMaps, use all ServiceAccounts, and create runs.
async fn people(world: World) -> Result<Scene> {
    let mut scene = Scene::new(world, &[]).await?;
    let block = guide::block("bind repository admin")?;
    scene
        .world
        .paste(&block.replace("-n prod", &format!("-n {}", scene.namespace)))?;
    let map = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["map"], "verbs": ["get"]}]);
    let all = json!([
        {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["use"]},
        {"apiGroups": ["pawl.run"], "resources": ["terraformruns"], "verbs": ["create"]}]);
    for (role, rules, who) in [("map", map, "grace"), ("all", all, "eve")] {
        scene
            .world
            .grant(&scene.namespace, role, &rules, &user(who))
            .await?;
    }
    for who in ["grace", "eve", "host"] {
        scene.person(who, "pawl-repository-admin").await?;
    }
    Ok(scene)
}

async fn repository_names_only_secrets_that_its_writer_may_read(world: World) -> Result<()> {
    let scene = people(world).await?;
    let secret = |name: &str| json!({"secretRef": {"name": name}});
    let hook = |name: &str| json!({"webhook": secret(name)});
    let rows = json!([
        ["Secret", "host", {"create": {"spec": secret("infra-git")}}, SECRET],
        ["Secret", "grace", {"create": {"spec": secret("db")}}, "naming the Secret db in spec.secretRef"],
        ["applied", "host", {"apply": {"spec": {"url": "https://h/r.git", "secretRef": {"name": "db"}}}}, SECRET],
        ["webhook", "host", {"create": {"spec": hook("infra-git")}}, SECRET],
        ["webhook", "grace", {"create": {"spec": hook("db")}}, "naming the Secret db"],
        ["none", "host", {"create": {}}, ""],
        ["its URL", "host", {"merge": {"spec": {"url": "https://elsewhere.example.com/r.git"}}}, ""],
        ["Secret", "host", {"merge": {"spec": secret("db")}}, SECRET],
        ["webhook", "host", {"merge": {"spec": hook("db")}}, SECRET],
        ["Secret and webhook", "grace", {"merge": {"spec": {"secretRef": {"name": "infra-git"}, "webhook": secret("infra-git")}}}, ""],
        ["another Secret", "host", {"merge": {"spec": secret("db")}}, SECRET],
        ["another Secret", "grace", {"merge": {"spec": secret("db")}}, SECRET],
        ["another hook", "grace", {"merge": {"spec": hook("db")}}, SECRET],
        ["another URL", "host", {"merge": {"spec": {"url": "https://elsewhere.example.com/s.git"}}}, SECRET],
        ["another scheme", "host", {"merge": {"spec": {"url": "http://elsewhere.example.com/r.git"}}}, SECRET],
        ["another port", "host", {"merge": {"spec": {"url": "https://elsewhere.example.com:1/r.git"}}}, SECRET],
        ["URL, webhook removed", "host", {"merge": {"spec": {"url": "https://h/r.git", "webhook": null}}}, SECRET],
        ["another URL", "grace", {"merge": {"spec": {"url": "https://git.example.com/r.git"}}}, ""],
        ["times and bounds", "host", {"merge": {"spec": {"interval": "1h", "suspend": true, "maxConcurrentRuns": 3}}}, ""],
        ["namespaces", "host", {"merge": {"spec": {"allowedNamespaces": ["other"]}}}, ""],
        ["defaults", "host", {"merge": {"spec": {"defaults": {"tool": {"name": "OpenTofu"}}}}}, ""],
        ["a sync", "host", {"annotate": {names::RECONCILE: "now"}}, ""],
        ["no webhook", "host", {"merge": {"spec": {"webhook": null}}}, ""],
        ["no Secret", "host", {"merge": {"spec": {"secretRef": null}}}, ""],
        ["no Secret, another URL", "host", {"merge": {"spec": {"url": "https://h/r.git"}}}, ""],
        ["all Secrets", "eve", {"merge": {"spec": secret("db")}}, ""],
        ["deletion", "host", {"delete": null}, ""],
        ["again", "host", {"create": {"spec": secret("db")}}, SECRET],
    ]);
    scene.rows("repository/infra", rows).await
}

/// Defaults that name something, by the field of [`IN_DEFAULTS`], and the refusal of a writer without the right.
fn naming() -> Vec<(&'static str, Value, &'static str)> {
    let key = |name: &str| json!({"name": name, "key": "k"});
    let from = |from: Value| json!({"variables": [{"name": "v", "valueFrom": from}]});
    let [runs, uses] = ["the verb create on terraformruns", "the verb use on"];
    let mut all = vec![
        (
            "credentials",
            json!({"credentials": {"git": [{"host": "h", "secretRef": {"name": "db"}}]}}),
            OBJECTS,
        ),
        (
            "credentials",
            json!({"credentials": {"registries": [{"host": "h", "secretKeyRef": key("db")}]}}),
            OBJECTS,
        ),
        (
            "credentials",
            json!({"credentials": {"cliConfig": {"secretKeyRef": key("db")}}}),
            OBJECTS,
        ),
        (
            "files",
            json!({"files": [{"path": "a", "secretKeyRef": key("db")}]}),
            OBJECTS,
        ),
        (
            "files",
            json!({"files": [{"path": "a", "configMapKeyRef": key("cm")}]}),
            OBJECTS,
        ),
        (
            "runner.imagePullSecrets",
            json!({"runner": {"imagePullSecrets": [{"name": "db"}]}}),
            OBJECTS,
        ),
        ("stack", json!({"stack": "theirs"}), runs),
        ("workspace", json!({"workspace": "theirs"}), runs),
        (
            "runner.labels",
            json!({"runner": {"labels": {"azure.workload.identity/use": "true"}}}),
            uses,
        ),
        (
            "runner.annotations",
            json!({"runner": {"annotations": {"vault.hashicorp.com/agent-inject": "true"}}}),
            uses,
        ),
        (
            "variableFiles[].configMapKeyRef",
            json!({"variableFiles": [{"configMapKeyRef": key("cm")}]}),
            OBJECTS,
        ),
        (
            "variableFiles[].secretKeyRef",
            json!({"variableFiles": [{"secretKeyRef": key("db")}]}),
            OBJECTS,
        ),
        (
            "variables[].valueFrom",
            from(json!({"secretKeyRef": key("db")})),
            "spec.defaults name secrets/db",
        ),
        (
            "variables[].valueFrom",
            from(json!({"configMapKeyRef": key("cm")})),
            "spec.defaults name configmaps/cm",
        ),
        (
            "variables[].valueFrom",
            from(json!({"outputOf": {"stack": "net", "name": "id"}})),
            runs,
        ),
    ];
    let id = |last: u8| format!("00000000-0000-4000-8000-00000000000{last}");
    let provider = "projects/1/locations/global/workloadIdentityPools/p/providers/k";
    for identity in [
        json!({"aws": {"roleArn": "arn:aws:iam::111122223333:role/r"}}),
        json!({"azure": {"clientId": id(1), "tenantId": id(2)}}),
        json!({"gcp": {"workloadIdentityProvider": provider}}),
        json!({"vault": {"address": "https://vault.example.com"}}),
    ] {
        all.push(("credentials", json!({"credentials": identity}), uses));
    }
    all
}

async fn defaults_name_only_what_their_writer_may_reach(world: World) -> Result<()> {
    let scene = people(world).await?;
    let tries = naming();
    for field in IN_DEFAULTS {
        ensure!(
            tries.iter().any(|(of, ..)| *of == field),
            "no try of {field}"
        );
    }
    let rows = json!([["plain", "host", {"create": {}}, ""]]);
    scene.rows("repository/plain", rows).await?;
    for (n, (field, defaults, message)) in tries.iter().enumerate() {
        let with = json!({"spec": {"defaults": defaults}});
        let rows = json!([["set", "host", {"merge": with}, message]]);
        scene.rows("repository/plain", rows).await.context(*field)?;
        let rows = json!([
            ["creation", "host", {"create": with}, message],
            ["creation", "grace", {"create": with}, message],
            ["creation", "eve", {"create": with}, ""],
            ["another URL", "host", {"merge": {"spec": {"url": "https://elsewhere.example.com/r.git"}}}, message],
            ["values", "host", {"merge": {"spec": {"defaults": {"parallelism": 3, "runner": {"nodeSelector": {"a": "b"}}}}}}, ""],
            ["times", "host", {"merge": {"spec": {"interval": "1h"}}}, ""],
            ["another URL", "eve", {"merge": {"spec": {"url": "https://elsewhere.example.com/r.git"}}}, ""],
            ["removed", "host", {"merge": {"spec": {"defaults": null}}}, ""],
        ]);
        scene
            .rows(&format!("repository/d{n}"), rows)
            .await
            .context(*field)?;
    }
    // Users who have the right to two objects.
    let file = |secret: &str| json!({"path": secret, "secretKeyRef": {"name": secret, "key": "k"}});
    let variable = |name: &str| json!({"name": "v", "valueFrom": {"configMapKeyRef": {"name": name, "key": "k"}}});
    let named = |files: Value, variables: Value| json!({"spec": {"defaults": {"files": files, "variables": variables}}});
    let git = |host: &str| json!({"spec": {"defaults": {"credentials": {"git": [{"host": host, "secretRef": {"name": "infra-git"}}]}}}});
    let value =
        json!({"name": "v", "value": {"valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}});
    let again = json!({"path": "b", "secretKeyRef": {"name": "infra-git", "key": "k"}});
    let more = "for more than two of them";
    let further = |host: &str, secret: &str| json!({"spec": {"credentials": [{"host": host, "secretRef": {"name": secret}}]}});
    let rows = json!([
        ["credentials", "host", {"create": further("git.example.com/org", "infra-git")}, OBJECTS],
        ["credentials", "grace", {"create": further("git.example.com/org", "infra-git")}, ""],
        ["for another host", "host", {"merge": further("elsewhere.example.com", "infra-git")}, OBJECTS],
        ["another Secret", "grace", {"merge": further("git.example.com", "db")}, OBJECTS],
        ["another URL", "host", {"merge": {"spec": {"url": "https://user@elsewhere.example.com/r.git"}}}, OBJECTS],
        ["no credentials", "host", {"merge": {"spec": {"credentials": null}}}, ""],
        ["deletion", "host", {"delete": null}, ""],
        ["values", "host", {"create": named(json!([]), json!([value]))}, ""],
        ["two", "grace", {"merge": named(json!([file("infra-git"), again]), json!([variable("map")]))}, ""],
        ["one of another", "grace", {"merge": named(json!([file("infra-git"), file("db")]), json!([]))}, OBJECTS],
        ["another of another kind", "grace", {"merge": named(json!([]), json!([variable("infra-git")]))}, OBJECTS],
        ["three", "grace", {"merge": named(json!([file("infra-git"), file("db")]), json!([variable("map")]))}, more],
        ["three", "eve", {"merge": named(json!([file("infra-git"), file("db")]), json!([variable("map")]))}, ""],
        ["fewer", "host", {"merge": named(json!([file("db")]), json!([variable("map")]))}, OBJECTS],
        ["for a host", "grace", {"merge": git("git.example.com")}, OBJECTS],
        ["none of them", "host", {"merge": {"spec": {"defaults": null}}}, ""],
        ["for a host", "grace", {"merge": git("git.example.com")}, ""],
        ["for another host", "host", {"merge": git("elsewhere.example.com")}, OBJECTS],
        ["another backend", "host", {"merge": {"spec": {"defaults": {"backend": {"type": "http", "config": {"address": "https://h"}}}}}}, OBJECTS],
        ["a value", "host", {"merge": {"spec": {"defaults": {"variables": [{"name": "v", "value": 1}]}}}}, ""],
        ["another value", "host", {"merge": {"spec": {"defaults": {"variables": [{"name": "v", "value": 2}]}}}}, ""],
    ]);
    scene.rows("repository/two", rows).await?;
    // Each list at its most.
    let variables: Vec<_> = (0..256).map(|n| json!({"name": format!("v{n}"), "valueFrom": {"secretKeyRef": {"name": format!("s{n}"), "key": "k"}}})).collect();
    let files: Vec<_> = (0..32).map(|n| file(&format!("f{n}"))).collect();
    let most = named(json!(files), json!(variables));
    let rows = json!([
        ["most", "host", {"create": most}, more],
        ["most", "eve", {"create": most}, ""],
    ]);
    scene.rows("repository/most", rows).await
}
