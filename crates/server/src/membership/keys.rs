//! Rules of the registry of keys: the allowed contents of an entry, the effects of a change, and the addresses from
//! which a key is accepted.
//!
//! Owns: these rules, as plain functions. Does not own: where the registry is stored and which servers get it
//! (`cluster::keys`), which requests a session with a key may make (`cluster::sessions::gate`).
//!
//! Invariants: a name belongs to one key, and a public key to one name. In the maps of users and groups, each number of
//! a client maps to one number of the servers, and the other way round. A key has no settings that are useless for its
//! role.

use amphi_meta::Facts;
use amphi_types::acl::Who;
use amphi_types::limits::BODY_MAX;
use amphi_types::{Caps, Cred};
use amphi_wire::keys::{
    AddressRange, Fingerprint, IdRange, KEY_NAME_MAX, KEY_PATH_MAX, KEY_RANGES_MAX, KEYS_MAX, KeyChange, KeyEntry,
    KeyRegistry, KeyRole, KeySettings, NOBODY, Squash, SquashTo, Subtree,
};
use std::net::{IpAddr, Ipv6Addr};

/// Most bytes of a registry. It is sent in one message, together with other data.
const REGISTRY_BYTES_MAX: usize = BODY_MAX / 2;

/// The entry of a public key.
pub fn find(registry: &KeyRegistry, key: Fingerprint) -> Option<&KeyEntry> {
    registry.keys.iter().find(|e| e.fingerprint == key || e.next == Some(key))
}

/// Returns whether `b` is a later state of the registry than `a`. If two histories diverge, the one with more changes
/// is later. If they have equally many, the one with the larger number wins. So all servers agree.
pub fn is_later(a: &KeyRegistry, b: &KeyRegistry) -> bool {
    (b.version, b.stamp) > (a.version, a.stamp)
}

/// Foreign text as part of a line.
fn shown(text: &str) -> String {
    text.escape_debug().take(100).collect()
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    if name.is_empty() || name.len() > KEY_NAME_MAX || !name.chars().all(allowed) {
        return Err(format!(
            "'{}' is no name for a key: at most {KEY_NAME_MAX} letters, digits, '.', '_', '-' and '@'",
            shown(name)
        ));
    }
    // A name must not look like a fingerprint, so that it is always clear which of the two is meant.
    if name.len() == 16 && name.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(format!("'{name}' looks like the number of a session; choose another name"));
    }
    Ok(())
}

fn check_ranges(what: &str, ranges: &[IdRange]) -> Result<(), String> {
    if ranges.len() > KEY_RANGES_MAX {
        return Err(format!("{} ranges of {what} are too many; at most {KEY_RANGES_MAX}", ranges.len()));
    }
    let last = |first: u32, count: u32| first.checked_add(count.checked_sub(1)?);
    let meet = |a: u32, a_count: u32, b: u32, b_count: u32| match (last(a, a_count), last(b, b_count)) {
        (Some(a_last), Some(b_last)) => a <= b_last && b <= a_last,
        _ => true,
    };
    for (at, a) in ranges.iter().enumerate() {
        // The largest number means "none" in Linux.
        if [a.client, a.server].iter().any(|first| last(*first, a.count).is_none_or(|last| last == u32::MAX)) {
            return Err(format!("the range of {what} {}:{}:{} is empty or too long", a.client, a.server, a.count));
        }
        let twice =
            |b: &IdRange| meet(a.client, a.count, b.client, b.count) || meet(a.server, a.count, b.server, b.count);
        if let Some(b) = ranges[..at].iter().find(|b| twice(b)) {
            return Err(format!(
                "the ranges of {what} {}:{}:{} and {}:{}:{} overlap",
                b.client, b.server, b.count, a.client, a.server, a.count
            ));
        }
    }
    Ok(())
}

fn check_subtree(tree: &Subtree) -> Result<(), String> {
    if tree.project == 0 {
        return Err("a tree has a project, whose number is not 0".into());
    }
    if tree.path.is_empty() || tree.path.len() > KEY_PATH_MAX || tree.path.chars().any(char::is_control) {
        return Err(format!("the path of a tree has 1 to {KEY_PATH_MAX} bytes and no control characters"));
    }
    Ok(())
}

