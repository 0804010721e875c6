//! The output of `amphi top --json`: rates, ways and findings of one sample.

use crate::change::Change;
use crate::findings::{Weight, findings};
use serde_json::{Value, json};

/// One sample as JSON, schema `amphi.top/1`: rates a second, bytes and requests; within the version fields are only
/// added.
pub fn json(change: &Change<'_>) -> Value {
    let side = |prefix: &str| {
        let (requests, bytes) = change.total(prefix);
        let ways: Vec<Value> = change
            .ways(prefix)
            .into_iter()
            .map(|(way, requests, bytes)| {
                json!({ "way": way.way, "reason": way.reason, "requests_per_s": requests, "bytes_per_s": bytes })
            })
            .collect();
        json!({ "requests_per_s": requests, "bytes_per_s": bytes, "ways": ways })
    };
    let weight = |w: Weight| if w == Weight::Trouble { "trouble" } else { "slow" };
    let found: Vec<Value> = findings(change)
        .into_iter()
        .map(|f| json!({ "weight": weight(f.weight), "what": f.what, "advice": f.advice }))
        .collect();
    json!({
        "schema": "amphi.top/1",
        "seconds": change.seconds(),
        "read": side("read_"),
        "write": side("write_"),
        "cache_used_bytes": change.after.gauge("cache_used_bytes"),
        "cache_dirty_bytes": change.after.gauge("cache_dirty_bytes"),
        "servers_unstable_bytes": change.after.of_servers("unstable_bytes"),
        "findings": found,
    })
}
