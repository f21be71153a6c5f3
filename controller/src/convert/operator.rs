//! Converts terraform-operator's `Terraform`.

use serde_json::{Value, json};

use super::{
    git::{self, Address},
    hcl, pod,
    read::{Document, Fields, Notes},
    write::{Made, Tree, numbered},
};
use crds::names;

/// Its tasks before and after phases, with the moments of Pawl's hooks.
const HOOKS: [(&str, &str); 9] = [
    ("setup", "AfterSetup"),
    ("preinit", "BeforeInit"),
    ("postinit", "AfterInit"),
    ("preplan", "BeforePlan"),
    ("postplan", "AfterPlan"),
    ("preapply", "BeforeApply"),
    ("postapply", "AfterApply"),
    ("preapply-delete", "BeforeDestroy"),
    ("postapply-delete", "AfterDestroy"),
];

enum Code {
    Git(Address),
    /// `spec.source` of a run.
    Fixed(Value),
    Unknown,
}

/// Converts a stack: to a layer if its code is in git, otherwise to a run.
pub(super) fn terraform(mut document: Document, made: &mut Made, notes: &mut Notes) {
    let code = code(&mut document.spec);
    let (own, name) = (document.namespace(), document.name());
    let is_layer = !matches!(code, Code::Fixed(_));
    let mut to = if is_layer {
        Tree::layer(&document, notes)
    } else {
        Tree::of("TerraformRun", &document, names::MAX_RUN_NAME, notes)
    };
    let at = if is_layer { "spec.template" } else { "spec" };
    let spec = &mut document.spec;
    match code {
        Code::Git(address) => {
            let secret = credentials_of_git(spec, Some(&address.url), &mut to, at, notes);
            to.put(
                "spec.repository.name",
                Some(made.repository_of(&own, &address.url, secret.as_deref())),
            );
            // Its default when the address has no ref.
            to.put(
                "spec.ref",
                Some(address.git_ref.unwrap_or_else(|| "master".to_owned())),
            );
            to.put("spec.path", address.path);
        }
        Code::Fixed(source) => {
            credentials_of_git(spec, None, &mut to, at, notes);
            to.put("spec.source", Some(source));
            to.put(
                "spec.stack",
                Some(name.chars().take(63).collect::<String>()),
            );
            notes.say(
                "spec.terraformModule",
                "is no repository, so that it becomes one run: make another when the code changes",
            );
        }
        Code::Unknown => {
            credentials_of_git(spec, None, &mut to, at, notes);
            to.put("spec.repository.name", Some(name.clone()));
            notes.say(
                "spec.terraformModule.source",
                "is no address of git: make a TerraformRepository of this name, and set spec.ref and spec.path",
            );
        }
    }
    to.put(&format!("{at}.tool.name"), Some("Terraform"));
    to.put(
        &format!("{at}.tool.version"),
        spec.text("terraformVersion")
            .filter(|version| version != "latest"),
    );
    remediation(spec, is_layer, &mut to, notes);
    if let Some(text) = spec.text("backend") {
        backend(&text, &mut to, at, spec.has("serviceAccount"), notes);
    }
    to.put(
        &format!("{at}.runner.serviceAccountName"),
        spec.text("serviceAccount"),
    );
    outputs(spec, &mut to, at);
    clouds(spec, &mut to, at, notes);
    tasks(spec, &mut to, at, notes);
    document.spec.end(
        &[
            ("terraformModule.version", "the address names a ref, as in ?ref=v1"),
            ("keepLatestPodsOnly", "pods are deleted with their runs, of which runHistory limits the number"),
            ("keepCompletedPods", "logs are kept by the datastore"),
            ("outputsToOmit", "outputs.secret.items lists the published outputs"),
            ("persistentVolumeSize", "a run needs no volume"),
            ("storageClassName", "a run needs no volume"),
            ("sshTunnel", "the chart's values set the proxy"),
            ("images", "the runner's image is Pawl's; tool selects the tool and its version"),
            (
                "setup",
                "the repository's submodules are there; files takes keys of Secrets and ConfigMaps, variableFiles variables",
            ),
            ("plugins", "a hook runs beside the phases; events, metrics and the datastore show what monitors show"),
        ],
        notes,
    );
    made.push(to);
}

