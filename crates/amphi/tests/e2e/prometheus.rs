//! The rules and the dashboard of `deploy/prometheus` against what `amphi metrics` prints. `scripts/prometheus` runs
//! them in a real Prometheus.

use crate::harness::{Place, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Label values of each metric, by label.
type Metrics = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Labels `name OPERATOR "value"` of a series or a selector, without its braces.
fn labels(text: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once('"') {
        let Some((value, after)) = tail.split_once('"') else { break };
        let head = head.trim_start_matches([',', ' ']);
        let at = head.find(['=', '!']).unwrap_or(head.len());
        found.push((head[..at].trim().to_string(), head[at..].trim().to_string(), value.to_string()));
        rest = after;
    }
    found
}

/// Every name in a text that begins with `prefix`, with the selector behind it, if there is one.
fn named(text: &str) -> Vec<(String, String)> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for (at, _) in text.match_indices("amphifs_") {
        if text[..at].ends_with(part) {
            continue;
        }
        let name: String = text[at..].chars().take_while(|c| part(*c)).collect();
        let behind = &text[at + name.len()..];
        let selector = behind.strip_prefix('{').and_then(|s| s.split_once('}')).map_or("", |(inside, _)| inside);
        found.push((name, selector.to_string()));
    }
    found
}

fn printed(text: &str) -> Metrics {
    let mut all = Metrics::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        for (name, selector) in named(line.split(' ').next().unwrap_or_default()) {
            let metric = all.entry(name).or_default();
            for (label, _, value) in labels(&selector) {
                metric.entry(label).or_default().insert(value);
            }
        }
    }
    all
}

/// Expressions of the rules' lines and of the dashboard's panels.
fn expressions(folder: &Path) -> Vec<(String, String)> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("read");
    let mut all = Vec::new();
    for name in ["amphifs-recording.yml", "amphifs-alerts.yml"] {
        // Text for people may name any metric.
        let text = read(name);
        let lines = text.lines().filter(|l| !["summary:", "action:", "record:", "#"].iter().any(|w| l.contains(w)));
        all.extend(lines.map(|line| (name.to_string(), line.to_string())));
    }
    let board: serde_json::Value = serde_json::from_str(&read("grafana.json")).expect("JSON");
    for panel in board["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression").to_string();
            all.push((format!("panel {}", panel["title"]), expression));
        }
    }
    all
}

/// Goal: each metric that a rule or a panel uses is printed, with the label values that it selects, and each recorded
/// series that is used is recorded. Method: their expressions, name by name, against the metrics of a mount that has
/// written and read.
#[test]
fn rules_and_panels_name_what_there_is() {
    let place = Place::new();
    let up = place.up(&[]);
    std::fs::write(place.mount().join("f"), vec![1; 1 << 20]).expect("write");
    assert_eq!(std::fs::read(place.mount().join("f")).expect("read").len(), 1 << 20);
    let out = run(&["metrics", &place.text("mount")]);
    let metrics = printed(&String::from_utf8_lossy(&out.stdout));
    assert!(metrics.len() > 15, "{metrics:?}");
    up.stop();

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus");
    let recording = std::fs::read_to_string(folder.join("amphifs-recording.yml")).expect("read");
    let recorded: BTreeSet<&str> = recording.lines().filter_map(|l| l.trim().strip_prefix("- record: ")).collect();
    let mut seen = 0;
    for (place, expression) in expressions(&folder) {
        for (name, selector) in named(&expression) {
            seen += 1;
            let Some(metric) = metrics.get(&name) else { panic!("{place}: there is no {name}") };
            for (label, operator, value) in labels(&selector) {
                // Labels that Prometheus adds, and those that a reader of the dashboard chooses.
                if ["cluster", "job", "instance"].contains(&label.as_str()) {
                    continue;
                }
                let there = metric.get(&label).unwrap_or_else(|| panic!("{place}: {name} has no label {label}"));
                let wanted: Vec<&str> = if operator == "=~" { value.split('|').collect() } else { vec![&value] };
                // Sizes and times have a series only once they were met.
                let met = name == "amphifs_server_sizes_total";
                for wanted in wanted.into_iter().filter(|_| !met) {
                    assert!(there.contains(wanted), "{place}: {name} has no {label}=\"{wanted}\", but {there:?}");
                }
            }
        }
        for word in expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')) {
            if word.contains(":amphifs_") {
                seen += 1;
                assert!(recorded.contains(word), "{place}: {word} is not recorded");
            }
        }
    }
    assert!(seen > 45, "only {seen} names");
}

/// Goal: the test above would notice. Method: its functions read texts whose names and selectors are known.
#[test]
fn names_and_selectors_are_found() {
    let found = named(r#"sum(rate(amphifs_x_total{a="b", c=~"d|e"}[5m])) / cluster:amphifs_y:rate + amphifs_z"#);
    let pairs: Vec<(&str, &str)> = found.iter().map(|(n, s)| (n.as_str(), s.as_str())).collect();
    assert_eq!(pairs, [("amphifs_x_total", r#"a="b", c=~"d|e""#), ("amphifs_z", "")]);
    let found = labels(&found[0].1);
    let words: Vec<[&str; 3]> = found.iter().map(|(l, o, v)| [l.as_str(), o.as_str(), v.as_str()]).collect();
    assert_eq!(words, [["a", "=", "b"], ["c", "=~", "d|e"]]);
}
