//! Globs in a layer's `triggerPaths`, matched relative to the root of the repository.

use fast_glob::glob_match;

/// `*` matches any text within a name, `?` one byte of it, `**` any number of directories; everything else is literal.
/// A glob that matches a directory matches all files below it. A leading `/`, empty names and `.` have no effect.
#[derive(Debug)]
pub struct Glob {
    itself: String,
    below: String,
}

impl Glob {
    pub fn new(text: &str) -> Self {
        let names = text.split('/').filter(|name| !matches!(*name, "" | "."));
        let text = names.collect::<Vec<_>>().join("/");
        let mut itself = String::new();
        for c in if text.is_empty() { "**" } else { &text }.chars() {
            // Escape the crate's sets, alternatives and negation: here they are literal.
            if "[]{}\\!".contains(c) {
                itself.push('\\');
            }
            itself.push(c);
        }
        let below = format!("{itself}/**");
        Self { itself, below }
    }

    pub fn matches(&self, path: &str) -> bool {
        glob_match(&self.itself, path) || glob_match(&self.below, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Burrito 11.10: `app` matched `/x/app-old/…`, and a path from the root of the repository matched nothing.
    #[test]
    fn glob_begins_at_the_top_and_matches_whole_names() {
        let rows = [
            ("app", "app/main.tf", true),
            ("app", "app-old/main.tf", false),
            ("app", "x/app/main.tf", false),
            ("app", "app", true),
            ("app/", "app/main.tf", true),
            ("./app", "app/main.tf", true),
            ("/app", "app/main.tf", true),
            ("app//x/./*.tf", "app/x/main.tf", true),
            ("/", "anything", true),
            ("../app", "app/main.tf", false),
            ("modules/**", "modules/a/b/c.tf", true),
            ("modules/**", "modules/a.tf", true),
            ("modules/**", "modules", false),
            ("modules/**", "modules2/a.tf", false),
            ("**/*.tfvars", "a/b/c.tfvars", true),
            ("**/*.tfvars", "c.tfvars", true),
            ("*.tfvars", "c.tfvars", true),
            ("*.tfvars", "a/c.tfvars", false),
            ("env/*/common.*", "env/prod/common.tfvars", true),
            ("env/*/common.*", "env/prod/x/common.tfvars", false),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z/main.tf", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a**c", "abc", true),
            ("a**c", "a/c", false),
            (".", "anything", true),
            ("", "any/thing", true),
            ("*", ".hidden", true),
            ("a/**/**/b", "a/b", true),
            ("**/a/**", "x/a/y", true),
            ("**/a/**", "a", false),
            // A character outside ASCII has several bytes.
            ("a?c", "aüc", false),
            ("a??c", "aüc", true),
            ("a*c", "aüc", true),
            // Names such as those of web routes.
            ("app/[id]/*", "app/[id]/page", true),
            ("app/[id]", "app/i", false),
            ("a[", "a[", true),
            ("{a,b}", "{a,b}/x", true),
            ("{a,b}", "a", false),
            ("!a", "!a/x", true),
            ("!a", "b", false),
            (r"a\b", r"a\b", true),
            (r"a\*", r"a\b", true),
        ];
        for (glob, path, expected) in rows {
            assert_eq!(Glob::new(glob).matches(path), expected, "{glob} {path}");
        }
    }

    #[test]
    fn hostile_glob_takes_no_exponential_time() {
        assert!(!Glob::new(&format!("{}b", "*a".repeat(120))).matches(&"a".repeat(255)));
        assert!(!Glob::new(&format!("{}b", "**/*a*/".repeat(30))).matches(&"aaaa/".repeat(60)));
    }
}
