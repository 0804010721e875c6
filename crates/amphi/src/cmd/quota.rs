//! `amphi quota`: what users, groups and trees of directories use, and how much they may use.
//!
//! A tree is a directory with a project of its own, which everything in it inherits. If the directory is not empty,
//! making it a tree visits everything in it once.

use amphi_client::Clock as _;
use amphi_host::clock::Machine;
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::size;
use clap::{Args, Subcommand};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const QUOTA: &str = "user.amphi.quota";
const PROJECT: &str = "user.amphi.project";
/// The number of inodes after which progress is shown again.
const SHOW_EVERY: u64 = 1000;

/// Show and set how much users, groups and directory trees may use.
#[derive(Args, Debug)]
pub struct Quota {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Print what an account uses and may use; default: your own user and groups, and the tree that you are in
    Show {
        #[command(flatten)]
        who: Who,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print all users, groups and trees that use something or are limited
    List {
        /// Mount point, or any file or directory there; default: the only mount here
        #[arg(long, short)]
        mount: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Limit a user, a group or a tree; limits that are not named stay, 0 takes one away
    Set {
        #[command(flatten)]
        who: Who,
        /// Most bytes on storage; whoever writes more gets "Disk quota exceeded"
        #[arg(long, value_parser = size::parse, value_name = "SIZE")]
        bytes: Option<u64>,
        /// Most bytes that may be used for longer than the grace time
        #[arg(long, value_parser = size::parse, value_name = "SIZE")]
        soft_bytes: Option<u64>,
        /// Most files, directories and links, such as 5000 or 2M
        #[arg(long, value_parser = count, value_name = "N")]
        inodes: Option<u64>,
        /// Most files, directories and links that may exist for longer than the grace time
        #[arg(long, value_parser = count, value_name = "N")]
        soft_inodes: Option<u64>,
        /// How long the usage may stay above a soft limit, such as 7d, 12h or 30m
        #[arg(long, value_parser = duration, value_name = "TIME")]
        grace: Option<u64>,
    },
    /// Take all limits of a user, a group or a tree away
    Clear {
        #[command(flatten)]
        who: Who,
    },
    /// Count what a directory and everything below it use, without a limit: it becomes a tree
    Track {
        /// The directory
        dir: PathBuf,
    },
    /// Make a tree ordinary directories again, without limits and counts of their own
    Untrack {
        /// The directory
        dir: PathBuf,
    },
}

#[derive(Args, Debug)]
struct Who {
    /// A user, by name or number
    #[arg(long, short, group = "who", value_name = "USER")]
    user: Option<String>,
    /// A group, by name or number
    #[arg(long, short, group = "who", value_name = "GROUP")]
    group: Option<String>,
    /// A directory and everything in it
    #[arg(long, short, group = "who", value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Mount point, or any file or directory there; default: the only mount here
    #[arg(long, short)]
    mount: Option<PathBuf>,
}

/// An account as the mount describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Account {
    kind: String,
    id: u32,
    used_bytes: u64,
    used_inodes: u64,
    bytes: u64,
    soft_bytes: u64,
    inodes: u64,
    soft_inodes: u64,
    grace_s: u64,
    over_since_s: u64,
    silent_targets: u16,
}

#[derive(Deserialize)]
struct Page {
    accounts: Vec<Account>,
    more: bool,
}

/// A number such as `5000`, `20k` or `2M`, in thousands.
fn count(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no number; write for example 5000, 20k or 2M");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit {
        "" => 1,
        "k" | "K" => 1000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).ok_or_else(wrong)
}

/// Seconds of a time such as `7d`.
fn duration(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time; write for example 7d, 12h, 30m or 90s");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        "w" => 7 * 24 * 3600,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).ok_or_else(wrong)
}

/// Looks up a user or group of the machine: the number by the name, or the name by the number.
fn look_up(table: &str, key: &str) -> Option<(String, u32)> {
    let found = Command::new("getent").args([table, key]).output().ok()?;
    let line = String::from_utf8(found.stdout).ok()?;
    let mut fields = line.trim_end().split(':');
    let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
    Some((name.to_string(), id.parse().ok()?))
}

fn number_of(table: &str, what: &str, text: &str) -> Outcome<u32> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let unknown = || Failure::refused(format!("'{text}': there is no such {what} on this machine; name it by number"));
    look_up(table, text).map(|(_, id)| id).ok_or_else(unknown)
}

