//! Lists as servers write them. `fuzzed` runs every parser over `corpus/lists`.

use std::{fs, path::Path};

use tool_versions::{
    Kind, Version,
    releases::{
        lists::{self, MOST, PAGE, page, read, sorted},
        mirror::ListKind,
    },
};

use super::fails;

fn file(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/lists").join(name)).unwrap()
}

fn texts(versions: &[Version]) -> Vec<String> {
    versions.iter().map(Version::to_string).collect()
}

#[test]
fn each_kind_is_parsed() {
    let rows: &[(ListKind, &str, &[&str])] = &[
        (ListKind::HashiCorp, "hashicorp.json", &["1.10.0", "1.10.0-rc1", "1.9.8", "0.11.15-oci", "0.1.0"]),
        (ListKind::GitHub, "github.json", &["1.0.0-rc1", "0.93.10", "0.93.9"]),
        (ListKind::OpenTofu, "opentofu.json", &["1.11.0-beta1", "1.10.6", "1.6.0", "1.6.0-alpha1"]),
        (ListKind::OpenTofu, "opentofu-mark.json", &["1.6.0"]),
        (ListKind::Html, "hashicorp.html", &["1.10.0-rc1", "1.9.8"]),
        (ListKind::Html, "nginx.html", &["1.10.6", "1.9.0", "1.8.0-beta2", "1.7.0", "1.5.0"]),
        (ListKind::Directory, "directory.txt", &["1.10.6", "1.9.8", "1.2.3"]),
    ];
    for (kind, name, wanted) in rows {
        assert_eq!(texts(&read(*kind, "the list", &file(name)).unwrap()), *wanted, "{name}");
    }
}

#[test]
fn text_that_is_no_list_is_refused() {
    let rows = [
        (ListKind::HashiCorp, "login.html", Kind::Unavailable, "page of HTML and no JSON"),
        (ListKind::GitHub, "login.html", Kind::Unavailable, "begins with `<!DOCTYPE html>"),
        (ListKind::OpenTofu, "login.html", Kind::Unavailable, "the list is a page of HTML"),
        (ListKind::Html, "login.html", Kind::Integrity, "no version"),
        (ListKind::HashiCorp, "hashicorp-empty.json", Kind::Integrity, "no version"),
        (ListKind::HashiCorp, "hashicorp-cut.json", Kind::Integrity, "begins with `{\"name\":\"terraform\""),
        (ListKind::HashiCorp, "empty.json", Kind::Integrity, "cannot be read"),
        (ListKind::HashiCorp, "opentofu.json", Kind::Integrity, "cannot be read"),
        (ListKind::OpenTofu, "hashicorp.json", Kind::Integrity, "cannot be read"),
        (ListKind::OpenTofu, "github.json", Kind::Integrity, "cannot be read"),
        (ListKind::OpenTofu, "deep.json", Kind::Integrity, "no version"),
        (ListKind::OpenTofu, "opentofu-bytes.json", Kind::Integrity, "cannot be read"),
        (ListKind::GitHub, "github-limit.json", Kind::Integrity, "API rate limit exceeded"),
        (ListKind::GitHub, "github-last.json", Kind::Integrity, "no version"),
        (ListKind::Directory, "empty.json", Kind::Integrity, "no version"),
    ];
    for (kind, name, error, says) in rows {
        let error = fails(read(kind, "the list", &file(name)), error, says);
        assert!(error.text.starts_with("the list ") && error.text.len() < 400 && !error.text.contains('\n'), "{error}");
    }
}

#[test]
fn pages_count_their_entries() {
    let first = page("the list", &file("github.json")).unwrap();
    assert_eq!((first.entries, first.versions.len()), (12, 4));
    let last = page("the list", &file("github-last.json")).unwrap();
    assert_eq!((last.entries, last.versions.len()), (0, 0));
    assert!(first.entries < PAGE);
}

#[test]
fn lists_are_bounded() {
    let entries = |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(",");
    let keys = |count| format!("{{\"versions\":{{{}}}}}", entries(count, &|i| format!("\"1.0.{i}\":1")));
    let ids = |count| format!("{{\"versions\":[{}]}}", entries(count, &|i| format!("{{\"id\":\"1.0.{i}\"}}")));
    let tags = |count| format!("[{}]", entries(count, &|i| format!("{{\"tag_name\":\"v1.0.{i}\"}}")));
    let links = |count| entries(count, &|i| format!("<a href=v1.0.{i}/>"));
    let rows: [(ListKind, &dyn Fn(usize) -> String); 4] =
        [(ListKind::HashiCorp, &keys), (ListKind::OpenTofu, &ids), (ListKind::GitHub, &tags), (ListKind::Html, &links)];
    for (kind, list) in rows {
        assert_eq!(read(kind, "the list", list(MOST).as_bytes()).unwrap().len(), MOST, "{kind:?}");
        fails(read(kind, "the list", list(MOST + 1).as_bytes()), Kind::Integrity, "more than 50000");
    }
    let large = vec![b' '; usize::try_from(lists::LARGEST).unwrap() + 1];
    for kind in [ListKind::HashiCorp, ListKind::OpenTofu, ListKind::GitHub, ListKind::Html] {
        fails(read(kind, "the list", &large), Kind::Integrity, "");
    }
}

#[test]
fn versions_are_sorted_and_unique() {
    let versions = ["1.0.0", "1.10.0", "1.9.0", "1.0", "1.10.0-rc1"].map(|text| text.parse().unwrap());
    assert_eq!(texts(&sorted("the list", versions).unwrap()), ["1.10.0", "1.10.0-rc1", "1.9.0", "1.0.0"]);
    fails(sorted("the list", []), Kind::Integrity, "the list has no version in it");
}
