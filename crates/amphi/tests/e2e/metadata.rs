//! Damage of metadata on the disk, through a real server and a real mount.

use crate::harness::{Daemon, Place, Random, amphi, pattern, run};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BLOCK: u64 = 4096;
/// Damages of a test; `AMPHI_METADATA_FLIPS` has another number.
const FLIPS: u64 = 3;

/// The entries below a directory: kind and mode, length, time of change, bytes or target.
type Tree = BTreeMap<PathBuf, (u32, u64, (i64, i64), Vec<u8>)>;

fn tree(root: &Path) -> Tree {
    let (mut found, mut todo) = (Tree::new(), vec![root.to_path_buf()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("list") {
            let path = entry.expect("entry").path();
            let meta = fs::symlink_metadata(&path).expect("stat");
            let bytes = if meta.is_file() {
                fs::read(&path).expect("read")
            } else if meta.is_symlink() {
                fs::read_link(&path).expect("link").into_os_string().into_encoded_bytes()
            } else {
                todo.push(path.clone());
                Vec::new()
            };
            let name = path.strip_prefix(root).expect("below").to_path_buf();
            found.insert(name, (meta.mode(), meta.len(), (meta.mtime(), meta.mtime_nsec()), bytes));
        }
    }
    found
}

fn make_tree(root: &Path) {
    for d in 0..12u64 {
        let dir = root.join(format!("directory-{d}"));
        fs::create_dir(&dir).expect("mkdir");
        for f in 0..40 {
            let path = dir.join(format!("file-{f}-{}", "x".repeat(f as usize)));
            fs::write(&path, pattern(d * 100 + f, (f * f * 13) as usize)).expect("write");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + (f as u32 % 8))).expect("chmod");
            symlink(&path, dir.join(format!("link-{f}"))).expect("link");
        }
        fs::remove_file(dir.join("link-7")).expect("remove");
    }
    File::open(root.join("directory-0/file-1-x")).expect("open").sync_all().expect("sync");
}

/// Blocks of a zone that count: superblocks, groups of the log, pages of segments. Byte addresses.
fn used_blocks(zone: &File) -> [Vec<u64>; 3] {
    let read = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        zone.read_exact_at(&mut bytes, at).expect("read");
        bytes
    };
    let long = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let root = [0, BLOCK].map(|at| read(at, 4096)).into_iter().max_by_key(|s| long(s, 16)).expect("two");
    let (log_blocks, meta) = (long(&root, 64), long(&root, 72));
    let (mut position, mut seq, mut log) = (long(&root, 104), long(&root, 112), Vec::new());
    loop {
        let first = read(65536 + position % log_blocks * BLOCK, 4096);
        if &first[..4] != b"AGRP" || long(&first, 40) != seq {
            break;
        }
        let blocks = (64 + u64::from(word(&first, 32))).div_ceil(BLOCK) + u64::from(word(&first, 36) >> 1 & 1);
        log.extend((position..position + blocks).map(|p| 65536 + p % log_blocks * BLOCK));
        (position, seq) = (position + blocks, seq + 1);
    }
    let mut pages = Vec::new();
    for segment in root[160..].chunks_exact(32).take(word(&root, 140) as usize) {
        let mut slot = word(segment, 24);
        while slot != u32::MAX {
            let at = meta + u64::from(slot) * 65536;
            let header = read(at, 32);
            let blocks = (32 + u64::from(word(&header, 24))).div_ceil(BLOCK) + u64::from(word(&header, 28) & 1);
            pages.extend((0..blocks).map(|b| at + b * BLOCK));
            slot = word(&header, 20);
        }
    }
    [vec![0, BLOCK], log, pages]
}

