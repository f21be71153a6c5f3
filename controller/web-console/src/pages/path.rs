//! Paths, queries and bodies of requests. Their words become parts of paths of the API server, so only names pass.

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{StatusCode, request::Parts},
};
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// The largest body of a request, in bytes.
const LARGEST: usize = 16 << 10;

/// The segments of a path, each a name of Kubernetes or of an act.
pub struct Names<const N: usize>(pub [String; N]);

impl<S: Send + Sync, const N: usize> FromRequestParts<S> for Names<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(found) = Path::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::invalid(error.to_string()))?;
        let names: Vec<_> = found.into_iter().map(|(_, name)| name).collect();
        if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
            return Err(Problem::invalid(format!(
                "{wrong:?} is no name of an object"
            )));
        }
        names
            .try_into()
            .map(Self)
            .map_err(|_| Problem::invalid("the path has other segments"))
    }
}

/// Whether the word is safe as a segment of a path: letters, digits, `-`, `_` and `.`, with a letter or digit first.
fn is_name(word: &str) -> bool {
    (1..=253).contains(&word.len())
        && word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.chars().all(is_of_name)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// The parameters of a query, all of which are known and consist of the characters of names.
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the query of a request.
    ///
    /// # Errors
    /// An unknown parameter, or a value with other characters.
    pub fn of(parts: &axum::http::Uri, known: &[&str]) -> Result<Self, Problem> {
        let pairs = parts
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let pairs: Vec<_> = pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let is_plain = |value: &str| value.chars().all(is_of_name);
        if pairs
            .iter()
            .any(|(key, value)| !known.contains(&key.as_str()) || !is_plain(value))
        {
            return Err(Problem::invalid(format!(
                "the parameters are: {}",
                known.join(", ")
            )));
        }
        Ok(Self(pairs))
    }

    /// As the text of a query.
    pub fn text(&self) -> String {
        let pairs = self.0.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join("&")
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A body as JSON; an empty one is that of `T::default()`.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let body: Bytes = axum::body::to_bytes(request.into_body(), LARGEST)
            .await
            .map_err(|_| {
                Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "TooLarge",
                    format!("a body has at most {LARGEST} bytes; nothing was changed"),
                )
            })?;
        if body.is_empty() {
            return Ok(Self(T::default()));
        }
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            Problem::invalid(format!(
                "the body cannot be read: {error}; nothing was changed"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_no_other_path() {
        for name in ["net", "a.b-c_d", "0"] {
            assert!(is_name(name), "{name}");
        }
        for word in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a?b",
            "a%2fb",
            "a#b",
            "-n",
            "ä",
            &"a".repeat(254),
        ] {
            assert!(!is_name(word), "{word}");
        }
    }

    #[test]
    fn query_passes_on_only_known_parameters() {
        let of = |query: &str| {
            Query::of(
                &format!("/?{query}").parse().unwrap(),
                &["offset", "follow"],
            )
        };
        assert_eq!(
            of("offset=7&follow=true")
                .ok()
                .and_then(|query| query.get("offset").map(str::to_owned)),
            Some("7".into())
        );
        for query in ["tail=1", "offset=1%26tail", "offset=1=2", "offset=%20"] {
            assert!(of(query).is_err(), "{query}");
        }
    }
}
