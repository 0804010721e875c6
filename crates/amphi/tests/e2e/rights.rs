//! Access rights: the same calls by three users on a mount, over two mounts, and on the file system of the machine, and
//! groups and capabilities.

use crate::harness::{Place, counter};
use crate::two_mounts::Pair;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags, access, chmod, chown,
    ftruncate, getxattr, link, listxattr, mkdir, mknodat, open, readlink, removexattr, rename, renameat_with, rmdir,
    setxattr, stat, symlink, unlink, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, getuid};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The owner of the files that the calls use. He is in group `GROUP`.
pub(crate) const OWNER: u32 = 1000;
/// Somebody else, in no group but his own.
pub(crate) const OTHER: u32 = 1001;
pub(crate) const GROUP: u32 = 2000;

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn uid(n: u32) -> Option<Uid> {
    Some(Uid::from_raw(n))
}

fn gid(n: u32) -> Option<Gid> {
    Some(Gid::from_raw(n))
}

/// The result of a call: its errno, or the value that it returned.
pub(crate) type Said = Result<String, Errno>;
type Call = fn(&Path) -> Said;

fn said<T>(result: Result<T, Errno>) -> Said {
    result.map(|_| String::new())
}

fn opens(path: PathBuf, flags: OFlags) -> Said {
    said(open(path, flags, mode(0o640)))
}

fn list(path: PathBuf) -> Said {
    let fd = open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&fd)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names.join(" "))
}

