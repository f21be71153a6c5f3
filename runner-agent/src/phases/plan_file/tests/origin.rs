//! Tests of the copies of configuration and state in a plan file.

use std::io::Read as _;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::*;

type Members = Vec<(String, Vec<u8>)>;

fn members(file: &[u8]) -> Members {
    let file = kept(file);
    let archive = Archive::open(&file).unwrap();
    let read = |name: &str| {
        let mut bytes = Vec::new();
        archive
            .member(name)
            .unwrap()
            .0
            .read_to_end(&mut bytes)
            .unwrap();
        (name.to_owned(), bytes)
    };
    archive.names().map(read).collect()
}

fn packed(members: &Members) -> Vec<u8> {
    let parts: Vec<_> = members
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    archive(&parts, 8)
}

fn member<'a>(members: &'a mut Members, name: &str) -> &'a mut Vec<u8> {
    &mut members
        .iter_mut()
        .find(|(member, _)| member == name)
        .unwrap()
        .1
}

/// A plan, and what it was made from: the stack in a directory, and the state.
struct Made {
    members: Members,
    stack: TempDir,
    state: Value,
    operation: Operation,
    is_tofu: bool,
    variables: Map<String, Value>,
}

impl Made {
    /// From the copies of a plan that a tool wrote.
    fn of(file: &[u8], operation: Operation) -> Self {
        let (mut members, stack) = (members(file), tempfile::tempdir().unwrap());
        let list: Value =
            serde_json::from_slice(member(&mut members, "tfconfig/modules.json")).unwrap();
        for module in list.as_array().unwrap() {
            let dir = stack.path().join(module["Dir"].as_str().unwrap());
            let prefix = format!("tfconfig/m-{}/", module["Key"].as_str().unwrap());
            fs::create_dir_all(&dir).unwrap();
            for (name, bytes) in &members {
                if let Some(name) = name.strip_prefix(&prefix) {
                    fs::write(dir.join(name), bytes).unwrap();
                }
            }
        }
        let data = stack.path().join(".terraform/modules");
        fs::create_dir_all(&data).unwrap();
        fs::write(
            data.join("modules.json"),
            json!({"Modules": list}).to_string(),
        )
        .unwrap();
        // Moves are carried out in this copy already.
        let mut state: Value =
            serde_json::from_slice(member(&mut members, "tfstate-prev")).unwrap();
        for resource in state["resources"].as_array_mut().unwrap() {
            match resource["name"].as_str().unwrap() {
                "new" if operation != Operation::Destroy => resource["name"] = json!("old"),
                "newer" if operation != Operation::Destroy => resource["name"] = json!("older"),
                _ => {}
            }
        }
        let after: Value = serde_json::from_slice(member(&mut members, "tfstate")).unwrap();
        state["serial"] = after["serial"].clone();
        Self {
            members,
            stack,
            state,
            operation,
            is_tofu: true,
            variables: Map::new(),
        }
    }

    fn every() -> Self {
        Self::of(&every("opentofu-1.12.6"), Operation::Apply)
    }

    fn read(&self) -> Checked<PlanFacts> {
        let root = self.stack.path();
        let origin = Origin {
            operation: self.operation,
            sources: Sources::of(root, root, self.is_tofu).unwrap(),
            given: Given {
                workspace: "default".to_owned(),
                variables: self.variables.clone(),
                may_be_partial: false,
                by_terragrunt: false,
            },
            state: State::pulled(kept_at_start(&self.state.to_string())).unwrap(),
        };
        let mut facts = PlanFacts::default();
        facts.lists_moves = self.operation == Operation::RefreshOnly;
        let file = kept(&packed(&self.members));
        read(&file, facts)?.compare(&file, origin)
    }

    fn lines(&self) -> Vec<String> {
        self.read().unwrap().lines()
    }

    /// Why it is refused.
    fn why(&self) -> String {
        match self.read().unwrap_err() {
            Refused::Contradicted(what) => what,
            other => format!("{other:?}"),
        }
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        let bytes = member(&mut self.members, name);
        let mut value = serde_json::from_slice(bytes).unwrap();
        edit(&mut value);
        *bytes = value.to_string().into_bytes();
    }

    /// Edits a resource of the state in the plan file.
    fn edit_state(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        self.edit("tfstate", |state| edit(resource_of(state, name)));
    }

    fn drop_resource(&mut self, name: &str) {
        self.edit("tfstate", |state| {
            let resources = state["resources"].as_array_mut().unwrap();
            resources.retain(|one| one["name"] != name);
        });
    }
}

