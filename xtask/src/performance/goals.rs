//! `docs/results/goals.json`: which runs are committed, and the rows of the table of goals.
//!
//! Owns: reading it together with the results that it names, and the text of both tables and of a run's page.
//! Invariant: every goal of a result stands in exactly one row, so no goal that is missed can be left out.
//!
//! A row with `run` stands for as many goals as it has `keys`; `{0}`, `{1}`, ... in its texts are the parts of a key. A
//! number is named as `FINDING | SERIES`, the median of a series; `A max B` is the larger of two series, and `A + B`
//! shows both. Of the goals of a row, each missed goal gets a line of its own, and all met goals share one line. A row
//! without `run` is a goal that was set, but of which no result is committed.

use super::{GOALS, OLD, RESULTS, read};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The runs and the rows.
pub struct Goals {
    /// The goals in the order of the file.
    pub runs: Vec<Run>,
    rows: Vec<Value>,
}

/// A committed result.
pub struct Run {
    /// The name of its file is `NAME.json`.
    pub name: String,
    /// The commit that brought it; the build is of that time.
    pub commit: String,
    /// Whether many commits were made since the result.
    pub old: bool,
    command: String,
    result: Value,
}

/// A line of the table and how near it is to its goal: below 1 it misses it.
struct Line {
    workload: String,
    rest: String,
    nearness: f64,
}

impl Goals {
    /// Reads the file and the results.
    ///
    /// Errors: in words, what cannot be read, a result without an entry or an entry of another date than its result.
    pub fn read(root: &Path) -> Result<Goals, String> {
        let manifest: Value = serde_json::from_str(&read(root, GOALS)?).map_err(|e| format!("{GOALS}: {e}"))?;
        let list = |name: &str| manifest[name].as_array().cloned().ok_or(format!("{GOALS}: has no list `{name}`"));
        let runs = list("runs")?.iter().map(|run| Run::read(root, run)).collect::<Result<Vec<_>, _>>()?;
        let files = std::fs::read_dir(root.join(RESULTS)).map_err(|e| format!("{RESULTS}: {e}"))?.flatten();
        for file in files.filter(|file| file.path().extension().is_some_and(|e| e == "json")) {
            let path = file.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if name != "goals" && runs.iter().all(|run| run.name != name) {
                return Err(format!("{GOALS}: has no run for {name}.json"));
            }
        }
        Ok(Goals { runs, rows: list("rows")? })
    }

    /// The table of goals.
    ///
    /// Errors: in words, a row that names what is not there, a goal in no row or in two.
    pub fn table(&self) -> Result<String, String> {
        let mut lines = String::new();
        let mut seen: BTreeSet<(&str, String)> = BTreeSet::new();
        let (mut met, mut missed, mut unmeasured) = (0, 0, 0);
        for row in &self.rows {
            if row["run"].is_null() {
                unmeasured += 1;
                let (workload, goal, command) = (text(row, "workload")?, text(row, "goal")?, text(row, "command")?);
                lines.push_str(&format!("| {workload} | - | - | - | - | - | {goal} | not measured | `{command}` |\n"));
                continue;
            }
            let mut met_here: Vec<Line> = Vec::new();
            for key in row["keys"].as_array().ok_or(format!("{GOALS}: a row without keys"))? {
                let row = Filled { row, key };
                let name = row.need("run")?;
                let run = self.runs.iter().find(|run| run.name == name);
                let run = run.ok_or(format!("{GOALS}: there is no run {name}"))?;
                // Another ratio of the same finding is held to the same goal.
                if row.text("ratio").is_none() && !seen.insert((&run.name, row.need("goal")?)) {
                    return Err(format!("{GOALS}: {name}: `{}` stands in two rows", row.need("goal")?));
                }
                let line = run.line(&row)?;
                if line.nearness >= 1.0 {
                    met += 1;
                    met_here.push(line);
                } else {
                    missed += 1;
                    lines.push_str(&format!("| {} | {}", line.workload, line.rest));
                }
            }
            if let Some(nearest) = met_here.iter().min_by(|a, b| a.nearness.total_cmp(&b.nearness)) {
                let count = met_here.len();
                let others = if count > 1 { format!(" (nearest of {count} met)") } else { String::new() };
                lines.push_str(&format!("| {}{others} | {}", nearest.workload, nearest.rest));
            }
        }
        for run in &self.runs {
            for finding in run.findings().iter().filter(|finding| !finding["goal"].is_null()) {
                let what = finding["what"].as_str().unwrap_or_default();
                if !seen.contains(&(&*run.name, what.into())) {
                    return Err(format!("{GOALS}: {}: the goal of `{what}` stands in no row", run.name));
                }
            }
        }
        let all = met + missed;
        Ok(format!(
            "Goals with a committed result: {all}; met: {met}; missed: {missed}. Rows without one: {unmeasured}.\n\n\
             | workload | AmphiFS | ext4 | best peer | limit | ratio | goal | met or missed | result |\n\
             |---|--:|--:|--:|--:|--:|--:|---|---|\n{lines}"
        ))
    }

