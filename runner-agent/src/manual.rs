//! Shell completion, and `man` pages.

use std::io::{self, Write};

use clap::Command;
use clap_complete::Shell;

/// Writes a program's completion for a shell.
pub fn completion(mut program: Command, shell: Shell, out: &mut impl Write) -> io::Result<()> {
    let name = program.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program, name.as_str(), &mut text);
    if shell == Shell::Bash {
        // clap issue 6421: the generator treats a hyphen in the program's name as a separator of commands in some places only, so
        // that no command of such a program is completed.
        let fixed = String::from_utf8_lossy(&text)
            .replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"));
        text = fixed.into_bytes();
    }
    out.write_all(&text)?;
    out.flush()
}

/// Writes the page of a program, or of one of its commands.
pub fn page(mut program: Command, of: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    let version = format!("Pawl {}", program.get_version().unwrap_or_default());
    // Computes the full names of commands.
    program.build();
    let program = match of {
        None => program,
        Some(name) => {
            let found = program.find_subcommand(name).cloned();
            found.ok_or_else(|| io::Error::other(format!("there is no command {name}")))?
        }
    };
    let man = clap_mangen::Man::new(program.clone())
        .source(version)
        .manual("Pawl");
    man.render_title(out)?;
    man.render_name_section(out)?;
    let mut synopsis = Vec::new();
    man.render_synopsis_section(&mut synopsis)?;
    out.write_all(with_values(&program, &String::from_utf8_lossy(&synopsis)).as_bytes())?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if program.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    if let Some(more) = program
        .get_after_long_help()
        .or_else(|| program.get_after_help())
    {
        out.write_all(as_it_stands(&more.to_string()).as_bytes())?;
    }
    if program.get_version().is_some() {
        man.render_version_section(out)?;
    }
    out.flush()
}

/// Adds the values of options to a synopsis, which the generator omits.
fn with_values(program: &Command, synopsis: &str) -> String {
    let mut text = synopsis.to_owned();
    for option in program.get_opts() {
        let (Some(long), Some(values)) = (option.get_long(), option.get_value_names()) else {
            continue;
        };
        let bare = format!("\\fB\\-\\-{}\\fR]", escaped(long));
        let values: Vec<&str> = values.iter().map(clap::builder::Str::as_str).collect();
        let whole = format!(
            "{} \\fI{}\\fR]",
            bare.trim_end_matches(']'),
            escaped(&values.join(" "))
        );
        text = text.replace(&bare, &whole);
    }
    text
}

/// Renders the text below the options with its line breaks, which the generator would fill. Each heading becomes a section.
fn as_it_stands(text: &str) -> String {
    let mut page = String::new();
    for line in text.lines() {
        let head = line
            .strip_suffix(':')
            .filter(|head| !head.starts_with(' ') && !head.is_empty());
        if head.is_some() || page.is_empty() {
            page.push_str(if page.is_empty() { ".SH " } else { ".fi\n.SH " });
            page.push_str(&head.unwrap_or("Notes").to_uppercase());
            page.push_str("\n.nf\n");
        }
        if head.is_none() {
            // A line with this beginning would be a `roff` command.
            page.push_str(if line.starts_with(['.', '\'']) {
                "\\&"
            } else {
                ""
            });
            page.push_str(&escaped(line));
            page.push('\n');
        }
    }
    if page.is_empty() {
        page
    } else {
        format!("{page}.fi\n")
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_page_has_option_values_and_line_breaks() {
        let option = |name: &'static str| clap::Arg::new(name).long(name);
        let program = Command::new("x")
            .version("1")
            .arg(option("var-file").value_name("FILE"))
            .arg(option("var").value_name("NAME=VALUE"))
            .arg(option("json").action(clap::ArgAction::SetTrue))
            .after_long_help("Examples:\n  x --var a=b\n\nExit codes:\n  0   well\n.\nThe end");
        let mut out = Vec::new();
        page(program, None, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "\\-\\-var\\-file\\fR \\fIFILE\\fR]",
            "\\-\\-var\\fR \\fINAME=VALUE\\fR]",
            "\\-\\-json\\fR]",
            ".SH EXAMPLES\n.nf\n  x \\-\\-var a=b\n\n.fi\n.SH EXIT CODES\n.nf\n  0   well\n\\&.\nThe end\n.fi\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("EXTRA"), "{text}");
    }
}
