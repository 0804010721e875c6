//! Floors inside a crate: its folders from the lowest to the highest, as the table of imports holds for crates.
//!
//! Owns: the order of the folders of `client` and `server`, the arrows that still point upward, and the largest circle
//! of files that import each other. Does not own: imports between crates (`tidy`).
//!
//! Rule: a lower folder takes what it uses, or returns an action that the floor above carries out. The numbers here may
//! only shrink: a check that finds fewer than are allowed fails as well and says which number to write.

use std::collections::{BTreeMap, BTreeSet};

/// One crate: its folders from the bottom up, upward arrows that are left as (from, to, files), and the number of files
/// in its largest circle of imports.
struct House {
    name: &'static str,
    floors: &'static [&'static str],
    upward: &'static [(&'static str, &'static str, usize)],
    circle: usize,
}

const HOUSES: &[House] = &[
    House {
        name: "client",
        floors: &[
            "policy",
            "telemetry",
            "api",
            "inode",
            "cache",
            "conn",
            "tables",
            "mount",
            "coherence",
            "objects",
            "writeback",
            "locks",
            "prefetch",
            "ops",
            "io",
            "client",
            "lib",
        ],
        upward: &[],
        circle: 3,
    },
    House {
        name: "server",
        floors: &[
            "error",
            "config",
            "counters",
            "planted",
            "tunables",
            "coherence",
            "session",
            "records",
            "message",
            "target",
            "worker",
            "objects",
            "tx",
            "ops",
            "dispatch",
            "cluster",
            "folder",
            "server",
            "threads",
            "fsck",
            "lib",
        ],
        upward: &[],
        circle: 5,
    },
];

/// Checks every house; `files` are paths relative to the root of the repository with their text.
pub fn check(files: &[(String, String)], findings: &mut Vec<String>) {
    for house in HOUSES {
        let prefix = format!("crates/{}/src/", house.name);
        let own: BTreeMap<&str, &str> = files
            .iter()
            .filter_map(|(path, text)| Some((path.strip_prefix(&prefix)?, text.as_str())))
            .filter(|(path, _)| !path.starts_with("tests") && !path.contains("/tests"))
            .collect();
        let imports = imports(&own);
        house.arrows(&imports, findings);
        house.circles(&imports, findings);
    }
}

impl House {
    fn arrows(&self, imports: &BTreeMap<&str, BTreeSet<&str>>, findings: &mut Vec<String>) {
        let floor = |folder: &str| self.floors.iter().position(|f| *f == folder);
        let mut found: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
        for (file, targets) in imports {
            let from = folder(file);
            let Some(low) = floor(from) else {
                findings.push(format!("crates/{}/src/{file}: its folder is on no floor (xtask tidy)", self.name));
                continue;
            };
            for to in targets.iter().map(|t| folder(t)).filter(|to| floor(to) > Some(low)) {
                found.entry((from, to)).or_default().insert(file);
            }
        }
        let allowed: BTreeMap<(&str, &str), usize> = self.upward.iter().map(|(a, b, n)| ((*a, *b), *n)).collect();
        for arrow in found.keys().chain(allowed.keys()).collect::<BTreeSet<_>>() {
            let (now, most) = (found.get(arrow).map_or(0, BTreeSet::len), allowed.get(arrow).copied().unwrap_or(0));
            let (from, to) = arrow;
            if now > most {
                let files: Vec<_> = found[arrow].iter().copied().collect();
                findings.push(format!(
                    "crates/{}: {now} files of {from} import the higher {to}, {most} are allowed: {}",
                    self.name,
                    files.join(", ")
                ));
            } else if now < most {
                findings.push(format!(
                    "crates/{}: only {now} files of {from} import {to}; write {now} for {most} into the table of floors",
                    self.name
                ));
            }
        }
    }