/// Converts the backend block. A state that the object cannot reach lets its plans wait for a person.
fn backend(text: &str, to: &mut Tree, at: &str, has_account: bool, notes: &mut Notes) {
    let Some((kind, config)) = hcl::backend(text) else {
        to.wait();
        notes.say(
            "spec.backend",
            &format!("is more than plain arguments, so plans wait: write {at}.backend before you apply the object, or it begins with an empty state"),
        );
        return;
    };
    match kind.as_str() {
        "local" => {
            to.wait();
            notes.say(
                "spec.backend",
                "is local, whose state ends with the pod: Pawl manages the state, which begins empty, so plans wait: import the old state first",
            );
            return;
        }
        // The old operator made an account with rights on Secrets and Leases by itself.
        "kubernetes" if !has_account => notes.say(
            "spec.backend",
            &format!("is kubernetes, and the code reaches the cluster only with an account: set {at}.runner.serviceAccountName to one that may write Secrets and Leases"),
        ),
        _ => {}
    }
    to.put(
        &format!("{at}.backend"),
        Some(json!({"type": kind, "config": config})),
    );
}

fn code(spec: &mut Fields) -> Code {
    let [inline, source, name, key] = [
        "inline",
        "source",
        "configMapSelector.name",
        "configMapSelector.key",
    ]
    .map(|field| spec.text(&format!("terraformModule.{field}")));
    match (inline, name, source) {
        (Some(text), ..) => Code::Fixed(json!({"inline": {"files": {"main.tf": text}}})),
        (_, Some(name), _) => {
            let mut source = json!({"name": name});
            if let Some(key) = key {
                let path = if key.rsplit('.').next() == Some("tf") {
                    key.clone()
                } else {
                    "main.tf".to_owned()
                };
                source["items"] = json!([{"key": key, "path": path}]);
            }
            Code::Fixed(json!({"configMapRef": source}))
        }
        (.., Some(source)) => git::address(&source).map_or(Code::Unknown, Code::Git),
        _ => Code::Unknown,
    }
}

/// Converts `scmAuthMethods`: the Secret for the repository's own host, and those for hosts of modules.
fn credentials_of_git(
    spec: &mut Fields,
    url: Option<&str>,
    to: &mut Tree,
    at: &str,
    notes: &mut Notes,
) -> Option<String> {
    let mut own = None;
    for mut method in spec.items("scmAuthMethods") {
        let host = method.text("host").unwrap_or_default();
        for (field, ours) in [
            ("git.ssh.sshKeySecretRef", "identity and known_hosts"),
            (
                "git.https.tokenSecretRef",
                "username and password, or bearerToken",
            ),
        ] {
            let Some(name) = method.text(&format!("{field}.name")) else {
                continue;
            };
            let has = method
                .text(&format!("{field}.key"))
                .map(|key| format!(", not {key}"))
                .unwrap_or_default();
            notes.say(
                &method.path(field),
                &format!("names the Secret {name}, which needs the keys {ours}{has}, in the namespace of what uses it"),
            );
            if url.is_some_and(|url| self::git::host(url) == host) {
                own.get_or_insert(name.clone());
            }
            to.push(
                &format!("{at}.credentials.git"),
                json!({"host": host, "secretRef": {"name": name}}),
            );
        }
        method.end(
            &[
                ("namespace", "Secrets are of the object's own namespace"),
                ("requireProxy", "the chart's values set the proxy"),
                ("lockSecretDeletion", "Pawl never deletes it"),
            ],
            notes,
        );
    }
    own
}

fn remediation(spec: &mut Fields, is_layer: bool, to: &mut Tree, notes: &mut Notes) {
    let automatic = if spec.flag("requireApproval") == Some(true) {
        "Manual"
    } else {
        "Automatic"
    };
    let orphans = spec.flag("ignoreDelete") == Some(true);
    if is_layer {
        to.put("spec.remediation.onCommit", Some(automatic));
        // It does not detect drift.
        to.put("spec.drift.suspend", Some(true));
        if !orphans {
            to.put("spec.deletionPolicy", Some("Destroy"));
            to.put("spec.remediation.onDelete", Some(automatic));
        }
    } else {
        to.put("spec.approval.mode", Some(automatic));
        if !orphans {
            notes.say(
                "spec.ignoreDelete",
                "is not set, and deleting a run destroys nothing: make a run with operation: Destroy first",
            );
        }
    }
}

fn outputs(spec: &mut Fields, to: &mut Tree, at: &str) {
    let included = spec.words("outputsToInclude");
    if let Some(name) = spec.text("outputsSecret") {
        to.put(&format!("{at}.outputs.secret.name"), Some(name));
        for output in included {
            to.push(
                &format!("{at}.outputs.secret.items"),
                json!({"output": output}),
            );
        }
    }
    to.put(
        &format!("{at}.outputs.status"),
        spec.flag("writeOutputsToStatus").filter(|shown| *shown),
    );
}

