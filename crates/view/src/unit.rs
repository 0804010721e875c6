//! Numbers in the form in which people read them.

/// Bytes with three digits or so and a binary prefix.
pub(crate) fn bytes(n: f64) -> String {
    let mut n = n.max(0.0);
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if n < 1000.0 {
            return if unit == "B" || n >= 100.0 { format!("{n:.0} {unit}") } else { format!("{n:.1} {unit}") };
        }
        n /= 1024.0;
    }
    format!("{n:.1} PiB")
}

/// A count, or a number per second.
pub(crate) fn count(n: f64) -> String {
    match n.max(0.0) {
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 10_000.0 => format!("{:.1} k", n / 1e3),
        n if n >= 10.0 || n == n.trunc() => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

/// A time.
pub(crate) fn seconds(s: f64) -> String {
    match s.max(0.0) {
        s if s >= 86_400.0 => format!("{:.1} d", s / 86_400.0),
        s if s >= 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 120.0 => format!("{:.0} min", s / 60.0),
        s if s >= 1.0 => format!("{s:.0} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

/// `part` of `whole` in per cent.
pub(crate) fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}
