//! Counters by job, of a file, and of copies.

use super::policy::{io, read, sent, write};
use super::world::World;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::policy::decision::Reason;
use crate::telemetry::stats::{Count, Way};
use crate::{JobName, OpenFile, UNIT_BYTES};
use amphi_env::Buf;
use amphi_types::{Ino, Pattern};
use amphi_wire::XattrMode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const KIB64: u64 = UNIT_BYTES as u64;

fn attribute(w: &mut World, ino: Ino, name: &str) -> String {
    let op = w.client.getxattr(&Ctx::root(), ino, format!("user.amphi.{name}").as_bytes());
    String::from_utf8(w.run(op).expect(name)).expect("text")
}

fn jobs(w: &mut World) -> String {
    attribute(w, Ino::ROOT, "jobs")
}

fn set(w: &mut World, name: &str, value: &str) {
    let name = format!("user.amphi.{name}");
    let op = w.client.setxattr(&Ctx::root(), Ino::ROOT, name.as_bytes(), value.as_bytes(), XattrMode::Set);
    w.run(op).expect("set");
}

fn open_for(w: &mut World, ino: Ino, job: Option<&str>) -> Arc<OpenFile> {
    let ctx = Ctx { job: job.and_then(JobName::new), ..Ctx::root() };
    let op = w.client.open(&ctx, ino, OpenFlags::READ_WRITE);
    w.run(op).expect("open")
}

/// Returns how often something happened to a file, by its own counters.
fn of_file(file: &Arc<OpenFile>, what: &str) -> u64 {
    let text = file.counters();
    let line = text.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(' '));
    line.map_or(0, |l| l.split(' ').next().and_then(|n| n.parse().ok()).expect("a number"))
}

/// Goal: requests are counted by reason for the job that opened the file, while it is open and when it is closed.
/// Without a job they are counted for `-`. A reset keeps jobs with open files, with counts of zero, and the switch ends
/// the counting. Method: three opens of one file, with cached and direct requests.
#[test]
fn requests_are_counted_by_job() {
    let mut w = World::new(1, &[]);
    let plain = w.create("f", OpenFlags::READ_WRITE);
    let ino = plain.ino();
    let (one, other) = (open_for(&mut w, ino, Some("4711")), open_for(&mut w, ino, Some("b c\"d")));
    write(&mut w, &one, 1, 0, 100, false);
    write(&mut w, &one, 1, 100, 50, false);
    assert_eq!(read(&mut w, &one, 0, 40), 40);
    assert_eq!(read(&mut w, &one, 0, 2), 2);
    write(&mut w, &other, 1, 0, 2 << 20, false);
    write(&mut w, &plain, 1, 0, 7, false);
    let all = jobs(&mut w);
    let want = "{\"jobs\":[\
        {\"job\":\"-\",\"open\":1,\"opens\":1,\"throttled\":0,\"counters\":\
            {\"write_buffered_small\":{\"requests\":1,\"bytes\":7}}},\
        {\"job\":\"4711\",\"open\":1,\"opens\":1,\"throttled\":0,\"counters\":\
            {\"read_cache_hit\":{\"requests\":2,\"bytes\":42},\"write_buffered_small\":{\"requests\":2,\"bytes\":150}}},\
        {\"job\":\"b_c_d\",\"open\":1,\"opens\":1,\"throttled\":0,\"counters\":\
            {\"write_direct_large\":{\"requests\":1,\"bytes\":2097152}}}\
        ],\"more\":false}";
    assert_eq!(all, want);
    let rest = attribute(&mut w, Ino::ROOT, "jobs.after.4711");
    assert!(rest.starts_with("{\"jobs\":[{\"job\":\"b_c_d\""), "{rest}");
    drop(one);
    let closed = jobs(&mut w);
    let line = "\"job\":\"4711\",\"open\":0,\"opens\":1,\"throttled\":0,\"counters\":{\"read_cache_hit\":{\"requests\":2,\"bytes\":42}";
    assert!(closed.contains(line), "{closed}");
    let again = open_for(&mut w, ino, Some("4711"));
    write(&mut w, &again, 1, 200, 6, false);
    drop(again);
    let closed = jobs(&mut w);
    assert!(closed.contains("\"4711\",\"open\":0,\"opens\":2,"), "{closed}");
    assert!(closed.contains("\"write_buffered_small\":{\"requests\":3,\"bytes\":156}"), "{closed}");
    write(&mut w, &other, 1, 0, 9, false);
    set(&mut w, "stats", "reset");
    let line = "{\"job\":\"b_c_d\",\"open\":1,\"opens\":0,\"throttled\":0,\"counters\":{}}],\"more\":false}";
    let reset = jobs(&mut w);
    assert!(reset.ends_with(line) && !reset.contains("4711"), "{reset}");
    set(&mut w, "set", "client.jobs=off");
    let off = open_for(&mut w, ino, Some("4711"));
    assert!(!jobs(&mut w).contains("4711"));
    drop((plain, other, off));
    w.check_clean();
}

