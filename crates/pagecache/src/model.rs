//! Model check of the cache against plain bytes.

use crate::{
    CHUNK, CachedBytes, CachedFile, Dirty, Landing, Loans, LocalityRule, PAGE, PageCache, Put, Segments, Source, UNIT,
};
use amphi_env::Buf;
use amphi_types::ByteRange;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// A file for which no request to a server is made.
pub(crate) struct TestFile {
    id: u64,
    cached: CachedBytes,
}

impl TestFile {
    pub(crate) fn new(id: u64) -> Arc<TestFile> {
        Arc::new(TestFile { id, cached: CachedBytes::new(&Arc::default()) })
    }
}

impl CachedFile for TestFile {
    fn id(&self) -> u64 {
        self.id
    }

    fn cached(&self) -> &CachedBytes {
        &self.cached
    }

    fn spoil(&self, _range: ByteRange) {}
}

/// Numbers from a seed.
struct Rng(u64);

impl Rng {
    fn rand(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below.max(1)
    }
}

/// Goal: the cache returns the bytes that were put in, keeps dirty bytes until they are on the server, and its counters
/// are right. Method: random operations on three units: writes (also of whole units whose memory the cache keeps),
/// fills, write-back in steps, reads without a copy, drops and evictions. The result is compared byte by byte with a
/// server that is one vector, and with a model of the bytes that must be read. Memory that is given out, to readers or
/// for write-back, must not change.
#[test]
fn cache_matches_bytes() {
    matches_bytes(200_000, 0..30, 1500);
}

/// Goal: the same holds if chunks are written as a whole and lie in one piece of memory, so that write-back sends that
/// memory. Method: as above on three chunks, mostly in whole units; a large part of the data that is written back has
/// to be sent without a copy.
#[test]
fn chunks_in_one_piece_match_bytes() {
    let (lent, copied) = matches_bytes(3 * CHUNK - 5000, 100..110, 500);
    assert!(lent > copied / 10, "{lent} bytes were lent, {copied} copied");
}

