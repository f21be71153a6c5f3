//! Tests with plan files of the real tools (`plans/README.md`), and with files that no tool writes.

mod origin;

use std::{fs, io::Write as _, path::Path};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};

use super::*;
use crate::phases::plan_json::read_plan;

fn kept(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn facts(bytes: &[u8]) -> Read<PlanFacts> {
    Ok(read(&kept(bytes), PlanFacts::default())?.facts)
}

fn why(bytes: &[u8]) -> String {
    facts(bytes).unwrap_err().0
}

/// All plans of the tools: path, plan file, and what the tool printed.
fn plans() -> Vec<(String, Vec<u8>, PlanFacts)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/phases/plan_file/plans");
    let folders = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut plans = Vec::new();
    for folder in folders.filter(|path| path.is_dir()) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|word| word == "json") {
                let printed = read_plan(File::open(&path).unwrap(), PlanFacts::default()).unwrap();
                let file = fs::read(path.with_extension("tfplan")).unwrap();
                plans.push((path.display().to_string(), file, printed));
            }
        }
    }
    assert!(plans.len() >= 8);
    plans
}

fn every(version: &str) -> Vec<u8> {
    let (_, file, _) = plans()
        .into_iter()
        .find(|(path, ..)| path.ends_with(&format!("{version}/every.json")))
        .unwrap();
    file
}

#[test]
fn plan_files_of_each_version_agree_with_show() {
    for (path, file, printed) in plans() {
        let own = facts(&file).unwrap_or_else(|why| panic!("{path}: {why}"));
        assert_eq!(
            (own.counts, own.lines()),
            (printed.counts, printed.lines()),
            "{path}"
        );
        assert_eq!(own.contradicted_by(printed), None, "{path}");
    }
}

#[test]
fn every_kind_of_change_has_its_line() {
    let lines = [
        "- terraform_data.counted[1]",
        "- terraform_data.deleted",
        r#"- terraform_data.keyed["q\"uote"]"#,
        "- terraform_data.same (deposed)",
        r#"- module.m["data.gone"].terraform_data.inner"#,
        r#"- module.m["data.gone"].module.deep[0].terraform_data.deep"#,
        "-/+ terraform_data.replaced",
        "-/+ terraform_data.swapped",
        "-/+ terraform_data.tainted",
        ". terraform_data.forgotten (forgotten)",
        "~ object_text.drifted",
        "~ terraform_data.newer (moved from terraform_data.older)",
        "~ terraform_data.updated",
        r#"~ module.m["x.y"].terraform_data.inner"#,
        "+ terraform_data.created",
        r#"+ terraform_data.keyed["new \"q\""]"#,
        "+ time_rotating.drifted",
        "= terraform_data.imported (imported)",
        "> terraform_data.new (moved from terraform_data.old)",
        "! object_text.drifted (changed outside of the code: content)",
        "! time_rotating.drifted (deleted outside of the code)",
        "~ output.changed",
        "- output.gone",
        "~ output.secret",
        "+ output.unknown",
    ];
    for version in ["opentofu-1.10.6", "opentofu-1.12.6", "terraform-1.13.3"] {
        assert_eq!(facts(&every(version)).unwrap().lines(), lines, "{version}");
    }
}

