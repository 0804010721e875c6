//! Opens that arrive while another open of the same session ends.

use super::company::with_two;
use super::*;
use amphi_types::SetAttr;
use futures_util::future::join;

/// Goal: an open for writing revokes the attributes of other mounts. This holds even if its session had the file open
/// for writing when the open arrived, but no longer when the open has its turn, because others may have got the
/// attributes in between. Method: an open for writing waits behind another mount's change of the inode. Meanwhile the
/// session's first open is closed. The answer to the change lets that mount cache the attributes, which then have to be
/// revoked.
#[test]
fn an_open_behind_the_last_close_takes_the_attributes() {
    with_two(97, 1, 1, async |_, a, b| {
        let made = b.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await;
        let ino = made.expect("a file");
        let (_, tokens) = b.told(Request::GetAttr { ino }).await;
        assert!(tokens.attributes.is_some(), "who writes alone may cache");
        let env = b.held.env.borrow().clone().expect("its environment");
        b.held.deaf.set(true);
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let change = a.told(Request::SetAttr { ino, set });
        let reopen = async {
            let (target, id, keys) = b.held.revoked().await;
            let close = async {
                env.sleep(Duration::from_millis(1)).await;
                b.call(Request::Close { ino, access: RW, atime: None }).await.expect("closed");
                b.held.deaf.set(false);
                b.reply(&Push::Revoke { target, id, upto: 0, keys }).await;
            };
            join(b.inode(Request::Open { ino, access: RW, exec: false }), close).await.0.expect("open again")
        };
        let ((changed, tokens), _) = join(change, reopen).await;
        assert!(changed.is_ok() && tokens.attributes.is_some(), "nobody else wrote it then: {tokens:?}");
        let revoked =
            |push: &Push| matches!(push, Push::Revoke { keys, .. } if keys.contains(&TokenKey::Attributes(ino)));
        assert!(a.held.pushes.borrow().iter().any(revoked), "now somebody does");
    });
}
