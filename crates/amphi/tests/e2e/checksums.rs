//! Damage of file data on the disk, through real mounts.

use crate::harness::{Daemon, Place, run};
use std::fs;
use std::os::unix::fs::FileExt;

const BLOCK: usize = 4096;
/// Bits that are flipped; `AMPHI_DATA_FLIPS` has another number, of at most 3,000.
const FLIPS: usize = 300;

/// Bytes that no two blocks have in common.
fn content(file: u64, len: usize) -> Vec<u8> {
    let mut state = file.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Reads a file in pieces of 256 KiB, and after each block that cannot be read continues with the next block.
fn read_in_large_pieces(path: &std::path::Path, bytes: &[u8], is_damaged: impl Fn(usize) -> bool) {
    let file = fs::File::open(path).expect("open");
    let (mut at, mut found) = (0, vec![0; 256 << 10]);
    while at < bytes.len() {
        match file.read_at(&mut found, at as u64) {
            Ok(0) => panic!("{} ends at {at}", path.display()),
            Ok(n) => {
                assert!(found[..n] == bytes[at..at + n], "{} at {at}", path.display());
                let end = at + n;
                let short = n < found.len() && end < bytes.len();
                assert!(!short || is_damaged(end / BLOCK), "{} is good at {end}", path.display());
                at = end;
            }
            Err(e) => {
                assert!(e.raw_os_error() == Some(5) && is_damaged(at / BLOCK), "{} at {at}: {e}", path.display());
                at = (at / BLOCK + 1) * BLOCK;
            }
        }
    }
}

/// Goal: Promise S24: in files of which bits have changed on the disk, each block is read as it was written or not at
/// all. `fsck --data` names each damaged block, and no other block. If a file is written again, all of it can be read
/// again. Method: small and large files that are overwritten in part. 300 random bits of the blocks with their bytes
/// are flipped while no server runs.
#[test]
fn flipped_bits_are_found_and_not_served() {
    let flips = std::env::var("AMPHI_DATA_FLIPS").map_or(FLIPS, |n| n.parse().expect("a number"));
    let place = Place::new();
    let up = place.up(&["--set", "server.checksums=on", "--targets", "1"]);
    let mount = place.mount();
    let mut files = Vec::new();
    for k in 0..40u64 {
        let len = if k < 4 { 3 << 20 } else { 1000 + k as usize * 977 };
        let mut bytes = content(k + 1, len);
        let path = mount.join(format!("f{k}"));
        fs::write(&path, &bytes).expect("write");
        if k % 3 == 0 {
            let (at, part) = (len / 3, content(100 + k, len / 5));
            let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
            file.sync_all().expect("sync");
            file.write_all_at(&part, at as u64).expect("overwrite");
            bytes[at..at + part.len()].copy_from_slice(&part);
        }
        files.push((path, bytes));
    }
    up.stop();
    let data = place.text("data");
    let out = run(&["fsck", "--data", &data]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.contains(" 0 blocks damaged"), "{said}");
    assert!(said.contains(", 0 B without checksums"), "{said}");

    // The place of each block of the files on the disk.
    let zone = place.path("data").join("target-0000.zone");
    let disk = fs::OpenOptions::new().read(true).write(true).open(&zone).expect("open");
    let all = fs::read(&zone).expect("read");
    let mut at_disk = std::collections::HashMap::new();
    for (i, block) in all.chunks_exact(BLOCK).enumerate().filter(|(_, block)| block.iter().any(|&b| b != 0)) {
        at_disk.insert(block, i * BLOCK);
    }
    let mut places = Vec::new();
    for (f, (_, bytes)) in files.iter().enumerate() {
        for (b, block) in bytes.chunks(BLOCK).enumerate() {
            let mut whole = block.to_vec();
            whole.resize(BLOCK, 0);
            places.push((f, b, *at_disk.get(&whole[..]).expect("the block is on the disk")));
        }
    }
    let mut state = 7u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut damaged = std::collections::BTreeSet::new();
    while damaged.len() < flips {
        let (f, b, at) = places[next(places.len())];
        if damaged.insert((f, b)) {
            let byte = (at + next(BLOCK)) as u64;
            let mut was = [0];
            disk.read_exact_at(&mut was, byte).expect("read");
            disk.write_all_at(&[was[0] ^ (1 << next(8))], byte).expect("flip");
        }
    }
    drop(disk);
    let out = run(&["fsck", "--data", &data]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    for (f, b) in &damaged {
        let line = format!("damage: /f{f} (inode");
        let place = format!("from byte {} on are not what was written", b * BLOCK);
        assert!(said.lines().any(|l| l.starts_with(&line) && l.contains(&place)), "{f} {b}: {said}");
    }
    assert_eq!(said.lines().filter(|l| l.starts_with("damage: ")).count(), flips);

    let addr = place.addr();
    let up = place.up(&["--listen", &addr]);
    let mut refused = 0;
    for (f, (path, bytes)) in files.iter().enumerate() {
        let file = fs::File::open(path).expect("open");
        for (b, block) in bytes.chunks(BLOCK).enumerate() {
            let mut found = vec![0; block.len()];
            match file.read_exact_at(&mut found, (b * BLOCK) as u64) {
                Ok(()) => assert!(found == block, "block {b} of f{f} is wrong"),
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(5), "{e}");
                    refused += 1;
                }
            }
            if damaged.contains(&(f, b)) {
                assert_ne!(found, block, "block {b} of f{f} has a flipped bit and reads as if it had none");
            }
        }
    }
    assert!(refused >= flips, "{refused}");
    let whole = places.len() - refused;
    println!(
        "{flips} blocks of {} with a flipped bit: none served, {refused} refused, {whole} served whole",
        places.len()
    );
    for round in 0..2 {
        // Once in shared mode, beside another mount, and once in sole mode.
        let second = (round == 1).then(|| place.mount_at("b", &[]));
        let other = second.is_some().then(|| place.path("b"));
        for root in [Some(&mount), other.as_ref()].into_iter().flatten() {
            for (f, (_, bytes)) in files.iter().enumerate().take(4) {
                read_in_large_pieces(&root.join(format!("f{f}")), bytes, |b| damaged.contains(&(f, b)));
            }
        }
        second.into_iter().for_each(Daemon::stop);
    }
    let out = run(&["status", &mount.display().to_string()]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{flips} DAMAGED BLOCKS")) && said.contains("damaged: /f"), "{said}");
    let (path, bytes) = &files[1];
    fs::write(path, bytes).expect("write anew");
    assert!(fs::read(path).expect("read") == *bytes);
    fs::remove_file(&files[2].0).expect("remove");
    let left = damaged.iter().filter(|(f, _)| ![1, 2].contains(f)).count();
    let said = String::from_utf8_lossy(&run(&["status", &mount.display().to_string()]).stdout).into_owned();
    assert!(said.contains(&format!("{left} DAMAGED BLOCKS")), "{said}");
    up.stop();
    let left = damaged.iter().filter(|(f, _)| ![1, 2].contains(f)).count();
    let out = run(&["fsck", "--data", "--json", &data]);
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("json");
    assert_eq!(said["data_damaged_blocks"], left, "{said}");
}

/// Goal: checksums can be turned on and off for a file and for a directory, on two mounts, and the setting applies to
/// what any of them writes afterwards. Method: `amphi layout set` on files that span several targets, and what `fsck
/// --data` verifies.
#[test]
fn checksums_can_be_set() {
    let place = Place::new();
    let addr = place.addr();
    let up = place.up(&["--set", "server.checksums=off", "--targets", "2", "--listen", &addr]);
    let second = place.mount_at("b", &[]);
    let roots = [place.mount(), place.path("b")];
    let set = |path: &std::path::Path, asked: &str| {
        let out = run(&["layout", "set", "--checksums", asked, &path.display().to_string()]);
        assert!(out.status.success(), "{out:?}");
    };
    fs::create_dir(roots[0].join("d")).expect("mkdir");
    set(&roots[0].join("d"), "on");
    // The directory has 2 * 9 MiB, of which 2 MiB are written again without checksums; another 9 MiB lie outside it.
    for (i, root) in roots.iter().enumerate() {
        fs::write(root.join(format!("d/f{i}")), content(i as u64, 9 << 20)).expect("write");
    }
    fs::write(roots[1].join("other"), content(7, 9 << 20)).expect("write");
    set(&roots[1].join("d/f0"), "off");
    let out = run(&["layout", "get", &roots[0].join("d/f0").display().to_string()]);
    assert!(String::from_utf8_lossy(&out.stdout).contains(" checksums off consistency posix\n"), "{out:?}");
    for (i, root) in roots.iter().enumerate() {
        let file = fs::OpenOptions::new().write(true).open(root.join("d/f0")).expect("open");
        file.write_all_at(&content(9, 1 << 20), (i as u64 * 5) << 20).expect("overwrite");
        file.sync_all().expect("sync");
    }
    second.stop();
    up.stop();
    let out = run(&["fsck", "--data", "--json", &place.text("data")]);
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).expect("json");
    let blocks = |mib: u64| mib << 8;
    assert_eq!(said["data_verified_blocks"], blocks(16), "{said}");
    assert_eq!(said["data_unverified_blocks"], blocks(11), "{said}");
    assert_eq!(said["data_damaged_blocks"], 0, "{said}");
}
