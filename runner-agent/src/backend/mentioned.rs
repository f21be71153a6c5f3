//! Whether the code says anything of a backend.

use std::{fs, path::Path};

/// Whether any file of the stack has a word of a backend. It may stand in a comment: then `init` says that there is none, and a
/// second one follows. The other way round it would replace a backend that the code has.
pub fn mentions_backend(stack: &Path) -> bool {
    let code = [".tf", ".tofu", ".tf.json", ".tofu.json"];
    fs::read_dir(stack).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // It may write code with a backend (`remote_state`, `generate`), from files that lie anywhere.
        if name == "terragrunt.hcl" || name == "terragrunt.hcl.json" {
            return true;
        }
        if !code.iter().any(|end| name.ends_with(end)) {
            return false;
        }
        // What cannot be read here, `init` will speak of.
        let text = fs::read(entry.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.contains("backend") || text.contains("cloud")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_never_overlooked() {
        let dir = tempfile::tempdir().unwrap();
        let with = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            let found = mentions_backend(dir.path());
            fs::remove_file(dir.path().join(name)).unwrap();
            found
        };
        assert!(!with("main.tf", "resource \"terraform_data\" \"a\" {}"));
        assert!(!with("README.md", "backend"));
        for (name, text) in [
            ("main.tf", "terraform {\n  backend \"s3\" {}\n}"),
            ("b.tofu", "terraform { backend\n\"s3\" {} }"),
            ("c.tf.json", r#"{"terraform":{"backend":{"s3":{}}}}"#),
            ("d.tofu.json", r#"{"terraform":[{"cloud":{}}]}"#),
            ("e.tf", "# backend"),
            ("terragrunt.hcl", ""),
        ] {
            assert!(with(name, text), "{name}");
        }
    }
}
