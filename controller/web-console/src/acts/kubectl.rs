//! The `kubectl` line that does the same as an act.

use crds::names;
use kube::ResourceExt as _;

use super::{
    Object,
    table::{Row, Word},
};

/// The line of an act on an object. It fills in the name of the user of the kubeconfig.
pub fn line(row: &Row, object: &Object<'_>) -> String {
    let of = |kind: &str, namespace: Option<String>, name: &str| {
        let namespace = namespace.unwrap_or_default();
        format!(
            "-n {} --overwrite {kind}/{}",
            quoted(&namespace),
            quoted(name)
        )
    };
    let mut line = match object {
        Object::Run(run) => of(names::KUBECTL_RUN, run.namespace(), &run.name_any()),
        Object::Layer(layer) => of(names::KUBECTL_LAYER, layer.namespace(), &layer.name_any()),
        Object::Repository(it) => of(names::KUBECTL_REPOSITORY, it.namespace(), &it.name_any()),
        Object::Namespace(of) => format!("--overwrite namespace/{}", quoted(of.name)),
    };
    line.insert_str(0, "kubectl annotate ");
    for (name, word) in row.writes {
        let value = match word {
            Word::Checksum => quoted(object.checksum().unwrap_or("CHECKSUM")),
            Word::Reason => "REASON".to_owned(),
            Word::Person => names::WHOAMI.to_owned(),
            Word::Now => "\"$(date +%s)\"".to_owned(),
            Word::Fixed(text) => quoted(text),
            Word::Remark => continue,
            Word::Remove => {
                line = format!("{line} {name}-");
                continue;
            }
        };
        line = format!("{line} {name}={value}");
    }
    line
}

/// The line that changes `spec.suspend` of a layer, which no annotation can.
pub fn suspend_line(layer: &crds::TerraformLayer) -> String {
    format!(
        "kubectl patch -n {} {}/{} --type=merge -p '{{\"spec\":{{\"suspend\":{}}}}}'",
        quoted(&layer.namespace().unwrap_or_default()),
        names::KUBECTL_LAYER,
        quoted(&layer.name_any()),
        !layer.spec.suspend,
    )
}

/// The line that removes the lock of a state.
pub fn unlock_line(namespace: &str, stack: &str, workspace: &str) -> String {
    let workspace = serde_json::json!(workspace);
    let body = format!(r#"{{"workspace":{workspace},"reason":"REASON"}}"#);
    let path = format!("/apis/read.pawl.run/v1alpha1/namespaces/{namespace}/states/{stack}/unlock");
    format!(
        "echo {} | kubectl create --raw {} -f -",
        quoted(&body),
        quoted(&path)
    )
}

/// A word of a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%_+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
