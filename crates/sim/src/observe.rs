//! `Tree`: what a directory and everything below it hold, read through a mount.
//!
//! Owns: the walk. Does not own: the expected state.

use crate::op::{Name, Seen};
use crate::perform::{list, read, seen, xattr_names};
use crate::reference::{Body, Reference};
use amphi_client::{Client, Ctx, OpenFlags};
use amphi_types::{Errno, Ino, Kind};
use std::collections::BTreeMap;

/// Bytes of one read of the walk; odd, so that reads are not aligned.
const READ_BYTES: u64 = 1_000_003;

/// The contents of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Bytes.
    File(Vec<u8>),
    /// Entries.
    Dir(BTreeMap<Name, Ino>),
    /// Target.
    Symlink(Vec<u8>),
    /// Nothing.
    Node,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    /// Attributes.
    pub seen: Seen,
    /// Content.
    pub body: Found,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Vec<u8>>,
}

/// A directory and everything below it.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The top.
    pub root: Ino,
    /// Inodes by number.
    pub nodes: BTreeMap<Ino, Node>,
    /// One path of each, for messages.
    paths: BTreeMap<Ino, String>,
}

impl Tree {
    /// Nothing read yet.
    pub fn empty(root: Ino) -> Tree {
        Tree { root, nodes: BTreeMap::new(), paths: BTreeMap::new() }
    }

    /// A path of an inode.
    pub fn path(&self, ino: Ino) -> String {
        self.paths.get(&ino).cloned().unwrap_or_else(|| format!("<{ino}>"))
    }

    /// The inode to which a name leads.
    pub fn find(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        match &self.nodes.get(&dir)?.body {
            Found::Dir(entries) => entries.get(name).copied(),
            _ => None,
        }
    }

