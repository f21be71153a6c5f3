//! Names of environment variables that neither a run nor a hook may set.
//!
//! An approval covers the tool, providers, code and scripts by their digests; no checksum covers the value of a variable. So each
//! name that makes one of these programs load other code is refused. A script may set such a name itself, since its digest covers
//! that.

/// Names that control the tool's command line, its files, or the processes. Words of lists are separated by spaces.
const STEERING: &str = "TF_DATA_DIR TF_WORKSPACE TF_INPUT TF_IN_AUTOMATION TF_CLI_CONFIG_FILE TERRAFORM_CONFIG PATH HOME TMPDIR IFS";
const STEERING_PREFIXES: &[&str] = &["PAWL_", "TF_CLI_ARGS", "LD_"];

/// Names that load other code.
const CODE: &[&str] = &[
    // Names of the tools: they select running providers, or a provider cache whose content the lock file does not cover.
    "TF_REATTACH_PROVIDERS TF_PLUGIN_CACHE_DIR TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE",
    // The C library and OpenSSL: modules to load.
    "GCONV_PATH GLIBC_TUNABLES OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES",
    // Shells. Interactive shells read `ENV`.
    "BASH_ENV BASHOPTS SHELLOPTS PS4 CDPATH",
    // Interpreters: module paths and options.
    "PYTHONHOME PYTHONPATH PYTHONUSERBASE PERL5DB PERL5LIB PERL5OPT PERLLIB RUBYLIB RUBYOPT",
    "NODE_OPTIONS NODE_PATH JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS",
];
/// Terragrunt's names of the same kind, after the prefix `TG_` or, before version 0.73, `TERRAGRUNT_`.
const CODE_OF_TERRAGRUNT: &str =
    "CONFIG DOWNLOAD DOWNLOAD_DIR SOURCE SOURCE_MAP SOURCE_UPDATE TFPATH TF_PATH WORKING_DIR";

/// The effect of setting a refused name, or `None` if the name is allowed.
pub(super) fn refused(name: &str) -> Option<&'static str> {
    let lists = |list: &str, name: &str| list.split(' ').any(|word| word == name);
    if lists(STEERING, name)
        || STEERING_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
    {
        return Some("would steer the tool or the agent itself");
    }
    let of_terragrunt = ["TG_", "TERRAGRUNT_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    (CODE.iter().any(|list| lists(list, name))
        || of_terragrunt.is_some_and(|rest| lists(CODE_OF_TERRAGRUNT, rest)))
    .then_some("would bring other code than is approved; a script that wants it sets it itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_load_unapproved_code_are_refused() {
        let code = "TF_REATTACH_PROVIDERS TF_PLUGIN_CACHE_DIR BASH_ENV PYTHONPATH NODE_OPTIONS GCONV_PATH TG_SOURCE \
                    TERRAGRUNT_SOURCE TG_DOWNLOAD_DIR TERRAGRUNT_DOWNLOAD";
        for name in code.split(' ') {
            assert!(
                refused(name).is_some_and(|why| why.contains("other code")),
                "{name}"
            );
        }
        for name in ["PATH", "LD_AUDIT", "TF_CLI_ARGS_apply", "PAWL_HOOK_VALUES"] {
            assert!(
                refused(name).is_some_and(|why| why.contains("steer")),
                "{name}"
            );
        }
        let free = "ENV PYTHONUNBUFFERED TF_VAR_source TF_LOG TF_TOKEN_app TG_LOG_LEVEL SOURCE AWS_PROFILE";
        for name in free.split(' ') {
            assert_eq!(refused(name), None, "{name}");
        }
    }
}