fn at(time: i64) -> Timestamps {
    let time = Timespec { tv_sec: time, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn now() -> Timestamps {
    let time = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Timestamps { last_access: time, last_modification: time }
}

fn size(path: PathBuf, to: u64) -> Said {
    let fd = open(path, OFlags::WRONLY, Mode::empty())?;
    said(ftruncate(&fd, to))
}

fn writes(path: PathBuf) -> Said {
    let fd = open(path, OFlags::WRONLY, Mode::empty())?;
    said(rustix::io::write(&fd, b"changed"))
}

fn value(path: PathBuf, name: &str) -> Said {
    let mut value = [0; 64];
    let len = getxattr(path, name, &mut value)?;
    Ok(String::from_utf8_lossy(&value[..len]).into_owned())
}

fn swap(from: PathBuf, to: PathBuf) -> Said {
    said(renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE))
}

/// The calls, in a tree as `plant` makes it.
const CALLS: &[(&str, Call)] = &[
    ("read an open file", |t| opens(t.join("open"), OFlags::RDONLY)),
    ("read a secret", |t| opens(t.join("secret"), OFlags::RDONLY)),
    ("read a group's file", |t| opens(t.join("group"), OFlags::RDONLY)),
    ("read what nobody may", |t| opens(t.join("none"), OFlags::RDONLY)),
    ("write an open file", |t| opens(t.join("open"), OFlags::WRONLY)),
    ("write a readable file", |t| opens(t.join("read"), OFlags::RDWR)),
    ("write a group's file", |t| opens(t.join("group"), OFlags::RDWR)),
    ("write what nobody may", |t| opens(t.join("none"), OFlags::WRONLY)),
    ("write what others may, not the owner", |t| opens(t.join("odd"), OFlags::WRONLY)),
    ("cut by opening", |t| opens(t.join("read"), OFlags::WRONLY | OFlags::TRUNC)),
    ("open through a link", |t| opens(t.join("link"), OFlags::RDONLY)),
    ("open a directory to write", |t| opens(t.join("pub"), OFlags::WRONLY)),
    ("open a private directory", |t| opens(t.join("priv"), OFlags::RDONLY | OFlags::DIRECTORY)),
    ("create in a public directory", |t| opens(t.join("pub/new"), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)),
    ("create in a private one", |t| opens(t.join("priv/new"), OFlags::WRONLY | OFlags::CREATE)),
    ("create in a drop box", |t| opens(t.join("drop/new"), OFlags::WRONLY | OFlags::CREATE)),
    ("create in a sticky one", |t| opens(t.join("sticky/new"), OFlags::WRONLY | OFlags::CREATE)),
    ("create in a group's", |t| opens(t.join("sgid/new"), OFlags::WRONLY | OFlags::CREATE)),
    ("create what is there", |t| opens(t.join("drop/f"), OFlags::WRONLY | OFlags::CREATE)),
    ("open what is there and private", |t| opens(t.join("priv/f"), OFlags::RDONLY)),
    ("open in what can be listed alone", |t| opens(t.join("listed/f"), OFlags::RDONLY)),
    ("make a file without a name", |t| opens(t.join("sgid"), OFlags::WRONLY | OFlags::TMPFILE)),
    ("list a public directory", |t| list(t.join("pub"))),
    ("list a private one", |t| list(t.join("priv"))),
    ("list a drop box", |t| list(t.join("drop"))),
    ("list what can be listed alone", |t| list(t.join("listed"))),
    ("stat in a private one", |t| said(stat(t.join("priv/f")))),
    ("stat in a drop box", |t| said(stat(t.join("drop/f")))),
    ("stat in what can be listed alone", |t| said(stat(t.join("listed/f")))),
    ("readlink", |t| said(readlink(t.join("link"), Vec::new()))),
    ("readlink in a private one", |t| said(readlink(t.join("priv/l"), Vec::new()))),
    ("access for reading", |t| said(access(t.join("group"), rustix::fs::Access::READ_OK))),
    ("access for writing", |t| said(access(t.join("read"), rustix::fs::Access::WRITE_OK))),
    ("access for running", |t| said(access(t.join("run"), rustix::fs::Access::EXEC_OK))),
    ("access for running what is no program", |t| said(access(t.join("read"), rustix::fs::Access::EXEC_OK))),
    ("mkdir in a public directory", |t| said(mkdir(t.join("pub/new"), mode(0o755)))),
    ("mkdir in a sticky one", |t| said(mkdir(t.join("sticky/new"), mode(0o755)))),
    ("mkdir in a group's", |t| said(mkdir(t.join("sgid/new"), mode(0o755)))),
    ("symlink in a private one", |t| said(symlink("x", t.join("priv/new")))),
    ("symlink in a sticky one", |t| said(symlink("x", t.join("sticky/new")))),
    ("pipe in a sticky one", |t| said(mknodat(CWD, t.join("sticky/new"), FileType::Fifo, mode(0o600), 0))),
    ("device in a sticky one", |t| {
        said(mknodat(CWD, t.join("sticky/new"), FileType::CharacterDevice, mode(0o600), rustix::fs::makedev(1, 3)))
    }),
    ("link an open file", |t| said(link(t.join("open"), t.join("sticky/new")))),
    ("link into a private one", |t| said(link(t.join("open"), t.join("priv/new")))),
    ("unlink in a public directory", |t| said(unlink(t.join("pub/f")))),
    ("unlink in a private one", |t| said(unlink(t.join("priv/f")))),
    ("unlink in a drop box", |t| said(unlink(t.join("drop/f")))),
    ("unlink the owner's in a sticky one", |t| said(unlink(t.join("sticky/owner")))),
    ("unlink the other's in a sticky one", |t| said(unlink(t.join("sticky/other")))),
    ("unlink in a group's", |t| said(unlink(t.join("sgid/f")))),
    ("unlink in what can be listed alone", |t| said(unlink(t.join("listed/f")))),
    ("rmdir in a public directory", |t| said(rmdir(t.join("pub/d")))),
    ("rmdir in a sticky one", |t| said(rmdir(t.join("sticky/d")))),
    ("rename in a public directory", |t| said(rename(t.join("pub/f"), t.join("pub/g")))),
    ("rename the owner's in a sticky one", |t| said(rename(t.join("sticky/owner"), t.join("sticky/g")))),
    ("rename over the owner's in a sticky one", |t| said(rename(t.join("sticky/other"), t.join("sticky/owner")))),
    ("rename out of a drop box", |t| said(rename(t.join("drop/f"), t.join("sgid/g")))),
    ("rename into a private one", |t| said(rename(t.join("drop/f"), t.join("priv/g")))),
    ("move a directory of the owner", |t| said(rename(t.join("drop/d"), t.join("sgid/d")))),
    ("exchange in a sticky one", |t| swap(t.join("sticky/other"), t.join("sticky/owner"))),
    ("exchange in a group's", |t| swap(t.join("sgid/f"), t.join("sgid/g"))),
    ("chmod a file", |t| said(chmod(t.join("read"), mode(0o640)))),
    ("chmod with setuid and setgid", |t| said(chmod(t.join("read"), mode(0o6755)))),
    ("chmod of a group's file with setgid", |t| said(chmod(t.join("group"), mode(0o2770)))),
    ("chmod a directory", |t| said(chmod(t.join("pub"), mode(0o1777)))),
    ("chown to oneself", |t| said(chown(t.join("read"), Some(getuid()), None))),
    ("chown to somebody", |t| said(chown(t.join("read"), uid(77), None))),
    ("chgrp to a group", |t| said(chown(t.join("read"), None, gid(GROUP)))),
    ("chgrp to a foreign group", |t| said(chown(t.join("read"), None, gid(77)))),
    ("chown of a program with setuid", |t| said(chown(t.join("set"), Some(getuid()), gid(GROUP)))),
    ("times of now", |t| said(utimensat(CWD, t.join("open"), &now(), AtFlags::empty()))),
    ("times of now of a readable file", |t| said(utimensat(CWD, t.join("read"), &now(), AtFlags::empty()))),
    ("times of then", |t| said(utimensat(CWD, t.join("open"), &at(5), AtFlags::empty()))),
    ("change a size", |t| size(t.join("group"), 3)),
    ("change a secret's size", |t| size(t.join("secret"), 3)),
    ("write a program with setuid", |t| writes(t.join("set"))),
    ("cut a program with setuid", |t| size(t.join("set"), 1)),
    ("set an attribute", |t| said(setxattr(t.join("group"), "user.y", b"1", XattrFlags::empty()))),
    ("set an attribute of a readable file", |t| said(setxattr(t.join("read"), "user.y", b"1", XattrFlags::empty()))),
    ("set an attribute of a sticky directory", |t| {
        said(setxattr(t.join("sticky"), "user.y", b"1", XattrFlags::empty()))
    }),
    ("set a trusted attribute", |t| said(setxattr(t.join("open"), "trusted.y", b"1", XattrFlags::empty()))),
    ("set a security attribute", |t| said(setxattr(t.join("open"), "security.y", b"1", XattrFlags::empty()))),
    ("get an attribute", |t| value(t.join("read"), "user.x")),
    ("get a secret's attribute", |t| value(t.join("secret"), "user.x")),
    ("get a trusted attribute", |t| value(t.join("read"), "trusted.x")),
    ("remove an attribute", |t| said(removexattr(t.join("read"), "user.x"))),
    ("list attributes", |t| said(listxattr(t.join("secret"), &mut [0; 256]))),
];

/// Makes the files that the calls use. `shift` is added to all numbers of users and groups.
fn plant(top: &Path, shift: u32) {
    fs::create_dir(top).expect("mkdir");
    chmod(top, mode(0o755)).expect("chmod");
    let file = |name: &str, bits: u32, owner: u32, group: u32| {
        fs::write(top.join(name), b"content").expect("write");
        chown(top.join(name), uid(owner + shift), gid(group + shift)).expect("chown");
        chmod(top.join(name), mode(bits)).expect("chmod");
    };
    let dir = |name: &str, bits: u32, owner: u32, group: u32| {
        mkdir(top.join(name), mode(0o755)).expect("mkdir");
        chown(top.join(name), uid(owner + shift), gid(group + shift)).expect("chown");
        chmod(top.join(name), mode(bits)).expect("chmod");
    };
    file("open", 0o666, OWNER, OWNER);
    file("read", 0o644, OWNER, OWNER);
    file("secret", 0o600, OWNER, OWNER);
    file("group", 0o660, 0, GROUP);
    file("none", 0, OWNER, OWNER);
    file("odd", 0o066, OWNER, OWNER);
    file("run", 0o755, OWNER, OWNER);
    for name in ["read", "secret"] {
        setxattr(top.join(name), "user.x", b"value", XattrFlags::empty()).expect("setxattr");
        setxattr(top.join(name), "trusted.x", b"value", XattrFlags::empty()).expect("setxattr");
    }
    let linked = |to: &str, at: PathBuf| {
        symlink(to, &at).expect("symlink");
        rustix::fs::chownat(CWD, at, uid(shift), gid(shift), AtFlags::SYMLINK_NOFOLLOW).expect("chown");
    };
    chown(top, uid(shift), gid(shift)).expect("chown");
    linked("secret", top.join("link"));
    for (name, bits, group) in [
        ("pub", 0o755, OWNER),
        ("priv", 0o700, OWNER),
        ("drop", 0o733, OWNER),
        ("listed", 0o744, OWNER),
        ("sgid", 0o2775, GROUP),
    ] {
        dir(name, 0o755, OWNER, group);
        for inner in ["f", "g"] {
            file(&format!("{name}/{inner}"), 0o644, OWNER, OWNER);
        }
        dir(&format!("{name}/d"), 0o755, OWNER, OWNER);
        linked("f", top.join(name).join("l"));
        chmod(top.join(name), mode(bits)).expect("chmod");
    }
    unlink(top.join("sgid/g")).expect("unlink");
    rmdir(top.join("sgid/d")).expect("rmdir");
    file("sgid/h", 0o644, OTHER, OTHER);
    dir("sticky", 0o1777, 0, 0);
    dir("sticky/d", 0o755, OWNER, OWNER);
    file("sticky/owner", 0o644, OWNER, OWNER);
    file("sticky/other", 0o644, OTHER, OTHER);
    file("set", 0o6777, OWNER, GROUP);
}

/// Everything below `top`, by name: kind, mode, owners without the addition to their numbers, links of files, and
/// length of files.
fn picture(top: &Path, shift: u32) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![top.to_path_buf()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).expect("stat");
        let (kind, is_dir) = (meta.file_type(), meta.is_dir());
        let kind = if kind.is_fifo() {
            'p'
        } else if kind.is_char_device() {
            'c'
        } else if kind.is_symlink() {
            'l'
        } else if is_dir {
            'd'
        } else {
            'f'
        };
        let (links, len) = if is_dir { (0, 0) } else { (meta.nlink(), meta.len()) };
        let text = format!(
            "{kind} {:o} {}:{} {links} {len}",
            meta.mode() & 0o7777,
            meta.uid().wrapping_sub(shift),
            meta.gid().wrapping_sub(shift)
        );
        all.insert(path.strip_prefix(top).expect("below").display().to_string(), text);
        if is_dir {
            left.extend(fs::read_dir(&path).expect("list").map(|e| e.expect("entry").path()));
        }
    }
    all
}

