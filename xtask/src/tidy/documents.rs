//! The map of the code, the length of lines, links of documents, and public items that nobody uses.
//!
//! Owns: the text of docs/CODE_MAP.md, which is made from the first sentence of each module head. Does not own: writing
//! it (`main`), the walks of docs/LIFE.md (`life`).

use std::collections::{BTreeMap, BTreeSet};

/// Most columns of a line.
const COLUMNS: usize = 120;
/// The document that `cargo xtask code-map` writes.
pub const CODE_MAP: &str = "docs/CODE_MAP.md";

/// The map of the code: each crate and each of its folders, with the first sentence of its head.
pub fn code_map(files: &[(String, String)]) -> String {
    let mut out = String::from(
        "# Map of the code\n\nThe crates and their folders, with the first sentence of their heads; written by `cargo xtask \
         code-map`. `cargo xtask\nmap CRATE` prints the same of every file. How the crates and folders hang together is in\n\
         [ARCHITECTURE](ARCHITECTURE.md), the way of a request through them in [LIFE](LIFE.md).\n",
    );
    let folders = files.iter().filter(|(path, _)| {
        let inside = format!("{}/", path.trim_end_matches(".rs"));
        path.ends_with("/lib.rs")
            || path.ends_with("/main.rs")
            || files.iter().any(|(other, _)| other.starts_with(&inside))
    });
    heads(folders, &mut out);
    out
}

/// The same of every file of a crate, or of all.
pub fn map(files: &[(String, String)], krate: Option<&str>) -> String {
    let mut out = String::new();
    let of_crate = |path: &str| krate.is_none_or(|name| path.starts_with(&format!("crates/{name}/")));
    heads(files.iter().filter(|(path, _)| of_crate(path)), &mut out);
    out
}

fn heads<'a>(files: impl Iterator<Item = &'a (String, String)>, out: &mut String) {
    let mut last = "";
    let is_test = |path: &str| path.contains("/tests") || path.contains("/benches/") || path.contains("/examples/");
    for (path, text) in files.filter(|(path, _)| !is_test(path)) {
        let Some((krate, file)) = path.strip_prefix("crates/").and_then(|p| p.split_once('/')) else { continue };
        if krate != last {
            out.push_str(&format!("\n## {krate}\n"));
            last = krate;
        }
        let file = file.strip_prefix("src/").unwrap_or(file);
        wrap(&format!("* `{file}`: {}", sentence(text)), out);
    }
}

/// Adds an item of a list in lines of at most `COLUMNS`.
fn wrap(item: &str, out: &mut String) {
    let mut column = 0;
    for word in item.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            out.push_str("\n ");
            column = 1;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out.push('\n');
}

/// Lines of comments and of Markdown that are longer than `COLUMNS`; rows of tables, examples, and what has no blank to
/// break at are left out.
pub fn long_lines(name: &str, text: &str, findings: &mut Vec<String>) {
    let is_markdown = name.ends_with(".md");
    let mut is_example = false;
    for (n, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let words = if is_markdown { Some(code) } else { code.strip_prefix("//") };
        let Some(words) = words.map(|w| w.trim_start_matches(['/', '!']).trim_start()) else { continue };
        is_example ^= words.starts_with("```");
        let breakable = words.split_whitespace().count() > 1 && !words.starts_with(['|', '#']);
        if line.chars().count() > COLUMNS && breakable && !is_example {
            findings.push(format!("{name}:{}: a line of more than {COLUMNS} columns", n + 1));
        }
    }
}

/// The first sentence of a module head, on one line, without links.
fn sentence(text: &str) -> String {
    let head = text.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim).take_while(|l| !l.is_empty());
    let head = head.collect::<Vec<_>>().join(" ");
    let end = head.match_indices(". ").map(|(at, _)| at + 1).next().unwrap_or(head.len());
    head[..end].replace("[`", "`").replace("`]", "`")
}

