//! `amphi bench ior` and `amphi bench figures` with clusters of their own: every byte is compared, and nothing is left
//! behind, even when the command is refused or stopped.

use crate::harness::{Place, amphi, run};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

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

fn figures<'a>(dir: &'a str, out: &'a str, only: &'a str, rounds: &'a str) -> Vec<&'a str> {
    vec!["bench", "figures", "--quick", "--pairs", rounds, "--only", only, "--dir", dir, "--out", out]
}

/// Goal: a figure is measured and written with picture, numbers, verdict and page; one that cannot be tried is written
/// with its reason; nothing else is left. Method: records of two figures in the smallest size, and their files.
#[test]
fn a_figure_of_a_paper() {
    let place = Place::new();
    let (dir, out) = (place.text("bench"), place.text("figures"));
    let ran = run(&figures(&dir, &out, "autoio-10,autoio-6", "1"));
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("[1 of 2, about") && said.contains("autoio-6: CANNOT BE TRIED HERE"), "{said}");
    assert!(said.contains("2 of 2 figures: "), "{said}");
    let read = |name: &str| {
        std::fs::read_to_string(place.path("figures").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let json: serde_json::Value = serde_json::from_str(&read("autoio-10.json")).expect("JSON");
    let curves = json["panels"][0]["curves"].as_array().expect("curves");
    let names: Vec<&str> = curves.iter().filter_map(|curve| curve["name"].as_str()).collect();
    assert_eq!(names, ["vanilla", "direct", "auto"]);
    let samples = |curve: &serde_json::Value| curve["points"][0]["samples"][0].as_f64().is_some_and(|rate| rate > 0.0);
    assert!(curves.iter().all(samples), "{json}");
    let verdict = json["verdict"].as_str().expect("a verdict");
    assert!(["reproduced", "not_reproduced"].contains(&verdict), "{json}");
    let (svg, text, page) = (read("autoio-10.svg"), read("autoio-10.txt"), read("index.html"));
    assert!(svg.starts_with("<svg") && svg.contains("throughput (MiB/s)") && svg.contains(">vanilla<"), "{svg}");
    assert!(text.contains("auto / vanilla at write"), "{text}");
    assert!(page.contains("src=\"autoio-10.svg\"") && page.contains("id=\"autoio-6\""), "{page}");
    assert!(!place.path("figures").join("autoio-6.svg").exists());
    assert!(!place.path("bench").exists());
}

/// Goal: Ctrl-C ends a run without mounts, servers or folders of it; the figures made so far stay whole. Method: a
/// signal once the second figure has begun, with more rounds than it could do.
#[test]
fn stopped_figures_leave_what_they_have() {
    let place = Place::new();
    let (dir, out) = (place.text("bench"), place.text("figures"));
    let mut command = amphi();
    // The first one cannot be tried, and the second takes hours with so many rounds.
    command.args(figures(&dir, &out, "autoio-7,autoio-8", "1000")).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("amphi starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let begun = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("[2 of 2"));
    assert!(begun, "the second figure begins");
    kill_process(Pid::from_child(&child), Signal::INT).expect("a signal");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "{rest:?}");
    assert!(!place.path("bench").exists());
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&dir), "{mounts}");
    assert!(place.path("figures").join("autoio-7.json").exists());
    assert!(place.path("figures").join("index.html").exists());
}

/// Goal: a figure that does not exist is refused by its name, before anything is made, and the list has every paper.
/// Method: one name, and `--list`.
#[test]
fn figures_by_their_names() {
    let place = Place::new();
    let (dir, out) = (place.text("bench"), place.text("figures"));
    let refused = run(&figures(&dir, &out, "autoio-99", "1"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("autoio-99"), "{refused:?}");
    assert!(!place.path("bench").exists() && !place.path("figures").exists());
    let list = run(&["bench", "figures", "--list"]);
    let said = String::from_utf8_lossy(&list.stdout).into_owned();
    for id in ["autoio-5 ", "autoio-t4", "slides-contention", "peakfs-22", "mpiio-4"] {
        assert!(said.contains(id), "{id} in {said}");
    }
}
