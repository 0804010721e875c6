//! Limits, as servers enforce them.

use super::data::bytes;
use super::inodes::{fill_log, refuse_reads};
use super::locks::counter;
use super::*;
use amphi_env::sim::CrashKind;
use amphi_types::{Account, AccountKind, Amount, Caps, Layout, Limits, Pattern, SetAttr};
use futures_util::future::{join, join_all};

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

const BLOCK: u64 = 4096;

async fn limit_blocks(c: &Client, blocks: u64) {
    let limits = Limits { hard: Amount { blocks, inodes: 0 }, ..Limits::default() };
    c.call(Request::SetLimits { account: USER, limits }).await.unwrap();
}

async fn blocks_used(c: &Client) -> u64 {
    match c.call(Request::Account { account: USER }).await {
        Ok(Reply::Accounts { accounts, .. }) => accounts[0].used.blocks,
        other => panic!("{other:?}"),
    }
}

/// Writes a block of a file as if no grant covered it.
async fn write_block(user: &Client, ino: Ino, block: u64) -> Result<()> {
    user.write(ObjectId { ino, stripe: 0 }, block * BLOCK, 0, bytes(1, block * BLOCK, BLOCK as usize)).await
}

/// A superuser, and a user who may make files in the root.
async fn two(place: &Place) -> (Client, Client) {
    let (c, user) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
    *user.cred.borrow_mut() = Cred { caps: Caps::NONE, ..Cred::new(7, 8, vec![]) };
    let set = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    c.call(Request::SetAttr { ino: Ino::ROOT, set }).await.unwrap();
    (c, user)
}

/// Files of the user, each with a block, and as many of the superuser between them, so that the inodes of no block have
/// one owner. None of them is in memory afterwards.
async fn mixed_files(place: &Place, c: &Client, user: &Client, count: usize) -> Vec<Ino> {
    let mut files = Vec::new();
    for n in 0..count {
        c.create(Ino::ROOT, &format!("c{n}")).await.unwrap();
        files.push(user.create(Ino::ROOT, &format!("u{n}")).await.unwrap());
        write_block(user, files[n], 0).await.unwrap();
    }
    let filler = c.create(Ino::ROOT, "filler").await.unwrap();
    c.call(Request::Sync { file: None }).await.unwrap();
    place.sim.node("client").sleep(Duration::from_secs(10)).await;
    fill_log(place, c, filler).await;
    files
}

