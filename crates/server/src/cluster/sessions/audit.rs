//! `Audit`: the record of clients that connected, clients that were refused, and changes by administrators.
//!
//! Owns: the lines (JSON, one object each), their bounds, and what happens if they cannot be written. Does not own: the
//! file (`ServerConfig::audit`). Operations on files are not recorded in this log.
//!
//! Bounds: a text in a line has 256 characters at most, and special characters in it are escaped. For kinds of events
//! whose number peers can increase (`Kind::most`), lines beyond a certain number in ten seconds are left out; the next
//! line of the kind says how many.

use crate::config::{AuditFull, AuditSink};
use amphi_types::Timespec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Most characters of a text in a line.
const TEXT_MAX: usize = 256;
/// The time for which lines of a kind are counted.
const BURST_NS: u64 = 10_000_000_000;
/// Refusals in that time: a stranger needs four days to fill the log with them.
const REFUSED: u32 = 20;
/// Most lines about admissions and squashes in that time. All mounts of a cluster may reconnect at once.
const ADMITTED: u32 = 2000;

/// The kind of event of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A client was admitted.
    Admitted,
    /// A client was refused.
    Refused,
    /// Users of a client were replaced by others.
    Squashed,
    /// A session was ended.
    Evicted,
    /// The registry of keys was to be changed.
    Keys,
    /// A change of tunables was requested.
    Tunables,
    /// The cluster map has changed.
    Map,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Admitted => "admitted",
            Kind::Refused => "refused",
            Kind::Squashed => "squashed",
            Kind::Evicted => "evicted",
            Kind::Keys => "keys",
            Kind::Tunables => "tunables",
            Kind::Map => "map",
        }
    }

    /// Most lines in `BURST_NS`, for kinds of events whose number peers can increase.
    fn most(self) -> u32 {
        match self {
            Kind::Refused => REFUSED,
            Kind::Admitted | Kind::Squashed => ADMITTED,
            Kind::Evicted | Kind::Keys | Kind::Tunables | Kind::Map => u32::MAX,
        }
    }
}

#[derive(Default)]
struct Burst {
    begun_ns: u64,
    lines: u32,
    left_out: u64,
}

/// The audit log of a server.
pub(super) struct Audit {
    sink: Option<AuditSink>,
    full: AuditFull,
    failed: Cell<bool>,
    bursts: RefCell<BTreeMap<Kind, Burst>>,
}

impl Audit {
    pub(super) fn new(sink: Option<AuditSink>, full: AuditFull) -> Audit {
        Audit { sink, full, failed: Cell::new(false), bursts: RefCell::default() }
    }

    /// Writes a line. Returns whether the server may carry out what the line reports.
    pub(super) fn note(&self, kind: Kind, now: Timespec, now_ns: u64, fields: &[(&str, &str)]) -> bool {
        let Some(sink) = &self.sink else { return true };
        let left_out = match self.admit(kind, now_ns) {
            Some(left_out) => left_out,
            // A line that is left out is counted, and its event is permitted, if the log can be written at all.
            None => return !self.failed.get() || self.full == AuditFull::GoOn,
        };
        let kept = sink(&line(kind, now, fields, left_out));
        if self.failed.replace(!kept) == kept {
            match kept {
                true => tracing::info!("the audit log is written again"),
                false => tracing::error!(
                    "the audit log cannot be written{}",
                    match self.full {
                        AuditFull::GoOn => "; the server goes on without",
                        AuditFull::Stop => "; nobody new is let in, and no key is changed, until it can",
                    }
                ),
            }
        }
        kept || self.full == AuditFull::GoOn
    }

    /// Returns whether a line of the kind is written now. If so, also how many lines were left out before it.
    fn admit(&self, kind: Kind, now_ns: u64) -> Option<u64> {
        let mut bursts = self.bursts.borrow_mut();
        let burst = bursts.entry(kind).or_default();
        if now_ns.saturating_sub(burst.begun_ns) >= BURST_NS {
            (burst.begun_ns, burst.lines) = (now_ns, 0);
        }
        if burst.lines >= kind.most() {
            burst.left_out += 1;
            return None;
        }
        burst.lines += 1;
        Some(std::mem::take(&mut burst.left_out))
    }
}

