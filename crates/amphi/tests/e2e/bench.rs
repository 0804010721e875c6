//! `amphi bench ior` with clusters of its own: every byte is compared, and nothing is left behind, even when the
//! command is refused.

use crate::harness::{Place, run};

fn strided(place: &Place, more: &[&str]) -> std::process::Output {
    let (dir, json) = (place.text("bench"), place.text("json"));
    let mut args = vec!["bench", "ior", "--dir", &dir, "--json", &json, "-N", "3", "-C", "-e", "-w", "-r", "-R"];
    args.extend(["-t", "47008", "-b", "47008", "-s", "8"]);
    args.extend_from_slice(more);
    run(&args)
}

/// Goal: processes with a mount each write and read one file in turn, on one machine and behind links, and each read
/// finds what was written. Method: buffered and direct. The calls in the results are counted, and folders and
/// namespaces are removed afterwards.
#[test]
fn a_shared_file_on_one_machine_and_behind_links() {
    for more in [&["--up", "3"][..], &["--up", "3", "--link-mbit", "1000"]] {
        let place = Place::new();
        let out = strided(&place, more);
        let said = String::from_utf8_lossy(&out.stderr);
        if more.len() > 2 && said.contains("links need root") || said.contains("name space could not be made") {
            eprintln!("skipped: {said}");
            continue;
        }
        assert!(out.status.success(), "{said}");
        let json = std::fs::read_to_string(place.path("json")).expect("results");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let findings = json["findings"].as_array().expect("findings");
        for phase in ["write 0", "check read 0"] {
            let found = findings.iter().find(|f| f["what"] == phase).unwrap_or_else(|| panic!("{phase} in {json}"));
            assert_eq!(found["parameters"]["calls"], 24, "{found}");
            assert_eq!(found["parameters"]["bytes"], 24 * 47_008, "{found}");
        }
        assert!(!place.path("bench").exists());
    }
}

/// Goal: a tunable that does not exist is refused by its name, and the cluster and its folder are gone. Method: one
/// such tunable.
#[test]
fn a_refused_tunable_leaves_nothing() {
    let place = Place::new();
    let out = strided(&place, &["--up", "1", "--set", "hybrid.nothing=1"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("hybrid.nothing"), "{out:?}");
    assert!(!place.path("bench").exists());
}
