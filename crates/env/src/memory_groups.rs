//! Memory groups: how much memory a cache may take, and whether the memory group of a process, or the machine, is short
//! of memory.
//!
//! Owns: reading `/proc/meminfo` and the files of memory groups, versions 1 and 2. Does not own: when these are read,
//! and for which process. Files are read by a function given to each call. "No limit" is a number near 2^63 in version
//! 1 and `max` in version 2.
//!
//! A group counts what its processes have in the kernel's page cache as used, and the kernel fills every group with
//! that up to its limit. So inactive pages of files do not count here: the kernel frees them when memory is needed.

/// Share of a limit, in percent, from which on memory counts as short. The rest is less than what may be needed at
/// once.
pub const SHORT_PERCENT: u64 = 95;
/// Limits beyond this are none, bytes.
const NO_LIMIT: u64 = 1 << 60;
/// Levels of groups that are walked up.
const LEVELS_MAX: usize = 64;

/// Reads a small text file.
pub type Read<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Bytes for the cache: 1/4 of the machine's memory, but at most 3/8 of the smallest limit of this process' groups.
/// Memory that is under way or kept for the next stream is in addition to it (measured: up to 250 MiB in addition to
/// 256). Returns `None` if the machine's memory cannot be read.
pub fn cache_bytes(read: &Read<'_>) -> Option<u64> {
    let quarter = memory_bytes(read)? / 4;
    let trees = Trees::find(read);
    let smallest = own_groups(read).and_then(|text| trees.levels(read, &text).iter().map(|l| l.limit).min());
    Some(smallest.map_or(quarter, |limit| quarter.min(limit / 8 * 3)))
}

/// The machine's memory, or the smallest limit of this process' groups, bytes.
pub fn usable_bytes(read: &Read<'_>) -> Option<u64> {
    let all = memory_bytes(read)?;
    let limits = own_groups(read).and_then(|text| Trees::find(read).levels(read, &text).iter().map(|l| l.limit).min());
    Some(limits.map_or(all, |limit| all.min(limit)))
}

/// Returns whether less than a sixteenth of the machine's memory is available.
pub fn is_machine_short(read: &Read<'_>) -> bool {
    let (all, available) = (memory_bytes(read), field_bytes(read, "MemAvailable:"));
    all.zip(available).is_some_and(|(all, available)| available < all / 16)
}

/// The machine's memory, bytes.
fn memory_bytes(read: &Read<'_>) -> Option<u64> {
    field_bytes(read, "MemTotal:")
}

