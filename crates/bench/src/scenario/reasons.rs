//! The tables of reasons, laid out as Tables 2 to 4 of the paper: a row for each kind of request, a column for each
//! reason, numbers of requests in the cells.
//!
//! Owns: the order and the names of the columns. Invariant: no reason with a count is omitted; those of the paper are
//! shown even without requests.

use crate::report::Table;
use crate::workload::place::Counted;
use std::collections::BTreeSet;

/// Name of the counter, without the direction; head of the column. DIO and BIO, direct and buffered, are the paper's
/// words.
const HEADS: [(&str, &str); 11] = [
    ("direct_large", "DIO (large I/O)"),
    ("direct_contention", "DIO (lock contention)"),
    ("direct_memory", "DIO (memory pressure)"),
    ("direct_overcache", "DIO (cache overuse)"),
    ("direct_locality", "DIO (no locality)"),
    ("direct_user", "DIO (asked for)"),
    ("buffered_small", "BIO (small I/O)"),
    ("buffered_faster", "BIO (measured faster)"),
    ("buffered_user", "BIO (asked for)"),
    ("buffered_default", "BIO (default)"),
    ("cache_hit", "cache hit"),
];
/// Columns of Table 2.
pub const TABLE_2: [&str; 3] = ["direct_memory", "direct_overcache", "buffered_default"];
/// Columns of Tables 3 and 4.
pub const TABLES_3_AND_4: [&str; 4] = ["direct_large", "direct_contention", "buffered_small", "buffered_default"];

/// The reason of a counter of requests in a direction.
fn reason<'a>(counter: &'a str, direction: &str) -> Option<&'a str> {
    let reason = counter.strip_prefix(direction)?.strip_prefix('_')?;
    (reason.starts_with("direct_") || reason.starts_with("buffered_") || reason == "cache_hit").then_some(reason)
}

/// How many requests went which way: a row for each of `rows` and of `directions` ("write", "read"); `always` are
/// columns that are never left out.
pub fn reasons(title: impl Into<String>, always: &[&str], directions: &[&str], rows: &[(String, &Counted)]) -> Table {
    let mut found: BTreeSet<&str> = always.iter().copied().collect();
    for (_, counted) in rows {
        found.extend(counted.keys().flat_map(|c| directions.iter().filter_map(move |d| reason(c, d))));
    }
    let known = HEADS.iter().copied().filter(|(name, _)| found.contains(name));
    let unknown = found.iter().filter(|name| HEADS.iter().all(|(known, _)| known != *name)).map(|name| (*name, *name));
    let columns: Vec<(&str, &str)> = known.chain(unknown).collect();
    let mut heads = vec!["requests"];
    heads.extend(columns.iter().map(|(_, head)| *head));
    let mut table = Table::new(title, &heads);
    for (name, counted) in rows {
        for direction in directions {
            let mut cells = vec![format!("{name}, {direction}")];
            let count = |reason: &str| super::times(counted, &format!("{direction}_{reason}"));
            cells.extend(columns.iter().map(|(reason, _)| count(reason).to_string()));
            table.row(cells);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the columns of the paper are there also with nothing in them, those that were counted too, in one order,
    /// and reads are not taken for writes. Method: made-up counters, one of a reason that has no head yet.
    #[test]
    fn laid_out_as_in_the_paper() {
        let counted: Counted = [
            ("write_direct_overcache", 7),
            ("write_buffered_default", 5),
            ("write_buffered_wish", 1),
            ("write_call", 99),
            ("read_direct_locality", 3),
            ("read_cache_hit", 2),
        ]
        .map(|(name, n)| (name.to_string(), (n, 0)))
        .into();
        let text = reasons("t", &TABLE_2, &["write", "read"], &[("16 x 512 KiB".into(), &counted)]).render();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .filter(|l| l.starts_with("| "))
            .map(|l| l.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let heads = [
            "requests",
            "DIO (memory pressure)",
            "DIO (cache overuse)",
            "DIO (no locality)",
            "BIO (default)",
            "cache hit",
            "buffered_wish",
        ];
        assert_eq!(lines[0], heads);
        assert_eq!(lines[1], ["16 x 512 KiB, write", "0", "7", "0", "5", "0", "1"]);
        assert_eq!(lines[2], ["16 x 512 KiB, read", "0", "0", "3", "0", "2", "0"]);
    }
}
