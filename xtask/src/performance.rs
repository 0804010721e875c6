//! `cargo xtask performance`: docs/PERFORMANCE.md and a page for each run, made from the committed results of `amphi
//! bench --json` in docs/results.
//!
//! Owns: which files are written, the contents that the page of performance may have outside its tables, and when a
//! result counts as old. Does not own: measuring and the form of a table (`amphi_bench::report`), the rows of the table
//! of goals (`docs/results/goals.json`, read by `goals`). Invariants: each goal of a committed result stands in exactly
//! one row; no digit stands outside the tables that are made here; a result whose commit is more than `OLD_COMMITS`
//! commits old is marked.

mod goals;

use goals::Goals;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

const PAGE: &str = "docs/PERFORMANCE.md";
/// The folder with the results.
const RESULTS: &str = "docs/results";
/// The runs and the rows of the table.
const GOALS: &str = "docs/results/goals.json";
/// Most lines of the page.
const LINES_MAX: usize = 120;
/// A result is old when this many commits were made since.
const OLD_COMMITS: u64 = 100;
/// The mark may be missing for this many more commits: a commit must not make the check of the next one fail.
const OLD_SLACK_COMMITS: u64 = 20;
const OLD: &str = "old";
const BEGIN: &str = "<!-- made from docs/results: ";
const END: &str = "<!-- end -->";

