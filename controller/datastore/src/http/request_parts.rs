//! Untrusted path segments and parameters of a request.

use axum::{extract::RawPathParams, http::Uri};
use url::form_urlencoded;

use crds::datastore::Problem;
use serving::problem::{invalid, not_found};

/// The matched path segments and the parameters; the library decodes both.
pub struct RequestParts<'a> {
    pub(super) segments: &'a RawPathParams,
    pub(super) uri: &'a Uri,
}

pub type Read<T> = fn(&RequestParts<'_>) -> Result<T, Problem>;
/// Verb and path of a request, relative to a base, and the function that parses the rest.
pub type Row<T> = (&'static str, &'static str, Read<T>);

impl RequestParts<'_> {
    /// A path segment by its name in the pattern; contains unvalidated input.
    pub fn segment(&self, name: &str) -> &str {
        self.segments
            .iter()
            .find(|(of, _)| *of == name)
            .map_or("", |(_, value)| value)
    }

    /// The query parameters.
    ///
    /// # Errors
    /// `Invalid` for malformed escapes, and for values that are not UTF-8 or contain control characters: the library
    /// would keep the former unchanged and replace the latter by `U+FFFD`.
    pub fn parameters(&self) -> Result<Vec<(String, String)>, Problem> {
        let is_escape = |rest: &str| {
            rest.as_bytes()
                .get(..2)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        };
        let is_text = |text: &str| {
            !text.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER)
        };
        let query = self.uri.query().unwrap_or_default();
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let whole = query.split('%').skip(1).all(is_escape)
            && pairs.iter().all(|(_, value)| is_text(value));
        if whole {
            Ok(pairs)
        } else {
            Err(invalid("a parameter is no text"))
        }
    }
}

/// The error for an unknown path.
pub fn nothing() -> Problem {
    not_found("there is no such path, or not for this method")
}

/// A number of at most `most`.
///
/// # Errors
/// `Invalid`.
pub fn number(text: &str, most: u64) -> Result<u64, Problem> {
    let legal = text.len() <= 19 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|n| legal && *n <= most)
        .ok_or_else(|| invalid(format!("not a number up to {most}")))
}

/// `true` or `false`; an empty value means `true`.
///
/// # Errors
/// `Invalid`.
pub fn boolean(text: &str) -> Result<bool, Problem> {
    match text {
        "true" | "" => Ok(true),
        "false" => Ok(false),
        _ => Err(invalid("neither true nor false")),
    }
}