/// The result of `call` for a user, on a thread that has become him.
fn as_user(user: u32, call: impl FnOnce() -> Said + Send) -> Said {
    std::thread::scope(|s| {
        let run = || {
            let groups = if user == OWNER { vec![Gid::from_raw(GROUP)] } else { Vec::new() };
            rustix::thread::set_thread_groups(&groups).expect("setgroups");
            rustix::thread::set_thread_gid(Gid::from_raw(user)).expect("setgid");
            rustix::thread::set_thread_uid(Uid::from_raw(user)).expect("setuid");
            call()
        };
        s.spawn(run).join().expect("the call returns")
    })
}

/// Compares calls on a mount with the same calls on the machine's own file system.
pub(crate) struct Versus<'a> {
    /// The folder in which the trees are made.
    pub planted: &'a Path,
    /// The folder in which the calls are made.
    pub called: &'a Path,
    /// The folder of the trees on the machine's own file system.
    pub own: &'a Path,
    /// The folder of the calls there.
    pub own_called: &'a Path,
    /// The user who calls, and the user that he counts as on the servers.
    pub users: &'a [(u32, u32)],
    /// Whether root of the mount with the calls sees everything; then the results are inspected there too.
    pub sees: bool,
    /// The offset that is added to numbers of users and groups where trees are made.
    pub shift: u32,
    /// Whether a call that is refused there may be refused with another errno here.
    pub may_differ: fn(&str, u32, &Said) -> bool,
}

