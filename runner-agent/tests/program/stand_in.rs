//! The program in the tool's place, as Terragrunt calls it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Command,
};

/// Runs `init` of a unit with this code. Returns the arguments of the tool, and the note on the backend.
fn init(dir: &Path, code: &str, kind: &str) -> (String, String) {
    let at = |name: &str| dir.join(name);
    for name in ["unit", "beneath", "kept/backend"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("unit/gen.tf"), code).unwrap();
    let given = at(&format!("kept/backend/{kind}.json"));
    fs::write(&given, r#"{"address": "http://s/x"}"#).unwrap();
    fs::write(at("tofu"), "#!/bin/sh\necho \"$@\"\nenv | grep -c PAWL_\n").unwrap();
    fs::set_permissions(at("tofu"), fs::Permissions::from_mode(0o755)).unwrap();
    let link = at("beneath/tofu");
    let _ = fs::remove_file(&link);
    symlink(env!("CARGO_BIN_EXE_runner-agent"), &link).unwrap();
    let output = Command::new(&link)
        .args(["init", "-input=false"])
        .current_dir(at("unit"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("PAWL_TOOL", at("tofu"))
        .env("PAWL_UNIT", at("unit"))
        .env("PAWL_NOTES", at("ran"))
        .env("PAWL_ASKED", "init")
        .env("PAWL_BACKEND", &given)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    (said, fs::read_to_string(at("ran.backend")).unwrap())
}

#[test]
fn generated_backend_is_merged_or_replaced_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("unit/zz_pawl_override.tf.json");
    let code = "terraform {\n  backend \"http\" {\n    lock_address = \"l\"\n  }\n}\n";
    let (said, note) = init(dir.path(), code, "http");
    let given = dir.path().join("kept/backend/http.json");
    let args = format!("init -input=false -backend-config={}\n0\n", given.display());
    assert_eq!(
        (said, note.as_str()),
        (args, "spec.backend over the code's block")
    );
    assert!(!own.exists());
    let (said, note) = init(dir.path(), code, "s3");
    assert_eq!(
        (said.as_str(), note.as_str()),
        (
            "init -input=false\n0\n",
            "in place of the code's http in gen.tf, without its lock_address"
        )
    );
    let text = fs::read_to_string(own).unwrap();
    assert_eq!(
        text,
        r#"{"terraform":{"backend":{"s3":{"address":"http://s/x"}}}}"#
    );
}
