//! `amphi get` and `amphi set`: tunables of a mount and its servers, live.

use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::suggest::did_you_mean;
use clap::Args;
use std::path::{Path, PathBuf};

/// Print tunables whose names match a pattern: `*` stands for any text, `?` for one character.
#[derive(Args, Debug)]
pub struct Get {
    /// Pattern such as 'hybrid.*'; default: all
    #[arg(default_value = "*")]
    pattern: String,
    /// Mount point, or any file or directory there; default: the only mount here
    #[arg(long, short)]
    mount: Option<PathBuf>,
    /// Also print what each tunable means
    #[arg(long, short)]
    verbose: bool,
}

/// Set tunables whose names match a pattern (`*`: any text, `?`: one character); takes effect at once.
#[derive(Args, Debug)]
pub struct Set {
    /// PATTERN=VALUE, such as hybrid.large_write_bytes=4M; several are set in order
    #[arg(required = true, value_name = "PATTERN=VALUE")]
    assignments: Vec<String>,
    /// Mount point, or any file or directory there; default: the only mount here
    #[arg(long, short)]
    mount: Option<PathBuf>,
}

/// Tunables as a mount reports them.
struct Shown {
    /// The assignment and the help text of each tunable.
    rows: Vec<(String, String)>,
    /// Which servers have other values or do not answer, and which values are learnt.
    notes: Vec<String>,
}

/// Lines `name=value # help` of the tunables that match.
fn read(mount: &Path, pattern: &str) -> Outcome<Shown> {
    if pattern.is_empty() || pattern.len() > 200 || pattern.contains('\0') {
        return Err(Failure::refused(format!("'{pattern}' is no pattern for tunables; try: amphi get '*'")));
    }
    // A mount that knows no such tunable returns that error; on a path that is no mount of ours the first request
    // fails.
    control::read(mount, "user.amphi.mode")?;
    let text = control::read_if_any(mount, &format!("user.amphi.tunables.{pattern}"))?.unwrap_or_default();
    let (notes, lines): (Vec<_>, Vec<_>) = text.lines().filter(|l| !l.is_empty()).partition(|l| l.starts_with("# "));
    let rows: Vec<_> = lines
        .into_iter()
        .map(|l| {
            let (assignment, help) = l.split_once(" # ").unwrap_or((l, ""));
            (assignment.to_string(), help.to_string())
        })
        .collect();
    if rows.is_empty() {
        let all = control::read_if_any(mount, "user.amphi.tunables.*").ok().flatten().unwrap_or_default();
        let names = all.lines().filter_map(|l| Some(l.split_once('=')?.0)).filter(|name| !name.starts_with('#'));
        let advice = did_you_mean(pattern, names);
        return Err(Failure::refused(format!("no tunable matches '{pattern}'{advice}; amphi get '*' lists them all")));
    }
    Ok(Shown { rows, notes: notes.into_iter().map(|n| n.trim_start_matches("# ").to_string()).collect() })
}

impl Get {
    /// Prints `name=value` lines.
    pub fn run(self) -> Outcome {
        let mount = control::find_mount(self.mount, " with -m")?;
        let shown = read(&mount, &self.pattern)?;
        for (assignment, help) in shown.rows {
            if self.verbose && !help.is_empty() {
                println!("# {help}");
            }
            println!("{assignment}");
        }
        shown.notes.iter().for_each(|note| amphi_host::say::say(note));
        Ok(())
    }
}

impl Set {
    /// Sets each and prints the new values.
    pub fn run(self) -> Outcome {
        let mount = control::find_mount(self.mount, " with -m")?;
        for (done, assignment) in self.assignments.iter().enumerate() {
            set(&mount, assignment).map_err(|f| f.behind(done))?;
        }
        Ok(())
    }
}

fn set(mount: &Path, assignment: &str) -> Outcome {
    let Some((pattern, value)) = assignment.split_once('=') else {
        return Err(Failure::refused(format!("'{assignment}' must be PATTERN=VALUE")));
    };
    let rows = read(mount, pattern)?.rows;
    control::write(mount, "user.amphi.set", assignment, |_| {
        let help: Vec<&str> = rows.iter().map(|(_, h)| h.as_str()).collect();
        format!("'{value}' is no value for {pattern}: {}", help.join("; "))
    })?;
    let shown = read(mount, pattern)?;
    for (now, _) in shown.rows {
        println!("{now}");
    }
    shown.notes.iter().for_each(|note| amphi_host::say::say(note));
    Ok(())
}

#[cfg(test)]
mod tests {
    use amphi_types::tunable::Row;

    /// Goal: docs/TUNABLES.md has every tunable with its default, values and meaning, and nothing else; at most 50 of
    /// them are for people. Method: the rows of both tables, in their order, beside those of the document.
    #[test]
    fn the_document_has_all_of_them() {
        let rows = || amphi_client::Client::tunables().iter().chain(amphi_server::TUNABLES);
        let line =
            |row: &Row| format!("| `{}` | {} | {} | {} | ", row.name, row.default_text(), row.range_text(), row.help);
        let document = include_str!("../../../../docs/TUNABLES.md");
        let (people, tests) = document.split_once("\n## For tests").expect("two parts");
        for (part, for_tests) in [(people, false), (tests, true)] {
            let shown: Vec<_> = part.lines().filter(|l| l.starts_with("| `")).collect();
            let wanted: Vec<_> = rows().filter(|row| row.for_tests == for_tests).map(line).collect();
            for (shown, wanted) in shown.iter().zip(&wanted) {
                assert!(shown.starts_with(wanted.as_str()), "it says\n{shown}\nand should say\n{wanted}WHERE FROM |");
            }
            assert_eq!(shown.len(), wanted.len(), "rows for tests: {for_tests}");
        }
        assert!(rows().filter(|row| !row.for_tests).count() <= 50);
    }
}
