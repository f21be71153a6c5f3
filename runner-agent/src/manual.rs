//! What the command line says of itself: completion for shells, and pages for `man`.

use std::io::{self, Write};

use clap::Command;
use clap_complete::Shell;

/// Writes the completion of a program for a shell.
pub fn completion(mut program: Command, shell: Shell, out: &mut impl Write) -> io::Result<()> {
    let name = program.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program, name.as_str(), &mut text);
    if shell == Shell::Bash {
        // clap issue 6421: the generator takes a hyphen in the program's own name for the border of a command, in some places but not in others, so
        // that no command of such a program is completed.
        let fixed = String::from_utf8_lossy(&text).replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"));
        text = fixed.into_bytes();
    }
    out.write_all(&text)?;
    out.flush()
}

/// Writes the page of a program, or of one of its commands.
pub fn page(mut program: Command, of: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    let version = format!("Pawl {}", program.get_version().unwrap_or_default());
    // The full names of commands are known only afterwards.
    program.build();
    let program = match of {
        None => program,
        Some(name) => {
            let found = program.find_subcommand(name).cloned();
            found.ok_or_else(|| io::Error::other(format!("there is no command {name}")))?
        }
    };
    clap_mangen::Man::new(program).source(version).manual("Pawl").render(out)?;
    out.flush()
}
