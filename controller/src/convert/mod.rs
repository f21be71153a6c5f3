//! Converts objects of other operators to equivalent objects of Pawl.
//!
//! | module | contents |
//! |---|---|
//! | [`read`] | documents; fields that are left at the end have no counterpart |
//! | [`write`] | created objects and their repositories |
//! | [`rights`] | what the user who applies the objects has to be granted |
//! | `pod`, `hcl`, `git` | shared parsers: pod settings, backend blocks, module addresses |
//! | `burrito`, `tofu`, `operator`, `alustan` | one operator each |

mod alustan;
mod burrito;
mod git;
mod hcl;
mod operator;
mod pod;
mod read;
mod rights;
mod tofu;
mod write;

use std::{
    io::{Read as _, Write as _},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::Args;

use read::Notes;
use write::Made;

/// Options of `convert`.
#[derive(Args)]
pub struct Options {
    /// A file with manifests of Burrito, tofu-controller, terraform-operator or Alustan; `-` reads standard input. Pass
    /// objects that belong together at once: a repository and its layers.
    #[arg(short, long = "filename", required = true)]
    file: Vec<PathBuf>,
}

pub struct Converted {
    pub yaml: String,
    /// Fields without counterpart or with another meaning, one line each.
    pub warnings: Vec<String>,
    /// The rights that the objects need: a comment and a command each.
    pub rights: Vec<String>,
}

impl Converted {
    /// Warnings, then rights.
    fn told(&self) -> impl Iterator<Item = String> {
        let warnings = self.warnings.iter().map(|line| format!("warning: {line}"));
        warnings.chain(self.rights.iter().cloned())
    }
}

/// Prints the objects, and warnings to standard error.
///
/// # Errors
/// When a file cannot be read or contains an unknown kind. Nothing is printed then.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut text = String::new();
    for file in &options.file {
        let place = file.display();
        if file.as_os_str() == "-" {
            std::io::stdin()
                .read_to_string(&mut text)
                .context("cannot read standard input")?;
        } else {
            text +=
                &std::fs::read_to_string(file).with_context(|| format!("cannot read {place}"))?;
        }
        text += "\n---\n";
    }
    let converted = convert(&text)?;
    let (mut out, mut error) = (std::io::stdout().lock(), std::io::stderr().lock());
    for line in converted.told() {
        writeln!(error, "{line}")?;
    }
    let yaml = converted.yaml;
    out.write_all(yaml.as_bytes())?;
    Ok(())
}