/// Writes all pages; with `--check` says which are not as they should be.
pub fn run(root: &Path, args: &[String]) -> ExitCode {
    let mut findings = Vec::new();
    if args.iter().any(|arg| arg == "--check") {
        check(root, &mut findings);
    } else if let Err(line) = write(root) {
        findings.push(line);
    }
    findings.iter().for_each(|line| eprintln!("performance: {line}"));
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write(root: &Path) -> Result<(), String> {
    let old = |age: Option<u64>, marked: bool| age.map_or(marked, |commits| commits > OLD_COMMITS);
    for (name, text) in pages(root, old)? {
        std::fs::write(root.join(&name), text).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// Finds pages that do not agree with the results, and content that the page of performance must not have.
pub fn check(root: &Path, findings: &mut Vec<String>) {
    let old = |age: Option<u64>, marked: bool| match age {
        Some(commits) if commits <= OLD_COMMITS => false,
        Some(commits) if commits > OLD_COMMITS + OLD_SLACK_COMMITS => true,
        _ => marked,
    };
    match pages(root, old) {
        Ok(pages) => {
            let differs = |(name, text): &(&String, &String)| {
                std::fs::read_to_string(root.join(name)).ok().as_ref() != Some(*text)
            };
            let stale = pages.iter().filter(differs);
            findings.extend(
                stale.map(|(name, _)| format!("{name}: is not what the results say; run cargo xtask performance")),
            );
            pages.get(PAGE).iter().for_each(|page| by_hand(page, findings));
        }
        Err(line) => findings.push(line),
    }
}

/// Returns every page by its path; `old` decides by the number of commits since a result, if they can be counted, and
/// otherwise by whether the page marks the result as old now.
fn pages(root: &Path, old: impl Fn(Option<u64>, bool) -> bool) -> Result<BTreeMap<String, String>, String> {
    let page = read(root, PAGE)?;
    let mut goals = Goals::read(root)?;
    for run in &mut goals.runs {
        let marked = page.lines().any(|line| line.contains(&run.link()) && line.ends_with(&format!(", {OLD} |")));
        run.old = old(commits_since(root, &run.commit), marked);
    }
    let mut pages: BTreeMap<String, String> = goals
        .runs
        .iter()
        .map(|run| Ok((format!("{RESULTS}/{}.md", run.name), run.page()?)))
        .collect::<Result<_, String>>()?;
    pages.insert(PAGE.into(), filled(&page, &goals)?);
    Ok(pages)
}

/// The page with its tables as the results have them.
fn filled(page: &str, goals: &Goals) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        let Some(mark) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        out.push_str(&match mark {
            "goals" => goals.table()?,
            "runs" => goals.table_of_runs(),
            _ => return Err(format!("{PAGE}: there is no table `{mark}`")),
        });
        if !lines.by_ref().any(|line| line == END) {
            return Err(format!("{PAGE}: {line}: no `{END}` behind it"));
        }
        out.push_str(END);
        out.push('\n');
    }
    Ok(out)
}

/// The faults of the hand-written part of the page.
fn by_hand(page: &str, findings: &mut Vec<String>) {
    let mut is_made = false;
    for (n, line) in page.lines().enumerate() {
        is_made |= line.starts_with(BEGIN);
        if !is_made && line.contains(|c: char| c.is_ascii_digit()) {
            findings.push(format!("{PAGE}:{}: a digit outside the tables that are made from the results", n + 1));
        }
        is_made &= line != END;
    }
    for mark in ["goals", "runs"] {
        if !page.contains(&format!("{BEGIN}{mark} -->")) {
            findings.push(format!("{PAGE}: has no table `{mark}`"));
        }
    }
    let lines = page.lines().count();
    if lines > LINES_MAX {
        findings.push(format!("{PAGE}: {lines} lines, at most {LINES_MAX}"));
    }
}

/// Returns the number of commits since `commit`; `None` where the history is missing, as in a shallow clone.
fn commits_since(root: &Path, commit: &str) -> Option<u64> {
    let range = format!("{commit}..HEAD");
    let counted = Command::new("git").current_dir(root).args(["rev-list", "--count", &range]).output().ok()?;
    counted.status.success().then(|| String::from_utf8_lossy(&counted.stdout).trim().parse().ok())?
}

fn read(root: &Path, name: &str) -> Result<String, String> {
    std::fs::read_to_string(root.join(name)).map_err(|e| format!("{name}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"machine": {"date": "2026-01-02T03:04:05Z", "cpu": "C", "cores": 2, "memory_bytes": 1073741824,
        "kernel": "6.1", "idle": "i", "storage": "ext4 (d)", "build": "release", "version": "0.1.0", "pairs": 5},
        "findings": [
            {"what": "a", "value": 0.5, "goal": {"at_least": 0.9}, "series": {"us": {"median": 10}, "it": {"median": 20}}},
            {"what": "b", "value": 0.95, "goal": {"at_least": 0.9}, "series": {"us": {"median": 1}, "it": {"median": 2}}},
            {"what": "c", "value": 3.0, "goal": {"at_least": 0.9}, "series": {"us": {"median": 1}, "it": {"median": 2}}},
            {"what": "d", "value": null, "goal": null, "series": {}}],
        "tables": [{"title": "T", "lines": ["| a |", "|---|", "| 1 |"]}]}"#;
    const PAGE_TEXT: &str = "words\n<!-- made from docs/results: goals -->\nold\n<!-- end -->\n\
        <!-- made from docs/results: runs -->\n<!-- end -->\n";

    fn manifest(keys: &str, measured: &str) -> String {
        format!(
            r#"{{"runs": [{{"name": "x", "measured": "{measured}", "commit": "none", "command": "amphi bench x"}},
                {{"name": "z", "measured": "2026-01-02T03:04:05Z", "commit": "none", "command": "amphi bench z"}}],
            "rows": [{{"run": "x", "workload": "do {{0}}", "keys": {keys}, "goal": "{{0}}", "ratio_to": "peer",
                "amphifs": "{{0}} | us", "peer": "{{0}} | it max us", "limit": "{{0}} | us + it"}},
              {{"workload": "more", "goal": ">= 1", "command": "amphi bench more"}}]}}"#
        )
    }

    /// Goal: each missed goal has a line, the met goals share one line, and a goal that was not measured is named; a
    /// run has its page; its age is marked; an entry that is missing in the manifest is reported. Method: a result that
    /// the test composes and that belongs to no commit.
    #[test]
    fn pages_come_from_results() {
        let root = std::env::temp_dir().join(format!("amphi-performance-{}", std::process::id()));
        std::fs::create_dir_all(root.join(RESULTS)).expect("folder");
        let put = |name: &str, text: &str| std::fs::write(root.join(name), text).expect("file");
        let made = |old: bool| pages(&root, move |_, _| old);
        put("docs/results/x.json", RUN);
        put("docs/results/z.json", &RUN.replace("at_least", "less").replace("\"goal\": {", "\"was\": {"));
        put(PAGE, PAGE_TEXT);
        put(GOALS, &manifest(r#"[["a"], ["b"], ["c"]]"#, "2026-01-02T03:04:05Z"));
        let pages = made(true).expect("pages");
        for wanted in [
            "| do a | 10.0 | - | 20.0 | 10.0 + 20.0 | 0.50 of peer | >= 0.90 | **MISSED** | [x](results/x.md), old |\n",
            "| do b (nearest of 2 met) | 1.00 | - | 2.00 | 1.00 + 2.00 | 0.95 of peer | >= 0.90 | met | [x](results/x.md), old |\n",
            "| more | - | - | - | - | - | >= 1 | not measured | `amphi bench more` |\n",
            "Goals with a committed result: 3; met: 2; missed: 1. Rows without one: 1.",
            "| [x](results/x.md), [z](results/z.md) | 2026-01-02 | C, 2 cores, 1.0 GiB | 6.1 | release | 5 | none, old |",
        ] {
            assert!(pages[PAGE].contains(wanted), "{wanted}\n{}", pages[PAGE]);
        }
        assert!(pages["docs/results/x.md"].ends_with("\n## T\n\n| a |\n|---|\n| 1 |\n"), "{pages:?}");
        let fresh = made(false).expect("pages");
        assert!(!fresh[PAGE].contains(OLD), "{fresh:?}");

        let mut findings = Vec::new();
        check(&root, &mut findings);
        assert_eq!(findings.len(), 3, "{findings:?}");
        pages.iter().for_each(|(name, text)| put(name, text));
        findings.clear();
        check(&root, &mut findings);
        assert_eq!(findings, [""; 0], "the mark stays where commits cannot be counted");

        put(GOALS, &manifest(r#"[["a"], ["b"]]"#, "2026-01-02T03:04:05Z"));
        assert!(made(false).is_err_and(|e| e.contains("`c`")));
        put(GOALS, &manifest(r#"[["a"], ["b"], ["c"], ["c"]]"#, "2026-01-02T03:04:05Z"));
        assert!(made(false).is_err_and(|e| e.contains("two rows")));
        put(GOALS, &manifest(r#"[["a"], ["b"], ["c"]]"#, "2025-01-02T03:04:05Z"));
        assert!(made(false).is_err_and(|e| e.contains("measured")));
        put(GOALS, &manifest(r#"[["a"], ["b"], ["c"]]"#, "2026-01-02T03:04:05Z"));
        put("docs/results/y.json", RUN);
        assert!(made(false).is_err_and(|e| e.contains("y.json")));
        std::fs::remove_dir_all(&root).expect("removed");
    }

    /// Goal: digits outside tables, missing tables and a long page are found. Method: pages that the test composes.
    #[test]
    fn what_people_write_is_checked() {
        let found = |page: &str| {
            let mut findings = Vec::new();
            by_hand(page, &mut findings);
            findings
        };
        assert_eq!(found(&PAGE_TEXT.replace("old", "1 2")), [""; 0]);
        assert_eq!(found(&format!("{PAGE_TEXT}ext4\n")).len(), 1);
        assert_eq!(found(&format!("{PAGE_TEXT}{}", "\n".repeat(LINES_MAX))).len(), 1);
        assert_eq!(found("words\n").len(), 2);
    }
}
