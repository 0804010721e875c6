//! Whether a file lies on a rotating disk.
//!
//! Owns: following a file to the devices below it, in `/sys`. Does not own: what follows from that (a mount's large
//! thresholds for rotating storage).

use clap::ValueEnum;
use serde::Deserialize;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many devices below each other are followed at most.
const DEPTH_MAX: usize = 8;
/// Words in the name of a disk's model that show a virtual disk.
const VIRTUAL_MODELS: [&str; 5] = ["virtual", "qemu", "vbox", "vmware", "xen"];

/// The operator's statement about the storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Rotational {
    /// Look at the device.
    #[default]
    Auto,
    /// The storage rotates.
    True,
    /// The storage does not rotate.
    False,
}

impl Rotational {
    /// The value in the form that `--rotational` takes.
    pub fn text(self) -> &'static str {
        match self {
            Rotational::Auto => "auto",
            Rotational::True => "true",
            Rotational::False => "false",
        }
    }

    /// A function that returns whether the zone at a path lies on rotating storage.
    pub fn judge(self) -> Arc<dyn Fn(&str) -> bool + Send + Sync> {
        match self {
            Rotational::Auto => Arc::new(|path| Machine::real().file_rotates(Path::new(path), 0)),
            Rotational::True => Arc::new(|_| true),
            Rotational::False => Arc::new(|_| false),
        }
    }

    /// Refuses to be anything else than `true`, `false` or `"auto"`.
    pub fn from_file<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Rotational>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Word {
            Bool(bool),
            Text(String),
        }
        match Word::deserialize(from) {
            Ok(Word::Bool(true)) => Ok(Some(Rotational::True)),
            Ok(Word::Bool(false)) => Ok(Some(Rotational::False)),
            Ok(Word::Text(text)) if text == "auto" => Ok(Some(Rotational::Auto)),
            _ => Err(serde::de::Error::custom("rotational is true, false or \"auto\"")),
        }
    }
}

/// The root below which this machine's block devices are described (`sys/dev/block/...`).
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn real() -> Machine {
        Machine { root: PathBuf::from("/") }
    }

    fn file_rotates(&self, path: &Path, depth: usize) -> bool {
        let Ok(meta) = fs::metadata(path) else { return false };
        let device = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
        self.device_rotates(rustix::fs::major(device), rustix::fs::minor(device), depth)
    }

    fn device_rotates(&self, major: u32, minor: u32, depth: usize) -> bool {
        if depth > DEPTH_MAX {
            return false;
        }
        if major == 0 {
            // A file system over several devices, or over none, has a device number of its own.
            return self.mounted_from(major, minor).is_some_and(|path| self.file_rotates(&path, depth + 1));
        }
        let Ok(mut folder) = fs::canonicalize(self.root.join(format!("sys/dev/block/{major}:{minor}"))) else {
            return false;
        };
        if folder.join("partition").exists() {
            folder.pop();
        }
        if let Some(backing) = text(&folder.join("loop/backing_file")) {
            return self.file_rotates(Path::new(&backing), depth + 1);
        }
        let below: Vec<PathBuf> =
            fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten().map(|e| e.path()).collect();
        if !below.is_empty() {
            return below.iter().any(|part| {
                let number = text(&part.join("dev")).unwrap_or_default();
                let (major, minor) = number.split_once(':').unwrap_or_default();
                matches!((major.parse(), minor.parse()), (Ok(a), Ok(b)) if self.device_rotates(a, b, depth + 1))
            });
        }
        !is_virtual(&folder) && text(&folder.join("queue/rotational")).is_some_and(|t| t == "1")
    }

    /// The device from which the file system with this number is mounted.
    fn mounted_from(&self, major: u32, minor: u32) -> Option<PathBuf> {
        let number = format!("{major}:{minor}");
        let mounts = fs::read_to_string(self.root.join("proc/self/mountinfo")).ok()?;
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let source = after.split(' ').nth(1)?;
            (before.split(' ').nth(2)? == number && source.starts_with("/dev/")).then(|| PathBuf::from(source))
        })
    }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

