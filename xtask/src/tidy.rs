//! House rules that a machine holds: the tables of imports between crates and between the folders of large crates, the
//! list of files that may contain `unsafe`, a head on every module, sizes of files, functions and structs, marks that
//! must not be left, the assertions of the release program, and promises named by tests.

mod asserts;
mod chains;
mod documents;
mod floors;
mod imports;
mod life;
mod sizes;

use crate::{header, performance};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Which crates a crate may import, docs/ARCHITECTURE.md §Rooms. Dev-dependencies are free for tests.
const IMPORTS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("cart", &[]),
    ("quota", &["types"]),
    ("shm", &[]),
    ("policy", &[]),
    ("attach", &["policy", "shm"]),
    ("preload", &["attach"]),
    ("capi", &["attach", "types", "wire", "env", "client", "host"]),
    ("wire", &["types"]),
    ("dlm", &["types"]),
    ("env", &["types"]),
    ("sched", &["types", "env"]),
    ("transport", &["types", "wire", "env"]),
    ("meta", &["types", "cart", "env", "quota"]),
    ("data", &["types", "env", "quota"]),
    ("zone", &["types", "env"]),
    ("object", &["types", "env"]),
    ("pagecache", &["types", "env"]),
    ("server", &["types", "wire", "dlm", "env", "sched", "transport", "meta", "data", "zone", "object", "quota"]),
    ("trace", &[]),
    ("replay", &["trace"]),
    ("client", &["types", "wire", "dlm", "env", "transport", "pagecache", "policy", "shm", "trace"]),
    ("fuse", &["types", "client", "shm", "trace"]),
    ("mpiio", &["types"]),
    ("view", &[]),
    ("stage", &[]),
    ("publish", &[]),
    ("host", &["types", "wire", "env", "transport", "client"]),
    ("process", &["types", "wire", "env", "sched", "transport", "server", "client", "host", "fuse"]),
    ("bench", &["types", "cart", "wire", "env", "sched", "transport", "server", "client", "host", "fuse", "process"]),
    (
        "amphi",
        &[
            "types",
            "wire",
            "env",
            "sched",
            "transport",
            "server",
            "client",
            "host",
            "fuse",
            "process",
            "bench",
            "mpiio",
            "view",
            "stage",
            "publish",
            "trace",
            "replay",
        ],
    ),
    ("fuzzing", &["types", "cart", "wire", "env", "transport", "zone", "server", "trace", "replay"]),
    ("sim", &["types", "wire", "env", "sched", "transport", "server", "client"]),
];

/// Files that may contain `unsafe`, each with the reason.
const UNSAFE: &[(&str, &str)] = &[
    ("crates/attach/src/maps.rs", "memory that a mount shares"),
    ("crates/attach/src/direct", "copies from and to the buffers of programs, and a thread for transfers"),
    ("crates/attach/src/post.rs", "copies from the buffers of programs"),
    ("crates/attach/src/read.rs", "copies into the buffers of programs"),
    ("crates/attach/src/sys.rs", "system calls"),
    ("crates/attach/src/owner.rs", "a page that tells children of fork"),
    ("crates/preload/src/", "functions of libc"),
    ("crates/capi/src/calls", "the C interface"),
    ("crates/capi/src/failure.rs", "a test that reads a text as C does"),
    ("crates/capi/src/memory.rs", "memory for direct I/O"),
    ("crates/capi/src/node.rs", "system calls on descriptors of a mount"),
    ("crates/capi/src/process.rs", "a page that tells children of fork"),
    ("crates/capi/src/queue.rs", "memory of programs, and a ring of the kernel"),
    ("crates/capi/src/registry.rs", "objects that are shared without a lock"),
    ("crates/shm/src/memory.rs", "memory that a mount shares"),
    ("crates/shm/src/export.rs", "a test that tries to write to sealed memory"),
    ("crates/cart/src/search.rs", "instructions that compare many keys at once"),
    ("crates/env/src/buf.rs", "parts of aligned memory"),
    ("crates/env/src/buf/memory.rs", "aligned memory"),
    ("crates/env/src/buf/memory/arena.rs", "memory that other processes have mapped"),
    ("crates/env/src/buf/stream.rs", "stores past the processor's caches"),
    ("crates/env/src/real/", "system calls, io_uring, lending buffers to the kernel"),
    ("crates/fuse/src/", "system calls on /dev/fuse"),
    ("crates/sched/src/", "thread affinity"),
    ("crates/mpiio/src/segment.rs", "memory that the ranks of a job share"),
    ("crates/mpiio/src/segment/mapping.rs", "where that memory is mapped"),
    ("crates/mpiio/src/pace.rs", "futex"),
    ("crates/mpiio/src/backend/posix.rs", "system calls on files"),
    ("crates/mpiio/src/team.rs", "options of a connection"),
    ("crates/mpiio/src/capi.rs", "the C interface of the shims"),
    ("crates/mpiio/src/capi/about.rs", "a part of the C interface of the shims"),
];

