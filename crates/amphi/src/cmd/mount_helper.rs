//! The program that mount(8) runs for file systems of type `fuse.amphi`: `mount.fuse.amphi`.
//!
//! It is this binary under another name, so fstab, `mount -t fuse.amphi` and `mount -o remount` need only a link to the
//! binary where mount(8) searches (`make install` makes it).
//!
//! Owns: the options of an fstab line, mounting in the background, changing the flags of a mount. Does not own:
//! mounting itself (`cmd::mount`, `cmd::up`) and unmounting (`cmd::umount`).
//!
//! A mount is ready when the line `ready` arrives; earlier lines of its process are passed on.

use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_process::mount_words::MountWord;
use clap::{Parser, ValueEnum};
use rustix::mount::MountFlags;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names under which mount(8) searches for the helper: the type in fstab may be the short one, or the one in the mount
/// table.
const NAMES: [&str; 2] = ["mount.fuse.amphi", "mount.amphi"];
/// Options of an fstab line that are for mount(8), the init system or other file systems, and options that the kernel
/// shows for a FUSE mount, which mount(8) repeats at a remount.
const FOR_OTHERS: [&str; 17] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "async",
    "nodiratime",
    "diratime",
    "lazytime",
    "allow_other",
    "default_permissions",
    "remount",
];
/// How such words begin.
const FOR_OTHERS_BEGIN: [&str; 6] = ["x-", "comment=", "user_id=", "group_id=", "max_read=", "user="];

/// Runs this process as the helper if it was called by its name.
pub fn run_if_named() -> Option<Outcome> {
    let name = std::env::args_os().next()?;
    let name = Path::new(&name).file_name()?.to_str()?.to_owned();
    NAMES.contains(&name.as_str()).then(|| MountHelper::parse().run())
}

/// Mount an AmphiFS in the background, in the way in which mount(8) calls its helpers
#[derive(Parser, Debug)]
#[command(name = "mount.fuse.amphi", version, about)]
pub struct MountHelper {
    /// Addresses of servers, with commas between them, or the absolute path of the data folder of a cluster of this
    /// machine
    source: OsString,
    /// Mount point
    dir: PathBuf,
    /// Words with commas between them: those of `amphi mount -o`, and key=FILE, identity=FILE, secure=LEVEL,
    /// cache=SIZE, set=NAME=VALUE, private, log=FILE
    #[arg(short = 'o', value_name = "WORD,...", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Pass over words that are not known
    #[arg(short = 's')]
    sloppy: bool,
    /// Check, and mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// No entry in /etc/mtab, which nobody writes any more
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Say what is done
    #[arg(short = 'v')]
    verbose: bool,
    /// Type of the file system, as given to mount(8)
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// The request in the words of an fstab line.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    /// Change an existing mount (`-o remount`).
    remount: bool,
    /// Words for the mount.
    words: Vec<MountWord>,
    /// Further arguments of `amphi mount`.
    args: Vec<String>,
    /// The destination of the log of the mount's process.
    log: Option<PathBuf>,
}

impl Asked {
    /// Reads the words.
    ///
    /// Errors: a word that nobody knows, unless `sloppy`.
    fn of(options: &[String], sloppy: bool) -> Outcome<Asked> {
        let mut asked = Asked::default();
        for word in options.iter().flat_map(|o| o.split(',')).filter(|w| !w.is_empty()) {
            asked.remount |= word == "remount";
            if FOR_OTHERS.contains(&word) || FOR_OTHERS_BEGIN.iter().any(|begin| word.starts_with(begin)) {
                continue;
            }
            if let Ok(word) = MountWord::from_str(word, false) {
                asked.words.push(word);
                continue;
            }
            match word.split_once('=') {
                Some((option @ ("key" | "identity" | "secure" | "cache" | "set"), value)) => {
                    asked.args.extend([format!("--{option}"), value.to_string()]);
                }
                Some(("log", path)) => asked.log = Some(path.into()),
                None if word == "private" => asked.args.push("--private".into()),
                _ if sloppy => {}
                _ => {
                    return Err(Failure::refused(format!(
                        "'{word}' is no option of a mount; there are key=FILE, identity=FILE, secure=LEVEL, \
                         cache=SIZE, set=NAME=VALUE, private, log=FILE, and {}",
                        words().join(", ")
                    )));
                }
            }
        }
        Ok(asked)
    }
}

fn name_of(word: MountWord) -> String {
    word.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
}

fn words() -> Vec<String> {
    MountWord::value_variants().iter().map(|word| name_of(*word)).collect()
}