/// Makes each call by each user on the mount and on the machine's own file system, and compares the results and the
/// state afterwards.
fn compare(planted: &Path, called: &Path, own: &Path) {
    let users = [(0, 0), (OWNER, OWNER), (OTHER, OTHER)];
    Versus { planted, called, own, own_called: own, users: &users, sees: true, shift: 0, may_differ: |_, _, _| false }
        .compare();
}

impl Versus<'_> {
    pub(crate) fn compare(&self) {
        let Versus { planted, called, own, own_called, users, sees, shift, may_differ } = *self;
        let mut odd = Vec::new();
        // If a call has changed nothing, its tree serves the next call.
        let mut untouched: Option<(String, BTreeMap<String, String>)> = None;
        for (number, (what, call)) in CALLS.iter().enumerate() {
            for &(user, counts) in users {
                let (name, before) = untouched.take().unwrap_or_else(|| {
                    let name = format!("t{number}-{user}");
                    plant(&planted.join(&name), shift);
                    plant(&own.join(&name), 0);
                    let before = picture(&own.join(&name), 0);
                    (name, before)
                });
                let there = own.join(&name);
                let got = as_user(user, || call(&called.join(&name)));
                let want = as_user(counts, || call(&own_called.join(&name)));
                if got != want && !(want.is_err() && may_differ(what, user, &got)) {
                    odd.push(format!("{what} by {user}: {got:?}, elsewhere {want:?}"));
                }
                let want = picture(&there, 0);
                let too = (sees && planted != called).then_some((called, 0));
                for (seen, shift) in std::iter::once((planted, shift)).chain(too) {
                    let got = picture(&seen.join(&name), shift);
                    for key in got.keys().chain(want.keys()) {
                        if got.get(key) != want.get(key) {
                            odd.push(format!(
                                "{what} by {user}, {key:?}: {:?}, elsewhere {:?}",
                                got.get(key),
                                want.get(key)
                            ));
                        }
                    }
                }
                if want == before {
                    untouched = Some((name, before));
                }
            }
        }
        assert!(CALLS.len() >= 81 && odd.is_empty(), "{} calls\n{}", CALLS.len(), odd.join("\n"));
    }
}