/// The most lines of a file before its tests; a longer file should be divided by its subjects.
const MAX_LINES: usize = 700;

const MARKS: &[&str] =
    &["todo!(", "unimplemented!(", "FIXME", "XXX", "#[ignore", "dbg!(", "allow(dead_code", "allow(unused"];

/// Runs every check and prints the findings, one on each line.
pub fn run() -> ExitCode {
    let root = root();
    let mut findings = Vec::new();
    imports(&root, &mut findings);
    let mut files = Vec::new();
    rust_files(&root.join("crates"), &mut files);
    let (mut tests, mut sources) = (String::new(), Vec::new());
    for file in &files {
        let text = fs::read_to_string(file).unwrap_or_default();
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy().into_owned();
        source(&name, &text, &mut findings);
        tests.push_str(&text);
        sources.push((name, text));
    }
    floors::check(&sources, &mut findings);
    sizes::check(&sources, &mut findings);
    asserts::check(&sources, &mut findings);
    chains::check(&sources, &mut findings);
    let document = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    for (name, text) in &sources {
        documents::long_lines(name, text, &mut findings);
    }
    let pages: Vec<(String, String)> =
        markdown(&root).into_iter().map(|name| (name.clone(), document(&name))).collect();
    for (name, text) in &pages {
        documents::long_lines(name, text, &mut findings);
    }
    documents::links(&pages, |path| root.join(path).exists(), &mut findings);
    documents::dead_items(&sources, &mut findings);
    life::check(&root, &document(life::LIFE), &sources, IMPORTS, &mut findings);
    if document(documents::CODE_MAP) != documents::code_map(&sources) {
        findings.push(format!("{}: is not what the module heads say; run cargo xtask code-map", documents::CODE_MAP));
    }
    performance::check(&root, &mut findings);
    header::check(&root, &mut findings);
    promises(&root, &tests, &mut findings);
    for f in &findings {
        println!("tidy: {f}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The documents of the repository.
fn markdown(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for dir in ["", "docs/", "docs/design/", "docs/locking/"] {
        let entries = fs::read_dir(root.join(dir)).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| n.ends_with(".md"));
        all.extend(names.map(|n| format!("{dir}{n}")));
    }
    all.sort();
    all
}

/// The files of all crates with their text.
fn sources(root: &Path) -> Vec<(String, String)> {
    let (mut files, mut sources) = (Vec::new(), Vec::new());
    rust_files(&root.join("crates"), &mut files);
    for file in &files {
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy().into_owned();
        sources.push((name, fs::read_to_string(file).unwrap_or_default()));
    }
    sources
}

/// Prints the floors of some crates, or of all.
pub fn floors(crates: &[String]) -> ExitCode {
    let sources = sources(&root());
    let all = IMPORTS.iter().map(|(name, _)| name.to_string());
    let shown = all.filter(|name| crates.is_empty() || crates.contains(name));
    shown.for_each(|name| floors::show(&sources, &name));
    ExitCode::SUCCESS
}

/// Prints how many chains of fields each crate has, and those of some crates.
pub fn chains(crates: &[String]) -> ExitCode {
    print!("{}", chains::text(&sources(&root()), crates));
    ExitCode::SUCCESS
}

/// Prints the first sentence of the head of each file of a crate, or of all.
pub fn map(krate: Option<&str>) -> ExitCode {
    print!("{}", documents::map(&sources(&root()), krate));
    ExitCode::SUCCESS
}

/// Writes the map of the code.
pub fn code_map() -> ExitCode {
    let root = root();
    let sources = sources(&root);
    match fs::write(root.join(documents::CODE_MAP), documents::code_map(&sources)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}: {e}", documents::CODE_MAP);
            ExitCode::FAILURE
        }
    }
}

