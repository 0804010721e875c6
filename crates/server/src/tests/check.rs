//! Damage that no checksum shows, planted in the zones of a stopped server. The check has to name each kind.

use super::*;
use crate::records::{self, HomeRecord, Intent, TxId};
use amphi_meta::{Inode, MetaStore, Part};
use amphi_types::SetAttr;
use amphi_types::item::{ItemStore, Key, Txn, tag};
use amphi_wire::{ServerInfo, XattrMode};
use amphi_zone::{OpenOptions, Order, Zone};

const T0: TargetId = TargetId(0);
const NOW: Timespec = Timespec { sec: 2_000_000_000, nsec: 0 };
/// A local number that no inode has, below those given out.
const FREE_LOCAL: u64 = 60;

type Items = BTreeMap<Key, Vec<u8>>;
/// Changes of one zone.
type Planted = (TargetId, Txn);

/// The contents of the zones, and the objects that the test made.
struct Folder {
    items: Vec<Items>,
    /// A directory of the root, and one in it.
    x: Ino,
    y: Ino,
    /// A file of two blocks that is only in its first object and has an extended attribute, and another file.
    f: Ino,
    g: Ino,
    session: SessionId,
}

impl Place {
    /// Opens the zone of a stopped server as the server would, changes items, and closes it. Returns the former items.
    async fn change(&self, target: TargetId, txn: Txn) -> Items {
        let options = OpenOptions { auto_checkpoint: false, ..OpenOptions::default() };
        let path = self.config.zone_path(target.0);
        let (zone, found) = Zone::open(&self.sim.node("server"), &path, &options).await.expect("opens");
        if !txn.is_empty() {
            let lsn = zone.append(txn, Order::Plain);
            zone.written(lsn).await.expect("written");
        }
        zone.close().await.expect("closed");
        found.items
    }

    async fn check(&self) -> crate::Report {
        crate::fsck(&self.sim.node("server"), "data").await.expect("readable")
    }
}

impl Folder {
    fn meta(&self, target: TargetId) -> MetaStore {
        let mut store = MetaStore::empty(target);
        let of_meta = |key: &[u8]| matches!(key.first(), Some(&(tag::INODE | tag::DENTRY | tag::XATTR | tag::META)));
        for (key, value) in self.items[usize::from(target.0)].iter().filter(|(key, _)| of_meta(key)) {
            store.load(key, value).expect("whole");
        }
        store
    }

    /// Some parts of an operation, on the targets that they concern. The other parts are lost.
    fn parts(&self, parts: &[Part]) -> Vec<Planted> {
        let mut by_target: BTreeMap<TargetId, Vec<Part>> = BTreeMap::new();
        for part in parts {
            by_target.entry(part.ino().target()).or_default().push(part.clone());
        }
        let apply = |(target, parts): (TargetId, Vec<Part>)| {
            let mut txn = Txn::default();
            self.meta(target).apply_parts(&parts, NOW, &mut txn);
            (target, txn)
        };
        by_target.into_iter().map(apply).collect()
    }

    /// The inode of `ino`, changed, under the number `to`.
    fn inode_to(&self, ino: Ino, to: Ino, change: impl FnOnce(&mut Inode)) -> Vec<Planted> {
        let value = &self.items[usize::from(ino.target().0)][&inode_key(ino)];
        let mut inode: Inode = postcard::from_bytes(&value[1..]).expect("decodes");
        change(&mut inode);
        put(ino.target(), inode_key(to), [&value[..1], &postcard::to_stdvec(&inode).expect("encodes")].concat())
    }