impl MountHelper {
    fn run(self) -> Outcome {
        let asked = Asked::of(&self.options, self.sloppy)?;
        if self.fake {
            return Ok(());
        }
        if asked.remount { remount(&self.dir, &asked.words) } else { self.mount(asked) }
    }

    /// The arguments of the mount's process.
    fn arguments(&self, asked: &Asked) -> Outcome<Vec<OsString>> {
        let mut args: Vec<OsString> = Vec::new();
        if Path::new(&self.source).is_absolute() {
            args.extend(["up".into(), "--data".into(), self.source.clone(), "--mount".into(), self.dir.clone().into()]);
        } else {
            let Some(source) = self.source.to_str() else {
                return Err(Failure::refused(format!("{}: addresses are text", self.source.display())));
            };
            args.push("mount".into());
            for addr in source.split(',').filter(|a| !a.is_empty()) {
                args.extend(["--cluster".into(), addr.into()]);
            }
            args.push(self.dir.clone().into());
        }
        args.extend(asked.args.iter().map(OsString::from));
        if !asked.words.is_empty() {
            let words: Vec<String> = asked.words.iter().map(|w| name_of(*w)).collect();
            args.extend(["-o".into(), words.join(",").into()]);
        }
        Ok(args)
    }

    /// Starts the mount's process and waits until it serves.
    fn mount(&self, asked: Asked) -> Outcome {
        let binary = std::env::current_exe().during(|| "find this program".into())?;
        let mut command = Command::new(binary);
        command.args(self.arguments(&asked)?).arg("--background").stdin(Stdio::null()).stdout(Stdio::piped());
        // A journal that receives the messages of this process will receive the messages of the mount too.
        let to_journal = asked.log.is_none() && std::env::var_os("JOURNAL_STREAM").is_some();
        match &asked.log {
            Some(path) => {
                let log = std::fs::OpenOptions::new().create(true).append(true).open(path);
                command.stderr(log.map_err(|e| Failure::refused(format!("log={}: {e}", path.display())))?)
            }
            None if to_journal => command.stderr(Stdio::inherit()),
            None => command.stderr(Stdio::piped()),
        };
        if self.verbose {
            amphi_host::say::say(&format!("{command:?}"));
        }
        let mut child = command.spawn().during(|| "start the mount".into())?;
        let mut line = String::new();
        let out = child.stdout.take().map(BufReader::new);
        let _ = out.map(|mut out| out.read_line(&mut line));
        if line.starts_with("ready") {
            return Ok(());
        }
        let mut said = String::new();
        let _ = child.stderr.take().map(|mut err| err.read_to_string(&mut said));
        let status = child.wait().during(|| "wait for the mount".into())?;
        let why = match asked.log {
            Some(log) => format!("the mount has not come; {} says why", log.display()),
            None if to_journal => "the mount has not come".into(),
            // The last line has the reason of the end; the earlier ones are the log.
            None => said.lines().rev().find_map(|l| l.strip_prefix("amphi: ")).unwrap_or(said.trim_end()).into(),
        };
        Err(Failure { code: status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1).max(1), text: why })
    }
}

/// Flags of a mount, from the words of the mount table.
fn flags_of(words: &str) -> MountFlags {
    words.split(',').fold(MountFlags::empty(), |flags, word| {
        flags
            | match word {
                "ro" => MountFlags::RDONLY,
                "nosuid" => MountFlags::NOSUID,
                "noexec" => MountFlags::NOEXEC,
                "nodev" => MountFlags::NODEV,
                "noatime" => MountFlags::NOATIME,
                "relatime" => MountFlags::RELATIME,
                _ => MountFlags::empty(),
            }
    })
}

/// The flags with what the words change.
fn changed(flags: MountFlags, words: &[MountWord]) -> MountFlags {
    words.iter().fold(flags, |flags, word| match word {
        MountWord::Ro => flags | MountFlags::RDONLY,
        MountWord::Rw => flags - MountFlags::RDONLY,
        MountWord::NoSuid => flags | MountFlags::NOSUID,
        MountWord::Suid => flags - MountFlags::NOSUID,
        MountWord::NoExec => flags | MountFlags::NOEXEC,
        MountWord::Exec => flags - MountFlags::NOEXEC,
        MountWord::NoDev => flags | MountFlags::NODEV,
        MountWord::Dev => flags - MountFlags::NODEV,
        MountWord::NoAcl | MountWord::Acl | MountWord::Commit | MountWord::Posix => flags,
        MountWord::NoAtime => (flags | MountFlags::NOATIME) - MountFlags::RELATIME,
        MountWord::RelAtime => (flags | MountFlags::RELATIME) - MountFlags::NOATIME,
    })
}