fn resource_of<'a>(state: &'a mut Value, name: &str) -> &'a mut Value {
    let resources = state["resources"].as_array_mut().unwrap();
    resources
        .iter_mut()
        .find(|one| one["name"] == name)
        .unwrap()
}

/// A file that is read from its start.
fn kept_at_start(text: &str) -> File {
    use std::io::Seek as _;
    let mut file = kept(text.as_bytes());
    file.rewind().unwrap();
    file
}

/// A change of a made plan file or state.
type Edit<T> = fn(&mut T);
type BoxedEdit = Box<dyn Fn(&mut Made)>;

#[test]
fn copies_of_each_version_are_those_of_their_origin() {
    for (path, file, _) in plans() {
        let operation = match Path::new(&path).file_stem().unwrap().to_str().unwrap() {
            "destroy" => Operation::Destroy,
            "refresh-only" => Operation::RefreshOnly,
            _ => Operation::Apply,
        };
        let facts = Made::of(&file, operation)
            .read()
            .unwrap_or_else(|why| panic!("{path}: {why:?}"));
        let (lines, own) = (facts.lines(), super::facts(&file).unwrap().lines());
        match operation {
            // The tools list no drift in such a plan.
            Operation::Destroy => assert_eq!(
                lines[lines.len() - 6..lines.len() - 4],
                [
                    "! object_text.drifted (changed in the state)",
                    "! time_rotating.drifted (gone from the state)"
                ]
            ),
            Operation::RefreshOnly => {
                assert_eq!(
                    lines[..2],
                    [
                        "> terraform_data.new (moved from terraform_data.old)",
                        "> terraform_data.newer (moved from terraform_data.older)"
                    ]
                );
                assert_eq!(facts.counts.moved, 2);
                let json = File::open(Path::new(&path)).unwrap();
                let mut printed = PlanFacts::default();
                printed.lists_moves = true;
                assert_eq!(
                    facts.contradicted_by(read_plan(json, printed).unwrap()),
                    None
                );
            }
            _ => assert_eq!(lines, own, "{path}"),
        }
    }
}

#[test]
fn state_that_no_list_explains_is_a_contradiction() {
    let outputs = |state: &mut Value| state["outputs"]["same"]["value"] = json!("other");
    let rows: [(&str, Edit<Made>); 11] = [
        ("no terraform_data.updated in its state", |made| {
            made.drop_resource("updated");
        }),
        ("no terraform_data.fixed", |made| {
            made.state["resources"][0]["name"] = json!("fixed");
            made.state["resources"][0]["mode"] = json!("managed");
            made.state["resources"][0]["type"] = json!("terraform_data");
        }),
        // A moved object has its address of before the plan.
        ("no terraform_data.older in its state", |made| {
            made.drop_resource("newer");
        }),
        ("terraform_data.other in its state, which", |made| {
            made.edit_state("updated", |one| one["name"] = json!("other"));
        }),
        ("twice", |made| {
            made.edit_state("updated", |one| {
                let instance = one["instances"][0].clone();
                one["instances"].as_array_mut().unwrap().push(instance);
            });
        }),
        // The tools would take the second field.
        ("fields that no tool writes", |made| {
            made.edit("tfstate", |state| state["Resources"] = json!([]));
        }),
        ("fields that no tool writes", |made| {
            made.edit_state("updated", |one| {
                one["instances"][0]["Attributes"] = json!({});
            });
        }),
        ("Stale", |made| {
            made.edit("tfstate", |state| state["serial"] = json!(99));
        }),
        ("version 5", |made| {
            made.edit("tfstate", |state| state["version"] = json!(5));
        }),
        ("its state cannot be read", |made| {
            made.edit("tfstate", |state| *state = json!([]));
        }),
        ("mode of another", |made| {
            made.operation = Operation::Destroy;
        }),
    ];
    for (says, change) in rows {
        let mut made = Made::every();
        made.read().unwrap();
        change(&mut made);
        // A moved object is named by its address before the plan.
        let why = made.why();
        assert!(
            why.contains(says) || says.contains("newer"),
            "{why} is not {says}"
        );
    }
    let mut made = Made::every();
    made.edit("tfstate", outputs);
    assert!(made.why().contains("a value of output.same"));
}

