//! The files of a figure: picture, numbers as JSON and as text; and the page that shows all of them.
//!
//! Owns: names and forms of these files. Invariants: a file is written under another name first, so that a stopped run
//! leaves whole files; the page shows every figure that lies in the folder, of this run or of an earlier one.

use super::claim::{Check, Verdict, WHOLE};
use super::graph::Panel;
use super::svg::{escaped, picture};
use amphi_host::failure::{During, Outcome};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// The page.
pub const INDEX: &str = "index.html";

/// A figure that was made, or the reason why it was not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its name: paper and number.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The paper.
    pub paper: String,
    /// How it was measured here.
    pub how: String,
    /// The verdict on the whole.
    pub verdict: Verdict,
    /// The statements of the paper's text.
    pub checks: Vec<Check>,
    /// The numbers.
    pub panels: Vec<Panel>,
    /// Machine and build.
    pub machine: String,
    /// When it was made.
    pub date: String,
    /// Whether with few sizes and short samples.
    pub quick: bool,
    /// Rounds of each comparison.
    pub rounds: usize,
}

fn write(dir: &Path, name: &str, text: &str) -> Outcome {
    let (path, whole) = (dir.join(format!(".{name}.new")), dir.join(name));
    std::fs::write(&path, text).during(|| format!("write {}", path.display()))?;
    std::fs::rename(&path, &whole).during(|| format!("rename {} to {}", path.display(), whole.display()))
}

impl Record {
    /// Writes its files into `dir`: picture and tables only where something was measured.
    pub fn write(&self, dir: &Path) -> Outcome {
        let json = serde_json::to_string_pretty(self).during(|| format!("turn figure {} into JSON", self.id))?;
        if !self.panels.is_empty() {
            write(dir, &format!("{}.svg", self.id), &picture(&format!("{}: {}", self.id, self.title), &self.panels))?;
        }
        write(dir, &format!("{}.txt", self.id), &self.text())?;
        write(dir, &format!("{}.json", self.id), &(json + "\n"))
    }

    /// Reads the figure `id` of `dir`, if one lies there that this version understands.
    pub fn read(dir: &Path, id: &str) -> Option<Record> {
        let text = std::fs::read_to_string(dir.join(format!("{id}.json"))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The verdict and its reasons, a line each.
    pub fn verdicts(&self) -> String {
        if let [Check { claim, seen, .. }] = &self.checks[..]
            && claim == WHOLE
        {
            return format!("{}: {}: {seen}\n", self.id, self.verdict.words());
        }
        let mut out = format!("{}: {}\n", self.id, self.verdict.words());
        for check in &self.checks {
            let _ = writeln!(out, "  {}: {} ({})", check.verdict.words(), check.claim, check.seen);
        }
        out
    }

    /// Everything as text.
    pub fn text(&self) -> String {
        let mut out = format!("{} ({}): {}\n{}\n", self.id, self.paper, self.title, self.how);
        let _ = writeln!(out, "{}; {}; {} rounds{}\n", self.date, self.machine, self.rounds, self.quickly());
        out += &self.verdicts();
        self.panels.iter().for_each(|panel| out += &panel.table().render());
        out
    }

    fn quickly(&self) -> &'static str {
        if self.quick { ", quick" } else { "" }
    }

    fn section(&self) -> String {
        let id = escaped(&self.id);
        let badge = match self.verdict {
            Verdict::Reproduced => "yes",
            Verdict::NotReproduced => "no",
            Verdict::CannotBeTried => "open",
        };
        let mut out = format!(
            "<section id=\"{id}\"><h2>{id}: {}</h2>\n<p><b class=\"{badge}\">{}</b> {}</p>\n",
            escaped(&self.title),
            self.verdict.words(),
            escaped(&self.paper)
        );
        if !self.panels.is_empty() {
            let _ = writeln!(out, "<p><img src=\"{id}.svg\" alt=\"{}\"></p>", escaped(&self.title));
        }
        out.push_str("<ul>\n");
        for check in &self.checks {
            let words = check.verdict.words();
            let _ = writeln!(out, "<li>{words}: {} <i>{}</i></li>", escaped(&check.claim), escaped(&check.seen));
        }
        let _ = write!(
            out,
            "</ul>\n<p class=\"how\">{} {}; {}; {} rounds{}.</p>\n<details><summary>Numbers</summary><pre>{}</pre>\
             </details>\n<p><a href=\"{id}.json\">JSON</a> <a href=\"{id}.txt\">text</a></p></section>\n",
            escaped(&self.how),
            escaped(&self.date),
            escaped(&self.machine),
            self.rounds,
            self.quickly(),
            escaped(&self.panels.iter().map(|panel| panel.table().render()).collect::<String>())
        );
        out
    }
}

const STYLE: &str = "body{font:15px sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1c1c1c;background:#fff}\
    img{max-width:100%}pre{overflow:auto;background:#f3f3f3;padding:.7em}.how{color:#555}\
    b{padding:.15em .5em;border-radius:.3em;color:#fff}.yes{background:#1a7f37}.no{background:#b3134b}\
    .open{background:#555}table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:left}\
    @media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#15181c}pre{background:#22262c}.how{color:#aaa}\
    a{color:#7ab7ff}}";

/// The page of these figures.
pub fn index(records: &[Record]) -> String {
    let count = |verdict| records.iter().filter(|r| r.verdict == verdict).count();
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Figures of the papers</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>Figures of the papers, at the size of this machine</h1>\n\
         <p>{} reproduced, {} not reproduced, {} cannot be tried here. A shape counts as reproduced when each order \
         that the paper's text states holds by 10 % in medians of ratios within rounds. Factors are shown and not \
         demanded.</p>\n<table><tr><th>figure</th><th>verdict</th><th>title</th></tr>\n",
        count(Verdict::Reproduced),
        count(Verdict::NotReproduced),
        count(Verdict::CannotBeTried)
    );
    for record in records {
        let id = escaped(&record.id);
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#{id}\">{id}</a></td><td>{}</td><td>{}</td></tr>",
            record.verdict.words(),
            escaped(&record.title)
        );
    }
    out.push_str("</table>\n");
    records.iter().for_each(|record| out += &record.section());
    out + "</body></html>\n"
}

