//! The map of the code, and the length of lines.
//!
//! Owns: the text of docs/CODE_MAP.md, which is made from the first sentence of each module head. Does not own: writing
//! it (`main`), the walks of docs/LIFE.md (`life`).

/// Most columns of a line.
const COLUMNS: usize = 120;
/// The document that `cargo xtask code-map` writes.
pub const CODE_MAP: &str = "docs/CODE_MAP.md";

/// The map of the code: every source file outside of tests with the first sentence of its head.
pub fn code_map(files: &[(String, String)]) -> String {
    let mut out = String::from(
        "# Map of the code\n\nEach source file with the first sentence of its head; written by `cargo xtask code-map`. How the \
         crates and folders\nhang together is in [ARCHITECTURE](ARCHITECTURE.md), the way of a request through them in \
         [LIFE](LIFE.md).\n",
    );
    let mut last = "";
    let is_test = |path: &str| path.contains("/tests") || path.contains("/benches/") || path.contains("/examples/");
    for (path, text) in files.iter().filter(|(path, _)| !is_test(path)) {
        let Some((krate, file)) = path.strip_prefix("crates/").and_then(|p| p.split_once('/')) else { continue };
        if krate != last {
            out.push_str(&format!("\n## {krate}\n"));
            last = krate;
        }
        let file = file.strip_prefix("src/").unwrap_or(file);
        wrap(&format!("* `{file}`: {}", sentence(text)), &mut out);
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the map has a line for each file, and a long line is found. Method: two files by hand.
    #[test]
    fn documents_agree() {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        let files = [
            file("crates/a/src/x.rs", "//! First [`X`] of\n//! all. Second.\nfn go(a: u8) {}\nfn gone_by<T>() {}\n"),
            file("crates/a/src/tests.rs", "//! Tests.\n"),
        ];
        let mut long = Vec::new();
        long_lines("x.rs", &format!("{0}\n// {0}\n/// a {0}\n// | {0} b\n", "x".repeat(120)), &mut long);
        assert_eq!(long, ["x.rs:3: a line of more than 120 columns"]);
        assert!(code_map(&files).ends_with("\n## a\n* `x.rs`: First `X` of all.\n"));
    }
}
