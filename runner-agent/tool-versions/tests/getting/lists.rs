//! Lists as servers write them. `fuzzed` runs every parser over `corpus/lists`.

use std::{fs, path::Path};

use tool_versions::{
    Kind, Version,
    releases::{
        lists::{self, MOST, PAGE, page, read, sorted},
        mirror::ListKind::{self, Directory, GitHub, HashiCorp, Html, OpenTofu},
    },
};

use crate::{fails, table};

const KINDS: [ListKind; 5] = [HashiCorp, GitHub, OpenTofu, Html, Directory];

/// The kind of this name, and the content of a file.
fn file(kind: &str, name: &str) -> (ListKind, Vec<u8>) {
    let kind = KINDS
        .into_iter()
        .find(|one| format!("{one:?}") == kind)
        .unwrap();
    (
        kind,
        fs::read(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("corpus/lists")
                .join(name),
        )
        .unwrap(),
    )
}

fn texts(versions: &[Version]) -> Vec<String> {
    versions.iter().map(Version::to_string).collect()
}

/// Kind, file, and its versions.
const GOOD: &str = "
    HashiCorp | hashicorp.json | 1.10.0 1.10.0-rc1 1.9.8 0.11.15-oci 0.1.0
    GitHub | github.json | 1.0.0-rc1 0.93.10 0.93.9
    OpenTofu | opentofu.json | 1.11.0-beta1 1.10.6 1.6.0 1.6.0-alpha1
    OpenTofu | opentofu-mark.json | 1.6.0
    Html | hashicorp.html | 1.10.0-rc1 1.9.8
    Html | nginx.html | 1.10.6 1.9.0 1.8.0-beta2 1.7.0 1.5.0
    Directory | directory.txt | 1.10.6 1.9.8 1.2.3
";

#[test]
fn each_kind_is_parsed() {
    for [kind, name, wanted] in table(GOOD) {
        let (kind, bytes) = file(kind, name);
        assert_eq!(
            texts(&read(kind, "the list", &bytes).unwrap()).join(" "),
            wanted,
            "{name}"
        );
    }
}

/// Kind, file, and a part of the error.
const BAD: &str = "
    HashiCorp | login.html | page of HTML and no JSON
    GitHub | login.html | begins with `<!DOCTYPE html>
    OpenTofu | login.html | the list is a page of HTML
    Html | login.html | no version
    HashiCorp | hashicorp-empty.json | no version
    HashiCorp | hashicorp-cut.json | begins with `{\"name\":\"terraform\"
    HashiCorp | empty.json | cannot be read
    HashiCorp | opentofu.json | cannot be read
    OpenTofu | hashicorp.json | cannot be read
    OpenTofu | github.json | cannot be read
    OpenTofu | deep.json | cannot be read
    OpenTofu | opentofu-bytes.json | cannot be read
    GitHub | github-limit.json | API rate limit exceeded
    GitHub | github-last.json | no version
    Directory | empty.json | no version
";

#[test]
fn text_that_is_no_list_is_refused() {
    for [kind, name, says] in table(BAD) {
        let (kind, bytes) = file(kind, name);
        let is_page = name == "login.html" && kind != Html;
        let error = if is_page {
            Kind::Unavailable
        } else {
            Kind::Integrity
        };
        let error = fails(read(kind, "the list", &bytes), error, says);
        assert!(
            error.text.starts_with("the list ")
                && error.text.len() < 400
                && !error.text.contains('\n'),
            "{error}"
        );
    }
}

#[test]
fn pages_count_their_entries() {
    let first = page("the list", &file("GitHub", "github.json").1).unwrap();
    assert_eq!((first.entries, first.versions.len()), (8, 4));
    let last = page("the list", &file("GitHub", "github-last.json").1).unwrap();
    assert_eq!((last.entries, last.versions.len()), (0, 0));
    assert!(first.entries < PAGE);
}

#[test]
fn lists_are_bounded() {
    for (kind, before, entry, after) in [
        (HashiCorp, r#"{"versions":{"#, r#""1.0.N":1"#, "}}"),
        (OpenTofu, r#"{"versions":["#, r#"{"id":"1.0.N"}"#, "]}"),
        (GitHub, "[", r#"{"tag_name":"v1.0.N"}"#, "]"),
        (Html, "", "<a href=v1.0.N/>", ""),
    ] {
        let list = |count: usize| {
            let entries: Vec<_> = (0..count)
                .map(|n| entry.replace('N', &n.to_string()))
                .collect();
            format!("{before}{}{after}", entries.join(","))
        };
        assert_eq!(
            read(kind, "the list", list(MOST).as_bytes()).unwrap().len(),
            MOST,
            "{kind:?}"
        );
        fails(
            read(kind, "the list", list(MOST + 1).as_bytes()),
            Kind::Integrity,
            "more than 50000",
        );
        let large = vec![b' '; usize::try_from(lists::LARGEST).unwrap() + 1];
        fails(read(kind, "the list", &large), Kind::Integrity, "");
    }
}

#[test]
fn versions_are_sorted_and_unique() {
    let versions =
        ["1.0.0", "1.10.0", "1.9.0", "1.0", "1.10.0-rc1"].map(|text| text.parse().unwrap());
    assert_eq!(
        texts(&sorted("the list", versions).unwrap()),
        ["1.10.0", "1.10.0-rc1", "1.9.0", "1.0.0"]
    );
    fails(
        sorted("the list", []),
        Kind::Integrity,
        "the list has no version in it",
    );
}
