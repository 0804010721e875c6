//! The JSON that commands print against its schemas in `docs/json`.

use crate::harness::{Place, amphi, run};
use serde_json::{Value, json};
use std::path::Path;

/// The parts of `value` that the schema does not describe. It is stricter than JSON Schema in one point: the schema has
/// to name each field, unless it describes further fields.
fn faults(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let mut wrong = |what: String| found.push(format!("{at}: {what}"));
    if let Some(wanted) = schema.get("const").filter(|wanted| *wanted != value) {
        wrong(format!("{value} is not {wanted}"));
    }
    if let Some(all) = schema["enum"].as_array().filter(|all| !all.contains(value)) {
        wrong(format!("{value} is none of {all:?}"));
    }
    let is = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some(_) => false,
        None => true,
    };
    if !is {
        wrong(format!("{value} is no {}", schema["type"]));
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < least
    {
        wrong(format!("{number} is less than {least}"));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            wrong(format!("{name} is missing"));
        }
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let known = schema["properties"].get(name).or(schema.get("additionalProperties"));
        match known {
            Some(known) => faults(known, inner, &format!("{at}.{name}"), found),
            None => found.push(format!("{at}: {name} is not described")),
        }
    }
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        faults(&schema["items"], item, &format!("{at}[{n}]"), found);
    }
}

/// The parts of `value` that the schema of this name in `docs/json` does not describe.
pub fn described(schema: &str, value: &Value) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/json/{schema}.json"));
    let described: Value = serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON");
    let mut found = Vec::new();
    faults(&described, value, schema, &mut found);
    found
}

/// Goal: `--json` of status, stats, top, calibrate, explain and quota has the fields that the schemas promise, and no
/// others. Method: a mount that has written, read and opened files, of two servers.
#[test]
fn outputs_are_as_their_schemas_say() {
    let place = Place::new();
    let up = place.up(&["--servers", "2", "--targets", "1", "--zone-size", "256M"]);
    let mount = place.text("mount");
    std::fs::write(place.mount().join("large"), vec![1; 8 << 20]).expect("write");
    std::fs::write(place.mount().join("small"), b"1").expect("write");
    assert_eq!(std::fs::read(place.mount().join("large")).expect("read").len(), 8 << 20);
    let held = std::fs::File::open(place.mount().join("small")).expect("open");
    let file = format!("{mount}/large");
    let trace = place.text("trace");
    let recorded =
        run(&["record", "--out", &trace, "--mount", &mount, "--", "sh", "-c", &format!("cat {file} >{mount}/new")]);
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let again = place.text("again");
    for (schema, args) in [
        ("trace", vec!["record", "--show", &trace, "--json"]),
        ("replay", vec!["replay", &trace, "--dir", &again, "--json"]),
        ("verify", vec!["verify", &trace, "--json"]),
        ("status", vec!["status", "--json", &mount]),
        ("stats", vec!["stats", "--json", &mount]),
        ("stats_jobs", vec!["stats", "--jobs", "--json", &mount]),
        ("stats_servers", vec!["stats", "--servers", "--json", &mount]),
        ("stats_file", vec!["stats", "--json", &file]),
        ("top", vec!["top", "--once", "--json", &mount]),
        ("calibration", vec!["calibrate", "--seconds", "0.1", "--json", &mount]),
        ("calibration", vec!["calibrate", "--show", "--json"]),
        // The same commands, now with limits.
        ("top", vec!["top", "--once", "--json", &mount]),
        ("explain", vec!["explain", "--json", &mount]),
        ("explain", vec!["explain", "--json", &file]),
        ("quota", vec!["quota", "list", "--json", "-m", &mount]),
    ] {
        // The calibration of such short measurements is for this test only.
        let out = amphi().env("AMPHI_STATE", place.path("state")).args(&args).output().expect("amphi starts");
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        let mut found = Vec::new();
        for object in serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>() {
            let object = object.expect("JSON");
            found.extend(described(schema, &object));
            assert!(object.as_object().is_some_and(|fields| !fields.is_empty()), "{args:?} says nothing");
        }
        assert!(found.is_empty(), "{args:?}: {found:#?}");
    }
    drop(held);
    up.stop();
}

/// Goal: the test above would notice. Method: values with one error each.
#[test]
fn what_a_schema_does_not_describe_is_found() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a": { "type": "integer", "minimum": 0 },
            "b": { "type": "array", "items": { "enum": ["x"] } },
            "c": { "type": "object", "properties": {}, "additionalProperties": { "type": "boolean" } },
            "d": { "const": "v/1" },
        },
        "required": ["a"],
    });
    let sound = json!({ "a": 1, "b": ["x"], "c": { "any": true }, "d": "v/1" });
    let count = |value: &Value| {
        let mut found = Vec::new();
        faults(&schema, value, "", &mut found);
        found.len()
    };
    assert_eq!(count(&sound), 0);
    for (name, value) in [
        ("a", json!(1.5)),
        ("a", json!(-1)),
        ("a", json!("1")),
        ("b", json!(["y"])),
        ("c", json!({ "any": 1 })),
        ("d", json!("v/2")),
        ("e", json!(1)),
    ] {
        let mut wrong = sound.clone();
        wrong[name] = value;
        assert_eq!(count(&wrong), 1, "{wrong}");
    }
    assert_eq!(count(&json!({})), 1);
    assert_eq!(count(&json!([])), 2);
}
