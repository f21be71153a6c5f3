//! Converts tofu-controller's `Terraform`, with Flux's `GitRepository`.

use crds::duration::Span;
use serde_json::{Value, json};

use super::{
    git, hcl, pod,
    read::{Document, Fields, Notes},
    write::{GIT_REF, Made, Tree, number, span},
};

/// Converts Flux's repository. The keys of its Secret are the same.
pub(super) fn repository(mut document: Document, made: &mut Made, notes: &mut Notes) {
    let mut to = Tree::of("TerraformRepository", &document, 253, notes);
    let (namespace, name) = (document.namespace(), document.name());
    let spec = &mut document.spec;
    to.put("spec.url", spec.text("url"));
    to.put("spec.secretRef.name", spec.text("secretRef.name"));
    let interval = span(
        spec.text("interval"),
        "spec.interval",
        (Span::seconds(30), Span::hours(24)),
        notes,
    );
    to.put("spec.interval", interval);
    to.put(
        "spec.suspend",
        spec.flag("suspend").filter(|suspend| *suspend),
    );
    // The ref moves to the layers; until they are created, it is stored here.
    let named = ["ref.commit", "ref.name", "ref.tag", "ref.branch"]
        .map(|kind| spec.text(kind))
        .into_iter()
        .flatten()
        .next();
    let named = named.unwrap_or_else(|| "master".to_owned());
    to.put(
        GIT_REF,
        Some(
            named
                .trim_start_matches("refs/heads/")
                .trim_start_matches("refs/tags/"),
        ),
    );
    document.spec.end(
        &[
            ("ref.semver", "a layer follows a branch or a tag"),
            (
                "verify",
                "the commit is fetched by its id, and no signature of it is checked",
            ),
            (
                "ignore",
                "a layer's runs follow changes of the files that its code uses",
            ),
            ("proxySecretRef", "the chart's values set the proxy"),
            ("timeout", "a check has a fixed timeout"),
        ],
        notes,
    );
    made.repository(&namespace, &name, to);
}

/// Converts a stack.
pub(super) fn terraform(mut document: Document, made: &mut Made, notes: &mut Notes) {
    let mut to = Tree::layer(&document, notes);
    let (own, name) = (document.namespace(), document.name());
    let spec = &mut document.spec;
    if !source(spec, &own, &mut to, made, notes) {
        return;
    }
    let path = git::directory(spec.text("path"));
    to.put("spec.path", path.clone());
    to.put("spec.template.tool.name", Some("OpenTofu"));
    to.put("spec.template.workspace", spec.text("workspace"));
    to.put(
        "spec.suspend",
        spec.flag("suspend").filter(|suspend| *suspend),
    );
    to.put(
        "spec.template.parallelism",
        number(
            spec.number("parallelism").filter(|n| *n > 0),
            "spec.parallelism",
            (1, 256),
            notes,
        ),
    );
    if spec.flag("upgradeOnInit") == Some(true) {
        to.push("spec.template.arguments.init", "-upgrade".into());
    }
    // Pawl always stores the plan and its text.
    drop(spec.text("storeReadablePlan"));
    remediation(spec, &mut to, notes);
    inputs(spec, path.as_deref(), &mut to, notes);
    backend(spec, &name, &own, &mut to, notes);
    if spec.has("backendConfigsFrom") {
        to.wait();
    }
    outputs(spec, &mut to, notes);
    runner(spec, &mut to, notes);
    document.spec.end(
        &[
            ("backendConfig.configPath", "the pods reach their own cluster"),
            ("backendConfig.labels", "the state's Secret is the tool's"),
            ("writeOutputsToSecret.labels", "the Secret has labels of Pawl"),
            ("writeOutputsToSecret.annotations", "the Secret has annotations of Pawl"),
            ("retryInterval", "a failed plan is retried after 1 min, doubling to 1 h"),
            ("retryStrategy", "a failed plan is retried after 1 min, doubling to 1 h"),
            ("maxRetryInterval", "a failed plan is retried after 1 min, doubling to 1 h"),
            ("force", "annotate the layer with pawl.run/plan=now"),
            ("destroy", "delete the layer with deletionPolicy: Destroy, or make a run with operation: Destroy"),
            ("targets", "only a run without a layer has targets"),
            ("refreshBeforeApply", "an apply always uses the stored plan"),
            ("breakTheGlass", "see the guide's page of trouble"),
            ("enterprise", "there is none"),
            ("cloud", "the code configures it"),
            ("tfstate", "a lock that a run left is released by the controller; design/guide/state.md has the rest"),
            ("dependsOn", "dependencies between layers are not there yet; valueFrom.outputOf takes outputs of another stack"),
            ("healthChecks", "a hook with when: AfterApply can run any check"),
            ("webhooks", "a hook with when: AfterPlan sees the plan, and fails it"),
            ("readInputsFromSecrets", "nothing is templated; variables take keys of Secrets"),
            ("enableInventory", "the state lists its objects"),
            ("branchPlanner", "plans of pull requests are not there yet"),
            ("backendConfigsFrom", "plans wait: write template.backend, and its credentials into template.env"),
            ("alwaysCleanupRunnerPod", "pods are deleted with their runs"),
            ("cliConfigSecretRef", "name the key as well: template.credentials.cliConfig.secretKeyRef"),
        ],
        notes,
    );
    made.push(to);
}