#[test]
fn other_words_of_the_tool_are_a_contradiction() {
    let own = facts(&every("opentofu-1.10.6")).unwrap();
    let text = include_str!("plans/opentofu-1.10.6/every.json");
    let rows = [
        // An action, an address, a reason, an output, drift, an import, a deposed object, a previous address; and an entry more or less.
        (
            r#""terraform_data.deleted","action_reason":"delete_because_no_resource_config","change":{"actions":["delete"]}"#,
            r#""terraform_data.deleted","action_reason":"delete_because_no_resource_config","change":{"actions":["no-op"]}"#,
        ),
        ("terraform_data.created", "terraform_data.harmless"),
        ("replace_because_tainted", "replace_by_request"),
        (
            r#""gone":{"actions":["delete"]}"#,
            r#""gone":{"actions":["no-op"]}"#,
        ),
        (
            r#""address":"time_rotating.drifted","change":{"actions":["delete"],"before""#,
            r#""address":"time_rotating.drifted","change":{"actions":["update"],"before""#,
        ),
        (r#","importing":{"id":"some-id"}"#, ""),
        (r#""deposed":"abcd1234","#, ""),
        (r#""previous_address":"terraform_data.old","#, ""),
        (
            r#"{"address":"terraform_data.created","change":{"actions":["create"]}},"#,
            "",
        ),
        (
            r#"{"address":"terraform_data.created","#,
            r#"{"address":"a.b","change":{"actions":["no-op"]}},{"address":"terraform_data.created","#,
        ),
    ];
    for (from, to) in rows {
        let other = text.replacen(from, to, 1);
        assert_ne!(other, text, "{from}");
        let printed = read_plan(other.as_bytes(), PlanFacts::default()).unwrap();
        let (file, tool) = own.clone().contradicted_by(printed).unwrap();
        assert!(
            file.starts_with("+6 ~4 -9") && !tool.is_empty(),
            "{file} {tool}"
        );
    }
}

/// One field of a message.
fn field(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [
        varint(number << 3 | 2),
        varint(value.len() as u64),
        value.to_vec(),
    ]
    .concat()
}

fn flag(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

/// An archive with these members, packed with a method; as Go's writer makes it, but without checksums.
fn archive(members: &[(&str, Vec<u8>)], method: u16) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, plain) in members {
        let packed = if method == 8 {
            let mut deflate =
                flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            deflate.write_all(plain).unwrap();
            deflate.finish().unwrap()
        } else {
            plain.clone()
        };
        let at = u32::try_from(file.len()).unwrap().to_le_bytes();
        let size = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let shared = [
            &[20, 0, 0, 0][..],
            &method.to_le_bytes(),
            &[0; 8],
            &size(&packed),
            &size(plain),
            &u16::try_from(name.len()).unwrap().to_le_bytes(),
            &[0, 0],
        ]
        .concat();
        file.extend([b"PK\x03\x04", &shared[..], name.as_bytes(), &packed].concat());
        directory.extend(
            [
                b"PK\x01\x02\x14\x00",
                &shared[..],
                &[0; 10],
                &at,
                name.as_bytes(),
            ]
            .concat(),
        );
    }
    let count = u16::try_from(members.len()).unwrap().to_le_bytes();
    let long = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
    let end = [
        b"PK\x05\x06\0\0\0\0",
        &count[..],
        &count,
        &long(directory.len()),
        &long(file.len()),
        &[0, 0],
    ]
    .concat();
    [file, directory, end].concat()
}

fn resource(address: &str, action: u64) -> Vec<u8> {
    field(3, [field(13, address), field(9, flag(1, action))].concat())
}

fn file_of(fields: &[Vec<u8>]) -> Vec<u8> {
    archive(&[("tfplan", [&[flag(1, 3)], fields].concat().concat())], 8)
}

#[test]
fn made_file_is_read() {
    for method in [0, 8] {
        let plan = [flag(1, 3), resource("a.b", 5)].concat();
        let file = archive(&[("tfstate", vec![1]), ("tfplan", plan)], method);
        assert_eq!(facts(&file).unwrap().lines(), ["- a.b"]);
    }
}

#[test]
fn invocations_of_actions_are_changes() {
    let by = field(6, [field(1, "a.b"), flag(2, 2), flag(3, 0)].concat());
    let one = field(
        30,
        [field(1, "action.x.y"), field(2, "provider"), by].concat(),
    );
    let own = facts(&file_of(&[
        one,
        field(30, [field(1, "action.x.z"), field(7, "")].concat()),
    ]))
    .unwrap();
    assert!(own.has_changes() && own.counts.invoke == 2);
    assert_eq!(
        own.lines(),
        ["* action.x.y (invoked with a.b)", "* action.x.z"]
    );
    let text = |text: &str| read_plan(text.as_bytes(), PlanFacts::default()).unwrap();
    let whole = r#"{"action_invocations":[{"address":"action.x.y","lifecycle_action_trigger":{"triggering_resource_address":"a.b"}},{"address":"action.x.z","invoke_action_trigger":{}}]}"#;
    assert_eq!(own.clone().contradicted_by(text(whole)), None);
    assert!(own.contradicted_by(text("{}")).is_some());
}

#[test]
fn words_of_enumerations_are_those_of_show() {
    for (action, word) in ACTIONS {
        let own = facts(&file_of(&[resource("a.b", action)])).unwrap();
        let actions: Vec<_> = word.split(',').collect();
        let printed = serde_json::json!({"resource_changes": [{"address": "a.b", "change": {"actions": actions}}]});
        let printed = read_plan(printed.to_string().as_bytes(), PlanFacts::default()).unwrap();
        assert_eq!(own.contradicted_by(printed), None, "{word}");
    }
}

#[test]
fn deleted_data_source_is_no_change() {
    for (address, is_change) in [
        ("data.a.b", false),
        (r#"module.m["x].data.y"].data.a.b"#, false),
        (r#"module.m["data.x"].a.b"#, true),
        ("module.data.a.b", true),
        (r#"a.b["data."]"#, true),
    ] {
        let own = facts(&file_of(&[resource(address, 5)])).unwrap();
        assert_eq!(own.counts.destroy > 0, is_change, "{address}");
    }
}

#[test]
fn message_in_parts_is_one_message() {
    let parts = [field(9, flag(1, 1)), field(13, "a.b"), field(9, flag(1, 5))].concat();
    assert_eq!(
        facts(&file_of(&[field(3, parts)])).unwrap().lines(),
        ["- a.b"]
    );
}

#[test]
fn unknown_formats_are_not_read() {
    let of = |bytes: Vec<u8>| why(&archive(&[("tfplan", bytes)], 8));
    for (plan, says) in [
        (vec![], "version 0"),
        (flag(1, 4), "version 4"),
        ([flag(1, 3), field(33, "")].concat(), "field 33 of its plan"),
        // OpenTofu's graph of the new runtime, which an apply carries out as it is.
        (
            [flag(1, 3), field(500_000_000, "")].concat(),
            "field 500000000 of its plan",
        ),
        (
            [flag(1, 3), field(3, field(15, ""))].concat(),
            "field 15 of its change of a resource",
        ),
        ([flag(1, 3), resource("a.b", 4)].concat(), "action 4"),
        (
            [flag(1, 3), resource("a.b", 1 << 32 | 5)].concat(),
            "action 4294967301",
        ),
        // Terraform before 1.1: the address in parts.
        (
            [flag(1, 3), field(3, field(9, flag(1, 5)))].concat(),
            "without an address",
        ),
        (
            [flag(1, 3), field(3, field(13, "a.b"))].concat(),
            "or an action",
        ),
        (
            [flag(1, 3), field(3, field(13, [0xff]))].concat(),
            "no text",
        ),
        (
            [flag(1, 3), field(3, field(13, vec![b'a'; 70_000]))].concat(),
            "too long",
        ),
        ([flag(1, 3), flag(3, 0)].concat(), "damaged"),
        (
            [flag(1, 3), vec![3 << 3 | 3, 3 << 3 | 4]].concat(),
            "damaged",
        ),
        ([flag(1, 3), vec![2 << 3 | 2, 1]].concat(), "damaged"),
        (
            [flag(1, 3), field(3, [13 << 3 | 2, 9, b'a'])].concat(),
            "damaged",
        ),
        (vec![0x80; 11], "damaged"),
    ] {
        let found = of(plan);
        assert!(found.contains(says), "{found} is not {says}");
    }
    assert!(why(include_bytes!("plans/opentofu-1.10.6/encrypted.tfplan")).contains("encrypted"));
}

#[test]
fn ambiguous_archives_are_not_read() {
    let plan = [flag(1, 3), resource("a.b", 1)].concat();
    let good = archive(&[("tfplan", plan.clone())], 8);
    let edited = |at: usize, byte: u8| {
        let mut file = good.clone();
        let at = if at > 60 { file.len() - (100 - at) } else { at };
        file[at] = byte;
        file
    };
    let mut renamed = archive(&[("xxplan", plan.clone()), ("tfplan", plan.clone())], 8);
    renamed.truncate(renamed.len() - 1);
    for (file, says) in [
        (
            archive(&[("tfplan", plan.clone()), ("tfplan", plan.clone())], 8),
            "\"tfplan\" twice",
        ),
        (archive(&[("tfplan ", plan.clone())], 8), "no \"tfplan\""),
        (archive(&[("tfplan", plan.clone())], 12), "method 12"),
        (
            [b"PK".to_vec(), good.clone()].concat(),
            "not where it should be",
        ),
        ([good.clone(), vec![0]].concat(), "does not end"),
        (
            [good.clone(), good.clone()].concat(),
            "not where it should be",
        ),
        // The lengths of the comment and of the directory, the number of members, and the method.
        (edited(98, 1), "does not end"),
        (edited(88, 2), "directory is damaged"),
        (edited(0, b'Q'), "not in it"),
        (renamed, "does not end"),
        (b"plan".to_vec(), "too short"),
        (Vec::new(), "too short"),
        (vec![0; 100], "does not end"),
    ] {
        let found = why(&file);
        assert!(found.contains(says), "{found} is not {says}");
    }
    // More, or fewer, bytes than the directory has.
    let mut long = archive(&[("tfplan", plan.clone())], 0);
    let size = long
        .windows(4)
        .rposition(|word| word == b"PK\x01\x02")
        .unwrap()
        + 24;
    long[size] -= 2;
    assert!(why(&long).contains("damaged"));
    long[size] += 3;
    assert!(why(&long).contains("damaged"));
}

#[test]
fn damaged_files_are_refused_without_a_panic() {
    let whole = every("terraform-1.13.3");
    for at in (0..whole.len()).step_by(5) {
        let mut file = whole.clone();
        file[at] ^= 0x55;
        drop(facts(&file));
        drop(facts(&whole[..at]));
    }
    // The same below the compression.
    let plan = [
        flag(1, 3),
        resource("module.m[0].a.b", 5),
        field(
            18,
            [
                field(13, "a.b"),
                field(
                    9,
                    [
                        flag(1, 3),
                        field(2, field(1, b"\x81\xa1a\xc4\x01x")),
                        field(2, field(1, b"\x81\xa1a\xa1b")),
                    ]
                    .concat(),
                ),
            ]
            .concat(),
        ),
    ]
    .concat();
    for at in 0..plan.len() {
        for byte in [0, 0x7f, 0x80, 0xff, plan[at] ^ 1] {
            let mut plan = plan.clone();
            plan[at] = byte;
            drop(facts(&archive(&[("tfplan", plan)], 0)));
        }
    }
}

#[test]
fn bombs_are_bounded() {
    // 64 MB of one member in 300 KB. Its size is less than what it unpacks to.
    let mut file = file_of(&[field(19, vec![0; 64 << 20])]);
    assert_eq!(facts(&file).unwrap(), PlanFacts::default());
    let size = file
        .windows(4)
        .rposition(|word| word == b"PK\x01\x02")
        .unwrap()
        + 24;
    file[size..size + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(why(&file).contains("more than"));
    let nested = (0..200).fold(vec![0xc0], |value, _| [vec![0x91], value].concat());
    assert_eq!(values::value(&nested), None);
    assert_eq!(values::value(&[0xdf, 0xff, 0xff, 0xff, 0xff]), None);
}

#[test]
fn large_plan_is_read_at_once() {
    let values = field(2, field(1, vec![0xa5; 1_000]));
    let list: Vec<_> = (0..50_000)
        .map(|number| {
            let change = [flag(1, 1), values.clone()].concat();
            field(
                3,
                [field(13, format!("a.b[{number}]")), field(9, change)].concat(),
            )
        })
        .collect();
    let file = kept(&file_of(&list));
    // Of the processor, whatever else it does.
    let used = || {
        getrusage(UsageWho::RUSAGE_THREAD)
            .unwrap()
            .user_time()
            .num_milliseconds()
    };
    let begun = used();
    let facts = read(&file, PlanFacts::default()).unwrap().facts;
    assert_eq!(facts.counts.add, 50_000);
    assert_eq!(facts.lines()[10], "+ a.b[10]");
    let took = used() - begun;
    assert!(took < 1_000, "{took} ms");
}

#[test]
fn values_are_compared_by_attribute() {
    let value = |bytes: &[u8]| values::value(bytes).unwrap();
    // An attribute of an open type, which is a list of the type and the value.
    let open = |text: &[u8]| [&b"\x81\xa5input\x92\xc4\x08\"string\"\xa1"[..], text].concat();
    assert_eq!(value(&open(b"a")), serde_json::json!({"input": "a"}));
    assert_eq!(
        attributes(&value(&open(b"a")), &value(&open(b"b"))),
        ["input"]
    );
    for (bytes, same) in [
        (&b"\x05"[..], serde_json::json!(5)),
        (b"\xff", serde_json::json!(-1)),
        (b"\xcd\x01\x00", serde_json::json!(256)),
        (b"\x93\xc0\xc2\xc3", serde_json::json!([null, false, true])),
        (
            b"\xde\x00\x01\xd9\x01a\xdc\x00\x01\xa0",
            serde_json::json!({"a": [""]}),
        ),
    ] {
        assert_eq!(value(bytes), same);
    }
    for bytes in [
        &b""[..],
        b"\xc1",
        b"\xa2a",
        b"\x81\x01\x01",
        b"\xc0\xc0",
        b"\xd9",
    ] {
        assert_eq!(values::value(bytes), None, "{bytes:?}");
    }
}