/// Converts the documents of a text.
///
/// # Errors
/// When it is not YAML, or a document has an unknown kind.
pub fn convert(text: &str) -> anyhow::Result<Converted> {
    let documents = read::documents(text)?;
    let mut made = Made::default();
    let mut warnings = Vec::new();
    // Repositories first: layers inherit settings that Pawl's repositories cannot hold.
    let mut known = burrito::Repositories::default();
    let (mut later, mut scripts) = (Vec::new(), alustan::Scripts::default());
    for document in documents {
        let mut notes = Notes::of(&document);
        match (document.group.as_str(), document.kind.as_str()) {
            ("config.terraform.padok.cloud", "TerraformRepository") => {
                known.add(document, &mut made, &mut notes);
            }
            ("source.toolkit.fluxcd.io", "GitRepository") => {
                tofu::repository(document, &mut made, &mut notes);
            }
            (
                "config.terraform.padok.cloud",
                "TerraformLayer" | "TerraformRun" | "TerraformPullRequest",
            )
            | ("infra.contrib.fluxcd.io" | "tf.galleybytes.com" | "alustan.io", "Terraform") => {
                later.push(document);
            }
            ("", "ConfigMap") => scripts.add(&document),
            (group, kind) => anyhow::bail!(
                "document {} is of no known kind ({group} {kind}): known are Burrito's TerraformRepository, TerraformLayer and TerraformRun, the \
                 Terraform of infra.contrib.fluxcd.io (with Flux's GitRepository), tf.galleybytes.com and alustan.io, and ConfigMaps with \
                 scripts; nothing was converted",
                document.number
            ),
        }
        warnings.extend(notes.lines);
    }
    for document in later {
        let mut notes = Notes::of(&document);
        match (document.group.as_str(), document.kind.as_str()) {
            (_, "TerraformLayer") => burrito::layer(document, &mut known, &mut made, &mut notes),
            ("infra.contrib.fluxcd.io", _) => tofu::terraform(document, &mut made, &mut notes),
            ("tf.galleybytes.com", _) => operator::terraform(document, &mut made, &mut notes),
            ("alustan.io", _) => alustan::terraform(document, &scripts, &mut made, &mut notes),
            (_, "TerraformRun") => {
                notes.say("", "is not carried over: a layer makes runs of its own");
            }
            _ => notes.say(
                "",
                "is not carried over: plans of pull requests are not there yet",
            ),
        }
        warnings.extend(notes.lines);
    }
    warnings.extend(known.unused());
    let objects = made.objects();
    let texts: Vec<_> = objects
        .iter()
        .map(serde_saphyr::to_string)
        .collect::<Result<_, _>>()?;
    Ok(Converted {
        yaml: texts.join("---\n"),
        warnings,
        rights: rights::lines(&objects),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares each example with its expected result. `UPDATE=1` rewrites the results.
    #[test]
    fn each_example_converts_to_its_expected_result() {
        let root =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/convert");
        let mut examples = 0;
        for peer in [
            "burrito",
            "tofu-controller",
            "terraform-operator",
            "alustan",
        ] {
            let mut of_peer = 0;
            for entry in std::fs::read_dir(root.join(peer)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                let Some(stem) = name
                    .strip_suffix(".yaml")
                    .filter(|stem| !stem.ends_with(".expected"))
                else {
                    continue;
                };
                let converted = convert(&std::fs::read_to_string(&path).unwrap()).unwrap();
                let told: Vec<_> = converted.told().map(|line| format!("# {line}\n")).collect();
                let (found, beside) = (
                    told.concat() + &converted.yaml,
                    path.with_file_name(format!("{stem}.expected.yaml")),
                );
                if std::env::var_os("UPDATE").is_some() {
                    std::fs::write(&beside, &found).unwrap();
                }
                assert_eq!(
                    found,
                    std::fs::read_to_string(&beside).unwrap_or_default(),
                    "{}",
                    path.display()
                );
                of_peer += 1;
            }
            assert!(of_peer >= 4, "{peer}: {of_peer} examples");
            examples += of_peer;
        }
        assert!(examples >= 16);
    }

    #[test]
    fn unknown_kind_is_an_error() {
        let error = convert("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n")
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("document 1 is of no known kind ( Service)"),
            "{error}"
        );
        let second = "apiVersion: alustan.io/v1alpha1\nkind: Terraform\nmetadata: {name: a}\nspec: {}\n---\nkind: X\n";
        assert!(
            convert(second)
                .err()
                .unwrap()
                .to_string()
                .contains("document 2")
        );
        assert!(convert("a: [").is_err() && convert("").is_err());
    }

    #[test]
    fn each_unknown_field_gives_one_warning() {
        let text = "apiVersion: alustan.io/v1alpha1\nkind: Terraform\nmetadata: {name: a, namespace: team}\nspec: {newer: {deep: 1}}\n";
        let told = convert(text).unwrap().warnings;
        assert_eq!(
            told.iter()
                .filter(|line| line.contains("spec.newer"))
                .count(),
            1,
            "{told:?}"
        );
        assert!(told[0].starts_with("Terraform team/a: "), "{told:?}");
    }

    #[test]
    fn list_converts_to_its_items() {
        let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: alustan.io/v1alpha1\n  kind: Terraform\n  metadata: {name: a}\n  spec: \
                    {gitRepo: {url: 'https://example.com/a.git'}}\n";
        assert!(convert(text).unwrap().yaml.contains("kind: TerraformLayer"));
    }
}
