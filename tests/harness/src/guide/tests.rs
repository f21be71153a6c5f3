//! Tests of the pages: every command and manifest is tested or states why not, and every link has a target.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Number of blocks marked `not run`. Change it together with the page, which gives the reason.
const NOT_RUN: usize = 18;

/// The source code of all suites that run blocks.
fn suites() -> String {
    let mut text = String::new();
    for suite in ["pods", "local", "api"] {
        for entry in fs::read_dir(root().join("tests").join(suite)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(path).unwrap();
            }
        }
    }
    text
}

#[test]
fn every_command_and_manifest_is_run_or_excused() {
    let suites = suites();
    let (mut names, mut not_run, mut wrong) = (BTreeSet::new(), 0, Vec::new());
    for block in all().unwrap() {
        let place = &block.place;
        match (block.language.as_str(), &block.mark) {
            ("text" | "mermaid", None) | ("yaml", Some(Mark::Accepted | Mark::Values(_))) => {}
            ("text" | "mermaid", Some(_)) => {
                wrong.push(format!("{place}: what is printed is not run"));
            }
            ("sh" | "yaml", None) => {
                wrong.push(format!("{place}: no comment says whether it is run"));
            }
            ("sh" | "yaml", Some(Mark::Run(name))) => {
                if !names.insert(name.clone()) {
                    wrong.push(format!("{place}: `{name}` stands twice"));
                }
                if !suites.contains(&format!("\"{name}\"")) {
                    wrong.push(format!("{place}: no test runs `{name}`"));
                }
            }
            ("sh", Some(Mark::Accepted | Mark::Values(_))) => {
                wrong.push(format!("{place}: no manifest"));
            }
            ("sh" | "yaml", Some(Mark::NotRun(_))) => not_run += 1,
            (other, _) => wrong.push(format!("{place}: `{other}` is no language of these pages")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(not_run, NOT_RUN, "blocks that nobody runs");
}

#[test]
fn blocks_are_parsed_with_and_without_marks() {
    let text = "words\n<!-- run: a b -->\n```sh\nls\n\nid\n```\n\n```yaml\na: 1\n```\n<!-- not run: why -->\n```sh\nrm\n```\n";
    let seen: Vec<_> = blocks("p", text)
        .unwrap()
        .into_iter()
        .map(|b| (b.place, b.language, b.mark, b.text))
        .collect();
    let of = |place: &str, language: &str, mark, text: &str| {
        (place.to_owned(), language.to_owned(), mark, text.to_owned())
    };
    assert_eq!(
        seen,
        [
            of("p:3", "sh", Some(Mark::Run("a b".into())), "ls\n\nid\n"),
            of("p:9", "yaml", None, "a: 1\n"),
            of("p:13", "sh", Some(Mark::NotRun("why".into())), "rm\n"),
        ]
    );
    assert!(blocks("p", "```sh\nls\n").is_err());
    for line in [
        "<!-- run: -->",
        "<!-- ran: a -->",
        "<!-- accepted: a -->",
        "run: a",
    ] {
        assert_eq!(Mark::read(line), None, "{line}");
    }
}

/// The checks above do not see indented code blocks.
#[test]
fn code_is_always_fenced() {
    for page in pages().unwrap() {
        let text = read(&page).unwrap();
        let mut fenced = false;
        let mut before = "";
        for (number, line) in text.lines().enumerate() {
            fenced ^= line.starts_with("```");
            let indented = !fenced && line.starts_with("    ") && before.is_empty();
            assert!(!indented, "{}:{}: {line}", page.display(), number + 1);
            before = line;
        }
    }
}

#[test]
fn readme_is_short_and_begins_with_a_run_without_needs() {
    let readme = read(Path::new("README.md")).unwrap();
    assert!(
        readme.lines().count() <= 200,
        "{} lines",
        readme.lines().count()
    );
    let blocks = blocks("README.md", &readme).unwrap();
    let first = blocks
        .iter()
        .find(|block| block.language == "yaml")
        .unwrap();
    assert_eq!(first.mark, Some(Mark::Run("hello.yaml".into())));
    let run: crds::TerraformRun = serde_saphyr::from_str(&first.text).unwrap();
    let needs_nothing = run.metadata.namespace.is_none()
        && run.spec.source.inline.is_some()
        && run.spec.env.is_empty();
    assert!(
        needs_nothing
            && run.spec.variables.is_empty()
            && run.spec.runner == crds::Runner::default(),
        "{run:?}"
    );
}

#[test]
fn manifests_and_values_are_parsed() {
    for block in all()
        .unwrap()
        .into_iter()
        .filter(|block| block.language == "yaml")
    {
        let mut manifest: serde_json::Value =
            serde_saphyr::from_str(&block.text).unwrap_or_else(|e| panic!("{}: {e}", block.place));
        if matches!(&block.mark, Some(Mark::Run(name)) if name.starts_with("pawl.yaml")) {
            // Its source is the folder that contains it.
            manifest["spec"]["source"] = serde_json::json!({});
            manifest["metadata"] = serde_json::json!({});
        }
        if manifest["kind"] == "TerraformRun" {
            // Round trip through the types: serde ignores unknown fields, so they are missing in the output.
            let run: crds::TerraformRun = serde_json::from_value(manifest.clone())
                .unwrap_or_else(|e| panic!("{}: {e}", block.place));
            holds(
                &block.place,
                &serde_json::to_value(&run.spec).unwrap(),
                &manifest["spec"],
            );
        }
    }
}

/// Fails if `part` has a field that `whole` lacks.
fn holds(place: &str, whole: &serde_json::Value, part: &serde_json::Value) {
    match part {
        serde_json::Value::Object(fields) => {
            for (name, inner) in fields {
                assert!(!whole[name].is_null(), "{place}: there is no field {name}");
                holds(place, &whole[name], inner);
            }
        }
        serde_json::Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(n, inner)| holds(place, &whole[n], inner)),
        _ => {}
    }
}

/// The anchor of a heading, as links name it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_link_has_a_target() {
    let mut pages = pages().unwrap();
    for entry in fs::read_dir(root().join("design")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path.strip_prefix(root()).unwrap().to_owned());
        }
    }
    let mut anchors: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut headings_of = |path: &Path| {
        let read = || {
            let text = fs::read_to_string(path).unwrap_or_default();
            let headings = text.lines().filter(|line| line.starts_with('#'));
            headings
                .map(|line| anchor(line.trim_start_matches('#')))
                .collect()
        };
        anchors.entry(path.to_owned()).or_insert_with(read).clone()
    };
    let mut wrong = Vec::new();
    for page in pages {
        let text = read(&page).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            let (file, part) = link
                .split_once('#')
                .map_or((link, None), |(file, part)| (file, Some(part)));
            let here = root().join(&page);
            let target = if file.is_empty() {
                here
            } else {
                here.parent().unwrap().join(file)
            };
            let Ok(target) = target.canonicalize() else {
                wrong.push(format!("{}: {link}", page.display()));
                continue;
            };
            if part.is_some_and(|part| !headings_of(&target).contains(part)) {
                wrong.push(format!("{}: {link}: no such heading", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_page_is_in_the_list_and_in_readme() {
    let (list, readme) = (
        read(Path::new("design/guide/README.md")).unwrap(),
        read(Path::new("README.md")).unwrap(),
    );
    for page in pages()
        .unwrap()
        .iter()
        .filter(|page| page.starts_with("design/guide"))
    {
        let name = page.file_name().unwrap().to_string_lossy();
        assert!(
            name == "README.md" || list.contains(&format!("]({name})")),
            "{name} is not in the list"
        );
        assert!(
            readme.contains(&format!("](design/guide/{name})")),
            "{name} is not in README"
        );
    }
}

/// Annotations, roles, metrics and exit codes in the handwritten pages.
#[test]
fn guide_names_annotations_phases_results_and_roles() {
    let guide: String = pages()
        .unwrap()
        .iter()
        .map(|page| read(page).unwrap())
        .collect();
    let gestures = [
        crds::names::APPROVE,
        crds::names::DENY,
        crds::names::CANCEL,
        crds::names::RERUN,
        crds::names::RECOVER,
    ];
    let phases = crds::Phase::ALL.map(crds::Phase::as_str);
    let results = crds::RunResult::ALL.map(crds::RunResult::as_str);
    let roles = fs::read_to_string(root().join("charts/pawl/templates/roles.yaml")).unwrap();
    let roles = roles
        .lines()
        .filter_map(|line| line.trim().strip_prefix("name: "));
    for word in gestures
        .into_iter()
        .chain(phases)
        .chain(results)
        .chain(roles)
    {
        assert!(
            guide.contains(&format!("`{word}")) || guide.contains(&format!(" {word}")),
            "{word}"
        );
    }
}
