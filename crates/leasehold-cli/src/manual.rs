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
    let broken = |error: io::Error| Failure::broken("cannot write the manual", &error);
    match args.directory {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(broken)?;
            screen::print(&String::from_utf8_lossy(&page))?;
        }
        Some(directory) => {
            fs::create_dir_all(&directory).map_err(broken)?;
            clap_mangen::generate_to(Cli::command(), &directory).map_err(broken)?;
            tell(format_args!("wrote the manual pages to {}", directory.display()));
        }
    }
    Ok(0)
}
