//! Alustan's `Terraform`, of 0.16 (code in git) and 1.0 (code in an image).

use serde_json::json;

use super::{
    git,
    read::{Document, Notes},
    write::{Made, Tree},
};

/// A stack.
pub(super) fn terraform(mut document: Document, made: &mut Made, notes: &mut Notes) {
    let mut to = Tree::layer(&document, notes);
    let (own, name) = (document.namespace(), document.name());
    let spec = &mut document.spec;
    let mut repository = spec.within("gitRepo");
    let address = repository.text("url").as_deref().and_then(git::address);
    let branch = repository.text("branch");
    repository.end(&[], notes);
    let mut image = spec.within("containerRegistry");
    let registry: Vec<_> = ["provider", "imageName", "semanticVersion"].iter().filter_map(|field| image.text(field)).collect();
    image.end(&[], notes);
    if let Some(address) = address {
        to.put("spec.repository.name", Some(made.repository_of(&own, &address.url, None)));
        to.put("spec.ref", branch.or(address.git_ref));
        to.put("spec.path", address.path);
        if !registry.is_empty() {
            notes.say("spec.containerRegistry", "has no counterpart: nothing is built, the runner fetches the code");
        }
    } else {
        to.put("spec.repository.name", Some(name));
        let code = if registry.is_empty() {
            "names no code".to_owned()
        } else {
            format!("has its code in the image {}", registry.join(" "))
        };
        notes.say("spec", &format!("{code}: make a TerraformRepository of that name of the Git repository that it is from, and set spec.ref and spec.path"));
    }
    for (key, value) in spec.map("variables") {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match key.strip_prefix("TF_VAR_") {
            Some(name) => to.push("spec.template.variables", json!({"name": name, "value": value})),
            None => to.push("spec.template.env", json!({"name": key, "value": text})),
        }
    }
    let mut scripts = spec.within("scripts");
    if let Some(script) = scripts.text("deploy") {
        notes.say(
            "spec.scripts.deploy",
            &format!("({script}) has no counterpart: Pawl runs init, plan and apply itself; template.hooks holds scripts"),
        );
    }
    let destroys = scripts.text("destroy");
    if let Some(script) = &destroys {
        notes.say(
            "spec.scripts.destroy",
            &format!("({script}) has no counterpart: a run destroys what the layer made (deletionPolicy)"),
        );
        to.put("spec.deletionPolicy", Some("Destroy"));
    }
    scripts.end(&[], notes);
    // It applies whatever it is given, and looks for no drift.
    to.put("spec.remediation.onCommit", Some("Automatic"));
    to.put("spec.remediation.onDelete", destroys.map(|_| "Automatic"));
    to.put("spec.drift.suspend", Some(true));
    document.spec.end(
        &[
            ("provider", "the code says which providers there are"),
            ("environment", "name the layer by it, or set template.workspace"),
            ("postDeploy", "a hook with when: AfterApply runs a script; template.outputs publishes outputs"),
        ],
        notes,
    );
    made.push(to);
}
