//! Finding the object that a number stands for, for the duration of a call.

use crate::failure::{Done, fail};
use crate::object::{Dir, File, Fs, Kind, Object};
use crate::queue::Queue;
use crate::registry::with;
use std::sync::Arc;

/// A file system whose client, if it has one, has not ended. Errors: `ENOTCONN`.
fn running_fs(fs: &Fs) -> Done<Fs> {
    if let Fs::Cluster(cluster) = fs {
        cluster.check_running()?;
    }
    Ok(fs.clone())
}

fn running_dir(dir: &Dir) -> Done<Dir> {
    if let Dir::Cluster(open) = dir {
        open.fs.check_running()?;
    }
    Ok(dir.clone())
}

/// The start of a path: a file system, at its root, or an open directory.
pub(crate) enum At {
    Fs(Fs),
    Dir(Dir),
}

pub(crate) fn at(number: i64) -> Done<At> {
    with(number, &[Kind::Fs, Kind::Dir], |object| match object {
        Object::Fs(fs) => running_fs(fs).map(At::Fs),
        Object::Dir(dir) => running_dir(dir).map(At::Dir),
        _ => fail(libc::EBADF),
    })
}

pub(crate) fn fs(number: i64) -> Done<Fs> {
    with(number, &[Kind::Fs], |object| match object {
        Object::Fs(fs) => running_fs(fs),
        _ => fail(libc::EBADF),
    })
}

pub(crate) fn file(number: i64) -> Done<File> {
    with(number, &[Kind::File], |object| match object {
        Object::File(file) => {
            if let File::Cluster(open) = file {
                open.fs.check_running()?;
            }
            Ok(file.clone())
        }
        _ => fail(libc::EBADF),
    })
}

pub(crate) fn dir(number: i64) -> Done<Dir> {
    with(number, &[Kind::Dir], |object| match object {
        Object::Dir(dir) => running_dir(dir),
        _ => fail(libc::EBADF),
    })
}

pub(crate) fn queue(number: i64) -> Done<Arc<Queue>> {
    with(number, &[Kind::Queue], |object| match object {
        Object::Queue(queue) => Ok(queue.clone()),
        _ => fail(libc::EBADF),
    })
}

/// The path under which something was opened, for texts.
pub(crate) fn path_of(number: i64) -> String {
    let path = with(number, &[Kind::Fs, Kind::File, Kind::Dir], |object| {
        Ok(match object {
            Object::Fs(Fs::Cluster(cluster)) => cluster.name.clone(),
            Object::Fs(Fs::Node(node)) => node.name.clone(),
            Object::File(File::Cluster(file)) => file.path.clone(),
            Object::File(File::Node(file)) => file.path.clone(),
            Object::Dir(Dir::Cluster(dir)) => dir.path.clone(),
            Object::Dir(Dir::Node(dir)) => dir.path.clone(),
            Object::Queue(_) => String::new(),
        })
    });
    path.unwrap_or_else(|_| format!("handle {number:#x}"))
}
