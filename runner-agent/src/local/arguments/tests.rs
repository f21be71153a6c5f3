use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn read(words: &[&str]) -> Result<(Verb, String), String> {
    let line = Line::try_parse_from(std::iter::once(&"x").chain(words))
        .map_err(|error| error.to_string())?;
    line.arguments.verb_and_place()
}

#[test]
fn verb_and_place_may_be_left_out() {
    assert_eq!(read(&[]), Ok((Verb::Apply, ".".into())));
    assert_eq!(read(&["plan"]), Ok((Verb::Plan, ".".into())));
    assert_eq!(
        read(&["stacks/net"]),
        Ok((Verb::Apply, "stacks/net".into()))
    );
    assert_eq!(read(&["destroy", "net"]), Ok((Verb::Destroy, "net".into())));
    assert!(read(&["aply", "net"]).unwrap_err().contains("neither plan"));
    assert!(read(&["--var", "x"]).is_err() && read(&["--tool", "helm"]).is_err());
}

#[test]
fn later_option_wins_and_command_line_wins_over_folder() {
    let line = "x --var a=1 --var-file /dev/null --var a=2 --target a.b --refresh=false --parallelism 3 \
                --argument plan=-exclude=a.c --argument=init=-upgrade";
    let arguments = Line::try_parse_from(line.split(' ')).unwrap().arguments;
    assert_eq!(
        arguments.plan_args().unwrap(),
        ["-var", "a=1", "-var-file", "/dev/null", "-var", "a=2"]
    );
    let mut spec = Map::new();
    spec.insert("targets".into(), json!(["of.folder"]));
    spec.insert("replace".into(), json!(["of.folder"]));
    spec.insert(
        "arguments".into(),
        json!({"plan": ["-concise"], "apply": ["-concise"]}),
    );
    arguments.put_into(&mut spec);
    let wanted = json!({"targets": ["a.b"], "replace": ["of.folder"], "refresh": false, "parallelism": 3,
        "arguments": {"init": ["-upgrade"], "plan": ["-exclude=a.c"], "apply": ["-concise"]}});
    assert_eq!(Value::Object(spec), wanted);
    let command = arguments.command(Verb::Plan, ".");
    let wanted = "--var 'a=…' --var-file /dev/null --var 'a=…' --target a.b --refresh=false --parallelism=3 \
                  --argument=plan=-exclude=a.c --argument=init=-upgrade";
    assert_eq!(command, format!("runner-agent local plan . {wanted}"));
    assert!(
        read(&["--argument=init=-backend-config=a=b"])
            .is_err_and(|error| error.contains("TF_CLI_ARGS_init"))
    );
    assert!(read(&["--argument", "show=-json"]).is_err() && read(&["--parallelism=0"]).is_err());
    let mut none = Map::new();
    Line::try_parse_from(["x"])
        .unwrap()
        .arguments
        .put_into(&mut none);
    assert!(none.is_empty());
}

#[test]
fn printed_command_holds_no_value_of_a_variable() {
    let line = Line::try_parse_from(["x", "plan", "--var", "word=s3cret-thing"]).unwrap();
    let command = line.arguments.command(Verb::Plan, ".");
    assert_eq!(command, "runner-agent local plan . --var 'word=…'");
    let pasted = Line::try_parse_from(["x", "plan", "--var", "word=…"]).unwrap();
    let refused = pasted.arguments.plan_args().unwrap_err().to_string();
    assert!(refused.contains("--var word=VALUE"), "{refused}");
    // The plan that waits has the value.
    let made = |words: [&str; 2]| pasted.arguments.made_args(words.map(OsString::from).into());
    let words = ["-var", "word=s3cret-thing"];
    assert_eq!(made(words).unwrap(), words);
    assert!(
        line.arguments
            .made_args(words.map(OsString::from).into())
            .is_ok()
    );
    let other = line
        .arguments
        .made_args(["-var", "word=x"].map(OsString::from).into());
    assert!(
        other
            .unwrap_err()
            .to_string()
            .contains("the plan was not made with --var")
    );
}

#[test]
fn printed_command_can_be_pasted() {
    let line = Line::try_parse_from([
        "x",
        "apply",
        "my net",
        "--var-file",
        "it's",
        "--tool",
        "tofu@~> 1.10",
    ])
    .unwrap();
    let (verb, place) = line.arguments.verb_and_place().unwrap();
    let command = line.arguments.command(verb, &place);
    assert_eq!(
        command,
        r"runner-agent local apply 'my net' --var-file 'it'\''s' --tool 'opentofu@~> 1.10'"
    );
}
