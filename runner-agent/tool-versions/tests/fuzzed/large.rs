//! Input that is long, deep or slow on purpose, which small mutations do not reach.

use tool_versions::{
    Request, Tool,
    request::{files, required},
};

/// Fragments to repeat: each nests deeper, or grows at the same depth.
const NESTED: [&str; 24] = [
    "[",
    "(",
    "{a=",
    "{\n",
    "{(",
    "!",
    "-",
    "f(",
    "b[",
    "b?",
    "b?c:",
    "1+",
    "\"${",
    "{\"${",
    "<<A\n${",
    "[for x in ",
    "{for x in ",
    "[\"${f({a=(!",
    "\"%{if x}",
    "%{if x}",
    "%{if x}%{else}",
    "%{for x in y}",
    "<<A\n",
    "b.",
];
/// A text without these names is not parsed.
const NAMES: &str =
    "# terragrunt_version_constraint terraform_version_constraint required_version\n";
const BLOCKS: [&str; 5] = ["a{\n", "a{", "a \"b\" {\n", "a{b=[", "/*"];

#[test]
fn endless_nesting_is_refused() {
    const LENGTH: usize = 100_000;
    let attributes = NESTED
        .iter()
        .flat_map(|part| ["a = ", "a = \"", "a = <<X\n"].map(|before| (before, part)));
    for (before, part) in attributes.chain(BLOCKS.iter().map(|part| ("", part))) {
        let text = format!("{NAMES}{before}{}", part.repeat(LENGTH / part.len()));
        assert!(
            files::said(Tool::Terraform, "terragrunt.hcl", &text).is_err(),
            "{before}{part}"
        );
        assert!(
            required::said(Tool::OpenTofu, "a.tf", &text).is_err(),
            "{before}{part}"
        );
    }
    let json = "[".repeat(LENGTH);
    assert!(files::said(Tool::Terraform, "terragrunt.hcl.json", &json).is_err());
    assert!(required::said(Tool::OpenTofu, "a.tf.json", &json).is_err());
}

/// On a thread with a small stack, as a caller may have.
#[test]
fn deepest_input_fits_a_small_stack() {
    const REST: &str = "terraform_version_constraint = \"1\"\n";
    for (open, close) in [
        ("[for x in ", " : x]"),
        ("{for x in ", " : x => x}"),
        ("[\"${", "}\"]"),
        ("{a = ", "}"),
        ("f(", ")"),
    ] {
        let mut deepest = 0;
        for depth in 1..70 {
            let text = format!("a = {}b{}\n{REST}", open.repeat(depth), close.repeat(depth));
            let read = move || files::said(Tool::Terraform, "terragrunt.hcl", &text);
            let thread = std::thread::Builder::new()
                .stack_size(512 << 10)
                .spawn(read)
                .unwrap();
            if thread.join().unwrap() == Ok(Some(("1".to_owned(), 2))) {
                deepest = depth;
            }
        }
        assert!((30..70).contains(&deepest), "{open}: {deepest}");
    }
}

#[test]
fn slow_patterns_are_refused() {
    for pattern in [
        "((.?){100}){100}",
        "(((.?){50}){50}){20}",
        "(.*){2000}x",
        "\\w{9999}",
    ] {
        for kind in ["latest", "min"] {
            assert!(
                format!("{kind}:{pattern}").parse::<Request>().is_err(),
                "{pattern}"
            );
        }
    }
    for pattern in [
        "^1\\.(5|6|7|8|9|10)\\.[0-9]+(-(alpha|beta|rc)[0-9]*)?$",
        "[0-9]{1,20}\\.[0-9]{1,20}",
        "(?i)RC",
    ] {
        format!("latest:{pattern}").parse::<Request>().unwrap();
    }
}
