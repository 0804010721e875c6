//! How long a function and how wide a struct may be.
//!
//! Owns: the two bounds and the lists of what is beyond them, each with the reason. A function that is one match over
//! an enum or one table reads like a list, so it may be long; a struct that is a list may be wide. The lists may only
//! shrink.

/// Lines of a function from its head to its closing brace.
const FUNCTION_LINES_MAX: usize = 100;
/// The most fields of a struct: a struct with more of them than a reader can survey at once is an unordered collection.
const STRUCT_FIELDS_MAX: usize = 15;

/// Functions that are one match or one table.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    ("crates/pagecache/src/model.rs", "matches_bytes"),
    ("crates/fuse/src/request.rs", "operation"),
    ("crates/server/src/dispatch/target_requests.rs", "reply"),
    ("crates/sim/src/perform.rs", "perform"),
    ("crates/sim/src/reference/names.rs", "name_op"),
];

/// Structs that are a list: counters, options of a command line or of a configuration, weights of a draw, a format.
const LISTS: &[(&str, &str)] = &[
    ("crates/bench/src/workload/ior.rs", "Ior"),
    ("crates/bench/src/workload/mdtest.rs", "Mdtest"),
    ("crates/amphi/src/cmd/server.rs", "Server"),
    ("crates/amphi/src/config_file.rs", "ConfigFile"),
    ("crates/env/src/sim.rs", "SimConfig"),
    ("crates/mpiio/src/stats.rs", "Stats"),
    ("crates/server/src/config.rs", "ServerConfig"),
    ("crates/sim/src/generate.rs", "Temper"),
    ("crates/sim/src/run.rs", "Summary"),
    ("crates/wire/src/frame.rs", "RawHead"),
    ("crates/zone/src/layout.rs", "Superblock"),
];

/// Returns the text of an item at one indentation: its head, its body, and the line that closes it.
struct Item<'a> {
    name: &'a str,
    lines: &'a [&'a str],
}

/// Items whose head, behind visibility and qualifiers, begins with `word`; tests do not count.
fn items<'a>(lines: &'a [&'a str], word: &str) -> Vec<Item<'a>> {
    let tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{');
    let end = lines.windows(2).position(tests).unwrap_or(lines.len());
    let mut found = Vec::new();
    for (at, line) in lines[..end].iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let mut words = code
            .split(' ')
            .skip_while(|w| matches!(*w, "const" | "async" | "unsafe" | "extern" | "\"C\"") || w.starts_with("pub"));
        if words.next() != Some(word) {
            continue;
        }
        let Some(name) = words.next() else { continue };
        let name = &name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())];
        let closes = |line: &&str| line.trim_start() == "}" && line.len() - 1 == indent;
        let one_line = line.ends_with(';') || line.ends_with('}');
        if let Some(len) = lines[at..end].iter().position(closes).filter(|_| !one_line) {
            found.push(Item { name, lines: &lines[at..=at + len] });
        }
    }
    found
}

/// Counts the named fields of a struct, which are the lines one step inside that name one.
fn fields(item: &Item<'_>) -> usize {
    let inner = item.lines[0].len() - item.lines[0].trim_start().len() + 4;
    let is_field = |line: &&&str| {
        let code = line.trim_start();
        let plain = !code.starts_with("//") && !code.starts_with('#') && !code.starts_with('}');
        plain && line.len() - code.len() == inner && code.contains(": ")
    };
    item.lines[1..].iter().filter(is_field).count()
}

/// Checks every file; `files` are paths relative to the root of the repository with their text.
pub fn check(files: &[(String, String)], findings: &mut Vec<String>) {
    let mut wide: Vec<(&str, String)> = Vec::new();
    let mut long: Vec<(&str, String)> = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| !path.contains("/tests")) {
        let lines: Vec<&str> = text.lines().collect();
        for item in items(&lines, "fn").iter().filter(|item| item.lines.len() > FUNCTION_LINES_MAX) {
            long.push((path, item.name.to_string()));
            if !LONG_FUNCTIONS.contains(&(path, item.name)) {
                findings.push(format!(
                    "{path}: `{}` has {} lines, {FUNCTION_LINES_MAX} are allowed: cut it into steps",
                    item.name,
                    item.lines.len()
                ));
            }
        }
        for item in items(&lines, "struct") {
            let n = fields(&item);
            if n > STRUCT_FIELDS_MAX {
                wide.push((path, item.name.to_string()));
                if !LISTS.contains(&(path, item.name)) {
                    findings.push(format!(
                        "{path}: `{}` has {n} fields, {STRUCT_FIELDS_MAX} are allowed: group what belongs together",
                        item.name
                    ));
                }
            }
        }
    }
    for (path, name) in LONG_FUNCTIONS {
        if !long.contains(&(*path, name.to_string())) {
            findings.push(format!("{path}: `{name}` is short enough: take it from the list of long functions"));
        }
    }
    for (path, name) in LISTS {
        if !wide.contains(&(*path, name.to_string())) {
            findings.push(format!("{path}: `{name}` is narrow enough: take it from the list of wide structs"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: functions and structs are found with their lines and fields, whatever stands before their heads, and tests
    /// are not. Method: a text that the test composes.
    #[test]
    fn finds_items() {
        let text = "pub(crate) async fn long(\n    a: u8,\n) {\n    x();\n}\nfn one() {}\nstruct S {\n    /// a: b\n    a: u8,\n    \
                    pub b: u8,\n    c: Vec<\n        u8,\n    >,\n}\n#[cfg(test)]\nmod tests {\n    fn t() {\n    }\n}\n";
        let lines: Vec<&str> = text.lines().collect();
        let functions: Vec<_> = items(&lines, "fn").iter().map(|i| (i.name, i.lines.len())).collect();
        assert_eq!(functions, [("long", 5)]);
        let structs: Vec<_> = items(&lines, "struct").iter().map(|i| (i.name, fields(i))).collect();
        assert_eq!(structs, [("S", 3)]);
    }

    /// Goal: what is beyond a bound is named. Method: a function of 101 lines and a struct of 16 fields.
    #[test]
    fn names_what_is_too_large() {
        let long = format!("fn f() {{\n{}}}\n", "    x();\n".repeat(99));
        let wide = format!("struct W {{\n{}}}\n", "    a: u8,\n".repeat(16));
        let mut findings = Vec::new();
        check(&[("crates/x/src/lib.rs".into(), long + &wide)], &mut findings);
        let own: Vec<_> = findings.iter().filter(|f| f.starts_with("crates/x/")).collect();
        assert!(own[0].contains("`f` has 101 lines") && own[1].contains("`W` has 16 fields"), "{own:?}");
    }
}
