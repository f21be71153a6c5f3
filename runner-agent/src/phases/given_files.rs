//! Files of Secrets and ConfigMaps for the tool, in its home or beside the code.
//!
//! A ConfigMap's file beside the code is code: the checksum and the bundle include it. A Secret's file is in neither. Code could change it
//! before the apply, so the agent writes it again before it verifies the disk for the claim: from its own memory, or in another pod from
//! the Secret, if that is unchanged.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use crds::{Failure, FilePlace, Reason, TerraformRunSpec};
use nix::errno::Errno;

use super::{
    mounted_objects::{Found, key_of},
    options, secret_files,
};
use crate::{
    classify::{OrInternal as _, internal},
    files,
    report::redact::Redactor,
    settings::Settings,
};

/// Suffixes of code, and of files that the tools read as code. They may not come from a Secret, whose content no reviewer sees.
const CODE: &str = ".tf .tofu .tf.json .tofu.json .tfvars .tfvars.json .hcl";

/// Configuration below `HOME` by which a program runs another, loads code or writes to a path. `/` at the end stands for a directory.
const HOME_CODE: &str = ".gitconfig .config/git/ .ssh/config .terraformrc .tofurc .terraform.d/ .config/opentofu/ .bashrc .bash_profile \
    .profile .zshenv .curlrc .wgetrc .npmrc .config/pip/ .local/ .config/helm/ .azure/config .azure/cliextensions/ \
    .config/gcloud/configurations/ .ansible.cfg .ansible/ .hgrc .config/hg/ .vault .aws/cli/ .config/curlrc .node_modules/ .gnupg/ .psqlrc \
    .gemrc .bundle/ .yarnrc .yarnrc.yml .pip/ .boto .config/fish/ .config/powershell/ .cargo/ .docker/cli-plugins/ .m2/";
/// Text by which a file of credentials names a program: of the AWS, Kubernetes, Docker and Google command lines.
const RUNS: &[&str] = &[
    "credential_process",
    "client.authentication.k8s.io",
    "credsstore",
    "credhelpers",
    "[plugins]",
    "\"executable\"",
];

#[derive(Debug)]
pub(super) struct GivenFile {
    /// Relative to the directory of its place.
    path: PathBuf,
    place: FilePlace,
    secret: bool,
    overwrite: bool,
    /// E.g. `Home .aws/credentials`.
    name: String,
    /// E.g. `secret aws/credentials`.
    origin: String,
    bytes: Vec<u8>,
}

impl GivenFile {
    /// Name and origin, for the manifest.
    pub(super) fn fact(&self) -> (String, String) {
        (self.name.clone(), self.origin.clone())
    }

    /// Whether the file comes from a Secret and lies beside the code.
    const fn is_apart(&self) -> bool {
        self.secret && matches!(self.place, FilePlace::Source)
    }

    /// Whether this is the file of that name, and its content may make a program run other code. A change of such a file after the plan
    /// has no approval.
    pub(super) fn brings_code(&self, name: &str) -> bool {
        let is_configuration = || {
            let path = self.path.to_string_lossy();
            HOME_CODE
                .split_ascii_whitespace()
                .any(|word| path == word || word.ends_with('/') && path.starts_with(word))
        };
        // Some of these programs ignore case.
        let text = String::from_utf8_lossy(&self.bytes).to_ascii_lowercase();
        self.name == name
            && (self.place == FilePlace::Home && is_configuration()
                || self.bytes.starts_with(b"#!")
                || self.bytes.starts_with(b"\x7fELF")
                || RUNS.iter().any(|word| text.contains(word)))
    }

    /// Writes the file below a directory and replaces a file of its name. Follows no link.
    fn put(&self, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(&self.path);
        let put = || {
            let mut made = dir.to_path_buf();
            for part in self.path.parent().into_iter().flat_map(Path::components) {
                made.push(part);
                if fs::symlink_metadata(&made).is_err() {
                    DirBuilder::new().mode(0o700).create(&made)?;
                }
            }
            files::write(&path, &self.bytes)
        };
        // A parent is not a directory, or the path itself is one.
        let is_taken = |error: &io::Error| {
            let code = error.raw_os_error().map(Errno::from_raw);
            matches!(code, Some(Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP))
        };
        put().map_err(|error: io::Error| {
            if is_taken(&error) {
                invalid(format!(
                    "spec.files: {} cannot be put in its place: {error}",
                    self.name
                ))
            } else {
                internal(&format!("the file {} cannot be written", self.name), &error)
            }
        })
    }
}

fn invalid(message: impl AsRef<str>) -> Failure {
    Reason::InvalidSpec.failure(message)
}

