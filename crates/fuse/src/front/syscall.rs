//! `Syscall`: the system call that a program's thread is in, as `/proc` shows it.
//!
//! `/proc` is read for the few requests that do not contain their system call. The call of a thread that this process
//! may not read is unknown, and so are calls of io_uring, which another thread may carry out.

use std::time::Duration;

/// Number of attempts. Number of attempts, because a thread that has just sent its request may not be asleep yet.
const LOOKS: u32 = 20;
const LOOK_PAUSE: Duration = Duration::from_micros(100);
/// Number of arguments of a call.
const ARGUMENTS: usize = 6;

/// A system call: its number, and its arguments as the registers hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Syscall {
    pub(crate) number: i64,
    arguments: [u64; ARGUMENTS],
}

impl Syscall {
    /// The system call in which thread `tid` is.
    #[expect(clippy::disallowed_methods, reason = "the kernel's clock, for a request that is looked at more closely")]
    pub(crate) fn of(tid: u32) -> Option<Syscall> {
        let place = format!("/proc/{tid}/syscall");
        for look in 0..LOOKS {
            let text = std::fs::read_to_string(&place).ok()?;
            if !text.starts_with("running") {
                return Syscall::parse(&text);
            }
            if look < LOOKS / 2 { std::thread::yield_now() } else { std::thread::sleep(LOOK_PAUSE) }
        }
        None
    }

    fn parse(text: &str) -> Option<Syscall> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; ARGUMENTS];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Syscall { number, arguments })
    }

    /// Returns whether the call makes or moves a name, so that it may hold locks of directories during lookups.
    pub(crate) fn changes_names(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        const OLD: &[i64] = &[
            libc::SYS_mkdir,
            libc::SYS_mknod,
            libc::SYS_symlink,
            libc::SYS_link,
            libc::SYS_rename,
            libc::SYS_renameat,
        ];
        #[cfg(not(target_arch = "x86_64"))]
        const OLD: &[i64] = &[];
        const NEW: &[i64] =
            &[libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_symlinkat, libc::SYS_linkat, libc::SYS_renameat2];
        OLD.contains(&self.number) || NEW.contains(&self.number)
    }

    /// The flags of a `pwritev2`.
    fn write_flags(&self) -> Option<i32> {
        (self.number == libc::SYS_pwritev2).then_some(self.arguments[ARGUMENTS - 1] as i32)
    }

    /// Returns whether the call is a `pwritev2` with this flag.
    pub(crate) fn writes_with(&self, flag: i32) -> bool {
        self.write_flags().is_some_and(|flags| flags & flag != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: system calls are parsed in the form in which the kernel writes them. Method: the lines of such a file, and
    /// this thread, which does not wait.
    #[test]
    fn calls_are_told_apart() {
        let number = libc::SYS_pwritev2;
        let line = format!("{number} 0x3 0x7ffd4c0a 0x1 0x0 0x0 0x10 0x7ffd4c09 0x7f2a\n");
        let call = Syscall::parse(&line).expect("a call");
        assert!(call.writes_with(libc::RWF_APPEND) && !call.writes_with(libc::RWF_DSYNC));
        let other = Syscall::parse("1 0x3 0x7ffd4c0a 0x1 0x0 0x0 0x10 0x7ffd4c09 0x7f2a\n").expect("a call");
        assert!(other.number == 1 && !other.writes_with(libc::RWF_APPEND));
        let rename = Syscall::parse(&line.replacen(&number.to_string(), &libc::SYS_renameat2.to_string(), 1));
        assert!(rename.expect("a call").changes_names() && !call.changes_names());
        assert_eq!(Syscall::parse("-1 0x7ffd4c09 0x7f2a\n"), None, "in no call");
        assert_eq!(Syscall::of(u32::MAX), None);
    }
}
