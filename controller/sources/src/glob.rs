//! Globs of paths, as `triggerPaths` of a layer has them: relative to the top of the repository, and matched from there.

/// Whether a path is meant by a glob: `*` and `?` stay within a name, `**` is any number of directories. What names a directory means all
/// that is below it.
pub fn matches(glob: &str, path: &str) -> bool {
    let glob = glob.trim_start_matches("./").trim_matches('/');
    if glob.is_empty() || glob == "." {
        return true;
    }
    let (globs, names): (Vec<&str>, Vec<&str>) = (glob.split('/').collect(), path.split('/').collect());
    below(&globs, &names)
}

/// Whether names begin as globs say.
fn below(globs: &[&str], names: &[&str]) -> bool {
    match globs.split_first() {
        None => true,
        Some((&"**", rest)) => {
            if rest.is_empty() {
                // All that is below, and not what is of the name itself.
                return !names.is_empty();
            }
            (0..names.len()).any(|skipped| below(rest, &names[skipped..]))
        }
        Some((glob, rest)) => names.split_first().is_some_and(|(name, names)| {
            let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
            is_named(&glob, &name) && below(rest, names)
        }),
    }
}

/// Whether a name is as a glob without `/` says. It takes no longer than the product of both lengths.
fn is_named(glob: &[char], name: &[char]) -> bool {
    let (mut g, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, n));
                g += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                g += 1;
                n += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (g, n) = (at + 1, from + 1);
            }
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Burrito 11.10: `app` matches `/x/app-old/…`, and a path from the top of the repository matches nothing.
    #[test]
    fn a_glob_begins_at_the_top_and_a_name_is_a_whole_name() {
        let rows = [
            ("app", "app/main.tf", true),
            ("app", "app-old/main.tf", false),
            ("app", "x/app/main.tf", false),
            ("app", "app", true),
            ("app/", "app/main.tf", true),
            ("./app", "app/main.tf", true),
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
            (".", "anything", true),
        ];
        for (glob, path, expected) in rows {
            assert_eq!(matches(glob, path), expected, "{glob} {path}");
        }
    }

    #[test]
    fn a_hostile_glob_takes_no_long_time() {
        let glob = format!("{}b", "*a".repeat(120));
        assert!(!matches(&glob, &"a".repeat(255)));
    }
}