#[test]
fn changes_of_the_state_without_a_word_of_the_tool_are_listed() {
    let rows: [(&str, Edit<Value>); 4] = [
        ("! terraform_data.updated (changed in the state)", |one| {
            one["instances"][0]["attributes"]["id"] = json!("other");
        }),
        ("! terraform_data.updated (changed in the state)", |one| {
            one["instances"][0]["attributes"]["id"] = json!(null);
        }),
        ("! terraform_data.updated (changed in the state)", |one| {
            one["instances"][0]["status"] = json!("tainted");
        }),
        (
            "! terraform_data.same (deposed object gone from the state)",
            |one| {
                let instances = one["instances"].as_array_mut().unwrap();
                instances.retain(|instance| instance["deposed"].is_null());
            },
        ),
    ];
    for (line, change) in rows {
        let mut made = Made::every();
        let before = made.read().unwrap().counts.drifted;
        made.edit_state(
            if line.contains("same") {
                "same"
            } else {
                "updated"
            },
            change,
        );
        let facts = made.read().unwrap();
        assert!(
            facts.lines().contains(&line.to_owned()),
            "{:?}",
            facts.lines()
        );
        assert_eq!(facts.counts.drifted, before + 1);
    }
    // Another version of the provider adds an attribute without a value, or has another schema.
    let rows: [fn(&mut Value); 2] = [
        |one| one["instances"][0]["attributes"]["new"] = json!({"a": null, "b": [], "c": ""}),
        |one| {
            one["instances"][0]["schema_version"] = json!(1);
            one["instances"][0]["attributes"]["id"] = json!("other");
        },
    ];
    for change in rows {
        let mut made = Made::every();
        let before = made.lines();
        made.edit_state("updated", change);
        assert_eq!(made.lines(), before);
    }
}

#[test]
fn configuration_that_was_not_in_the_stack_is_a_contradiction() {
    let manifest =
        |change: fn(&mut Value)| move |made: &mut Made| made.edit("tfconfig/modules.json", change);
    let add = |name: &'static str| {
        move |made: &mut Made| {
            made.members
                .push((name.to_owned(), b"output \"x\" { value = 1 }".to_vec()));
        }
    };
    let rows: [(&str, BoxedEdit); 10] = [
        (
            "\"/main.tf\", which was not",
            Box::new(|made| member(&mut made.members, "tfconfig/m-/main.tf").push(b' ')),
        ),
        (
            "\"m.deep/main.tf\", which",
            Box::new(|made| member(&mut made.members, "tfconfig/m-m.deep/main.tf").clear()),
        ),
        (
            "\"/z_override.tf\", which",
            Box::new(add("tfconfig/m-/z_override.tf")),
        ),
        (
            "\"m/../x.tf\", which",
            Box::new(add("tfconfig/m-m/../x.tf")),
        ),
        (
            "no \"forget.tf\" of the module \"\"",
            Box::new(|made| {
                made.members
                    .retain(|(name, _)| !name.ends_with("forget.tf"));
            }),
        ),
        (
            "the module \"m\" of ../mod",
            Box::new(manifest(|list| list[1]["Dir"] = json!("../mod"))),
        ),
        (
            "the module \"\" of /",
            Box::new(manifest(|list| list[0]["Dir"] = json!("/"))),
        ),
        (
            "the module \"n\"",
            Box::new(manifest(|list| list[1]["Key"] = json!("n"))),
        ),
        (
            "unknown field `dir`",
            Box::new(manifest(|list| list[1]["dir"] = json!("../mod"))),
        ),
        (
            "is not known to this release",
            Box::new(add("tfconfig/other")),
        ),
    ];
    for (says, change) in rows {
        let mut made = Made::every();
        change(&mut made);
        let why = made.why();
        assert!(why.contains(says), "{why} is not {says}");
    }
}

#[test]
fn files_that_a_tool_leaves_out_are_no_contradiction() {
    let mut made = Made::every();
    let write = |made: &Made, name: &str| fs::write(made.stack.path().join(name), "x").unwrap();
    for name in [
        ".hidden.tf",
        "old.tf~",
        "#a.tf#",
        "a.tftest.hcl",
        "readme",
        "a.auto.tfvars",
    ] {
        write(&made, name);
    }
    fs::create_dir(made.stack.path().join("folder.tf")).unwrap();
    made.read().unwrap();
    // Terraform reads no files of OpenTofu, and OpenTofu no file with one of its own beside it.
    write(&made, "main.tofu");
    assert!(made.why().contains("no \"main.tofu\""));
    made.is_tofu = false;
    made.read().unwrap();
    made.is_tofu = true;
    let (name, bytes) = ("tfconfig/m-/main.tofu".to_owned(), b"x".to_vec());
    made.members.push((name, bytes));
    made.members
        .retain(|(name, _)| name != "tfconfig/m-/main.tf");
    made.read().unwrap();
    // A link to a file outside.
    let outside = tempfile::tempdir().unwrap();
    let linked = made.stack.path().join("main.tofu");
    fs::rename(&linked, outside.path().join("main")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("main"), linked).unwrap();
    made.read().unwrap();
}

