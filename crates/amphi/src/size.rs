//! Sizes as people write them: `4096`, `64K`, `1.5G`.

/// Parses a size in bytes; suffixes K, M, G, T are powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let upper = text.to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match upper.chars().last() {
        Some('K') => (&upper[..upper.len() - 1], 10),
        Some('M') => (&upper[..upper.len() - 1], 20),
        Some('G') => (&upper[..upper.len() - 1], 30),
        Some('T') => (&upper[..upper.len() - 1], 40),
        _ => (upper, 0),
    };
    let value: f64 =
        digits.parse().map_err(|_| format!("'{text}' is not a size; write for example 4096, 64K or 1.5G"))?;
    let bytes = value * (1u64 << shift) as f64;
    if !(0.0..9.0e18).contains(&bytes) {
        return Err(format!("'{text}' is out of range"));
    }
    Ok(bytes as u64)
}

/// Prints bytes with a binary suffix, three digits.
pub fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what people write is understood, what is no size is refused. Method: a table.
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
