//! Values of extended attributes that are not in the memory of the server.

use super::*;
use crate::planted::{Mistake, plant};
use amphi_env::sim::{CrashKind, DiskOpKind};
use futures_util::future::join3;

fn set(ino: Ino, attr: u64, value: &[u8]) -> Request {
    let name = format!("user.{attr}").into_bytes();
    Request::SetXattr { ino, name, value: value.to_vec(), mode: amphi_wire::XattrMode::Set }
}

async fn get(c: &Client, ino: Ino, attr: u64) -> Result<Vec<u8>> {
    match c.call(Request::GetXattr { ino, name: format!("user.{attr}").into_bytes() }).await? {
        Reply::Bytes(value) => Ok(value),
        other => panic!("{other:?}"),
    }
}

/// A small deterministic generator.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Sets, removes and reads attributes of three files, over kills of the server.
async fn story(place: &Place, seed: u64) {
    let mut server = Some(place.start().await.unwrap());
    let c = place.client(1).await.unwrap();
    let mut files = Vec::new();
    for n in 0..3 {
        files.push(c.create(Ino::ROOT, &format!("f{n}")).await.unwrap());
    }
    let mut rng = Lcg(seed);
    let mut model: BTreeMap<(Ino, u64), Vec<u8>> = BTreeMap::new();
    for step in 0..150 {
        let (ino, attr) = (files[rng.below(3) as usize], rng.below(5));
        let wanted = model.get(&(ino, attr)).cloned().ok_or(Errno::NoData);
        let value = vec![step as u8; rng.below([40, 400, 6000][step as usize % 3]) as usize];
        match rng.below(8) {
            0..3 => {
                // A reader meanwhile gets the value before or the one after the change.
                let change = c.call(set(ino, attr, &value));
                let (changed, first, second) = join3(change, get(&c, ino, attr), get(&c, ino, attr)).await;
                assert_eq!(changed, Ok(Reply::Done), "{step}");
                for read in [first, second] {
                    assert!(read == wanted || read.as_ref() == Ok(&value), "{step}: {read:?}");
                }
                assert_eq!(get(&c, ino, attr).await.as_ref(), Ok(&value), "{step}");
                model.insert((ino, attr), value);
            }
            3 => {
                let op = Request::RemoveXattr { ino, name: format!("user.{attr}").into_bytes() };
                assert_eq!(c.call(op).await.is_ok(), wanted.is_ok(), "{step}");
                model.remove(&(ino, attr));
                assert_eq!(get(&c, ino, attr).await, Err(Errno::NoData), "{step}");
            }
            4 if step % 4 == 0 => {
                place.sim.crash("server", CrashKind::Process);
                drop(server.take());
                server = Some(place.start().await.unwrap());
            }
            _ => assert_eq!(get(&c, ino, attr).await, wanted, "{step}"),
        }
    }
    for ((ino, attr), value) in &model {
        assert_eq!(get(&c, *ino, *attr).await.as_ref(), Ok(value));
    }
}

/// Goal: values that are not in memory are those that were set last, also while they change, and after a start. Method:
/// random changes and reads beside a map, with a server that keeps no value longer than 64 bytes.
#[test]
fn values_are_what_was_set() {
    plant(Some(Mistake::NoValueKept));
    for seed in 0..8 {
        let place = Place::new(700 + seed, 2, 1);
        place.sim.block_on(story(&place, seed)).expect("no deadlock");
    }
    plant(None);
}

/// Goal: while a value cannot be read from the disk, a request for it fails, and all other requests succeed. Method:
/// values that exceed the log of a target are read while the disk refuses reads, and after that.
#[test]
fn an_unreadable_value_is_an_error() {
    plant(Some(Mistake::NoValueKept));
    with_server(710, 1, 1, async |place, c| {
        let mut files = Vec::new();
        for n in 0..30u64 {
            let f = c.create(Ino::ROOT, &format!("f{n}")).await.unwrap();
            c.call(set(f, 1, &vec![n as u8; 40_000])).await.unwrap();
            files.push(f);
        }
        // The first ones get into a segment.
        place.sim.node("client").sleep(Duration::from_secs(5)).await;
        place.sim.on_disk_op("server", |op| (op.kind == DiskOpKind::Read).then_some(std::io::ErrorKind::Other));
        assert_eq!(get(c, files[0], 1).await, Err(Errno::Io));
        assert_eq!(c.stat(files[0]).await.unwrap().nlink, 1);
        place.sim.on_disk_op("server", |_| None);
        for (n, f) in files.iter().enumerate() {
            assert_eq!(get(c, *f, 1).await, Ok(vec![n as u8; 40_000]));
        }
    });
    plant(None);
}
