//! Tests of attributes that are answered without waiting, and of the cases in which they are not.

use super::*;

/// Goal: a mount that was notified of the removal of a directory does not find it by its inode either, although the
/// target of that inode receives the decision later. Method: directories on other targets than their names are removed
/// and read at the same moment.
#[test]
fn what_was_removed_is_not_shown() {
    with_server(98, 4, 1, async |_, c| {
        let mut apart = 0;
        for i in 0..16 {
            let text = format!("d{i}");
            let dir = c.mkdir(Ino::ROOT, &text).await.unwrap();
            assert_eq!(c.stat(dir).await.unwrap().nlink, 2);
            apart += u32::from(dir.target() != Ino::ROOT.target());
            c.rmdir(Ino::ROOT, &text).await.unwrap();
            assert_eq!(c.stat(dir).await, Err(Errno::Stale), "{text}");
        }
        assert!(apart > 4, "{apart} directories were apart");
    });
}

/// Goal: nothing is sent to a session that has ended. Method: a request that is sent after the goodbye.
#[test]
fn ended_sessions_are_told_nothing() {
    with_server(99, 1, 1, async |_, c| {
        assert!(c.stat(Ino::ROOT).await.is_ok());
        c.call(Request::Goodbye).await.unwrap();
        assert_eq!(c.stat(Ino::ROOT).await, Err(Errno::Io));
    });
}
