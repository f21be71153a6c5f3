//! What code takes from beside it: local modules, and what Terragrunt's own files include and read. Nothing is evaluated but a handful of
//! functions about places; where a place cannot be known, that is said.

use hcl_edit::{
    expr::{Expression, FuncCall},
    structure::{Block, Body},
    template::Element,
    visit::{Visit, visit_func_call},
};
use serde_json::Value;
use tool_versions::request::hcl;

/// Where something lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Relative to the directory of the code.
    Beside(String),
    /// The next file of this name in a directory above; or what lies at a path from that directory on.
    Above(String, Option<String>),
    /// Relative to the top of the repository.
    Top(String),
}

/// What is taken from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory with code.
    Module,
    /// A file of Terragrunt's.
    Config,
}

/// What a file takes from elsewhere in the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// These.
    From(Vec<(Kind, Place)>),
    /// Nobody can say what.
    Unknown,
}

/// The largest file that is read, in bytes.
pub const LARGEST: u64 = hcl::LARGEST as u64;

/// Whether a file of this name is code that may take something from elsewhere.
pub fn is_code(name: &str) -> bool {
    [".tf", ".tofu", ".tf.json", ".tofu.json"].iter().any(|ending| name.ends_with(ending)) || is_terragrunt(name)
}

fn is_terragrunt(name: &str) -> bool {
    matches!(name, "terragrunt.hcl" | "terragrunt.hcl.json" | "terragrunt.stack.hcl")
}

/// What a file of this name and text takes from elsewhere. `config` says that a file of Terragrunt's named it.
pub fn read(name: &str, text: &str, config: bool) -> Read {
    let found = match (config || is_terragrunt(name), name.strip_suffix(".json").is_some()) {
        (false, false) => modules(text),
        (false, true) => json_modules(text),
        (true, false) => terragrunt(text),
        // A person writes the other form.
        (true, true) => None,
    };
    found.map_or(Read::Unknown, Read::From)
}

type Found = Option<Vec<(Kind, Place)>>;

fn modules(text: &str) -> Found {
    // Most files have none, and need not be parsed to see that.
    if !text.contains("module") {
        return Some(Vec::new());
    }
    let body = hcl::parse(text).ok()?;
    let sources = body.get_blocks("module").filter_map(|block| block.body.get_attribute("source"));
    let places = sources.map(|source| local(&source.value)).collect::<Option<Vec<_>>>()?;
    Some(places.concat().into_iter().map(|place| (Kind::Module, place)).collect())
}

fn json_modules(text: &str) -> Found {
    let value: Value = serde_json::from_str(text).ok()?;
    // A block is an object, or a list of them.
    let each = |value: &Value| match value {
        Value::Array(list) => list.clone(),
        Value::Null => Vec::new(),
        other => vec![other.clone()],
    };
    let mut found = Vec::new();
    for module in each(&value["module"]) {
        for block in module.as_object()?.values().flat_map(each) {
            match &block["source"] {
                Value::String(source) if source.contains("${") && !is_remote(source) => return None,
                Value::String(source) => found.extend(is_local(source).then(|| (Kind::Module, Place::Beside(source.clone())))),
                _ => {}
            }
        }
    }
    Some(found)
}

/// As the tools tell them.
fn is_local(source: &str) -> bool {
    source.starts_with("./") || source.starts_with("../")
}

/// Whether a text that is known by its beginning only leads elsewhere.
fn is_remote(beginning: &str) -> bool {
    let known = beginning.split("${").next().unwrap_or_default();
    !known.is_empty() && !known.starts_with('.')
}

/// The place of a module's source: of a remote one nothing, and of one that is computed nobody knows.
fn local(source: &Expression) -> Option<Vec<Place>> {
    match source {
        Expression::String(text) => Some(is_local(text).then(|| Place::Beside(text.to_string())).into_iter().collect()),
        Expression::StringTemplate(template) => match template.iter().next() {
            Some(Element::Literal(text)) if is_remote(text) => Some(Vec::new()),
            _ => None,
        },
        _ => None,
    }
}

