//! How much memory the cache may take: 1/4 of the machine's, at most half of the memory group's limit.
//!
//! Owns: reading `/proc/meminfo` and the files of memory groups, versions 1 and 2. Files are read by a function given
//! at construction. "No limit" is a number near 2^63 in version 1 and `max` in version 2.

/// Limits beyond this are none, bytes.
const NO_LIMIT: u64 = 1 << 60;
/// Levels of groups that are walked up.
const LEVELS_MAX: usize = 64;

type Read<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Bytes for the cache; `None` if the machine's memory cannot be read.
pub(crate) fn cache_bytes(read: &Read<'_>) -> Option<u64> {
    let quarter = memory_bytes(read)? / 4;
    Some(group(read).map_or(quarter, |g| quarter.min(g.limit / 2)))
}

/// The machine's memory, bytes.
fn memory_bytes(read: &Read<'_>) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The limit that binds first, and what is used below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) limit: u64,
    pub(crate) used: u64,
}

/// The memory group of this process with the smallest limit, if there is one.
pub(crate) fn group(read: &Read<'_>) -> Option<Group> {
    let text = read("/proc/self/cgroup")?;
    let mut best: Option<Group> = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (root, limits, usage): (&str, &[&str], &str) = if controllers.is_empty() {
            ("/sys/fs/cgroup", &["memory.max", "memory.high"], "memory.current")
        } else if controllers.split(',').any(|c| c == "memory") {
            ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"], "memory.usage_in_bytes")
        } else {
            continue;
        };
        let mut path = path.trim_end_matches('/').to_string();
        for _ in 0..LEVELS_MAX {
            for limit in limits {
                let limit = read(&format!("{root}{path}/{limit}")).and_then(|t| t.trim().parse::<u64>().ok());
                if let Some(limit) = limit.filter(|l| *l < NO_LIMIT)
                    && best.is_none_or(|b| limit < b.limit)
                {
                    let used = read(&format!("{root}{path}/{usage}")).and_then(|t| t.trim().parse().ok());
                    best = Some(Group { limit, used: used.unwrap_or(0) });
                }
            }
            let Some(cut) = path.rfind('/') else { break };
            path.truncate(cut);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree<'a>(files: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |path| files.iter().find(|(p, _)| *p == path).map(|(_, t)| (*t).to_string())
    }

    /// Goal: the smallest limit on the way up counts, in both versions. Method: fake trees.
    #[test]
    fn the_smallest_limit_binds() {
        let mem = ("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        let v1 = [
            mem,
            ("/proc/self/cgroup", "5:cpu:/x\n4:memory:/a/b\n0::/\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(group(&tree(&v1)), Some(Group { limit: 1 << 30, used: 1000 }));
        assert_eq!(cache_bytes(&tree(&v1)), Some(512 << 20));
        let v2 = [
            mem,
            ("/proc/self/cgroup", "0::/user/job\n"),
            ("/sys/fs/cgroup/user/job/memory.max", "max\n"),
            ("/sys/fs/cgroup/user/job/memory.high", "3000000000\n"),
            ("/sys/fs/cgroup/user/memory.max", "2000000000\n"),
            ("/sys/fs/cgroup/user/memory.current", "7\n"),
        ];
        assert_eq!(group(&tree(&v2)), Some(Group { limit: 2_000_000_000, used: 7 }));
        assert_eq!(cache_bytes(&tree(&[mem])), Some(4 << 30), "a quarter without a group");
        assert_eq!(cache_bytes(&tree(&[])), None);
        assert_eq!(group(&tree(&[("/proc/self/cgroup", "rubbish\n\n::\n0::/a")])), None);
    }
}