    /// The table of runs: machine, build, date; a line for all that have them in common.
    pub fn table_of_runs(&self) -> String {
        let mut lines: Vec<(String, String)> = Vec::new();
        for run in &self.runs {
            let line = format!(
                "{} | {} | {} | {} | {} | {}{}",
                run.word("date").split('T').next().unwrap_or("?"),
                run.hardware(),
                run.word("kernel"),
                run.word("build"),
                run.number("pairs"),
                run.commit,
                run.mark()
            );
            match lines.iter_mut().find(|(_, same)| *same == line) {
                Some((links, _)) => *links = format!("{links}, {}", run.link()),
                None => lines.push((run.link(), line)),
            }
        }
        let mut out = String::from(
            "| result | date | machine | kernel | build | rounds | commit of the result |\n|---|---|---|---|---|--:|---|\n",
        );
        lines.iter().for_each(|(links, line)| out.push_str(&format!("| {links} | {line} |\n")));
        out
    }
}

impl Run {
    fn read(root: &Path, run: &Value) -> Result<Run, String> {
        let name = text(run, "name")?;
        let file = format!("{RESULTS}/{name}.json");
        let result = serde_json::from_str(&read(root, &file)?).map_err(|e| format!("{file}: {e}"))?;
        let (commit, command) = (text(run, "commit")?, text(run, "command")?);
        let run_read = Run { name, commit, old: false, command, result };
        if run_read.word("date") != text(run, "measured")? {
            return Err(format!("{GOALS}: {}: `measured` and `commit` are not those of {file}", run_read.name));
        }
        Ok(run_read)
    }

    /// From docs/PERFORMANCE.md to its page.
    pub fn link(&self) -> String {
        format!("[{0}](results/{0}.md)", self.name)
    }

    /// The page of this run: everything that it showed.
    pub fn page(&self) -> Result<String, String> {
        let mut out = format!(
            "# Result {0}\n\nMade by `cargo xtask performance` from [{0}.json]({0}.json), which has every sample.\n\n\
             {1} memory, Linux {2}, {3}, storage on {4}; {5} build of version {6}, {7} rounds{8}, measured {9}, committed \
             with {10}.\nTo repeat: `{11} --json {RESULTS}/{0}.json`.\n",
            self.name,
            self.hardware(),
            self.word("kernel"),
            self.word("idle"),
            self.word("storage"),
            self.word("build"),
            self.word("version"),
            self.number("pairs"),
            if self.result["machine"]["quick"] == true { ", quick" } else { "" },
            self.word("date"),
            self.commit,
            self.command
        );
        for table in self.result["tables"].as_array().ok_or(format!("{RESULTS}/{}.json: no tables", self.name))? {
            out.push_str(&format!("\n## {}\n", text(table, "title")?));
            let mut before = "";
            for line in table["lines"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                // A note right behind a row would be a row of the table.
                if before.starts_with('|') != line.starts_with('|') {
                    out.push('\n');
                }
                out.push_str(line);
                out.push('\n');
                before = line;
            }
        }
        Ok(out)
    }

