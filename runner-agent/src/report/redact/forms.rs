//! The encoded forms in which tools print a value: as it is, in JSON and HCL, in a URL, in base64 at any offset of the encoded
//! data, and in hexadecimal digits.

use std::{collections::BTreeSet, fmt::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::MIN_LENGTH;
use crate::report::sanitize::sanitize;

/// A shorter text is masked only as a whole word: `prod` within `production` is no secret.
const ANYWHERE: usize = 8;
/// Words after a number of changes.
const COUNTED: [&str; 11] = [
    " to ",
    " added",
    " changed",
    " destroyed",
    " replaced",
    " imported",
    " forgotten",
    " moved",
    " output",
    " drifted",
    " invoked",
];
/// A longer value is masked only unchanged, in JSON, and in base64 of the whole value. All forms of it would exceed an agent's memory.
const MAX_CODED: usize = 16 << 10;
/// Columns after which base64 is wrapped, by `base64` and in PEM.
const WRAPS: [usize; 2] = [76, 64];
/// Characters that encoders leave unescaped in a URL, besides letters and digits: RFC 3986; browsers; Go's paths; Go's user and
/// password.
const KEPT_IN_URLS: [&str; 4] = ["-._~", "-._~!'()*", "-._~$&+=:@", "-._~$&+,;="];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Form {
    pub(super) text: Vec<u8>,
    /// The base64 digit before or after the form also contains bits of the value.
    before: bool,
    after: bool,
    /// Letters, digits and underscores beside it make it part of another word.
    word: bool,
}

impl Form {
    fn plain(text: &str) -> Self {
        Self {
            text: text.as_bytes().to_vec(),
            before: false,
            after: false,
            word: false,
        }
    }

    /// A form of a text as it is written.
    fn written(of: &str, text: &str) -> Self {
        Self {
            word: of.len() < ANYWHERE,
            ..Self::plain(text)
        }
    }

    /// Whether the form may begin and, if the text goes on, end here.
    pub(super) fn is_apart(&self, text: &[u8], at: usize) -> bool {
        let letter = |at: usize| {
            text.get(at)
                .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_' || !b.is_ascii())
        };
        let end = at + self.text.len();
        let begins = !at.checked_sub(1).is_some_and(letter);
        !self.word || (begins && !letter(end) && !self.is_count(text, at, end))
    }

    /// Whether digits are a number of changes, as Pawl (`+3 ~0 -0`) and the tools (`3 to add`) write it.
    fn is_count(&self, text: &[u8], at: usize, end: usize) -> bool {
        let sign = at
            .checked_sub(1)
            .is_some_and(|before| b"+~-".contains(&text[before]));
        let rest = text.get(end..).unwrap_or_default();
        let verb = COUNTED
            .iter()
            .any(|words| rest.starts_with(words.as_bytes()));
        self.text.iter().all(u8::is_ascii_digit) && (sign || verb)
    }

    /// The range to mask for a match at a position.
    pub(super) fn reach(&self, text: &[u8], at: usize) -> (usize, usize) {
        let digit = |at: usize| {
            text.get(at)
                .is_some_and(|b| b.is_ascii_alphanumeric() || b"+/-_".contains(b))
        };
        let to = at + self.text.len();
        let before = self.before && at.checked_sub(1).is_some_and(digit);
        (
            at - usize::from(before),
            to + usize::from(self.after && digit(to)),
        )
    }
}

pub(super) fn forms(value: &str) -> Vec<Form> {
    let whole = value.trim_end_matches(['\n', '\r']);
    let lines = value.lines().flat_map(|line| [line, line.trim()]);
    let texts: BTreeSet<&str> = [value, whole]
        .into_iter()
        .chain(lines)
        .filter(|text| text.len() >= MIN_LENGTH)
        .collect();
    let mut found = BTreeSet::new();
    for text in texts {
        found.extend(written(text).iter().map(|form| Form::written(text, form)));
    }
    for text in BTreeSet::from([value, whole])
        .into_iter()
        .filter(|text| text.len() >= MIN_LENGTH)
    {
        coded(text, &mut found);
    }
    found
        .into_iter()
        .filter(|form| form.text.len() >= MIN_LENGTH)
        .collect()
}

/// Text forms, with escapes.
fn written(text: &str) -> Vec<String> {
    let mut all = vec![text.to_owned(), sanitize(text, false).into_owned()];
    if let Ok(quoted) = serde_json::to_string(text) {
        let json = quoted
            .strip_prefix('"')
            .and_then(|json| json.strip_suffix('"'))
            .unwrap_or(&quoted)
            .to_owned();
        // Go's encoder, used by the tools, escapes more characters; other encoders escape everything that is not ASCII.
        let go: String = json
            .chars()
            .map(|c| {
                if "<>&\u{2028}\u{2029}".contains(c) {
                    escaped(c)
                } else {
                    c.into()
                }
            })
            .collect();
        all.push(
            json.chars()
                .map(|c| if c.is_ascii() { c.into() } else { escaped(c) })
                .collect(),
        );
        all.push(json.replace("${", "$${").replace("%{", "%%{"));
        all.extend([json, go]);
    }
    if text.len() <= MAX_CODED {
        for kept in KEPT_IN_URLS {
            all.extend([percent(text, kept, true), percent(text, kept, false)]);
        }
        all.extend(
            [true, false].map(|upper| percent(text, KEPT_IN_URLS[0], upper).replace("%20", "+")),
        );
    }
    all
}

fn escaped(c: char) -> String {
    c.encode_utf16(&mut [0; 2])
        .iter()
        .fold(String::new(), |mut text, unit| {
            let _ = write!(text, "\\u{unit:04x}");
            text
        })
}

fn percent(text: &str, kept: &str, upper: bool) -> String {
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut out, byte| {
            let _ = match char::from(byte) {
                c if c.is_ascii_alphanumeric() || kept.contains(c) => write!(out, "{c}"),
                _ if upper => write!(out, "%{byte:02X}"),
                _ => write!(out, "%{byte:02x}"),
            };
            out
        })
}

/// Binary encodings.
fn coded(text: &str, found: &mut BTreeSet<Form>) {
    let small = text.len() <= MAX_CODED;
    if small {
        let digits = hex::encode(text);
        found.extend([Form::plain(&digits.to_uppercase()), Form::plain(&digits)]);
    }
    // The value's offset within a group of three bytes decides which digits depend on the value alone.
    for shift in 0..if small { 3 } else { 1 } {
        let mut bytes = vec![0; shift];
        bytes.extend_from_slice(text.as_bytes());
        let digits = STANDARD.encode(&bytes);
        let own = digits
            .get((shift * 8).div_ceil(6)..bytes.len() * 8 / 6)
            .unwrap_or_default();
        let (before, after) = (shift > 0, bytes.len() % 3 > 0);
        for own in [own.to_owned(), own.replace('+', "-").replace('/', "_")] {
            if shift == 0 {
                let pieces = WRAPS.iter().flat_map(|width| own.as_bytes().chunks(*width));
                found.extend(pieces.map(|piece| Form {
                    text: piece.to_vec(),
                    before: false,
                    after,
                    word: false,
                }));
            }
            found.insert(Form {
                text: own.into_bytes(),
                before,
                after,
                word: false,
            });
        }
    }
}