/// Converts the source; returns whether there is a repository for a layer.
fn source(spec: &mut Fields, own: &str, to: &mut Tree, made: &mut Made, notes: &mut Notes) -> bool {
    let [kind, name] =
        ["sourceRef.kind", "sourceRef.name"].map(|field| spec.text(field).unwrap_or_default());
    let namespace = spec
        .text("sourceRef.namespace")
        .unwrap_or_else(|| own.to_owned());
    drop(spec.text("sourceRef.apiVersion"));
    if kind != "GitRepository" {
        notes.say(
            "spec.sourceRef",
            &format!("of kind {kind} has no counterpart: a run's source.artifact takes its URL and digest; nothing was made of this object"),
        );
        return false;
    }
    match made.find(&namespace, &name) {
        Some(repository) => to.put("spec.ref", repository.0.get(GIT_REF).cloned()),
        None => notes.say(
            "spec.sourceRef",
            "names a GitRepository that is not in the input: convert it together with this, or set spec.ref",
        ),
    }
    made.allow(&namespace, &name, own);
    to.put("spec.repository.name", Some(name));
    to.put(
        "spec.repository.namespace",
        Some(namespace).filter(|namespace| namespace != own),
    );
    true
}

fn remediation(spec: &mut Fields, to: &mut Tree, notes: &mut Notes) {
    let approve = spec.text("approvePlan").unwrap_or_default();
    let mut remediation = match approve.as_str() {
        "auto" => "Automatic",
        "disable" => "Dry",
        _ => "Manual",
    };
    if !["", "auto", "disable"].contains(&approve.as_str()) {
        notes.say(
            "spec.approvePlan",
            "names a plan: approving is approving its run, by its checksum",
        );
    }
    if spec.flag("planOnly") == Some(true) {
        remediation = "Dry";
    }
    to.put(
        "spec.remediation",
        Some(json!({"onCommit": remediation, "onDrift": remediation})),
    );
    if spec.flag("destroyResourcesOnDeletion") == Some(true) {
        to.put("spec.deletionPolicy", Some("Destroy"));
        to.put(
            "spec.remediation.onDelete",
            Some(if remediation == "Automatic" {
                "Automatic"
            } else {
                "Manual"
            }),
        );
        if remediation != "Automatic" {
            notes.say(
                "spec.destroyResourcesOnDeletion",
                "waits for an approval here (remediation.onDelete)",
            );
        }
    }
    let bounds = (Span::minutes(1), Span::hours(720));
    to.put(
        "spec.drift.interval",
        span(spec.text("interval"), "spec.interval", bounds, notes),
    );
    to.put(
        "spec.drift.suspend",
        spec.flag("disableDriftDetection").filter(|off| *off),
    );
    to.put(
        "spec.maxRetries",
        number(
            spec.number("remediation.retries"),
            "spec.remediation.retries",
            (0, 10),
            notes,
        ),
    );
}

