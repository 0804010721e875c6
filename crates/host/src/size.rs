//! Sizes as people write them on the command line: `4096`, `64K`, `1.5G`. `types::setting` has the rules by which sizes
//! are read and shown.

use amphi_types::setting;

/// Parses a size in bytes; suffixes K, M, G, T are powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    setting::bytes(text).ok_or_else(|| format!("'{text}' is not a size; write for example 4096, 64K or 1.5G"))
}

/// Prints bytes with a binary suffix, three digits.
pub fn show(bytes: u64) -> String {
    setting::words(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes are parsed as people write them, and other words are refused. Method: a table.
    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 65536), ("64KiB", 65536), ("1.5G", 3 << 29), ("2t", 2 << 40)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1e300", "12Q", "ten"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(64 << 20), "64 MiB");
    }
}
