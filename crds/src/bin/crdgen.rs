//! Writes what is made from the types: the CustomResourceDefinition to where the chart has it, and pages of the guide.

use std::{error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/pawl/files/crds");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("terraformruns.yaml"), crds::crd::yaml()?)?;
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../design/guide");
    fs::write(guide.join("fields.md"), crds::guide::fields())?;
    fs::write(guide.join("reasons.md"), crds::guide::reasons())?;
    Ok(())
}
