//! Acts of a person on an object: one annotation or several, written as that person.
//!
//! The [`table`] is the only place that knows the acts. An offered act follows from the object's phase, result, reason and names. Text that
//! a pod wrote (`status.nextStep`, `message`, `history`) is never part of one.

pub mod kubectl;
pub mod table;

use crds::{TerraformLayer, TerraformRepository, TerraformRun};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use table::{ROWS, Row, Word};

/// The kinds of object that have acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Run,
    Layer,
    Repository,
    Namespace,
}

/// A part of the request that an act requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Need {
    /// The whole checksum of the plan that waits.
    Checksum,
    /// A reason, in `comment`: 1 to 512 characters.
    Comment,
    /// The number of objects that the plan destroys, those that it replaces included (`status.plan.destroy`).
    Destroys,
}

/// An act that the object's state permits. RBAC and the admission policies decide whether the person may do it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Act {
    /// The last segment of the path that it is sent to.
    pub act: &'static str,
    /// The text of the button.
    pub label: &'static str,
    /// The command that does the same. `REASON` takes the place of a comment.
    pub kubectl: String,
    /// Whether something can be lost.
    pub danger: bool,
    /// The required parts of the request.
    pub needs: Vec<Need>,
    /// Whether a comment may be given although none is required.
    pub remark: bool,
}

/// The body of a request for an act.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// `sha256:` and 64 hexadecimal digits.
    #[serde(default)]
    pub checksum: Option<String>,
    /// At most 512 characters.
    #[serde(default)]
    pub comment: Option<String>,
    /// The number of objects that the plan destroys, those that it replaces included.
    #[serde(default)]
    pub destroys: Option<u32>,
}

/// The state of an object, as far as acts depend on it.
pub enum Object<'a> {
    Run(&'a TerraformRun),
    Layer(&'a TerraformLayer),
    Repository(&'a TerraformRepository),
    Namespace(&'a NamespaceState<'a>),
}

/// The state of a namespace.
pub struct NamespaceState<'a> {
    pub name: &'a str,
    /// Whether its annotation freezes it; `None` when the person may not read it.
    pub frozen: Option<bool>,
}

impl Object<'_> {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Run(_) => Kind::Run,
            Self::Layer(_) => Kind::Layer,
            Self::Repository(_) => Kind::Repository,
            Self::Namespace(_) => Kind::Namespace,
        }
    }

    /// The number of objects that an approval of the plan destroys.
    fn destroys(&self) -> u32 {
        match self {
            Self::Run(run) => run.plan().map_or(0, |plan| plan.counts.destroy),
            Self::Layer(_) | Self::Repository(_) | Self::Namespace(_) => 0,
        }
    }

    /// The checksum of the run's plan.
    pub fn checksum(&self) -> Option<&str> {
        match self {
            Self::Run(run) => run.plan().map(|plan| plan.checksum.as_str()),
            Self::Layer(_) | Self::Repository(_) | Self::Namespace(_) => None,
        }
    }
}

impl Act {
    /// The removal of a state's lock, which is no annotation.
    pub fn unlock(kubectl: String) -> Self {
        Self {
            act: "unlock",
            label: "Remove lock",
            kubectl,
            danger: true,
            needs: vec![Need::Comment],
            remark: false,
        }
    }
}

/// The row of an act, by its name in a path.
pub fn row(kind: Kind, act: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.kind == kind && row.act == act)
}

/// The acts that the object's state permits, in the table's order.
pub fn offered(object: &Object<'_>) -> Vec<Act> {
    let rows = ROWS.iter().filter(|row| row.kind == object.kind());
    rows.filter(|row| (row.offered)(object))
        .map(|row| row.act(object))
        .collect()
}

/// The act that the run's reason suggests.
pub fn next(run: &TerraformRun) -> Option<Act> {
    let word = table::next(run)?;
    let object = Object::Run(run);
    row(Kind::Run, word)
        .filter(|row| (row.offered)(&object))
        .map(|row| row.act(&object))
}

impl Row {
    fn act(&self, object: &Object<'_>) -> Act {
        let needs = self.needs(object);
        Act {
            act: self.act,
            label: self.label,
            kubectl: kubectl::line(self, object),
            danger: self.danger || needs.contains(&Need::Destroys),
            needs,
            remark: self.writes.iter().any(|(_, word)| *word == Word::Remark),
        }
    }

    /// The required parts of a request.
    pub fn needs(&self, object: &Object<'_>) -> Vec<Need> {
        let mut needs = Vec::new();
        for (_, word) in self.writes {
            match word {
                Word::Checksum => {
                    needs.push(Need::Checksum);
                    needs.extend((object.destroys() > 0).then_some(Need::Destroys));
                }
                Word::Reason => needs.push(Need::Comment),
                Word::Remark | Word::Person | Word::Now | Word::Fixed(_) | Word::Remove => {}
            }
        }
        needs
    }

    /// The annotations that the act writes in the person's name; `null` removes one. `now` is the Unix time in seconds.
    ///
    /// # Errors
    /// The request lacks a part; the text names it.
    pub fn annotations(
        &self,
        object: &Object<'_>,
        request: &Request,
        person: &str,
        now: i64,
    ) -> Result<Map<String, Value>, String> {
        let comment = request.comment.as_deref().unwrap_or_default().trim();
        if comment.chars().count() > 512 {
            return Err("`comment` has at most 512 characters".to_owned());
        }
        let needs = self.needs(object);
        let checksum = request.checksum.as_deref().unwrap_or_default();
        if needs.contains(&Need::Checksum) && checksum.is_empty() {
            return Err(
                "`checksum` has to be the whole checksum of the plan that waits".to_owned(),
            );
        }
        if needs.contains(&Need::Comment) && comment.is_empty() {
            return Err("`comment` has to give a reason".to_owned());
        }
        // The API server refuses another checksum, with the one that waits.
        let destroys = object.destroys();
        if needs.contains(&Need::Destroys)
            && object.checksum() == Some(checksum)
            && request.destroys != Some(destroys)
        {
            return Err(format!(
                "this plan destroys {destroys} objects, those that it replaces included; `destroys` has to confirm that number"
            ));
        }
        let value = |word: &Word| match word {
            Word::Checksum => checksum.into(),
            Word::Remark if comment.is_empty() => Value::Null,
            Word::Reason | Word::Remark => comment.into(),
            Word::Person => person.into(),
            Word::Now => now.to_string().into(),
            Word::Fixed(text) => (*text).into(),
            Word::Remove => Value::Null,
        };
        Ok(self
            .writes
            .iter()
            .map(|(name, word)| ((*name).to_owned(), value(word)))
            .collect())
    }
}

#[cfg(test)]
mod tests;
