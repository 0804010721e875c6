//! Random operations on one file in every mode against a vector of bytes, in the manner of fsx.

use super::world::World;
use crate::api::{Ctx, Fallocate, Hints, OpenFlags, Whence};
use crate::{OpenFile, UNIT_BYTES, tests::server::Server};
use amphi_env::Buf;
use amphi_types::{ByteRange, Ino, SetAttr};
use std::sync::Arc;

const LARGEST: u64 = 1 << 20;

struct Story {
    w: World,
    model: Vec<u8>,
    /// Ordinary, `O_DIRECT`, append.
    open: [Arc<OpenFile>; 3],
    trace: Vec<String>,
}

fn ctx(tid: u32) -> Ctx {
    Ctx { tid, ..Ctx::root() }
}

impl Story {
    fn new(seed: u64, layout: &str) -> Story {
        let tunables = [
            ("hybrid.large_write_bytes", "96K"),
            ("hybrid.large_read_bytes", "128K"),
            ("hybrid.small_bytes", "8K"),
            ("cache.max_bytes", "4M"),
        ];
        let mut w = World::new(seed, &tunables);
        w.callbacks = 200;
        let file = w.create("f", OpenFlags::READ_WRITE);
        let op = w.client.setxattr(
            &Ctx::root(),
            file.ino(),
            b"user.amphi.layout",
            layout.as_bytes(),
            amphi_wire::XattrMode::Set,
        );
        w.run(op).unwrap();
        let open = |w: &mut World, flags| {
            let op = w.client.open(&Ctx::root(), file.ino(), flags);
            w.run(op).unwrap()
        };
        let direct = open(&mut w, OpenFlags { direct: true, ..OpenFlags::READ_WRITE });
        let append = open(&mut w, OpenFlags { append: true, ..OpenFlags::READ_WRITE });
        Story { w, model: Vec::new(), open: [file, direct, append], trace: Vec::new() }
    }