/// Converts `credentials`: Secrets as environment, and AWS accounts.
fn clouds(spec: &mut Fields, to: &mut Tree, at: &str, notes: &mut Notes) {
    for mut one in spec.items("credentials") {
        if let Some(name) = one.text("secretNameRef.name") {
            to.push(
                &format!("{at}.envFrom"),
                json!({"secretRef": {"name": name}}),
            );
        }
        if let Some(role) = one.text("aws.irsa") {
            if to.has(&format!("{at}.runner.serviceAccountName")) {
                to.put(&format!("{at}.credentials.aws.roleArn"), Some(role));
            } else {
                notes.say(&one.path("aws.irsa"), &format!("needs an account that it trusts: set {at}.runner.serviceAccountName and {at}.credentials.aws.roleArn: {role}"));
            }
        }
        if let Some(role) = one.text("aws.kiam") {
            let annotation = json!({"annotations": {"iam.amazonaws.com/role": role}});
            pod::metadata(&mut Fields::of("", annotation), to, at);
        }
        one.end(
            &[
                ("namespace", "Secrets are of the object's own namespace"),
                (
                    "serviceAccountAnnotations",
                    "annotate the account that runner.serviceAccountName names",
                ),
            ],
            notes,
        );
    }
}

/// The moment of a task's hook, and the further operation in which a hook of this moment runs.
fn moment(task: &str) -> Option<(&'static str, Option<&'static str>)> {
    let when = |name| {
        HOOKS
            .iter()
            .find(|(task, _)| *task == name)
            .map(|one| one.1)
    };
    let found = when(task).or_else(|| when(task.strip_suffix("-delete")?))?;
    let common = !found.ends_with("Apply") && !found.ends_with("Destroy");
    let other = if task.ends_with("-delete") {
        "Apply"
    } else {
        "Destroy"
    };
    Some((found, common.then_some(other)))
}

/// A name that no other hook has: two tasks may have scripts for one phase.
fn free(task: &str, to: &Tree, at: &str) -> String {
    let hooks = to.0.pointer(&format!("/{}/hooks", at.replace('.', "/")));
    let taken = |name: &str| {
        hooks
            .and_then(Value::as_array)
            .is_some_and(|all| all.iter().any(|hook| hook["name"] == name))
    };
    numbered(task, taken)
}

/// Converts `taskOptions`: pod settings and scripts.
fn tasks(spec: &mut Fields, to: &mut Tree, at: &str, notes: &mut Notes) {
    for mut task in spec.items("taskOptions") {
        let of = task.words("for");
        let [inline, url, name, key] = [
            "inline",
            "source",
            "configMapSelector.name",
            "configMapSelector.key",
        ]
        .map(|field| task.text(&format!("script.{field}")));
        let body = match (inline, name.zip(key)) {
            (Some(text), _) => Some(json!({"inline": text})),
            (_, Some((name, key))) => Some(json!({"configMapKeyRef": {"name": name, "key": key}})),
            _ => None,
        };
        if url.is_some() && body.is_none() {
            notes.say(
                &task.path("script.source"),
                "has no counterpart: put the script into the source, a ConfigMap or the hook itself",
            );
        }
        for task_name in body.iter().flat_map(|_| &of) {
            match moment(task_name) {
                Some((when, other)) => {
                    let mut hook = body.clone().unwrap_or_default();
                    hook["name"] = free(task_name, to, at).into();
                    hook["when"] = when.into();
                    to.push(&format!("{at}.hooks"), hook);
                    if let Some(other) = other {
                        notes.say(
                            &task.path("script"),
                            &format!("of {task_name} becomes a hook {when}, which runs with operation {other} too: PAWL_OPERATION tells it which one it is in"),
                        );
                    }
                }
                None => notes.say(
                    &task.path("script"),
                    &format!("of {task_name} has no counterpart: no hook runs in its place, or then alone"),
                ),
            }
        }
        let environment = ["env", "envFrom"].iter().any(|field| {
            task.any(field)
                .inspect(|value| task.inherit(field, value))
                .is_some()
        });
        if environment && of.iter().all(|task| task != "*") && !of.is_empty() {
            notes.say(
                &task.path("env"),
                &format!(
                    "is that of all of a run's pod here, and not of {} alone",
                    of.join(", ")
                ),
            );
        }
        pod::metadata(&mut task, to, at);
        pod::settings(&mut task, to, at);
        pod::environment(&mut task, to, at, notes);
        task.end(
            &[
                &pod::HINTS[..],
                &[("restartPolicy", "spec.retry limits the attempts")],
            ]
            .concat(),
            notes,
        );
    }
}