/// Returns whether an entry is valid by itself.
///
/// Errors: what does not, for people.
pub fn check_entry(entry: &KeyEntry) -> Result<(), String> {
    check_name(&entry.name)?;
    let named = |e: String| format!("key {}: {e}", entry.name);
    if entry.role != KeyRole::Client {
        let plain = !entry.read_only && entry.squash == Squash::default();
        let plain = plain && entry.sessions_max == 0 && entry.subtree.is_none();
        if !plain {
            return Err(named(format!(
                "a key of a {} does not mount, so it is not read-only, squashes nobody, and has no number of mounts \
                 and no tree",
                entry.role
            )));
        }
    }
    let Squash { root, all, uids, gids } = &entry.squash;
    if root.iter().chain(all).any(|to| to.uid == 0 || to.uid == u32::MAX || to.gid == u32::MAX) {
        return Err(named("nobody is squashed to root, or to the number that stands for none".into()));
    }
    if let Some(tree) = &entry.subtree {
        check_subtree(tree).map_err(named)?;
    }
    check_ranges("users", uids).map_err(named)?;
    check_ranges("groups", gids).map_err(named)?;
    if entry.addresses.len() > KEY_RANGES_MAX {
        return Err(named(format!("{} address ranges are too many", entry.addresses.len())));
    }
    for range in &entry.addresses {
        if matches!(range, AddressRange::V4(_, bits) if *bits > 32)
            || matches!(range, AddressRange::V6(_, bits) if *bits > 128)
        {
            return Err(named("an address has 32 bits in IPv4 and 128 in IPv6".into()));
        }
    }
    Ok(())
}

/// The registry after a change; `stamp` is a random number.
///
/// Errors: why it is not made, for people.
pub fn apply(registry: &KeyRegistry, change: KeyChange, stamp: u64) -> Result<KeyRegistry, String> {
    let version = registry.version.checked_add(1).ok_or("the registry has had too many changes")?;
    let mut next = KeyRegistry { version, stamp, ..registry.clone() };
    let unknown = |name: &str| format!("there is no key {}; amphi key list shows those that there are", shown(name));
    let is_free = |key: Fingerprint| match find(registry, key) {
        Some(owner) => Err(format!("the public key {key} belongs to {} already", owner.name)),
        None => Ok(()),
    };
    match change {
        KeyChange::Add(entry) => {
            let entry = KeyEntry { id: version, next: None, ..entry };
            check_entry(&entry)?;
            if registry.keys.iter().any(|e| e.name == entry.name) {
                return Err(format!("there is a key {} already; remove it first, or rotate it", entry.name));
            }
            is_free(entry.fingerprint)?;
            if next.keys.len() >= KEYS_MAX {
                return Err(format!("there are {KEYS_MAX} keys, which is the most"));
            }
            let at = next.keys.partition_point(|e| e.name < entry.name);
            next.keys.insert(at, entry);
        }
        KeyChange::Remove(who) => remove(&mut next, &who).ok_or_else(|| unknown(&who))?,
        KeyChange::Set { name, settings } => {
            let entry = next.keys.iter_mut().find(|e| e.name == name).ok_or_else(|| unknown(&name))?;
            set(entry, *settings);
            check_entry(entry)?;
            if registry.keys.contains(entry) {
                return Err(format!("key {name} is that way already"));
            }
        }
        KeyChange::Rotate { name, next: key } => {
            is_free(key)?;
            let entry = next.keys.iter_mut().find(|e| e.name == name).ok_or_else(|| unknown(&name))?;
            if entry.next.is_some() {
                return Err(format!(
                    "key {name} is being rotated already; finish that first, or remove one of the two"
                ));
            }
            entry.next = Some(key);
        }
        KeyChange::FinishRotation(name) => {
            let entry = next.keys.iter_mut().find(|e| e.name == name).ok_or_else(|| unknown(&name))?;
            entry.fingerprint = entry.next.take().ok_or_else(|| format!("key {name} is not being rotated"))?;
        }
        KeyChange::RequireIdentity(on) => next.require_identity = on,
    }
    match postcard::to_stdvec(&next) {
        Ok(bytes) if bytes.len() <= REGISTRY_BYTES_MAX => Ok(next),
        _ => Err(format!("the registry would have more than {REGISTRY_BYTES_MAX} bytes; remove keys or ranges")),
    }
}

