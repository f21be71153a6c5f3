//! Determines the part of a tree that is relevant to a layer, and its digest: pure over the tree's entries and its
//! code. Comparing the digests of two trees needs no history, so none can be missed (`design/0028-repositories.md`).

use std::collections::BTreeSet;

use crds::{digest::hex_digest, text::clip};
use sha2::{Digest as _, Sha256};

use crate::{
    glob::Glob,
    tree::{Entry, Tree, join},
    walk::{Ask, Known, Step, Walk},
};

/// The most calls that a status names.
const NAMED: usize = 8;

/// A layer's settings about relevance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Directory of its stack.
    pub path: String,
    /// Variable files and hooks of the source, relative to that directory.
    pub files: Vec<String>,
    /// Globs of additional paths, relative to the root.
    pub triggers: Vec<String>,
}

/// The content for a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Its directory exists; the digest of everything relevant, and what cannot be followed.
    There(String, Vec<String>),
    /// It does not exist; the reason, for people.
    NotThere(String),
    /// These blobs must be read first.
    Missing(BTreeSet<(String, Ask)>),
}

/// The content for a layer in a tree.
pub fn content(tree: &Tree, subject: &Subject, known: &Known) -> Content {
    let Some(dir) = join("", &subject.path) else {
        return Content::NotThere(format!(
            "{} leads out of the repository",
            clip(&subject.path, 200)
        ));
    };
    let mut walk = Walk::new(tree, known, &dir);
    let found = walk.resolve(&dir);
    if walk.missing.is_empty() && !found.as_deref().is_some_and(|found| walk.is_dir(found)) {
        return Content::NotThere(not_there(tree, &dir));
    }
    let files = subject
        .files
        .iter()
        .filter_map(|path| join(&dir, path))
        .map(Step::All);
    walk.consult();
    walk.follow([Step::Module(dir.clone())].into_iter().chain(files));
    if !walk.missing.is_empty() {
        return Content::Missing(walk.missing);
    }
    let mut triggers: Vec<_> = subject
        .triggers
        .iter()
        .map(|trigger| (Glob::new(trigger), false))
        .collect();
    let is_asked = |entry: &&Entry| {
        let mut asked = walk.everything;
        for (glob, found) in &mut triggers {
            let matches = !(asked && *found) && glob.matches(&entry.path);
            (asked, *found) = (asked || matches, *found || matches);
        }
        asked
    };
    walk.relevant.extend(tree.entries().iter().filter(is_asked));
    let idle = subject.triggers.iter().zip(&triggers);
    let idle = idle.filter(|(_, (_, found))| !found);
    let idle = idle.map(|(text, _)| format!("triggerPaths: no file matches {text}"));
    let mut not_followed: Vec<_> = idle.chain(walk.not_followed).collect();
    if not_followed.len() > NAMED {
        let more = not_followed.len() - NAMED + 1;
        not_followed.truncate(NAMED - 1);
        not_followed.push(format!("and {more} more"));
    }
    Content::There(digest(walk.relevant), not_followed)
}

/// The content of a layer whose references were not followed to their end: the whole tree.
pub fn whole(tree: &Tree, why: String) -> Content {
    Content::There(digest(tree.entries()), vec![why])
}

fn digest<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut digest = Sha256::new();
    for entry in entries {
        digest.update(format!("{:o} {} {}\0", entry.mode, entry.id, entry.path));
    }
    hex_digest(&digest.finalize())
}

