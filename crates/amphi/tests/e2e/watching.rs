//! `amphi top` and `amphi metrics`: their output for a mount under load, and faulty readers of that output.

use crate::bad_input::refused;
use crate::harness::{Place, amphi, eventually, pattern, run, sockets};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn text(args: &[&str]) -> String {
    let out = run(args);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Goal: a sample shows the current operations, by way and reason, as text and as JSON, without showing other screens.
/// Method: a program writes while samples are taken; then a pipe is used whose reader ends.
#[test]
fn top_shows_what_is_done() {
    let place = Place::new();
    let up = place.up(&[]);
    let dir = place.text("mount");
    let work = place.mount();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut n = 0;
            while !stop.load(Relaxed) {
                fs::write(work.join(format!("f{}", n % 50)), pattern(n, 100_000)).expect("write");
                n += 1;
            }
        });
        let shown = text(&["top", "--once", "--interval", "0.5", &dir]);
        for wanted in ["write ", "buffered", "MiB/s", "1 of 1 servers up", "nothing stands out"] {
            assert!(shown.contains(wanted), "{wanted} in\n{shown}");
        }
        let lines = text(&["top", "--json", "--batch", "3", "--interval", "0.2", &dir]);
        let looks: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(looks.len(), 3, "{lines}");
        for look in looks {
            assert_eq!(look["schema"], "amphi.top/1");
            assert!(look["write"]["bytes_per_s"].as_f64().is_some_and(|rate| rate > 10_000.0), "{look}");
            assert!(look["write"]["ways"].as_array().is_some_and(|ways| !ways.is_empty()), "{look}");
        }
        stop.store(true, Relaxed);
    });
    // The reader stops: the command ends as any program in a pipe does.
    let mut top = amphi().args(["top", "--interval", "0.1", &dir]).stdout(Stdio::piped()).spawn().expect("top");
    let mut first = [0; 10];
    top.stdout.take().expect("a pipe").read_exact(&mut first).expect("the first look");
    assert_eq!(top.wait().expect("ends").signal(), Some(libc::SIGPIPE));
    refused(&["top", "--once", &place.text("")], "is not on an AmphiFS mount");
    up.stop();
}

fn ask(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("connect");
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// `amphi metrics` that listens, and where.
fn listening(args: &[&str]) -> (std::process::Child, SocketAddr) {
    let mut child = amphi().args(args).stdout(Stdio::piped()).spawn().expect("metrics");
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().expect("a pipe")), &mut said)
        .expect("a line");
    let addr = said.trim().strip_prefix("ready http://").and_then(|rest| rest.split('/').next());
    (child, addr.unwrap_or_else(|| panic!("{said}")).parse().expect("an address"))
}

