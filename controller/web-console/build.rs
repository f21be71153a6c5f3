//! Embeds the web UI, if it is built (`controller/ui/dist`): lists its files as `(name, content)`.

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn Error>> {
    let dist = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../ui/dist");
    // A path that does not exist counts as changed each time.
    let watched = if dist.exists() {
        "../ui/dist"
    } else {
        "../ui/package.json"
    };
    println!("cargo::rerun-if-changed={watched}");
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    if dist.exists() {
        list(&dist, &dist, &mut files)?;
    }
    files.sort();
    let mut code = String::from("&[\n");
    for (name, path) in &files {
        if !files
            .iter()
            .any(|(other, _)| *other == format!("{name}.br"))
        {
            writeln!(code, "    ({name:?}, include_bytes!({path:?})),")?;
        }
    }
    code.push(']');
    fs::write(Path::new(&env::var("OUT_DIR")?).join("files.rs"), code)?;
    Ok(())
}

fn list(
    top: &Path,
    directory: &Path,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            list(top, &path, files)?;
        } else {
            let name = path.strip_prefix(top)?.display().to_string();
            files.push((name, path));
        }
    }
    Ok(())
}
