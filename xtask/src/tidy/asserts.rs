//! How many invariants the release program states.
//!
//! Owns: the least number of assertions for a thousand lines, by crate. Does not own: the places of the assertions. An
//! assertion belongs at a seam, where a module relies on what another one does, and costs next to nothing. It never
//! checks something that a peer, a disk or a user may cause: that is an error.

/// Crates that hold state on which data depends.
const CRATES: &[&str] = &["server", "client", "zone", "meta", "fuse"];
/// Assertions for a thousand lines of a crate, tests apart. Assertions of debug builds do not count.
const PER_THOUSAND_LINES: usize = 3;

/// The lines in front of the tests of a file.
fn product(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{');
    let end = lines.windows(2).position(tests).unwrap_or(lines.len());
    lines.into_iter().take(end)
}

/// Assertions in a line of code, in release builds too.
fn asserts(line: &str) -> usize {
    let code = line.trim_start();
    if code.starts_with("//") {
        return 0;
    }
    let is_own = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let of = |name: &str| code.match_indices(name).filter(|(at, _)| is_own(*at)).count();
    of("assert!(") + of("assert_eq!(") + of("assert_ne!(")
}

/// Lines and assertions of a crate.
fn count(files: &[(String, String)], krate: &str) -> (usize, usize) {
    let of_crate = format!("crates/{krate}/src/");
    let own = files.iter().filter(|(path, _)| path.starts_with(&of_crate) && !path.contains("/tests"));
    own.flat_map(|(_, text)| product(text)).fold((0, 0), |(lines, all), line| (lines + 1, all + asserts(line)))
}

/// Checks every crate; `files` are paths relative to the root of the repository with their text.
pub fn check(files: &[(String, String)], findings: &mut Vec<String>) {
    for krate in CRATES {
        let (lines, found) = count(files, krate);
        let wanted = (lines * PER_THOUSAND_LINES).div_ceil(1000);
        if found < wanted {
            findings.push(format!(
                "crates/{krate}: {found} assertions in {lines} lines, {wanted} are wanted: state what the new code relies on"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: assertions of release builds count, those of debug builds, in comments and in tests do not. Method: a text
    /// that the test composes.
    #[test]
    fn counts_what_the_release_program_states() {
        let text = "fn f() {\n    assert!(a);\n    debug_assert!(b);\n    // assert!(c)\n    assert_eq!(d, e); assert_ne!(f, g);\n}\n\
                    #[cfg(test)]\nmod tests {\n    assert!(h);\n}\n";
        let files = [("crates/zone/src/a.rs".to_string(), text.to_string())];
        assert_eq!(count(&files, "zone"), (6, 3));
    }

    /// Goal: a crate with too few is named, with the number that it needs. Method: 1000 lines with two.
    #[test]
    fn names_a_crate_with_too_few() {
        let text = format!("assert!(a);\nassert!(b);\n{}", "x();\n".repeat(998));
        let mut findings = Vec::new();
        check(&[("crates/meta/src/a.rs".into(), text)], &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("crates/meta: 2 assertions in 1000 lines, 3 are wanted"), "{findings:?}");
    }
}