/// Goal: an open that names no job is counted for the job of the library's own process, which its environment names.
/// Method: an environment of three variables, two of which are looked for.
#[test]
fn a_library_has_one_job() {
    let clock = Arc::new(super::world::TestClock::default());
    let variable = |name: &str| match name {
        "SLURM_JOB_ID" => Some(String::new()),
        "PBS_JOBID" => Some("12.host".to_string()),
        "LSB_JOBID" => Some("13".to_string()),
        _ => None,
    };
    let config = crate::ClientConfig::new(clock).in_job_of(variable);
    assert_eq!(config.job.as_ref().map(JobName::to_string).as_deref(), Some("12.host"));
    let (client, _io) = crate::Client::new(config);
    let (own, named) = (client.mount.job_of(None), client.mount.job_of(JobName::new("x").as_ref()));
    assert!(!Arc::ptr_eq(&own, &named));
    let shown = client.mount.booked_jobs().json(None);
    assert!(
        shown.contains("{\"job\":\"12.host\",\"open\":1,") && shown.contains("{\"job\":\"x\",\"open\":1,"),
        "{shown}"
    );
}

/// Goal: the table of jobs is bounded. The job without an open file that was used longest ago is dropped. If there is
/// none, a new job is counted for `-`. A table too long for an attribute is shown in parts, each job once. Method: a
/// table full of open jobs, of which two close.
#[test]
fn jobs_are_bounded() {
    let w = World::new(1, &[]);
    let mount = &w.client.mount;
    let name = |i: usize| JobName::new(&format!("job-{i:04}-{}", "x".repeat(100))).expect("a name");
    let mut open: Vec<_> = (0..1024).map(|i| mount.job_of(Some(&name(i)))).collect();
    for (job, reason) in open.iter().flat_map(|job| Reason::ALL.iter().map(move |reason| (job, *reason))) {
        job.by_reason().add(Way::Write, reason, 1, u64::MAX / 2);
    }
    let refused = mount.job_of(Some(&name(5000)));
    assert!(Arc::ptr_eq(&refused, &mount.job_of(None)), "counted with what has no job");
    let counted = |what| mount.stats.of(what).0;
    assert_eq!((counted(Count::JobForgotten), counted(Count::JobRefused)), (0, 1));
    for at in [7, 3] {
        mount.jobs.note_use(&open[at]);
    }
    open.remove(7);
    open.remove(3);
    let new = mount.job_of(Some(&name(5000)));
    assert!(!Arc::ptr_eq(&refused, &new));
    assert_eq!((counted(Count::JobForgotten), counted(Count::JobRefused)), (1, 1));
    let (mut names, mut parts): (Vec<String>, usize) = (Vec::new(), 0);
    loop {
        let part = mount.booked_jobs().json(names.last().map(String::as_str));
        assert!(part.len() <= 64 << 10, "it fits an attribute");
        let jobs = part.split("\"job\":\"").skip(1);
        names.extend(jobs.map(|j| j.split('"').next().expect("a name").to_string()));
        parts += 1;
        if part.ends_with("\"more\":false}") {
            break;
        }
    }
    assert!(parts > 10 && names.is_sorted(), "{parts} parts");
    assert_eq!(names.len(), 1025, "with what has no job");
    let shown = |i: usize| names.contains(&name(i).to_string());
    assert_eq!([shown(7), shown(3), shown(5000)], [false, true, true], "the one that was used longest ago went");
}

/// Goal: writers that wait for room are counted with their job. Method: 24 MiB through a cache of 8 MiB.
#[test]
fn throttled_writers_are_counted_by_job() {
    let mut w = World::new(1, &[("cache.max_bytes", "8M"), ("hybrid.mode", "buffered")]);
    let ino = w.create("f", OpenFlags::READ_WRITE).ino();
    let file = open_for(&mut w, ino, Some("j"));
    for at in (0..24u64 << 20).step_by(256 << 10) {
        write(&mut w, &file, 1, at, 256 << 10, false);
    }
    let throttled = w.client.mount.stats.of(Count::Throttled).0;
    let shown = jobs(&mut w);
    assert!(
        throttled > 0 && shown.contains(&format!("\"job\":\"j\",\"open\":1,\"opens\":1,\"throttled\":{throttled},"))
    );
    drop(file);
    w.check_clean();
}

