//! The audit log of keys and of the clients that use them.

use super::*;
use crate::config::AuditFull;
use std::sync::{Arc, Mutex};

/// Goal: events are written to the log with the key and the result. While the log cannot be written, and the setting
/// requires it, no new client is admitted and no key is changed, but admitted clients continue. Method: a sequence of
/// events, and a log that fails.
#[test]
fn what_happens_is_written_down() {
    for full in [AuditFull::GoOn, AuditFull::Stop] {
        let mut place = Place::new(98, 1, 1);
        let (lines, works) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Mutex::new(true)));
        let (kept, may) = (lines.clone(), works.clone());
        place.config.audit_full = full;
        place.config.audit = Some(Arc::new(move |line| {
            let works = *may.lock().expect("no panic");
            if works {
                kept.lock().expect("no panic").push(line.into());
            }
            works
        }));
        let said = |words: &[&str]| {
            let lines = lines.lock().expect("no panic");
            assert!(lines.iter().any(|l| words.iter().all(|w| l.contains(w))), "{words:?} in {lines:#?}");
        };
        let run = async {
            let server = place.start().await.expect("it starts");
            let root = place.client(1).await.unwrap();
            root.chmod(Ino::ROOT, 0o777).await;
            let squash = Squash { root: Some(SquashTo { uid: 600, gid: 600 }), ..Squash::default() };
            root.add(KeyEntry { squash, ..entry("k", 1, KeyRole::Client) }).await;
            let key = identity(1).fingerprint().to_string();
            said(&["\"kind\":\"keys\"", "\"by\":\"client:1\"", "add k", &key, "\"result\":\"done\""]);
            assert!(root.keys(KeyChange::Add(entry("k", 2, KeyRole::Client))).await.is_err());
            said(&["\"kind\":\"keys\"", "there is a key k already"]);
            let c = place.keyed(2, Role::Mount, 1).await.unwrap();
            said(&["\"kind\":\"admitted\"", "\"key\":\"k\"", &key, "\"as\":\"Mount\"", "\"proved\":\"identity\""]);
            for n in 0..25 {
                c.mkdir(Ino::ROOT, &format!("d{n}")).await.unwrap();
            }
            said(&["\"kind\":\"squashed\"", "\"key\":\"k\"", "\"requests\":\"1\""]);
            said(&["\"kind\":\"squashed\"", "\"key\":\"k\"", "\"requests\":\"10\""]);
            assert!(place.keyed(3, Role::Mount, 2).await.is_err());
            said(&["\"kind\":\"refused\"", &identity(2).fingerprint().to_string(), "not one of this cluster's"]);
            let tune = Request::Tunables { pattern: "server.token_ms".into(), value: Some("7".into()) };
            root.call(tune).await.unwrap();
            said(&["\"kind\":\"tunables\"", "\"value\":\"7\"", "\"result\":\"done\""]);
            *works.lock().expect("no panic") = false;
            let goes_on = full == AuditFull::GoOn;
            assert_eq!(place.keyed(4, Role::Mount, 1).await.is_ok(), goes_on, "{full:?}");
            assert_eq!(root.keys(KeyChange::Add(entry("x", 9, KeyRole::Admin))).await.is_ok(), goes_on, "{full:?}");
            c.mkdir(Ino::ROOT, "goes on").await.expect("who is in goes on");
            *works.lock().expect("no panic") = true;
            place.keyed(5, Role::Mount, 1).await.expect("let in again");
            root.keys(KeyChange::Remove("k".into())).await.unwrap();
            said(&["\"kind\":\"evicted\"", "\"key\":\"k\"", "its key has been removed"]);
            said(&["\"kind\":\"squashed\"", "\"requests\":\"26\""]);
            drop(server);
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}
