//! The notation for values of tunables and for patterns of their names: it is the same for tunables of mounts and of
//! servers.
//!
//! Owns: sizes, switches, patterns. Does not own: tables of tunables and their values (`tunable`).

/// Reads a number of bytes with an optional suffix `K`, `M`, `G`, `T` (also `KiB`, `KB`: all powers of 1024), such as
/// `4096`, `64K` or `1.5 GiB`.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let suffix = text[digits..].trim().to_ascii_uppercase();
    let shift = match suffix.strip_suffix('B').map_or(suffix.as_str(), |s| s.strip_suffix('I').unwrap_or(s)) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let Some((whole, part)) = text[..digits].split_once('.') else {
        return text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift);
    };
    if part.is_empty() {
        return None;
    }
    let value = format!("{}.{}", whole.parse::<u64>().ok()?, part).parse::<f64>().ok()? * (1u64 << shift) as f64;
    (value < 9.0e18).then_some(value as u64)
}

/// Writes a number of bytes with the largest suffix that divides it, in the form that `bytes` parses.
pub fn size(value: u64) -> String {
    for (shift, suffix) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if value > 0 && value.is_multiple_of(1 << shift) {
            return format!("{}{suffix}", value >> shift);
        }
    }
    value.to_string()
}

/// A number of bytes for people, with a binary suffix and three digits: `1.5 KiB`.
pub fn words(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0 && value.fract() != 0.0);
    format!("{value:.digits$} {}", units[unit])
}

/// Reads a switch.
pub fn switch(text: &str) -> Option<bool> {
    match text.trim() {
        "on" | "1" | "true" | "yes" => Some(true),
        "off" | "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// Writes a switch in the form that `switch` parses.
pub fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Returns whether the pattern matches the whole of `name`: `*` matches any text, `?` any one byte.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let (mut i, mut j) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while j < n.len() {
        if i < p.len() && p[i] == b'*' {
            star = Some((i, j));
            i += 1;
        } else if i < p.len() && (p[i] == b'?' || p[i] == n[j]) {
            i += 1;
            j += 1;
        } else if let Some((si, sj)) = star {
            star = Some((si, sj + 1));
            i = si + 1;
            j = sj + 1;
        } else {
            return false;
        }
    }
    p[i..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: values survive being shown and read, and odd spellings are understood or refused. Method: a table.
    #[test]
    fn values_round_trip() {
        for n in [0, 1, 1000, 4096, 3 << 19, 2 << 20, 7 << 30, 1 << 50] {
            assert_eq!(bytes(&size(n)), Some(n), "{n}");
        }
        assert_eq!((bytes("2 MiB"), bytes("64k"), bytes("1T")), (Some(2 << 20), Some(65536), Some(1 << 40)));
        assert_eq!((bytes("1.5G"), bytes("0.5 KiB"), bytes("2b")), (Some(3 << 29), Some(512), Some(2)));
        for bad in ["", "M", "-1", "1X", "99999999999T", "1.", ".5", "1.5.5", "1e3", "9999999999.5T", "1i"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
        for on in [true, false] {
            assert_eq!(switch(on_off(on)), Some(on));
        }
        assert_eq!((switch("yes"), switch("false"), switch("maybe")), (Some(true), Some(false), None));
    }

    /// Goal: people read sizes with three digits at most. Method: a table.
    #[test]
    fn sizes_in_words() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (1 << 62, "4096 PiB")]
        {
            assert_eq!(words(bytes), text);
        }
    }

    /// Goal: `*` and `?` have the same meaning as in a shell; no other character is special.
    #[test]
    fn globs() {
        for (p, n, yes) in [
            ("*", "a.b", true),
            ("a.*", "a.b", true),
            ("a.?", "a.b", true),
            ("*b*c", "abbc", true),
            ("*bd", "abbc", false),
            ("", "", true),
            ("a", "ab", false),
            ("[ab]", "a", false),
        ] {
            assert_eq!(glob(p, n), yes, "{p} {n}");
        }
    }
}