fn terragrunt(text: &str) -> Found {
    let body = hcl::parse(text).ok()?;
    let mut found = Vec::new();
    let mut blocks = |body: &Body, name: &str, attribute: &str, kind: Kind| -> Option<()> {
        for block in body.get_blocks(name) {
            let Some(value) = value(block, attribute) else { continue };
            match evaluated(value) {
                Some(place) => found.push((kind, place)),
                None if remote(value) => {}
                None => return None,
            }
        }
        Some(())
    };
    blocks(&body, "include", "path", Kind::Config)?;
    for (name, kind) in [("terraform", Kind::Module), ("unit", Kind::Module), ("stack", Kind::Module)] {
        blocks(&body, name, "source", kind)?;
    }
    let mut calls = Calls(Vec::new());
    calls.visit_body(&body);
    found.extend(calls.0);
    // `//` says how much of it is copied: all that is before it.
    for (kind, place) in &mut found {
        let (Place::Beside(path) | Place::Top(path) | Place::Above(_, Some(path))) = place else { continue };
        if *kind == Kind::Module && path.contains("//") {
            *path = path.replacen("//", SPLIT, 1);
        }
    }
    Some(found)
}

/// Between what is copied and the module in it, in the path of a [`Place`].
pub const SPLIT: &str = "\0";

fn value<'a>(block: &'a Block, attribute: &str) -> Option<&'a Expression> {
    block.body.get_attribute(attribute).map(|attribute| &attribute.value)
}

/// Whether a source leads out of the repository.
fn remote(source: &Expression) -> bool {
    match source {
        Expression::String(text) => !is_local(text),
        Expression::StringTemplate(template) => matches!(template.iter().next(), Some(Element::Literal(text)) if is_remote(text)),
        _ => false,
    }
}

/// The calls by which a file of Terragrunt's reads others, wherever they stand.
struct Calls(Vec<(Kind, Place)>);

impl Visit for Calls {
    fn visit_func_call(&mut self, call: &FuncCall) {
        let place = match call.name.name.as_str() {
            "read_terragrunt_config" => call.args.get(0).and_then(evaluated),
            "find_in_parent_folders" => above(call),
            _ => None,
        };
        self.0.extend(place.map(|place| (Kind::Config, place)));
        visit_func_call(self, call);
    }
}

/// `find_in_parent_folders()`.
fn above(call: &FuncCall) -> Option<Place> {
    let name = match call.args.get(0) {
        None => "terragrunt.hcl".to_owned(),
        Some(Expression::String(name)) => name.to_string(),
        Some(_) => return None,
    };
    Some(Place::Above(name, None))
}

/// The place that an expression names, if it is made of texts and of functions about places.
fn evaluated(expression: &Expression) -> Option<Place> {
    match expression {
        Expression::String(text) => (is_local(text) || !text.contains(':')).then(|| Place::Beside(text.to_string())),
        Expression::FuncCall(call) => place(call),
        Expression::Parenthesis(inner) => evaluated(inner.inner()),
        Expression::StringTemplate(template) => {
            let mut elements = template.iter();
            let first = match elements.next()? {
                Element::Interpolation(first) => evaluated(&first.expr)?,
                Element::Literal(_) | Element::Directive(_) => return None,
            };
            let mut rest = String::new();
            for element in elements {
                rest.push_str(element.as_literal()?);
            }
            Some(match first {
                Place::Beside(path) => Place::Beside(path + &rest),
                Place::Top(path) => Place::Top(path + &rest),
                Place::Above(name, path) if rest.is_empty() => Place::Above(name, path),
                Place::Above(name, Some(path)) => Place::Above(name, Some(path + &rest)),
                // A path behind a file leads nowhere.
                Place::Above(_, None) => return None,
            })
        }
        _ => None,
    }
}