/// The name of an account for output.
fn name_of(account: &Account) -> String {
    let table = match account.kind.as_str() {
        "user" => "passwd",
        "group" => "group",
        _ => return format!("tree {}", account.id),
    };
    let name = look_up(table, &account.id.to_string()).map(|(name, _)| name);
    format!("{} {}", account.kind, name.unwrap_or_else(|| account.id.to_string()))
}

fn account(mount: &Path, kind: &str, id: u32) -> Outcome<Account> {
    let text = control::read(mount, &format!("{QUOTA}.{kind}.{id}"))?;
    serde_json::from_str(&text).map_err(|e| Failure::broken(format!("{}: {kind} {id}: {e}", mount.display())))
}

fn project(path: &Path) -> Outcome<u32> {
    let text = control::read(path, PROJECT)?;
    text.trim().parse().map_err(|_| Failure::broken(format!("{}: project {text:?}", path.display())))
}

/// Whether a directory is the top of a tree: the directory above it has another project, or is on another file system.
fn is_top(dir: &Path, of: u32) -> Outcome<bool> {
    let above = std::fs::canonicalize(dir).during(|| format!("look at {}", dir.display()))?;
    let Some(above) = above.parent() else { return Ok(true) };
    Ok(control::read_if_any(above, PROJECT).ok().flatten().is_none_or(|text| text.trim() != of.to_string()))
}

fn set_limits(mount: &Path, kind: &str, id: u32, words: &str) -> Outcome {
    // This check comes first, because another file system would accept the attribute and ignore it.
    control::read(mount, "user.amphi.mode")?;
    control::write(mount, QUOTA, &format!("{kind} {id} {words}"), |_| {
        let why = control::read_if_any(mount, "user.amphi.error").ok().flatten().filter(|why| !why.is_empty());
        format!("{}: {kind} {id}: {}", mount.display(), why.unwrap_or_else(|| "the limits are refused".into()))
    })
}

impl Quota {
    /// Shows or sets.
    pub fn run(self) -> Outcome {
        match self.action {
            Action::Show { who, json } => show(&who.accounts()?, json),
            Action::List { mount, json } => {
                let mount = control::find_mount(mount, " with -m")?;
                show(&list(&mount)?, json)
            }
            Action::Set { who, bytes, soft_bytes, inodes, soft_inodes, grace } => {
                let words = [
                    ("bytes", bytes),
                    ("soft_bytes", soft_bytes),
                    ("inodes", inodes),
                    ("soft_inodes", soft_inodes),
                    ("grace_s", grace),
                ];
                let words: Vec<String> =
                    words.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}"))).collect();
                if words.is_empty() {
                    return Err(Failure::refused(
                        "say what to limit: --bytes, --soft-bytes, --inodes, --soft-inodes or --grace",
                    ));
                }
                let (mount, kind, id) = who.one(true)?;
                set_limits(&mount, kind, id, &words.join(" "))?;
                show(&[account(&mount, kind, id)?], false)
            }
            Action::Clear { who } => {
                let (mount, kind, id) = who.one(false)?;
                set_limits(&mount, kind, id, "bytes=0 soft_bytes=0 inodes=0 soft_inodes=0")?;
                show(&[account(&mount, kind, id)?], false)
            }
            Action::Track { dir } => {
                let id = make_tree(&dir)?;
                show(&[account(&dir, "project", id)?], false)
            }
            Action::Untrack { dir } => untrack(&dir),
        }
    }
}

impl Who {
    /// The one account that is named. `makes`: a directory that is not a tree becomes one.
    fn one(&self, makes: bool) -> Outcome<(PathBuf, &'static str, u32)> {
        if let Some(dir) = &self.tree {
            let id = match project(dir)? {
                0 if makes => make_tree(dir)?,
                0 => {
                    return Err(Failure::refused(format!(
                        "{}: is no tree; amphi quota track makes it one",
                        dir.display()
                    )));
                }
                id if makes && !is_top(dir, id)? => {
                    return Err(Failure::refused(format!(
                        "{}: lies in tree {id} and has no limits of its own; limit the top of that tree, or copy it out",
                        dir.display()
                    )));
                }
                id => id,
            };
            return Ok((dir.clone(), "project", id));
        }
        let mount = control::find_mount(self.mount.clone(), " with -m")?;
        match (&self.user, &self.group) {
            (Some(user), _) => Ok((mount, "user", number_of("passwd", "user", user)?)),
            (_, Some(group)) => Ok((mount, "group", number_of("group", "group", group)?)),
            _ => Err(Failure::refused("say whom: --user NAME, --group NAME or --tree DIR")),
        }
    }

