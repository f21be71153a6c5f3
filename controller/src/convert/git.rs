//! Parses addresses of modules in git, as in `git clone` and module sources.

/// Repository, directory and ref.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) url: String,
    pub(super) path: Option<String>,
    pub(super) git_ref: Option<String>,
}

/// The parts of `[git::]URL[//DIRECTORY][?ref=REF]`; `None` when it is not a git address or contains credentials.
pub(super) fn address(source: &str) -> Option<Address> {
    let source = source.trim().trim_start_matches("git::");
    let (source, query) = source.split_once('?').unwrap_or((source, ""));
    let git_ref = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("ref="))
        .filter(|word| !word.is_empty());
    let hosted = ["github.com/", "gitlab.com/", "bitbucket.org/"]
        .iter()
        .any(|host| source.starts_with(host));
    let source = if hosted {
        format!("https://{source}")
    } else {
        source.to_owned()
    };
    let scheme = source.find("://").map_or(0, |at| at + 3);
    let (url, path) = match source[scheme..].find("//") {
        Some(at) => (
            &source[..scheme + at],
            Some(source[scheme + at + 2..].trim_matches('/').to_owned()),
        ),
        None => (source.as_str(), None),
    };
    let http = url.starts_with("https://") || url.starts_with("http://");
    let known = (http && !url.contains('@'))
        || url.starts_with("ssh://")
        || (!url.contains("://") && url.contains('@') && url.contains(':'));
    let path = path.filter(|path| !path.is_empty());
    (known && !url.contains(char::is_whitespace)).then(|| Address {
        url: url.to_owned(),
        path,
        git_ref: git_ref.map(str::to_owned),
    })
}

/// The host of a URL, without port.
pub(super) fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['/', ':']).next().unwrap_or_default()
}

/// A directory without `./` and surrounding slashes; `None` for the root.
pub(super) fn directory(path: Option<String>) -> Option<String> {
    let path = path?;
    let parts: Vec<_> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    Some(parts.join("/")).filter(|path| !path.is_empty())
}

/// A path in the repository, relative to one of its directories.
pub(super) fn from(directory: Option<&str>, path: &str) -> String {
    let path = path.trim_start_matches("./").trim_start_matches('/');
    let Some(directory) = directory else {
        return path.to_owned();
    };
    if let Some(inside) = path.strip_prefix(&format!("{directory}/")) {
        return inside.to_owned();
    }
    format!("{}{path}", "../".repeat(directory.split('/').count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_splits_into_url_path_and_ref() {
        let of = |source: &str| {
            address(source).map(|a| {
                (
                    a.url,
                    a.path.unwrap_or_default(),
                    a.git_ref.unwrap_or_default(),
                )
            })
        };
        let wanted = |url: &str, path: &str, git_ref: &str| {
            Some((url.to_owned(), path.to_owned(), git_ref.to_owned()))
        };
        assert_eq!(of("https://h/a.git"), wanted("https://h/a.git", "", ""));
        assert_eq!(
            of("git::https://h/a.git//b/c?ref=v1"),
            wanted("https://h/a.git", "b/c", "v1")
        );
        assert_eq!(of("git@h:a/b.git//c"), wanted("git@h:a/b.git", "c", ""));
        assert_eq!(
            of("ssh://git@h:22/a?depth=1&ref=x"),
            wanted("ssh://git@h:22/a", "", "x")
        );
        assert_eq!(
            of("github.com/a/b//c"),
            wanted("https://github.com/a/b", "c", "")
        );
        for source in [
            "",
            "terraform-aws-modules/vpc/aws",
            "https://user:word@h/a",
            "s3::https//x",
            "./local",
        ] {
            assert_eq!(of(source), None, "{source}");
        }
        assert_eq!(
            (
                host("https://h:80/a"),
                host("git@h:a"),
                host("ssh://git@h/a")
            ),
            ("h", "h", "h")
        );
    }

    #[test]
    fn root_path_becomes_relative_to_a_directory() {
        assert_eq!(from(None, "./a.tfvars"), "a.tfvars");
        assert_eq!(
            from(Some("net/prod"), "envs/a.tfvars"),
            "../../envs/a.tfvars"
        );
        assert_eq!(from(Some("net"), "net/a.tfvars"), "a.tfvars");
        assert_eq!(directory(Some("./a//b/".into())).as_deref(), Some("a/b"));
        assert_eq!(directory(Some("./".into())), None);
    }
}
