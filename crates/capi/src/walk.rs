//! Paths in a cluster, component by component.
//!
//! Owns: symbolic links, `.` and `..`, slashes at the end. Does not own: names and permissions, which the client
//! requests with the credentials of the caller.
//!
//! A path begins at the root if its first byte is a slash, and otherwise at the directory that it is passed with. The
//! same is true of the target of a symbolic link. No path leads above the root.

use crate::failure::{Done, fail};
use amphi_client::{Client, Ctx};
use amphi_types::{Attr, Errno, Ino, Kind};

/// Longest path, including its NUL byte, as in the kernel.
const PATH_MAX: usize = 4096;
/// Symbolic links that are followed on the way of one path.
const LINKS_MAX: usize = 40;

/// The end of a path.
#[derive(Debug)]
pub(crate) enum Last {
    /// A name in a directory.
    Name { dir: Ino, name: Vec<u8>, slash: bool },
    /// `.` or `/`: a directory without a name here.
    Dot(Ino),
    /// `..`.
    DotDot(Ino),
}

struct Walk<'a> {
    client: &'a Client,
    ctx: &'a Ctx,
    at: Ino,
    /// The remaining components, the next one last.
    rest: Vec<Vec<u8>>,
    /// The end of the path has to be a directory.
    slash: bool,
    links: usize,
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
}

impl<'a> Walk<'a> {
    fn new(client: &'a Client, ctx: &'a Ctx, base: Ino, path: &[u8]) -> Done<Walk<'a>> {
        match path.len() {
            0 => return fail(libc::ENOENT),
            PATH_MAX.. => return fail(libc::ENAMETOOLONG),
            _ => {}
        }
        let at = if path.starts_with(b"/") { client.root() } else { base };
        let slash = path.ends_with(b"/");
        Ok(Walk { client, ctx, at, rest: components(path).rev().collect(), slash, links: 0 })
    }

    fn lookup(&self, name: &[u8]) -> Done<Attr> {
        Ok(self.client.lookup(self.ctx, self.at, name).wait(None)?)
    }

    /// Goes where a symbolic link leads.
    fn follow(&mut self, link: Ino) -> Done<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return fail(libc::ELOOP);
        }
        let target = self.client.readlink(self.ctx, link).wait(None)?;
        if target.is_empty() {
            return fail(libc::ENOENT);
        }
        if target.starts_with(b"/") {
            self.at = self.client.root();
        }
        if self.rest.is_empty() {
            self.slash |= target.ends_with(b"/");
        }
        self.rest.extend(components(&target).rev());
        Ok(())
    }

    /// Walks to the last component.
    fn last(&mut self) -> Done<Last> {
        loop {
            let Some(name) = self.rest.pop() else { return Ok(Last::Dot(self.at)) };
            if self.rest.is_empty() {
                return Ok(match &name[..] {
                    b"." => Last::Dot(self.at),
                    b".." => Last::DotDot(self.at),
                    _ => Last::Name { dir: self.at, name, slash: self.slash },
                });
            }
            if name == b"." {
                continue;
            }
            let attr = self.lookup(&name)?;
            match attr.kind {
                Kind::Symlink => self.follow(attr.ino)?,
                Kind::Dir => self.at = attr.ino,
                _ => return fail(libc::ENOTDIR),
            }
        }
    }

    /// Walks to the end.
    fn end(&mut self, follow: bool) -> Done<Attr> {
        loop {
            let (attr, slash) = match self.last()? {
                Last::Dot(ino) => (self.client.getattr(self.ctx, ino).wait(None)?, false),
                Last::DotDot(dir) => {
                    self.at = dir;
                    (self.lookup(b"..")?, false)
                }
                Last::Name { dir, name, slash } => {
                    self.at = dir;
                    (self.lookup(&name)?, slash)
                }
            };
            if attr.kind == Kind::Symlink && (follow || slash) {
                self.follow(attr.ino)?;
                continue;
            }
            if self.slash && attr.kind != Kind::Dir {
                return fail(libc::ENOTDIR);
            }
            return Ok(attr);
        }
    }
}

/// The last name of a path and its directory, for calls that make or remove names.
pub(crate) fn last(client: &Client, ctx: &Ctx, base: Ino, path: &[u8]) -> Done<Last> {
    Walk::new(client, ctx, base, path)?.last()
}

/// The object to which a path leads.
pub(crate) fn end(client: &Client, ctx: &Ctx, base: Ino, path: &[u8], follow: bool) -> Done<Attr> {
    Walk::new(client, ctx, base, path)?.end(follow)
}

/// The place where a file is opened that may have to be made.
pub(crate) enum Found {
    /// The path leads to an inode.
    There(Attr),
    /// The last component does not exist.
    Absent { dir: Ino, name: Vec<u8> },
}

/// The inode of a path, or its end if only its last name is missing; a symbolic link at the end is followed.
pub(crate) fn found(client: &Client, ctx: &Ctx, base: Ino, path: &[u8], follow: bool) -> Done<Found> {
    let mut walk = Walk::new(client, ctx, base, path)?;
    loop {
        match walk.last()? {
            Last::Name { dir, name, slash } => {
                walk.at = dir;
                let attr = match client.lookup(ctx, dir, &name).wait(None) {
                    Ok(attr) => attr,
                    Err(Errno::NoEnt) if !slash => return Ok(Found::Absent { dir, name }),
                    Err(e) => return Err(e.into()),
                };
                match attr.kind {
                    Kind::Symlink if follow || slash => walk.follow(attr.ino)?,
                    Kind::Dir => return Ok(Found::There(attr)),
                    _ if slash => return fail(libc::ENOTDIR),
                    _ => return Ok(Found::There(attr)),
                }
            }
            Last::Dot(ino) => return Ok(Found::There(client.getattr(ctx, ino).wait(None)?)),
            Last::DotDot(dir) => return Ok(Found::There(client.lookup(ctx, dir, b"..").wait(None)?)),
        }
    }
}