fn set(entry: &mut KeyEntry, settings: KeySettings) {
    fn put<T>(to: &mut T, from: Option<T>) {
        if let Some(value) = from {
            *to = value;
        }
    }
    let KeySettings { read_only, root, all, uids, gids, addresses, sessions_max, subtree } = settings;
    put(&mut entry.read_only, read_only);
    put(&mut entry.squash.root, root);
    put(&mut entry.squash.all, all);
    put(&mut entry.squash.uids, uids);
    put(&mut entry.squash.gids, gids);
    put(&mut entry.addresses, addresses);
    put(&mut entry.sessions_max, sessions_max);
    put(&mut entry.subtree, subtree);
}

/// Removes a name, or one public key. If the name has two keys, the other one stays.
fn remove(registry: &mut KeyRegistry, who: &str) -> Option<()> {
    if let Some(at) = registry.keys.iter().position(|e| e.name == who) {
        registry.keys.remove(at);
        return Some(());
    }
    let key = Fingerprint::parse(who)?;
    let at = registry.keys.iter().position(|e| e.fingerprint == key || e.next == Some(key))?;
    let entry = &mut registry.keys[at];
    match entry.next.take() {
        Some(next) if entry.fingerprint == key => entry.fingerprint = next,
        Some(_) => {}
        None => drop(registry.keys.remove(at)),
    }
    Some(())
}

/// The address of a client, from the description of its connection (`tcp:HOST:PORT`). `None`: a Unix socket.
fn ip_of(peer: &str) -> Option<IpAddr> {
    let rest = peer.strip_prefix("tcp:").unwrap_or(peer);
    let (host, _) = rest.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.split_once('%').map_or(host, |(host, _)| host);
    match host.parse().ok()? {
        IpAddr::V6(v6) => Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)),
        v4 => Some(v4),
    }
}

fn begins_with(address: &[u8], prefix: &[u8], bits: u8) -> bool {
    let (whole, rest) = (usize::from(bits / 8), bits % 8);
    let mask = !(0xffu8.checked_shr(rest.into()).unwrap_or(0));
    address[..whole] == prefix[..whole] && (rest == 0 || (address[whole] ^ prefix[whole]) & mask == 0)
}

fn is_in(range: &AddressRange, is_unix: bool, ip: Option<IpAddr>) -> bool {
    match (range, ip) {
        (AddressRange::Unix, _) => is_unix,
        (AddressRange::V4(prefix, bits), Some(IpAddr::V4(ip))) => begins_with(&ip.octets(), prefix, *bits),
        (AddressRange::V6(prefix, bits), Some(IpAddr::V6(ip))) => begins_with(&ip.octets(), prefix, *bits),
        // A range of mapped addresses.
        (AddressRange::V6(prefix, bits), Some(IpAddr::V4(ip))) if *bits >= 96 => {
            Ipv6Addr::from(*prefix).to_ipv4_mapped().is_some()
                && begins_with(&ip.to_ipv6_mapped().octets(), prefix, *bits)
        }
        _ => false,
    }
}

/// Returns whether a key may be used from this address. `peer` is the address in the form in which a connection reports
/// it.
pub fn counts_from(entry: &KeyEntry, peer: &str, is_unix: bool) -> bool {
    let ip = if is_unix { None } else { ip_of(peer) };
    entry.addresses.is_empty() || entry.addresses.iter().any(|range| is_in(range, is_unix, ip))
}

/// The server's number for a client's number, or `None` if there is no mapping. Without ranges both numbers are the
/// same.
pub fn to_server(ranges: &[IdRange], id: u32) -> Option<u32> {
    if ranges.is_empty() {
        return Some(id);
    }
    let range = ranges.iter().find(|r| id.checked_sub(r.client).is_some_and(|n| n < r.count))?;
    Some(range.server + (id - range.client))
}

/// The number of the client for one of the servers.
pub fn to_client(ranges: &[IdRange], id: u32) -> Option<u32> {
    if ranges.is_empty() {
        return Some(id);
    }
    let range = ranges.iter().find(|r| id.checked_sub(r.server).is_some_and(|n| n < r.count))?;
    Some(range.client + (id - range.server))
}