    fn inode(&self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Vec<Planted> {
        self.inode_to(ino, ino, change)
    }

    fn object(&self, ino: Ino) -> Vec<u8> {
        self.items[usize::from(ino.target().0)][&object_key(ino, 0)].clone()
    }

    /// The first extent: its physical block, and its value.
    fn extent(&self, ino: Ino) -> (u64, Vec<u8>) {
        let value = self.items[usize::from(ino.target().0)][&extent_key(ino, 0)].clone();
        (u64::from_le_bytes(value[..8].try_into().expect("8 bytes")), value)
    }
}

fn put(target: TargetId, key: Key, value: Vec<u8>) -> Vec<Planted> {
    let mut txn = Txn::default();
    txn.put(key, value);
    vec![(target, txn)]
}

fn gone(target: TargetId, key: Key) -> Vec<Planted> {
    let mut txn = Txn::default();
    txn.delete(key);
    vec![(target, txn)]
}

fn inode_key(ino: Ino) -> Key {
    [&[tag::INODE][..], &ino.local().to_be_bytes()].concat()
}

fn object_key(ino: Ino, stripe: u32) -> Key {
    [&[tag::OBJECT][..], &ino.0.to_be_bytes(), &stripe.to_be_bytes()].concat()
}

fn extent_key(ino: Ino, block: u64) -> Key {
    [&[tag::EXTENT][..], &ino.0.to_be_bytes(), &0u32.to_be_bytes(), &block.to_be_bytes()].concat()
}

/// An extent as docs/DISK_FORMAT.md has it.
fn extent(physical: u64, blocks: u32, state: u8) -> Vec<u8> {
    [&physical.to_le_bytes()[..], &blocks.to_le_bytes(), &[state]].concat()
}

fn insert(dir: Ino, text: &str, child: Ino, kind: Kind) -> Part {
    Part::InsertDentry { dir, name: name(text), child, kind }
}

fn remove(dir: Ino, text: &str, expect: Ino) -> Part {
    Part::RemoveDentry { dir, name: name(text), expect }
}

/// A server of two targets with a small tree, stopped, and what is in its zones.
async fn stopped(place: &Place) -> Folder {
    let server = place.start().await.expect("starts");
    let c = place.client(1).await.expect("connects");
    let x = c.mkdir(Ino::ROOT, "x").await.expect("mkdir");
    let y = c.mkdir(x, "y").await.expect("mkdir");
    let f = c.create(Ino::ROOT, "f").await.expect("create");
    let g = c.create(Ino::ROOT, "g").await.expect("create");
    for ino in [f, g] {
        let object = ObjectId { ino, stripe: 0 };
        let op = Request::Write {
            object,
            offset: 0,
            generation: 0,
            mtime: NOW,
            server_lock: true,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        c.ask(op, Some(Buf::zeroed(8192))).await.0.expect("written");
    }
    let op = Request::SetXattr { ino: f, name: b"user.a".to_vec(), value: b"1".to_vec(), mode: XattrMode::Set };
    c.call(op).await.expect("set");
    for ino in [f, g] {
        // The owner's own copy of the size, so that nothing has to be gathered.
        let set = SetAttr { size: Some(8192), ..SetAttr::default() };
        c.inode(Request::SetAttr { ino, set }).await.expect("set");
    }
    server.stop().await.expect("stops");
    drop(server);
    let items = vec![place.change(T0, Txn::default()).await, place.change(TargetId(1), Txn::default()).await];
    let folder = Folder { items, x, y, f, g, session: SessionId(1) };
    assert!(place.check().await.is_clean());
    folder
}

/// Goal: every check of names, objects, extents, intents and records of a folder finds the damage for which it was
/// made, with the place. Checking changes nothing. Method: a server of two targets is stopped. The zone's own code
/// changes the items of its zones, one damage at a time. Names are changed by some of the parts of an operation. Then
/// the former items are restored, and the zones are sound again.
#[test]
fn each_check_finds_its_damage() {
    let place = Place::new(131, 2, 1);
    let run = async {
        let folder = stopped(&place).await;
        let all = damages(&folder);
        assert!(all.len() > 35);
        for (reason, planted) in all {
            for (target, txn) in &planted {
                place.change(*target, txn.clone()).await;
            }
            let image = |t| place.sim.peek("server", &place.config.zone_path(t), 0, 3 << 20).expect("readable");
            let before = [image(0), image(1)];
            let report = place.check().await;
            let said: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
            assert!(said.iter().any(|line| line.contains(&reason)), "{reason:?} is not in {said:#?}");
            assert!([image(0), image(1)] == before, "{reason}: the check has written");
            for (target, txn) in planted {
                let old = &folder.items[usize::from(target.0)];
                let mut back = Txn::default();
                for change in txn.changes() {
                    match old.get(change.key()) {
                        Some(value) => back.put(change.key(), value),
                        None => back.delete(change.key()),
                    }
                }
                place.change(target, back).await;
            }
            let report = place.check().await;
            assert!(report.is_clean(), "after {reason:?}: {report:?}");
        }
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Each damage, and words of the finding that it must cause.
fn damages(a: &Folder) -> Vec<(String, Vec<Planted>)> {
    let mut all = damages_of_names(a);
    all.extend(damages_of_data(a));
    all.extend(damages_of_records(a));
    all
}

fn damages_of_names(a: &Folder) -> Vec<(String, Vec<Planted>)> {
    let &Folder { x, y, f, .. } = a;
    let root = Ino::ROOT;
    let nobody = Ino::new(T0, FREE_LOCAL);
    let beyond = Ino::new(f.target(), 1 << 40);
    let touch = |dir, links| Part::TouchDir { dir, links };
    // x leaves the root for y, which is in x.
    let ring = [
        remove(root, "x", x),
        touch(root, -1),
        insert(y, "ring", x, Kind::Dir),
        touch(y, 1),
        Part::SetParent { ino: x, parent: y },
    ];
    let xattr = [&[tag::XATTR][..], &FREE_LOCAL.to_be_bytes(), b"user.a"].concat();
    let xattr_value = a.items[usize::from(f.target().0)]
        .iter()
        .find(|(key, _)| key.starts_with(&[tag::XATTR]) && key.ends_with(b"user.a"))
        .map(|(_, value)| value.clone());
    let orphan = |inode: &mut Inode| (inode.nlink, inode.dir.entries) = (0, 0);
    vec![
        (format!("directory {x} cannot be reached from the root"), a.parts(&ring)),
        (format!("directory {y} cannot be reached from the root"), a.parts(&ring)),
        (format!("inode {f} has 1 links and needs 0"), a.parts(&[remove(root, "f", f)])),
        (format!("inode {f} has 2 links and needs 1"), a.parts(&[Part::Link { ino: f }])),
        (format!("inode {f} has 0 links and needs 1"), a.parts(&[Part::Unlink { ino: f, kind: Kind::File }])),
        (format!("inode {x} has 4 links and needs 3"), a.parts(&[touch(x, 1)])),
        (format!("directory {x} has 2 names"), a.parts(&[insert(root, "again", x, Kind::Dir), touch(root, 1)])),
        (
            format!("\"none\" in {root} names inode {nobody}, which does not exist"),
            a.parts(&[insert(root, "none", nobody, Kind::File)]),
        ),
        (
            format!("\"pipe\" in {root} says Fifo, its inode File"),
            a.parts(&[insert(root, "pipe", f, Kind::Fifo), Part::Link { ino: f }]),
        ),
        (format!("directory \"y\" in {x} has the parent {root}"), a.parts(&[Part::SetParent { ino: y, parent: root }])),
        ("there is no root directory".into(), a.parts(&[Part::SetParent { ino: root, parent: x }])),
        (format!("inode {x} says 2 entries and has 1"), a.inode(x, |inode| inode.dir.entries += 1)),
        (format!("inode {x} has entries and is no living directory"), a.inode(x, |inode| inode.nlink = 0)),
        (format!("directory {x} has entries and does not exist"), gone(x.target(), inode_key(x))),
        (format!("inode {beyond} is beyond the numbers given out"), a.inode_to(f, beyond, orphan)),
        (
            format!("inode {nobody} has extended attributes and does not exist"),
            put(T0, xattr, xattr_value.expect("f has one")),
        ),
        ("target 1 has no metadata store item".into(), gone(TargetId(1), vec![tag::META])),
        ("malformed key".into(), put(T0, vec![tag::INODE, 1], vec![1])),
    ]
}

fn damages_of_data(a: &Folder) -> Vec<(String, Vec<Planted>)> {
    let &Folder { x, f, g, .. } = a;
    let (t, nobody) = (f.target(), Ino::new(f.target(), FREE_LOCAL));
    let other = TargetId(1 - t.0);
    let (at, first) = a.extent(f);
    let mut later = a.object(f);
    later[20] = 9;
    vec![
        (format!("object 0 of {nobody}: its inode does not exist"), put(t, object_key(nobody, 0), a.object(f))),
        (format!("object 0 of {x}: its inode is a Dir"), put(x.target(), object_key(x, 0), a.object(f))),
        (format!("object 0 of {f}: belongs to {t}"), put(other, object_key(f, 0), a.object(f))),
        (
            format!("object 1 of {f}: its inode knows of no data beyond stripe 0"),
            put(other, object_key(f, 1), a.object(f)),
        ),
        (format!("object 0 of {f}: knows truncate 9, its inode only"), put(t, object_key(f, 0), later)),
        (
            format!("object 0 of {f}: ends at 8192, behind the file's end at 1"),
            a.inode(f, |inode| (inode.size, inode.objects.spread) = (1, false)),
        ),
        (format!("object 0 of {f}: its value does not decode"), put(t, object_key(f, 0), a.object(f)[..27].to_vec())),
        (format!("{f}: its value does not decode"), put(t, extent_key(f, 0), [&first[..12], &[2]].concat())),
        ("its length of 0 blocks is out of bounds".into(), put(t, extent_key(f, 0), extent(at, 0, 1))),
        ("is outside of the".into(), put(t, extent_key(f, 0), extent(1 << 40, 1, 1))),
        ("is beyond the largest file".into(), put(t, extent_key(f, u64::MAX >> 12), extent(at, 2, 1))),
        ("the object does not exist".into(), gone(t, object_key(f, 0))),
        ("lies behind the object's end 8192".into(), put(t, extent_key(f, 1000), extent(4000, 1, 1))),
        ("overlaps the extent before it".into(), put(t, extent_key(f, 1), extent(4000, 1, 1))),
        (format!("physical block {at} is in another extent too"), put(g.target(), extent_key(g, 0), extent(at, 1, 1))),
        ("a data key of 4 bytes does not decode".into(), put(t, vec![tag::EXTENT, 1, 2, 3], vec![])),
    ]
}

fn damages_of_records(a: &Folder) -> Vec<(String, Vec<Planted>)> {
    let tx = TxId { coordinator: T0, number: 77 };
    let intent = |intent: &Intent| put(T0, intent.key(), records::encode(intent));
    // The name is taken.
    let parts = vec![insert(Ino::ROOT, "f", a.g, Kind::File)];
    let prepared = intent(&Intent::Prepared { tx, now: NOW, parts: parts.clone() });
    let committed = intent(&Intent::Committed { tx, participants: vec![T0] });
    let misfit = format!("the promised changes of operation 77 of {T0} do not fit");
    let own: HomeRecord = postcard::from_bytes(&a.items[0][&records::home_key()]).expect("decodes");
    let home = |home: &HomeRecord| put(T0, records::home_key(), records::encode(home));
    let elsewhere = HomeRecord { server: own.server, targets: vec![T0, TargetId(5)] };
    let strange = HomeRecord { server: own.server + 1, targets: own.targets.clone() };
    let alone = |target| gone(TargetId(target), records::home_key());
    let nowhere = || [alone(0), alone(1)].concat();
    let mut cluster: records::ClusterRecord =
        postcard::from_bytes(&a.items[1][&records::cluster_key()]).expect("decodes");
    cluster.pool = 5;
    let mut map: amphi_wire::ClusterMap = postcard::from_bytes(&a.items[0][&records::map_key()]).expect("decodes");
    map.servers.push(ServerInfo { id: 9, name: "nine".into(), addrs: Vec::new(), targets: vec![TargetId(1)] });
    let answer = (0..2).flat_map(|t| &a.items[t]).find(|(key, _)| key.starts_with(&[tag::REPLY]));
    let (_, answer) = answer.expect("an answer is kept");
    let mut twisted = Intent::Applied { tx }.key();
    twisted[17] ^= 1;
    assert!(a.items[0].contains_key(&records::session_key(a.session)), "only others do not exist");
    vec![
        (misfit.clone(), [prepared, committed].concat()),
        (misfit, intent(&Intent::Decided { tx, now: NOW, parts: vec![(T0, parts)] })),
        ("an intent lies under the key of another".into(), put(T0, twisted, records::encode(&Intent::Applied { tx }))),
        (
            "slot 3 belongs to session 5e, which does not exist".into(),
            put(T0, records::slot_key(SessionId(0x5e), 3), answer.clone()),
        ),
        ("belongs beside".into(), home(&elsewhere)),
        ("belongs to another server of the cluster".into(), home(&strange)),
        (
            "belongs to a cluster of 5 targets, here are 2".into(),
            [nowhere(), put(TargetId(1), records::cluster_key(), records::encode(&cluster))].concat(),
        ),
        (
            "has no cluster record: its first start was interrupted".into(),
            [nowhere(), gone(TargetId(1), records::cluster_key())].concat(),
        ),
        ("the cluster map: a target has two servers".into(), put(T0, records::map_key(), records::encode(&map))),
        ("is no item of the server".into(), put(T0, vec![tag::CONFIG, b'?'], vec![])),
    ]
}

/// Goal: a promise without a decision is no damage: the report names it as work for the next start, which discards it.
/// Method: an intent of a change that would be impossible in any case, without any other fault.
#[test]
fn an_undecided_promise_is_no_damage() {
    let place = Place::new(132, 2, 1);
    let run = async {
        let folder = stopped(&place).await;
        let tx = TxId { coordinator: TargetId(1), number: 78 };
        let parts = vec![insert(Ino::ROOT, "f", folder.g, Kind::File)];
        let prepared = Intent::Prepared { tx, now: NOW, parts };
        for (target, txn) in put(T0, prepared.key(), records::encode(&prepared)) {
            place.change(target, txn).await;
        }
        let report = place.check().await;
        assert!(report.is_clean(), "{report:?}");
        let told =
            report.pending.iter().any(|line| line.contains("1 changes of operation 78 of target 1 are promised"));
        assert!(told, "{:?}", report.pending);
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: a zone under the name of another one, and a zone of another cluster, are reported with their place. Method:
/// the bytes of a zone are replaced by those of another zone of the same folder, and of a folder of another cluster.
#[test]
fn zones_in_the_wrong_place_are_found() {
    const BYTES: usize = 32 << 20;
    let places = [Place::new(133, 2, 1), Place::new(134, 2, 1)];
    for place in &places {
        place.sim.block_on(async { drop(stopped(place).await) }).expect("no deadlock");
    }
    let [here, there] = &places;
    let path = here.config.zone_path(1);
    let own = here.sim.peek("server", &path, 0, BYTES).expect("readable");
    let twin = here.sim.peek("server", &here.config.zone_path(0), 0, BYTES).expect("readable");
    let foreign = there.sim.peek("server", &path, 0, BYTES).expect("readable");
    for (bytes, reason) in
        [(&twin, Some("is the zone of target 0")), (&foreign, Some("belongs to cluster")), (&own, None)]
    {
        here.sim.poke("server", &path, 0, bytes).expect("writable");
        let report = here.sim.block_on(here.check()).expect("no deadlock");
        assert_eq!(report.is_clean(), reason.is_none(), "{report:?}");
        let named = |r: &str| report.findings.iter().any(|f| f.place.contains("target-0001") && f.reason.contains(r));
        assert!(reason.is_none_or(named), "{reason:?}: {report:?}");
    }
}

/// Goal: a folder of which only a part can be checked is checked as far as possible: the metadata of each zone by
/// itself. Method: a directory has a wrong count of entries. First the map says that a further target is elsewhere, and
/// then, instead, the zone of another target cannot be read.
#[test]
fn parts_of_a_cluster_are_checked() {
    let place = Place::new(135, 2, 1);
    let run = async {
        let folder = stopped(&place).await;
        let dir = folder.x;
        let other = TargetId(1 - dir.target().0);
        for (target, txn) in folder.inode(dir, |inode| inode.dir.entries += 4) {
            place.change(target, txn).await;
        }
        let mut map: amphi_wire::ClusterMap =
            postcard::from_bytes(&folder.items[0][&records::map_key()]).expect("decodes");
        map.epoch += 1;
        map.servers.push(ServerInfo { id: 9, name: "nine".into(), addrs: Vec::new(), targets: vec![TargetId(2)] });
        let wrong = format!("inode {dir} says 5 entries and has 1");
        let found = |report: &crate::Report| report.findings.iter().filter(|f| f.reason == wrong).count();
        let back = put(T0, records::map_key(), folder.items[0][&records::map_key()].clone());
        for (target, txn) in put(T0, records::map_key(), records::encode(&map)) {
            place.change(target, txn).await;
        }
        let report = place.check().await;
        assert_eq!((report.elsewhere, found(&report), report.findings.len()), (1, 1, 1), "{report:?}");
        for (target, txn) in back {
            place.change(target, txn).await;
        }
        for at in [0u64, 4096, 8192, 65536] {
            place.sim.poke("server", &place.config.zone_path(other.0), at, &[0x5a; 512]).expect("writable");
        }
        let report = place.check().await;
        assert_eq!((found(&report), report.findings.len()), (1, 2), "{report:?}");
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: zones in which the first start has not begun are no damage in a cluster that was never used. They count as
/// damage if other zones refer to them. Method: all items of some zones of a server are removed, once for a server that
/// was only started and once for one that was used.
#[test]
fn zones_without_a_start_are_told() {
    for (used, emptied) in [(false, vec![0]), (false, vec![1]), (false, vec![0, 1]), (true, vec![0]), (true, vec![1])] {
        let place = Place::new(136, 2, 1);
        let run = async {
            if used {
                stopped(&place).await;
            } else {
                place.start().await.expect("starts").stop().await.expect("stops");
            }
            for target in emptied.iter().copied().map(TargetId) {
                let mut txn = Txn::default();
                place.change(target, Txn::default()).await.into_keys().for_each(|key| txn.delete(key));
                place.change(target, txn).await;
            }
            let report = place.check().await;
            assert_eq!(report.is_clean(), !used, "used: {used}, {emptied:?}: {report:?}");
            let told = report.notes.iter().filter(|n| n.contains("its first start was interrupted")).count();
            assert_eq!(told, emptied.len(), "{report:?}");
            if !used {
                drop(place.start().await.expect("opens by itself"));
            }
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}

impl Place {
    fn folders(&self) -> [(amphi_env::sim::SimEnv, String); 1] {
        [(self.sim.node("server"), "data".to_string())]
    }

    /// Plans the repair of the folder.
    async fn plan(&self) -> (crate::Report, crate::RepairPlan) {
        crate::plan_repair(&self.folders(), NOW).await.expect("readable")
    }

    /// Puts back all items as they were.
    async fn put_back(&self, folder: &Folder) {
        for (target, old) in folder.items.iter().enumerate() {
            let target = TargetId(target as u16);
            let now = self.change(target, Txn::default()).await;
            let mut back = Txn::default();
            now.keys().filter(|key| !old.contains_key(*key)).for_each(|key| back.delete(key.clone()));
            let changed = old.iter().filter(|(key, value)| now.get(*key) != Some(*value));
            changed.for_each(|(key, value)| back.put(key.clone(), value.clone()));
            self.change(target, back).await;
        }
    }
}

/// Goal: a repair corrects the damage that it names, leaves everything else unchanged, never removes an inode, and is
/// shown before anything is written. A second repair has nothing to do. Method: each damage that the check knows is
/// planted, repaired and put back.
#[test]
fn each_damage_is_repaired_or_left() {
    let place = Place::new(137, 2, 1);
    let run = async {
        let folder = stopped(&place).await;
        let (mut repaired, mut left) = (0, Vec::new());
        for (reason, planted) in damages(&folder) {
            for (target, txn) in planted {
                place.change(target, txn).await;
            }
            let image = |t| place.sim.peek("server", &place.config.zone_path(t), 0, 3 << 20).expect("readable");
            let before = [image(0), image(1)];
            let (report, plan) = place.plan().await;
            assert!([image(0), image(1)] == before, "{reason}: the plan has written");
            let (steps, is_empty) = (plan.steps.clone(), plan.is_empty());
            plan.carry_out(&place.folders()).await.expect("repaired");
            let after = place.check().await;
            assert!(after.inodes >= report.inodes, "{reason}: {} of {} inodes", after.inodes, report.inodes);
            if after.is_clean() {
                assert!(!is_empty && !steps.is_empty(), "{reason}");
                repaired += 1;
            } else {
                assert!(after.findings.len() <= report.findings.len(), "{reason}: {after:?} after {steps:?}");
                left.push(reason.clone());
            }
            let (_, again) = place.plan().await;
            assert!(again.is_empty(), "{reason}: {again:?} behind {steps:?}");
            place.put_back(&folder).await;
            let report = place.check().await;
            assert!(report.is_clean(), "after {reason:?}: {report:?}");
        }
        println!("{repaired} repaired, left: {left:#?}");
        assert!(repaired >= 15, "{repaired}, {left:#?}");
        for never in ["in another extent too", "does not decode", "malformed", "belongs beside"] {
            assert!(left.iter().any(|reason| reason.contains(never)), "{never:?} cannot be repaired: {left:#?}");
        }
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: unreachable inodes become reachable, and the path of each loss is named. Method: a cycle of directories, a
/// file without a name, and a name without a file. A server is started after the repair.
#[test]
fn what_is_repaired_can_be_used() {
    let place = Place::new(138, 2, 1);
    let run = async {
        let folder = stopped(&place).await;
        let (x, y, f) = (folder.x, folder.y, folder.f);
        let nobody = Ino::new(T0, FREE_LOCAL);
        let ring = [remove(Ino::ROOT, "x", x), insert(y, "ring", x, Kind::Dir), Part::SetParent { ino: x, parent: y }];
        let others = [remove(Ino::ROOT, "f", f), insert(x, "lost", nobody, Kind::File)];
        for (target, txn) in folder.parts(&[&ring[..], &others].concat()) {
            place.change(target, txn).await;
        }
        let (_, plan) = place.plan().await;
        let said = plan.steps.join("\n");
        assert!(said.contains("/lost (below directory") && said.contains(&format!("/lost+found/#{}", f.0)), "{said}");
        plan.carry_out(&place.folders()).await.expect("repaired");
        assert!(place.check().await.is_clean());
        let server = place.start().await.expect("starts");
        let c = place.client(2).await.expect("connects");
        let found = c.lookup(Ino::ROOT, "lost+found").await.expect("is there").attr.ino;
        assert_eq!(c.lookup(found, &format!("#{}", f.0)).await.expect("named").attr.ino, f);
        let either = [x, y].map(|ino| format!("#{}", ino.0));
        let names = [c.lookup(found, &either[0]).await.is_ok(), c.lookup(found, &either[1]).await.is_ok()];
        assert_eq!(names.iter().filter(|is_there| **is_there).count(), 1, "one of the ring");
        server.stop().await.expect("stops");
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: a repair that is cut off anywhere is finished by the next one, and nothing is worse meanwhile. Method: crashes
/// of both kinds at each of its disk operations.
#[test]
fn a_repair_that_is_cut_off_goes_on() {
    use amphi_env::sim::CrashKind;
    let place = Place::new(139, 2, 1);
    let folder = place.sim.block_on(stopped(&place)).expect("no deadlock");
    let (f, x) = (folder.f, folder.x);
    let mut points = 0;
    for kind in [CrashKind::Process, CrashKind::Power] {
        for nth in 1.. {
            let plant = async {
                let planted = folder.parts(&[remove(Ino::ROOT, "f", f), remove(Ino::ROOT, "x", x)]);
                for (target, txn) in planted {
                    place.change(target, txn).await;
                }
                place.plan().await.1
            };
            let plan = place.sim.block_on(plant).expect("no deadlock");
            assert!(!plan.is_empty());
            let ended = std::rc::Rc::new(std::cell::Cell::new(false));
            let (told, folders) = (ended.clone(), place.folders());
            place.sim.crash_at("server", nth, kind);
            place.sim.node("server").spawn(async move {
                plan.carry_out(&folders).await.expect("repaired");
                told.set(true);
            });
            place.sim.run_until(|| ended.get() || !place.sim.alive("server")).expect("no deadlock");
            let is_last = ended.get();
            place.sim.clear_crash_at("server");
            if place.sim.alive("server") {
                place.sim.crash("server", kind);
            }
            let rest = async {
                let (report, plan) = place.plan().await;
                assert!(report.inodes >= 5, "{report:?}");
                plan.carry_out(&place.folders()).await.expect("repaired");
                let report = place.check().await;
                assert!(report.is_clean(), "{kind:?} at {nth}: {report:?}");
                place.put_back(&folder).await;
            };
            place.sim.block_on(rest).expect("no deadlock");
            if is_last {
                break;
            }
            points += 1;
        }
    }
    assert!(points > 10, "{points} points");
}