/// Goal: a file counts its messages, its lock requests, the callbacks of its locks, the contention reports, and its
/// hits while it is open. Method: one file, so that every message is about this file, with a fill, a callback and a
/// contended write.
#[test]
fn a_file_counts_its_locks_and_messages() {
    let mut w = World::new(1, &[("readahead.max_bytes", "0")]);
    let ino = w.server.plant("f", &vec![7; 1 << 20], Pattern::Whole);
    let file = open_for(&mut w, ino, None);
    let before = w.server.log.len();
    assert_eq!(read(&mut w, &file, 0, 4096), 4096);
    assert_eq!(read(&mut w, &file, 0, 4096), 4096);
    assert_eq!((sent(&w, "LockEnqueue"), sent(&w, "Read")), (1, 1));
    assert_eq!(
        (of_file(&file, "lock_enqueue"), of_file(&file, "server_calls")),
        (1, (w.server.log.len() - before) as u64)
    );
    let counters = attribute(&mut w, ino, "counters");
    assert!(counters.contains("read_cache_hit 1 requests 4096 bytes\n"), "{counters}");
    assert!(attribute(&mut w, ino, "counters.json").contains("\"lock_enqueue\":{\"requests\":1}"));
    let (id, object) = w.server.locks.iter().next().map(|(id, (o, _))| (*id, *o)).expect("a lock");
    w.server.called_back.push(id);
    crate::locks::callback(&w.client.mount, w.client.mount.target_of(object), object, id);
    w.settle();
    assert_eq!((of_file(&file, "lock_callback"), sent(&w, "LockCancel")), (1, 1));
    assert_eq!((of_file(&file, "contended_told"), of_file(&file, "batch_requests")), (0, 0));
    let calls = of_file(&file, "server_calls");
    w.server.contended = true;
    write(&mut w, &file, 1, 0, 2 << 20, false);
    w.settle();
    w.server.contended = false;
    assert!(of_file(&file, "contended_told") > 0);
    assert_eq!(of_file(&file, "server_calls") - calls, sent(&w, "Write") as u64, "each piece is one");
    drop(file);
    w.check_clean();
}

/// Goal: a message for several files is counted as a batch for each of them, and for none as its own message. Method:
/// three small files, closed dirty by their writers and open for reading.
#[test]
fn a_file_counts_the_batches_that_carry_it() {
    let mut w = World::new(1, &[]);
    let files: Vec<_> = (0..3)
        .map(|i| {
            let file = w.create(&format!("f{i}"), OpenFlags::READ_WRITE);
            write(&mut w, &file, 1, 0, 1000, false);
            let op = w.client.open(&Ctx::root(), file.ino(), OpenFlags::READ);
            w.run(op).expect("open")
        })
        .collect();
    let calls: Vec<u64> = files.iter().map(|f| of_file(f, "server_calls")).collect();
    w.clock.0.fetch_add(6_000_000_000, SeqCst);
    crate::writeback::flush::tick(&w.client.mount);
    w.settle();
    assert_eq!((sent(&w, "WriteBatch"), sent(&w, "CloseBatch"), sent(&w, "Write")), (1, 1, 0));
    for (file, calls) in files.iter().zip(calls) {
        assert_eq!((of_file(file, "batch_requests"), of_file(file, "server_calls")), (2, calls));
    }
    drop(files);
    w.check_clean();
}

/// Goal: if the page cache has the next bytes of a stream, they are loaded into the processor's cache ahead, up to the
/// end of the file, and for reads of bounded size. For a stream that jumps about, nothing is loaded. Method: single
/// calls, and the counter.
#[test]
fn what_a_stream_reads_next_is_warmed() {
    let mut w = World::new(1, &[("readahead.max_bytes", "0")]);
    let planted = w.server.plant("f", &vec![7; 10 * UNIT_BYTES], Pattern::Whole);
    let file = open_for(&mut w, planted, None);
    // All but the last unit.
    read(&mut w, &file, 0, 9 * UNIT_BYTES);
    let warmed = |w: &World, unit: u64, units: usize| {
        let before = w.client.mount.stats.of(Count::Warmed).1;
        w.client.warm_next(&file, unit * KIB64, units * UNIT_BYTES);
        w.client.mount.stats.of(Count::Warmed).1 - before
    };
    assert_eq!(warmed(&w, 0, 1), KIB64, "a file is read from its start");
    assert_eq!(warmed(&w, 1, 2), 2 * KIB64);
    assert_eq!(warmed(&w, 5, 1), 0, "not where the last one ended");
    assert_eq!(warmed(&w, 2, 1), 0, "nor here");
    assert_eq!(warmed(&w, 3, 1), KIB64);
    assert_eq!(warmed(&w, 4, 4), 0, "not all of it is cached");
    read(&mut w, &file, 9 * KIB64, UNIT_BYTES);
    assert_eq!(warmed(&w, 8, 2), 0, "not where the last one ended");
    assert_eq!(warmed(&w, 4, 4), 0);
    assert_eq!(warmed(&w, 8, 1), KIB64);
    assert_eq!(warmed(&w, 9, 1), 0, "the end");
    assert_eq!(warmed(&w, 6, 3), 0);
    assert_eq!(warmed(&w, 9, 3), 0, "behind the end");
    assert_eq!((warmed(&w, 0, 4), warmed(&w, 4, 4)), (0, 2 * KIB64), "up to the end");
    warmed(&w, 6, 2);
    assert_eq!((warmed(&w, 0, 5), warmed(&w, 5, 5)), (0, 0), "reads of more than 256 KiB");
    drop(file);
    w.check_clean();
}