/// A folder of the machine's own file system that everybody may search.
pub(crate) fn own_folder(place: &Place) -> PathBuf {
    chmod(place.path(""), mode(0o755)).expect("chmod");
    fs::create_dir(place.path("own")).expect("mkdir");
    place.path("own")
}

pub(crate) fn can_change_user() -> bool {
    getuid().is_root()
}

/// Goal: root, an owner and another user have the same rights as on the machine's own file system, with the same errno
/// and the same result. Method: `CALLS`, each in a tree of its own, by each of the three; on one mount. (Promise S8)
#[test]
fn permissions_are_those_of_linux() {
    if !can_change_user() {
        return;
    }
    let place = Place::new();
    let own = own_folder(&place);
    let up = place.up(&[]);
    compare(&place.mount(), &place.mount(), &own);
    up.stop();
}

/// Goal and method as above, with trees that one mount makes and calls on another. (Promise S8)
#[test]
fn permissions_hold_across_mounts() {
    if !can_change_user() {
        return;
    }
    let pair = Pair::new(1, &[], &[]);
    let own = own_folder(&pair.place);
    compare(&pair.a, &pair.b, &own);
    pair.stop();
}

/// Goal: if the groups of a thread change, its next request has the new groups, and the cached groups are those of the
/// right thread. Method: a thread changes its groups and its user between calls that need them. (Promise S8)
#[test]
fn new_groups_count_at_once() {
    if !can_change_user() {
        return;
    }
    let pair = Pair::new(1, &[], &[]);
    chmod(pair.place.path(""), mode(0o755)).expect("chmod");
    for file in ["f", "g"] {
        fs::write(pair.a.join(file), b"x").expect("write");
        chown(pair.a.join(file), uid(0), gid(GROUP)).expect("chown");
        chmod(pair.a.join(file), mode(0o660)).expect("chmod");
    }
    for mount in [&pair.a, &pair.b] {
        std::thread::scope(|s| {
            s.spawn(|| {
                let reads = |file: &str| open(mount.join(file), OFlags::RDWR, Mode::empty()).map(drop);
                let groups = |groups: &[u32]| {
                    let groups: Vec<Gid> = groups.iter().map(|n| Gid::from_raw(*n)).collect();
                    rustix::thread::set_thread_groups(&groups).expect("setgroups");
                };
                // The right to change groups stays with the real user.
                let user = |n: u32| {
                    rustix::thread::set_thread_res_uid(None, uid(n), None).expect("setuid");
                };
                groups(&[1]);
                for _ in 0..3 {
                    user(OTHER);
                    assert_eq!(reads("f"), Err(Errno::ACCESS));
                    user(0);
                    groups(&[1, GROUP]);
                    user(OTHER);
                    assert_eq!((reads("f"), reads("g")), (Ok(()), Ok(())));
                    user(0);
                    groups(&[1]);
                }
            });
        });
    }
    pair.stop();
}

