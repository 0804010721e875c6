//! Mounts that overwrite existing data in a target without space.

use super::cluster::dir_on;
use super::faults::fill_target_1;
use super::sharing::{Cluster, in_cluster, read, root, write};
use crate::api::{Hints, OpenFlags};
use amphi_env::{Buf, Env};
use amphi_wire::XattrMode;

/// Goal: in a target that is full to its last block, programs that overwrite existing data never get ENOSPC, from
/// `write`, `fsync` or `close`. Both mounts see all of the data. Method: a file and small files are made before another
/// mount fills the target. Both mounts make random overwrites, buffered and direct, with and without checksums, which
/// are compared with bytes.
#[test]
fn overwrites_are_not_refused() {
    for seed in 60..64 {
        in_cluster(seed, async |c: &Cluster| {
            let [a, b] = c.two().await;
            let dir = dir_on(&a, 1).await;
            let checksums = if seed % 2 == 0 { &b"on"[..] } else { b"off" };
            a.setxattr(&root(), dir, b"user.amphi.layout", b"whole", XattrMode::Set).await.expect("layout");
            a.setxattr(&root(), dir, b"user.amphi.checksums", checksums, XattrMode::Set).await.expect("checksums");
            let flags = [OpenFlags::READ_WRITE, OpenFlags { direct: seed >= 62, ..OpenFlags::READ_WRITE }];
            let mut files = Vec::new();
            for n in 0..20 {
                let name = format!("f{n}");
                let mine = a.create(&root(), dir, name.as_bytes(), 0o644, flags[0]).await.expect("create").file;
                let bytes = vec![n as u8; if n == 0 { 3 << 20 } else { 3000 }];
                write(&a, &mine, 0, &bytes).await;
                assert_eq!(a.fsync(&root(), &mine, false).await, Ok(()));
                let theirs = b.open(&root(), mine.ino(), flags[1]).await.expect("open");
                files.push((mine, theirs, bytes));
            }
            fill_target_1(&b).await;
            for n in 0..60u64 {
                let at = n as usize % 3 * (c.env.rand() as usize % 10);
                let (mine, theirs, bytes) = &mut files[at];
                let most = bytes.len() as u64;
                let start = c.env.rand() % most;
                let len = (1 + c.env.rand() % [100, 5000, 400_000][n as usize % 3]).min(most - start) as usize;
                let (client, file) = if c.env.rand().is_multiple_of(2) { (&a, mine) } else { (&b, theirs) };
                let piece = vec![n as u8 + 100; len];
                bytes[start as usize..start as usize + len].copy_from_slice(&piece);
                let written = client.write(&root(), file, start, Buf::copy_of(&piece), Hints::default()).await;
                assert_eq!(written, Ok(len), "seed {seed}, write {n}");
                if n % 4 == 0 {
                    assert_eq!(client.fsync(&root(), file, false).await, Ok(()), "seed {seed}, fsync {n}");
                }
            }
            for (mine, theirs, bytes) in &files {
                assert_eq!(a.fsync(&root(), mine, false).await, Ok(()), "seed {seed}");
                assert_eq!(b.fsync(&root(), theirs, false).await, Ok(()), "seed {seed}");
                assert_eq!((a.flush(&root(), mine).await, b.flush(&root(), theirs).await), (Ok(()), Ok(())));
                for (client, file) in [(&a, mine), (&b, theirs)] {
                    assert!(read(client, file, 0, bytes.len()).await == *bytes, "seed {seed}");
                }
            }
        });
    }
}