fn inputs(spec: &mut Fields, path: Option<&str>, to: &mut Tree, notes: &mut Notes) {
    for mut variable in spec.items("vars") {
        let Some(name) = variable.text("name") else {
            continue;
        };
        if let Some(value) = variable.any("value") {
            to.push(
                "spec.template.variables",
                json!({"name": name, "value": value}),
            );
        } else if let Some(from) = pod::value_from(&mut variable) {
            to.push(
                "spec.template.variables",
                json!({"name": name, "valueFrom": from}),
            );
        }
        variable.end(&pod::VARIABLE, notes);
    }
    for mut from in spec.items("varsFrom") {
        let (kind, name) = (
            from.text("kind").unwrap_or_default(),
            from.text("name").unwrap_or_default(),
        );
        let (one, all) = if kind == "Secret" {
            ("secretKeyRef", "secretRef")
        } else {
            ("configMapKeyRef", "configMapRef")
        };
        let keys = from.words("varsKeys");
        for key in &keys {
            let (key, variable) = key.split_once(':').unwrap_or((key, key));
            let value = json!({one: {"name": name, "key": key}});
            to.push(
                "spec.template.variables",
                json!({"name": variable, "valueFrom": value}),
            );
        }
        if keys.is_empty() {
            to.push(
                "spec.template.envFrom",
                json!({"prefix": "TF_VAR_", all: {"name": name}}),
            );
        }
        from.end(&pod::VARIABLE, notes);
    }
    if let Some(values) = spec.any("values") {
        if values.to_string().contains("${{") {
            notes.say(
                "spec.values",
                "is templated, which nothing is here: the text is carried over as it is",
            );
        }
        to.push(
            "spec.template.variables",
            json!({"name": "values", "value": values}),
        );
    }
    for file in spec.words("tfVarsFiles") {
        to.push(
            "spec.template.variableFiles",
            json!({"path": git::from(path, &file)}),
        );
    }
    for mut file in spec.items("fileMappings") {
        let [name, key, location, path] = ["secretRef.name", "secretRef.key", "location", "path"]
            .map(|field| file.text(field).unwrap_or_default());
        let place = if location == "workspace" {
            "Source"
        } else {
            "Home"
        };
        to.push(
            "spec.template.files",
            json!({"path": path, "in": place, "secretKeyRef": {"name": name, "key": key}}),
        );
        file.end(&[], notes);
    }
}

/// Converts the backend. By default the state is in a Secret of the namespace.
fn backend(spec: &mut Fields, name: &str, namespace: &str, to: &mut Tree, notes: &mut Notes) {
    let own = spec.text("backendConfig.customConfiguration");
    let disabled = spec.flag("backendConfig.disable") == Some(true);
    let suffix = spec
        .text("backendConfig.secretSuffix")
        .unwrap_or_else(|| name.to_owned());
    let _ = spec.flag("backendConfig.inClusterConfig");
    match own.as_deref().map(hcl::backend) {
        Some(Some((kind, config))) => to.put(
            "spec.template.backend",
            Some(json!({"type": kind, "config": config})),
        ),
        Some(None) => {
            to.wait();
            notes.say(
                "spec.backendConfig.customConfiguration",
                "is more than plain arguments, so plans wait: write template.backend before you apply the object, or it begins with an empty state",
            );
        }
        None if disabled => {}
        None => {
            let mut config = json!({"secret_suffix": suffix, "in_cluster_config": true});
            if !namespace.is_empty() {
                config["namespace"] = namespace.into();
            }
            to.put(
                "spec.template.backend",
                Some(json!({"type": "kubernetes", "config": config})),
            );
        }
    }
}

fn outputs(spec: &mut Fields, to: &mut Tree, notes: &mut Notes) {
    if let Some(name) = spec.text("writeOutputsToSecret.name") {
        to.put("spec.template.outputs.secret.name", Some(name));
        for output in spec.words("writeOutputsToSecret.outputs") {
            let item = match output.split_once(':') {
                Some((output, key)) => json!({"output": output, "key": key}),
                None => json!({"output": output}),
            };
            to.push("spec.template.outputs.secret.items", item);
        }
        notes.say(
            "spec.writeOutputsToSecret",
            "names a Secret that Pawl did not make, if it is there: delete it, or choose another name",
        );
    }
}

fn runner(spec: &mut Fields, to: &mut Tree, notes: &mut Notes) {
    let account: Value = spec
        .text("serviceAccountName")
        .unwrap_or_else(|| "tf-runner".to_owned())
        .into();
    to.put("spec.template.runner.serviceAccountName", Some(account));
    let grace = spec.number("runnerTerminationGracePeriodSeconds");
    let grace = number(
        grace,
        "spec.runnerTerminationGracePeriodSeconds",
        (30, 86_400),
        notes,
    );
    to.put("spec.template.runner.terminationGracePeriodSeconds", grace);
    let mut metadata = spec.within("runnerPodTemplate.metadata");
    pod::metadata(&mut metadata, to, "spec.template");
    metadata.end(&[], notes);
    let mut pod = spec.within("runnerPodTemplate.spec");
    pod::settings(&mut pod, to, "spec.template");
    pod::environment(&mut pod, to, "spec.template", notes);
    pod.end(&pod::HINTS, notes);
}
