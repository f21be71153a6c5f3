//! Paths in code that programs and providers read: `source_dir = "../lambda"`, `execute = ["${get_repo_root()}/check.sh"]`,
//! `-backend-config=../prod.hcl`. A word that begins as a path counts, whatever it is for; the tree then has to have it.

use tool_versions::request::hcl;

use crate::place::{Kind, Place};

type Beginning = (&'static str, fn(String) -> Place);

/// How such a word begins, and the place of the rest. The tool runs in the stack's directory, whose own files are relevant anyway.
const BEGINNINGS: [Beginning; 6] = [
    ("../", Place::Stack),
    ("${path.module}/", Place::Beside),
    ("${get_terragrunt_dir()}/", Place::Beside),
    ("${path.root}/", Place::Stack),
    ("${path.cwd}/", Place::Stack),
    ("${get_repo_root()}/", Place::Top),
];

/// Adds the paths that nothing else was found for. Those of Terragrunt's directories are units, which count by themselves.
pub(crate) fn add(text: &str, is_terragrunt: bool, found: &mut Vec<(Kind, Place)>) {
    let kind = if is_terragrunt {
        Kind::MentionedFile
    } else {
        Kind::Mentioned
    };
    for line in text.lines().filter(|line| !hcl::is_comment(line)) {
        for (beginning, place) in BEGINNINGS {
            for (at, _) in line.match_indices(beginning) {
                if line[..at].ends_with(is_of_path) {
                    continue;
                }
                let rest = &line[at + beginning.len()..];
                let end = rest.find(|c| !is_of_path(c)).unwrap_or(rest.len());
                // The rest of this path is computed.
                if ["${", "%{"]
                    .iter()
                    .any(|next| rest[end..].starts_with(next))
                {
                    continue;
                }
                let above = if beginning == "../" { beginning } else { "" };
                let path = format!("{above}{}", &rest[..end]);
                if !found.iter().any(|(_, known)| known.path() == path) {
                    found.push((kind, place(path)));
                }
            }
        }
    }
}

fn is_of_path(c: char) -> bool {
    c.is_alphanumeric() || "._-/+@~}".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_words_that_begin_as_paths_are_found() {
        let beside = |path: &str| Place::Beside(path.into());
        let stack = |path: &str| Place::Stack(path.into());
        for (code, wanted) in [
            (
                r#"source_dir = "../lambda/src""#,
                vec![stack("../lambda/src")],
            ),
            (
                r#"{"filename": "${path.module}/../a.zip"}"#,
                vec![beside("../a.zip")],
            ),
            (
                "command = <<E\n  cd ${path.root}/../s && ./x ../../y.py --a=../z\nE",
                vec![stack("../../y.py"), stack("../z"), stack("../s")],
            ),
            (
                r#"execute = ["${get_repo_root()}/check.sh", "a/../b"]"#,
                vec![Place::Top("check.sh".into())],
            ),
            (r#"x = "../${var.a}/b""#, vec![]),
            (r#"x = "${var.a}/../b""#, vec![]),
            ("# as in ../b\n// or ../c", vec![]),
        ] {
            let mut found = Vec::new();
            add(code, false, &mut found);
            let wanted: Vec<_> = wanted
                .into_iter()
                .map(|place| (Kind::Mentioned, place))
                .collect();
            assert_eq!(found, wanted, "{code}");
        }
    }
}
