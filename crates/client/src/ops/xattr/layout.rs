//! Layouts as text: `growing`, `whole`, `striped`, with `size=` and `count=` behind a comma. The module also has the
//! words of the settings for mounts that belong to layouts.

use amphi_types::{Consistency, DataChecksums, Ino, IoMode, KernelCache, Layout, Pattern, Subdirectories, setting};

/// The word for an I/O mode.
pub(crate) fn mode_text(mode: IoMode) -> &'static str {
    match mode {
        IoMode::Auto => "auto",
        IoMode::Buffered => "buffered",
        IoMode::Direct => "direct",
    }
}

/// Parses an I/O mode.
pub(crate) fn mode_of(text: &str) -> Option<IoMode> {
    [IoMode::Auto, IoMode::Buffered, IoMode::Direct].into_iter().find(|m| mode_text(*m) == text)
}

/// The text of the setting who serves reads.
pub(crate) fn kernel_cache_text(asked: KernelCache) -> &'static str {
    match asked {
        KernelCache::Auto => "auto",
        KernelCache::On => "on",
        KernelCache::Off => "off",
    }
}

/// Parses the setting of who serves reads.
pub(crate) fn kernel_cache_of(text: &str) -> Option<KernelCache> {
    [KernelCache::Auto, KernelCache::On, KernelCache::Off].into_iter().find(|k| kernel_cache_text(*k) == text)
}

/// The word for whether blocks get checksums.
pub(crate) fn checksums_text(asked: DataChecksums) -> &'static str {
    match asked {
        DataChecksums::Auto => "auto",
        DataChecksums::On => "on",
        DataChecksums::Off => "off",
    }
}

/// Parses the setting of checksums.
pub(crate) fn checksums_of(text: &str) -> Option<DataChecksums> {
    [DataChecksums::Auto, DataChecksums::On, DataChecksums::Off].into_iter().find(|c| checksums_text(*c) == text)
}

/// The word that says when other mounts see written data.
pub(crate) fn consistency_text(asked: Consistency) -> &'static str {
    match asked {
        Consistency::Posix => "posix",
        Consistency::Commit => "commit",
    }
}

/// Reads the setting that says when other mounts see written data.
pub(crate) fn consistency_of(text: &str) -> Option<Consistency> {
    [Consistency::Posix, Consistency::Commit].into_iter().find(|c| consistency_text(*c) == text)
}

/// The word for how sub-directories keep their names.
pub(crate) fn subdirectories_text(asked: Subdirectories) -> &'static str {
    match asked {
        Subdirectories::Plain => "plain",
        Subdirectories::Sharded => "sharded",
    }
}

/// Reads how sub-directories keep their names.
pub(crate) fn subdirectories_of(text: &str) -> Option<Subdirectories> {
    [Subdirectories::Plain, Subdirectories::Sharded].into_iter().find(|s| subdirectories_text(*s) == text)
}

/// A layout in the form in which users write it.
pub(crate) fn text(layout: &Layout) -> String {
    let size = setting::size(u64::from(layout.stripe_size));
    match layout.pattern {
        Pattern::Whole => "whole".into(),
        Pattern::Growing | Pattern::GrowingLate | Pattern::GrowingNear => {
            format!("growing,size={size},count={}", layout.stripe_count)
        }
        Pattern::Striped | Pattern::StripedNear => format!("striped,size={size},count={}", layout.stripe_count),
    }
}

/// Parses a layout. Values that are not given stay as in `old`. If only a pattern is given, the other values get the
/// defaults of that pattern. A count of 0 or `all` means every target.
///
/// Errors: a sentence that explains what is wrong.
pub(crate) fn parse(text: &str, old: Layout) -> Result<Layout, String> {
    let mut words = text.trim().split(',');
    let all = old.pool.max(1);
    let mut layout = Layout { stripe_size: Layout::STRIPE, stripe_count: all, ..old };
    layout.pattern = match words.next().unwrap_or("") {
        "growing" => Pattern::Growing,
        "striped" => Pattern::Striped,
        "whole" => Pattern::Whole,
        other => return Err(format!("{other:?} is no layout: growing, striped or whole")),
    };
    let too_many = || {
        let most = Layout::STRIPES_A_TARGET * u32::from(old.pool);
        format!("count: at most {most}, which is {} for each target", Layout::STRIPES_A_TARGET)
    };
    for word in words {
        let wrong = || format!("cannot read {word:?} in a layout: size=BYTES or count=NUMBER");
        match word.split_once('=').ok_or_else(wrong)? {
            ("size", value) => {
                layout.stripe_size = setting::bytes(value).and_then(|b| u32::try_from(b).ok()).ok_or_else(wrong)?;
            }
            ("count", "all" | "0") => layout.stripe_count = all,
            ("count", value) => {
                let count: u64 = value.parse().map_err(|_| wrong())?;
                layout.stripe_count = u16::try_from(count).map_err(|_| too_many())?;
            }
            _ => return Err(wrong()),
        }
    }
    layout.check().map_err(|_| "a stripe is a power of two from 64K to 1G, and the count at least 1".to_string())?;
    layout.check_asked().map_err(|_| too_many())?;
    Ok(layout)
}

/// The shards of a directory: `none`, or the numbers of their targets, separated by commas.
pub(super) fn shards_text(shards: &[Ino]) -> String {
    if shards.is_empty() {
        return "none".into();
    }
    let targets: Vec<String> = shards.iter().map(|shard| shard.target().0.to_string()).collect();
    targets.join(",")
}

/// Returns how many shards a directory is to get; 0: one for each target. The error says what is wrong.
pub(super) fn shards_of(text: &str) -> Result<u16, String> {
    if text == "all" {
        return Ok(0);
    }
    let count = text.parse().ok().filter(|count| (1..=Ino::SHARDS_MAX).contains(count));
    let count = count.and_then(|count| u16::try_from(count).ok());
    count.ok_or_else(|| format!("{text:?} is neither a number of shards from 1 to {} nor all", Ino::SHARDS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: text and layout are inverse, wrong text is refused with a sentence. Method: a table.
    #[test]
    fn text_and_back() {
        let old = Layout::growing(6);
        for t in ["striped,size=1M,count=4", "growing,size=256K,count=6", "whole"] {
            assert_eq!(text(&parse(t, old).unwrap()), t);
        }
        assert_eq!(text(&parse("striped", old).unwrap()), "striped,size=1M,count=6");
        assert_eq!(text(&parse("striped,count=all,size=64K", old).unwrap()), "striped,size=64K,count=6");
        for t in [
            "",
            "round",
            "striped,size=3K",
            "striped,size=96K",
            "striped,count=x",
            "striped,4",
            "whole,a=1",
            "striped,count=6145",
        ] {
            assert!(parse(t, old).is_err(), "{t}");
        }
    }
}
