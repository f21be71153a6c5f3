//! Masks secrets in the log and the status: every value from a Secret, in the forms in which tools usually print it (`forms.rs`); a
//! value of less than 8 bytes only as a whole word.
//!
//! Masking works on whole lines, so chunk boundaries do not matter; a multi-line value is masked line by line. A truncated text is
//! masked up to the cut. One pass over a line finds all values, whatever their number.

mod forms;

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use forms::{Form, forms};

use crate::report::sanitize::sanitize;

/// Shorter values are not masked: that would mask half of the log, and they are no secrets.
pub const MIN_LENGTH: usize = 4;

/// Replacement for a secret.
pub const MASK: &str = "(sensitive value)";

/// Size of the filter in bits.
const FILTER: usize = 1 << 16;

/// The values to mask. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    table: Arc<RwLock<Table>>,
}

impl Redactor {
    /// Masks a value from now on.
    pub fn add(&self, value: &str) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for form in forms(value) {
            table.add(form);
        }
    }

    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        masked(text, with_passwords(text, table.hits(text.as_bytes())))
    }

    /// Redacts a truncated text, including a partial secret at its end.
    pub fn redact_cut<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut hits = table.hits(text.as_bytes());
        if let Some(from) = table.begun(text.as_bytes()) {
            // The range reaches to the end, so it contains all later ones.
            hits.retain(|(at, _)| *at < from);
            push(&mut hits, from, text.len());
        }
        masked(text, with_passwords(text, hits))
    }

    /// Whether [`Self::clean`] masks a part of a text.
    pub fn finds(&self, text: &str) -> bool {
        self.clean(text) != sanitize(text, false)
    }

    /// Redacts a text for a status and escapes terminal control sequences. A text that ends with an ellipsis is treated as
    /// truncated.
    pub fn clean(&self, text: &str) -> String {
        let text = sanitize(text, false);
        match text.strip_suffix('…') {
            Some(cut) => format!("{}…", self.redact_cut(cut)),
            None => self.redact(&text).into_owned(),
        }
    }
}

/// All forms, found in one pass, with little more memory than their own bytes.
///
/// Measured against `aho-corasick` 1.1 with the forms of 100 values of 40 bytes and 4 MiB of text: an automaton over whole forms
/// takes 3.7 MB and 35 ms (for one value of 1 MiB 134 MB, and 324 MB while it is built), one over their first bytes 1.4 MB and 47
/// ms, this table 13 ms.
#[derive(Debug, Default)]
struct Table {
    /// By their first bytes, longest first.
    forms: HashMap<[u8; MIN_LENGTH], Vec<Form>>,
    /// A Bloom filter with one bit per hash of first bytes; empty without forms.
    filter: Vec<u64>,
    longest: usize,
}

impl Table {
    fn add(&mut self, form: Form) {
        let Some(head) = form.text.first_chunk::<MIN_LENGTH>().copied() else {
            return;
        };
        let same = self.forms.entry(head).or_default();
        if same.contains(&form) {
            return;
        }
        self.longest = self.longest.max(form.text.len());
        self.filter.resize(FILTER / 64, 0);
        self.filter[slot(head) / 64] |= 1 << (slot(head) % 64);
        let at = same.partition_point(|other| other.text.len() > form.text.len());
        same.insert(at, form);
    }

    fn with(&self, head: [u8; MIN_LENGTH]) -> &[Form] {
        if self.filter[slot(head) / 64] >> (slot(head) % 64) & 1 == 0 {
            return &[];
        }
        self.forms.get(&head).map_or(&[], Vec::as_slice)
    }

    /// The ranges to mask, sorted and disjoint. Overlapping values merge.
    fn hits(&self, text: &[u8]) -> Vec<(usize, usize)> {
        let mut hits = Vec::new();
        if self.filter.is_empty() {
            return hits;
        }
        for (at, window) in text.windows(MIN_LENGTH).enumerate() {
            let Some(head) = window.first_chunk() else {
                continue;
            };
            if let Some(form) = self
                .with(*head)
                .iter()
                .find(|form| text[at..].starts_with(&form.text) && form.is_apart(text, at))
            {
                let (from, to) = form.reach(text, at);
                push(&mut hits, from, to);
            }
        }
        hits
    }

    /// Start of a value whose rest was cut off.
    fn begun(&self, text: &[u8]) -> Option<usize> {
        let first = text.len().saturating_sub(self.longest);
        (first..(text.len() + 1).saturating_sub(MIN_LENGTH)).find(|at| {
            let rest = &text[*at..];
            rest.first_chunk().is_some_and(|head| {
                self.with(*head)
                    .iter()
                    .any(|form| form.text.starts_with(rest) && form.is_apart(text, *at))
            })
        })
    }
}

fn slot(head: [u8; MIN_LENGTH]) -> usize {
    (u32::from_le_bytes(head).wrapping_mul(0x9e37_79b1) >> 16) as usize
}

fn push(hits: &mut Vec<(usize, usize)>, from: usize, to: usize) {
    match hits.last_mut() {
        Some(last) if from <= last.1 => last.1 = last.1.max(to),
        _ => hits.push((from, to)),
    }
}

/// The shortest user of a URL without a password that is a token.
const TOKEN: usize = 16;

/// Adds the passwords in URLs, which no one declared: in a module's source, say.
fn with_passwords(text: &str, mut hits: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    for (at, scheme) in text.match_indices("://") {
        let from = at + scheme.len();
        let authority = text[from..]
            .split(|c: char| {
                matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>') || c.is_whitespace()
            })
            .next()
            .unwrap_or_default();
        let Some((user, _)) = authority.rsplit_once('@') else {
            continue;
        };
        let begin = match user.find(':') {
            Some(colon) => from + colon + 1,
            None if user.len() >= TOKEN => from,
            None => continue,
        };
        if begin < from + user.len() {
            hits.push((begin, from + user.len()));
        }
    }
    hits.sort_unstable();
    let mut merged = Vec::with_capacity(hits.len());
    for (from, to) in hits {
        push(&mut merged, from, to);
    }
    merged
}

fn masked(text: &str, hits: Vec<(usize, usize)>) -> Cow<'_, str> {
    if hits.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut shown = 0;
    for (from, to) in hits {
        out.push_str(text.get(shown..from).unwrap_or_default());
        out.push_str(MASK);
        shown = to;
    }
    out.push_str(text.get(shown..).unwrap_or_default());
    Cow::Owned(out)
}

#[cfg(test)]
mod tests;
