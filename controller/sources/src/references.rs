//! Finds references of code to other files: local modules, and the files that Terragrunt configurations include and
//! read. Evaluates only a few functions about paths; reports unknown paths as such.

use std::path::Path;

use hcl_edit::{
    expr::{Expression, FuncCall},
    structure::{Block, Body},
    template::Element,
    visit::{Visit, visit_func_call},
};
use serde_json::Value;
use tool_versions::request::{hcl, json};

use crate::{
    functions::{READER, READERS, Reads, computed, json_reads},
    mentions,
    place::{Kind, Place},
};

/// The references of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    From(Vec<(Kind, Place)>),
    /// The references cannot be determined.
    Unknown,
}

/// Maximum size of a file that is read, in bytes.
pub const LARGEST: u64 = hcl::LARGEST as u64;

/// Whether a file with this name is code that may reference other files.
pub fn is_code(name: &str) -> bool {
    [".tf", ".tofu", ".tf.json", ".tofu.json"]
        .iter()
        .any(|ending| name.ends_with(ending))
        || is_terragrunt(name)
}

fn is_terragrunt(name: &str) -> bool {
    matches!(
        name,
        "terragrunt.hcl" | "terragrunt.hcl.json" | "terragrunt.stack.hcl"
    )
}

fn is_hcl(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "hcl")
}

/// The references of a file. `config` is true when a Terragrunt file references it.
pub fn read(name: &str, text: &str, config: bool) -> Read {
    let of_terragrunt = config || is_terragrunt(name);
    let found = match (of_terragrunt, name.strip_suffix(".json").is_some()) {
        (false, false) => modules(text),
        (false, true) => json_modules(text),
        (true, false) if is_hcl(name) => terragrunt(text, config),
        // Terragrunt files in JSON are not parsed.
        (true, true) if name.ends_with(".hcl.json") => None,
        // Variables and other data reference nothing.
        (true, _) => Some(Vec::new()),
    };
    let found = found.map(|mut found| {
        if is_code(name) || is_hcl(name) {
            mentions::add(text, of_terragrunt, &mut found);
        }
        found
    });
    found.map_or(Read::Unknown, Read::From)
}

type Found = Option<Vec<(Kind, Place)>>;

fn modules(text: &str) -> Found {
    // Fast path: most files reference nothing.
    if !text.contains("module") && !text.contains(READER) {
        return Some(Vec::new());
    }
    let body = hcl::parse(text).ok()?;
    let sources = body
        .get_blocks("module")
        .filter_map(|block| block.body.get_attribute("source"));
    let places = sources
        .map(|source| local(&source.value))
        .collect::<Option<Vec<_>>>()?;
    let modules = places.concat().into_iter();
    let mut reads = Reads::new(text);
    reads.visit_body(&body);
    Some(
        modules
            .map(|place| (Kind::Module, place))
            .chain(reads.found)
            .collect(),
    )
}

fn json_modules(text: &str) -> Found {
    let value = json::code(text).ok()?;
    let mut found = Vec::new();
    for module in json::blocks(&value["module"]) {
        for block in module.as_object()?.values().flat_map(json::blocks) {
            match &block["source"] {
                Value::String(source) if source.contains("${") && !is_remote(source) => {
                    return None;
                }
                Value::String(source) => found.extend(
                    is_local(source).then(|| (Kind::Module, Place::Beside(source.clone()))),
                ),
                _ => {}
            }
        }
    }
    if text.contains(READER) {
        json_reads(&value, &mut found);
    }
    Some(found)
}

/// The rule of the tools.
fn is_local(source: &str) -> bool {
    source.starts_with("./") || source.starts_with("../")
}

/// Whether a text of which only the beginning is known is a remote address.
fn is_remote(beginning: &str) -> bool {
    let known = beginning.split("${").next().unwrap_or_default();
    !known.is_empty() && !known.starts_with('.')
}

/// The path of a module's source: none for a remote source, unknown for a computed one.
fn local(source: &Expression) -> Option<Vec<Place>> {
    match source {
        Expression::String(text) => Some(
            is_local(text)
                .then(|| Place::Beside(text.to_string()))
                .into_iter()
                .collect(),
        ),
        Expression::StringTemplate(template) => match template.iter().next() {
            Some(Element::Literal(text)) if is_remote(text) => Some(Vec::new()),
            _ => None,
        },
        _ => None,
    }
}

