//! Names of environment variables that bring code, write to a path, or steer the tool.
//!
//! An approval covers the tool, providers, code and scripts by their digests; no checksum covers the value of a variable. So a value
//! that changes after the plan (a hook's value, a rotated Secret) may not select a program, a module or a path. A script may set
//! each of these names itself, since its digest covers that. A name without a row is data.

/// When a value of a name is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// By the spec of the run, whose author may run code in its pod anyway.
    Creation,
    /// By a hook, or by a Secret, ConfigMap or stack that changed since the plan.
    Later,
}

/// A row refuses its names at the moments that it does not allow.
struct Row {
    /// Separated by spaces. `*` at the end stands for any rest.
    names: &'static str,
    /// Whether the spec may set them. No row allows [`Moment::Later`].
    creation: bool,
    /// Completes the sentence "it …".
    effect: &'static str,
    /// The manual that describes the names.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the table"))]
    source: &'static str,
}

const fn never(names: &'static str, effect: &'static str, source: &'static str) -> Row {
    Row {
        names,
        creation: false,
        effect,
        source,
    }
}

const fn at_creation(names: &'static str, effect: &'static str, source: &'static str) -> Row {
    Row {
        names,
        creation: true,
        effect,
        source,
    }
}

const STEERS: &str = "would steer the tool or the agent itself";
const LOADS: &str = "would load other code than is approved";
const RUNS: &str = "would run another program than is approved";
const WRITES: &str = "would write to a path of its own";

