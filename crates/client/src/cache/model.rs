//! Model check of the cache against plain bytes.

use super::drop::Dirty;
use super::fill::Landing;
use super::{PAGE, PageCache, Put, UNIT};
use crate::api::OpenFlags;
use crate::locality::Rule;
use crate::tests::World;
use amphi_env::Buf;
use amphi_types::ByteRange;
use std::sync::Arc;

const SIZE: u64 = 200_000;

/// Goal: the cache returns what was put in, keeps dirty bytes until they have landed, and its books agree. Method:
/// random writes, fills, write-back in steps, forgetting and evictions on three units, compared byte by byte with a
/// server of one vector and a model of what must be read.
#[test]
fn cache_matches_bytes() {
    for seed in 0..30 {
        let mut w = World::new(seed, &[]);
        let open = w.create("f", OpenFlags::READ_WRITE);
        let (file, cache) = (open.file.clone(), PageCache::new());
        let mut server = vec![0u8; SIZE as usize];
        let mut truth = server.clone();
        let mut flights: Vec<(ByteRange, Vec<u8>)> = Vec::new();
        for step in 0..1500u64 {
            let (a, b) = (w.rand(SIZE), w.rand(SIZE));
            let (a, b) = if w.rand(2) == 0 { (a, (a + b % 9000).min(SIZE)) } else { (a.min(b), a.max(b)) };
            let range = ByteRange::new(a, b);
            if range.is_empty() {
                continue;
            }
            let span = a as usize..b as usize;
            match w.rand(9) {
                0..=2 => {
                    let bytes = vec![step as u8; span.len()];
                    assert!(matches!(cache.write(&file, a, &bytes, || step, || true), Put::Done { .. }));
                    truth[span].copy_from_slice(&bytes);
                }
                3 => {
                    // A fill brings what the server has, and must not cover dirty bytes or those under way.
                    let short = w.rand(range.len() + 1) as usize;
                    let tail = &server[span.start + short..span.end];
                    let bytes = &server[span.clone()];
                    let bytes = if tail.iter().all(|b| *b == 0) { &bytes[..short] } else { bytes };
                    cache.fill(&file, range, &Arc::new(Buf::copy_of(bytes)), w.rand(2) == 0, |_| true);
                }
                4 => {
                    for run in cache.dirty_runs(&file, range) {
                        let (taken, buf) = cache.take_dirty(&file, run).expect("a dirty run has dirty bytes");
                        assert_eq!(taken.start, run.start);
                        flights.push((taken, buf.to_vec()));
                    }
                }
                5 if !flights.is_empty() => {
                    let (r, bytes) = flights.swap_remove(w.rand(flights.len() as u64) as usize);
                    let again = w.rand(3) == 0;
                    if !again {
                        server[r.start as usize..r.end as usize].copy_from_slice(&bytes);
                    }
                    cache.landed(&file, r, if again { Landing::Again } else { Landing::Done }, step);
                }
                6 => {
                    cache.forget(&file, range, Dirty::Keep);
                }
                7 => {
                    cache.evict(w.rand(200_000));
                }
                _ => {
                    let mut into = vec![0; span.len()];
                    let gaps = cache.read_valid(&file, range, &mut into);
                    for gap in &gaps {
                        let g = gap.start as usize..gap.end as usize;
                        into[g.start - span.start..g.end - span.start].copy_from_slice(&server[g]);
                    }
                    assert!(into == truth[span.clone()], "seed {seed} step {step}");
                    let mut again = vec![0; span.len()];
                    assert_eq!(cache.read(&file, range, &mut again), gaps.is_empty());
                    assert_eq!(gaps, cache.gaps(&file, range));
                }
            }
            cache.check();
        }
        // Units hold the file; the cache of this test goes first.
        cache.forget(&file, ByteRange::ALL, Dirty::Discard);
    }
}

/// Goal: bytes are used once by each request that was answered with them, however often it looked for the rest (H5). Method: a request for two
/// units looks three times while the second is missing, then finds both; another one comes or not; what left the cache was used again or not.
#[test]
fn looking_in_vain_is_no_use() {
    for again in [false, true] {
        let mut w = World::new(1, &[]);
        let open = w.create("f", OpenFlags::READ_WRITE);
        let (file, cache) = (open.file.clone(), PageCache::new());
        let range = ByteRange::new(0, 2 * UNIT);
        let bytes = Arc::new(Buf::zeroed(UNIT as usize));
        let mut into = vec![0; 2 * UNIT as usize];
        cache.fill(&file, ByteRange::at(0, UNIT), &bytes, true, |_| true);
        for _ in 0..3 {
            assert!(cache.lend(&file, range).is_none() && !cache.read(&file, range, &mut into));
            assert_eq!(cache.read_valid(&file, range, &mut into), [ByteRange::at(UNIT, UNIT)]);
        }
        cache.fill(&file, ByteRange::at(UNIT, UNIT), &bytes, false, |_| true);
        assert!(cache.lend(&file, range).is_some());
        if again {
            assert!(cache.read(&file, range, &mut into));
        }
        cache.evict(0);
        assert_eq!(cache.used_bytes(), 0);
        let rule = Rule { window_pages: 2 * UNIT / PAGE, fraction: 16, probe: 8, inherit: false };
        assert_eq!(file.locality.speaks_for_direct(rule, || 0), !again);
    }
}