/// Goal: a limit holds while the owners of files are read whose inodes are not in memory: after a restart, and when it
/// is the first limit of a running system. Method: the user writes one more block at once, on a slow disk. After that
/// his limit is raised by a block.
#[test]
fn a_limit_holds_while_owners_are_read() {
    for restarts in [true, false] {
        let sim = SimConfig { disk_ns: 3_000_000..3_000_001, ..SimConfig::default() };
        let mut place = Place::with_sim(993, 1, 1, sim);
        place.config.inodes_bytes = Some(0);
        let run = async {
            let mut server = Some(place.start().await.unwrap());
            let (c, user) = two(&place).await;
            let files = mixed_files(&place, &c, &user, 200).await;
            user.call(Request::Open { ino: files[0], access: RW, exec: false }).await.unwrap();
            if restarts {
                limit_blocks(&c, 200).await;
                assert_eq!(write_block(&user, files[0], 1).await, Err(Errno::Quota));
                user.held.opens.borrow_mut().push((files[0], RW));
                place.sim.crash("server", CrashKind::Process);
                drop(server.take());
                server = Some(place.start().await.unwrap());
            } else {
                limit_blocks(&c, 200).await;
            }
            assert_eq!(write_block(&user, files[0], 1).await, Err(Errno::Quota), "after a restart: {restarts}");
            assert_eq!(blocks_used(&c).await, 200);
            limit_blocks(&c, 201).await;
            assert_eq!(write_block(&user, files[0], 1).await, Ok(()));
            assert_eq!(write_block(&user, files[0], 2).await, Err(Errno::Quota));
            drop(server);
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: while owners are read, users without a limit write. Method: as above, with a file of the superuser, who
/// belongs to no limited account; the user with a limit waits much longer.
#[test]
fn others_write_while_owners_are_read() {
    let sim = SimConfig { disk_ns: 3_000_000..3_000_001, ..SimConfig::default() };
    let mut place = Place::with_sim(996, 1, 1, sim);
    place.config.inodes_bytes = Some(0);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, user) = two(&place).await;
        let files = mixed_files(&place, &c, &user, 200).await;
        let mine = c.make(Ino::ROOT, "mine", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        user.call(Request::Open { ino: files[0], access: RW, exec: false }).await.unwrap();
        limit_blocks(&c, 200).await;
        let env = place.sim.node("client");
        let begun_ns = env.now().0;
        let took_ns = || env.now().0 - begun_ns;
        let limited = async { (write_block(&user, files[0], 1).await, took_ns()) };
        let free = async { (write_block(&c, mine, 0).await, took_ns()) };
        let ((limited, limited_ns), (free, free_ns)) = join(limited, free).await;
        assert_eq!((limited, free), (Err(Errno::Quota), Ok(())));
        assert!(3 * free_ns < limited_ns, "{free_ns} ns, and {limited_ns} ns with a limit");
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: an inode that cannot be read does not keep others from being counted, and counting ends. Method: the disk
/// refuses reads when the first limit is set. The inode of one file is on the disk, and those of two are in the log.
#[test]
fn an_unreadable_inode_does_not_end_counting() {
    let mut place = Place::new(999, 1, 1);
    place.config.inodes_bytes = Some(0);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, user) = two(&place).await;
        let files = mixed_files(&place, &c, &user, 3).await;
        for (ino, blocks) in [(files[1], 8), (files[2], 1)] {
            user.call(Request::Open { ino, access: RW, exec: false }).await.unwrap();
            for block in 0..blocks {
                write_block(&user, ino, block).await.unwrap();
            }
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            c.call(Request::SetAttr { ino, set }).await.unwrap();
        }
        refuse_reads(&place, true);
        assert_eq!(c.stat(files[0]).await.map(drop), Err(Errno::Io));
        limit_blocks(&c, 10).await;
        assert_eq!(blocks_used(&c).await, 9);
        assert_eq!(write_block(&user, files[2], 1).await, Ok(()));
        assert_eq!(write_block(&user, files[2], 2).await, Err(Errno::Quota));
        refuse_reads(&place, false);
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: reading the owners of many files does not fill the memory with inodes. Method: a limit is set where inodes of
/// many files take little memory. Nobody sends a request until all are counted.
#[test]
fn counting_lets_inodes_go() {
    let mut place = Place::new(1000, 1, 1);
    place.config.inodes_bytes = Some(6000);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, user) = two(&place).await;
        mixed_files(&place, &c, &user, 1000).await;
        let before = counter(&c, "inodes_away").await;
        assert!(before > 1000, "{before} inodes are not in memory");
        limit_blocks(&c, 1000).await;
        place.sim.node("client").sleep(Duration::from_secs(10)).await;
        let after = counter(&c, "inodes_away").await;
        assert!(after > before * 3 / 4, "{before} inodes were not in memory, and now {after}");
        assert_eq!(blocks_used(&c).await, 1000);
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: all stripes of a file on one target are counted, also if one of them is written while the owner of the others
/// is requested. Method: a file with two stripes on a target, beside files whose inodes have to be read first.
#[test]
fn each_stripe_gets_its_owner() {
    let sim = SimConfig { disk_ns: 3_000_000..3_000_001, ..SimConfig::default() };
    let mut place = Place::with_sim(1002, 2, 1, sim);
    place.config.inodes_bytes = Some(0);
    let run = async {
        let server = place.start().await.unwrap();
        let (c, user) = two(&place).await;
        let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 4, pool: 2 };
        let striped = async |client: &Client, text: &str| {
            let file = client.make(Ino::ROOT, text, Make::File { open: Some(RW), exclusive: true }).await.unwrap();
            client.call(Request::SetLayout { ino: file, layout: Some(layout), advice: None }).await.unwrap();
            client.call(Request::Spread { ino: file }).await.unwrap();
            for stripe in [1, 3] {
                let at = u64::from(stripe) << 16;
                client.write(ObjectId { ino: file, stripe }, at, 0, bytes(1, at, BLOCK as usize)).await.unwrap();
            }
            file
        };
        for n in 0..6 {
            for (client, text) in [(&c, format!("wide c{n}")), (&user, format!("wide u{n}"))] {
                let file = striped(client, &text).await;
                client.call(Request::Close { ino: file, access: RW, atime: None }).await.unwrap();
            }
        }
        let file = striped(&user, "f").await;
        assert_eq!(file.target(), TargetId(0));
        mixed_files(&place, &c, &user, 1).await;
        assert!(counter(&c, "inodes_away").await >= 12);
        limit_blocks(&c, 100).await;
        let at = 1 << 16;
        user.write(ObjectId { ino: file, stripe: 1 }, at, 0, bytes(2, at, BLOCK as usize)).await.unwrap();
        assert_eq!(blocks_used(&c).await, 7 * 2 + 1);
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}
