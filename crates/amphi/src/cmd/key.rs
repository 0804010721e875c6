//! `amphi key`: key pairs in files, and the registry of the keys that a cluster knows.

use super::quota::tree_of;
use super::reach::Reach;
use super::status;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::identity_file;
use amphi_types::Ino;
use amphi_wire::keys::{
    AddressRange, Fingerprint, IdRange, KeyChange, KeyEntry, KeyRegistry, KeyRole, KeySettings, Squash, SquashTo,
    Subtree,
};
use amphi_wire::{Reply, Request};
use clap::{Args, Subcommand, ValueEnum};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Make key pairs, and say which keys a cluster knows and what their holders may do.
#[derive(Args, Debug)]
pub struct Key {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Make a key pair in a new file (mode 0600), and print its public key
    Make {
        /// File
        file: PathBuf,
        /// Public key of a server that is to be trusted; may be repeated
        #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
        server: Vec<Fingerprint>,
    },
    /// Print the public key of a file, and the servers that it trusts
    Show {
        /// File
        file: PathBuf,
    },
    /// Let a file trust further servers
    Trust {
        /// File
        file: PathBuf,
        /// Public keys of servers
        #[arg(required = true, value_name = "FINGERPRINT", value_parser = fingerprint)]
        servers: Vec<Fingerprint>,
    },
    /// List the keys that the cluster knows
    List {
        #[command(flatten)]
        reach: Reach,
    },
    /// Add a key to those that the cluster knows
    Add(Add),
    /// Change what the holder of a key may do; mounts with this key continue, and the change applies to their next
    /// requests. Settings that are not named stay as they are
    Set(Set),
    /// Remove a key; its sessions end at once, on all servers
    Remove {
        /// Name or public key; if the key is being rotated, a public key names only that one of the two
        who: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Give a name a second key, which counts beside the first until the rotation is finished
    Rotate {
        /// Name
        name: String,
        /// The new public key
        #[arg(required_unless_present = "finish", conflicts_with = "finish", value_name = "FINGERPRINT",
            value_parser = fingerprint)]
        next: Option<Fingerprint>,
        /// The second key is the only one from now on; sessions of the first end
        #[arg(long)]
        finish: bool,
        #[command(flatten)]
        reach: Reach,
    },
    /// Say whether everybody who connects over a network needs a key of his own: with on, the cluster key alone admits
    /// nobody there
    Require {
        /// on or off
        value: Switch,
        #[command(flatten)]
        reach: Reach,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    Client,
    Server,
    Admin,
}

/// Arguments of `amphi key add`.
#[derive(Args, Debug)]
struct Add {
    /// Name, for people
    name: String,
    /// Public key, as amphi key make and amphi key show print it
    #[arg(value_name = "FINGERPRINT", value_parser = fingerprint)]
    public: Fingerprint,
    /// What the holder may do: a client mounts, a server serves, an admin changes keys and tunables
    #[arg(long)]
    role: RoleArg,
    /// Read only: no request with this key changes anything
    #[arg(long)]
    read_only: bool,
    /// The user and group that root of the client becomes (root squash), or keep. If it is another user, no process of
    /// the client has capabilities [default for a client: 65534]
    #[arg(long, value_name = "keep|UID[:GID]", value_parser = root_squash)]
    root: Option<Root>,
    /// The user and group that every user of the client becomes (all squash)
    #[arg(long, value_name = "UID[:GID]", value_parser = squash_to)]
    all: Option<SquashTo>,
    /// A range of user ids: the first id on the client, the first id on the servers, and how many. May be repeated.
    /// Users outside the ranges are refused
    #[arg(long, value_name = "FIRST:THERE:COUNT", value_parser = range)]
    uids: Vec<IdRange>,
    /// Groups, in the same form as --uids. Groups outside the ranges become 65534
    #[arg(long, value_name = "FIRST:THERE:COUNT", value_parser = range)]
    gids: Vec<IdRange>,
    /// Addresses from which the key may be used: an address, a range such as 10.1.0.0/16 or fd00::/8, or unix; may be
    /// repeated [default: from anywhere]
    #[arg(long, value_name = "RANGE", value_parser = address)]
    from: Vec<AddressRange>,
    /// Most mounts at a time [default: no bound]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    mounts: Option<u32>,
    /// The top of a tree (amphi quota track DIR), on a mount of this machine, to which the key is restricted: it is the
    /// root of mounts with the key [default: all of the file system]
    #[arg(long, value_name = "DIR")]
    subtree: Option<PathBuf>,
    #[command(flatten)]
    reach: Reach,
}

