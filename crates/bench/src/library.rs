//! Files through the client library, without a mount: streams, and single cached operations.
//!
//! Owns: what a program that links the client would do. Bytes lie ready in memory before the clock runs, as in
//! an application; writes are timed to the end of fsync.

use super::clock::now;
use super::stream::{Moved, PREPARE_BYTES, is_stamped, stamped};
use amphi_client::{Client, Ctx, Hints, OpenFile, OpenFlags};
use amphi_env::Buf;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_types::{Attr, Errno, Ino, SetAttr};
use amphi_wire::XattrMode;
use std::sync::Arc;

/// An open file of the client library.
pub struct LibraryFile {
    client: Client,
    ctx: Ctx,
    file: Arc<OpenFile>,
    ino: Ino,
    name: String,
}

impl LibraryFile {
    /// Makes `name` in the root, or empties it.
    pub fn create(client: &Client, name: &str) -> Outcome<LibraryFile> {
        let ctx = Ctx::root();
        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        let made = client.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644, flags).wait(None);
        let made = made.during(|| format!("make {name}"))?;
        Ok(LibraryFile { client: client.clone(), ctx, file: made.file, ino: made.attr.ino, name: name.into() })
    }

    /// Opens `name` in the root, which another client may have made.
    pub fn open(client: &Client, name: &str) -> Outcome<LibraryFile> {
        Self::open_as(client, name, OpenFlags::READ_WRITE)
    }

    /// As `open`, for reading alone.
    pub fn open_read(client: &Client, name: &str) -> Outcome<LibraryFile> {
        Self::open_as(client, name, OpenFlags::READ)
    }

    fn open_as(client: &Client, name: &str, flags: OpenFlags) -> Outcome<LibraryFile> {
        let ctx = Ctx::root();
        let found = client.lookup(&ctx, Ino::ROOT, name.as_bytes()).wait(None).during(|| format!("look up {name}"))?;
        let file = client.open(&ctx, found.ino, flags).wait(None).during(|| format!("open {name}"))?;
        Ok(LibraryFile { client: client.clone(), ctx, file, ino: found.ino, name: name.into() })
    }

    /// Closes it and leaves it.
    pub fn close(self) {
        drop(self);
    }

    /// Sets the permission bits.
    pub fn chmod(&self, perm: u16) -> Outcome {
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        let done = self.client.setattr(&self.ctx, self.ino, set, None).wait(None);
        done.during(|| format!("chmod {}", self.name)).map(drop)
    }

    /// Makes it empty.
    pub fn empty(&self) -> Outcome {
        self.truncate()
    }

    /// Writes every `of`-th block of `transfer` bytes, from block `first` on, to the end of fsync.
    pub fn write_blocks(
        &self,
        bytes: u64,
        transfer: usize,
        first: usize,
        of: usize,
        ready: &dyn Fn(),
    ) -> Outcome<Moved> {
        let offsets: Vec<u64> =
            (0..bytes / transfer as u64).skip(first).step_by(of).map(|i| i * transfer as u64).collect();
        let bufs: Vec<Buf> = offsets.iter().map(|&at| stamped(at, transfer)).collect();
        ready();
        let start = now();
        for (at, buf) in offsets.iter().zip(bufs) {
            self.write(*at, buf)?;
        }
        self.fsync()?;
        Ok(Moved { bytes: (offsets.len() * transfer) as u64, start, end: now() })
    }

    /// Sets the I/O mode.
    pub fn set_mode(&self, mode: &str) -> Outcome {
        let set = self.client.setxattr(&self.ctx, self.ino, b"user.amphi.mode", mode.as_bytes(), XattrMode::Set);
        set.wait(None).during(|| format!("set the mode of {} to {mode}", self.name))
    }

    fn truncate(&self) -> Outcome {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let done = self.client.setattr(&self.ctx, self.ino, set, Some(&self.file)).wait(None);
        done.during(|| format!("truncate {}", self.name)).map(drop)
    }

    fn fsync(&self) -> Outcome {
        self.client.fsync(&self.ctx, &self.file, false).wait(None).during(|| format!("fsync {}", self.name))
    }

    /// One write of all of `buf`, whose ownership passes to the client, and served on this thread if possible.
    fn write(&self, at: u64, mut buf: Buf) -> Outcome {
        let len = buf.len();
        let done = match self.client.try_write_buf(&self.ctx, &self.file, at, &mut buf, Hints::default()) {
            Some(n) => Ok(n),
            None => self.client.write(&self.ctx, &self.file, at, buf, Hints::default()).wait(None),
        };
        match done.during(|| format!("write {} at {at}", self.name))? {
            n if n == len => Ok(()),
            n => Err(Failure::broken(format!("{}: only {n} of {len} bytes written at {at}", self.name))),
        }
    }

    /// Fills the file with stamped bytes that no cache of AmphiFS keeps.
    pub fn prepare(&self, bytes: u64) -> Outcome {
        self.truncate()?;
        self.set_mode("direct")?;
        for at in (0..bytes).step_by(PREPARE_BYTES) {
            self.write(at, stamped(at, PREPARE_BYTES.min((bytes - at) as usize)))?;
        }
        self.fsync()
    }

    /// Empties the file and writes it, `transfer` bytes at a time, to the end of fsync. MiB/s.
    pub fn stream_write(&self, bytes: u64, transfer: usize) -> Outcome<f64> {
        self.write_when(bytes, transfer, &|| ()).map(|m| m.rate())
    }

    /// As `stream_write`; calls `ready` when the clock is about to run.
    pub fn write_when(&self, bytes: u64, transfer: usize, ready: &dyn Fn()) -> Outcome<Moved> {
        self.truncate()?;
        let offsets: Vec<u64> = (0..bytes / transfer as u64).map(|i| i * transfer as u64).collect();
        let bufs: Vec<Buf> = offsets.iter().map(|&at| stamped(at, transfer)).collect();
        ready();
        let start = now();
        for (at, buf) in offsets.iter().zip(bufs) {
            self.write(*at, buf)?;
        }
        self.fsync()?;
        Ok(Moved { bytes: (offsets.len() * transfer) as u64, start, end: now() })
    }

    /// Nanoseconds of all write calls of a stream, and of the fsync behind it.
    pub fn write_and_fsync_ns(&self, bytes: u64, transfer: usize) -> Outcome<(f64, f64)> {
        self.truncate()?;
        let offsets: Vec<u64> = (0..bytes / transfer as u64).map(|i| i * transfer as u64).collect();
        let bufs: Vec<Buf> = offsets.iter().map(|&at| stamped(at, transfer)).collect();
        let start = now();
        for (at, buf) in offsets.iter().zip(bufs) {
            self.write(*at, buf)?;
        }
        let written = now();
        self.fsync()?;
        Ok(((written - start).as_nanos() as f64, written.elapsed().as_nanos() as f64))
    }

    /// Counters of the mount and of its servers by name: what each has summed up.
    pub fn counted(&self) -> Outcome<std::collections::BTreeMap<String, u64>> {
        let read = |name: &str| {
            let text = self.client.getxattr(&self.ctx, Ino::ROOT, name.as_bytes()).wait(None);
            text.during(|| format!("read {name}"))
        };
        let json: serde_json::Value = serde_json::from_slice(&read("user.amphi.stats.json")?)
            .during(|| "understand the counters of the mount".into())?;
        let rows = json["counters"].as_object().into_iter().flatten();
        let mut all: std::collections::BTreeMap<String, u64> =
            rows.map(|(name, row)| (name.clone(), row["sum"].as_u64().unwrap_or(0))).collect();
        let server = String::from_utf8_lossy(&read("user.amphi.counters.server")?).into_owned();
        let rows = server.lines().filter_map(|l| l.rsplit_once(' '));
        all.extend(rows.filter_map(|(name, n)| Some((name.trim().to_string(), n.parse().ok()?))));
        Ok(all)
    }

    /// Reads what `prepare` wrote, `transfer` bytes at a time, and checks the stamps. MiB/s.
    pub fn stream_read(&self, bytes: u64, transfer: usize) -> Outcome<f64> {
        self.read_when(bytes, transfer, &|| ()).map(|m| m.rate())
    }

    /// As `stream_read`; calls `ready` when the clock is about to run.
    pub fn read_when(&self, bytes: u64, transfer: usize, ready: &dyn Fn()) -> Outcome<Moved> {
        let mut into = Buf::zeroed(transfer);
        ready();
        let start = now();
        for at in (0..bytes / transfer as u64).map(|i| i * transfer as u64) {
            if let Some(n) = self.client.try_read(&self.ctx, &self.file, at, &mut into, Hints::default()) {
                self.check(at, n, transfer, &into)?;
                continue;
            }
            let read = self.client.read(&self.ctx, &self.file, at, transfer, Hints::default()).wait(None);
            let bytes = read.during(|| format!("read {} at {at}", self.name))?;
            self.check(at, bytes.len(), transfer, bytes.parts().next().unwrap_or_default())?;
        }
        Ok(Moved { bytes: bytes / transfer as u64 * transfer as u64, start, end: now() })
    }

    fn check(&self, at: u64, got: usize, asked: usize, bytes: &[u8]) -> Outcome {
        if got == asked && is_stamped(at, bytes) {
            return Ok(());
        }
        Err(Failure::broken(format!("{}: wrong bytes at {at} ({got} of {asked})", self.name)))
    }

    /// One read from the cache. An error if the bytes are not there: then it is no cached read.
    pub fn cached_read(&self, at: u64, into: &mut [u8]) -> Outcome {
        match self.client.try_read(&self.ctx, &self.file, at, into, Hints::default()) {
            Some(n) if n == into.len() => Ok(()),
            Some(n) => Err(Failure::broken(format!("{}: only {n} bytes at {at}", self.name))),
            None => Err(Failure::broken(format!("{}: not in the cache at {at}", self.name))),
        }
    }

    /// One write into the cache; waits if it must. Returns whether it was served on this thread.
    pub fn cached_write(&self, at: u64, bytes: &[u8]) -> Outcome<bool> {
        match self.client.try_write(&self.ctx, &self.file, at, bytes, Hints::default()) {
            Some(_) => Ok(true),
            None => self.write(at, Buf::copy_of(bytes)).map(|()| false),
        }
    }

    /// One stat, answered by the server.
    pub fn stat(&self) -> Outcome<Attr> {
        self.client.getattr(&self.ctx, self.ino).wait(None).during(|| format!("stat {}", self.name))
    }

    /// Median microseconds of `rounds` stats, one after the other, from this thread.
    pub fn stats_us(&self, rounds: usize) -> Outcome<f64> {
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let start = super::clock::now();
            self.stat()?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        Ok(median_us(times))
    }

    /// The same from a task on the thread that has the connection.
    pub fn stats_beside_us(&self, rounds: usize) -> Outcome<f64> {
        let (tell, told) = std::sync::mpsc::channel();
        let (client, ctx, ino) = (self.client.clone(), self.ctx.clone(), self.ino);
        self.client.spawn(async move {
            let mut times = Vec::with_capacity(rounds);
            let mut result = Ok(());
            for _ in 0..rounds {
                let start = super::clock::now();
                result = client.getattr(&ctx, ino).await.map(drop);
                if result.is_err() {
                    break;
                }
                times.push(start.elapsed().as_nanos() as u64);
            }
            drop(tell.send(result.map(|()| times)));
        });
        let times = told.recv().unwrap_or(Err(Errno::Canceled)).during(|| format!("stat {}", self.name))?;
        Ok(median_us(times))
    }

    /// Removes the file.
    pub fn remove(self) -> Outcome {
        match self.client.unlink(&self.ctx, Ino::ROOT, self.name.as_bytes()).wait(None) {
            Ok(()) | Err(Errno::NoEnt) => Ok(()),
            Err(e) => Err(Failure::broken(format!("cannot remove {}: {e}", self.name))),
        }
    }
}

fn median_us(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |t| *t as f64 / 1000.0)
}