/// The output of `fsck --repair` of a folder on a terminal after that answer to its question, and its exit code.
fn answered(data: &str, answer: &str) -> (Option<i32>, String) {
    let program = amphi().get_program().to_string_lossy().into_owned();
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{program} fsck --repair {data}"), "/dev/null"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script");
    writeln!(child.stdin.take().expect("piped"), "{answer}").expect("answer");
    let out = child.wait_with_output().expect("it ends");
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Goal: any one block of metadata may be damaged while no server runs. No data is lost and no wrong data is served.
/// The check of the folder reports the damage, and so does `status`. `fsck --repair` shows its plan, asks on a
/// terminal, and follows the answer. Method: a part of a tree is in segments and a part in the log of a killed server.
/// In each round a byte or a sector of a random block in use is changed, the tree is compared through a new server and
/// mount, and the server is killed.
#[test]
fn a_damaged_block_of_metadata_loses_nothing() {
    let flips = std::env::var("AMPHI_METADATA_FLIPS").map_or(FLIPS, |n| n.parse().expect("a number"));
    let place = Place::new();
    let (data, sock) = (place.text("data"), format!("unix:{}", place.text("sock")));
    let args = ["server", "--data", &data, "--listen", &sock, "--zone-size", "256M", "--log-size", "1M"];
    let start = || {
        let server = Daemon::start(&[&args[..], &["--targets", "1"]].concat());
        (server, Daemon::start(&["mount", "--cluster", &sock, &place.text("mount")]))
    };
    let root = place.mount();
    let (server, mount) = start();
    make_tree(&root);
    let whole = tree(&root);
    mount.stop();
    server.kill();
    let path = place.path("data").join("target-0000.zone");
    let mut random = Random::new(5);
    let (mut hits, mut told, mut rebuilt) = ([0; 3], 0, 0);
    for round in 0..flips {
        let zone = File::options().read(true).write(true).open(&path).expect("open");
        let blocks = used_blocks(&zone);
        let kind = (round % 3) as usize;
        // The log is empty if the killed server took a checkpoint at its very end.
        let kind = if blocks[kind].is_empty() { 2 } else { kind };
        let block = blocks[kind][random.below(blocks[kind].len() as u64) as usize];
        let mut bytes = [0; BLOCK as usize];
        zone.read_exact_at(&mut bytes, block).expect("read");
        if random.below(2) == 0 {
            bytes[random.below(BLOCK) as usize] ^= 1 << random.below(8);
        } else {
            let sector = random.below(8) as usize * 512;
            bytes[sector..sector + 512].iter_mut().for_each(|b| *b = !*b);
        }
        zone.write_all_at(&bytes, block).expect("damage");
        drop(zone);
        hits[kind] += 1;
        let out = run(&["fsck", &data]);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "round {round}, byte {block}: {said}");
        told += u64::from(said.contains("rebuilt from the others") || said.contains("the other copy is used"));
        let (server, mount) = start();
        let now = tree(&root);
        assert!(now == whole, "round {round}: the tree is another after damage of the block at byte {block}");
        let out = run(&["status", "--json", &root.display().to_string()]);
        let status: serde_json::Value = serde_json::from_slice(&out.stdout).expect("json");
        rebuilt += status["targets"][0]["rebuilt_blocks"].as_u64().expect("a number");
        // The start may have taken a checkpoint, but the next round needs a block of the log.
        fs::create_dir(root.join("comes and goes")).expect("mkdir");
        fs::remove_dir(root.join("comes and goes")).expect("rmdir");
        mount.stop();
        server.kill();
    }
    println!("{hits:?} superblocks, blocks of the log and of pages damaged: {told} told, {rebuilt} counted, none lost");
    assert_eq!(told, flips);
    // The last group of the log may have been torn by the kill.
    assert!(rebuilt + 2 >= flips, "{rebuilt} of {flips}");
    let zone = File::options().read(true).write(true).open(&path).expect("open");
    zone.write_all_at(&[0x5a; 512], used_blocks(&zone)[2][1] + 1024).expect("damage");
    let told = |args: &[&str]| {
        let out = run(args);
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, said) = told(&["fsck", "--repair", &data]);
    assert!(code == Some(1) && said.contains("repair: ") && said.contains("rebuilt from the others"), "{said}");
    assert!(told(&["fsck", &data]).1.contains("rebuilt from the others"), "nothing was changed");
    let (code, said) = answered(&data, "n");
    assert!(code == Some(1) && said.contains("[y/N]") && !said.contains(" made"), "{said}");
    assert!(told(&["fsck", &data]).1.contains("rebuilt from the others"), "nothing was changed");
    let (code, said) = answered(&data, "y");
    assert!(code == Some(0) && said.contains(" made: sound"), "{said}");
    zone.write_all_at(&[0x5a; 512], used_blocks(&zone)[2][1] + 1024).expect("damage");
    let (code, said) = told(&["fsck", "--repair", "--yes", &data]);
    assert!(code == Some(0) && said.contains(" made: sound"), "{said}");
    let (code, said) = told(&["fsck", &data]);
    assert!(code == Some(0) && !said.contains("rebuilt"), "{said}");
    let (code, said) = told(&["fsck", "--repair", "--json", &data]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("json");
    assert!(code == Some(0) && said["plan"].as_array().is_some_and(Vec::is_empty), "{said}");
    let (server, mount) = start();
    assert!(tree(&root) == whole, "behind the repair");
    mount.stop();
    server.stop();
}
