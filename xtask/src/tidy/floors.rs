//! Floors inside a crate: its folders from the lowest to the highest, as the table of imports holds for crates.
//!
//! Owns: the order of the folders of each crate, the arrows that still point upward, and the largest circle
//! of files that import each other. Does not own: imports between crates (`tidy`).
//!
//! Rule: a lower folder gets the values that it uses as arguments, or returns an action that the floor above carries
//! out. The numbers here may only shrink: a check that finds fewer than are allowed fails as well and says which number
//! to write.

use super::imports;
use std::collections::{BTreeMap, BTreeSet};

/// The result for one crate: its folders from the bottom up, the remaining upward arrows as (from, to, files), and the
/// number of files in its largest circle of imports.
struct House {
    name: &'static str,
    floors: &'static [&'static str],
    upward: &'static [(&'static str, &'static str, usize)],
    circle: usize,
}

const HOUSES: &[House] = &[
    House {
        name: "types",
        floors: &[
            "errno", "ids", "attr", "acl", "item", "limits", "name", "owner", "range", "layout", "lib", "setting",
            "tunable",
        ],
        upward: &[],
        circle: 0,
    },
    House {
        name: "cart",
        floors: &["search", "slab", "node", "roots", "walk", "cart", "insert", "remove", "lib"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "shm",
        floors: &["layout", "talk", "rules", "posts", "memory", "export", "ring", "lib"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "attach",
        floors: &["report", "sys", "owner", "table", "maps", "identify", "read", "post", "direct", "lib"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "capi",
        floors: &[
            "abi", "failure", "node", "process", "memory", "walk", "cluster", "ways", "queue", "object", "registry",
            "lookup", "calls", "lib",
        ],
        upward: &[],
        circle: 4,
    },
    House {
        name: "preload",
        floors: &["real", "hints", "reads", "writes", "sizes", "process", "setup", "lib"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "wire",
        floors: &[
            "keys",
            "secure",
            "cluster",
            "view",
            "file_lock",
            "reply",
            "message",
            "request",
            "lib",
            "handshake",
            "frame",
            "slots",
        ],
        upward: &[("file_lock", "message", 1), ("message", "request", 1)],
        circle: 3,
    },
    House {
        name: "dlm",
        floors: &["mode", "tokens", "tree", "client", "files", "lib", "server"],
        upward: &[("lib", "server", 1)],
        circle: 2,
    },
    House {
        name: "env",
        floors: &["addr", "buf", "api", "conformance", "memory_groups", "real", "sim", "lib"],
        upward: &[],
        circle: 6,
    },
    House { name: "sched", floors: &["bell", "mesh", "workers", "lib"], upward: &[], circle: 0 },
    House {
        name: "transport",
        floors: &[
            "secure",
            "identity",
            "auth",
            "bell",
            "error",
            "local",
            "beside",
            "pipe",
            "handshake",
            "server",
            "link",
            "lib",
        ],
        upward: &[("local", "pipe", 1)],
        circle: 4,
    },
    House {
        name: "meta",
        floors: &[
            "early_names",
            "index",
            "inode",
            "shared_attrs",
            "attributes",
            "inodes",
            "codec",
            "perm",
            "plan",
            "repair",
            "setattr",
            "verify",
            "xattr",
            "lib",
            "part",
            "store",
            "shards",
            "file_state",
            "items",
            "op",
        ],
        upward: &[
            ("lib", "part", 1),
            ("lib", "store", 1),
            ("part", "store", 1),
            ("plan", "part", 1),
            ("repair", "store", 1),
            ("setattr", "store", 1),
            ("verify", "store", 1),
            ("xattr", "store", 1),
        ],
        circle: 8,
    },
    House {
        name: "data",
        floors: &[
            "alloc",
            "checksums",
            "grants",
            "memory",
            "recent",
            "logged",
            "delayed",
            "extents",
            "extent",
            "objects",
            "plan",
            "room",
            "store",
            "charges",
            "fsck",
            "lib",
            "trim",
            "write",
        ],
        upward: &[("delayed", "extent", 1), ("logged", "extent", 1), ("room", "store", 1)],
        circle: 3,
    },
    House {
        name: "object",
        floors: &["disk_queue", "pieces", "planted", "read_cache", "read_pattern", "lib"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "pagecache",
        floors: &["locality", "file", "segments", "fill", "forget", "ghosts", "slab", "unit", "lib", "model", "room"],
        upward: &[
            ("fill", "lib", 1),
            ("forget", "lib", 1),
            ("ghosts", "lib", 1),
            ("lib", "room", 1),
            ("slab", "lib", 1),
            ("unit", "lib", 1),
        ],
        circle: 7,
    },
    House {
        name: "fuse",
        floors: &[
            "clock",
            "config",
            "environment",
            "groups",
            "kernel",
            "signals",
            "calls",
            "data",
            "mount",
            "node",
            "recorded",
            "reply",
            "directory",
            "notify",
            "interrupt",
            "later",
            "request",
            "file_system",
            "dispatch",
            "front",
            "client_fs",
            "null_fs",
            "session",
            "lib",
        ],
        upward: &[("interrupt", "later", 1)],
        circle: 6,
    },
    House {
        name: "mpiio",
        floors: &[
            "error",
            "backend",
            "intervals",
            "lib",
            "pace",
            "placement",
            "pool",
            "rounds",
            "spare_memory",
            "stats",
            "segment",
            "live",
            "locks",
            "file",
            "meeting",
            "team",
            "capi",
        ],
        upward: &[],
        circle: 3,
    },
    House {
        name: "host",
        floors: &[
            "clock",
            "failure",
            "cluster_key",
            "identity_file",
            "control",
            "idle",
            "lib",
            "link",
            "notify",
            "say",
            "signals",
            "size",
            "suggest",
            "client",
        ],
        upward: &[],
        circle: 0,
    },
    House {
        name: "stage",
        floors: &[
            "error",
            "buffer",
            "content",
            "options",
            "report",
            "work",
            "dirs",
            "entries",
            "walk",
            "holes",
            "remove",
            "journal",
            "files",
            "dest",
            "stable",
            "checkpoint",
            "copy",
            "compare",
            "attributes",
            "skeleton",
            "assemble",
            "ends",
            "whereabouts",
            "leftovers",
            "publish",
            "stage",
            "lib",
        ],
        upward: &[],
        circle: 0,
    },
    House {
        name: "publish",
        floors: &["error", "place", "record", "tree", "generations", "commit", "lib"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "trace",
        floors: &["call", "spans", "block", "record", "reader", "summary", "verify", "lib"],
        upward: &[],
        circle: 0,
    },
    House { name: "replay", floors: &["stamp", "plan", "run", "lib"], upward: &[], circle: 0 },
    House {
        name: "process",
        floors: &["audit_file", "launch", "lib", "mount_words", "mount", "cluster", "own_key"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "bench",
        floors: &[
            "clock",
            "links",
            "machine",
            "memory_group",
            "series",
            "report",
            "run",
            "shares",
            "round_trip",
            "settings",
            "program",
            "cluster",
            "embedded",
            "mounted_cluster",
            "stream",
            "demo",
            "library",
            "turns",
            "fresh",
            "idle",
            "locks",
            "mpiio",
            "raw",
            "cached",
            "kernel",
            "mounted",
            "bare",
            "model",
            "modes",
            "mounts",
            "polling",
            "preload",
            "servers",
            "sessions",
            "small",
            "untar",
            "workload",
            "breakdown",
            "scenario",
            "figures",
            "lib",
        ],
        upward: &[],
        circle: 6,
    },
    House {
        name: "view",
        floors: &[
            "unit",
            "calibration",
            "snapshot",
            "change",
            "limits",
            "files",
            "contention",
            "findings",
            "explain/facts",
            "explain/said",
            "explain/rules",
            "explain",
            "metrics",
            "report",
            "screen",
            "terminal",
            "page",
            "lib",
        ],
        upward: &[],
        circle: 0,
    },
    House {
        name: "amphi",
        floors: &[
            "known_folders",
            "log_limit",
            "storage_kind",
            "storage",
            "secure",
            "web",
            "own_socket",
            "config_file",
            "members",
            "cmd",
            "main",
        ],
        upward: &[],
        circle: 0,
    },
    House {
        name: "fuzzing",
        floors: &["bin", "frames", "log_replay", "names", "traces", "lib"],
        upward: &[],
        circle: 0,
    },
    House {
        name: "sim",
        floors: &[
            "dice",
            "hostile",
            "lib",
            "linear",
            "op",
            "plant",
            "shards",
            "cluster",
            "callbacks",
            "perform",
            "reference",
            "generate",
            "observe",
            "survive",
            "program",
            "shared",
            "kernel",
            "main",
            "run",
        ],
        upward: &[],
        circle: 5,
    },
    House {
        name: "zone",
        floors: &[
            "error",
            "planted",
            "event",
            "options",
            "stats",
            "change",
            "log_point",
            "layout",
            "parity",
            "group",
            "segment",
            "merge",
            "keep",
            "image",
            "log_reader",
            "state",
            "backing",
            "room",
            "recover",
            "commit",
            "checkpoint",
            "read",
            "zone",
            "fsck",
            "lib",
        ],
        upward: &[],
        circle: 0,
    },
    House {
        name: "client",
        floors: &[
            "policy",
            "telemetry",
            "api",
            "inode",
            "cache",
            "conn",
            "tables",
            "mount",
            "coherence",
            "objects",
            "writeback",
            "locks",
            "prefetch",
            "ops",
            "io",
            "client",
            "lib",
        ],
        upward: &[],
        circle: 6,
    },
    House {
        name: "server",
        floors: &[
            "error",
            "config",
            "counters",
            "planted",
            "tunables",
            "coherence",
            "session",
            "records",
            "message",
            "turns",
            "membership",
            "zone_target",
            "worker",
            "objects",
            "tx",
            "ops",
            "dispatch",
            "cluster",
            "folder",
            "server",
            "threads",
            "fsck",
            "lib",
        ],
        upward: &[],
        circle: 4,
    },
];

/// Prints the folders of a crate from the bottom up, what each imports, and the largest circle.
pub fn show(files: &[(String, String)], name: &str) {
    let own = own(files, name);
    let Ok(imports) = imports::read(&own) else { return };
    let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, targets) in &imports {
        folders
            .entry(folder(file))
            .or_default()
            .extend(targets.iter().map(|t| folder(t)).filter(|t| *t != folder(file)));
    }
    println!("{name}: {} files", own.len());
    let mut left = folders.clone();
    while !left.is_empty() {
        // Takes a folder that needs none of the remaining ones, or else one of the lowest circle.
        let needs = |name: &str| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![name]);
            while let Some(folder) = next.pop() {
                let others = left.get(folder).into_iter().flatten().copied().filter(|to| left.contains_key(to));
                next.extend(others.filter(|to| seen.insert(*to)));
            }
            let direct = left[name].iter().filter(|to| left.contains_key(*to)).count();
            (!seen.is_empty() && !seen.contains(name), seen.len(), direct)
        };
        let Some(next) = left.keys().copied().min_by_key(|name| needs(name)) else { break };
        let up: Vec<_> = left[next].iter().filter(|to| left.contains_key(*to)).copied().collect();
        println!("  {next}{}", if up.is_empty() { String::new() } else { format!("   upward: {}", up.join(", ")) });
        left.remove(next);
    }
    let circle = largest_circle(&imports);
    println!("  largest circle: {} files", circle.len());
    for file in &circle {
        let others: Vec<_> = imports[file].iter().copied().filter(|to| circle.contains(to)).collect();
        println!("    {file} -> {}", others.join(", "));
    }
}

/// The files of a crate below `src`, without its tests.
fn own<'a>(files: &'a [(String, String)], name: &str) -> BTreeMap<&'a str, &'a str> {
    let prefix = format!("crates/{name}/src/");
    files
        .iter()
        .filter_map(|(path, text)| Some((path.strip_prefix(&prefix)?, text.as_str())))
        .filter(|(path, _)| !path.starts_with("tests") && !path.contains("/tests"))
        .collect()
}

/// Checks every house; `files` are paths relative to the root of the repository with their text.
pub fn check(files: &[(String, String)], findings: &mut Vec<String>) {
    for house in HOUSES {
        let imports = match imports::read(&own(files, house.name)) {
            Ok(imports) => imports,
            Err(e) => {
                findings.push(format!("crates/{}/src/{e}", house.name));
                continue;
            }
        };
        house.arrows(&imports, findings);
        house.circles(&imports, findings);
    }
}

impl House {
    fn arrows(&self, imports: &BTreeMap<&str, BTreeSet<&str>>, findings: &mut Vec<String>) {
        let floor = |folder: &str| self.floors.iter().position(|f| *f == folder);
        let mut found: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
        for (file, targets) in imports {
            let from = folder(file);
            let Some(low) = floor(from) else {
                findings.push(format!("crates/{}/src/{file}: its folder is on no floor (xtask tidy)", self.name));
                continue;
            };
            for to in targets.iter().map(|t| folder(t)).filter(|to| floor(to) > Some(low)) {
                found.entry((from, to)).or_default().insert(file);
            }
        }
        let allowed: BTreeMap<(&str, &str), usize> = self.upward.iter().map(|(a, b, n)| ((*a, *b), *n)).collect();
        for arrow in found.keys().chain(allowed.keys()).collect::<BTreeSet<_>>() {
            let (now, most) = (found.get(arrow).map_or(0, BTreeSet::len), allowed.get(arrow).copied().unwrap_or(0));
            let (from, to) = arrow;
            if now > most {
                let files: Vec<_> = found[arrow].iter().copied().collect();
                findings.push(format!(
                    "crates/{}: {now} files of {from} import the higher {to}, {most} are allowed: {}",
                    self.name,
                    files.join(", ")
                ));
            } else if now < most {
                findings.push(format!(
                    "crates/{}: only {now} files of {from} import {to}; write {now} for {most} into the table of floors",
                    self.name
                ));
            }
        }
    }

    fn circles(&self, imports: &BTreeMap<&str, BTreeSet<&str>>, findings: &mut Vec<String>) {
        let largest = largest_circle(imports);
        if largest.len() != self.circle {
            findings.push(format!(
                "crates/{}: the largest circle of imports has {} files, {} in the table of floors, which may only shrink: {}",
                self.name, largest.len(), self.circle, largest.join(", ")
            ));
        }
    }
}

/// The folder, or the file at the top, that a path below `src` belongs to.
fn folder(path: &str) -> &str {
    let top = path.split('/').next().unwrap_or(path);
    top.strip_suffix(".rs").unwrap_or(top)
}

/// The largest set of files that all reach each other; empty if there is no circle.
fn largest_circle<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<&'a str> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|start| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![*start]);
            while let Some(file) = next.pop() {
                next.extend(imports.get(file).into_iter().flatten().filter(|t| seen.insert(**t)));
            }
            (*start, seen)
        })
        .collect();
    let circle = |file: &&'a str| reach[file].iter().filter(|other| reach[*other].contains(file)).copied().collect();
    reach.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: arrows are found, and the largest circle is counted. Method: files that the test composes.
    #[test]
    fn arrows_and_circles() {
        let files: BTreeMap<&str, &str> = [
            ("low.rs", "use crate::high::part::X;\n"),
            ("high.rs", "mod part;\nuse crate::low::Y;\n"),
            ("high/part.rs", "fn f() { super::g(crate::other::h()) }\n"),
            ("other.rs", ""),
            ("lib.rs", "mod high;\nmod low;\nmod other;\n"),
        ]
        .into();
        let imports = imports::read(&files).expect("Rust");
        assert_eq!(largest_circle(&imports), ["high.rs", "high/part.rs", "low.rs"]);
        let house =
            House { name: "x", floors: &["low", "high", "other", "lib"], upward: &[("high", "other", 2)], circle: 4 };
        let mut findings = Vec::new();
        house.arrows(&imports, &mut findings);
        house.circles(&imports, &mut findings);
        let findings = findings.join("\n");
        assert!(findings.contains("1 files of low import the higher high, 0 are allowed: low.rs"), "{findings}");
        assert!(findings.contains("only 1 files of high import other; write 1 for 2"), "{findings}");
        assert!(findings.contains("has 3 files, 4 in the table"), "{findings}");
        assert_eq!(findings.lines().count(), 3, "{findings}");
    }
}
