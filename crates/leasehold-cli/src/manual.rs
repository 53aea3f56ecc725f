//! `leasehold completions` and `leasehold man`: made from the arguments themselves.

use std::fs;
use std::io;

use clap::CommandFactory;

use crate::args::{Cli, Completions, Man};
use crate::exit::{Failure, tell};
use crate::screen;

/// Prints a shell's completion script.
pub(crate) fn completions(args: Completions) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "leasehold", &mut script);
    screen::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Prints the manual page, or writes that of every command into a directory.
pub(crate) fn man(args: Man) -> Result<u8, Failure> {
    // There is no page for `help`.
    let mut leasehold = Cli::command().disable_help_subcommand(true);
    leasehold.build();
    let Some(directory) = args.directory else {
        screen::print(&page(&clap_mangen::Man::new(leasehold)))?;
        return Ok(0);
    };
    let write = || {
        fs::create_dir_all(&directory)?;
        for command in leasehold.get_subcommands().chain([&leasehold]) {
            let man = clap_mangen::Man::new(command.clone());
            fs::write(directory.join(man.get_filename()), page(&man))?;
        }
        Ok(())
    };
    let place = directory.display();
    write().map_err(|error: io::Error| {
        Failure::broken(format_args!("cannot write the manual pages to {place}"), &error)
    })?;
    tell(format_args!("wrote the manual pages to {place}"));
    Ok(0)
}

/// A page. Its last section is the longer help, whose lines stay as they are.
fn page(man: &clap_mangen::Man) -> String {
    let mut page = Vec::new();
    // Nothing that is written to memory fails.
    let _ = man.render(&mut page);
    let page = String::from_utf8_lossy(&page);
    match page.split_once(".SH EXTRA\n") {
        Some((before, notes)) => {
            let notes = notes.split(".SH VERSION").next().unwrap_or(notes);
            format!("{before}.SH NOTES\n.nf\n{notes}.fi\n")
        }
        None => page.into_owned(),
    }
}
