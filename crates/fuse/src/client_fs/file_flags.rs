//! The flags and the project of `chattr` and `lsattr`, which the kernel sends as device control (`FS_IOC_GETFLAGS` and
//! its relatives).
//!
//! Owns: the two forms in which Linux writes the flags. Does not own: the effect of flags (`meta::perm`), projects
//! (`types::owner`).
//!
//! A file made in a directory with a project belongs to that project. So such a directory always shows the flag which
//! on other file systems says that a directory passes its project on. The flag cannot be set or cleared.

use super::ClientFs;
use crate::calls::{IoctlCall, IoctlReply};
use crate::request::Caller;
use amphi_types::{Errno, FileFlags, Ino, Result, SetAttr};

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` (`linux/fs.h`), whose argument is a `u32` whatever their number says.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`: a `struct fsxattr` of 28 bytes, whose first field has the flags.
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;
const XFLAGS_BYTES: usize = 28;
/// The place of the project in a `struct fsxattr`.
const PROJECT: std::ops::Range<usize> = 12..16;
/// `FS_XFLAG_PROJINHERIT`, and the same among the flags of the first form (`FS_PROJINHERIT_FL`).
const INHERITS: u32 = 0x200;
const INHERITS_SHORT: u32 = 0x2000_0000;

/// Each flag in the first and in the second form.
const BITS: [(FileFlags, u32, u32); 2] = [(FileFlags::IMMUTABLE, 0x10, 0x08), (FileFlags::APPEND, 0x20, 0x10)];

/// A command on the flags of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Get,
    GetLong,
    Set(FileFlags),
    SetLong(FileFlags, u32),
}

impl Command {
    /// The command of a device control call, if it is one of these commands.
    ///
    /// Errors: `NotSupported` for flags that are not kept here, `Inval` for a short argument.
    pub(super) fn of(call: &IoctlCall<'_>) -> Result<Option<Command>> {
        let first = || call.input.first_chunk::<4>().map(|word| u32::from_ne_bytes(*word)).ok_or(Errno::Inval);
        Ok(Some(match call.cmd {
            cmd if GET_FLAGS.contains(&cmd) => Command::Get,
            GET_XFLAGS => Command::GetLong,
            cmd if SET_FLAGS.contains(&cmd) => Command::Set(decode(first()? & !INHERITS_SHORT, |(_, bit, _)| bit)?),
            SET_XFLAGS => {
                // Sizes of extents are not stored.
                let has_sizes = |bytes: &[u8]| [&bytes[4..12], &bytes[16..20]].concat().iter().any(|byte| *byte != 0);
                if call.input.len() < XFLAGS_BYTES || has_sizes(call.input) {
                    return Err(Errno::NotSupported);
                }
                let project = call.input[PROJECT].try_into().map(u32::from_ne_bytes).map_err(|_| Errno::Inval)?;
                Command::SetLong(decode(first()? & !INHERITS, |(_, _, bit)| bit)?, project)
            }
            _ => return Ok(None),
        }))
    }
}

fn decode(word: u32, bit: impl Fn((FileFlags, u32, u32)) -> u32) -> Result<FileFlags> {
    let (mut flags, mut rest) = (FileFlags::NONE, word);
    for row in BITS {
        if rest & bit(row) != 0 {
            flags = flags.and(row.0);
            rest &= !bit(row);
        }
    }
    if rest == 0 { Ok(flags) } else { Err(Errno::NotSupported) }
}

fn encode(flags: FileFlags, bit: impl Fn((FileFlags, u32, u32)) -> u32) -> u32 {
    BITS.into_iter().filter(|row| flags.has(row.0)).map(bit).sum()
}

impl ClientFs {
    pub(super) fn file_flags(&self, caller: &Caller<'_>, ino: Ino, command: Command) -> Result<IoctlReply> {
        let reply = |output| Ok(IoctlReply { result: 0, output });
        let set = match command {
            Command::Set(flags) => Some(SetAttr { flags: Some(flags), ..SetAttr::default() }),
            Command::SetLong(flags, project) => {
                let before = self.asked(caller, |ctx| self.client.project(ctx, ino))?;
                let project = (project != before).then_some(project);
                Some(SetAttr { flags: Some(flags), project, ..SetAttr::default() })
            }
            Command::Get | Command::GetLong => None,
        };
        if let Some(set) = set {
            let _changing = self.change(caller, ino);
            self.asked(caller, |ctx| self.client.setattr(ctx, ino, set, None))?;
            return reply(Vec::new());
        }
        let flags = self.asked(caller, |ctx| self.client.file_flags(ctx, ino))?;
        if command == Command::Get {
            return reply(encode(flags, |(_, bit, _)| bit).to_ne_bytes().to_vec());
        }
        let mut output = vec![0; XFLAGS_BYTES];
        let project = self.asked(caller, |ctx| self.client.project(ctx, ino))?;
        let inherits = if project == 0 { 0 } else { INHERITS };
        output[..4].copy_from_slice(&(encode(flags, |(_, _, bit)| bit) | inherits).to_ne_bytes());
        output[PROJECT].copy_from_slice(&project.to_ne_bytes());
        reply(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Handle;

    /// Goal: both forms name the same flags, and unknown ones are refused. Method: conversions in both directions, and
    /// then one unknown bit.
    #[test]
    fn both_forms() {
        let both = FileFlags::APPEND.and(FileFlags::IMMUTABLE);
        for flags in [FileFlags::NONE, FileFlags::APPEND, FileFlags::IMMUTABLE, both] {
            for bit in [(|row| row.1) as fn((FileFlags, u32, u32)) -> u32, |row| row.2] {
                assert_eq!(decode(encode(flags, bit), bit), Ok(flags));
                assert_eq!(decode(encode(flags, bit) | 0x40, bit), Err(Errno::NotSupported));
            }
        }
        fn call(cmd: u32, input: &[u8]) -> Result<Option<Command>> {
            let call =
                IoctlCall { handle: Handle(1), cmd, arg: 0, input, output_max: 28, on_directory: false, compat: false };
            Command::of(&call)
        }
        assert_eq!(call(SET_FLAGS[0], &0x20u32.to_ne_bytes()), Ok(Some(Command::Set(FileFlags::APPEND))));
        assert_eq!(call(SET_FLAGS[0], &[0; 3]), Err(Errno::Inval));
        let mut long = [0; XFLAGS_BYTES];
        long[..4].copy_from_slice(&(INHERITS | 0x10).to_ne_bytes());
        long[PROJECT].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!(call(SET_XFLAGS, &long), Ok(Some(Command::SetLong(FileFlags::APPEND, 7))));
        assert_eq!(call(SET_XFLAGS, &long[..20]), Err(Errno::NotSupported));
        long[4] = 1;
        assert_eq!(call(SET_XFLAGS, &long), Err(Errno::NotSupported), "a size of extents");
        assert_eq!(call(GET_XFLAGS, &[]), Ok(Some(Command::GetLong)));
        assert_eq!(call(7, &[]), Ok(None));
    }
}
