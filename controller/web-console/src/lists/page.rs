//! One page of rows, with counts. Rows that the person may not list are left out before anything is counted.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    access::Scope,
    problem::Problem,
    rows::{Held, Row, Sequence, State, table::Table},
};

use super::{
    cursor::{Cursor, Place, Value},
    query::Query,
};

/// Most values of a facet, the frequent ones first.
const VALUES: usize = 50;

/// Rows that are listed.
pub trait Listed: Row + JsonSchema + 'static {
    /// The resource of the API server.
    const RESOURCE: &'static str;
    /// Filters whose values are counted.
    const FACETS: &'static [Facet<Self>];
    /// Filters whose values are too many to be counted.
    const FILTERS: &'static [Facet<Self>];
    /// Fields that sort; the first one is the default.
    const SORTS: &'static [(&'static str, Sort<Self>)];

    fn table(tables: &State) -> &Table<Self>;
    fn namespace(&self) -> &str;
    fn name(&self) -> &str;
}

/// The name and the value of a filter.
pub type Facet<R> = (&'static str, fn(&R) -> Option<&str>);
/// The value of a field that sorts.
pub type Sort<R> = fn(&R) -> Option<Value<'_>>;

/// A page of rows.
#[derive(Serialize, JsonSchema, Debug, PartialEq)]
pub struct Page<R> {
    pub items: Vec<R>,
    /// The rows that match the search and all filters.
    pub total: usize,
    /// The values of each filter, counted in the rows that match the search and all other filters; the 50 most frequent.
    pub facets: BTreeMap<&'static str, Vec<Count>>,
    /// The cursor of the next page.
    pub next: Option<String>,
    /// Sequence of the last change before the rows were read. A client passes it to the stream as `after`.
    pub sequence: String,
}

impl<R> Page<R> {
    /// The page, read after this change.
    #[must_use]
    pub fn at(self, sequence: Sequence) -> Self {
        Self {
            sequence: sequence.to_string(),
            ..self
        }
    }
}

/// How often a value occurs.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct Count {
    pub value: String,
    pub count: usize,
}

/// The query with these parameters.
///
/// # Errors
/// A parameter is unknown or invalid.
pub fn query<'a, R: Listed>(
    parameters: impl IntoIterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
) -> Result<Query, Problem> {
    let all = R::FACETS.iter().chain(R::FILTERS);
    let filters: Vec<_> = all.map(|(name, _)| *name).collect();
    let sorts: Vec<_> = R::SORTS.iter().map(|(name, _)| *name).collect();
    Query::of(parameters, &filters, &sorts)
}

