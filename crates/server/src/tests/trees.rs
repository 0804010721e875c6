//! Walking and removing trees whose directories are on several targets of one server.

use super::*;

/// Entries of `dir` with attributes, in order.
async fn entries(c: &Client, dir: Ino) -> Vec<amphi_wire::DirEntry> {
    let op = Request::ReadDir { dir, cookie: 0, max: 1000, plus: true };
    let Ok(Reply::Entries { entries, .. }) = c.call(op).await else { panic!("no entries") };
    entries
}

async fn counted(c: &Client, name: &str) -> u64 {
    let Ok(Reply::Counters(all)) = c.call(Request::Counters { reset: false }).await else { panic!("no counters") };
    all.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n)
}

/// Goal: in sole mode, a listing includes the attributes of directories on any target of the server, equal to those of
/// stat. In shared mode it includes only those on the same target. Method: directories over four targets and two
/// workers. One directory is removed, and names are made in two others. Then a second client connects.
#[test]
fn listings_bring_directories_of_all_targets() {
    with_server(411, 4, 2, async |place, c| {
        let mut made = Vec::new();
        for i in 0..24 {
            made.push(c.mkdir(Ino::ROOT, &format!("d{i:02}")).await.unwrap());
        }
        let apart = made.iter().filter(|ino| ino.target() != Ino::ROOT.target()).count();
        assert!((8..24).contains(&apart), "{apart} of 24");
        c.rmdir(Ino::ROOT, "d05").await.unwrap();
        c.create(made[7], "file").await.unwrap();
        c.mkdir(made[8], "below").await.unwrap();
        let all = entries(c, Ino::ROOT).await;
        assert_eq!(all.len(), 23);
        for e in &all {
            assert_eq!(e.inode.expect("attributes").attr, c.stat(e.ino).await.unwrap(), "{}", e.name);
        }
        let plain = Request::ReadDir { dir: Ino::ROOT, cookie: 0, max: 1000, plus: false };
        let Ok(Reply::Entries { entries: plain, .. }) = c.call(plain).await else { panic!("no entries") };
        assert!(plain.iter().all(|e| e.inode.is_none()));
        let second = place.client(2).await.unwrap();
        let seen = entries(&second, Ino::ROOT).await;
        let at_hand = |e: &amphi_wire::DirEntry| e.ino.target() == Ino::ROOT.target();
        assert!(seen.iter().all(|e| e.inode.is_some() == at_hand(e)), "what comes without a token is not kept");
    });
}

/// Goal: the removal of a tree finds that the directories are stable already. A program that only empties directories
/// causes syncs only for a short time. Method: directories on another target than their names are filled, emptied and
/// removed, and then emptied repeatedly. The syncs are counted.
#[test]
fn emptied_directories_are_made_stable_where_removals_follow() {
    with_server(412, 4, 1, async |place, c| {
        let env = place.sim.node("client");
        let apart = |i: usize| {
            let name = format!("d{i}");
            (amphi_types::layout::directory_target(Ino::ROOT, name.as_bytes(), 4) == TargetId(1)).then_some(name)
        };
        // The names are as many as the log takes without a checkpoint, because a checkpoint syncs too.
        let names: Vec<String> = (0..).filter_map(apart).take(10).collect();
        let mut early = Vec::new();
        for name in &names {
            let dir = c.mkdir(Ino::ROOT, name).await.unwrap();
            c.create(dir, "a").await.unwrap();
            c.create(dir, "b").await.unwrap();
            // The test waits until the periodic syncs have run.
            env.sleep(Duration::from_secs(4)).await;
            let mut syncs = [0; 2];
            for (i, file) in ["a", "b"].into_iter().enumerate() {
                let before = counted(c, "disk_syncs").await;
                c.unlink(dir, file).await.unwrap();
                // The pause is about the time after which a program comes to the directory.
                env.sleep(Duration::from_millis(20)).await;
                syncs[i] = counted(c, "disk_syncs").await - before;
            }
            early.push(syncs);
            c.rmdir(Ino::ROOT, name).await.unwrap();
        }
        assert_eq!(early[0], [0, 0], "nobody knew");
        assert!(early[1..].iter().all(|syncs| *syncs == [0, 1]), "{early:?}");
        let dir = c.mkdir(Ino::ROOT, &names[0]).await.unwrap();
        let mut syncs = Vec::new();
        for i in 0..40 {
            let before = counted(c, "disk_syncs").await;
            c.create(dir, "file").await.unwrap();
            c.unlink(dir, "file").await.unwrap();
            env.sleep(Duration::from_millis(1)).await;
            syncs.push((i, counted(c, "disk_syncs").await - before));
        }
        let asked = syncs.iter().filter(|(_, n)| *n > 0).count();
        assert!((1..=14).contains(&asked), "{syncs:?}");
        assert!(syncs[20..].iter().filter(|(_, n)| *n > 0).count() <= 4, "{syncs:?}");
    });
}