fn line(kind: Kind, now: Timespec, fields: &[(&str, &str)], left_out: u64) -> String {
    let mut line = format!("{{\"time\":{}.{:09},\"kind\":\"{}\"", now.sec, now.nsec, kind.word());
    for (name, value) in fields {
        line.push_str(",\"");
        line.push_str(name);
        line.push_str("\":\"");
        escape(value, &mut line);
        line.push('"');
    }
    if left_out > 0 {
        let _ = write!(line, ",\"left_out_before\":{left_out}");
    }
    line.push('}');
    line
}

/// Text as JSON has it between quotes, in characters that move no cursor and begin no line.
fn escape(text: &str, line: &mut String) {
    for (n, c) in text.chars().enumerate() {
        if n == TEXT_MAX {
            line.push_str("...");
            return;
        }
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            ' '..='~' => line.push(c),
            c => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(line, "\\u{unit:04x}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn kept() -> (Audit, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let sink = lines.clone();
        let sink: AuditSink = Arc::new(move |line| {
            sink.lock().expect("no panic").push(line.into());
            true
        });
        (Audit::new(Some(sink), AuditFull::Stop), lines)
    }

    /// Goal: foreign text cannot end a line, a string or the object, nor grow it without bound. Method: hostile names.
    #[test]
    fn foreign_text_is_escaped() {
        let (audit, lines) = kept();
        let long = "\u{1f980}".repeat(1000);
        for name in ["a\"},{\"b", "x\ny", "\u{1b}[2J", "back\\", "\u{202e}", &long, "\0"] {
            assert!(audit.note(Kind::Keys, Timespec::default(), 0, &[("name", name)]));
        }
        for line in lines.lock().expect("no panic").iter() {
            assert!(line.len() < 4000 && line.bytes().all(|b| (b' '..=b'~').contains(&b)), "{line}");
            assert!(line.starts_with("{\"time\":0.000000000,\"kind\":\"keys\",\"name\":\"") && line.ends_with("\"}"));
            // Quotes that are no part of the text: two for each of three names and two values.
            let bare = line.replace("\\\\", "").replace("\\\"", "");
            assert_eq!(bare.matches('"').count(), 10, "{line}");
        }
    }

    /// Goal: a flood of one kind leaves a bounded number of lines and the number of those left out. It does not prevent
    /// lines of other kinds. Method: more lines than the bound, then another time.
    #[test]
    fn a_flood_is_counted() {
        let (audit, lines) = kept();
        for _ in 0..REFUSED + 50 {
            assert!(audit.note(Kind::Refused, Timespec::default(), 5, &[]));
        }
        assert!(audit.note(Kind::Keys, Timespec::default(), 6, &[]));
        assert!(audit.note(Kind::Refused, Timespec::default(), BURST_NS + 5, &[]));
        let lines = lines.lock().expect("no panic");
        assert_eq!(lines.len(), REFUSED as usize + 2);
        assert!(lines[REFUSED as usize].contains("\"keys\""));
        assert!(lines.last().is_some_and(|l| l.ends_with("\"left_out_before\":50}")));
    }

    /// Goal: if the log cannot be written, the setting decides whether the events to be recorded are refused. Logging
    /// resumes by itself. Method: a sink that fails at first.
    #[test]
    fn a_full_log_stops_or_does_not() {
        for (full, goes_on) in [(AuditFull::GoOn, true), (AuditFull::Stop, false)] {
            let works = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let state = works.clone();
            let audit = Audit::new(Some(Arc::new(move |_| state.load(std::sync::atomic::Ordering::Relaxed))), full);
            let note = || audit.note(Kind::Keys, Timespec::default(), 0, &[]);
            assert_eq!((note(), note()), (goes_on, goes_on), "{full:?}");
            works.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(note());
        }
        assert!(Audit::new(None, AuditFull::Stop).note(Kind::Keys, Timespec::default(), 0, &[]), "nobody keeps one");
    }
}