    fn range(&mut self) -> (u64, u64) {
        let at = self.w.rand(LARGEST);
        let len = match self.w.rand(4) {
            0 => 1 + self.w.rand(5000),
            1 => 4096 * (1 + self.w.rand(4)),
            2 => 1 + self.w.rand(200_000),
            _ => 65_536,
        };
        let at = match self.w.rand(4) {
            0 => at & !(UNIT_BYTES as u64 - 1),
            1 => at & !4095,
            _ => at,
        };
        (at, len.min(LARGEST - at).max(1))
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut x = self.w.rand(1 << 30) as u32 | 1;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                x as u8
            })
            .collect()
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at as usize..end].copy_from_slice(bytes);
    }

    fn write(&mut self) {
        let (mut at, len) = self.range();
        let which = self.w.rand(5).min(2) as usize;
        let which = if which == 2 && self.w.rand(2) == 0 { 0 } else { which };
        let bytes = self.bytes(len);
        let (c, file, hints) = (ctx(which as u32), self.open[which].clone(), Hints::default());
        if which == 2 {
            at = self.model.len() as u64;
            if at + len > LARGEST {
                return;
            }
        }
        self.trace.push(format!("write {which} {at} {len}"));
        let quick = if len == UNIT_BYTES as u64 && self.w.rand(2) == 0 {
            let mut unit = Buf::copy_of(&bytes);
            self.w.client.try_write_buf(&c, &file, at, &mut unit, hints)
        } else {
            self.w.client.try_write(&c, &file, at, &bytes, hints)
        };
        let written = match quick {
            Some(n) => n,
            None => {
                let mut buf = Buf::padded((at % 4096) as usize, len as usize);
                buf.copy_from_slice(&bytes);
                let op = self.w.client.write(&c, &file, at, buf, hints);
                self.w.run(op).unwrap()
            }
        };
        assert_eq!(written as u64, len);
        self.put(at, &bytes);
    }

    fn read(&mut self) {
        let (at, len) = self.range();
        let which = self.w.rand(2) as usize;
        let (c, file, hints) = (ctx(which as u32), self.open[which].clone(), Hints::default());
        self.trace.push(format!("read {which} {at} {len}"));
        let end = ((at + len) as usize).min(self.model.len());
        let want = &self.model[(at as usize).min(end)..end];
        let mut into = vec![0; len as usize];
        let got = match self.w.client.try_read(&c, &file, at, &mut into, hints) {
            Some(n) => into[..n].to_vec(),
            None => {
                let op = self.w.client.read(&c, &file, at, len as usize, hints);
                self.w.run(op).unwrap().to_vec()
            }
        };
        if got != want {
            let differs = got.iter().zip(want).position(|(a, b)| a != b);
            panic!("read {} of {} bytes at {at}, first difference at {differs:?}", got.len(), want.len());
        }
    }

    fn step(&mut self) {
        let root = Ctx::root();
        let file = self.open[0].clone();
        match self.w.rand(24) {
            0..=8 => self.write(),
            9..=16 => self.read(),
            17 => {
                let size = self.w.rand(LARGEST);
                self.trace.push(format!("truncate {size}"));
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let op = self.w.client.setattr(&root, file.ino(), set, Some(&file));
                assert_eq!(self.w.run(op).unwrap().size, size);
                self.model.resize(size as usize, 0);
            }
            18 => {
                let (at, len) = self.range();
                let mode = match self.w.rand(4) {
                    0 => Fallocate::Allocate,
                    1 => Fallocate::KeepSize,
                    2 => Fallocate::PunchHole,
                    _ => Fallocate::ZeroRange { keep_size: self.w.rand(2) == 0 },
                };
                self.trace.push(format!("fallocate {mode:?} {at} {len}"));
                let op = self.w.client.fallocate(&root, &file, mode, at, len);
                self.w.run(op).unwrap();
                let end = (at + len) as usize;
                if matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange { keep_size: false }) {
                    let longer = self.model.len().max(end);
                    self.model.resize(longer, 0);
                }
                if !matches!(mode, Fallocate::Allocate | Fallocate::KeepSize) {
                    let end = end.min(self.model.len());
                    self.model[(at as usize).min(end)..end].fill(0);
                }
            }
            19 => {
                let ((from, len), (to, _)) = (self.range(), self.range());
                let len = len.min(LARGEST - to);
                if ByteRange::at(from, len).overlaps(&ByteRange::at(to, len)) {
                    return;
                }
                self.trace.push(format!("copy {from} to {to} {len}"));
                let op = self.w.client.copy_file_range(&root, (&file, from), (&self.open[1], to), len);
                let n = self.w.run(op).unwrap();
                let end = ((from + len) as usize).min(self.model.len());
                let bytes = self.model[(from as usize).min(end)..end].to_vec();
                assert_eq!(n, bytes.len());
                if !bytes.is_empty() {
                    self.put(to, &bytes);
                }
            }
            20 => {
                self.trace.push("fsync".into());
                let op = self.w.client.fsync(&root, &file, false);
                self.w.run(op).unwrap();
                assert_eq!(server_bytes(&self.w.server, file.ino()), self.model);
            }
            21 => {
                self.trace.push("evict".into());
                self.w.client.mount.cache.evict(0);
            }
            22 => {
                self.trace.push("age".into());
                self.w.clock.0.fetch_add(10_000_000_000, std::sync::atomic::Ordering::SeqCst);
                crate::writeback::flush::tick(&self.w.client.mount);
                for _ in 0..self.w.rand(20) {
                    self.w.step();
                }
            }
            _ => {
                let op = self.w.client.getattr(&root, file.ino());
                assert_eq!(self.w.run(op).unwrap().size, self.model.len() as u64);
                let at = self.w.rand(LARGEST);
                let op = self.w.client.lseek(&root, &file, at, Whence::Data);
                let data = self.w.run(op).unwrap_or(u64::MAX).min(self.model.len() as u64);
                if (at as usize) < self.model.len() {
                    let hole = &self.model[at as usize..data as usize];
                    assert!(hole.iter().all(|b| *b == 0), "only zeros before data");
                }
                self.walk(&file);
            }
        }
    }

    /// Lists the data and holes of the whole file, one after the other. All bytes that are not zero must be data, and
    /// both kinds must have a length.
    fn walk(&mut self, file: &Arc<OpenFile>) {
        let (root, end) = (Ctx::root(), self.model.len() as u64);
        let mut at = 0;
        while at < end {
            let op = self.w.client.lseek(&root, file, at, Whence::Data);
            let data = self.w.run(op).unwrap_or(end);
            assert!(self.model[at as usize..data as usize].iter().all(|b| *b == 0), "a hole from {at} to {data}");
            if data == end {
                break;
            }
            let op = self.w.client.lseek(&root, file, data, Whence::Hole);
            let hole = self.w.run(op).expect("the end is one");
            assert!(hole > data && hole <= end, "data from {data} to {hole} of {end}");
            at = hole;
        }
    }

    fn play(mut self, steps: usize) {
        for _ in 0..steps {
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step()));
            if let Err(panic) = played {
                let from = self.trace.len().saturating_sub(12);
                eprintln!("{}", self.trace[from..].join("\n"));
                std::panic::resume_unwind(panic);
            }
        }
        let Story { mut w, model, open, .. } = self;
        let ino = open[0].ino();
        drop(open);
        w.callbacks = 0;
        w.settle();
        let op = w.client.sync_all(&Ctx::root());
        w.run(op).unwrap();
        assert_eq!(server_bytes(&w.server, ino), model);
        w.check_clean();
    }
}

fn server_bytes(server: &Server, ino: Ino) -> Vec<u8> {
    server.contents(ino)
}

/// Goal: by whichever way requests go, reads return the written bytes (Promise S1, S3). Method: random reads, writes
/// (buffered, large, `O_DIRECT`, append), truncates, punches, copies, flushes, evictions and lock callbacks on one
/// file, with answers in random order. The file is compared with a vector, and at the end also with the server. At the
/// end nothing may be left over.
#[test]
fn random_operations_match_a_vector() {
    let layouts = ["growing", "striped,size=64K,count=3", "whole", "striped,size=128K,count=7"];
    for seed in 0..24 {
        Story::new(seed, layouts[seed as usize % layouts.len()]).play(400);
    }
}