    fn circles(&self, imports: &BTreeMap<&str, BTreeSet<&str>>, findings: &mut Vec<String>) {
        let largest = largest_circle(imports);
        if largest != self.circle {
            findings.push(format!(
                "crates/{}: the largest circle of imports has {largest} files, {} in the table of floors, which may only \
                 shrink",
                self.name, self.circle
            ));
        }
    }
}

/// The folder, or the file at the top, that a path below `src` belongs to.
fn folder(path: &str) -> &str {
    let top = path.split('/').next().unwrap_or(path);
    top.strip_suffix(".rs").unwrap_or(top)
}

/// For each file the files that its code names by `crate::`; comments and unit tests do not count.
fn imports<'a>(files: &BTreeMap<&'a str, &'a str>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let modules: BTreeMap<String, &str> =
        files.keys().map(|path| (path.trim_end_matches(".rs").replace('/', "::"), *path)).collect();
    let mut all = BTreeMap::new();
    for (file, text) in files {
        let targets: &mut BTreeSet<&str> = all.entry(*file).or_default();
        for line in without_tests(text).lines().filter(|l| !l.trim_start().starts_with("//")) {
            for path in line.split("crate::").skip(1) {
                let end = path.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(path.len());
                let mut path = path[..end].trim_end_matches(':');
                let target = loop {
                    if let Some(target) = modules.get(path) {
                        break Some(*target);
                    }
                    match path.rsplit_once("::") {
                        Some((parent, _)) => path = parent,
                        None => break None,
                    }
                };
                targets.extend(target.filter(|t| t != file));
            }
        }
    }
    all
}

/// The text up to its unit tests; a module of tests in a file of its own ends nothing.
fn without_tests(text: &str) -> &str {
    let is_inline = |at: &usize| text[at + 1..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
    let tests = text.match_indices("\n#[cfg(test)]\nmod ").map(|(at, _)| at).find(is_inline);
    &text[..tests.unwrap_or(text.len())]
}

/// How many files the largest set has whose members all reach each other; 0 if there is no circle.
fn largest_circle(imports: &BTreeMap<&str, BTreeSet<&str>>) -> usize {
    let reach: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|start| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![*start]);
            while let Some(file) = next.pop() {
                next.extend(imports.get(file).into_iter().flatten().filter(|t| seen.insert(**t)));
            }
            (*start, seen)
        })
        .collect();
    let circle = |file: &&str| reach[file].iter().filter(|other| reach[*other].contains(file)).count();
    reach.keys().map(circle).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: arrows are found through paths of any depth, also behind a module of tests in a file of its own; comments
    /// and tests are none, and the largest circle is counted. Method: four files by hand.
    #[test]
    fn arrows_and_circles() {
        let files: BTreeMap<&str, &str> = [
            ("low.rs", "use crate::high::part::X;\n// crate::other\n#[cfg(test)]\nmod tests {\nuse crate::other;\n}\n"),
            ("high.rs", "\n#[cfg(test)]\nmod tests;\nuse crate::low::Y;\n"),
            ("high/part.rs", "fn f() { crate::high::g(crate::other::h()) }\n"),
            ("other.rs", ""),
        ]
        .into();
        let imports = imports(&files);
        assert_eq!(imports["low.rs"], BTreeSet::from(["high/part.rs"]));
        assert_eq!(imports["high/part.rs"], BTreeSet::from(["high.rs", "other.rs"]));
        assert_eq!(largest_circle(&imports), 3);
        let house = House { name: "x", floors: &["low", "high", "other"], upward: &[("high", "other", 2)], circle: 4 };
        let mut findings = Vec::new();
        house.arrows(&imports, &mut findings);
        house.circles(&imports, &mut findings);
        let findings = findings.join("\n");
        assert!(findings.contains("1 files of low import the higher high, 0 are allowed: low.rs"), "{findings}");
        assert!(findings.contains("only 1 files of high import other; write 1 for 2"), "{findings}");
        assert!(findings.contains("has 3 files, 4 in the table"), "{findings}");
        assert_eq!(findings.lines().count(), 3, "{findings}");
    }
}
