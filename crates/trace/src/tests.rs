//! Traces that are written and read again, cut, forged and of other versions; conflicts that are planted.

use crate::block::{Kind, VERSION, seal};
use crate::call::{Call, Caller, Course, Op, flags};
use crate::reader::{End, Header, Trace, records};
use crate::record::{Packer, Record};
use crate::summary::Summary;
use crate::verify::{Found, Model, verify};
use proptest::prelude::*;

fn block(all: &[Record]) -> Vec<u8> {
    let mut packer = Packer::default();
    all.iter().for_each(|record| packer.add(record));
    seal(Kind::Records, &packer.take())
}

fn header(boot: &str) -> Header {
    Header { boot: boot.into(), host: "node".into(), command: vec!["app".into()], ..Header::default() }
}

fn json(kind: Kind, what: &impl serde::Serialize) -> Vec<u8> {
    seal(kind, &serde_json::to_vec(what).expect("JSON"))
}

/// A whole trace, and where its blocks begin.
fn file(blocks: &[Vec<Record>]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut begins) = (json(Kind::Header, &header("b")), Vec::new());
    for records in blocks {
        begins.push(bytes.len());
        bytes.extend(block(records));
    }
    begins.push(bytes.len());
    bytes.extend(json(Kind::End, &End::default()));
    (bytes, begins)
}

fn read(op: Op, tid: u32, ino: u64, range: (u64, u64), time: (u64, u64)) -> Call {
    let (start_ns, took_ns) = (time.0, time.1 - time.0);
    let (len, result) = (range.1 - range.0, (range.1 - range.0) as i64);
    Call { tid, ino, handle: u64::from(tid), offset: range.0, len, result, start_ns, took_ns, ..Call::new(op) }
}

fn any_call() -> impl Strategy<Value = Call> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<i64>());
    let waits = (any::<u64>(), any::<u64>(), any::<u64>());
    let rest = (any::<Option<u8>>(), any::<u32>(), 0..u64::MAX - 1, any::<bool>());
    let names = (proptest::collection::vec(any::<u8>(), 0..300), proptest::collection::vec(any::<u8>(), 0..9));
    (0..Op::ALL.len(), any::<u32>(), numbers, waits, rest, names).prop_map(|(op, tid, n, w, rest, names)| Call {
        op: Op::ALL[op],
        start_ns: n.0,
        took_ns: n.1,
        tid,
        ino: n.2,
        handle: n.3,
        offset: n.4,
        len: n.0 ^ n.4,
        result: n.5,
        flags: rest.1,
        course: Course { reason: rest.0.filter(|r| *r < 255), lock_ns: w.0, fill_ns: w.1, server_ns: w.2 },
        other: n.1 ^ n.2,
        size: rest.3.then_some(rest.2),
        name: names.0.into(),
        new_name: names.1.into(),
    })
}

proptest! {
    /// Goal: what is written is read. Method: any calls, between records of the other kinds.
    #[test]
    fn records_come_back(calls in proptest::collection::vec(any_call(), 1..20), ino in any::<u64>()) {
        let mut all: Vec<Record> = calls.into_iter().map(Record::Call).collect();
        all.push(Record::Caller(Caller { tid: 7, pid: 5, program: "tar x".into() }));
        all.push(Record::Lost(ino));
        all.push(Record::Path { ino, path: b"a/b"[..].into() });
        all.push(Record::Reasons(vec!["one".into(), "two".into()]));
        prop_assert_eq!(records(&block(&all)), Ok(all));
    }

    /// Goal: a changed byte is never read as something else. Method: a trace of three blocks in which one bit is
    /// changed, each bit in turn.
    #[test]
    fn forged_bytes_are_found(at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let calls = |n: u64| vec![Record::Call(read(Op::Read, 1, n, (0, 4096), (n * 10, n * 10 + 5)))];
        let (bytes, begins) = file(&[calls(1), calls(2), calls(3)]);
        let mut forged = bytes.clone();
        let at = at.index(bytes.len());
        forged[at] ^= 1 << bit;
        match Trace::read(&forged[..]) {
            // In the header nothing can be trusted.
            Err(fault) => prop_assert!(at < begins[0] && fault.at <= at as u64),
            Ok(trace) => {
                let whole = begins[..3].iter().filter(|begin| begins[begins.partition_point(|b| b <= begin)] <= at).count();
                prop_assert_eq!(trace.calls.len(), whole);
                let fault = trace.fault.expect("found");
                prop_assert!(fault.at <= at as u64 && !fault.what.is_empty(), "{}", fault);
            }
        }
    }
}