/// The first row that matches a name counts. `TG_*` also stands for `TERRAGRUNT_*`, Terragrunt's prefix before 0.73.
const ROWS: &[Row] = &[
    never("PAWL_*", STEERS, "Pawl: design/0003, 0024"),
    never(
        "PATH HOME TMPDIR IFS",
        STEERS,
        "POSIX: Environment Variables",
    ),
    never("LD_*", STEERS, "ld.so(8)"),
    never(
        "TF_CLI_ARGS* TF_DATA_DIR TF_WORKSPACE TF_INPUT TF_IN_AUTOMATION TF_CLI_CONFIG_FILE TERRAFORM_CONFIG",
        STEERS,
        "OpenTofu and Terraform: Environment Variables, CLI Configuration",
    ),
    // They select running providers, or a provider cache whose content the lock file does not cover.
    never(
        "TF_REATTACH_PROVIDERS TF_PLUGIN_CACHE_DIR TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE",
        LOADS,
        "OpenTofu and Terraform: Debugging Providers, Provider Plugin Cache",
    ),
    never(
        "TF_LOG_PATH TF_LOG_PATH_MASK TF_ACC_LOG_PATH TF_TEMP_LOG_PATH",
        WRITES,
        "OpenTofu and Terraform: Debugging; Plugin SDK: logging",
    ),
    // `external` key providers run a command of the value; so does a method that a later value adds.
    at_creation("TF_ENCRYPTION", RUNS, "OpenTofu: State and Plan Encryption"),
    never(
        "TG_CONFIG TG_DOWNLOAD TG_DOWNLOAD_DIR TG_SOURCE TG_SOURCE_MAP TG_SOURCE_UPDATE TG_TFPATH TG_TF_PATH TG_WORKING_DIR",
        LOADS,
        "Terragrunt: CLI options",
    ),
    at_creation(
        "TG_AUTH_PROVIDER_CMD",
        RUNS,
        "Terragrunt: auth-provider-cmd",
    ),
    at_creation(
        "TG_EXPERIMENTAL_ENGINE TG_ENGINE_* TG_PROVIDER_CACHE_DIR",
        LOADS,
        "Terragrunt: IaC Engine, Provider Cache Server",
    ),
    at_creation(
        "TG_OUT_DIR TG_JSON_OUT_DIR TG_REPORT_FILE TG_INPUTS_DEBUG TG_DEBUG",
        WRITES,
        "Terragrunt: CLI options",
    ),
    // The C library and OpenSSL.
    never("GCONV_PATH GLIBC_TUNABLES", LOADS, "iconv(3), ld.so(8)"),
    never(
        "OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES",
        LOADS,
        "openssl-env(7)",
    ),
    at_creation("SSLKEYLOGFILE", WRITES, "curl(1), Python: ssl"),
    // Shells and editors. `ENV` is read by interactive shells alone.
    never("BASH_ENV BASHOPTS SHELLOPTS PS4 CDPATH", LOADS, "bash(1)"),
    never("BASH_FUNC_*", LOADS, "bash(1): functions"),
    at_creation(
        "PROMPT_COMMAND SHELL EDITOR VISUAL PAGER MANPAGER BROWSER",
        RUNS,
        "bash(1), environ(7), ssh_config(5)",
    ),
    at_creation("LESSOPEN LESSCLOSE LESSEDIT", RUNS, "less(1)"),
    at_creation("AWKPATH AWKLIBPATH", LOADS, "gawk(1)"),
    at_creation(
        "MAKEFILES MAKEFLAGS GNUMAKEFLAGS",
        RUNS,
        "GNU make: Variables from the Environment",
    ),
    at_creation(
        "TAR_OPTIONS RSYNC_RSH SVN_SSH CVS_RSH HGRCPATH HGPLAIN",
        RUNS,
        "tar(1), rsync(1), svn(1), hg(1)",
    ),
    // Git and ssh.
    at_creation(
        "GIT_CONFIG GIT_CONFIG_* GIT_SSH GIT_SSH_* GIT_ASKPASS SSH_ASKPASS SSH_ASKPASS_* GIT_PROXY_COMMAND GIT_EDITOR GIT_SEQUENCE_EDITOR \
         GIT_PAGER GIT_EXTERNAL_DIFF GIT_MAN_VIEWER",
        RUNS,
        "git(1), git-config(1), ssh(1)",
    ),
    at_creation(
        "GIT_EXEC_PATH GIT_TEMPLATE_DIR GIT_DIR GIT_WORK_TREE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY \
         GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_INDEX_FILE GIT_NAMESPACE GIT_ATTR_SOURCE",
        LOADS,
        "git(1)",
    ),
    at_creation("GIT_TRACE* GIT_REDIRECT_*", WRITES, "git(1)"),
    // Interpreters: module paths, options and programs at the start.
    never("PYTHONHOME PYTHONPATH PYTHONUSERBASE", LOADS, "python(1)"),
    at_creation(
        "PYTHONSTARTUP PYTHONINSPECT PYTHONBREAKPOINT PYTHONPLATLIBDIR PYTHONEXECUTABLE PYTHONPYCACHEPREFIX PYTHONWARNINGS PIP_*",
        LOADS,
        "python(1), pip: Configuration",
    ),
    never("PERL5DB PERL5LIB PERL5OPT PERLLIB", LOADS, "perlrun(1)"),
    never("RUBYLIB RUBYOPT", LOADS, "ruby(1)"),
    at_creation(
        "RUBYSHELL GEM_HOME GEM_PATH BUNDLE_*",
        LOADS,
        "ruby(1), bundle-config(1)",
    ),
    never("NODE_OPTIONS NODE_PATH", LOADS, "node(1)"),
    at_creation(
        "NODE_REPL_* NPM_CONFIG_* npm_config_*",
        LOADS,
        "node(1), npm: config",
    ),
    never(
        "JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS",
        LOADS,
        "java(1), JVM TI",
    ),
    at_creation("CLASSPATH", LOADS, "java(1)"),
    at_creation(
        "DOTNET_STARTUP_HOOKS DOTNET_ADDITIONAL_DEPS DOTNET_SHARED_STORE DOTNET_ROOT* DOTNET_DiagnosticPorts CORECLR_* \
         PSModulePath",
        LOADS,
        ".NET: Environment variables; PowerShell: about_PSModulePath",
    ),
    at_creation("LUA_INIT* LUA_PATH* LUA_CPATH*", LOADS, "lua(1)"),
    at_creation(
        "ZIPOPT UNZIPOPT GZIP XZ_DEFAULTS XZ_OPT ZDOTDIR RCLONE_* RESTIC_* BORG_* GOCACHEPROG GOAUTH CC CXX RUSTC_WRAPPER",
        RUNS,
        "zip(1), zsh(1), rclone(1), go help cache",
    ),
    at_creation(
        "GNUPGHOME KRB5_CONFIG PSQLRC LIBMYSQL_PLUGINS JAVA_HOME CONTAINERS_CONF",
        LOADS,
        "gpg(1), krb5.conf(5), psql(1)",
    ),
    at_creation(
        "GH_PATH GOOGLE_API_CERTIFICATE_CONFIG BAO_CONFIG_PATH HELM_REGISTRY_CONFIG",
        RUNS,
        "providers github and google; bao: token helper",
    ),
    at_creation(
        "PHPRC PHP_INI_SCAN_DIR TCLLIBPATH R_PROFILE* R_ENVIRON* R_LIBS* JULIA_LOAD_PATH",
        LOADS,
        "php(1), tclsh(1), R: Startup",
    ),
    at_creation(
        "GOFLAGS GOTOOLCHAIN GOENV GOROOT",
        RUNS,
        "go help environment",
    ),
    // Command lines of clouds and clusters: their files name helper programs, plugins and credentials' commands.
    at_creation(
        "AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE BOTO_CONFIG AWS_DATA_PATH",
        RUNS,
        "AWS: credential_process",
    ),
    at_creation(
        "AZURE_CONFIG_DIR AZURE_EXTENSION_DIR",
        LOADS,
        "Azure CLI: Configuration, Extensions",
    ),
    at_creation(
        "CLOUDSDK_CONFIG CLOUDSDK_PYTHON* GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES",
        RUNS,
        "gcloud topic startup; Google: executable-sourced credentials",
    ),
    at_creation(
        "KUBECONFIG KUBE_CONFIG_PATH KUBE_CONFIG_PATHS KUBECTL_EXTERNAL_DIFF KUBE_EDITOR KUBERC",
        RUNS,
        "kubectl; client-go: credential plugins; provider kubernetes",
    ),
    at_creation(
        "HELM_PLUGINS HELM_CONFIG_HOME HELM_DATA_HOME",
        LOADS,
        "helm(1)",
    ),
    at_creation(
        "DOCKER_CONFIG REGISTRY_AUTH_FILE",
        RUNS,
        "docker: credential helpers",
    ),
    at_creation("VAULT_CONFIG_PATH", RUNS, "vault: token helper"),
    at_creation("ANSIBLE_*", LOADS, "ansible: Configuration Settings"),
    at_creation(
        "CURL_HOME WGETRC SYSTEM_WGETRC XDG_CONFIG_HOME XDG_DATA_HOME XDG_CONFIG_DIRS XDG_DATA_DIRS",
        WRITES,
        "curl(1), wget(1), XDG Base Directory",
    ),
];