/// Goal: the numbers are printed or served in the format of Prometheus, to permitted readers only; clients that hang or
/// send nonsense do no harm. Method: requests for the page that the test composes; connections that send nothing; wrong
/// paths, methods, tokens.
#[test]
fn metrics_are_served() {
    let place = Place::new();
    let up = place.up(&[]);
    let dir = place.text("mount");
    fs::write(place.mount().join("f"), pattern(1, 300_000)).expect("write");
    let printed = text(&["metrics", &dir]);
    assert!(printed.ends_with("# EOF\n") && printed.contains("amphifs_server_up{server=\"server\"} 1"), "{printed}");
    let written = printed.lines().filter(|line| line.starts_with("amphifs_client_io_bytes_total{op=\"write\""));
    let bytes: f64 = written.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert_eq!(bytes, 300_000.0);

    let (mut child, addr) = listening(&["metrics", "--listen", "127.0.0.1:0", &dir]);
    // These connections occupy places, but not for long.
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(addr).expect("connect")).collect();
    let begun = Instant::now();
    let page = ask(addr, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(begun.elapsed() < Duration::from_secs(20), "silent ones are not waited for");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("application/openmetrics-text"), "{page}");
    assert!(page.ends_with("# EOF\n"));
    drop(silent);
    assert!(ask(addr, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(addr, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").starts_with("HTTP/1.1 405"));
    let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "x".repeat(100_000));
    assert!(!ask(addr, &long).starts_with("HTTP/1.1 200"));
    ask(addr, "\0\0\0nonsense\r\n\r\n");
    assert!(ask(addr, "GET /metrics HTTP/1.0\r\n\r\n").contains(" 200 OK"), "it goes on");
    child.kill().expect("kill");
    child.wait().expect("wait");

    let token = place.key("token", "open-sesame\n");
    let (mut child, addr) = listening(&["metrics", "--listen", "127.0.0.1:0", "--token", &token, &dir]);
    let with = |value: &str| ask(addr, &format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: {value}\r\n\r\n"));
    assert!(with("Bearer open-sesame").starts_with("HTTP/1.1 200"));
    assert!(with("Bearer wrong").starts_with("HTTP/1.1 401"));
    assert!(ask(addr, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 401"));
    child.kill().expect("kill");
    child.wait().expect("wait");
    refused(&["metrics", "--listen", "0.0.0.0:0", &dir], "give a token");
    let loose = place.text("loose");
    fs::write(&loose, "x").expect("write");
    refused(&["metrics", "--listen", "127.0.0.1:0", "--token", &loose, &dir], "chmod 600");
    up.stop();
}

/// Goal: each call of a program is counted once in the histogram of its kind and of how it was served. Method: calls
/// whose number is known, one of which has to wait; the metrics, where the buckets hold what the counts say, and a
/// sample.
#[test]
fn calls_are_timed() {
    let place = Place::new();
    let up = place.up(&[]);
    let dir = place.text("mount");
    let file = fs::File::create(place.mount().join("f")).expect("create");
    file.set_len(100).expect("truncate");
    file.sync_all().expect("fsync");
    for n in 0..4 {
        fs::create_dir(place.mount().join(format!("d{n}"))).expect("mkdir");
    }
    fs::rename(place.mount().join("d0"), place.mount().join("e")).expect("rename");
    fs::remove_dir(place.mount().join("e")).expect("rmdir");
    let printed = text(&["metrics", &dir]);
    let rows = |kind: &str, labels: &str| -> u64 {
        let begin = format!("amphifs_client_call_duration_seconds_{kind}{{");
        let found = printed.lines().filter(|line| line.starts_with(&begin) && line.contains(labels));
        found.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    for (op, often) in [("create", 5), ("setattr", 1), ("fsync", 1), ("rename", 1), ("remove", 1)] {
        assert_eq!(rows("count", &format!("op=\"{op}\"")), often, "{op} in\n{printed}");
    }
    assert_eq!(rows("count", "op=\"fsync\",served=\"waited\""), 1, "{printed}");
    assert!(rows("count", "served=\"at_once\"") > 0, "{printed}");
    assert_eq!(rows("bucket", "le=\"+Inf\""), rows("count", "op="), "{printed}");
    let sample: serde_json::Value = serde_json::from_str(&text(&["top", "--once", "--json", &dir])).expect("JSON");
    let latencies = sample["latencies"].as_array().expect("rows").clone();
    assert!(latencies.iter().all(|row| row["what"].is_string()), "{latencies:?}");
    run(&["stats", "--reset", &dir]);
    assert!(!text(&["metrics", &dir]).contains("call_duration_seconds_count{op=\"create\""));
    drop(file);
    up.stop();
}

/// Goal: every mount and every server gives its numbers at a private socket, by the server's name, also while another
/// server is away, and the socket is removed when its process ends. Method: two servers and a mount; the list,
/// `--socket` by name and by path, a scrape over HTTP; one server is stopped in between, and killed at the end.
#[test]
fn mounts_and_servers_have_sockets() {
    let place = Place::new();
    let (mut first, mut second) = (place.member(0, &["--name", "alpha"]), place.member(1, &[]));
    let mut mount = place.mount_at("mount", &[]);
    fs::write(place.mount().join("f"), pattern(1, 300_000)).expect("write");
    text(&["sync", &place.text("mount")]);
    let list = text(&["metrics", "--list"]);
    let socket = |kind: &str, pid: u32| sockets().join(format!("{kind}-{pid}.sock"));
    let pids = [("server", first.pid()), ("server", second.pid()), ("mount", mount.pid())];
    for (kind, pid) in pids {
        let path = socket(kind, pid);
        let line = format!("{kind} {pid} {}", path.display());
        assert!(list.lines().any(|shown| shown == line), "{line} in\n{list}");
        let found = fs::metadata(&path).expect("a socket");
        assert!(found.file_type().is_socket() && found.permissions().mode() & 0o777 == 0o600, "{found:?}");
    }
    let rows = |text: &str, begin: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with(begin)).map(String::from).collect()
    };
    let own = text(&["metrics", "--socket", &format!("server-{}", first.pid())]);
    assert!(own.ends_with("# EOF\n") && own.contains("amphifs_server_up{server=\"alpha\"} 1"), "{own}");
    let requests = rows(&own, "amphifs_server_requests_total");
    assert!(!requests.is_empty() && requests.iter().all(|row| row.contains("{server=\"alpha\",op=\"")), "{requests:?}");
    let targets = rows(&own, "amphifs_target_damaged_blocks");
    assert_eq!(targets.len(), 4, "its own targets alone: {targets:?}");
    assert!(!own.contains("server=\"s1\"") && !own.contains("amphifs_client_"), "{own}");

    let mut stream = UnixStream::connect(socket("mount", mount.pid())).expect("connect");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("send");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    assert!(page.starts_with("HTTP/1.0 200 OK\r\n") && page.contains("application/openmetrics-text"), "{page}");
    let printed = text(&["metrics", &place.text("mount")]);
    for text in [&page, &printed] {
        let written = rows(text, "amphifs_client_io_bytes_total{op=\"write\"");
        let bytes: f64 = written.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        assert_eq!(bytes, 300_000.0);
        for server in ["alpha", "s1"] {
            let begin = format!("amphifs_server_bytes_total{{server=\"{server}\",what=\"write\"}}");
            assert_eq!(rows(text, &begin).len(), 1, "{begin}");
        }
    }
    let stopped = second.pause();
    let path = socket("mount", mount.pid()).display().to_string();
    let less = text(&["metrics", "--socket", &path]);
    assert!(less.contains("amphifs_server_up{server=\"s1\"} 0"), "{less}");
    assert!(rows(&less, "amphifs_server_requests_total{server=\"s1\"").is_empty());
    assert!(!rows(&less, "amphifs_server_requests_total{server=\"alpha\"").is_empty());
    drop(stopped);

    mount.stop();
    first.stop();
    second.kill();
    let left = text(&["metrics", "--list"]);
    assert!(!pids.iter().any(|(kind, pid)| left.contains(&format!("{kind} {pid} "))), "{left}");
    assert!(!socket(pids[0].0, pids[0].1).exists() && !socket(pids[2].0, pids[2].1).exists());
    refused(&["metrics", "--socket", "server-0"], "has a socket server-0");
}

/// Goal: a reader with the token gets the page and the samples that it draws, with the names of open files. Method: a
/// program that writes an open file; the page, then samples until they show it; wrong tokens.
#[test]
fn the_page_gets_samples() {
    let place = Place::new();
    let up = place.up(&[]);
    let dir = place.text("mount");
    let mut top =
        amphi().args(["top", "--web", "--interval", "0.2", &dir]).stdout(Stdio::piped()).spawn().expect("top starts");
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(top.stdout.take().expect("a pipe")), &mut said)
        .expect("a line");
    let address = said.trim().strip_prefix("ready http://127.0.0.1:").unwrap_or_else(|| panic!("{said}"));
    let (port, token) = address.split_once("/#").expect("a token");
    let addr: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
    let get = |path: &str, token: &str| {
        ask(addr, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"))
    };
    let page = get("/", "");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("default-src 'none'"), "{page}");
    assert!(page.contains("<title>AmphiFS</title>") && page.ends_with("</html>\n"));
    for wrong in ["", "x", &token[1..]] {
        assert!(get("/v1/top?after=0", wrong).starts_with("HTTP/1.1 401"), "{wrong}");
    }
    assert!(get("/other", token).starts_with("HTTP/1.1 404"));

    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut file = fs::File::create(place.mount().join("written")).expect("create");
            while !stop.load(Relaxed) {
                file.write_all(&pattern(1, 100_000)).expect("write");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let name = format!("{dir}/written");
        let mut last = 0;
        let mut samples: Vec<Value> = Vec::new();
        eventually("a sample shows the file", || {
            let answer = get(&format!("/v1/top?after={last}"), token);
            let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
            let got: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"));
            let before = last;
            last = got["last"].as_u64().expect("a number");
            let new = got["samples"].as_array().expect("samples");
            assert!(new.len() as u64 <= last - before, "none comes twice");
            samples.extend(new.iter().map(|sample| sample["sample"].clone()));
            let shows = |file: &Value| file["file"] == name.as_str() && file["write_bytes_per_s"].as_f64() > Some(1e5);
            samples.iter().any(|sample| sample["files"].as_array().is_some_and(|files| files.iter().any(shows)))
        });
        stop.store(true, Relaxed);
        assert!(samples.iter().all(|sample| sample["schema"] == "amphi.top/1"));
    });
    top.kill().expect("kill");
    top.wait().expect("wait");
    refused(&["top", "--web=0.0.0.0:0", &dir], "give a token");
    up.stop();
}
