//! A reader of traces.

use amphi_trace::block::{CONTENT_MAX, Kind, seal};
use amphi_trace::summary::Summary;
use amphi_trace::verify::{Model, verify};
use amphi_trace::{Fault, Trace};

/// Reads `bytes` as a file of a trace, and as the content of a block whose sum is right: sums it up, looks for
/// conflicts, and plans its replay.
///
/// Panics if a fault has no place or no reason.
pub fn traces(bytes: &[u8]) {
    let said = |fault: &Fault, len: usize| assert!(fault.at <= len as u64 && !fault.what.is_empty(), "{fault}");
    if let Err(fault) = Trace::read(bytes) {
        said(&fault, bytes.len());
    }
    let content = &bytes[..bytes.len().min(CONTENT_MAX)];
    let file = [seal(Kind::Header, b"{}"), seal(Kind::Records, content)].concat();
    let Ok(trace) = Trace::read(&file[..]) else { panic!("the header is whole") };
    trace.fault.iter().for_each(|fault| said(fault, file.len()));
    let summary = Summary::read(&file[..]).expect("the header is whole");
    let _ = (summary.text(), summary.json());
    for model in [Model::Posix, Model::Commit, Model::Session] {
        let _ = verify(std::slice::from_ref(&trace), model, 1000);
    }
    let plan = amphi_replay::plan(&trace);
    let _ = (plan.calls(), plan.bytes_before(), plan.bytes_written());
}