/// Reads the files of a spec. Records in `taken` the digests of files that the bundle does not include.
pub(super) fn gather(
    spec: &TerraformRunSpec,
    settings: &Settings,
    redactor: &Redactor,
    taken: &mut BTreeMap<String, String>,
) -> Result<Vec<GivenFile>, Failure> {
    let mut given = Vec::new();
    for file in &spec.files {
        let name = format!("{} {}", file.place.as_str(), file.path);
        let wanted = format!("file {name}");
        if !options::is_inside(&file.path) {
            let message = format!(
                "spec.files: {} is no path below {}, or leads into a directory of the tools",
                file.path,
                file.place.as_str()
            );
            return Err(invalid(message));
        }
        if file.place == FilePlace::Source && file.path.starts_with("zz_pawl") {
            return Err(invalid(format!(
                "spec.files: {} is a name that Pawl uses for itself",
                file.path
            )));
        }
        let secret = file.secret_key_ref.is_some();
        if secret
            && file.place == FilePlace::Source
            && CODE.split(' ').any(|ending| file.path.ends_with(ending))
        {
            let message = format!(
                "spec.files: {} is code, and code from a Secret cannot be reviewed",
                file.path
            );
            return Err(invalid(message));
        }
        let from = (
            file.secret_key_ref.as_ref(),
            file.config_map_key_ref.as_ref(),
        );
        let Found { bytes, origin } = key_of(from, settings, &wanted)?;
        if secret {
            secret_files::file(&bytes, redactor);
        }
        if secret || file.place == FilePlace::Home {
            let digest = files::digest(bytes.as_slice()).or_internal("a file cannot be read")?;
            taken.insert(wanted, digest);
        }
        let path = PathBuf::from(&file.path);
        given.push(GivenFile {
            path,
            place: file.place,
            secret,
            overwrite: file.overwrite,
            name,
            origin,
            bytes,
        });
    }
    Ok(given)
}

/// Writes the files of place `Source` into a freshly fetched source.
pub(super) fn put_beside(given: &[GivenFile], stack: &Path) -> Result<(), Failure> {
    for file in given.iter().filter(|file| file.place == FilePlace::Source) {
        if !file.overwrite && fs::symlink_metadata(stack.join(&file.path)).is_ok() {
            let path = file.path.display();
            let message = format!(
                "spec.files: the source has a file {path} already; overwrite: true puts the one of {} in its place",
                file.origin
            );
            return Err(invalid(message));
        }
        file.put(stack)?;
    }
    Ok(())
}

/// Writes the Secrets' files beside the code again, which no checksum covers.
pub(super) fn put_apart_again(given: &[GivenFile], stack: &Path) -> Result<(), Failure> {
    given
        .iter()
        .filter(|file| file.is_apart())
        .try_for_each(|file| file.put(stack))
}

pub(super) fn put_home(given: &[GivenFile], home: &Path) -> Result<(), Failure> {
    given
        .iter()
        .filter(|file| file.place == FilePlace::Home)
        .try_for_each(|file| file.put(home))
}

/// Refuses files of Secrets beside the code of a Terragrunt unit.
pub(super) fn check_terragrunt(given: &[GivenFile]) -> Result<(), Failure> {
    given.iter().find(|file| file.is_apart()).map_or(Ok(()), |file| {
        let message = "is beside the code of Terragrunt, which copies it to where the checksum counts it; put it into Home";
        Err(invalid(format!("spec.files: {} of {} {message}", file.path.display(), file.origin)))
    })
}