/// Goal: a trace that is cut anywhere shows all blocks before the cut, and says where it was cut. Method: each length.
#[test]
fn a_cut_trace_is_read() {
    let calls = |n: u64| vec![Record::Call(read(Op::Write, 1, n, (0, 100), (n, n + 1))); 3];
    let (bytes, begins) = file(&[calls(1), calls(2)]);
    for len in 0..bytes.len() {
        let trace = Trace::read(&bytes[..len]);
        if len < begins[0] {
            assert!(trace.is_err(), "{len}");
            continue;
        }
        let trace = trace.expect("a header");
        let whole = begins[1..].iter().filter(|end| **end <= len).count();
        let fault = trace.fault.expect("cut");
        assert_eq!((trace.calls.len(), fault.is_cut, trace.end), (3 * whole, true, None), "{len}");
        let begin = begins.iter().chain([&bytes.len()]).rev().find(|begin| **begin <= len).copied();
        assert_eq!(Some(fault.at), begin.map(|b| b as u64), "{len}: {fault}");
        assert!(Summary::read(&bytes[..len]).expect("a header").text().contains("read as far as byte"));
    }
    let whole = Trace::read(&bytes[..]).expect("whole");
    assert!(whole.fault.is_none() && whole.end.is_some() && whole.calls.len() == 6);
}

/// Goal: other versions, other files and what follows an end are refused by name. Method: an example of each.
#[test]
fn what_is_no_trace_is_refused() {
    let (mut bytes, _) = file(&[]);
    let fault = |bytes: &[u8]| Trace::read(bytes).expect_err("refused");
    bytes[4] = VERSION + 1;
    assert!(fault(&bytes).to_string().starts_with("byte 4: the format has version 2"), "{}", fault(&bytes));
    assert!(fault(b"").what.contains("empty"));
    assert!(fault(b"#!/bin/sh").what.contains("are no trace"));
    assert!(fault(&[b'x'; 100]).what.contains("no trace of amphi record"));
    assert!(fault(&block(&[Record::Lost(1)])).what.contains("the header is missing"));
    let (mut bytes, _) = file(&[]);
    bytes.extend(block(&[Record::Lost(1)]));
    assert!(Trace::read(&bytes[..]).expect("a header").fault.expect("more").what.contains("follows the end"));
    let bad = [json(Kind::Header, &header("b")), seal(Kind::Records, &[9])].concat();
    let found = Trace::read(&bad[..]).expect("a header").fault.expect("bad");
    assert!(found.what.contains("no such record") && !found.is_cut, "{found}");
}

/// Goal: paths are put together from look-ups, as far as they were seen. Method: names in two directories.
#[test]
fn names_become_paths() {
    let named = |dir, name: &str, ino, flags| Call {
        ino: dir,
        name: name.as_bytes().into(),
        other: ino,
        flags,
        ..Call::new(Op::Lookup)
    };
    let calls = [named(1, "a", 10, flags::DIRECTORY), named(10, "b", 11, 0), named(77, "c", 12, 0)];
    let trace = Trace { calls: calls.into(), ..Trace::default() };
    let names = trace.names();
    assert_eq!((&names[&11][..], &names[&12][..]), (&b"a/b"[..], &b".../c"[..]));
}

