//! Detects whether the code may configure a backend.

use std::{fs, path::Path};

/// Whether any file of the stack contains a word of a backend, even in a comment. A false positive costs a second `init`. A false
/// negative would replace the code's own backend.
pub fn mentions_backend(stack: &Path) -> bool {
    let code = [".tf", ".tofu", ".tf.json", ".tofu.json"];
    fs::read_dir(stack)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Terragrunt may generate code with a backend (`remote_state`, `generate`) from files in other directories.
            if name == "terragrunt.hcl" || name == "terragrunt.hcl.json" {
                return true;
            }
            if !code.iter().any(|end| name.ends_with(end)) {
                return false;
            }
            // `init` reports unreadable files.
            let text = fs::read(entry.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            text.contains("backend") || text.contains("cloud")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_is_never_overlooked() {
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
