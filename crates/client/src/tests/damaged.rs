//! Reads of files that have a page which their target cannot serve.

use super::world::World;
use crate::api::{Ctx, Hints, OpenFlags};
use amphi_env::Buf;
use amphi_types::{ByteRange, Errno};

const PAGE: u64 = 4096;
/// The damaged pages.
const BAD: [u64; 3] = [5, 100, 101];
const LEN: u64 = 1 << 20;

fn content(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|i| ((i / 3) ^ (i >> 11)) as u8).collect()
}

/// A file of a mebibyte of which nothing is cached.
fn world(seed: u64, tunables: &[(&str, &str)]) -> (World, std::sync::Arc<crate::OpenFile>) {
    let mut w = World::new(seed, tunables);
    let direct = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
    let file = w.create("f", direct);
    let op = w.client.setxattr(&Ctx::root(), file.ino(), b"user.amphi.layout", b"whole", amphi_wire::XattrMode::Set);
    w.run(op).unwrap();
    let op = w.client.write(&Ctx::root(), &file, 0, Buf::copy_of(&content(0, LEN)), Hints::default());
    assert_eq!(w.run(op), Ok(LEN as usize));
    w.server.damaged = BAD.map(|page| ByteRange::at(page * PAGE, PAGE)).to_vec();
    (w, file)
}

/// The start of the first damaged page behind `at`, or the end of the file.
fn good_until(at: u64) -> u64 {
    BAD.iter().map(|page| page * PAGE).find(|bad| bad + PAGE > at).unwrap_or(LEN)
}

/// Goal: a read ends before a page that cannot be served, and fails if it begins in one. Every other byte can be read,
/// and is right. A page cache in front gets all bytes of its request or an error (Promise S24). Method: reads of one
/// page and of many, from places before, between, in and after damaged pages, buffered and direct, with read-ahead and
/// without.
#[test]
fn only_what_is_damaged_fails() {
    for (seed, len) in [(1, 4096), (2, 10_000), (3, 65_536), (4, LEN), (5, 300_000)] {
        for (past_cache, for_pages) in [(false, false), (true, false), (false, true)] {
            let (mut w, file) = world(seed, &[("readahead.max_bytes", if seed % 2 == 0 { "0" } else { "64M" })]);
            let reader = if past_cache {
                file.clone()
            } else {
                let op = w.client.open(&Ctx::root(), file.ino(), OpenFlags::READ);
                w.run(op).unwrap()
            };
            let (mut at, mut failed) = (0, 0);
            while at < LEN {
                let asked = len.min(LEN - at);
                let hints = Hints { for_pages, ..Hints::default() };
                let op = w.client.read(&Ctx::root(), &reader, at, asked as usize, hints);
                let read = w.run(op).map(|data| data.to_vec());
                let good = good_until(at);
                if for_pages && good < at + asked {
                    assert_eq!(read, Err(Errno::Io), "{asked} from {at}");
                    for page in (at..at + asked).step_by(PAGE as usize) {
                        let one = PAGE.min(at + asked - page);
                        let op = w.client.read(&Ctx::root(), &reader, page, one as usize, hints);
                        let is_good = good_until(page) >= page + one;
                        let want = if is_good { Ok(content(page, one)) } else { Err(Errno::Io) };
                        assert_eq!(w.run(op).map(|data| data.to_vec()), want, "{one} from {page}");
                    }
                    failed += 1;
                    at += asked;
                } else if good <= at {
                    assert_eq!(read, Err(Errno::Io), "{asked} from {at}");
                    failed += 1;
                    at = (at / PAGE + 1) * PAGE;
                } else {
                    let want = content(at, asked.min(good - at));
                    assert!(read.as_ref() == Ok(&want), "{asked} from {at}: {:?}", read.map(|r| r.len()));
                    at += want.len() as u64;
                }
            }
            assert!(failed > 0 && (for_pages || failed == 3), "{failed}");
            // Mended, all of it can be read.
            w.server.damaged.clear();
            let op = w.client.read(&Ctx::root(), &reader, 0, LEN as usize, Hints::default());
            assert!(w.run(op).map(|data| data.to_vec()) == Ok(content(0, LEN)));
            drop((file, reader));
            w.check_clean();
        }
    }
}
