//! A value in one to three cookies. The first begins with their number, so leftovers of a longer value are never read.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::problem::Problem;

/// Most bytes of a cookie's value; browsers accept 4,096 with name and attributes.
const PIECE: usize = 3800;
/// Most cookies of a session.
const PIECES: usize = 3;
/// Most bytes of all values. nginx takes a line of 8 KiB, names included.
pub const MOST: usize = 8000;

fn name(first: &str, index: usize) -> String {
    if index == 0 {
        first.to_owned()
    } else {
        format!("{first}-{index}")
    }
}

/// The value of these headers; `None` if it is not there or incomplete.
///
/// # Errors
/// A cookie is there twice: another page of the site may have set one of them.
pub fn read(headers: &HeaderMap, first: &str) -> Result<Option<String>, Problem> {
    let mut pieces: [Option<&str>; PIECES] = [None; PIECES];
    let all = headers.get_all(header::COOKIE).iter();
    for (found, value) in all
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='))
    {
        let Some(index) = (0..PIECES).find(|index| name(first, *index) == found) else {
            continue;
        };
        if pieces[index].replace(value).is_some() {
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "DuplicateCookie",
                format!(
                    "the cookie {found} is there twice; delete the cookies of this site and log in again"
                ),
            ));
        }
    }
    Ok(join(&pieces))
}

fn join(pieces: &[Option<&str>; PIECES]) -> Option<String> {
    let (count, rest) = pieces[0]?.split_at_checked(1)?;
    let count: usize = count
        .parse()
        .ok()
        .filter(|count| (1..=PIECES).contains(count))?;
    let mut value = rest.to_owned();
    for piece in &pieces[1..count] {
        value.push_str((*piece)?);
    }
    Some(value)
}

/// The headers that set a value for `life` seconds.
///
/// # Errors
/// The value is too large.
pub fn write(
    first: &str,
    value: &str,
    life: i64,
    is_secure: bool,
) -> Result<Vec<HeaderValue>, Problem> {
    if value.len() > MOST {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "TokenTooLarge",
            format!(
                "the token takes {} bytes of cookies and a browser sends at most {MOST}; log in with a token of fewer groups or claims",
                value.len()
            ),
        ));
    }
    let count = value.len().div_ceil(PIECE).max(1);
    let pieces = (0..count).map(|index| {
        let end = value.len().min((index + 1) * PIECE);
        let piece = &value[index * PIECE..end];
        let count = if index == 0 {
            count.to_string()
        } else {
            String::new()
        };
        cookie(
            &name(first, index),
            &format!("{count}{piece}"),
            life,
            is_secure,
        )
    });
    Ok(pieces.collect())
}

/// The headers that remove a value.
pub fn remove(first: &str, is_secure: bool) -> Vec<HeaderValue> {
    let names = (0..PIECES).map(|index| name(first, index));
    names.map(|name| cookie(&name, "", 0, is_secure)).collect()
}

fn cookie(name: &str, value: &str, life: i64, is_secure: bool) -> HeaderValue {
    let secure = if is_secure { "; Secure" } else { "" };
    let line = format!("{name}={value}; Path=/; Max-Age={life}; HttpOnly; SameSite=Lax{secure}");
    // Names and base64 have only visible ASCII.
    HeaderValue::try_from(line).unwrap_or_else(|_| HeaderValue::from_static(""))
}
