//! `Signals`: the effect that the pending signals of a thread have on a call in which it waits.
//!
//! The kernel sends an INTERRUPT whenever a waiting thread is woken as for a signal, even if the program never sees a
//! signal. An example: while a thread starts a process, it blocks all signals for a moment. If another child ends just
//! then, its SIGCHLD is not dropped, although nobody needs it, but delivered to any other thread of the process. A
//! `rename` in that thread must not end with EINTR because of this.
//!
//! Owns: reading the masks of a thread. Does not own: how long a call continues after a signal (`front/patience`).

/// Signals that do nothing unless the program has a handler for them.
const SILENT: [i32; 4] = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];

/// The action that pending signals demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signals {
    /// The thread is being killed: its call has to end at once.
    Kill,
    /// A handler is to run, or the process is to stop: a call that waits long has to end.
    Handle,
    /// No signal concerns the thread, so its call continues.
    Nothing,
}

impl Signals {
    /// The pending signals of thread `tid`. A thread that cannot be looked at counts as one that is being killed.
    pub(crate) fn of(tid: u32) -> Signals {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status"));
        status.map_or(Signals::Kill, |status| Signals::read(&status))
    }

    fn read(status: &str) -> Signals {
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
        };
        let bit = |signal: i32| 1u64 << (signal - 1);
        let pending = mask("SigPnd:") | mask("ShdPnd:");
        // A signal that ends the process makes the kernel mark SIGKILL pending for each of its threads.
        if pending & bit(libc::SIGKILL) != 0 {
            return Signals::Kill;
        }
        let silent = SILENT.iter().fold(mask("SigIgn:"), |silent, signal| silent | bit(*signal)) & !mask("SigCgt:");
        if pending & !mask("SigBlk:") & !silent != 0 { Signals::Handle } else { Signals::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: signals that kill, that a program handles, and that concern no program are distinguished. Method: masks as
    /// the kernel writes them, and this thread.
    #[test]
    fn pending_masks() {
        let read = |own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64| {
            Signals::read(&format!(
                "Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
                 SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            ))
        };
        let (kill, alarm, child) = (1 << 8, 1 << 13, 1 << 16);
        assert_eq!(read(0, 0, 0, 0, alarm), Signals::Nothing);
        assert_eq!(read(kill, 0, u64::MAX, 0, 0), Signals::Kill);
        assert_eq!(read(0, kill | alarm, 0, 0, 0), Signals::Kill);
        assert_eq!(read(0, alarm, 0, 0, 0), Signals::Handle, "it ends the process");
        assert_eq!(read(alarm, 0, 0, 0, alarm), Signals::Handle);
        assert_eq!(read(alarm, 0, alarm, 0, alarm), Signals::Nothing, "it is blocked");
        assert_eq!(read(alarm, 0, 0, alarm, 0), Signals::Nothing, "it is ignored");
        assert_eq!(read(0, child, 0, 0, alarm), Signals::Nothing, "nobody wants to know of children");
        assert_eq!(read(0, child, 0, 0, child), Signals::Handle);
        assert_eq!(Signals::of(std::process::id()), Signals::Nothing);
        assert_eq!(Signals::of(u32::MAX), Signals::Kill, "there is no such thread");
    }
}