#[test]
fn escaped_addresses_are_compared_as_text() {
    for (escaped, text) in [
        (r#"a.b["x"]"#, r#"a.b["x"]"#),
        ("a.b[\"\\u00a0\\U0001f600\"]", "a.b[\"\u{a0}\u{1f600}\"]"),
        (r#"a.b["\\u0041"]"#, r#"a.b["\\u0041"]"#),
        ("a\\", "a\\"),
        ("a\\u12", "a\\u12"),
    ] {
        assert_eq!(canonical(escaped), text);
    }
}

/// A variable as the tools write it: its type and its value.
fn variable(name: &str, of: &str, value: &[u8]) -> Vec<u8> {
    let mark = [0x92, 0xc4, u8::try_from(of.len()).unwrap()];
    let value = [&mark, of.as_bytes(), value].concat();
    field(2, [field(1, name), field(2, field(1, value))].concat())
}

fn backend(config: &[u8]) -> Vec<u8> {
    field(13, field(2, field(1, config)))
}

#[test]
fn other_inputs_of_the_apply_are_a_contradiction() {
    let list = r#"["tuple",["string",["object",{"b":"dynamic"}]]]"#;
    let honest = || {
        vec![
            variable("size", "\"number\"", &[3]),
            variable("rate", "\"number\"", b"\xa30.1"),
            variable("zones", list, b"\x92\xa1a\x81\xa1b\xc0"),
            variable("name", "\"string\"", b"\xa1x"),
            variable("accent", "\"string\"", b"\xa3e\xcc\x81"),
            field(22, "late"),
        ]
    };
    let made = |more: &[Vec<u8>]| {
        let mut made = Made::every();
        let given = json!({"size": 3, "rate": 0.1, "zones": ["a", {"b": null}], "name": "x", "accent": "é", "none": null, "late": "y"});
        made.variables = given.as_object().unwrap().clone();
        let config =
            json!({"backend": {"type": "local", "config": {"path": "x", "workspace_dir": null}}});
        let record = made.stack.path().join(".terraform/terraform.tfstate");
        fs::write(record, config.to_string()).unwrap();
        let plan = member(&mut made.members, "tfplan");
        plan.extend(backend(b"\x82\xa4path\xa1x\xadworkspace_dir\xc0"));
        plan.extend(more.concat());
        made
    };
    made(&honest()).read().unwrap();
    let added: [(&str, Vec<u8>); 12] = [
        (
            "another value of var.size than the run",
            variable("size", "\"number\"", &[4]),
        ),
        ("var.size", variable("size", "\"string\"", b"\xa1x")),
        ("var.rate", variable("rate", "\"number\"", b"\xa30.2")),
        (
            "var.zones",
            variable("zones", list, b"\x92\xa1a\x81\xa1b\xa1c"),
        ),
        ("var.name", variable("name", "\"string\"", b"\xa1y")),
        ("var.accent", variable("accent", "\"string\"", b"\xa1e")),
        (
            "var.name",
            variable(
                "name",
                "\"string\"",
                &[&b"\xda\x10\x00"[..], &[b'x'; 4096]].concat(),
            ),
        ),
        ("another backend (local)", backend(b"\x81\xa4path\xa1y")),
        ("another backend (http)", field(13, field(1, "http"))),
        ("the workspace \"other\"", field(13, field(3, "other"))),
        ("targets, which", field(5, "terraform_data.same")),
        ("targets, which", field(6, "terraform_data.same")),
    ];
    for (says, field) in added {
        let why = made(&[honest(), vec![field]].concat()).why();
        assert!(why.contains(says), "{why} is not {says}");
    }
    // Without the value, and without the mark that it is ephemeral.
    for (at, name) in [(3, "name"), (5, "late")] {
        let mut less = honest();
        less.remove(at);
        assert!(made(&less).why().contains(name));
    }
    let why = made(&[honest(), vec![field(13, field(4, "x"))]].concat()).why();
    assert!(why.contains("field 4 of its backend"), "{why}");
}
