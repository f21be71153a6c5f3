//! Writes the CustomResourceDefinition to where the chart has it.

use std::{error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/pawl/files/crds");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("terraformruns.yaml"), crds::crd::yaml()?)?;
    Ok(())
}