/// The references of a Terragrunt file; `included` when another one includes it.
fn terragrunt(text: &str, included: bool) -> Found {
    let body = hcl::parse(text).ok()?;
    let mut found = Vec::new();
    let evaluated = |expression: &Expression| evaluated(expression, included);
    let mut blocks = |body: &Body, name: &str, attribute: &str, kind: Kind| -> Option<()> {
        for block in body.get_blocks(name) {
            let Some(value) = value(block, attribute) else {
                continue;
            };
            match evaluated(value) {
                Some(place) => found.push((kind, place)),
                None if remote(value) => {}
                None => return None,
            }
        }
        Some(())
    };
    blocks(&body, "include", "path", Kind::Config)?;
    for (name, kind) in [
        ("terraform", Kind::Module),
        ("unit", Kind::Module),
        ("stack", Kind::Module),
    ] {
        blocks(&body, name, "source", kind)?;
    }
    for block in body
        .get_blocks("terraform")
        .flat_map(|block| block.body.get_blocks("extra_arguments"))
    {
        for place in variable_files(block, evaluated)? {
            found.push((Kind::Config, place));
        }
    }
    let mut calls = Calls {
        found: Some(Vec::new()),
        included,
        text,
    };
    calls.visit_body(&body);
    found.extend(calls.found?);
    // `//` separates the copied directory from the module in it.
    for (kind, place) in &mut found {
        let (Place::Beside(path) | Place::Top(path) | Place::Above(_, Some(path))) = place else {
            continue;
        };
        if *kind == Kind::Module && path.contains("//") {
            *path = path.replacen("//", SPLIT, 1);
        }
    }
    Some(found)
}

/// Separator between the copied directory and the module in it, in the path of a [`Place`].
pub const SPLIT: &str = "\0";

fn value<'a>(block: &'a Block, attribute: &str) -> Option<&'a Expression> {
    block
        .body
        .get_attribute(attribute)
        .map(|attribute| &attribute.value)
}

/// Whether a source is outside the repository.
fn remote(source: &Expression) -> bool {
    match source {
        Expression::String(text) => !is_local(text),
        Expression::StringTemplate(template) => {
            matches!(template.iter().next(), Some(Element::Literal(text)) if is_remote(text))
        }
        _ => false,
    }
}

/// The variable files that `extra_arguments` pass to the tool.
fn variable_files(
    block: &Block,
    evaluated: impl Fn(&Expression) -> Option<Place>,
) -> Option<Vec<Place>> {
    let mut places = Vec::new();
    for attribute in ["required_var_files", "optional_var_files"] {
        match value(block, attribute) {
            Some(Expression::Array(files)) => {
                for file in files {
                    places.push(evaluated(file)?);
                }
            }
            Some(_) => return None,
            None => {}
        }
    }
    let Some(arguments) = value(block, "arguments") else {
        return Some(places);
    };
    let Expression::Array(arguments) = arguments else {
        return None;
    };
    for argument in arguments {
        match argument {
            Expression::String(text) => {
                if let Some(path) = text.trim_start_matches('-').strip_prefix("var-file") {
                    places.push(Place::Beside(path.strip_prefix('=')?.to_owned()));
                }
            }
            other if other.to_string().contains("var-file") => return None,
            _ => {}
        }
    }
    Some(places)
}

/// Collects the calls by which a Terragrunt file reads other files, anywhere in it; `None` as soon as one path cannot be determined.
struct Calls<'a> {
    found: Option<Vec<(Kind, Place)>>,
    included: bool,
    text: &'a str,
}

impl Visit for Calls<'_> {
    fn visit_func_call(&mut self, call: &FuncCall) {
        let of = |at: usize| {
            call.args
                .get(at)
                .map(|argument| evaluated(argument, self.included))
        };
        let kind = if call.name.name.as_str() == "mark_glob_as_read" {
            Kind::Data
        } else {
            Kind::Config
        };
        let places = match call.name.name.as_str() {
            "read_terragrunt_config"
            | "read_tfvars_file"
            | "sops_decrypt_file"
            | "mark_as_read" => vec![of(0).flatten()],
            // Whatever the glob matches now or later is below a constant directory.
            "mark_glob_as_read" => {
                let glob = of(0).flatten();
                vec![glob.map(|place| place.map_path(|path| constant_part(path).to_owned()))]
            }
            // The fallback for when no parent has the file.
            "find_in_parent_folders" => [Some(above(call)), of(1)].into_iter().flatten().collect(),
            _ => Vec::new(),
        };
        if READERS.contains(&call.name.name.as_str())
            && let Some(argument) = call.args.get(0)
            && let Some(found) = &mut self.found
        {
            found.push(match evaluated(argument, self.included) {
                Some(place) => (Kind::Data, place),
                None => computed(call, argument, self.text),
            });
        }
        for place in places {
            let found = self.found.take().zip(place);
            self.found = found.map(|(mut found, place)| {
                found.push((kind, place));
                found
            });
        }
        visit_func_call(self, call);
    }
}