/// Arguments of `amphi key set`.
#[derive(Args, Debug)]
struct Set {
    /// Name
    name: String,
    /// Whether the key is read-only: no request with it changes anything
    #[arg(long, value_name = "on|off")]
    read_only: Option<Switch>,
    /// The user and group that root of the client becomes (root squash), or keep
    #[arg(long, value_name = "keep|UID[:GID]", value_parser = root_squash)]
    root: Option<Root>,
    /// The user and group that every user of the client becomes (all squash); keep: no change
    #[arg(long, value_name = "keep|UID[:GID]", value_parser = root_squash)]
    all: Option<Root>,
    /// A range of user ids: the first id on the client, the first id on the servers, and how many. May be repeated.
    /// same removes all ranges: the ids are the same on both sides
    #[arg(long, value_name = "FIRST:THERE:COUNT|same", value_parser = ranges)]
    uids: Vec<Listed<IdRange>>,
    /// Groups, in the same form as --uids
    #[arg(long, value_name = "FIRST:THERE:COUNT|same", value_parser = ranges)]
    gids: Vec<Listed<IdRange>>,
    /// Addresses from which the key may be used: an address, a range, or unix; may be repeated. The word anywhere
    /// removes the list
    #[arg(long, value_name = "RANGE|anywhere", value_parser = addresses)]
    from: Vec<Listed<AddressRange>>,
    /// Most mounts at a time; 0: no bound. Present mounts stay
    #[arg(long, value_name = "N")]
    mounts: Option<u32>,
    /// The top of the tree (amphi quota track DIR), on a mount of this machine, to which the key is restricted; none:
    /// all of the file system. Existing mounts keep their root until they are mounted again
    #[arg(long, value_name = "DIR|none")]
    subtree: Option<PathBuf>,
    #[command(flatten)]
    reach: Reach,
}

/// A member of a list, or the word that stands for an empty list.
#[derive(Clone, Copy, Debug)]
enum Listed<T> {
    None,
    One(T),
}

/// The list that the user typed, if any.
fn listed<T: Copy>(typed: &[Listed<T>]) -> Outcome<Option<Vec<T>>> {
    let members: Vec<T> =
        typed.iter().filter_map(|t| if let Listed::One(one) = t { Some(*one) } else { None }).collect();
    if !members.is_empty() && members.len() < typed.len() {
        return Err(Failure::refused("either members of a list, or the word for an empty one"));
    }
    Ok((!typed.is_empty()).then_some(members))
}

impl Set {
    fn settings(&self) -> Outcome<KeySettings> {
        let to = |root: Root| match root {
            Root::Keep => None,
            Root::As(to) => Some(to),
        };
        let settings = KeySettings {
            read_only: self.read_only.map(|s| matches!(s, Switch::On)),
            root: self.root.map(to),
            all: self.all.map(to),
            uids: listed(&self.uids)?,
            gids: listed(&self.gids)?,
            addresses: listed(&self.from)?,
            sessions_max: self.mounts,
            subtree: match &self.subtree {
                Some(dir) if dir.as_os_str() == "none" => Some(None),
                Some(dir) => Some(Some(subtree(dir, &self.reach)?)),
                None => None,
            },
        };
        if settings == KeySettings::default() {
            return Err(Failure::refused(
                "what shall be changed? give --read-only, --root, --all, --uids, --gids, --from, --mounts or \
                 --subtree",
            ));
        }
        Ok(settings)
    }
}

/// The tree of which a directory is the top, in the cluster whose registry will name it.
fn subtree(dir: &Path, reach: &Reach) -> Outcome<Subtree> {
    let project = tree_of(dir)?;
    let shown = std::fs::canonicalize(dir).during(|| format!("look at {}", dir.display()))?;
    let root = Ino(std::fs::metadata(&shown).during(|| format!("look at {}", dir.display()))?.ino());
    let status: serde_json::Value = serde_json::from_str(&status::of_mount(shown.clone())?)
        .map_err(|e| Failure::broken(format!("the status of {}: {e}", dir.display())))?;
    let theirs = match reach.ask_master(Request::Status)? {
        Reply::Status { cluster, .. } => format!("{cluster:016x}"),
        _ => return Err(Failure::broken("the server's answer makes no sense")),
    };
    match status.get("cluster").and_then(serde_json::Value::as_str) {
        Some(ours) if ours == theirs => {}
        ours => {
            let ours = ours.unwrap_or("unknown");
            return Err(Failure::refused(format!(
                "{}: lies in cluster {ours}, and the keys are those of cluster {theirs}",
                dir.display()
            )));
        }
    }
    let path = shown.to_string_lossy().into_owned();
    Ok(Subtree { root, project, path })
}

/// The user and group that root becomes.
#[derive(Clone, Copy, Debug)]
enum Root {
    Keep,
    As(SquashTo),
}

fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    Fingerprint::parse(text.trim())
        .ok_or_else(|| "a public key is ed25519: and 64 hexadecimal digits, as amphi key show prints it".into())
}

fn squash_to(text: &str) -> Result<SquashTo, String> {
    let number = |t: &str| t.parse::<u32>().map_err(|_| format!("'{t}' is no number of a user or group"));
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    Ok(SquashTo { uid: number(uid)?, gid: number(gid)? })
}

fn root_squash(text: &str) -> Result<Root, String> {
    if text == "keep" { Ok(Root::Keep) } else { squash_to(text).map(Root::As) }
}

fn range(text: &str) -> Result<IdRange, String> {
    let numbers: Vec<u32> = text.split(':').map_while(|n| n.parse().ok()).collect();
    match (numbers.as_slice(), text.split(':').count()) {
        ([client, server, count], 3) => Ok(IdRange { client: *client, server: *server, count: *count }),
        _ => Err("three numbers with colons between them, such as 1000:50000:100".into()),
    }
}

fn ranges(text: &str) -> Result<Listed<IdRange>, String> {
    if text == "same" { Ok(Listed::None) } else { range(text).map(Listed::One) }
}

fn addresses(text: &str) -> Result<Listed<AddressRange>, String> {
    if text == "anywhere" { Ok(Listed::None) } else { address(text).map(Listed::One) }
}

fn address(text: &str) -> Result<AddressRange, String> {
    if text == "unix" {
        return Ok(AddressRange::Unix);
    }
    let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
    let ip: IpAddr = ip.parse().map_err(|_| format!("'{ip}' is no address"))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), str::parse).ok().filter(|bits| *bits <= most);
    let bits = bits.ok_or_else(|| format!("an address has {most} bits here"))?;
    Ok(match ip {
        IpAddr::V4(ip) => AddressRange::V4(ip.octets(), bits),
        IpAddr::V6(ip) => AddressRange::V6(ip.octets(), bits),
    })
}

impl Add {
    fn entry(&self) -> Outcome<KeyEntry> {
        let role = match self.role {
            RoleArg::Client => KeyRole::Client,
            RoleArg::Server => KeyRole::Server,
            RoleArg::Admin => KeyRole::Admin,
        };
        let nobody = SquashTo { uid: amphi_wire::keys::NOBODY, gid: amphi_wire::keys::NOBODY };
        let root = match self.root {
            Some(Root::Keep) => None,
            Some(Root::As(to)) => Some(to),
            None => Some(nobody).filter(|_| role == KeyRole::Client),
        };
        Ok(KeyEntry {
            name: self.name.clone(),
            fingerprint: self.public,
            next: None,
            role,
            read_only: self.read_only,
            squash: Squash { root, all: self.all, uids: self.uids.clone(), gids: self.gids.clone() },
            addresses: self.from.clone(),
            sessions_max: self.mounts.unwrap_or(0),
            id: 0,
            subtree: self.subtree.as_ref().map(|dir| subtree(dir, &self.reach)).transpose()?,
        })
    }
}

fn changed(reach: &Reach, change: KeyChange) -> Outcome<KeyRegistry> {
    match reach.ask_master(Request::Keys { change: Some(change) })? {
        Reply::Keys(registry) => Ok(*registry),
        _ => Err(Failure::broken("the server's answer makes no sense")),
    }
}

impl Key {
    /// Executes the command.
    pub fn run(self) -> Outcome {
        match self.what {
            What::Make { file, server } => {
                println!("{}", identity_file::make(&file, server)?.fingerprint());
            }
            What::Show { file } => {
                let identity = identity_file::read(&file)?;
                println!("{}", identity.fingerprint());
                identity.servers().iter().for_each(|server| println!("trusts {server}"));
            }
            What::Trust { file, servers } => {
                let identity = identity_file::trust(&file, servers)?;
                identity.servers().iter().for_each(|server| println!("trusts {server}"));
            }
            What::List { reach } => match reach.ask_master(Request::Keys { change: None })? {
                Reply::Keys(registry) => print!("{}", list(&registry)),
                _ => return Err(Failure::broken("the server's answer makes no sense")),
            },
            What::Add(add) => {
                let registry = changed(&add.reach, KeyChange::Add(add.entry()?))?;
                let line = registry.keys.iter().find(|e| e.name == add.name).map(describe);
                println!("{}", line.unwrap_or_default());
            }
            What::Set(set) => {
                let change = KeyChange::Set { name: set.name.clone(), settings: Box::new(set.settings()?) };
                let registry = changed(&set.reach, change)?;
                let line = registry.keys.iter().find(|e| e.name == set.name).map(describe);
                println!("{}", line.unwrap_or_default());
            }
            What::Remove { who, reach } => {
                changed(&reach, KeyChange::Remove(who.clone()))?;
                println!("{who} is removed");
            }
            What::Rotate { name, next, reach, .. } => {
                let change = match next {
                    Some(next) => KeyChange::Rotate { name: name.clone(), next },
                    None => KeyChange::FinishRotation(name.clone()),
                };
                let registry = changed(&reach, change)?;
                let line = registry.keys.iter().find(|e| e.name == name).map(describe);
                println!("{}", line.unwrap_or_default());
            }
            What::Require { value, reach } => {
                let on = matches!(value, Switch::On);
                changed(&reach, KeyChange::RequireIdentity(on))?;
                println!("{}", required(on));
            }
        }
        Ok(())
    }
}

