//! Parses README and the guide for tests: blocks of commands and manifests, each with the mark that tells how it is tested.

#[cfg(test)]
mod tests;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use xtask::root;

/// The mark in the comment above a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `run: NAME`: a test selects it by this name and runs it unchanged.
    Run(String),
    /// `accepted`: an API server accepts the manifest.
    Accepted,
    /// `values: NAME`: Helm renders the chart with these values.
    Values(String),
    /// `not run: WHY`.
    NotRun(String),
}

impl Mark {
    fn read(line: &str) -> Option<Self> {
        let words = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        let (word, rest) = words.split_once(": ").unwrap_or((words, ""));
        match (word, rest) {
            ("accepted", "") => Some(Self::Accepted),
            ("run", name) if !name.is_empty() => Some(Self::Run(name.to_owned())),
            ("values", name) if !name.is_empty() => Some(Self::Values(name.to_owned())),
            ("not run", why) if !why.is_empty() => Some(Self::NotRun(why.to_owned())),
            _ => None,
        }
    }
}

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// File, relative to the checkout, and line of its fence.
    pub place: String,
    /// The info string of the fence: `sh`, `yaml`, `text`.
    pub language: String,
    /// The mark in the comment directly above the fence.
    pub mark: Option<Mark>,
    /// Its lines, each with a newline.
    pub text: String,
}

/// README and all pages of the guide, relative to the checkout.
///
/// # Errors
/// When the directory cannot be read.
pub fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = vec![PathBuf::from("README.md")];
    let directory = Path::new("design/guide");
    for entry in fs::read_dir(root().join(directory)).context("there is no guide")? {
        let name = entry?.file_name();
        if Path::new(&name)
            .extension()
            .is_some_and(|extension| extension == "md")
        {
            pages.push(directory.join(name));
        }
    }
    pages.sort();
    Ok(pages)
}

/// Reads a page.
///
/// # Errors
/// When it does not exist.
pub fn read(page: &Path) -> Result<String> {
    fs::read_to_string(root().join(page)).with_context(|| format!("cannot read {}", page.display()))
}

/// Parses all blocks of a page.
///
/// # Errors
/// When a block is not closed.
pub fn blocks(page: &str, text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut above = "";
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let place = format!("{page}:{}", number + 1);
            let mut inside = String::new();
            loop {
                let (_, line) = lines
                    .next()
                    .with_context(|| format!("the block at {place} does not end"))?;
                if line == "```" {
                    break;
                }
                inside += line;
                inside.push('\n');
            }
            blocks.push(Block {
                place,
                language: language.to_owned(),
                mark: Mark::read(above),
                text: inside,
            });
        }
        above = line;
    }
    Ok(blocks)
}

/// Parses all blocks of README and guide.
///
/// # Errors
/// When a page cannot be read.
pub fn all() -> Result<Vec<Block>> {
    let mut all = Vec::new();
    for page in pages()? {
        all.extend(blocks(&page.display().to_string(), &read(&page)?)?);
    }
    Ok(all)
}

/// The block with the mark `run: NAME`.
///
/// # Errors
/// When there is none, or more than one.
pub fn block(name: &str) -> Result<String> {
    let mut found = all()?
        .into_iter()
        .filter(|block| block.mark == Some(Mark::Run(name.to_owned())));
    let Some(block) = found.next() else {
        bail!("no page has a block `run: {name}`")
    };
    let other = found.next().map(|other| other.place);
    ensure!(
        other.is_none(),
        "`run: {name}` stands at {} and at {}",
        block.place,
        other.unwrap_or_default()
    );
    Ok(block.text)
}