    fn line(&self, row: &Filled) -> Result<Line, String> {
        let finding = self.finding(&row.need("goal")?)?;
        let cell = |name: &str| row.text(name).map_or(Ok("-".into()), |place| self.cell(&place));
        let value = match row.text("ratio") {
            Some(place) => self.median(&place)?,
            None => finding["value"].as_f64().ok_or(format!("{}: `{}` has no value", self.name, finding["what"]))?,
        };
        let (sign, goal, nearness) = match (finding["goal"]["at_least"].as_f64(), finding["goal"]["at_most"].as_f64()) {
            (Some(goal), None) => (">=", goal, value / goal),
            (None, Some(goal)) => ("<=", goal, if value > 0.0 { goal / value } else { f64::INFINITY }),
            _ => return Err(format!("{}: `{}` has no goal", self.name, finding["what"])),
        };
        let of = if sign == ">=" { "of" } else { "times" };
        let ratio = row.text("ratio_to").map_or("-".into(), |to| format!("{} {of} {to}", digits(value)));
        let verdict = if nearness >= 1.0 { "met" } else { "**MISSED**" };
        let (amphifs, ext4, peer, limit) = (cell("amphifs")?, cell("ext4")?, cell("peer")?, cell("limit")?);
        let rest = format!(
            "{amphifs} | {ext4} | {peer} | {limit} | {ratio} | {sign} {} | {verdict} | {}{} |\n",
            digits(goal),
            self.link(),
            self.mark()
        );
        Ok(Line { workload: row.need("workload")?, rest, nearness })
    }

    /// The number or numbers at `FINDING | SERIES`, shown.
    fn cell(&self, place: &str) -> Result<String, String> {
        let (finding, series) = place.split_once(" | ").ok_or(format!("{GOALS}: `{place}` names no series"))?;
        let of = |series: &str| self.median(&format!("{finding} | {series}"));
        if let Some((a, b)) = series.split_once(" max ") {
            Ok(fine_digits(of(a)?.max(of(b)?)))
        } else if let Some((a, b)) = series.split_once(" + ") {
            Ok(format!("{} + {}", fine_digits(of(a)?), fine_digits(of(b)?)))
        } else {
            of(series).map(fine_digits)
        }
    }

    fn median(&self, place: &str) -> Result<f64, String> {
        let (finding, series) = place.split_once(" | ").ok_or(format!("{GOALS}: `{place}` names no series"))?;
        let median = &self.finding(finding)?["series"][series]["median"];
        median.as_f64().ok_or(format!("{}.json: `{finding}` has no series `{series}`", self.name))
    }

    fn finding(&self, what: &str) -> Result<&Value, String> {
        let found = self.findings().iter().find(|finding| finding["what"] == what);
        found.ok_or(format!("{}.json: there is no finding `{what}`", self.name))
    }

    fn findings(&self) -> &[Value] {
        self.result["findings"].as_array().map_or(&[], Vec::as_slice)
    }

    fn hardware(&self) -> String {
        let gib = self.number("memory_bytes") as f64 / f64::from(1 << 30);
        format!("{}, {} cores, {gib:.1} GiB", self.word("cpu"), self.number("cores"))
    }

    fn mark(&self) -> String {
        if self.old { format!(", {OLD}") } else { String::new() }
    }

    fn word(&self, name: &str) -> &str {
        self.result["machine"][name].as_str().unwrap_or("?")
    }

    fn number(&self, name: &str) -> u64 {
        self.result["machine"][name].as_u64().unwrap_or(0)
    }
}

/// A row with one of its keys.
struct Filled<'a> {
    row: &'a Value,
    key: &'a Value,
}

impl Filled<'_> {
    fn text(&self, name: &str) -> Option<String> {
        let parts = self.key.as_array().into_iter().flatten().filter_map(Value::as_str).enumerate();
        let text = self.row[name].as_str()?.to_string();
        Some(parts.fold(text, |text, (n, part)| text.replace(&format!("{{{n}}}"), part)))
    }

    fn need(&self, name: &str) -> Result<String, String> {
        self.text(name).ok_or(format!("{GOALS}: a row without `{name}`"))
    }
}

fn text(value: &Value, name: &str) -> Result<String, String> {
    value[name].as_str().map(str::to_string).ok_or(format!("{GOALS}: an entry without `{name}`"))
}

/// Writes a number with about three digits, as the tables of the benchmarks do.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Writes small numbers, such as seconds, with one more digit.
fn fine_digits(value: f64) -> String {
    if value.abs() < 1.0 && value != 0.0 { format!("{value:.3}") } else { digits(value) }
}