/// Runs a shell script with some capabilities as a user.
fn with_capabilities(user: u32, caps: &str, script: &str, dir: &Path) {
    let user = user.to_string();
    let list = |sign: &str| {
        caps.split(' ').filter(|c| !c.is_empty()).map(|c| format!("{sign}{c}")).collect::<Vec<_>>().join(",")
    };
    let (given, bounding) = (format!("-all,{}", list("+")), format!("-all,{}", list("+")));
    let (given, bounding) = (given.trim_end_matches(','), bounding.trim_end_matches(','));
    let out = Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--inh-caps", given, "--ambient-caps", given])
        .args(["--bounding-set", bounding, "bash", "-euc", script])
        .env("D", dir)
        .output()
        .expect("setpriv (util-linux) runs");
    let text = [&out.stdout[..], &out.stderr[..]].concat();
    assert!(out.status.success(), "{user} with {caps:?}: {script}: {}", String::from_utf8_lossy(&text));
}

/// Goal: rights beyond those of a user come from capabilities. A backup with the capability to read everything reads
/// everything and writes nothing, a program with the capability to change owners changes them, and root without any
/// capability is an ordinary user. Method: programs with single capabilities, on the mount that made the files and on
/// another one. (Promise S8)
#[test]
fn capabilities_decide() {
    if !can_change_user() {
        return;
    }
    let pair = Pair::new(1, &[], &[]);
    chmod(pair.place.path(""), mode(0o755)).expect("chmod");
    for (n, at) in [&pair.a, &pair.b].into_iter().enumerate() {
        let (made, dir) = (pair.a.join(format!("d{n}")), at.join(format!("d{n}")));
        mkdir(&made, mode(0o700)).expect("mkdir");
        fs::write(made.join("f"), b"secret").expect("write");
        chmod(made.join("f"), mode(0o600)).expect("chmod");
        chown(made.join("f"), uid(1234), gid(1234)).expect("chown");
        chown(&made, uid(1234), gid(1234)).expect("chown");
        let no = |user, caps, what: &str| with_capabilities(user, caps, &format!("! {what} 2>/dev/null"), &dir);
        let yes = |user, caps, what: &str| with_capabilities(user, caps, what, &dir);
        no(4001, "", r#"cat "$D/f""#);
        no(4001, "", r#"ls "$D""#);
        yes(4001, "dac_read_search", r#"test "$(cat "$D/f")" = secret; test "$(ls "$D")" = f"#);
        no(4001, "dac_read_search", r#"eval 'echo x >"$D/f"'"#);
        no(4001, "dac_read_search", r#"touch "$D/n""#);
        yes(4001, "dac_override", r#"echo x >"$D/n"; rm "$D/n""#);
        no(4001, "dac_override", r#"chmod 644 "$D/f""#);
        no(4001, "dac_override", r#"chown 77:78 "$D/f""#);
        yes(4001, "fowner dac_read_search", r#"chmod 640 "$D/f"; test "$(stat -c %a "$D/f")" = 640"#);
        yes(4001, "chown dac_read_search", r#"chown 77:78 "$D/f"; test "$(stat -c %u:%g "$D/f")" = 77:78"#);
        yes(4001, "mknod dac_override", r#"mknod "$D/null" c 1 3; rm "$D/null""#);
        no(0, "", r#"cat "$D/f""#);
        no(0, "", r#"chmod 644 "$D/f""#);
        no(0, "", r#"chown 0:0 "$D/f""#);
        no(0, "", r#"rm -f "$D/f""#);
        yes(0, "dac_override", r#"test "$(cat "$D/f")" = secret"#);
        // A user name space gives all capabilities, none of which counts here.
        no(4001, "", r#"unshare -Ur cat "$D/f""#);
    }
    pair.stop();
}

/// Goal: a directory that is open can be listed, whatever happens to its permissions and its owner: these are checked
/// when it is opened. Method: a directory is opened by its owner. Then its permissions are removed, or it is given to
/// another user, by this mount and by another one. After that it is listed from the start and once more. (Promise S8)
#[test]
fn open_directories_are_listed_after_chmod() {
    if !can_change_user() {
        return;
    }
    let pair = Pair::new(1, &[], &[]);
    chmod(pair.place.path(""), mode(0o755)).expect("chmod");
    for (n, changer) in [&pair.a, &pair.b].into_iter().enumerate() {
        for gives_away in [false, true] {
            let name = format!("d{n}-{gives_away}");
            let dir = pair.a.join(&name);
            mkdir(&dir, mode(0o700)).expect("mkdir");
            fs::write(dir.join("f"), b"x").expect("write");
            chown(&dir, uid(OWNER), None).expect("chown");
            let (opened, changed) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
            std::thread::scope(|s| {
                let listed = s.spawn(|| {
                    as_user(OWNER, || {
                        let fd = open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
                        opened.wait();
                        changed.wait();
                        let fd = fd?;
                        let mut names = Vec::new();
                        for _ in 0..2 {
                            rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
                            let mut buf = Vec::with_capacity(4096);
                            let mut listing = rustix::fs::RawDir::new(&fd, buf.spare_capacity_mut());
                            while let Some(entry) = listing.next() {
                                names.push(entry?.file_name().to_string_lossy().into_owned());
                            }
                        }
                        names.sort();
                        assert_eq!(
                            open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).err(),
                            Some(Errno::ACCESS)
                        );
                        Ok(names.join(" "))
                    })
                });
                opened.wait();
                match gives_away {
                    true => chown(changer.join(&name), uid(OTHER), None).expect("chown"),
                    false => chmod(changer.join(&name), mode(0)).expect("chmod"),
                }
                changed.wait();
                assert_eq!(listed.join().expect("listed"), Ok(". . .. .. f f".into()), "{name}");
            });
        }
    }
    pair.stop();
}

/// Goal: `ls -l`, which requests a security attribute of each file, causes no message for files that have no
/// attributes. An attribute that is set is seen. Method: attributes of a hundred files that were listed, in sole and in
/// shared mode, and the counters of the mount.
#[test]
fn no_question_for_attributes_that_are_not_there() {
    let pair = Pair::new(1, &[], &[]);
    let lone = Place::new();
    let up = lone.up(&[]);
    for mount in [lone.mount(), pair.a.clone()] {
        for n in 0..100 {
            fs::write(mount.join(format!("f{n}")), b"").expect("write");
        }
        let look = || {
            for entry in fs::read_dir(&mount).expect("list").map(|e| e.expect("entry").path()) {
                stat(&entry).expect("stat");
                assert_eq!(value(entry.clone(), "security.selinux"), Err(Errno::NODATA));
                assert_eq!(listxattr(&entry, &mut [0; 64]), Ok(0));
            }
        };
        look();
        let before = counter(&mount, "server_calls");
        for entry in fs::read_dir(&mount).expect("list").map(|e| e.expect("entry").path()) {
            assert_eq!(value(entry, "security.selinux"), Err(Errno::NODATA));
        }
        let calls = counter(&mount, "server_calls") - before;
        assert!(calls < 50, "{calls} calls for 100 attributes that are not there");
        if can_change_user() {
            setxattr(mount.join("f7"), "security.selinux", b"label", XattrFlags::empty()).expect("setxattr");
            assert_eq!(value(mount.join("f7"), "security.selinux"), Ok("label".into()));
            assert_eq!(listxattr(mount.join("f7"), &mut [0; 64]), Ok(17));
            stat(mount.join("f7")).expect("stat");
            assert_eq!(value(mount.join("f7"), "security.selinux"), Ok("label".into()));
        }
    }
    up.stop();
    pair.stop();
}
