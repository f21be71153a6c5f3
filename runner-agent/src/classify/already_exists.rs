//! Failures of creations because the object exists, usually after an earlier creation was reported as failed. The failure names the
//! address, the ID if the text contains it, and the `import` block that adopts the object.

use serde_json::json;

use crds::{Diagnostic, Failure, FailureClass, apply_log::address::quoted, reason, text::clip};

/// Lower-case texts.
const TEXTS: [&str; 5] = [
    "already exists",
    "alreadyexists",
    "already_exists",
    "alreadyownedbyyou",
    "has already been taken",
];

/// Prefixes of an ID in providers' messages, and the character that ends the ID.
const BEFORE: [(&str, char); 6] = [
    ("with the id \"", '"'),
    ("with id \"", '"'),
    ("id: \"", '"'),
    ("with name ", ' '),
    ("(id ", ')'),
    ("with id ", ' '),
];

/// Recognises such a failure of an apply. Returns the block as HCL for the log. The failure's message has one line, so it contains
/// the block in the syntax of a `.tf.json` file.
pub fn recognise(failure: &mut Failure) -> Option<String> {
    let at = failure.diagnostics.iter().position(is_one)?;
    failure.diagnostics.swap(0, at);
    let told = failure.diagnostics.first()?;
    let id = id(told);
    let written = id.as_deref().unwrap_or("…");
    let address = told.address.as_deref().unwrap_or("ADDRESS");
    let block = json!({"import": {"to": address, "id": written}});
    let code = format!(
        "import {{\n  to = {address}\n  id = {}\n}}",
        quoted(written)
    );
    let named = match &id {
        Some(id) => format!(" as {id}"),
        None => ", and the text does not carry its ID".to_owned(),
    };
    let summary = clip(&told.summary, 240);
    failure.class = FailureClass::Configuration;
    reason::ALREADY_EXISTS.clone_into(&mut failure.reason);
    let message = format!(
        "apply failed: {address} exists already{named}: {summary}; to adopt it put {block} into import.tf.json"
    );
    failure.message = clip(&message, 1024);
    Some(code)
}

fn words(told: &Diagnostic) -> String {
    format!(
        "{}\n{}",
        told.summary,
        told.detail.as_deref().unwrap_or_default()
    )
}

fn is_one(told: &Diagnostic) -> bool {
    // A diagnostic with a place in the code but without an address is an error in the code, e.g. two blocks with the same name.
    let of_code = told.file.is_some() && told.address.is_none();
    let text = words(told).to_lowercase();
    told.severity == "error" && !of_code && TEXTS.iter().any(|needle| text.contains(needle))
}

/// The ID in the text, if the provider prints one.
fn id(told: &Diagnostic) -> Option<String> {
    let text = words(told);
    // ASCII lower case only, so that offsets in both texts are equal.
    let lower = text.to_ascii_lowercase();
    BEFORE.iter().find_map(|(before, end)| {
        let from = lower.find(before)? + before.len();
        let rest = text.get(from..)?;
        let found = rest
            .get(..rest.find(*end)?)?
            .trim_matches(['"', '\'', ':', ',']);
        let plain = !found.is_empty()
            && found.len() <= 512
            && !found.chars().any(|c| c.is_control() || c == ' ');
        plain.then(|| found.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::{Changed, Reason};

    fn of(summary: &str, detail: &str, address: Option<&str>) -> Failure {
        let told = Diagnostic {
            severity: "error".into(),
            summary: summary.into(),
            detail: Some(detail.into()),
            address: address.map(Into::into),
            file: Some("main.tf".into()),
            line: Some(3),
        };
        let other = Diagnostic {
            severity: "error".into(),
            summary: "other".into(),
            ..Diagnostic::default()
        };
        let diagnostics = vec![other, told];
        let mut failure = Failure {
            changes: Changed::Some,
            diagnostics,
            ..Reason::ApplyFailed.failure("apply failed")
        };
        let code = recognise(&mut failure);
        assert_eq!(code.is_some(), failure.reason == reason::ALREADY_EXISTS);
        failure
    }

    #[test]
    fn provider_message_yields_object_and_import_block() {
        let rows = [
            (
                "creating IAM Role (web): operation error IAM: CreateRole, EntityAlreadyExists: Role with name web already exists.",
                Some("web"),
            ),
            (
                "A resource with the ID \"/subscriptions/1/resourceGroups/rg\" already exists - to be managed via Terraform this \
                 resource needs to be imported into the State.",
                Some("/subscriptions/1/resourceGroups/rg"),
            ),
            (
                "googleapi: Error 409: The resource 'projects/p/global/networks/n' already exists, alreadyExists",
                None,
            ),
            ("secrets \"db\" already exists", None),
            (
                "creating S3 Bucket (b): BucketAlreadyOwnedByYou: Your previous request succeeded",
                None,
            ),
        ];
        for (text, expected) in rows {
            let failure = of(text, "", Some("aws_x.a[0]"));
            assert_eq!(failure.reason, reason::ALREADY_EXISTS, "{text}");
            let block = format!(
                r#"{{"import":{{"to":"aws_x.a[0]","id":"{}"}}}}"#,
                expected.unwrap_or("…")
            );
            assert!(
                failure.message.contains(&block)
                    && failure.message.contains("aws_x.a[0] exists already"),
                "{}",
                failure.message
            );
            assert_eq!(
                (failure.changes, failure.diagnostics[0].summary.as_str()),
                (Changed::Some, text)
            );
        }
    }

    #[test]
    fn error_in_the_code_is_not_recognised() {
        assert_eq!(
            of(
                "Duplicate resource",
                "A resource named a already exists.",
                None
            )
            .reason,
            reason::APPLY_FAILED
        );
        assert_eq!(
            of("no such luck", "", Some("a.b")).reason,
            reason::APPLY_FAILED
        );
    }
}