/// Links of documents to files that are not there, and to sections that a document does not have. `is_there`: whether a
/// path of the repository exists.
pub fn links(documents: &[(String, String)], is_there: impl Fn(&str) -> bool, findings: &mut Vec<String>) {
    let sections: BTreeMap<&str, BTreeSet<String>> =
        documents.iter().map(|(path, text)| (path.as_str(), anchors(text))).collect();
    for (path, text) in documents {
        let mut is_example = false;
        for (n, line) in text.lines().enumerate() {
            is_example ^= line.trim_start().starts_with("```");
            if is_example {
                continue;
            }
            for target in line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (file, section) = target.split_once('#').map_or((target, None), |(file, s)| (file, Some(s)));
                let file = if file.is_empty() { path.clone() } else { beside(path, file) };
                match (sections.get(file.as_str()), section) {
                    (Some(known), Some(section)) if !known.contains(section) => {
                        findings.push(format!("{path}:{}: {file} has no section #{section}", n + 1));
                    }
                    (None, _) if !is_there(&file) => findings.push(format!("{path}:{}: {file} is not there", n + 1)),
                    _ => {}
                }
            }
        }
    }
}

/// The path that `target` means in the document at `path`.
fn beside(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Returns the sections of a document under the names by which links refer to them.
fn anchors(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let as_link = |title: &str| -> String {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(as_link).collect()
}

/// Public items whose name stands nowhere else, in no crate, test or benchmark.
pub fn dead_items(files: &[(String, String)], findings: &mut Vec<String>) {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for (_, text) in files {
        for word in text.lines().filter(|l| !l.trim_start().starts_with("//")).flat_map(|l| l.split(|c| !is_word(c))) {
            *counts.entry(word).or_default() += 1;
        }
    }
    for (path, text) in files.iter().filter(|(path, _)| path.contains("/src/")) {
        for (n, line) in text.lines().enumerate() {
            let Some(item) = line.trim_start().strip_prefix("pub ").filter(|item| !item.contains("extern \"C\""))
            else {
                continue;
            };
            let mut words = item.split(|c| !is_word(c)).filter(|word| !word.is_empty());
            let kind = words.find(|word| !matches!(*word, "async" | "unsafe" | "extern" | "C"));
            let name = match kind {
                Some("const") => words.find(|word| *word != "fn"),
                Some("fn" | "struct" | "enum" | "trait" | "type" | "static") => words.next(),
                _ => None,
            };
            if let Some(name) = name.filter(|name| counts.get(name) == Some(&1)) {
                findings.push(format!("{path}:{}: nobody uses {name}", n + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the map has a line for each file, and a long line is found. Method: two files that the test composes.
    #[test]
    fn documents_agree() {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        let files = [
            file("crates/a/src/lib.rs", "//! First [`X`] of\n//! all. Second.\nfn go(a: u8) {}\nfn gone_by<T>() {}\n"),
            file("crates/a/src/tests.rs", "//! Tests.\n"),
            file("crates/a/src/y.rs", "//! A folder.\n"),
            file("crates/a/src/y/z.rs", "//! A file in it.\n"),
        ];
        let mut long = Vec::new();
        long_lines("x.rs", &format!("{0}\n// {0}\n/// a {0}\n// | {0} b\n", "x".repeat(120)), &mut long);
        assert_eq!(long, ["x.rs:3: a line of more than 120 columns"]);
        assert!(code_map(&files).ends_with("\n## a\n* `lib.rs`: First `X` of all.\n* `y.rs`: A folder.\n"));
        assert!(map(&files, Some("a")).ends_with("* `y.rs`: A folder.\n* `y/z.rs`: A file in it.\n"));
        assert_eq!(map(&files, Some("b")), "");
        let paths = [
            ("docs/A.md", "# A b-c, d\n[x](B.md#one) [y](#a-b-c-d)\n"),
            ("docs/B.md", "## Two\n[z](A.md#gone) [w](C.md)\n"),
        ];
        let documents = paths.map(|(path, text)| file(path, text));
        let mut wrong = Vec::new();
        links(&documents, |path| path.ends_with(".rs"), &mut wrong);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        let items = [
            file("crates/a/src/u.rs", "pub fn used() {}\npub struct Dead;\nimpl X {\n    pub fn gone(&self) {}\n}\n"),
            file("crates/b/src/v.rs", "fn f() { used() }\n"),
        ];
        let mut dead = Vec::new();
        dead_items(&items, &mut dead);
        assert_eq!(dead.len(), 2, "{dead:?}");
    }
}