/// Writes or checks the page of performance and those of the results.
pub fn performance(args: &[String]) -> ExitCode {
    performance::run(&root(), args)
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

fn imports(root: &Path, findings: &mut Vec<String>) {
    let table: BTreeMap<&str, &[&str]> = IMPORTS.iter().copied().collect();
    let Ok(dirs) = fs::read_dir(root.join("crates")) else {
        findings.push("crates/: cannot be read".into());
        return;
    };
    for dir in dirs.flatten() {
        let krate = dir.file_name().to_string_lossy().into_owned();
        let Some(allowed) = table.get(krate.as_str()) else {
            findings.push(format!("crates/{krate}: not in the table of imports"));
            continue;
        };
        let manifest = fs::read_to_string(dir.path().join("Cargo.toml")).unwrap_or_default();
        let mut section = String::new();
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line.trim().to_string();
            } else if section == "[dependencies]"
                && let Some(dep) = line.strip_prefix("amphi-")
            {
                let dep = dep.split(['.', ' ', '=']).next().unwrap_or_default();
                if !allowed.contains(&dep) {
                    findings.push(format!("crates/{krate}: must not import {dep}"));
                }
            }
        }
        if !manifest.contains("[lints]") {
            findings.push(format!("crates/{krate}: does not take the workspace's lints"));
        }
    }
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    for p in paths {
        if p.is_dir() {
            rust_files(&p, out);
        } else if p.extension().is_some_and(|e| e == "rs") {
            out.push(p);
        }
    }
}

fn source(name: &str, text: &str, findings: &mut Vec<String>) {
    if !text.trim_start().starts_with("//!") {
        findings.push(format!("{name}: has no module head"));
    }
    let in_tests = name.contains("/tests/") || name.contains("/tests.rs") || name.contains("/examples/");
    let body = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
    let lines = body.lines().count();
    if lines > MAX_LINES && !in_tests {
        findings.push(format!("{name}: {lines} lines before its tests; what is it really made of?"));
    }
    for (n, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if !code.starts_with("//")
            && (code.contains("unsafe {") || code.contains("unsafe impl") || code.contains("unsafe fn"))
            && !in_tests
            && !UNSAFE.iter().any(|(path, _)| name.starts_with(path))
        {
            findings.push(format!("{name}:{}: unsafe outside the files listed for it", n + 1));
        }
        if let Some(mark) = MARKS.iter().find(|m| line.contains(**m)) {
            findings.push(format!("{name}:{}: left over: {mark}", n + 1));
        }
    }
}

/// Every promise `**S1**` of docs/SEMANTICS.md must be named by at least one test as `Promise S1`.
fn promises(root: &Path, sources: &str, findings: &mut Vec<String>) {
    let text = fs::read_to_string(root.join("docs/SEMANTICS.md")).unwrap_or_default();
    let mut named = BTreeSet::new();
    for part in sources.split("Promise ").skip(1) {
        let line = part.lines().next().unwrap_or_default();
        for word in line.split(|c: char| !c.is_ascii_alphanumeric()) {
            named.insert(word.to_string());
        }
    }
    let mut promised = 0;
    for line in text.lines() {
        if let Some(rest) = line.trim_start_matches("* ").strip_prefix("**S")
            && let Some(number) = rest.split("**").next()
        {
            promised += 1;
            let id = format!("S{number}");
            if !named.contains(&id) {
                findings.push(format!("docs/SEMANTICS.md: no test names promise {id}"));
            }
        }
    }
    if promised == 0 {
        findings.push("docs/SEMANTICS.md: holds no promises".into());
    }
}
