//! The parameters of a list.

use std::borrow::Cow;

use crate::problem::Problem;

use super::cursor::Cursor;

/// Rows of a page: at most, and by default.
const MOST: usize = 500;
const DEFAULT: usize = 100;
/// Longest search in bytes, and most values of all filters.
const LONGEST: usize = 256;
const VALUES: usize = 64;

/// The parameters of a list.
#[derive(Debug, Default)]
pub struct Query {
    /// The words that a row has to have, in lower case.
    pub words: Vec<String>,
    /// Accepted values of each filter; a filter without one accepts each row.
    pub filters: Vec<(&'static str, Vec<String>)>,
    /// A field, and whether it descends.
    pub sort: (&'static str, bool),
    pub limit: usize,
    pub cursor: Option<Cursor>,
}

impl Query {
    /// The query with these parameters. Values of a filter are separated by commas, or in parameters of their own.
    ///
    /// # Errors
    /// A parameter is unknown or invalid.
    pub fn of<'a>(
        parameters: impl IntoIterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
        filters: &[&'static str],
        sorts: &[&'static str],
    ) -> Result<Self, Problem> {
        let first = sorts.first().copied().unwrap_or_default();
        let mut query = Self {
            filters: filters.iter().map(|name| (*name, Vec::new())).collect(),
            sort: sort(first, sorts)?,
            limit: DEFAULT,
            ..Self::default()
        };
        let mut values = 0;
        for (name, value) in parameters {
            if value.len() > 4 * LONGEST {
                return Err(Problem::invalid(format!("{name} is too long")));
            }
            match &*name {
                "q" if value.len() > LONGEST => {
                    return Err(Problem::invalid(format!("q has at most {LONGEST} bytes")));
                }
                "q" => {
                    let words = value.split_whitespace().map(str::to_lowercase);
                    query.words = words.collect();
                }
                "sort" => query.sort = sort(&value, sorts)?,
                "limit" => {
                    let limit = value.parse().ok();
                    query.limit = limit
                        .filter(|limit| (1..=MOST).contains(limit))
                        .ok_or_else(|| {
                            Problem::invalid(format!("limit is between 1 and {MOST}"))
                        })?;
                }
                "cursor" if value.is_empty() => {}
                "cursor" => query.cursor = Some(Cursor::parse(&value).ok_or_else(other_cursor)?),
                _ => {
                    let mut all = query.filters.iter_mut();
                    let Some((_, accepted)) = all.find(|(filter, _)| *filter == name) else {
                        let known = filters.join(", ");
                        return Err(Problem::invalid(format!(
                            "{name} is no parameter; there are q, sort, limit, cursor, {known}"
                        )));
                    };
                    let more = value.split(',').filter(|value| !value.is_empty());
                    accepted.extend(more.map(str::to_owned));
                    values += value.split(',').count();
                }
            }
        }
        if values > VALUES {
            return Err(Problem::invalid(format!(
                "filters have at most {VALUES} values"
            )));
        }
        let of = query.cursor.as_ref().map(|cursor| cursor.sort.as_str());
        if of.is_some_and(|of| of != query.sort_text()) {
            return Err(other_cursor());
        }
        Ok(query)
    }

    /// The sort as in the query.
    pub fn sort_text(&self) -> String {
        let (field, descends) = self.sort;
        format!("{}{field}", if descends { "-" } else { "" })
    }
}

fn sort(value: &str, sorts: &[&'static str]) -> Result<(&'static str, bool), Problem> {
    let descends = value.starts_with('-');
    let field = value.trim_start_matches('-');
    let mut known = sorts.iter().map(|known| known.trim_start_matches('-'));
    known
        .find(|known| *known == field)
        .map(|known| (known, descends))
        .ok_or_else(|| {
            let all: Vec<_> = sorts.iter().map(|of| of.trim_start_matches('-')).collect();
            Problem::invalid(format!("sort is one of {}, or -FIELD", all.join(", ")))
        })
}

fn other_cursor() -> Problem {
    Problem::invalid("the cursor is not one of this list and sort; ask for the first page")
}
