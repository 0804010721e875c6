//! Options of a mount as mount(8) names them.
//!
//! Owns: the words, and which of two opposites counts. Does not own: the effects of the words (`amphi_fuse`,
//! `amphi_client`).

use clap::ValueEnum;

/// A word of `--options`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "lower")]
pub enum MountWord {
    /// Nothing is changed through this mount, access times included
    Ro,
    /// Writes are permitted, the default
    Rw,
    /// Programs run without their setuid and setgid bits and capabilities
    NoSuid,
    /// Set-user-id programs take effect, the default for root
    Suid,
    /// No program is executed
    NoExec,
    /// Programs can be executed, the default
    Exec,
    /// Device files cannot be opened, the default
    NoDev,
    /// Devices can be opened; only root may choose this
    Dev,
    /// Only permission bits count for this mount's kernel; the servers still check access control lists
    NoAcl,
    /// Access control lists count as well, the default
    Acl,
    /// Reads do not renew access times (client.atime=none)
    NoAtime,
    /// They renew them if these are older than the last change or a day old, the default
    RelAtime,
    /// Other mounts see writes of this one at its next fsync, close or release of a file lock at the latest
    #[value(name = "consistency=commit")]
    Commit,
    /// They see them when the writes have returned, except for files that are set to commit consistency; the default
    #[value(name = "consistency=posix")]
    Posix,
}

/// Words in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub struct MountWords(pub Vec<MountWord>);

impl MountWords {
    /// The last of the two words in the list; `None` if it has neither.
    pub fn said(&self, yes: MountWord, no: MountWord) -> Option<bool> {
        self.0.iter().rev().find(|w| [yes, no].contains(w)).map(|w| *w == yes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MountWord::{Dev, Exec, NoExec, Ro, Rw};

    /// Goal: the last of two opposites counts. Method: a list.
    #[test]
    fn the_last_word_counts() {
        let words = MountWords(vec![Ro, Exec, Rw, NoExec]);
        assert_eq!((words.said(Ro, Rw), words.said(NoExec, Exec)), (Some(false), Some(true)));
        assert_eq!(words.said(Dev, MountWord::NoDev), None);
    }
}