/// Returns whether a disk is made by a hypervisor or by the kernel.
fn is_virtual(folder: &Path) -> bool {
    let made = folder.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        part == "virtual" || part.starts_with("virtio") || part.starts_with("vbd-")
    });
    let model = text(&folder.join("device/model")).unwrap_or_default().to_lowercase();
    let vendor = text(&folder.join("device/vendor")).unwrap_or_default().to_lowercase();
    made || VIRTUAL_MODELS.iter().any(|word| model.contains(word) || vendor.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A made-up machine.
    struct Made(tempfile::TempDir);

    impl Made {
        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
            fs::write(path, text).expect("write");
        }

        /// A device with a number, in a folder of `/sys/devices`.
        fn device(&self, number: &str, folder: &str, rotational: Option<&str>) {
            self.file(&format!("sys/devices/{folder}/dev"), number);
            if let Some(word) = rotational {
                self.file(&format!("sys/devices/{folder}/queue/rotational"), word);
            }
            fs::create_dir_all(self.0.path().join("sys/dev/block")).expect("mkdir");
            let to = self.0.path().join(format!("sys/devices/{folder}"));
            symlink(to, self.0.path().join(format!("sys/dev/block/{number}"))).expect("symlink");
        }

        fn below(&self, upper: &str, name: &str, lower: &str) {
            let slaves = self.0.path().join(format!("sys/devices/{upper}/slaves"));
            fs::create_dir_all(&slaves).expect("mkdir");
            symlink(self.0.path().join(format!("sys/devices/{lower}")), slaves.join(name)).expect("symlink");
        }

        fn rotates(&self, major: u32, minor: u32) -> bool {
            Machine { root: self.0.path().into() }.device_rotates(major, minor, 0)
        }
    }

    /// Goal: disks, partitions, volumes and virtual disks are distinguished. Method: a made-up `/sys`.
    #[test]
    fn devices_are_followed() {
        let m = Made(tempfile::tempdir().expect("a folder"));
        m.device("8:0", "pci0/ata1/block/sda", Some("1\n"));
        m.file("sys/devices/pci0/ata1/block/sda/device/model", "ST4000NM0035\n");
        m.device("8:1", "pci0/ata1/block/sda/sda1", None);
        m.file("sys/devices/pci0/ata1/block/sda/sda1/partition", "1\n");
        m.device("8:16", "pci0/ata2/block/sdb", Some("0\n"));
        m.device("254:0", "pci0/virtio1/block/vda", Some("1\n"));
        m.device("8:32", "pci0/host0/block/sdc", Some("1\n"));
        m.file("sys/devices/pci0/host0/block/sdc/device/model", "QEMU HARDDISK\n");
        m.device("253:0", "virtual/block/zram0", Some("1\n"));
        m.device("252:0", "virtual/block/dm-0", Some("1\n"));
        m.below("virtual/block/dm-0", "sda1", "pci0/ata1/block/sda/sda1");
        m.below("virtual/block/dm-0", "sdb", "pci0/ata2/block/sdb");
        m.device("252:1", "virtual/block/dm-1", Some("1\n"));
        m.below("virtual/block/dm-1", "vda", "pci0/virtio1/block/vda");
        for (major, minor, rotates) in [
            (8, 0, true),
            (8, 1, true),
            (8, 16, false),
            (254, 0, false),
            (8, 32, false),
            (253, 0, false),
            (252, 0, true),
            (252, 1, false),
            (9, 9, false),
            (0, 5, false),
        ] {
            assert_eq!(m.rotates(major, minor), rotates, "{major}:{minor}");
        }
    }

    /// Goal: if volumes are stacked on each other in a cycle, the search ends. Method: a device below itself.
    #[test]
    fn circles_end() {
        let m = Made(tempfile::tempdir().expect("a folder"));
        m.device("252:0", "virtual/block/dm-0", Some("1\n"));
        m.below("virtual/block/dm-0", "dm-0", "virtual/block/dm-0");
        assert!(!m.rotates(252, 0));
    }
}
