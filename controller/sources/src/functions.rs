//! Finds the paths that calls of `file`, `templatefile` and the other functions that read files name.

use crds::text::clip;
use hcl_edit::{
    Span as _,
    expr::{Expression, FuncCall},
    template::Element,
    visit::{Visit, visit_func_call},
};
use serde_json::Value;
use tool_versions::request::{hcl, place::line_of};

use crate::place::{Kind, Place};

/// The functions of the language that read the file, or the directory, that their first argument names.
pub const READERS: [&str; 11] = [
    "file",
    "filebase64",
    "fileexists",
    "fileset",
    "filemd5",
    "filesha1",
    "filesha256",
    "filesha512",
    "filebase64sha256",
    "filebase64sha512",
    "templatefile",
];
/// In the name of each of them.
pub const READER: &str = "file";
/// Maximum length of a computed call in a status, in characters.
const SHOWN: usize = 100;

/// Collects the calls by which the language reads files, with constant paths or not.
pub struct Reads<'a> {
    pub found: Vec<(Kind, Place)>,
    text: &'a str,
}

impl<'a> Reads<'a> {
    pub const fn new(text: &'a str) -> Self {
        Self {
            found: Vec::new(),
            text,
        }
    }
}

impl Visit for Reads<'_> {
    fn visit_func_call(&mut self, call: &FuncCall) {
        if READERS.contains(&call.name.name.as_str())
            && let Some(argument) = call.args.get(0)
        {
            match read_path(argument) {
                Some(place) => self.found.extend(place.map(|place| (Kind::Data, place))),
                None => self.found.push(computed(call, argument, self.text)),
            }
        }
        visit_func_call(self, call);
    }
}

/// A call with its line, for people.
pub fn computed(call: &FuncCall, argument: &Expression, text: &str) -> (Kind, Place) {
    let span = call.name.name.span();
    let line = span.map_or(1, |span| line_of(text, span.start));
    let call = format!(
        "{line}: {}({})",
        call.name.name,
        argument.to_string().trim()
    );
    (Kind::Computed, Place::Beside(clip(&call, SHOWN)))
}

/// The path that a function reads. Of a computed path below a constant directory it is that directory. The outer `None`: it is
/// computed; the inner one: it is outside the repository.
#[expect(clippy::option_option, reason = "computed, outside, or a place")]
fn read_path(path: &Expression) -> Option<Option<Place>> {
    match path {
        Expression::String(text) => {
            let is_outside = text.starts_with('/') || text.starts_with('~');
            Some((!is_outside).then(|| Place::Stack(text.to_string())))
        }
        Expression::Parenthesis(inner) => read_path(inner.inner()),
        Expression::FuncCall(call) if call.name.name.as_str() == "abspath" => {
            read_path(call.args.get(0)?)
        }
        Expression::Traversal(_) => Some(Some(of_path(path)?(String::new()))),
        Expression::StringTemplate(template) => {
            let mut elements = template.iter().peekable();
            let mut of: fn(String) -> Place = Place::Stack;
            if let Some(Element::Interpolation(first)) = elements.peek() {
                of = of_path(&first.expr)?;
                elements.next();
            }
            let mut path = String::new();
            for element in elements {
                let Some(text) = element.as_literal() else {
                    let dir = path.rsplit_once('/')?.0.trim_start_matches('/');
                    return Some(Some(of(dir.to_owned())));
                };
                path.push_str(text);
            }
            Some(Some(of(path.trim_start_matches('/').to_owned())))
        }
        _ => None,
    }
}

/// `path.module`, `path.root` and `path.cwd`.
fn of_path(expression: &Expression) -> Option<fn(String) -> Place> {
    match expression.to_string().trim() {
        "path.module" => Some(Place::Beside),
        "path.root" | "path.cwd" => Some(Place::Stack),
        _ => None,
    }
}

/// The same in the templates of JSON, whose strings are those of the language.
pub fn json_reads(value: &Value, found: &mut Vec<(Kind, Place)>) {
    match value {
        Value::String(text)
            if ["${", "%{"].iter().any(|template| text.contains(template))
                && text.contains(READER) =>
        {
            // A here document is a template without escapes. Lines of JSON are not known.
            let code = format!("x = <<PAWL\n{text}\nPAWL\n");
            let mut reads = Reads::new("");
            if let Ok(body) = hcl::parse(&code) {
                reads.visit_body(&body);
            } else {
                let call = (
                    Kind::Computed,
                    Place::Beside(clip(&format!("1: {text}"), SHOWN)),
                );
                reads.found.push(call);
            }
            found.extend(reads.found);
        }
        Value::Array(all) => all.iter().for_each(|value| json_reads(value, found)),
        Value::Object(all) => all.values().for_each(|value| json_reads(value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::references::{Read, read};

    #[test]
    fn constant_paths_of_functions_are_followed() {
        let beside = |path: &str| (Kind::Data, Place::Beside(path.into()));
        let stack = |path: &str| (Kind::Data, Place::Stack(path.into()));
        let computed = |call: &str| (Kind::Computed, Place::Beside(call.into()));
        for (call, wanted) in [
            (r#"file("a.json")"#, vec![stack("a.json")]),
            (
                r#"jsondecode(file("${path.module}/../a.json")).b"#,
                vec![beside("../a.json")],
            ),
            (
                r#"templatefile("${path.root}/t.tpl", { a = filesha256("./b") })"#,
                vec![stack("t.tpl"), stack("./b")],
            ),
            (
                r#"[for f in fileset(path.module, "*.json") : file("${path.module}/p/${f}")]"#,
                vec![beside(""), beside("p")],
            ),
            (r#""x ${filebase64(abspath(("c")))}""#, vec![stack("c")]),
            (r#"file("../d/${var.e}.json")"#, vec![stack("../d")]),
            (r#"file("/etc/hosts")"#, vec![]),
            ("file(var.path)", vec![computed("1: file(var.path)")]),
            (
                r#"fileexists("${var.dir}/x")"#,
                vec![computed(r#"1: fileexists("${var.dir}/x")"#)],
            ),
        ] {
            let hcl = format!("locals {{ x = {call} }}\n");
            let (found, named) = (read("a.tf", &hcl, false), Read::From(wanted.clone()));
            assert_eq!(found, named, "{call}");
            let json = serde_json::json!({"locals": {"x": format!("${{{call}}}")}});
            assert_eq!(read("a.tf.json", &json.to_string(), false), named, "{call}");
        }
        let unit = read(
            "terragrunt.hcl",
            "locals {\n  a = file(\"a.yaml\")\n  b = file(local.c)\n}\n",
            false,
        );
        assert_eq!(
            unit,
            Read::From(vec![beside("a.yaml"), computed("3: file(local.c)")])
        );
    }
}