/// Returns how many bytes were sent without a copy, and how many were copied.
fn matches_bytes(size: u64, seeds: Range<u64>, steps: u64) -> (u64, u64) {
    let (mut lent_bytes, mut copied_bytes) = (0, 0);
    for seed in seeds {
        let mut w = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (file, cache) = (TestFile::new(7), PageCache::<TestFile>::new());
        let mut server = vec![0u8; size as usize];
        let mut truth = server.clone();
        let mut flights: Vec<(ByteRange, Buf, Vec<u8>)> = Vec::new();
        let mut lent: Vec<(Loans, Vec<u8>)> = Vec::new();
        // Memory that is passed to the cache and returned, like a reader's.
        let mut unit = Buf::scratch(UNIT as usize);
        for step in 0..steps {
            let (a, b) = (w.rand(size), w.rand(size));
            let (a, b) = if w.rand(2) == 0 { (a, (a + b % 9000).min(size)) } else { (a.min(b), a.max(b)) };
            let range = ByteRange::new(a, b);
            let large = size > CHUNK && w.rand(2) == 0;
            let range = if large { range.align_out([UNIT, CHUNK][w.rand(2) as usize]) } else { range };
            let range = ByteRange::new(range.start, range.end.min(size));
            let (a, b) = (range.start, range.end);
            if range.is_empty() {
                continue;
            }
            let span = a as usize..b as usize;
            if size > CHUNK && w.rand(8) == 0 {
                // Everything leaves the cache, so that chunks are made again.
                let runs = cache.dirty_runs(&file, ByteRange::ALL);
                runs.iter().for_each(|run| {
                    let mut rest = *run;
                    while !rest.is_empty() {
                        let (taken, buf, _) = cache.take_dirty(&file, rest).expect("a dirty run has dirty bytes");
                        *(if buf.is_whole() { &mut copied_bytes } else { &mut lent_bytes }) += taken.len();
                        let then = truth[taken.start as usize..taken.end as usize].to_vec();
                        flights.push((taken, buf, then));
                        rest = ByteRange::new(taken.end, rest.end);
                    }
                });
                for (r, bytes, then) in flights.drain(..) {
                    assert!(bytes[..] == then[..], "seed {seed} step {step}: bytes under way");
                    server[r.start as usize..r.end as usize].copy_from_slice(&bytes);
                    cache.landed(&file, r, Landing::Done, step, || {});
                }
                (0..3).for_each(|_| drop(cache.evict(0)));
            }
            let cold_after = [0, 200_000, u64::MAX][w.rand(3) as usize];
            match w.rand(11) {
                0..=2 => {
                    let bytes = vec![step as u8; span.len()];
                    let taken = || {
                        assert!(
                            file.cached().dirty_bytes.load(std::sync::atomic::Ordering::SeqCst) > 0,
                            "it counts before anybody hears of it"
                        )
                    };
                    let put = cache.write(&file, a, Source::Copied(&bytes), cold_after, || step, (|| true, taken));
                    assert!(matches!(put, Put::Done { adopted: 0, .. }));
                    truth[span].copy_from_slice(&bytes);
                }
                3 => {
                    // A fill brings the server's bytes, and must not replace dirty bytes or bytes that are being
                    // written back.
                    let short = w.rand(range.len() + 1) as usize;
                    let tail = &server[span.start + short..span.end];
                    let bytes = &server[span.clone()];
                    let bytes = if tail.iter().all(|b| *b == 0) { &bytes[..short] } else { bytes };
                    cache.fill(&file, range, &Arc::new(Buf::copy_of(bytes)), w.rand(2) == 0, |_| true);
                }
                4 => {
                    for run in cache.dirty_runs(&file, range) {
                        let (taken, buf, _) = cache.take_dirty(&file, run).expect("a dirty run has dirty bytes");
                        assert_eq!((taken.start, taken.len()), (run.start, buf.len() as u64));
                        *(if buf.is_whole() { &mut copied_bytes } else { &mut lent_bytes }) += taken.len();
                        let then = truth[taken.start as usize..taken.end as usize].to_vec();
                        flights.push((taken, buf, then));
                    }
                }
                5 if !flights.is_empty() => {
                    let (r, bytes, then) = flights.swap_remove(w.rand(flights.len() as u64) as usize);
                    assert!(bytes[..] == then[..], "seed {seed} step {step}: bytes under way");
                    let again = w.rand(3) == 0;
                    if !again {
                        server[r.start as usize..r.end as usize].copy_from_slice(&bytes);
                    }
                    cache.landed(&file, r, if again { Landing::Again } else { Landing::Done }, step, || {});
                }
                6 => {
                    cache.forget(&file, range, Dirty::Keep);
                }
                7 => {
                    cache.evict(w.rand(size));
                }
                8 => {
                    let at = a / UNIT * UNIT;
                    unit.iter_mut().enumerate().for_each(|(i, b)| *b = (step + i as u64 / 4096) as u8);
                    let end = (at + UNIT).min(size);
                    truth[at as usize..end as usize].copy_from_slice(&unit[..(end - at) as usize]);
                    let memory = unit.as_ptr();
                    let whole = end == at + UNIT;
                    let source = if whole {
                        Source::whole_units(at, &mut unit)
                    } else {
                        Source::Copied(&unit[..(end - at) as usize])
                    };
                    assert_eq!(matches!(source, Source::Unit(_)), whole);
                    let put = cache.write(&file, at, source, cold_after, || step, (|| true, || {}));
                    let Put::Done { adopted, .. } = put else { panic!("nothing refuses it") };
                    assert_eq!(unit.as_ptr() != memory, adopted > 0, "its memory was kept");
                    assert!(whole || adopted == 0);
                    assert!(adopted > 0 || !whole || cold_after < u64::MAX, "always while it is near");
                    assert_eq!(unit.window(), 0..UNIT as usize);
                }
                9 if size > CHUNK && w.rand(2) == 0 => {
                    // Several units, in memory that the cache keeps.
                    let at = a / UNIT * UNIT;
                    let len = (size - at).min(UNIT * (2 + w.rand(15)));
                    let mut bytes = Buf::scratch(len as usize);
                    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (step + i as u64 / 4096) as u8);
                    truth[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                    let source = Source::whole_units(at, &mut bytes);
                    let kept = matches!(source, Source::Units(_) | Source::Unit(_));
                    assert_eq!(kept, len.is_multiple_of(UNIT));
                    // A refusal leaves all bytes, for another try.
                    let (refuse, asked) = (w.rand(3) == 0, Cell::new(0));
                    let check = || asked.replace(asked.get() + 1) < 2 || !refuse;
                    let first = cache.write(&file, at, source, u64::MAX, || step, (check, || {}));
                    if let Put::Refused(from) = first {
                        assert_eq!(from, at + 2 * UNIT);
                        assert!(bytes[..] == truth[at as usize..(at + len) as usize]);
                        let again = Source::whole_units(at, &mut bytes);
                        assert!(matches!(again, Source::Copied(_)));
                        cache.write(&file, at, again, u64::MAX, || step, (|| true, || {}));
                    }
                }
                9 => {
                    if let Some(loans) = cache.lend(&file, range) {
                        lent.push((loans, truth[span].to_vec()));
                    }
                    if lent.len() > 3 {
                        let (loans, then) = lent.swap_remove(w.rand(4) as usize);
                        assert!(Segments::from(loans).to_vec() == then, "seed {seed} step {step}: lent bytes");
                    }
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
        cache.forget(&file, ByteRange::ALL, Dirty::Discard);
    }
    (lent_bytes, copied_bytes)
}

/// Goal: each request that was answered with some bytes counts as one use of them, however often it looked for missing
/// ones (H5). Method: a request for two units looks three times while the second unit is missing, and then finds both;
/// another request follows or not; the pages that left the cache were used again or not.
#[test]
fn looking_in_vain_is_no_use() {
    for again in [false, true] {
        let (file, cache) = (TestFile::new(7), PageCache::<TestFile>::new());
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
        let rule = LocalityRule { window_pages: 2 * UNIT / PAGE, probe: 8, cache_pages: 1 << 20 };
        assert_eq!(file.cached().locality.speaks_for_direct(rule, || 0), !again);
    }
}

/// Goal: the unit that entered the cache first is evicted first, in whichever file it is; a unit that was used since
/// the clock hand passed it stays. Method: two files fill the cache in turn, two further chunks of them are added, and
/// one of the first chunks is read again.
#[test]
fn what_came_first_goes_first() {
    let files = [TestFile::new(1), TestFile::new(2)];
    let cache = PageCache::<TestFile>::new();
    let bytes = Arc::new(Buf::zeroed(CHUNK as usize));
    let fill = |chunk: u64| {
        let file = &files[chunk as usize % 2];
        cache.fill(file, ByteRange::at(chunk / 2 * CHUNK, CHUNK), &bytes, false, |_| true);
    };
    let is_there = |chunk: u64| {
        let range = ByteRange::at(chunk / 2 * CHUNK, CHUNK);
        cache.gaps(&files[chunk as usize % 2], range).is_empty()
    };
    (0..200).for_each(fill);
    let room = |chunks: u64| drop(cache.evict(chunks * CHUNK));
    // The hand has to pass once before any unit is old.
    room(199);
    (200..210).for_each(fill);
    room(180);
    let there: Vec<u64> = (0..210).filter(|c| is_there(*c)).collect();
    assert_eq!(there, (30..210).collect::<Vec<_>>());
    let again = ByteRange::at(16 * CHUNK, CHUNK);
    assert!(cache.read(&files[0], again, &mut vec![0; CHUNK as usize]));
    room(100);
    let there: Vec<u64> = (0..210).filter(|c| is_there(*c)).collect();
    assert_eq!(there, std::iter::once(32).chain(111..210).collect::<Vec<_>>());
}
