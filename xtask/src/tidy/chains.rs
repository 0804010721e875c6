//! How often code reaches through other rooms: chains of three and more fields, such as `mount.coherence.locks.caches`.
//!
//! Owns: how chains are counted, and how many each crate may have. Does not own: how a chain is made shorter. Code that
//! needs something so far away calls a method of a module, whose name says what it returns, or receives the value as an
//! argument. The bounds may only shrink; the goal is 60 of all crates.

use std::collections::BTreeMap;

/// Fields behind the first word from which on a chain counts.
const FIELDS: usize = 3;
/// Most chains of a crate that is not listed.
const MOST: usize = 30;
/// Crates with more, and how many.
const MORE: &[(&str, usize)] = &[("client", 270), ("server", 235)];

/// The code of a line: without texts, and nothing for a comment.
fn code(line: &str) -> String {
    let trimmed = line.trim_start();
    if trimmed.starts_with("//") {
        return String::new();
    }
    let (mut out, mut in_text, mut escaped) = (String::new(), false, false);
    for c in trimmed.chars() {
        match (in_text, escaped, c) {
            (true, false, '\\') => escaped = true,
            (true, false, '"') | (false, _, '"') => in_text = !in_text,
            (true, ..) => escaped = false,
            (false, ..) => out.push(c),
        }
    }
    out
}

/// The chains of a line of code, without what is called at their ends.
fn chains_of(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = code[at..].find(|c: char| is_word(c) || c == '.').map(|i| at + i) {
        let len = code[start..].find(|c: char| !is_word(c) && c != '.').unwrap_or(code.len() - start);
        let (chain, behind) = (&code[start..start + len], &code[start + len..]);
        at = start + len;
        // A chain behind a call or a question mark starts from another value.
        let goes_on = code[..start].ends_with([')', ']', '?']);
        let begins = chain.starts_with(|c: char| c.is_lowercase() || c == '_');
        if goes_on || !begins || chain.contains("..") {
            continue;
        }
        let chain = match (chain.find(".await"), behind.starts_with('(') || behind.starts_with("::<")) {
            (Some(end), _) => &chain[..end],
            (None, true) => chain.rsplit_once('.').map_or("", |(chain, _)| chain),
            (None, false) => chain.trim_end_matches('.'),
        };
        if chain.matches('.').count() >= FIELDS {
            found.push(chain);
        }
    }
    found
}

/// The chains of each crate, with their files; tests do not count.
fn by_crate(files: &[(String, String)]) -> BTreeMap<&str, Vec<(&str, String)>> {
    let mut all: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.contains("/src/") && !path.contains("/tests")) {
        let Some(krate) = path.strip_prefix("crates/").and_then(|path| path.split('/').next()) else { continue };
        let of_crate = all.entry(krate).or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{');
        let end = lines.windows(2).position(tests).unwrap_or(lines.len());
        for line in &lines[..end] {
            let code = code(line);
            of_crate.extend(chains_of(&code).into_iter().map(|chain| (path.as_str(), chain.to_string())));
        }
    }
    all
}

/// Returns how many chains each crate has, and the chains of `crates` with their files.
pub fn text(files: &[(String, String)], crates: &[String]) -> String {
    let all = by_crate(files);
    let mut out = String::new();
    for (krate, chains) in all.iter().filter(|(_, chains)| !chains.is_empty()) {
        out.push_str(&format!("{:5} {krate}\n", chains.len()));
        if crates.iter().any(|c| c == krate) {
            chains.iter().for_each(|(path, chain)| out.push_str(&format!("      {path}: {chain}\n")));
        }
    }
    let sum: usize = all.values().map(Vec::len).sum();
    out + &format!("{sum:5} chains of {FIELDS} and more fields\n")
}

/// Checks every crate; `files` are paths relative to the root of the repository with their text.
pub fn check(files: &[(String, String)], findings: &mut Vec<String>) {
    for (krate, chains) in by_crate(files) {
        let most = MORE.iter().find(|(of, _)| *of == krate).map_or(MOST, |(_, most)| *most);
        if chains.len() > most {
            findings.push(format!(
                "crates/{krate}: {} chains of {FIELDS} and more fields, {most} are allowed: give a room a method that says \
                 what is asked (cargo xtask chains {krate})",
                chains.len()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: three fields behind the first word are a chain; two fields and a call are none. Method: lines that the
    /// test composes.
    #[test]
    fn finds_chains() {
        let of = |line: &str| chains_of(&code(line)).into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(of("mount.coherence.locks.caches.lock()"), ["mount.coherence.locks.caches"]);
        assert_eq!(of("    let a = b.c.d.e + f.g.h.i;"), ["b.c.d.e", "f.g.h.i"]);
        assert!(of("mount.coherence.locks.with(x)").is_empty(), "two fields and a call");
        assert!(of("a.b().c.d.e").is_empty(), "what a call returns");
        assert!(of("// a.b.c.d").is_empty() && of("print(\"a.b.c.d\")").is_empty(), "no code");
        assert!(of("0.1.2.3; 1..a.b.c").is_empty(), "no fields");
        assert!(of("a.b.c.await").is_empty() && of("Type.a.b.c").is_empty());
    }

    /// Goal: a crate with too many is named. Method: one line more than are allowed, and as many in tests.
    #[test]
    fn names_a_crate_with_too_many() {
        let lines = "a.b.c.d;\n".repeat(MOST);
        let files = |text: String| vec![("crates/zone/src/a.rs".to_string(), text)];
        let mut findings = Vec::new();
        check(&files(format!("{lines}#[cfg(test)]\nmod tests {{\n{lines}}}\n")), &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
        check(&files(format!("{lines}a.b.c.d;\n")), &mut findings);
        assert!(findings[0].starts_with("crates/zone: 31 chains"), "{findings:?}");
    }
}