/// Paths of Secrets' files relative to the source's top; neither the checksum nor the bundle includes them. `below` is the stack's
/// directory.
pub(super) fn apart(given: &[GivenFile], below: &Path) -> Vec<PathBuf> {
    given
        .iter()
        .filter(|file| file.is_apart())
        .map(|file| below.join(&file.path))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::tests::settings;
    use crds::reason;
    use serde_json::{Value, json};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn gathered(
        dir: &Path,
        spec: &Value,
    ) -> Result<(Vec<GivenFile>, BTreeMap<String, String>), Failure> {
        let settings = settings(dir);
        for (path, text) in [("secrets/s/key", "t0k3n"), ("configmaps/c/key", "plain")] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let spec =
            serde_json::from_value(json!({"source": {"inline": {"files": {}}}, "files": spec}))
                .unwrap();
        let mut taken = BTreeMap::new();
        gather(&spec, &settings, &Redactor::default(), &mut taken).map(|given| (given, taken))
    }

    fn of(path: &str, place: &str, secret: bool) -> Value {
        let (kind, name) = if secret {
            ("secretKeyRef", "s")
        } else {
            ("configMapKeyRef", "c")
        };
        json!({"path": path, "in": place, kind: {"name": name, "key": "key"}})
    }

    #[test]
    fn files_are_private_and_follow_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (home, stack) = (top.join("home"), top.join("stack"));
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(&stack).unwrap();
        let spec = json!([
            of(".aws/credentials", "Home", true),
            of("conf/key", "Source", true),
            of("conf/plain", "Source", false)
        ]);
        let (given, taken) = gathered(&top, &spec).unwrap();
        assert_eq!(
            taken.keys().collect::<Vec<_>>(),
            ["file Home .aws/credentials", "file Source conf/key"]
        );
        assert!(
            taken.values().all(|value| value.len() == 64),
            "no value is held"
        );
        assert_eq!(
            given[1].fact(),
            ("Source conf/key".into(), "secret s/key".into())
        );
        put_beside(&given, &stack).unwrap();
        put_home(&given, &home).unwrap();
        assert_eq!(
            fs::metadata(home.join(".aws/credentials"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );
        assert_eq!(
            apart(&given, Path::new("live")),
            [Path::new("live/conf/key")]
        );
        // A link in a directory's place is not followed.
        fs::remove_dir_all(stack.join("conf")).unwrap();
        symlink(&home, stack.join("conf")).unwrap();
        assert!(put_apart_again(&given, &stack).is_err());
        assert!(!home.join("key").exists());
    }

    #[test]
    fn files_that_bring_code_are_told_from_data() {
        let dir = tempfile::tempdir().unwrap();
        let brings = |path: &str, place: &str, text: &str| {
            let (mut given, _) = gathered(dir.path(), &json!([of(path, place, true)])).unwrap();
            given[0].bytes = text.into();
            given[0].brings_code(&format!("{place} {path}"))
        };
        for (path, place, text, expected) in [
            (".gitconfig", "Home", "[core]\n", true),
            (".config/git/config", "Home", "[core]\n", true),
            (".ssh/config", "Home", "Host *\n", true),
            (
                ".aws/config",
                "Home",
                "[default]\nCREDENTIAL_PROCESS = /bin/x\n",
                true,
            ),
            (
                ".aws/credentials",
                "Home",
                "[default]\naws_access_key_id = a\n",
                false,
            ),
            (
                ".kube/config",
                "Home",
                "apiVersion: client.authentication.k8s.io/v1\n",
                true,
            ),
            (".kube/config", "Home", "token: t\n", false),
            (".ssh/id_ed25519", "Home", "-----BEGIN\n", false),
            ("conf/run", "Source", "#!/bin/sh\n", true),
            ("conf/gitconfig", "Source", "[core]\n", false),
        ] {
            assert_eq!(
                brings(path, place, text),
                expected,
                "{place} {path}: {text}"
            );
        }
    }

    #[test]
    fn source_file_is_replaced_only_with_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        let stack = dir.path().canonicalize().unwrap();
        fs::write(stack.join("plain"), "of the source").unwrap();
        let (given, _) = gathered(&stack, &json!([of("plain", "Source", false)])).unwrap();
        let failure = put_beside(&given, &stack).unwrap_err();
        assert_eq!(failure.reason, reason::INVALID_SPEC);
        assert!(
            failure
                .message
                .contains("has a file plain already; overwrite: true"),
            "{}",
            failure.message
        );
        let mut asked = of("plain", "Source", false);
        asked["overwrite"] = true.into();
        put_beside(&gathered(&stack, &json!([asked])).unwrap().0, &stack).unwrap();
        assert_eq!(fs::read_to_string(stack.join("plain")).unwrap(), "plain");
    }

    #[test]
    fn invalid_files_are_refused_before_the_fetch() {
        let dir = tempfile::tempdir().unwrap();
        let rows = [
            (of("../x", "Home", true), "no path below Home"),
            (of("a/../../x", "Source", true), "no path below Source"),
            (of("/etc/x", "Home", true), "no path below Home"),
            (
                of(".terraform/x", "Source", true),
                "a directory of the tools",
            ),
            (
                of("zz_pawl_override.tf.json", "Source", false),
                "uses for itself",
            ),
            (
                of("evil.tf", "Source", true),
                "code from a Secret cannot be reviewed",
            ),
            (
                of("a/b.auto.tfvars.json", "Source", true),
                "code from a Secret cannot be reviewed",
            ),
            (
                json!({"path": "a", "secretKeyRef": {"name": "s", "key": "gone"}}),
                "Secret s has no key gone; file Home a wants s/gone",
            ),
            (
                json!({"path": "a", "configMapKeyRef": {"name": "no", "key": "k"}}),
                "ConfigMap no does not exist or is empty",
            ),
            (json!({"path": "a"}), "exactly one of"),
        ];
        for (file, said) in rows {
            let failure = gathered(dir.path(), &json!([file])).unwrap_err();
            assert!(
                failure.message.contains(said),
                "{file}: {}",
                failure.message
            );
        }
    }
}