/// A trace of these calls; thread and process are the same.
fn trace(boot: &str, wall_ns: u64, calls: Vec<Call>) -> Trace {
    Trace { header: Header { wall_ns, ..header(boot) }, calls, ..Trace::default() }
}

fn mark(op: Op, tid: u32, time: (u64, u64)) -> Call {
    Call { handle: u64::from(tid), ..read(op, tid, 5, (0, 0), time) }
}

/// Goal: each model finds what lacks its order, and nothing else. Method: a write and a read of two processes with more
/// and more between them.
#[test]
fn models_want_more_and_more() {
    let write = read(Op::Write, 1, 5, (0, 4096), (100, 200));
    let reading = read(Op::Read, 2, 5, (4000, 5000), (500, 600));
    let found =
        |calls: &[&Call], model| verify(&[trace("b", 0, calls.iter().map(|c| (*c).clone()).collect())], model, 0);
    let count = |calls: &[&Call]| [Model::Posix, Model::Commit, Model::Session].map(|m| found(calls, m).pairs.len());
    let early = read(Op::Read, 2, 5, (4095, 4096), (150, 160));
    assert_eq!(count(&[&write, &early]), [1, 1, 1], "at the same time");
    assert_eq!(count(&[&write, &reading]), [0, 1, 1], "later");
    let (sync, close, open) =
        (mark(Op::Fsync, 1, (210, 220)), mark(Op::Close, 1, (230, 240)), mark(Op::Open, 2, (250, 260)));
    assert_eq!(count(&[&write, &sync, &reading]), [0, 0, 1], "synced");
    assert_eq!(count(&[&write, &close, &reading]), [0, 0, 1], "closed");
    assert_eq!(count(&[&write, &close, &open, &reading]), [0, 0, 0], "closed and opened");
    let before = mark(Op::Open, 2, (50, 60));
    assert_eq!(count(&[&before, &write, &close, &reading]), [0, 0, 1], "opened before");
    let apart = read(Op::Read, 2, 5, (4096, 5000), (150, 160));
    assert_eq!(count(&[&write, &apart]), [0, 0, 0], "other bytes");
    let own = read(Op::Read, 1, 5, (0, 4096), (150, 160));
    assert_eq!(count(&[&write, &own]), [0, 0, 0], "one process");
    let Found { pairs, accesses, .. } = found(&[&write, &reading], Model::Commit);
    let [first, second] = &pairs[0].calls;
    assert_eq!((first.process, first.range, second.process, second.time), (1, (0, 4096), 2, (500, 600)));
    assert_eq!((pairs[0].count, accesses, pairs[0].undecided), (1, 2, false));
}

/// Goal: calls of two nodes whose clocks may differ by more than the time between the calls are undecided; those of one
/// node never are. Method: two traces, of one boot and of two.
#[test]
fn clocks_may_be_apart() {
    let found = |other: &str, at: u64| {
        let first = trace("b", 1000, vec![read(Op::Write, 1, 5, (0, 10), (100, 200))]);
        let second = trace(other, 1000, vec![read(Op::Write, 9, 5, (0, 10), (at, at + 50))]);
        let pairs = verify(&[first, second], Model::Posix, 1000).pairs;
        pairs.first().map(|pair| pair.undecided)
    };
    assert_eq!([found("b", 300), found("b", 150)], [None, Some(false)]);
    assert_eq!([found("c", 300), found("c", 5000)], [Some(true), None]);
    // The clock of the second began a second later.
    let first = trace("b", 1000, vec![read(Op::Write, 1, 5, (0, 10), (2_000_000_000, 2_000_000_100))]);
    let second = trace("c", 1_000_001_000, vec![read(Op::Write, 9, 5, (0, 10), (1_000_000_050, 1_000_000_060))]);
    assert_eq!(verify(&[first, second], Model::Posix, 0).pairs.len(), 1);
}