fn not_there(tree: &Tree, dir: &str) -> String {
    let top = tree.top().join(", ");
    let top = if top.is_empty() {
        "no directories".to_owned()
    } else {
        clip(&top, 200)
    };
    if dir.is_empty() {
        return "the repository is empty there".to_owned();
    }
    let why = if tree.at(dir).is_some() {
        "is no directory of the repository"
    } else {
        "is not in the repository"
    };
    format!("{} {why}; at its top it has: {top}", clip(dir, 200))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Write as _};

    mod reports;

    use super::*;
    use crate::walk::understood;
    use tool_versions::request::files;

    /// A tree of files, and of links, whose text starts with `->`.
    struct Repo(BTreeMap<String, String>);

    impl Repo {
        fn of(files: &[(&str, &str)]) -> Self {
            Self(
                files
                    .iter()
                    .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
                    .collect(),
            )
        }

        fn with(&self, path: &str, text: &str) -> Self {
            let mut files = self.0.clone();
            files.insert(path.to_owned(), text.to_owned());
            Self(files)
        }

        fn without(&self, path: &str) -> Self {
            let mut files = self.0.clone();
            files.remove(path).unwrap();
            Self(files)
        }

        fn content(&self, subject: &Subject) -> Content {
            let id = |text: &str| hex_digest(&Sha256::digest(text)).replace("sha256:", "");
            let mut listing = String::new();
            for (path, text) in &self.0 {
                let mode = if text.starts_with("->") {
                    "120000"
                } else {
                    "100644"
                };
                writeln!(listing, "{mode} blob {} {}\t{path}", id(text), text.len()).unwrap();
            }
            let listing = listing.replace('\n', "\0");
            let tree = Tree::parse(listing.as_bytes()).unwrap();
            let mut known = Known::new();
            loop {
                match content(&tree, subject, &known) {
                    Content::Missing(missing) => {
                        assert!(
                            missing.iter().all(|key| !known.contains_key(key)),
                            "it is asked twice: {missing:?}"
                        );
                        for (of, ask) in missing {
                            let text = self.0.values().find(|text| id(text) == of).unwrap();
                            let blob = understood(&ask, text.trim_start_matches("->").as_bytes());
                            known.insert((of, ask), blob);
                        }
                    }
                    other => return other,
                }
            }
        }

        fn digest(&self, subject: &Subject) -> String {
            match self.content(subject) {
                Content::There(digest, _) => digest,
                other => panic!("{other:?}"),
            }
        }
    }

    fn at(path: &str) -> Subject {
        Subject {
            path: path.into(),
            ..Subject::default()
        }
    }

    fn repo() -> Repo {
        Repo::of(&[
            ("README.md", "r"),
            (
                "stacks/app/main.tf",
                "module \"a\" { source = \"../../modules/a\" }\n",
            ),
            ("stacks/app/files/policy.json", "{}"),
            ("stacks/app-old/main.tf", "# old\n"),
            ("stacks/app/prod.tfvars", "x = 1\n"),
            ("modules/a/main.tf", "module \"b\" { source = \"../b\" }\n"),
            ("modules/b/main.tf", "# b\n"),
            ("modules/b/templates/t.tpl", "t"),
            ("modules/c/main.tf", "# c\n"),
            ("env/common.tfvars", "y = 1\n"),
        ])
    }

    #[test]
    fn directory_and_transitive_modules_are_relevant() {
        let (repo, app) = (repo(), at("./stacks/app/"));
        let digest = repo.digest(&app);
        for path in [
            "stacks/app/main.tf",
            "stacks/app/files/policy.json",
            "modules/a/main.tf",
            "modules/b/templates/t.tpl",
        ] {
            let text = repo.0[path].clone() + "# changed\n";
            assert_ne!(repo.with(path, &text).digest(&app), digest, "{path}");
        }
        // Burrito 11.10: `stacks/app-old` is not part of `stacks/app`.
        for path in [
            "README.md",
            "stacks/app-old/main.tf",
            "modules/c/main.tf",
            "env/common.tfvars",
            "stacks/new/main.tf",
        ] {
            assert_eq!(repo.with(path, "other").digest(&app), digest, "{path}");
        }
        assert_ne!(
            repo.with("stacks/app/new.tf", "").digest(&app),
            digest,
            "a new file"
        );
        assert_ne!(repo.digest(&at(".")), digest);
    }

    /// Burrito 11.10: a commit that only deletes was not relevant.
    #[test]
    fn deletions_and_renames_are_relevant() {
        let (repo, app) = (repo(), at("stacks/app"));
        let digest = repo.digest(&app);
        for path in [
            "stacks/app/prod.tfvars",
            "modules/b/templates/t.tpl",
            "modules/b/main.tf",
        ] {
            assert_ne!(repo.without(path).digest(&app), digest, "{path}");
        }
        let renamed = repo
            .without("stacks/app/prod.tfvars")
            .with("stacks/app/production.tfvars", "x = 1\n");
        assert_ne!(renamed.digest(&app), digest);
        assert_eq!(repo.without("modules/c/main.tf").digest(&app), digest);
    }

    /// Burrito 11.10: trigger paths were joined to the layer's path, so none from the root of the repository could
    /// match.
    #[test]
    fn variable_files_and_trigger_paths_are_relevant() {
        let repo = repo();
        let subject = Subject {
            path: "stacks/app".into(),
            files: vec![
                "../../env/common.tfvars".into(),
                "../../../etc/passwd".into(),
            ],
            triggers: vec!["modules/c/**".into(), "*.md".into()],
        };
        let digest = repo.digest(&subject);
        for path in ["env/common.tfvars", "modules/c/main.tf", "README.md"] {
            assert_ne!(
                repo.with(path, "changed").digest(&subject),
                digest,
                "{path}"
            );
        }
        assert_eq!(repo.with("env/other.tfvars", "").digest(&subject), digest);
    }

    #[test]
    fn trigger_path_without_a_file_is_named() {
        let triggers = ["../x/**", "*.md", "modules/c/**", "README.*", r"modules\c"];
        let subject = Subject {
            path: "stacks/app".into(),
            triggers: triggers.map(str::to_owned).into(),
            ..Subject::default()
        };
        let idle = |repo: &Repo| match repo.content(&subject) {
            Content::There(_, named) => named,
            other => panic!("{other:?}"),
        };
        let named =
            ["../x/**", r"modules\c"].map(|of| format!("triggerPaths: no file matches {of}"));
        assert_eq!(idle(&repo()), named);
        // A tree that is relevant as a whole hides none of them.
        let whole = repo().with(
            "stacks/app/x.tf",
            "module \"x\" { source = \"./${var.x}\" }\n",
        );
        assert_eq!(idle(&whole)[..2], named);
    }

    #[test]
    fn link_targets_are_relevant() {
        let repo = repo()
            .with("stacks/app/common.tf", "->../../shared/common.tf")
            .with("shared/common.tf", "module \"s\" { source = \"./s\" }\n")
            .with("stacks/app/s/main.tf", "# s\n")
            .with("shared/s/main.tf", "# of nobody\n")
            .with("stacks/app/current", "->../../modules/c")
            .with("live", "->stacks")
            .with("stacks/app/loop", "->loop")
            .with("stacks/app/out", "->../../../etc");
        for app in ["stacks/app", "live/app"] {
            let app = at(app);
            let digest = repo.digest(&app);
            for path in [
                "shared/common.tf",
                "modules/c/main.tf",
                "stacks/app/s/main.tf",
            ] {
                assert_ne!(repo.with(path, "changed").digest(&app), digest, "{path}");
            }
            assert_eq!(
                repo.with("shared/s/main.tf", "changed").digest(&app),
                digest,
                "a link's code is where the link is"
            );
        }
    }

    #[test]
    fn files_read_by_functions_are_relevant() {
        let repo = repo()
            .with(
                "stacks/app/more.tf",
                "locals {\n  a = jsondecode(file(\"../../env/a.json\"))\n  b = file(var.path)\n}\n",
            )
            .with(
                "modules/a/t.tf",
                "locals { t = templatefile(\"${path.module}/../t.tpl\", {}) }\n",
            )
            .with(
                "modules/b/f.tf",
                "locals { f = fileset(\"${path.root}/../../policies\", \"*\") }\n",
            )
            .with("env/a.json", "{}")
            .with("modules/t.tpl", "t")
            .with("policies/a/b.json", "{}");
        let app = at("stacks/app");
        let digest = repo.digest(&app);
        for path in ["env/a.json", "modules/t.tpl", "policies/a/b.json"] {
            assert_ne!(repo.with(path, "changed").digest(&app), digest, "{path}");
        }
        assert_ne!(repo.with("policies/new.json", "").digest(&app), digest);
        let Content::There(_, not_followed) = repo.content(&app) else {
            panic!()
        };
        assert_eq!(not_followed, ["stacks/app/more.tf:3: file(var.path)"]);
    }

    #[test]
    fn files_that_setup_consults_are_relevant() {
        let app = Subject {
            files: vec!["../../hooks/check.sh".into()],
            ..at("stacks/app")
        };
        let digest = repo().digest(&app);
        let at_top = [".lfsconfig", ".gitmodules", "hooks/check.sh"];
        let names: Vec<_> = files::names().chain([".gitattributes"]).collect();
        let above = names
            .iter()
            .flat_map(|name| [(*name).to_owned(), format!("stacks/{name}")]);
        for path in at_top.map(str::to_owned).into_iter().chain(above) {
            assert_ne!(repo().with(&path, "").digest(&app), digest, "{path}");
        }
        for path in ["modules/.terraform-version", "env/root.hcl", ".envrc"] {
            assert_eq!(repo().with(path, "").digest(&app), digest, "{path}");
        }
    }

    /// Each file has a neutral content, so no file ends the search.
    #[test]
    fn choice_of_the_tool_reads_relevant_files_only() {
        use std::{fs, time::SystemTime};
        let top = tempfile::tempdir().unwrap();
        let others = [
            ".envrc",
            ".terraformrc",
            ".tofurc",
            "README.md",
            "main.tf",
            "override.tf",
            "pawl.yaml",
            "terraform.tfvars",
            ".terraform.lock.hcl",
            "versions.tf",
            "common.hcl",
            "env.hcl",
            ".mise.toml",
            "mise.toml",
            ".tenv",
            "go.mod",
        ];
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for dir in ["", "live/", "live/app/"] {
            for name in files::names().chain(others) {
                let makes_a_unit = dir == "live/app/" && name.starts_with("terragrunt.hcl");
                if !makes_a_unit {
                    let text = if name.ends_with("json") {
                        "{}"
                    } else {
                        "# required_version\n"
                    };
                    files.insert(format!("{dir}{name}"), text.to_owned());
                }
            }
        }
        let long_ago = SystemTime::UNIX_EPOCH;
        fs::create_dir_all(top.path().join("live/app")).unwrap();
        for (path, text) in &files {
            let path = top.path().join(path);
            fs::write(&path, text).unwrap();
            let times = fs::FileTimes::new().set_accessed(long_ago);
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_times(times)
                .unwrap();
        }
        let is_read = |path: &str| {
            let meta = fs::metadata(top.path().join(path)).unwrap();
            meta.accessed().unwrap() != long_ago
        };
        let stack = top.path().join("live/app");
        for tool in [None, Some(tool_versions::Tool::Terragrunt)] {
            let requested = tool_versions::Requested {
                tool,
                ..tool_versions::Requested::default()
            };
            let defaults = tool_versions::Defaults::default();
            tool_versions::decide(&requested, &stack, top.path(), &defaults).unwrap();
        }
        if !is_read(".opentofu-version") {
            return println!("left out: this disk keeps no times of access");
        }
        let repo = Repo(files);
        let app = at("live/app");
        let digest = repo.digest(&app);
        let read: Vec<_> = repo.0.keys().filter(|path| is_read(path)).collect();
        for path in &read {
            assert_ne!(repo.with(path, "changed").digest(&app), digest, "{path}");
        }
        for name in files::names() {
            assert!(
                read.iter().any(|path| path.as_str() == name),
                "{name} was not read"
            );
        }
    }

    #[test]
    fn unknown_references_make_everything_relevant() {
        let app = at("stacks/app");
        for text in [
            "module \"x\" { source = \"./${var.x}\" }",
            "module \"x\" {",
            &format!("# {}", "x".repeat(300 << 10)),
        ] {
            let repo = repo().with("stacks/app/more.tf", text);
            assert_ne!(
                repo.with("README.md", "changed").digest(&app),
                repo.digest(&app)
            );
        }
    }

    #[test]
    fn simple_terragrunt_references_are_followed() {
        let repo = Repo::of(&[
            (
                "root.hcl",
                "locals { a = read_terragrunt_config(find_in_parent_folders(\"account.hcl\")) }\nterraform {\n  extra_arguments \"v\" {\n    \
                 required_var_files = [\"${get_parent_terragrunt_dir()}/all.tfvars\", \"${get_terragrunt_dir()}/../near.tfvars\"]\n  }\n}",
            ),
            ("all.tfvars", "a = 1"),
            ("live/near.tfvars", "b = 1"),
            ("live/account.hcl", "locals {}"),
            (
                "live/vpc/terragrunt.hcl",
                "include \"root\" { path = find_in_parent_folders(\"root.hcl\") }\nterraform { source = \"../../modules//vpc\" }",
            ),
            (
                "modules/vpc/main.tf",
                "module \"n\" { source = \"../net\" }",
            ),
            ("modules/net/main.tf", ""),
            ("modules/tags/main.tf", ""),
            ("live/db/terragrunt.hcl", ""),
        ]);
        let vpc = at("live/vpc");
        let digest = repo.digest(&vpc);
        for path in [
            "root.hcl",
            "all.tfvars",
            "live/near.tfvars",
            "live/account.hcl",
            "modules/vpc/main.tf",
            "modules/net/main.tf",
            "modules/tags/main.tf",
        ] {
            let text = repo.0[path].clone() + "\n";
            assert_ne!(repo.with(path, &text).digest(&vpc), digest, "{path}");
        }
        assert_eq!(
            repo.with("live/db/terragrunt.hcl", "\n").digest(&vpc),
            digest
        );
        let unknown = repo.with(
            "live/account.hcl",
            "locals { x = read_terragrunt_config(\"${local.region}.hcl\") }",
        );
        assert_ne!(
            unknown.with("live/db/terragrunt.hcl", "\n").digest(&vpc),
            unknown.digest(&vpc),
            "nobody knows what is read"
        );
    }

    #[test]
    fn missing_directory_is_reported() {
        let repo = repo();
        for (path, said) in [
            (
                "stack",
                "stack is not in the repository; at its top it has: env, modules, stacks",
            ),
            ("README.md", "README.md is no directory of the repository"),
            ("../x", "../x leads out of the repository"),
        ] {
            let Content::NotThere(why) = repo.content(&at(path)) else {
                panic!("{path}")
            };
            assert!(why.starts_with(said), "{why}");
        }
        assert!(matches!(
            Repo::of(&[]).content(&at(".")),
            Content::NotThere(_)
        ));
    }

    #[test]
    fn submodule_counts_as_its_commit() {
        let tree = |id: char| {
            let id = id.to_string().repeat(40);
            Tree::parse(
                format!("100644 blob {id} 1\t.gitmodules\0160000 commit {id} -\tmodules/m\0")
                    .as_bytes(),
            )
            .unwrap()
        };
        let of = |id, path: &str| content(&tree(id), &at(path), &Known::new());
        for path in ["modules/m", "modules/m/deep"] {
            assert!(matches!(of('a', path), Content::There(..)), "{path}");
            assert_ne!(of('a', path), of('b', path));
        }
    }
}
