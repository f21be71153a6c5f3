//! Tests each form at each position, chunk boundary and line end.

use super::*;
use crate::process::Lines;
use ::base64::{Engine as _, engine::general_purpose::STANDARD};
use hex::encode as hex;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Contains characters that each encoder escapes.
const SECRET: &str = "s3cr+t\"välue/<&> ${x}?";

fn redactor(values: &[&str]) -> Redactor {
    let redactor = Redactor::default();
    for value in values {
        redactor.add(value);
    }
    redactor
}

/// The value in the forms of other encoders, written by hand.
fn encodings() -> Vec<(&'static str, String)> {
    let coded = base64(SECRET.as_bytes());
    vec![
        ("plain", SECRET.to_owned()),
        ("JSON", r#"s3cr+t\"välue/<&> ${x}?"#.to_owned()),
        (
            "JSON of Go",
            r#"s3cr+t\"välue/\u003c\u0026\u003e ${x}?"#.to_owned(),
        ),
        (
            "JSON in ASCII",
            r#"s3cr+t\"v\u00e4lue/<&> ${x}?"#.to_owned(),
        ),
        ("HCL", r#"s3cr+t\"välue/<&> $${x}?"#.to_owned()),
        (
            "URL",
            "s3cr%2Bt%22v%C3%A4lue%2F%3C%26%3E%20%24%7Bx%7D%3F".to_owned(),
        ),
        (
            "URL, small digits",
            "s3cr%2bt%22v%c3%a4lue%2f%3c%26%3e%20%24%7bx%7d%3f".to_owned(),
        ),
        (
            "form",
            "s3cr%2Bt%22v%C3%A4lue%2F%3C%26%3E+%24%7Bx%7D%3F".to_owned(),
        ),
        (
            "path of Go",
            "s3cr+t%22v%C3%A4lue%2F%3C&%3E%20$%7Bx%7D%3F".to_owned(),
        ),
        ("base64", coded.clone()),
        (
            "base64 without padding",
            coded.trim_end_matches('=').to_owned(),
        ),
        ("base64 for URLs", coded.replace('+', "-").replace('/', "_")),
        (
            "base64 behind one byte",
            base64(format!("x{SECRET}").as_bytes()),
        ),
        (
            "base64 behind two bytes",
            base64(format!("me{SECRET}").as_bytes()),
        ),
        (
            "base64 of a pair",
            base64(format!("user:{SECRET}\n").as_bytes()),
        ),
        (
            "base64 in the middle",
            base64(format!("x{SECRET}yz").as_bytes()),
        ),
        ("hex", hex(SECRET.as_bytes())),
        ("HEX", hex(SECRET.as_bytes()).to_uppercase()),
        (
            "colours within",
            SECRET.replace("lue", "\u{1b}[1ml\u{1b}[0mue"),
        ),
    ]
}

/// Asserts that no five characters of the encoded value remain, except those of its neighbours.
fn assert_gone(name: &str, form: &str, seen: &str) {
    let core =
        if name.starts_with("base64 behind") || name.contains("pair") || name.contains("middle") {
            // The first and last groups also encode the neighbours.
            form.get(8..form.len() - 8).unwrap()
        } else {
            form
        };
    let pieces: Vec<char> = core.chars().collect();
    for piece in pieces.windows(5) {
        let piece: String = piece.iter().collect();
        assert!(
            !seen.contains(&piece),
            "{name}: `{piece}` of `{form}` is left in `{seen}`"
        );
    }
    assert!(seen.contains(MASK), "{name}: {seen}");
}

#[test]
fn every_form_is_masked_at_every_border_of_chunks() {
    let redactor = redactor(&[SECRET]);
    for (name, form) in encodings() {
        let line = format!("before |{form}| behind\n");
        for border in 0..=line.len() {
            let (mut lines, mut seen) = (Lines::default(), String::new());
            for chunk in [&line.as_bytes()[..border], &line.as_bytes()[border..]] {
                lines.feed(chunk, |line, _| {
                    seen.push_str(&redactor.redact(&sanitize(line, false)));
                });
            }
            assert_gone(name, &form, &seen);
            assert!(
                seen.starts_with("before |") && seen.ends_with("| behind"),
                "{name}: {seen}"
            );
        }
    }
}

#[test]
fn every_form_is_masked_in_truncated_text() {
    let redactor = redactor(&[SECRET]);
    for (name, form) in encodings()
        .into_iter()
        .filter(|(name, _)| !name.contains(' '))
    {
        for (end, _) in form.char_indices().skip(5) {
            let text = format!("before |{}", &form[..end]);
            let seen = redactor.redact_cut(&text);
            assert!(
                seen.starts_with("before |(") && seen.len() <= 8 + MASK.len() + 1,
                "{name} cut at {end}: {seen}"
            );
            assert_eq!(redactor.clean(&format!("{text}…")), format!("{seen}…"));
        }
    }
    assert_eq!(redactor.redact_cut("nothing of it"), "nothing of it");
}

#[test]
fn multi_line_value_is_masked_by_line() {
    let redactor = redactor(&["line one\n  line two\n"]);
    assert_eq!(redactor.redact("line two"), MASK);
    assert_eq!(
        redactor.redact("  line one, and more"),
        format!("  {MASK}, and more")
    );
    assert_eq!(
        redactor.redact(r#"{"a":"line one\n  line two\n"}"#),
        format!(r#"{{"a":"{MASK}"}}"#)
    );
}

#[test]
fn long_value_is_masked_in_wrapped_base64() {
    let secret: String = (0..700_u32)
        .map(|i| char::from(b'!' + u8::try_from(i * 31 % 90).unwrap()))
        .collect();
    let redactor = redactor(&[&secret]);
    for width in [76, 64] {
        for line in base64(secret.as_bytes()).as_bytes().chunks(width) {
            let seen = redactor
                .redact(std::str::from_utf8(line).unwrap())
                .into_owned();
            assert_eq!(seen.trim_end_matches('='), MASK, "columns of {width}");
        }
    }
}

#[test]
fn overlapping_and_nested_values_are_masked() {
    let redactor = redactor(&["pass", "password-1", "word-1234", "sensitive"]);
    assert_eq!(redactor.redact("password-1"), MASK);
    assert_eq!(redactor.redact("a password-1234 b"), format!("a {MASK} b"));
    assert_eq!(redactor.redact("pass pass"), format!("{MASK} {MASK}"));
    assert_eq!(
        redactor.redact("abc stays, and so does pas"),
        "abc stays, and so does pas"
    );
}

#[test]
fn value_of_less_than_eight_bytes_is_masked_as_a_whole_word() {
    let redactor = redactor(&["prod", "1234", "true", "päss"]);
    for stays in [
        "production-eu",
        "terraform_data.production",
        "prod_eu",
        "12345",
        "untrue",
        "plan +1234 ~0 -1234",
        "Plan: 1234 to add, 1234 to change",
        "pässe",
        "prodö",
    ] {
        assert_eq!(redactor.redact(stays), stays);
    }
    for (text, seen) in [
        ("is prod.", "is (sensitive value)."),
        ("prod-eu", "(sensitive value)-eu"),
        ("\"1234\"", "\"(sensitive value)\""),
        ("päss", "(sensitive value)"),
        ("production prod", "production (sensitive value)"),
    ] {
        assert_eq!(redactor.redact(text), seen);
    }
    assert_eq!(redactor.redact_cut("reprod"), "reprod");
    assert_eq!(redactor.redact_cut("a prod"), "a (sensitive value)");
}

#[test]
fn generated_values_are_masked_by_length_and_place() {
    let mut dice = StdRng::seed_from_u64(35);
    for _ in 0..3000 {
        // No character of a value is one of the text around it.
        let (letters, length) = ("abcé019-/", dice.random_range(4..13));
        let value: String = (0..length)
            .filter_map(|_| letters.chars().nth(dice.random_range(0..9)))
            .collect();
        let edges = ["", " ", "\"", "=", ".", "X", "_", "7", "ö"];
        let [before, after] = [(), ()].map(|()| edges[dice.random_range(0..edges.len())]);
        let is_whole = ["X", "_", "7", "ö"]
            .iter()
            .all(|edge| ![before, after].contains(edge));
        let (text, masked) = (
            format!("Z {before}{value}{after} Z"),
            format!("Z {before}{MASK}{after} Z"),
        );
        let wanted = if is_whole || value.len() >= 8 {
            &masked
        } else {
            &text
        };
        assert_eq!(redactor(&[&value]).redact(&text), *wanted, "{value}");
    }
}

#[test]
fn generated_counts_are_not_rewritten() {
    let mut dice = StdRng::seed_from_u64(35);
    for _ in 0..100 {
        let n: u32 = dice.random_range(1000..10_000_000);
        let redactor = redactor(&[&n.to_string()]);
        let counts = serde_json::json!({"add": n, "change": n, "destroy": n, "replace": n, "import": n, "forget": n, "moved": n,
            "outputs": n, "drifted": n, "invoke": n});
        let counts: crds::Changes = serde_json::from_value(counts).unwrap();
        for text in [
            counts.summary(),
            format!(
                "Plan: {n} to import, {n} to add, {n} to change, {n} to destroy, {n} to forget. Actions: {n} to invoke."
            ),
            format!(
                "Resources: {n} imported, {n} added, {n} changed, {n} destroyed, {n} forgotten. Actions: {n} invoked."
            ),
        ] {
            assert_eq!(redactor.redact(&text), text);
        }
        assert_eq!(
            redactor.redact(&format!("is {n}, as {n} is")),
            format!("is {MASK}, as {MASK} is")
        );
    }
}

#[test]
fn short_value_is_not_masked_and_long_value_is() {
    let long = "0123456789abcdef".repeat(8 << 10);
    let redactor = redactor(&["abc", &long]);
    assert_eq!(redactor.redact("abc stays"), "abc stays");
    for form in [long.clone(), base64(long.as_bytes())] {
        let seen = redactor.redact(&form).into_owned();
        assert!(seen.len() < 64, "{} bytes are left", seen.len());
    }
    // Bounds the memory: a hundred values must fit into the agent's limit.
    let held: usize = redactor
        .table
        .read()
        .unwrap()
        .forms
        .values()
        .flatten()
        .map(|form| form.text.len())
        .sum();
    assert!(held <= 8 * long.len(), "{held} bytes of forms");
}

#[test]
fn status_contains_no_parts_of_a_secret_that_join_on_display() {
    let redactor = redactor(&["hunter22"]);
    for text in ["hun\u{1b}[1mter22", "hunter22\u{202e}", "a hunter22"] {
        assert!(redactor.clean(text).contains(MASK), "{text:?}");
    }
    // Escaped control characters keep the two parts apart.
    for text in ["hun\u{1}ter22", "hun\u{202e}ter22", "hun\u{2066}ter22"] {
        let shown = crds::text::clip(&redactor.clean(text), 100);
        assert!(!shown.contains("hunter22"), "{shown}");
    }
}

#[test]
fn password_in_a_url_is_masked() {
    let redactor = Redactor::default();
    redactor.add("hunter22");
    for (text, wanted) in [
        (
            "git::https://me:tok@h/a.git?ref=x",
            format!("git::https://me:{MASK}@h/a.git?ref=x"),
        ),
        (
            "'https://glpat-0123456789abcdef@h/a' and http://h/x@y:z",
            format!("'https://{MASK}@h/a' and http://h/x@y:z"),
        ),
        (
            "https://me:hunter22@h ssh://git@h/a",
            format!("https://me:{MASK}@h ssh://git@h/a"),
        ),
        (
            "postgres://u:@h hunter22",
            format!("postgres://u:@h {MASK}"),
        ),
    ] {
        assert_eq!(redactor.redact(text), wanted);
    }
}
