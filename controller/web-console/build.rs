//! Makes the table of the web UI's files from `../ui/dist`. Without that folder the table is empty, and Node is not needed.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let dist = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../ui/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut rows = String::new();
    for folder in ["", "assets/"] {
        let mut names: Vec<_> = fs::read_dir(dist.join(folder))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| dist.join(folder).join(format!("{name}.br")).is_file())
            .collect();
        names.sort();
        for name in names {
            let path = dist.join(folder).join(&name);
            let path = path.display();
            writeln!(
                rows,
                "Asset {{ name: {:?}, plain: include_bytes!({:?}), brotli: include_bytes!({:?}) }},",
                format!("{folder}{name}"),
                path.to_string(),
                format!("{path}.br"),
            )?;
        }
    }
    let out = Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("assets.in");
    fs::write(&out, format!("&[\n{rows}]\n"))?;
    Ok(())
}