/// The directory of a glob's first name that is not constant.
fn constant_part(glob: &str) -> &str {
    let end = glob.find(['*', '?', '[', '{']);
    end.map_or(glob, |end| {
        glob[..end].rsplit_once('/').map_or(".", |(dir, _)| dir)
    })
}

/// Evaluates `find_in_parent_folders()`.
fn above(call: &FuncCall) -> Option<Place> {
    let name = match call.args.get(0) {
        None => "terragrunt.hcl".to_owned(),
        Some(Expression::String(name)) => name.to_string(),
        Some(_) => return None,
    };
    Some(Place::Above(name, None))
}

/// The path that an expression evaluates to, if it consists of texts and path functions.
fn evaluated(expression: &Expression, included: bool) -> Option<Place> {
    match expression {
        Expression::String(text) => {
            (is_local(text) || !text.contains(':')).then(|| Place::Beside(text.to_string()))
        }
        Expression::FuncCall(call) => place(call, included),
        Expression::Parenthesis(inner) => evaluated(inner.inner(), included),
        Expression::StringTemplate(template) => {
            let mut elements = template.iter();
            let first = match elements.next()? {
                Element::Interpolation(first) => evaluated(&first.expr, included)?,
                Element::Literal(_) | Element::Directive(_) => return None,
            };
            let mut rest = String::new();
            for element in elements {
                rest.push_str(element.as_literal()?);
            }
            Some(match first {
                Place::Beside(path) => Place::Beside(path + &rest),
                Place::Top(path) => Place::Top(path + &rest),
                Place::Stack(path) => Place::Stack(path + &rest),
                Place::Above(name, path) if rest.is_empty() => Place::Above(name, path),
                Place::Above(name, Some(path)) => Place::Above(name, Some(path + &rest)),
                // Below a directory of this name.
                Place::Above(name, None) => {
                    let path = format!("/{name}{rest}");
                    Place::Above(name, Some(path))
                }
            })
        }
        _ => None,
    }
}

