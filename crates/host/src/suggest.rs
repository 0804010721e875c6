//! "Did you mean": the known name that is closest to one that is not known.
//!
//! Owns: what counts as close. Does not own: the names.

/// If the similarity (Jaro-Winkler, 0 to 1) is lower, the name counts as a different one and not as a misspelling; clap
/// uses the same measure.
const CLOSE: f64 = 0.8;
/// The same for the last part of a dotted name alone, because users omit the group or write another one.
const CLOSE_PART: f64 = 0.9;

/// `; did you mean NAME?` with the closest of `names`, or nothing if none is close.
pub fn did_you_mean<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_string();
    let own = last(name);
    let close = names.into_iter().filter_map(|known| {
        let whole = strsim::jaro_winkler(name, known);
        let part = strsim::jaro_winkler(&own, &last(known));
        (whole >= CLOSE || part >= CLOSE_PART).then_some((whole.max(part), known))
    });
    let best = close.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
    best.map_or_else(String::new, |(_, known)| format!("; did you mean {known}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: slips, left-out groups and swapped letters are recognised, other words are not. Method: a table.
    #[test]
    fn slips() {
        let names = ["hybrid.small_bytes", "hybrid.large_write_bytes", "cache.max_bytes", "server.token_ms"];
        for (typed, meant) in [
            ("hybrid.smal_bytes", "hybrid.small_bytes"),
            ("large_write_bytes", "hybrid.large_write_bytes"),
            ("cache.max_byte", "cache.max_bytes"),
            ("hybrid.token_ms", "server.token_ms"),
            ("sevrer.token_ms", "server.token_ms"),
        ] {
            assert_eq!(did_you_mean(typed, names), format!("; did you mean {meant}?"), "{typed}");
        }
        for typed in ["", "zzz", "*", "colour"] {
            assert_eq!(did_you_mean(typed, names), "", "{typed}");
        }
    }
}
