//! Answers as JSON: with an ETag of their content, compressed if the browser accepts that.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::Write as _,
};

use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;

use crate::problem::Problem;

/// Smaller answers are not compressed, in bytes.
const SMALL: usize = 1024;

/// The answer, or 304 if the browser has it. `sequence` is part of the answer and does not count as a difference.
pub fn json(headers: &HeaderMap, answer: &impl Serialize, sequence: &str) -> Response {
    let text = match serde_json::to_string(answer) {
        Ok(text) => text,
        Err(error) => return Problem::internal(&error).into_response(),
    };
    let mut hasher = DefaultHasher::new();
    text.replace(sequence, "").hash(&mut hasher);
    let tag = format!("W/\"{:016x}\"", hasher.finish());
    let fields = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "private, no-cache"),
        (header::VARY, "accept-encoding, authorization, cookie"),
        (header::ETAG, tag.as_str()),
    ];
    let field = |name| {
        let values = headers.get_all(name).iter();
        values.filter_map(|value| value.to_str().ok())
    };
    let mut known = field(header::IF_NONE_MATCH).flat_map(|tags| tags.split(','));
    if known.any(|known| known.trim() == tag) {
        return (StatusCode::NOT_MODIFIED, fields).into_response();
    }
    let mut accepted = field(header::ACCEPT_ENCODING).flat_map(|all| all.split(','));
    let accepts = accepted.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight: String = weight.chars().filter(|c| !c.is_whitespace()).collect();
        name.trim().eq_ignore_ascii_case("gzip") && !matches!(weight.as_str(), "q=0" | "q=0.0")
    });
    let zipped = (accepts && text.len() > SMALL).then(|| gzip(text.as_bytes()));
    match zipped.and_then(Result::ok) {
        Some(body) => (fields, [(header::CONTENT_ENCODING, "gzip")], body).into_response(),
        None => (fields, text).into_response(),
    }
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}