/// Names that a cluster's webhooks set in pods for the cloud account of their ServiceAccount.
const IDENTITY: &str = "AWS_* AZURE_* ALIBABA_CLOUD_* TKE_* OCI_RESOURCE_PRINCIPAL_* GOOGLE_* CLOUDSDK_* SPIFFE_ENDPOINT_SOCKET";

/// Whether a webhook may have set this name in the pod. Such a value is as [`Moment::Later`].
pub(super) fn is_identity(name: &str) -> bool {
    let mut all = IDENTITY.split_ascii_whitespace();
    all.any(|word| matches(word, name))
}

/// Whether a name is the word, or of its family.
fn matches(word: &str, name: &str) -> bool {
    match word.strip_suffix('*') {
        Some(stem) => name.starts_with(stem),
        None => name == word,
    }
}

/// The effect of a name that is refused at this moment, or `None` if it is allowed.
pub(super) fn refused(name: &str, moment: Moment) -> Option<&'static str> {
    let listed = match name.strip_prefix("TERRAGRUNT_") {
        Some(rest) => &format!("TG_{rest}"),
        None => name,
    };
    let by_row = ROWS
        .iter()
        .find(|row| {
            row.names
                .split_ascii_whitespace()
                .any(|word| matches(word, listed))
        })
        .filter(|row| moment == Moment::Later || !row.creation)
        .map(|row| row.effect);
    by_row.or_else(|| (moment == Moment::Later && names_a_program(name)).then_some(RUNS))
}

/// Why a hook may not hand over a name, and where the name may be set instead.
pub(super) fn refused_to_hooks(name: &str) -> Option<String> {
    let effect = refused(name, Moment::Later)?;
    let or_spec = if refused(name, Moment::Creation).is_none() {
        ", or name it in spec.env"
    } else {
        ""
    };
    Some(format!("{effect}; a script may set it itself{or_spec}"))
}

