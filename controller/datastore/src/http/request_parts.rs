//! What a request says in its path and its parameters, before anything of it is believed.

use axum::{extract::RawPathParams, http::Uri};
use url::form_urlencoded;

use crds::datastore::Problem;
use serving::problem::{invalid, not_found};

/// The segments that a path was matched by, and its parameters; the library decodes both.
pub struct RequestParts<'a> {
    pub(super) segments: &'a RawPathParams,
    pub(super) uri: &'a Uri,
}

pub type Read<T> = fn(&RequestParts<'_>) -> Result<T, Problem>;
/// Verb and path of a request, the path below a base, and how the rest is read.
pub type Row<T> = (&'static str, &'static str, Read<T>);

impl RequestParts<'_> {
    /// A segment of the path by its name there; it holds whatever was sent.
    pub fn segment(&self, name: &str) -> &str {
        self.segments.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| value)
    }

    /// The parameters.
    ///
    /// # Errors
    /// `Invalid` for escapes that are none, and for values that are no UTF-8 or hold control characters: the library would take the
    /// former as they stand, and put `U+FFFD` in place of the latter.
    pub fn parameters(&self) -> Result<Vec<(String, String)>, Problem> {
        let is_escape = |rest: &str| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let is_text = |text: &str| !text.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER);
        let query = self.uri.query().unwrap_or_default();
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let whole = query.split('%').skip(1).all(is_escape) && pairs.iter().all(|(_, value)| is_text(value));
        if whole { Ok(pairs) } else { Err(invalid("a parameter is no text")) }
    }
}

/// There is no such path.
pub fn nothing() -> Problem {
    not_found("there is no such path, or not for this method")
}

/// A number of at most `most`.
///
/// # Errors
/// `Invalid`.
pub fn number(text: &str, most: u64) -> Result<u64, Problem> {
    let legal = text.len() <= 19 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| legal && *n <= most).ok_or_else(|| invalid(format!("that is no number up to {most}")))
}

/// `true` or `false`; nothing means `true`.
///
/// # Errors
/// `Invalid`.
pub fn boolean(text: &str) -> Result<bool, Problem> {
    match text {
        "true" | "" => Ok(true),
        "false" => Ok(false),
        _ => Err(invalid("that is neither true nor false")),
    }
}