    /// The named accounts, or those of the caller.
    fn accounts(&self) -> Outcome<Vec<Account>> {
        if self.user.is_some() || self.group.is_some() || self.tree.is_some() {
            let (mount, kind, id) = self.one(false)?;
            return Ok(vec![account(&mount, kind, id)?]);
        }
        let here = PathBuf::from(".");
        let is_here = || control::read_if_any(&here, PROJECT).ok().flatten().is_some();
        let mount = match &self.mount {
            Some(mount) => mount.clone(),
            None if is_here() => here,
            None => control::find_mount(None, " with -m")?,
        };
        let tree = project(&mount)?;
        let mut accounts = match account(&mount, "user", rustix::process::getuid().as_raw()) {
            Ok(own) => vec![own],
            // A mount whose key is bound to a tree learns only about that tree.
            Err(_) if tree != 0 => return Ok(vec![account(&mount, "project", tree)?]),
            Err(e) => return Err(e),
        };
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect();
        groups.push(rustix::process::getgid().as_raw());
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            accounts.push(account(&mount, "group", group)?);
        }
        if tree != 0 {
            accounts.push(account(&mount, "project", tree)?);
        }
        Ok(accounts)
    }
}

fn list(mount: &Path) -> Outcome<Vec<Account>> {
    let mut all: Vec<Account> = Vec::new();
    loop {
        let name = match all.last() {
            None => QUOTA.to_string(),
            Some(last) => format!("{QUOTA}.after.{}.{}", last.kind, last.id),
        };
        let text = control::read(mount, &name)?;
        let page: Page =
            serde_json::from_str(&text).map_err(|e| Failure::broken(format!("{}: {e}", mount.display())))?;
        let is_end = !page.more || page.accounts.is_empty();
        all.extend(page.accounts);
        if is_end {
            return Ok(all);
        }
    }
}

/// A file or directory below a directory, found by descriptors, so that nobody can lead the walk elsewhere meanwhile.
struct Found<'a> {
    /// The directory through which the thing, or the directory that contains its name, is reached.
    by: &'a Path,
    /// The name of an entry that has no attributes of its own: a symbolic link or a special file.
    name: Option<&'a [u8]>,
    /// The path of the thing, for people.
    shown: &'a Path,
}

