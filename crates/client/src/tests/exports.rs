//! Reads of programs from shared memory during changes by this mount and by another one.

use super::sharing::{create, in_cluster, open, read, root, write};
use crate::api::{Hints, OpenFlags};
use crate::{Client, OpenFile};
use amphi_shm::export::Export;
use amphi_shm::rules::Miss;
use amphi_types::SetAttr;
use std::sync::Arc;

const UNIT: u64 = 64 << 10;

fn export(client: &Client, file: &OpenFile) -> Arc<Export> {
    client.export(file, |size| Export::new(1, size).ok().map(Arc::new)).expect("an export")
}

/// The bytes that a program reads now.
fn found(client: &Client, export: &Export, at: u64, len: u64) -> Result<Vec<u8>, Miss> {
    export.try_read(at, len, client.mount.clock.boot_ns())
}

/// A read by a call, and its effects.
async fn called(client: &Client, file: &Arc<OpenFile>, at: u64, len: u64) {
    read(client, file, at, len as usize).await;
    client.show(file, at, len as usize);
}

/// Goal: a program never finds bytes that a call which has returned has replaced or cut, whichever mount made it, and
/// it does find bytes. Promise S2. Method: two mounts make changes in turn. After each, the memory around the change is
/// compared, and calls fill it until it shows something.
#[test]
fn programs_find_what_calls_would() {
    let mut hits = 0;
    for seed in 0..10 {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            let here = create(&a, "f").await;
            let mut expected = vec![1u8; 300_000];
            write(&a, &here, 0, &expected).await;
            let there = open(&b, "f", OpenFlags::READ_WRITE).await;
            let shown = export(&a, &here);
            for round in 0..40u64 {
                let at = (round * 79_190 + seed * 1_301) % 290_000;
                let (client, file) = if round % 3 == 0 { (&a, &here) } else { (&b, &there) };
                if round % 7 == 6 {
                    let set = SetAttr { size: Some(at), open_for_write: true, ..SetAttr::default() };
                    client.setattr(&root(), file.ino(), set, Some(file)).await.expect("cut");
                    expected.resize(at as usize, 0);
                } else {
                    let bytes = [round as u8 + 2; 5000];
                    write(client, file, at, &bytes).await;
                    expected.resize(expected.len().max(at as usize + bytes.len()), 0);
                    expected[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                for from in [at.saturating_sub(70_000), at.saturating_sub(100), at + 4000] {
                    for _ in 0..4 {
                        match found(&a, &shown, from, 4000) {
                            Ok(bytes) => {
                                let end = expected.len().min(from as usize + 4000);
                                let right = expected.get(from as usize..end).unwrap_or_default();
                                assert!(bytes == right, "seed {seed}, round {round}, {from}");
                                hits += 1;
                            }
                            Err(_) => called(&a, &here, from, 4000).await,
                        }
                    }
                }
            }
        });
    }
    assert!(hits > 300, "{hits} reads without a call");
}

/// Goal: each event after which a cache hit would not be served also makes a program's read from the export fail, and a
/// call makes it succeed again where that is permitted. Method: all events, one after the other.
#[test]
fn events_end_what_is_shown() {
    in_cluster(1, async |c| {
        let a = c.mount().await;
        let file = create(&a, "f").await;
        write(&a, &file, 0, &vec![5; 3 * UNIT as usize]).await;
        let shown = export(&a, &file);
        let look = || found(&a, &shown, UNIT - 10, 20);
        assert_eq!(look(), Err(Miss::Absent));
        for _ in 0..3 {
            called(&a, &file, UNIT - 10, 20).await;
        }
        assert_eq!(look(), Ok(vec![5; 20]));
        called(&a, &file, 3 * UNIT - 5, 100).await;
        assert_eq!(found(&a, &shown, 3 * UNIT - 5, 100), Ok(vec![5; 5]), "a unit of a small file is shown at once");
        write(&a, &file, 2 * UNIT, b"elsewhere").await;
        assert_eq!(look(), Err(Miss::Due), "the next read renews the access time");
        called(&a, &file, UNIT - 10, 20).await;
        assert_eq!(look(), Ok(vec![5; 20]));
        // A call that holds the file.
        let held =
            file.file.range.try_acquire(amphi_types::ByteRange::at(0, 1), crate::inode::range_lock::Hold::Exclusive);
        assert_eq!(look(), Err(Miss::Busy));
        drop(held);
        assert_eq!(look(), Ok(vec![5; 20]));
        // Pages that a program may store to: nothing is shown any more.
        let pages = Hints { for_pages: true, ..Hints::default() };
        a.read(&root(), &file, 0, 4096, pages).await.expect("a page");
        assert_eq!(look(), Err(Miss::Absent));
        called(&a, &file, UNIT - 10, 20).await;
        assert_eq!(look(), Err(Miss::Absent));
        file.file.pages.forget();
        called(&a, &file, UNIT - 10, 20).await;
        called(&a, &file, UNIT - 10, 20).await;
        assert_eq!(look(), Ok(vec![5; 20]));
        // A second mount joins.
        let _b = c.mount().await;
        assert!(look().is_err());
        // The file is forgotten by the one who made the memory.
        shown.give_up();
        assert_eq!(look(), Err(Miss::Dead));
        let other = export(&a, &file);
        assert_eq!(found(&a, &other, 0, 1), Err(Miss::Absent));
    });
}