/// Changes the flags of the mount at `dir`.
fn remount(dir: &Path, words: &[MountWord]) -> Outcome {
    let at = std::fs::canonicalize(dir).map_err(|e| Failure::refused(format!("{}: {e}", dir.display())))?;
    let Some(now) = control::options_of(&at) else {
        return Err(Failure::refused(format!("{}: no AmphiFS is mounted there", dir.display())));
    };
    if words.iter().any(|word| matches!(word, MountWord::Acl | MountWord::NoAcl)) {
        let why = "whether access control lists count is agreed when it is mounted: unmount it, and mount it again";
        return Err(Failure::refused(format!("{}: {why}", dir.display())));
    }
    if words.iter().any(|word| matches!(word, MountWord::Commit | MountWord::Posix)) {
        let why = "the consistency of a mount is chosen when it is mounted: unmount it, and mount it again; \
                   `amphi layout set --consistency` changes that of files and directories";
        return Err(Failure::refused(format!("{}: {why}", dir.display())));
    }
    let before = flags_of(&now);
    let after = changed(before, words);
    // The client updates access times; it receives none of the kernel's flags.
    let kept = |flags: MountFlags| !flags.intersects(MountFlags::RDONLY | MountFlags::NOATIME);
    let tell = |word: &str| control::command(&at, "user.amphi.set", &format!("client.atime={word}"));
    if kept(before) && !kept(after) {
        tell("none")?;
    }
    let done = rustix::mount::mount_remount(&at, after, "");
    done.map_err(|e| Failure::broken(format!("{}: the kernel refuses to remount it: {e}", dir.display())))?;
    if !kept(before) && kept(after) {
        tell("relatime")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn options(text: &str) -> Vec<String> {
        vec![text.to_string()]
    }

    /// Goal: each option of an fstab line reaches its place, and unknown options are refused by name unless mount(8)
    /// requests that they are ignored. Method: a table.
    #[test]
    fn words_of_fstab() {
        let asked = Asked::of(
            &options("rw,_netdev,nofail,x-systemd.automount,noatime,key=/k,set=hybrid.small_bytes=4K"),
            false,
        );
        let asked = asked.expect("known words");
        assert_eq!(asked.words, [MountWord::Rw, MountWord::NoAtime]);
        assert_eq!(asked.args, ["--key", "/k", "--set", "hybrid.small_bytes=4K"]);
        assert!(!asked.remount && asked.log.is_none());
        let shown = "remount,ro,user_id=0,group_id=0,default_permissions,allow_other,max_read=8388608";
        assert!(Asked::of(&options(shown), false).expect("known").remount);
        assert_eq!(Asked::of(&options("log=/l"), false).expect("known").log, Some("/l".into()));
        assert!(Asked::of(&options("fancy"), false).is_err_and(|e| e.text.contains("'fancy'") && e.code == 2));
        assert_eq!(Asked::of(&options("fancy,"), true).expect("passed over"), Asked::default());
    }

    /// Goal: a source is a data folder or addresses. Method: both.
    #[test]
    fn sources() {
        let of = |source: &str| {
            let helper = MountHelper::try_parse_from(["mount.fuse.amphi", source, "/mnt", "-o", "ro,nosuid"])
                .expect("typed right");
            let asked = Asked::of(&helper.options, helper.sloppy).expect("known");
            helper.arguments(&asked).expect("text").join(OsStr::new(" ")).into_string().expect("text")
        };
        assert_eq!(of("/srv/data"), "up --data /srv/data --mount /mnt -o ro,nosuid");
        assert_eq!(of("tcp:a:1,unix:/s"), "mount --cluster tcp:a:1 --cluster unix:/s /mnt -o ro,nosuid");
    }

    /// Goal: a remount changes what its options name and nothing else. Method: a table.
    #[test]
    fn remounts_change_what_they_name() {
        let now = flags_of("rw,nosuid,nodev,relatime");
        assert_eq!(changed(now, &[MountWord::Ro]), now | MountFlags::RDONLY);
        assert_eq!(changed(now | MountFlags::RDONLY, &[MountWord::Rw, MountWord::Suid]), now - MountFlags::NOSUID);
        let without = changed(now, &[MountWord::NoAtime]);
        assert!(without.contains(MountFlags::NOATIME) && !without.contains(MountFlags::RELATIME));
    }
}
