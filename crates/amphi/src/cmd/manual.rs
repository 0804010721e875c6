//! `amphi man`: the manual, a page for each command, made from the same definitions as `--help`.

use super::mount_helper::MountHelper;
use amphi_host::failure::{During, Failure, Outcome};
use clap::{Args, Command, CommandFactory};
use std::io::Write;
use std::path::PathBuf;

/// Print the manual: all of it, or the page of a command
#[derive(Args, Debug)]
pub struct Manual {
    /// The command, such as `mount` or `layout set`; default: all commands, one after the other
    command: Vec<String>,
    /// Write a file for each command into this folder instead: amphi.1, amphi-mount.1 ... mount.fuse.amphi.8
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// A page: its title, such as `amphi-mount`, its section, its text.
pub struct Page {
    title: String,
    section: &'static str,
    /// The text of the page, as roff.
    pub text: Vec<u8>,
}

impl Manual {
    /// Prints or writes; `program` is the command line of the program.
    pub fn run(self, program: Command) -> Outcome {
        let pages = pages(program).during(|| "make the manual".into())?;
        if let Some(dir) = &self.dir {
            for page in pages {
                let file = dir.join(format!("{}.{}", page.title, page.section));
                std::fs::write(&file, page.text).map_err(|e| Failure::refused(format!("{}: {e}", file.display())))?;
            }
            return Ok(());
        }
        let title =
            std::iter::once("amphi".to_string()).chain(self.command.iter().cloned()).collect::<Vec<_>>().join("-");
        let shown: Vec<&Page> = pages.iter().filter(|p| self.command.is_empty() || p.title == title).collect();
        if shown.is_empty() {
            let there: Vec<&str> = pages.iter().filter_map(|p| p.title.strip_prefix("amphi-")).collect();
            let why = format!("there is no command '{}'; there are {}", self.command.join(" "), there.join(", "));
            return Err(Failure::refused(why));
        }
        let mut out = std::io::stdout();
        let written = shown.iter().try_for_each(|page| out.write_all(&page.text));
        written.during(|| "write the manual".into())
    }
}

/// The pages of the program and of all its commands, and that of the helper of mount(8).
pub fn pages(program: Command) -> std::io::Result<Vec<Page>> {
    fn add(command: &Command, title: &str, section: &'static str, pages: &mut Vec<Page>) -> std::io::Result<()> {
        let mut text = Vec::new();
        let named = command.clone().display_name(title.to_owned()).bin_name(title.replace('-', " "));
        clap_mangen::Man::new(named).title(title).section(section).render(&mut text)?;
        pages.push(Page { title: title.to_owned(), section, text });
        for sub in command.get_subcommands().filter(|s| s.get_name() != "help" && !s.is_hide_set()) {
            add(sub, &format!("{title}-{}", sub.get_name()), section, pages)?;
        }
        Ok(())
    }
    let mut pages = Vec::new();
    add(&program, "amphi", "1", &mut pages)?;
    add(&MountHelper::command(), "mount.fuse.amphi", "8", &mut pages)?;
    Ok(pages)
}
