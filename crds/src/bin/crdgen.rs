//! Writes the generated files: the CustomResourceDefinitions, pages of the guide, and the owners of status fields in a
//! policy and a design page.

use std::{error::Error, fs, path::Path};

use crds::fields;

fn main() -> Result<(), Box<dyn Error>> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directory = top.join("charts/pawl/files/crds");
    fs::create_dir_all(&directory)?;
    for (name, text) in crds::crd::files()? {
        fs::write(directory.join(name), text)?;
    }
    let guide = top.join("design/guide");
    fs::write(guide.join("fields.md"), crds::guide::fields())?;
    fs::write(guide.join("reasons.md"), crds::guide::reasons())?;
    between(
        &top.join(fields::POLICY_PATH),
        "# fields: generated",
        "    # end\n",
        &fields::policy(),
    )?;
    between(
        &top.join(fields::DESIGN_PATH),
        "<!-- fields: generated",
        "<!-- end -->\n",
        &fields::table(),
    )
}

/// Replaces the text between the line with the first mark and the second mark.
fn between(path: &Path, begin: &str, end: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let page = fs::read_to_string(path)?;
    let lost = || {
        format!(
            "{} lacks its marks {begin:?} and {end:?}; it was not changed",
            path.display()
        )
    };
    let (head, rest) = page.split_once(begin).ok_or_else(lost)?;
    let (line, rest) = rest.split_once('\n').ok_or_else(lost)?;
    let (_, tail) = rest.split_once(end).ok_or_else(lost)?;
    fs::write(path, format!("{head}{begin}{line}\n{text}{end}{tail}"))?;
    Ok(())
}