fn field_bytes(read: &Read<'_>, name: &str) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The groups of this process, in the form that `Trees::is_short` takes.
pub fn own_groups(read: &Read<'_>) -> Option<String> {
    read("/proc/self/cgroup")
}

/// The groups of another process or thread; `None` if it has gone or may not be read.
pub fn groups_of(read: &Read<'_>, pid: u32) -> Option<String> {
    read(&format!("/proc/{pid}/cgroup"))
}

/// Files of one version of memory groups.
struct Version {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Inactive pages of files, with those of groups below, in `memory.stat`.
    idle: &'static str,
}

const V1: Version =
    Version { limits: &["memory.limit_in_bytes"], usage: "memory.usage_in_bytes", idle: "total_inactive_file" };
const V2: Version = Version { limits: &["memory.max", "memory.high"], usage: "memory.current", idle: "inactive_file" };

/// A group with a limit.
struct Level {
    folder: String,
    limit: u64,
    version: &'static Version,
}

impl Level {
    fn used(&self, read: &Read<'_>) -> u64 {
        number(read, &format!("{}/{}", self.folder, self.version.usage)).unwrap_or(0)
    }

    fn idle_file_bytes(&self, read: &Read<'_>) -> u64 {
        let text = read(&format!("{}/memory.stat", self.folder)).unwrap_or_default();
        let mut fields = text.lines().filter_map(|l| l.split_once(' '));
        fields.find(|(name, _)| *name == self.version.idle).and_then(|(_, v)| v.trim().parse().ok()).unwrap_or(0)
    }
}

fn number(read: &Read<'_>, path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// A mounted hierarchy of groups.
#[derive(Debug)]
struct Tree {
    /// The folder where the tree is mounted.
    mount: String,
    /// The group at the root of that mount.
    root: String,
}

impl Tree {
    /// The group of version 2, or the group of version 1 that limits memory. If the mounts cannot be read, the tree is
    /// assumed to be at its usual place.
    fn find(mounts: Option<&str>, unified: bool) -> Tree {
        let usual = if unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
        let found = mounts.and_then(|text| {
            text.lines().find_map(|line| {
                let (before, after) = line.split_once(" - ")?;
                let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
                let is_it = match after.next()? {
                    "cgroup2" => unified,
                    "cgroup" => !unified && after.nth(1)?.split(',').any(|option| option == "memory"),
                    _ => false,
                };
                let (root, mount) = (before.next()?, before.next()?);
                is_it.then(|| Tree { mount: mount.into(), root: root.trim_end_matches('/').into() })
            })
        });
        found.unwrap_or(Tree { mount: usual.into(), root: String::new() })
    }
}

/// The hierarchies of a machine. Found once: a table of thousands of mounts takes milliseconds to read.
#[derive(Debug)]
pub struct Trees {
    v1: Tree,
    v2: Tree,
}

impl Trees {
    /// Finds the hierarchies of both versions.
    pub fn find(read: &Read<'_>) -> Trees {
        let mounts = read("/proc/self/mountinfo");
        Trees { v1: Tree::find(mounts.as_deref(), false), v2: Tree::find(mounts.as_deref(), true) }
    }

    /// Returns whether any of the groups named by `text`, or one above them, has reached `percent` of its limit.
    pub fn is_short(&self, read: &Read<'_>, text: &str, percent: u64) -> bool {
        self.levels(read, text).iter().any(|level| {
            let is_share = |bytes: u64| u128::from(bytes) * 100 >= u128::from(level.limit) * u128::from(percent);
            let used = level.used(read);
            is_share(used) && is_share(used.saturating_sub(level.idle_file_bytes(read)))
        })
    }

    /// The groups with a limit, among those that `text` (of `/proc/PID/cgroup`) names and all groups above them.
    fn levels(&self, read: &Read<'_>, text: &str) -> Vec<Level> {
        let mut levels = Vec::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let (version, tree) = match controllers {
                "" => (&V2, &self.v2),
                names if names.split(',').any(|c| c == "memory") => (&V1, &self.v1),
                _ => continue,
            };
            // A group outside of the visible hierarchy begins with `/..`: its limits are not known.
            if path.split('/').any(|part| part == "..") {
                continue;
            }
            let mut path = path.strip_prefix(tree.root.as_str()).unwrap_or(path).trim_end_matches('/').to_string();
            for _ in 0..LEVELS_MAX {
                let folder = format!("{}{path}", tree.mount);
                let limits = version.limits.iter().filter_map(|name| number(read, &format!("{folder}/{name}")));
                if let Some(limit) = limits.filter(|l| *l < NO_LIMIT).min() {
                    levels.push(Level { folder, limit, version });
                }
                let Some(cut) = path.rfind('/') else { break };
                path.truncate(cut);
            }
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree<'a>(files: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |path| files.iter().find(|(p, _)| *p == path).map(|(_, t)| (*t).to_string())
    }

    fn own_short(files: &[(&str, &str)], percent: u64) -> bool {
        let read = tree(files);
        own_groups(&read).is_some_and(|text| Trees::find(&read).is_short(&read, &text, percent))
    }

    const MEM: (&str, &str) = ("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");

    /// Goal: the smallest limit on the way up bounds the cache, in both versions. Method: fake trees.
    #[test]
    fn the_smallest_limit_binds() {
        let v1 = [
            MEM,
            ("/proc/self/cgroup", "5:cpu:/x\n4:memory:/a/b\n0::/\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(cache_bytes(&tree(&v1)), Some(384 << 20));
        assert!(!own_short(&v1, 95));
        let v2 = [
            MEM,
            ("/proc/self/cgroup", "0::/user/job\n"),
            ("/sys/fs/cgroup/user/job/memory.max", "max\n"),
            ("/sys/fs/cgroup/user/job/memory.high", "3000000000\n"),
            ("/sys/fs/cgroup/user/memory.max", "2000000000\n"),
            ("/sys/fs/cgroup/user/memory.current", "7\n"),
        ];
        assert_eq!(cache_bytes(&tree(&v2)), Some(750_000_000));
        assert_eq!((usable_bytes(&tree(&v2)), usable_bytes(&tree(&[MEM]))), (Some(2_000_000_000), Some(16 << 30)));
        let of = |available| ("/proc/meminfo", available);
        assert!(is_machine_short(&tree(&[of("MemTotal: 1600 kB\nMemAvailable: 99 kB\n")])));
        assert!(!is_machine_short(&tree(&[of("MemTotal: 1600 kB\nMemAvailable: 100 kB\n")])));
        assert!(!is_machine_short(&tree(&[MEM])) && !is_machine_short(&tree(&[])));
        assert_eq!(cache_bytes(&tree(&[MEM])), Some(4 << 30), "a quarter without a group");
        assert_eq!(cache_bytes(&tree(&[])), None);
        let rubbish = tree(&[("/proc/self/cgroup", "rubbish\n\n::\n0::/a")]);
        assert!(Trees::find(&rubbish).levels(&rubbish, "rubbish\n\n::\n0::/a\n0::/../b\n").is_empty());
    }

    /// Goal: a group that uses its share of its limit is short, at whichever level it is. Pages of files that nobody
    /// uses do not count. Method: fake trees of both versions around the share.
    #[test]
    fn any_level_can_be_short() {
        let v2 = |job: &'static str, user: &'static str, idle: &'static str| {
            [
                ("/proc/self/cgroup", "0::/user/job\n"),
                ("/sys/fs/cgroup/user/job/memory.max", "1000\n"),
                ("/sys/fs/cgroup/user/job/memory.current", job),
                ("/sys/fs/cgroup/user/job/memory.stat", idle),
                ("/sys/fs/cgroup/user/memory.high", "100000\n"),
                ("/sys/fs/cgroup/user/memory.current", user),
            ]
        };
        assert!(!own_short(&v2("949\n", "0\n", ""), 95));
        assert!(own_short(&v2("950\n", "0\n", ""), 95));
        assert!(own_short(&v2("949\n", "95000\n", ""), 95), "the larger one above");
        assert!(!own_short(&v2("999\n", "0\n", "anon 9\ninactive_file 50\n"), 95));
        assert!(own_short(&v2("999\n", "0\n", "anon 9\ninactive_file 49\n"), 95));
        let v1 = |used: &'static str, idle: &'static str| {
            [
                ("/proc/self/cgroup", "4:memory:/a\n0::/\n"),
                ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n"),
                ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", used),
                ("/sys/fs/cgroup/memory/a/memory.stat", idle),
            ]
        };
        assert!(own_short(&v1("950\n", "inactive_file 900\ntotal_inactive_file 0\n"), 95));
        assert!(!own_short(&v1("949\n", ""), 95));
        assert!(!own_short(&v1("990\n", "total_inactive_file 100\n"), 95));
    }

    /// Goal: hierarchies are found where they are mounted, also of both versions at once, and below another root.
    /// Method: mounts of a machine with both, and of a container.
    #[test]
    fn trees_are_found() {
        let both = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                    31 24 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
                    33 24 0:29 / /cg/mem rw - cgroup cgroup rw,memory\n";
        let hybrid = [
            ("/proc/self/mountinfo", both),
            ("/proc/self/cgroup", "4:memory:/a\n0::/b\n"),
            ("/cg/mem/a/memory.limit_in_bytes", "1000\n"),
            ("/cg/mem/a/memory.usage_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/unified/b/memory.max", "500\n"),
        ];
        let limits = |files: &[(&str, &str)], text: &str| -> Vec<u64> {
            Trees::find(&tree(files)).levels(&tree(files), text).iter().map(|l| l.limit).collect()
        };
        assert_eq!(limits(&hybrid, "4:memory:/a\n0::/b\n"), [1000, 500]);
        assert!(own_short(&hybrid, 100));
        let container = [
            ("/proc/self/mountinfo", "33 24 0:29 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n"),
            ("/sys/fs/cgroup/memory/in/memory.limit_in_bytes", "6000\n"),
        ];
        assert_eq!(limits(&container, "4:memory:/docker/x/in\n"), [6000, 7000]);
        assert_eq!(limits(&container, "4:memory:/docker/x\n"), [7000]);
    }
}