/// Everything below a directory on its file system, the directory first; what vanishes meanwhile is left out.
fn visit(dir: &Path, each: &mut impl FnMut(&Found) -> Outcome) -> Outcome {
    let looks = || format!("look at {}", dir.display());
    let top = open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).during(looks)?;
    let mut left = vec![PathBuf::from(".")];
    while let Some(path) = left.pop() {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let Ok(found) = openat2(&top, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within) else { continue };
        let by = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
        let shown = dir.join(path.strip_prefix(".").unwrap_or(&path));
        each(&Found { by: &by, name: None, shown: &shown })?;
        if !by.is_dir() {
            continue;
        }
        let entries = std::fs::read_dir(&by).during(|| format!("list {}", shown.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() || kind.is_file() => left.push(path.join(name)),
                Ok(_) => each(&Found { by: &by, name: Some(name.as_bytes()), shown: &shown.join(&name) })?,
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Puts a directory and everything below it into a project, and shows the progress.
fn put_all(dir: &Path, id: u32) -> Outcome {
    let mut done = 0u64;
    let shows = std::io::stderr().is_terminal();
    visit(dir, &mut |found| {
        put(found, id)?;
        done += 1;
        if shows && done.is_multiple_of(SHOW_EVERY) {
            eprint!("\r{done} files and directories");
        }
        Ok(())
    })?;
    if shows && done >= SHOW_EVERY {
        eprintln!();
    }
    Ok(())
}

fn put(found: &Found, id: u32) -> Outcome {
    let of = |name: &[u8]| name.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let value = found.name.map_or_else(|| id.to_string(), |name| format!("{id} of {}", of(name)));
    control::write(found.by, PROJECT, &value, |e| match e {
        Errno::BUSY => format!(
            "{}: a key is bound to the tree that it belongs to, so it stays there; amphi key list shows which, \
             amphi key set NAME --subtree none frees the tree",
            found.shown.display()
        ),
        e => format!("{}: {e}", found.shown.display()),
    })
}

/// The number of the tree of which a directory is the top.
///
/// Errors: the directory is not a tree; the text says what to do.
pub(super) fn tree_of(dir: &Path) -> Outcome<u32> {
    match project(dir)? {
        0 => Err(Failure::refused(format!(
            "{}: is no tree; amphi quota track {} makes it one, with all that is in it",
            dir.display(),
            dir.display()
        ))),
        id if !is_top(dir, id)? => {
            Err(Failure::refused(format!("{}: lies in tree {id} and is not its top; name the top", dir.display())))
        }
        id => Ok(id),
    }
}

/// Makes a directory a tree, unless it is one already. Returns the number of the tree.
fn make_tree(dir: &Path) -> Outcome<u32> {
    let before = project(dir)?;
    if before != 0 {
        if is_top(dir, before)? {
            // Goes on where an earlier call was ended.
            put_all(dir, before)?;
            return Ok(before);
        }
        return Err(Failure::refused(format!(
            "{}: lies in tree {before} already, and trees do not lie in one another",
            dir.display()
        )));
    }
    if !dir.is_dir() {
        return Err(Failure::refused(format!("{}: is no directory", dir.display())));
    }
    // From here on new files below the directory belong to the project; the existing files are changed next.
    control::write(dir, PROJECT, "new", |e| format!("{}: cannot become a tree: {e}", dir.display()))?;
    let id = project(dir)?;
    put_all(dir, id)?;
    Ok(id)
}

fn untrack(dir: &Path) -> Outcome {
    let id = project(dir)?;
    if id == 0 {
        return Err(Failure::refused(format!("{}: is no tree", dir.display())));
    }
    if !is_top(dir, id)? {
        return Err(Failure::refused(format!("{}: is not the top of tree {id}", dir.display())));
    }
    // If the caller may not change the directory, nothing has changed.
    put(&Found { by: dir, name: None, shown: dir }, 0)?;
    set_limits(dir, "project", id, "bytes=0 soft_bytes=0 inodes=0 soft_inodes=0")?;
    put_all(dir, 0)
}

fn show(accounts: &[Account], json: bool) -> Outcome {
    if json {
        let text = serde_json::to_string(&serde_json::json!({ "accounts": accounts }))
            .map_err(|e| Failure::broken(format!("write JSON: {e}")))?;
        println!("{text}");
        return Ok(());
    }
    println!("{:<20} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}", "", "used", "soft", "hard", "inodes", "soft", "hard");
    for a in accounts {
        let limit = |bytes| if bytes == 0 { "-".to_string() } else { size::show(bytes) };
        let count = |n: u64| if n == 0 { "-".to_string() } else { n.to_string() };
        println!(
            "{:<20} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}{}",
            name_of(a),
            size::show(a.used_bytes),
            limit(a.soft_bytes),
            limit(a.bytes),
            a.used_inodes,
            count(a.soft_inodes),
            count(a.inodes),
            note(a)
        );
    }
    if let Some(silent) = accounts.iter().map(|a| a.silent_targets).max().filter(|n| *n > 0) {
        amphi_host::say::say(&format!("{silent} targets do not answer; what lies there is not counted"));
    }
    Ok(())
}

/// The state of an account, shown in addition to its numbers.
fn note(a: &Account) -> String {
    let is_full = (a.bytes != 0 && a.used_bytes >= a.bytes) || (a.inodes != 0 && a.used_inodes >= a.inodes);
    if is_full {
        return "  full".into();
    }
    if a.over_since_s == 0 {
        return String::new();
    }
    let now = u64::try_from(Machine.wall().sec).unwrap_or(0);
    match (a.over_since_s + a.grace_s).saturating_sub(now) {
        0 => "  grace over".into(),
        left if left >= 2 * 24 * 3600 => format!("  {} days of grace", left / (24 * 3600)),
        left => format!("  {} h of grace", left.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times and numbers are read as people write them. Method: a table.
    #[test]
    fn times() {
        for (text, seconds) in
            [("90", 90), ("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("1w", 604_800)]
        {
            assert_eq!(duration(text), Ok(seconds), "{text}");
        }
        for text in ["", "d", "1y", "-1d", "99999999999999999999s", "9999999999999999999w"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(
            ["7", "20k", "2M", "x", "1.5M"].map(|text| count(text).ok()),
            [Some(7), Some(20_000), Some(2_000_000), None, None]
        );
    }
}
