//! Limits, as servers enforce them.

use super::*;
use amphi_types::{Account, AccountKind, Amount, Caps, Limits, SetAttr};
use futures_util::future::join_all;

const USER: Account = Account { kind: AccountKind::User, id: 7 };

async fn limit_inodes(c: &Client, inodes: u64) {
    let limits = Limits { hard: Amount { blocks: 0, inodes }, ..Limits::default() };
    c.call(Request::SetLimits { account: USER, limits }).await.unwrap();
}

async fn inodes_used(c: &Client) -> u64 {
    match c.call(Request::Account { account: USER }).await {
        Ok(Reply::Accounts { accounts, .. }) => accounts[0].used.inodes,
        other => panic!("{other:?}"),
    }
}

/// Goal: a limit of inodes holds when directories are made at the same time on several targets, and it is used up.
/// Method: 32 directories at once of an account that may have one more, then with room for five more, on four targets.
#[test]
fn new_directories_stay_within_the_limit() {
    for seed in 980..990 {
        let place = Place::new(seed, 4, [1, 2, 4][seed as usize % 3]);
        let run = async {
            let server = place.start().await.unwrap();
            let (c, user) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
            *user.cred.borrow_mut() = Cred { caps: Caps::NONE, ..Cred::new(7, 8, vec![]) };
            let set = SetAttr { perm: Some(0o777), ..SetAttr::default() };
            c.call(Request::SetAttr { ino: Ino::ROOT, set }).await.unwrap();
            limit_inodes(&c, 3).await;
            for text in ["a", "b"] {
                user.mkdir(Ino::ROOT, text).await.unwrap();
            }
            for (limit, room) in [(3, 1), (8, 5)] {
                limit_inodes(&c, limit).await;
                let names: Vec<String> = (0..32).map(|i| format!("{limit} {i}")).collect();
                let made = join_all(names.iter().map(|text| user.mkdir(Ino::ROOT, text))).await;
                let refused = made.iter().filter(|made| **made == Err(Errno::Quota)).count();
                assert_eq!((made.iter().filter(|made| made.is_ok()).count(), refused), (room, 32 - room), "{made:?}");
                assert_eq!(inodes_used(&c).await, limit);
            }
            c.call(Request::Goodbye).await.unwrap();
            user.call(Request::Goodbye).await.unwrap();
            server.stop().await.unwrap();
            let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
            assert!(report.is_clean(), "{report:?}");
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: the shards of a directory are charged together: a directory gets none if there is no room for all. Method: six
/// shards on three targets, with room for five and then for six.
#[test]
fn shards_stay_within_the_limit() {
    let place = Place::new(990, 3, 3);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, user) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        *user.cred.borrow_mut() = Cred { caps: Caps::NONE, ..Cred::new(7, 8, vec![]) };
        let set = SetAttr { perm: Some(0o777), ..SetAttr::default() };
        c.call(Request::SetAttr { ino: Ino::ROOT, set }).await.unwrap();
        limit_inodes(&c, 6).await;
        let dir = user.mkdir(Ino::ROOT, "d").await.unwrap();
        let set = Request::SetShards { ino: dir, count: 6 };
        assert_eq!(user.call(set.clone()).await, Err(Errno::Quota));
        assert_eq!((user.shards(dir).await, inodes_used(&c).await), (Ok(Vec::new()), 1));
        limit_inodes(&c, 7).await;
        user.call(set).await.unwrap();
        assert_eq!((user.shards(dir).await.unwrap().len(), inodes_used(&c).await), (6, 7));
        assert_eq!(user.mkdir(dir, "x").await, Err(Errno::Quota));
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}