fn place(call: &FuncCall) -> Option<Place> {
    match call.name.name.as_str() {
        "find_in_parent_folders" => above(call),
        "get_terragrunt_dir" | "get_original_terragrunt_dir" => Some(Place::Beside(".".to_owned())),
        "get_repo_root" | "get_path_to_repo_root" | "path_to_repo_root" => Some(Place::Top(String::new())),
        "dirname" => match evaluated(call.args.get(0)?)? {
            Place::Above(name, None) => Some(Place::Above(name, Some(String::new()))),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> (Kind, Place) {
        (Kind::Module, Place::Beside(path.into()))
    }

    #[test]
    fn local_modules_are_found_and_remote_ones_are_none() {
        let text = r#"
            module "a" { source = "./a" }
            module "b" { source = "../../modules/b" }
            module "c" { source = "hashicorp/consul/aws" }
            module "d" { source = "git::https://h/r.git?ref=${var.v}" }
            # module "e" { source = "./e" }
            locals { module = "./f" }
            module "g" {}
        "#;
        assert_eq!(read("main.tf", text, false), Read::From(vec![module("./a"), module("../../modules/b")]));
        let json = r#"{"module": [{"a": {"source": "./a"}}, {"b": [{"source": "../b"}], "c": {"source": "x/y/z"}}]}"#;
        assert_eq!(read("main.tofu.json", json, false), Read::From(vec![module("./a"), module("../b")]));
        assert_eq!(read("main.tf", "resource \"a\" \"b\" {", false), Read::From(vec![]), "no module, and not parsed");
    }

    #[test]
    fn what_cannot_be_known_is_said() {
        for text in [
            "module \"a\" { source = \"./${var.x}\" }",
            "module \"a\" { source = var.x }",
            "module \"a\" { source = \"${var.x}/a\" }",
            "module \"a\" {",
        ] {
            assert_eq!(read("main.tf", text, false), Read::Unknown, "{text}");
        }
        assert_eq!(read("main.tf.json", r#"{"module": {"a": {"source": "./${var.x}"}}}"#, false), Read::Unknown);
        assert_eq!(read("main.tf.json", "{", false), Read::Unknown);
        assert_eq!(read("terragrunt.hcl", "include \"x\" { path = local.x }", false), Read::Unknown);
    }

    #[test]
    fn terragrunt_names_places_by_its_functions() {
        let text = r#"
            include "root" { path = find_in_parent_folders("root.hcl") }
            include "env" { path = "${dirname(find_in_parent_folders("root.hcl"))}/_env/vpc.hcl" }
            include "old" { path = find_in_parent_folders() }
            include "own" { path = "${get_terragrunt_dir()}/../common.hcl" }
            locals {
              account = read_terragrunt_config(find_in_parent_folders("account.hcl"))
              region  = read_terragrunt_config("../region.hcl").locals.region
              other   = read_terragrunt_config(local.somewhere)
            }
            terraform { source = "${get_repo_root()}/modules//vpc" }
        "#;
        let Read::From(found) = read("terragrunt.hcl", text, false) else { panic!() };
        let config = |place| (Kind::Config, place);
        let above = |name: &str, path: Option<&str>| Place::Above(name.into(), path.map(str::to_owned));
        for expected in [
            config(above("root.hcl", None)),
            config(above("root.hcl", Some("/_env/vpc.hcl"))),
            config(above("terragrunt.hcl", None)),
            config(Place::Beside("./../common.hcl".into())),
            config(above("account.hcl", None)),
            config(Place::Beside("../region.hcl".into())),
            (Kind::Module, Place::Top(format!("/modules{SPLIT}vpc"))),
        ] {
            assert!(found.contains(&expected), "{expected:?} is not in {found:?}");
        }
        let remote = "terraform { source = \"git::https://h/r.git//m?ref=${local.v}\" }";
        assert_eq!(read("terragrunt.hcl", remote, false), Read::From(vec![]));
        let registry = "terraform { source = \"tfr:///terraform-aws-modules/vpc/aws?version=5.0.0\" }";
        assert_eq!(read("terragrunt.hcl", registry, false), Read::From(vec![]));
    }
}