fn required(on: bool) -> &'static str {
    match on {
        true => "over a network everybody needs a key of his own",
        false => "over a network the cluster key lets anybody in",
    }
}

fn list(registry: &KeyRegistry) -> String {
    let (count, version) = (registry.keys.len(), registry.version);
    let keys: String = registry.keys.iter().map(|entry| format!("{}\n", describe(entry))).collect();
    format!("{count} keys, version {version}; {}\n{keys}", required(registry.require_identity))
}

/// One line that describes a key.
fn describe(entry: &KeyEntry) -> String {
    let mut line = format!("{} {} {}", entry.name, entry.role, entry.fingerprint);
    if let Some(next) = entry.next {
        let _ = write!(line, " or {next}");
    }
    if entry.role != KeyRole::Client {
        return with_addresses(line, entry);
    }
    let to = |to: &SquashTo| format!("{}:{}", to.uid, to.gid);
    if entry.read_only {
        line.push_str(" read-only");
    }
    let _ = write!(line, " root={}", entry.squash.root.as_ref().map_or("keep".into(), to));
    if let Some(all) = &entry.squash.all {
        let _ = write!(line, " all={}", to(all));
    }
    for (what, ranges) in [("uids", &entry.squash.uids), ("gids", &entry.squash.gids)] {
        for range in ranges {
            let _ = write!(line, " {what}={}:{}:{}", range.client, range.server, range.count);
        }
    }
    if entry.sessions_max > 0 {
        let _ = write!(line, " mounts={}", entry.sessions_max);
    }
    if let Some(tree) = &entry.subtree {
        let _ = write!(line, " subtree={:?} tree={}", tree.path, tree.project);
    }
    with_addresses(line, entry)
}

fn with_addresses(mut line: String, entry: &KeyEntry) -> String {
    for range in &entry.addresses {
        let _ = match range {
            AddressRange::Unix => write!(line, " from=unix"),
            AddressRange::V4(ip, bits) => write!(line, " from={}/{bits}", IpAddr::from(*ip)),
            AddressRange::V6(ip, bits) => write!(line, " from={}/{bits}", IpAddr::from(*ip)),
        };
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a typed range means the range that is shown, and an invalid one is refused. Method: tables.
    #[test]
    fn ranges_as_they_are_typed() {
        for (text, shown) in [
            ("unix", "from=unix"),
            ("10.1.0.0/16", "from=10.1.0.0/16"),
            ("10.1.2.3", "from=10.1.2.3/32"),
            ("fd00::/8", "from=fd00::/8"),
            ("::1", "from=::1/128"),
        ] {
            let entry = KeyEntry {
                name: "n".into(),
                fingerprint: Fingerprint([0; 32]),
                next: None,
                role: KeyRole::Admin,
                read_only: false,
                squash: Squash::default(),
                addresses: vec![address(text).expect(text)],
                sessions_max: 0,
                id: 0,
                subtree: None,
            };
            assert!(describe(&entry).ends_with(shown), "{}", describe(&entry));
        }
        for text in ["", "10.1.0.0/33", "fd00::/129", "10.1.0.0/", "10.1.0.0/-1", "host", "10.1/16"] {
            assert!(address(text).is_err(), "{text}");
        }
        assert_eq!(range("1000:50000:10"), Ok(IdRange { client: 1000, server: 50_000, count: 10 }));
        for text in ["", "1", "1:2", "1:2:3:4", "a:b:c", "1:2:-3", "1:2:4294967296", "1::3"] {
            assert!(range(text).is_err(), "{text}");
        }
        assert_eq!(squash_to("99"), Ok(SquashTo { uid: 99, gid: 99 }));
        assert_eq!(squash_to("99:100"), Ok(SquashTo { uid: 99, gid: 100 }));
        for text in ["", "nobody", "1:", ":1", "1:2:3"] {
            assert!(squash_to(text).is_err() && root_squash(text).is_err(), "{text}");
        }
    }
}