fn place(call: &FuncCall, included: bool) -> Option<Place> {
    match call.name.name.as_str() {
        "find_in_parent_folders" => above(call),
        "get_terragrunt_dir" | "get_original_terragrunt_dir" => Some(Place::Beside(".".to_owned())),
        "get_repo_root" | "get_path_to_repo_root" | "path_to_repo_root" => {
            Some(Place::Top(String::new()))
        }
        // The own directory: an included file is also evaluated for its own directory.
        "get_parent_terragrunt_dir" if included => Some(Place::Beside(".".to_owned())),
        "abspath" => evaluated(call.args.get(0)?, included),
        "dirname" => match evaluated(call.args.get(0)?, included)? {
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
    fn local_modules_are_found_and_remote_ones_ignored() {
        let text = r#"
            module "a" { source = "./a" }
            module "b" { source = "../../modules/b" }
            module "c" { source = "hashicorp/consul/aws" }
            module "d" { source = "git::https://h/r.git?ref=${var.v}" }
            # module "e" { source = "./e" }
            locals { module = "./f" }
            module "g" {}
        "#;
        assert_eq!(
            read("main.tf", text, false),
            Read::From(vec![module("./a"), module("../../modules/b")])
        );
        let json = r#"{"module": [{"a": {"source": "./a"}}, {"b": [{"source": "../b"}], "c": {"source": "x/y/z"}}]}"#;
        assert_eq!(
            read("main.tofu.json", json, false),
            Read::From(vec![module("./a"), module("../b")])
        );
        assert_eq!(
            read("main.tf", "resource \"a\" \"b\" {", false),
            Read::From(vec![]),
            "no module, and not parsed"
        );
    }

    #[test]
    fn undeterminable_references_are_unknown() {
        for text in [
            "module \"a\" { source = \"./${var.x}\" }",
            "module \"a\" { source = var.x }",
            "module \"a\" { source = \"${var.x}/a\" }",
            "module \"a\" {",
        ] {
            assert_eq!(read("main.tf", text, false), Read::Unknown, "{text}");
        }
        assert_eq!(
            read(
                "main.tf.json",
                r#"{"module": {"a": {"source": "./${var.x}"}}}"#,
                false
            ),
            Read::Unknown
        );
        assert_eq!(read("main.tf.json", "{", false), Read::Unknown);
        // Each of these alone, and combined with known references.
        for text in [
            "include \"x\" { path = local.x }",
            "locals { x = read_terragrunt_config(local.somewhere) }",
            "locals { x = read_terragrunt_config(\"../${local.env}/env.hcl\") }",
            "locals { x = try(yamldecode(file(find_in_parent_folders(local.name))), {}) }",
            "locals { x = find_in_parent_folders(\"a.yaml\", local.other) }",
            "inputs = read_tfvars_file(\"${local.env}.tfvars\")",
            "inputs = yamldecode(sops_decrypt_file(local.secrets))",
            "terraform {\n  extra_arguments \"v\" {\n    required_var_files = [local.x]\n  }\n}",
            "terraform {\n  extra_arguments \"v\" {\n    optional_var_files = local.files\n  }\n}",
            "terraform {\n  extra_arguments \"v\" {\n    arguments = [\"-var-file=${local.x}\"]\n  }\n}",
            "terraform {\n  extra_arguments \"v\" {\n    arguments = [\"-var-file\", \"x.tfvars\"]\n  }\n}",
            "terraform { source = \"${get_parent_terragrunt_dir()}/m\" }",
        ] {
            let text =
                format!("{text}\nlocals {{ y = read_terragrunt_config(\"../known.hcl\") }}\n");
            assert_eq!(
                read("terragrunt.hcl", &text, false),
                Read::Unknown,
                "{text}"
            );
        }
        assert_eq!(read("terragrunt.hcl.json", "{}", false), Read::Unknown);
    }

    #[test]
    fn terragrunt_path_functions_are_evaluated() {
        let text = r#"
            include "root" { path = find_in_parent_folders("root.hcl") }
            include "env" { path = "${dirname(find_in_parent_folders("root.hcl"))}/_env/vpc.hcl" }
            include "old" { path = find_in_parent_folders() }
            include "own" { path = "${get_terragrunt_dir()}/../common.hcl" }
            locals {
              account = read_terragrunt_config(find_in_parent_folders("account.hcl"))
              region  = read_terragrunt_config("../region.hcl").locals.region
              names   = yamldecode(file(find_in_parent_folders("names.yaml", "${get_repo_root()}/none.yaml")))
              secrets = yamldecode(sops_decrypt_file("../secrets.yaml"))
            }
            terraform {
              source = "${get_repo_root()}/modules//vpc"
              extra_arguments "variables" {
                commands           = get_terraform_commands_that_need_vars()
                arguments          = ["-lock-timeout=20m", "-var-file=../by-hand.tfvars", "-var", "env=${local.env}"]
                required_var_files = ["${get_repo_root()}/common.tfvars"]
                optional_var_files = [find_in_parent_folders("env.tfvars", "ignore")]
              }
            }
        "#;
        let Read::From(found) = read("terragrunt.hcl", text, false) else {
            panic!()
        };
        let config = |place| (Kind::Config, place);
        let above =
            |name: &str, path: Option<&str>| Place::Above(name.into(), path.map(str::to_owned));
        for expected in [
            config(above("root.hcl", None)),
            config(above("root.hcl", Some("/_env/vpc.hcl"))),
            config(above("terragrunt.hcl", None)),
            config(Place::Beside("./../common.hcl".into())),
            config(above("account.hcl", None)),
            config(Place::Beside("../region.hcl".into())),
            config(above("names.yaml", None)),
            config(Place::Top("/none.yaml".into())),
            config(Place::Beside("../secrets.yaml".into())),
            config(Place::Beside("../by-hand.tfvars".into())),
            config(Place::Top("/common.tfvars".into())),
            config(above("env.tfvars", None)),
            (Kind::Module, Place::Top(format!("/modules{SPLIT}vpc"))),
        ] {
            assert!(
                found.contains(&expected),
                "{expected:?} is not in {found:?}"
            );
        }
        let own = "terraform {\n  extra_arguments \"v\" {\n    required_var_files = [\"${get_parent_terragrunt_dir()}/all.tfvars\"]\n  }\n}";
        assert_eq!(
            read("root.hcl", own, true),
            Read::From(vec![config(Place::Beside("./all.tfvars".into()))])
        );
        assert_eq!(
            read("names.yaml", "module: [", true),
            Read::From(vec![]),
            "data, and none of Terragrunt's"
        );
        let remote = "terraform { source = \"git::https://h/r.git//m?ref=${local.v}\" }";
        assert_eq!(read("terragrunt.hcl", remote, false), Read::From(vec![]));
        let registry =
            "terraform { source = \"tfr:///terraform-aws-modules/vpc/aws?version=5.0.0\" }";
        assert_eq!(read("terragrunt.hcl", registry, false), Read::From(vec![]));
    }
}