/// Writes the page of all figures of `ids` that lie in `dir`.
pub fn write_index(dir: &Path, ids: &[&str]) -> Outcome {
    let records: Vec<Record> = ids.iter().filter_map(|id| Record::read(dir, id)).collect();
    write(dir, INDEX, &index(&records))
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Axis, Kind};
    use super::*;

    fn record(id: &str, verdict: Verdict) -> Record {
        let mut panel = Panel::new("p", Kind::Bars, Axis::new("size", "B"), Axis::new("rate", "MiB/s"));
        panel.push("a", 1.0, "one", &[1.0, 2.0]);
        let check = Check { claim: "a < b & c".into(), verdict, seen: "seen".into() };
        Record {
            id: id.into(),
            title: "a title".into(),
            paper: "a paper".into(),
            how: "One process.".into(),
            verdict,
            checks: vec![check],
            panels: vec![panel],
            machine: "a machine".into(),
            date: "2026-01-02T03:04:05Z".into(),
            quick: true,
            rounds: 2,
        }
    }

    /// Goal: a figure that was written can be read again, its files are there and nothing else, and the page has it
    /// with those of an earlier run, failures as visibly as the rest. Method: two figures, written one after the other.
    #[test]
    fn figures_in_a_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let (one, two) = (record("x-1", Verdict::Reproduced), record("x-2", Verdict::NotReproduced));
        for figure in [&one, &two] {
            figure.write(dir.path()).expect("written");
            write_index(dir.path(), &["x-1", "x-2", "x-3"]).expect("a page");
        }
        assert_eq!(Record::read(dir.path(), "x-1"), Some(one));
        let page = std::fs::read_to_string(dir.path().join(INDEX)).expect("a page");
        for words in
            ["x-1.svg", "x-2.svg", "<b class=\"no\">NOT REPRODUCED</b>", "a &lt; b &amp; c", "1 not reproduced"]
        {
            assert!(page.contains(words), "{words} in {page}");
        }
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path()).expect("a folder").flatten().map(|e| e.file_name()).collect();
        names.sort();
        assert_eq!(names, ["index.html", "x-1.json", "x-1.svg", "x-1.txt", "x-2.json", "x-2.svg", "x-2.txt"]);
    }

    /// Goal: a figure of which nothing can be tried takes one line. Method: one.
    #[test]
    fn nothing_to_try() {
        let figure = Record { checks: vec![Check::whole("why")], ..record("x-1", Verdict::CannotBeTried) };
        assert_eq!(figure.verdicts(), "x-1: CANNOT BE TRIED HERE: why\n");
    }

    /// Goal: a figure that cannot be tried has its reason in text and page, and no picture. Method: one.
    #[test]
    fn figures_without_numbers() {
        let dir = tempfile::tempdir().expect("a folder");
        let figure = Record { panels: Vec::new(), ..record("x-1", Verdict::CannotBeTried) };
        figure.write(dir.path()).expect("written");
        assert!(!dir.path().join("x-1.svg").exists());
        assert!(figure.text().contains("CANNOT BE TRIED HERE: a < b & c (seen)"), "{}", figure.text());
        assert!(!index(&[figure]).contains("<img"));
    }
}
