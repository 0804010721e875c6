//! Tables of docs/PERFORMANCE.md that are made from the committed results of `amphi bench --json` in docs/results.
//!
//! Owns: the marks between which a table stands, and what has to stand there. Does not own: measuring, the form of a
//! table (`amphi_bench::report`).
//!
//! A table stands behind a line `<!-- table: FILE.json: TITLE -->` and ends with the line `<!-- end -->`.

use serde_json::Value;
use std::path::Path;

/// The page with the tables.
pub const PERFORMANCE: &str = "docs/PERFORMANCE.md";
/// The folder with the results.
const RESULTS: &str = "docs/results";
const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end -->";

/// The page with its tables as the results have them.
///
/// Errors: a mark whose end, file or table is missing, in words.
pub fn filled(root: &Path, page: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        let Some(mark) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        let (file, title) = mark.split_once(": ").ok_or(format!("{PERFORMANCE}: {line}: no title"))?;
        let text =
            std::fs::read_to_string(root.join(RESULTS).join(file)).map_err(|e| format!("{RESULTS}/{file}: {e}"))?;
        let result: Value = serde_json::from_str(&text).map_err(|e| format!("{RESULTS}/{file}: {e}"))?;
        out.push_str(&table(&result, title).ok_or(format!("{RESULTS}/{file}: no table `{title}`"))?);
        if !lines.by_ref().any(|line| line == END) {
            return Err(format!("{PERFORMANCE}: {line}: no `{END}` behind it"));
        }
        out.push_str(END);
        out.push('\n');
    }
    Ok(out)
}

/// A table, with the machine and the day of its run below.
fn table(result: &Value, title: &str) -> Option<String> {
    let tables = result.get("tables")?.as_array()?;
    let found = tables.iter().find(|table| table.get("title").and_then(Value::as_str) == Some(title))?;
    let mut out = String::from("\n");
    for line in found.get("lines")?.as_array()? {
        out.push_str(line.as_str()?);
        out.push('\n');
    }
    let machine = result.get("machine")?;
    let word = |name: &str| machine.get(name).and_then(Value::as_str).unwrap_or("?");
    let number = |name: &str| machine.get(name).and_then(Value::as_u64).unwrap_or(0);
    out.push_str(&format!(
        "\n{}, {} cores, {} build, {} rounds{}.\n\n",
        word("date").split('T').next().unwrap_or("?"),
        number("cores"),
        word("build"),
        number("pairs"),
        if machine.get("quick").and_then(Value::as_bool) == Some(true) { ", quick" } else { "" }
    ));
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a table is put where its mark is and nothing else changes; what is missing is said. Method: a page and a
    /// result by hand.
    #[test]
    fn tables_come_from_results() {
        let root = std::env::temp_dir().join(format!("amphi-results-{}", std::process::id()));
        std::fs::create_dir_all(root.join(RESULTS)).expect("folder");
        let result = r#"{"machine": {"date": "2026-01-02T03:04:05Z", "cores": 2, "build": "release", "pairs": 5},
            "tables": [{"title": "T", "lines": ["| a |", "|---|", "| 1 |"]}]}"#;
        std::fs::write(root.join(RESULTS).join("x.json"), result).expect("file");
        let page =
            |inner: &str, file: &str| format!("before\n<!-- table: {file}: T -->\n{inner}<!-- end -->\nbehind\n");
        let wanted = page("\n| a |\n|---|\n| 1 |\n\n2026-01-02, 2 cores, release build, 5 rounds.\n\n", "x.json");
        assert_eq!(filled(&root, &page("old\n", "x.json")).as_ref(), Ok(&wanted));
        assert_eq!(filled(&root, &wanted).as_ref(), Ok(&wanted));
        assert!(filled(&root, &page("", "y.json")).is_err_and(|e| e.contains("y.json")));
        assert!(filled(&root, "<!-- table: x.json: T -->\n").is_err_and(|e| e.contains("end")));
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