    /// Reads everything below `root`.
    ///
    /// Errors: a sentence with the path at which a call failed.
    pub async fn read(client: &Client, root: Ino, name: &str) -> Result<Tree, String> {
        let ctx = Ctx::root();
        let mut tree = Tree::empty(root);
        tree.paths.insert(root, name.to_string());
        let mut left = vec![root];
        while let Some(ino) = left.pop() {
            let path = tree.path(ino);
            let at = |what: &'static str| {
                let path = path.clone();
                move |e: Errno| format!("{path} (inode {ino}): {what}: {e}")
            };
            let attr = client.getattr(&ctx, ino).await.map_err(at("getattr"))?;
            let body = match attr.kind {
                Kind::Dir => {
                    let names = list(client, &ctx, ino, 64, true).await.map_err(at("readdir"))?;
                    let entries: BTreeMap<Name, Ino> = names.iter().cloned().collect();
                    if entries.len() != names.len() {
                        return Err(format!("{path}: a name is listed twice"));
                    }
                    for (name, child) in &entries {
                        let found = client.lookup(&ctx, ino, name).await.map_err(at("lookup of an entry"))?;
                        if found.ino != *child {
                            return Err(format!("{path}: listed is {child}, looked up {}", found.ino));
                        }
                        if !tree.paths.contains_key(child) {
                            let known = format!("{path}/{}", String::from_utf8_lossy(name));
                            tree.paths.insert(*child, known);
                            left.push(*child);
                        } else if found.kind == Kind::Dir {
                            return Err(format!("{path}: directory {child} has two names"));
                        }
                    }
                    Found::Dir(entries)
                }
                Kind::File => {
                    let file = client.open(&ctx, ino, OpenFlags::READ).await.map_err(at("open"))?;
                    let mut bytes = Vec::new();
                    loop {
                        let offset = bytes.len() as u64;
                        let direct = ino.local() % 2 == 0;
                        let part = read(client, &ctx, &file, offset, READ_BYTES, direct).await.map_err(at("read"))?;
                        if part.is_empty() {
                            break;
                        }
                        bytes.extend_from_slice(&part);
                    }
                    let (len, size) = (bytes.len() as u64, attr.size);
                    if len != size {
                        return Err(format!("{path}: {len} bytes read, the size is {size}"));
                    }
                    Found::File(bytes)
                }
                Kind::Symlink => Found::Symlink(client.readlink(&ctx, ino).await.map_err(at("readlink"))?),
                _ => Found::Node,
            };
            let mut xattrs = BTreeMap::new();
            if matches!(attr.kind, Kind::File | Kind::Dir) {
                for name in xattr_names(client, &ctx, ino).await.map_err(at("listxattr"))? {
                    let value = client.getxattr(&ctx, ino, &name).await.map_err(at("getxattr"))?;
                    xattrs.insert(name, value);
                }
            }
            tree.nodes.insert(ino, Node { seen: seen(&attr), body, xattrs });
        }
        Ok(tree)
    }

    /// Every difference from the reference.
    pub fn differences(&self, want: &Reference) -> Vec<String> {
        let mut wrong = Vec::new();
        for (ino, node) in &want.nodes {
            // An open inode without a name cannot be found by a walk.
            if node.nlink > 0 && !self.nodes.contains_key(ino) {
                wrong.push(format!("inode {ino} with names {:?} is missing", want.names_of(*ino)));
            }
        }
        for (ino, found) in &self.nodes {
            let path = self.path(*ino);
            let Ok(node) = want.node(*ino) else {
                wrong.push(format!("{path} (inode {ino}) must not be there"));
                continue;
            };
            if let Ok(seen) = want.seen(*ino) {
                wrong.extend(
                    attr_difference(&found.seen, &seen, (node.mtime, node.ctime)).map(|d| format!("{path}: {d}")),
                );
            }
            match (&found.body, &node.body) {
                (Found::File(a), Body::File(b)) => {
                    wrong.extend(bytes_difference(a, b).map(|d| format!("{path} (inode {ino}): {d}")));
                }
                (Found::Dir(a), Body::Dir(b, _)) if a == b => {}
                (Found::Symlink(a), Body::Symlink(b)) if a == b => {}
                (Found::Node, Body::Node) => {}
                (a, _) => wrong.push(format!("{path}: holds {a:?}")),
            }
            if found.xattrs != node.xattrs {
                wrong.push(format!("{path}: extended attributes {:?}", found.xattrs.keys()));
            }
        }
        wrong
    }
}

/// The difference between attributes, if there is one. Times lie within windows.
pub fn attr_difference(
    found: &Seen,
    want: &Seen,
    (mtime, ctime): (crate::reference::Window, crate::reference::Window),
) -> Option<String> {
    let times_aside = Seen { mtime: want.mtime, ctime: want.ctime, ..*found };
    if times_aside != *want {
        return Some(format!("attributes are {found:?}, should be {want:?}"));
    }
    let inside = |t, w: crate::reference::Window| w.0 <= t && t <= w.1;
    if !inside(found.mtime, mtime) {
        return Some(format!("mtime is {:?}, should be within {mtime:?}", found.mtime));
    }
    (!inside(found.ctime, ctime)).then(|| format!("ctime is {:?}, should be within {ctime:?}", found.ctime))
}

/// The difference between bytes, if there is one.
pub fn bytes_difference(found: &[u8], want: &[u8]) -> Option<String> {
    if found.len() != want.len() {
        return Some(format!("{} bytes, should be {}", found.len(), want.len()));
    }
    let first = found.iter().zip(want).position(|(a, b)| a != b)?;
    let count = found.iter().zip(want).filter(|(a, b)| a != b).count();
    let last = found.iter().zip(want).rposition(|(a, b)| a != b).unwrap_or(first);
    let zeros = found[first..=last].iter().all(|b| *b == 0);
    let what = if zeros { ", they are zeros" } else { "" };
    Some(format!("{count} of {} bytes differ, from {first} to {last}{what}", found.len()))
}