/// Users of a client for whom an inode may have been opened: its owner, a member of its group, users in its access
/// control list, and any other user. Each of these users counts only if the client may act for him. If none of these
/// users may do something, the client could not have got it by naming its users one after the other.
pub fn users_for(squash: &Squash, facts: &Facts) -> Vec<Cred> {
    let plain = |uid: u32, gid: u32| Cred { uid, gid, groups: Vec::new(), caps: Caps::NONE };
    let squashed = |to: &SquashTo| plain(to.uid, to.gid);
    if let Some(to) = &squash.all {
        return vec![squashed(to)];
    }
    let is_root_there = |id: u32| id == 0 && squash.root.is_some();
    let has_user = |uid: u32| !is_root_there(uid) && to_client(&squash.uids, uid).is_some();
    let has_group = |gid: u32| !is_root_there(gid) && to_client(&squash.gids, gid).is_some();
    // A user who is neither the owner nor in the list.
    let list = facts.acls.as_ref().and_then(|acls| acls.access.as_ref());
    let named = |uid: u32| list.is_some_and(|acl| acl.entries().iter().any(|e| e.who == Who::User(uid)));
    let is_stranger = |uid: &u32| *uid != facts.uid && !named(*uid);
    let all = [IdRange { client: 1, server: 1, count: u32::MAX - 1 }];
    let ranges = if squash.uids.is_empty() { &all[..] } else { &squash.uids };
    let stranger = ranges.iter().flat_map(|r| r.server..=r.server + (r.count - 1)).find(is_stranger);
    let mut users: Vec<Cred> = squash.root.iter().map(squashed).collect();
    users.extend(Some(facts.uid).filter(|uid| has_user(*uid)).map(|uid| plain(uid, NOBODY)));
    users.extend(stranger.map(|uid| plain(uid, NOBODY)));
    let groups =
        std::iter::once(facts.gid).chain(list.iter().flat_map(|acl| acl.entries()).filter_map(|e| match e.who {
            Who::Group(gid) => Some(gid),
            _ => None,
        }));
    users.extend(groups.filter(|gid| has_group(*gid)).filter_map(|gid| Some(plain(stranger?, gid))));
    let listed = list.iter().flat_map(|acl| acl.entries()).filter_map(|e| match e.who {
        Who::User(uid) => Some(uid),
        _ => None,
    });
    users.extend(listed.filter(|uid| has_user(*uid)).map(|uid| plain(uid, NOBODY)));
    users
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use amphi_wire::keys::SquashTo;

    /// A key that may mount, without any other settings.
    pub(crate) fn entry(name: &str, byte: u8) -> KeyEntry {
        KeyEntry {
            name: name.into(),
            fingerprint: Fingerprint([byte; 32]),
            next: None,
            role: KeyRole::Client,
            read_only: false,
            squash: Squash::default(),
            addresses: Vec::new(),
            sessions_max: 0,
            id: 0,
            subtree: None,
        }
    }

    fn changed(registry: &KeyRegistry, change: KeyChange) -> KeyRegistry {
        apply(registry, change, 7).expect("a change that may be")
    }

    fn range(client: u32, server: u32, count: u32) -> IdRange {
        IdRange { client, server, count }
    }

    /// Goal: keys are added, rotated and removed. A name and a public key belong to only one key. Each change makes a
    /// later state. Method: a sequence of steps.
    #[test]
    fn keys_come_and_go() {
        let none = KeyRegistry::default();
        let one = changed(&none, KeyChange::Add(entry("b", 1)));
        let two = changed(&one, KeyChange::Add(KeyEntry { id: 99, next: Some(Fingerprint([9; 32])), ..entry("a", 2) }));
        assert_eq!(two.keys.iter().map(|e| (e.name.as_str(), e.id)).collect::<Vec<_>>(), [("a", 2), ("b", 1)]);
        assert!(is_later(&one, &two) && !is_later(&two, &one) && !is_later(&two, &two));
        for (change, words) in [
            (KeyChange::Add(entry("a", 3)), "there is a key a already"),
            (KeyChange::Add(entry("c", 1)), "belongs to b already"),
            (KeyChange::Remove("c".into()), "there is no key c"),
            (KeyChange::Remove(Fingerprint([3; 32]).to_string()), "there is no key ed25519"),
            (KeyChange::Rotate { name: "a".into(), next: Fingerprint([1; 32]) }, "belongs to b already"),
            (KeyChange::Rotate { name: "c".into(), next: Fingerprint([3; 32]) }, "there is no key c"),
            (KeyChange::FinishRotation("a".into()), "is not being rotated"),
        ] {
            let refused = apply(&two, change, 7).expect_err("refused");
            assert!(refused.contains(words), "{refused}");
        }
        let settings = KeySettings { read_only: Some(true), sessions_max: Some(3), ..KeySettings::default() };
        let set = |name: &str, settings: &KeySettings| KeyChange::Set {
            name: name.into(),
            settings: Box::new(settings.clone()),
        };
        let other = changed(&two, set("a", &settings));
        let (was, is) = (find(&two, Fingerprint([2; 32])), find(&other, Fingerprint([2; 32])));
        let wanted = was.map(|was| KeyEntry { read_only: true, sessions_max: 3, ..was.clone() });
        assert_eq!(is, wanted.as_ref(), "what was not named stays, number and role too");
        let bad = KeySettings { root: Some(Some(SquashTo { uid: 0, gid: 1 })), ..KeySettings::default() };
        for (registry, change, words) in [
            (&other, set("a", &settings), "is that way already"),
            (&two, set("c", &settings), "there is no key c"),
            (&two, set("a", &bad), "squashed to root"),
        ] {
            let refused = apply(registry, change, 7).expect_err("refused");
            assert!(refused.contains(words), "{refused}");
        }
        let (old, new) = (Fingerprint([2; 32]), Fingerprint([3; 32]));
        let both = changed(&two, KeyChange::Rotate { name: "a".into(), next: new });
        for key in [old, new] {
            assert_eq!(find(&both, key).map(|e| e.id), Some(2), "both count");
        }
        let refused = apply(&both, KeyChange::Rotate { name: "a".into(), next: Fingerprint([4; 32]) }, 7);
        assert!(refused.is_err_and(|e| e.contains("being rotated already")));
        let finished = changed(&both, KeyChange::FinishRotation("a".into()));
        let leaked = changed(&both, KeyChange::Remove(old.to_string()));
        let given_up = changed(&both, KeyChange::Remove(new.to_string()));
        for (registry, stays) in [(&finished, new), (&leaked, new), (&given_up, old)] {
            let left = registry.keys.iter().find(|e| e.name == "a").expect("there");
            assert_eq!((left.fingerprint, left.next, left.id), (stays, None, 2));
        }
        let gone = changed(&both, KeyChange::Remove("a".into()));
        assert!(find(&gone, old).is_none() && find(&gone, new).is_none());
        assert!(changed(&gone, KeyChange::RequireIdentity(true)).require_identity);
    }

    /// Goal: invalid entries are refused, with one line of plain text that says what is wrong. Method: a table.
    #[test]
    fn entries_that_make_no_sense() {
        let squash = |squash: Squash| KeyEntry { squash, ..entry("k", 1) };
        let uids = |uids: &[IdRange]| squash(Squash { uids: uids.to_vec(), ..Squash::default() });
        let to = |uid, gid| Some(SquashTo { uid, gid });
        for (entry, words) in [
            (entry("", 1), "is no name"),
            (entry("a b", 1), "is no name"),
            (entry("a\n\"}{", 1), "'a\\n\\\"}{' is no name"),
            (entry("\u{202e}x", 1), "is no name"),
            (entry(&"x".repeat(65), 1), "is no name"),
            (entry("0123456789abcdef", 1), "number of a session"),
            (KeyEntry { role: KeyRole::Admin, read_only: true, ..entry("k", 1) }, "does not mount"),
            (KeyEntry { role: KeyRole::Server, sessions_max: 1, ..entry("k", 1) }, "does not mount"),
            (squash(Squash { root: to(0, 5), ..Squash::default() }), "squashed to root"),
            (squash(Squash { all: to(5, u32::MAX), ..Squash::default() }), "stands for none"),
            (uids(&[range(0, 0, 0)]), "empty or too long"),
            (uids(&[range(5, 10, u32::MAX)]), "empty or too long"),
            (uids(&[range(0, u32::MAX, 1)]), "empty or too long"),
            (uids(&[range(0, 10, 10), range(9, 50, 1)]), "overlap"),
            (uids(&[range(0, 10, 10), range(20, 19, 1)]), "overlap"),
            (uids(&[range(0, 10, 1); 17]), "too many"),
            (KeyEntry { addresses: vec![AddressRange::V4([0; 4], 33)], ..entry("k", 1) }, "32 bits"),
            (KeyEntry { addresses: vec![AddressRange::V6([0; 16], 129)], ..entry("k", 1) }, "32 bits"),
        ] {
            let refused = check_entry(&entry).expect_err("refused");
            assert!(refused.contains(words) && !refused.contains('\n'), "{refused}");
        }
        assert_eq!(check_entry(&uids(&[range(0, 10, 10), range(10, 20, 1)])), Ok(()));
        assert_eq!(check_entry(&squash(Squash { root: to(65_534, 0), ..Squash::default() })), Ok(()));
    }

    /// Goal: a registry has a bound in bytes below that of a message. Method: keys with the longest entries, until one
    /// is refused.
    #[test]
    fn a_registry_fits_a_message() {
        let mut registry = KeyRegistry::default();
        let ranges = |from: u32| (0..16).map(|n| range(from + 2 * n, from + 2 * n, 1)).collect::<Vec<_>>();
        let refused = (0u32..3000).find_map(|n| {
            let mut entry = entry(&format!("{n:064}"), 0);
            entry.fingerprint.0[..4].copy_from_slice(&n.to_be_bytes());
            entry.squash = Squash { uids: ranges(1 << 30), gids: ranges(1 << 30), ..Squash::default() };
            match apply(&registry, KeyChange::Add(entry), 1) {
                Ok(next) => registry = next,
                Err(e) => return Some(e),
            }
            None
        });
        assert!(refused.is_some_and(|e| e.contains("bytes")), "{} keys", registry.keys.len());
        assert!(registry.keys.len() >= 500);
    }

    /// Goal: addresses count by their leading bits, of both families, in any notation. Method: a table.
    #[test]
    fn addresses_are_compared() {
        let v6 = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
        let ten = AddressRange::V4([10, 1, 0, 0], 15);
        let fd = AddressRange::V6(v6("fd00:1::"), 33);
        for (range, peer, is_unix, counts) in [
            (ten, "tcp:10.0.255.1:77", false, true),
            (ten, "10.1.2.3:77", false, true),
            (ten, "tcp:10.2.0.1:77", false, false),
            (ten, "tcp:[::ffff:10.1.2.3]:77", false, true),
            (ten, "tcp:[fd00::1]:77", false, false),
            (ten, "10.1.2.3:77", true, false),
            (ten, "nonsense", false, false),
            (fd, "tcp:[fd00:1:7fff::9]:1", false, true),
            (fd, "tcp:[fd00:1:8000::9]:1", false, false),
            (fd, "tcp:[fd00:1::1%eth0]:1", false, true),
            (AddressRange::V6(v6("::ffff:10.0.0.0"), 104), "tcp:10.9.9.9:1", false, true),
            (AddressRange::V6(v6("::ffff:10.0.0.0"), 104), "tcp:11.9.9.9:1", false, false),
            (AddressRange::V4([0; 4], 0), "tcp:200.1.1.1:1", false, true),
            (AddressRange::V6([0; 16], 0), "tcp:200.1.1.1:1", false, false),
            (AddressRange::Unix, "unix", true, true),
            (AddressRange::Unix, "tcp:10.0.0.1:1", false, false),
        ] {
            let entry = KeyEntry { addresses: vec![range], ..entry("k", 1) };
            assert_eq!(counts_from(&entry, peer, is_unix), counts, "{range:?} {peer}");
        }
        assert!(counts_from(&entry("k", 1), "nonsense", false), "no ranges: from anywhere");
    }

    /// Goal: numbers are mapped to the server's and back, and numbers outside the ranges have no mapping. Method: a
    /// table.
    #[test]
    fn numbers_go_there_and_back() {
        let ranges = [range(1000, 50_000, 10), range(0, 49_000, 1)];
        for (client, server) in [(1000, 50_000), (1009, 50_009), (0, 49_000)] {
            assert_eq!((to_server(&ranges, client), to_client(&ranges, server)), (Some(server), Some(client)));
        }
        for id in [999, 1010, 1, u32::MAX, 50_000] {
            assert_eq!(to_server(&ranges, id), None, "{id}");
        }
        assert_eq!((to_client(&ranges, 1000), to_client(&ranges, 0)), (None, None));
        assert_eq!((to_server(&[], 5), to_client(&[], 5)), (Some(5), Some(5)));
    }
}