/// Goal: bytes copied into the cache, out of it to readers, and out of it for write-back are counted. Each copy is
/// counted once, and lent or adopted memory is not counted. Method: small and large requests, buffered and direct, hits
/// and misses, and the counters after each.
#[test]
fn copies_are_counted() {
    let mut w = World::new(1, &[("readahead.max_bytes", "0")]);
    let (ctx, hints) = (Ctx::root(), Hints::default());
    let file = w.create("f", OpenFlags::READ_WRITE);
    let copied = |w: &World| {
        let sum = |what| w.client.mount.stats.of(what).1;
        [sum(Count::CopiedIn), sum(Count::CopiedOut), sum(Count::WriteBackCopied), sum(Count::Lent)]
    };
    write(&mut w, &file, 1, 0, 100, false);
    assert_eq!(copied(&w), [100, 0, 0, 0]);
    assert_eq!(read(&mut w, &file, 10, 50), 50);
    assert_eq!(copied(&w), [100, 50, 0, 0]);
    // The slow ways.
    let op = w.client.write(&ctx, &file, 100, Buf::zeroed(30), hints);
    assert_eq!(w.run(op), Ok(30));
    let op = w.client.read(&ctx, &file, 0, 20, hints);
    assert_eq!(w.run(op).expect("read").len(), 20);
    assert_eq!(copied(&w), [130, 70, 0, 0]);
    // A whole unit keeps its memory and is passed without a copy; the copy for write-back contains both units, since
    // they are few.
    let mut unit = Buf::scratch(UNIT_BYTES);
    unit.fill(1);
    assert_eq!(w.client.try_write_buf(&ctx, &file, KIB64, &mut unit, hints), Some(UNIT_BYTES));
    assert!(w.client.try_lend(&ctx, &file, KIB64, UNIT_BYTES, hints).is_some());
    let op = w.client.read(&ctx, &file, KIB64, UNIT_BYTES, hints);
    assert_eq!(w.run(op).expect("read").len(), UNIT_BYTES);
    assert_eq!(copied(&w), [130, 70, 0, 2 * KIB64]);
    let op = w.client.fsync(&ctx, &file, false);
    w.run(op).expect("fsync");
    assert_eq!(copied(&w), [130, 70, 130 + KIB64, 2 * KIB64]);
    // A fill of a page is copied in and out; that of a unit keeps the memory it arrived in, and is lent.
    let planted = w.server.plant("g", &vec![7; 1 << 20], Pattern::Whole);
    let other = open_for(&mut w, planted, None);
    let before = copied(&w);
    let more = |w: &World| -> Vec<u64> { copied(w).iter().zip(before).map(|(now, then)| now - then).collect() };
    assert_eq!(read(&mut w, &other, 8192, 4096), 4096);
    assert_eq!(more(&w), [4096, 4096, 0, 0]);
    assert_eq!(read(&mut w, &other, KIB64, UNIT_BYTES), UNIT_BYTES);
    assert_eq!(more(&w), [4096, 4096, 0, KIB64]);
    // Past the cache nothing is copied out of it.
    let op = w.client.read(&ctx, &other, 2 * KIB64, UNIT_BYTES, Hints { direct: true, ..hints });
    assert_eq!(w.run(op).expect("read").len(), UNIT_BYTES);
    assert_eq!(more(&w), [4096, 4096, 0, KIB64]);
    assert_eq!(io(&w, Way::Read, Reason::CacheHit), (4, 70 + 2 * KIB64), "hits are shown as one, copied or lent");
    drop((file, other));
    w.check_clean();
}