/// Whether a name without a row is of a form that programs use for commands, helpers and plugins. npm takes its names in any case.
fn names_a_program(name: &str) -> bool {
    const ENDS: &[&str] = &[
        "_CMD",
        "_COMMAND",
        "_EXEC",
        "_CLI_PATH",
        "_HELPER",
        "_PLUGINS",
        "_PLUGINS_PATH",
        "_PLUGIN_PATH",
        "_PLUGIN_HOME",
        "_PROG",
    ];
    let upper = name.to_ascii_uppercase();
    upper.starts_with("NPM_CONFIG_")
        || !upper.starts_with("TF_VAR_") && ENDS.iter().any(|end| upper.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_that_bring_code_are_refused_by_moment() {
        let never = "TF_REATTACH_PROVIDERS TF_PLUGIN_CACHE_DIR BASH_ENV PYTHONPATH NODE_OPTIONS GCONV_PATH TG_SOURCE TERRAGRUNT_SOURCE \
                     TG_DOWNLOAD_DIR TERRAGRUNT_DOWNLOAD TERRAGRUNT_TFPATH TF_LOG_PATH PATH LD_AUDIT TF_CLI_ARGS_apply PAWL_HOOK_VALUES BASH_FUNC_ls";
        let creation = "TF_ENCRYPTION GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0 GIT_CONFIG_GLOBAL GIT_EXEC_PATH GIT_EXTERNAL_DIFF \
                        GIT_SSH GIT_SSH_COMMAND GIT_TRACE2_EVENT DOTNET_STARTUP_HOOKS PYTHONSTARTUP PYTHONINSPECT LUA_INIT LUA_INIT_5_4 \
                        KUBECONFIG AWS_CONFIG_FILE CLOUDSDK_PYTHON TG_AUTH_PROVIDER_CMD ZIPOPT GH_PATH SOPS_AGE_KEY_CMD \
                        Npm_config_script_shell RSYNC_CONNECT_PROG TERRAGRUNT_ENGINE_CACHE_PATH TERRAGRUNT_DEBUG";
        let free = "ENV PYTHONUNBUFFERED TF_VAR_source TF_VAR_GIT_SSH TF_VAR_LOGIN_CMD TF_LOG TF_TOKEN_app TG_LOG_LEVEL TERRAGRUNT_LOG_LEVEL SOURCE AWS_PROFILE GIT_AUTHOR_NAME \
                    KUBE_TOKEN GOOGLE_APPLICATION_CREDENTIALS VAULT_TOKEN DOTNET_CLI_TELEMETRY_OPTOUT";
        for (names, at_creation, later) in [
            (never, false, false),
            (creation, true, false),
            (free, true, true),
        ] {
            for name in names.split_ascii_whitespace() {
                let allowed = |moment| refused(name, moment).is_none();
                let found = (allowed(Moment::Creation), allowed(Moment::Later));
                assert_eq!(found, (at_creation, later), "{name}");
            }
        }
    }

    #[test]
    fn hooks_are_told_where_a_name_may_be_set() {
        assert_eq!(
            refused_to_hooks("KUBECONFIG").as_deref(),
            Some(
                "would run another program than is approved; a script may set it itself, or name it in spec.env"
            )
        );
        assert_eq!(
            refused_to_hooks("BASH_ENV").as_deref(),
            Some("would load other code than is approved; a script may set it itself")
        );
        assert_eq!(refused_to_hooks("AWS_PROFILE"), None);
    }

    #[test]
    fn each_name_has_one_row_with_its_source() {
        let mut seen = BTreeSet::new();
        for row in ROWS {
            assert!(!row.source.is_empty(), "{}", row.names);
            for name in row.names.split_ascii_whitespace() {
                assert!(seen.insert(name), "{name} has two rows");
                let stem = name.trim_end_matches('*');
                let shadow = seen.iter().find(|other| {
                    **other != name
                        && other
                            .strip_suffix('*')
                            .is_some_and(|other| stem.starts_with(other))
                });
                assert_eq!(shadow, None, "an earlier family covers {name}");
            }
        }
    }
}