/// The page that is asked for, of the rows in the scope.
pub fn page<'a, R: Listed + 'a>(
    rows: impl Iterator<Item = &'a Held<R>>,
    scope: &Scope,
    query: &Query,
) -> Page<R> {
    let (field, descends) = query.sort;
    let mut sorts = R::SORTS.iter();
    let sort = sorts.find(|(name, _)| name.trim_start_matches('-') == field);
    let place = |row: &'a R| Place {
        value: sort.and_then(|(_, value)| value(row)),
        namespace: row.namespace(),
        name: row.name(),
    };
    let filters: Vec<_> = R::FACETS
        .iter()
        .chain(R::FILTERS)
        .zip(&query.filters)
        .collect();
    let mut counts = vec![Counts::default(); R::FACETS.len()];
    let after = query.cursor.as_ref().map(Cursor::place);
    let (mut total, mut found, mut last) = (0, Vec::new(), None);
    for held in rows {
        let row = &held.row;
        if !scope.has(row.namespace())
            || !query
                .words
                .iter()
                .all(|word| held.texts.contains(word.as_str()))
        {
            continue;
        }
        // The filter that leaves the row out, if there is only one.
        let mut failed = filters
            .iter()
            .enumerate()
            .filter(|(_, ((_, value), (_, accepted)))| {
                !accepted.is_empty()
                    && !value(row).is_some_and(|value| accepted.iter().any(|of| of == value))
            });
        let (one, more) = (
            failed.next().map(|(index, _)| index),
            failed.next().is_some(),
        );
        if more {
            continue;
        }
        for (index, count) in counts.iter_mut().enumerate() {
            if one.is_none_or(|one| one == index)
                && let Some((_, value)) = R::FACETS.get(index)
                && let Some(value) = value(row)
            {
                count.add(value);
            }
        }
        if one.is_none() {
            total += 1;
            let place = place(row);
            let is_after = |one: &Place<'_>| place.order(one, descends).is_gt();
            if after.as_ref().is_none_or(is_after) && !last.as_ref().is_some_and(is_after) {
                found.push((place, row));
            }
            // Most rows of a long list are on no page that is asked for.
            if found.len() > 2 * query.limit {
                last = first(&mut found, query.limit + 1, descends);
            }
        }
    }
    let has_more = found.len() > query.limit;
    if has_more {
        first(&mut found, query.limit, descends);
    }
    found.sort_unstable_by(|(one, _), (two, _)| one.order(two, descends));
    let last = found.last().filter(|_| has_more);
    Page {
        next: last.map(|(place, _)| Cursor::of(query.sort_text(), place).text()),
        items: found.iter().map(|(_, row)| (*row).clone()).collect(),
        total,
        facets: counts
            .into_iter()
            .zip(R::FACETS.iter().zip(&query.filters))
            .map(|(counts, ((name, _), (_, accepted)))| (*name, frequent(counts.all(), accepted)))
            .collect(),
        sequence: String::new(),
    }
}

/// Leaves only the first rows, in no order; returns the place of the last one of them.
fn first<'a, R>(
    found: &mut Vec<(Place<'a>, &'a R)>,
    limit: usize,
    descends: bool,
) -> Option<Place<'a>> {
    let order = |(one, _): &(Place<'_>, _), (two, _): &(Place<'_>, _)| one.order(two, descends);
    let last = limit.checked_sub(1).filter(|last| *last < found.len())?;
    let (_, (place, _), _) = found.select_nth_unstable_by(last, order);
    let place = place.clone();
    found.truncate(limit);
    Some(place)
}

/// Values, and how often each occurs.
#[derive(Clone, Default)]
struct Counts<'a> {
    /// Rows have few values, or those of their neighbours, so a hash is seldom needed.
    recent: [(&'a str, usize); 8],
    next: usize,
    others: HashMap<&'a str, usize>,
}

impl<'a> Counts<'a> {
    fn add(&mut self, value: &'a str) {
        let mut recent = self.recent.iter_mut();
        if let Some((_, count)) = recent.find(|(known, count)| *count > 0 && *known == value) {
            *count += 1;
            return;
        }
        let (former, count) = std::mem::replace(&mut self.recent[self.next], (value, 1));
        self.next = (self.next + 1) % self.recent.len();
        self.keep(former, count);
    }

    fn keep(&mut self, value: &'a str, count: usize) {
        if count > 0 {
            *self.others.entry(value).or_default() += count;
        }
    }

    fn all(mut self) -> HashMap<&'a str, usize> {
        for (value, count) in std::mem::take(&mut self.recent) {
            self.keep(value, count);
        }
        self.others
    }
}

/// The most frequent values, and those that are accepted.
fn frequent(counts: HashMap<&str, usize>, accepted: &[String]) -> Vec<Count> {
    let mut all: Vec<_> = counts.into_iter().collect();
    let chosen = |value: &str| accepted.iter().any(|of| of == value);
    all.sort_unstable_by_key(|(value, count)| (!chosen(value), usize::MAX - count, *value));
    all.truncate(VALUES);
    all.sort_unstable_by_key(|(value, count)| (usize::MAX - count, *value));
    let counted = all.into_iter().map(|(value, count)| Count {
        value: value.to_owned(),
        count,
    });
    counted.collect()
}
