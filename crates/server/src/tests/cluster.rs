//! Several servers in one world: the master on node `s0`, others on `s1`, ...; the mount on node `client`.

mod absence;
mod eviction;
mod faults;
mod joins;
mod keys;
mod lost_power;
mod mounts;
mod placement;
mod quota;
mod sweep;
mod tunables;

use super::*;
use amphi_env::sim::CrashKind;
use amphi_types::layout;
use amphi_wire::ClusterMap;

const KEY: &[u8] = b"the secret of the tested cluster";

fn addr(at: usize) -> String {
    format!("tcp:s{at}:7000")
}

/// A simulated cluster.
struct World {
    sim: Sim,
    /// Targets of each server.
    targets: Vec<u16>,
    workers: u16,
}

type Connected = (Rc<Link<SimEnv>>, Rc<Held>);

/// A mount, with one link for each server that it has contacted.
struct Mount<'a> {
    world: &'a World,
    node: String,
    session: u64,
    links: RefCell<BTreeMap<usize, Connected>>,
    map: RefCell<ClusterMap>,
}

impl World {
    fn new(seed: u64, targets: &[u16], workers: u16) -> World {
        let sim = Sim::new(seed, SimConfig::default());
        sim.node("client");
        World { sim, targets: targets.into(), workers }
    }

    fn node(&self, at: usize) -> SimEnv {
        self.sim.node(&format!("s{at}"))
    }

    fn config(&self, at: usize) -> ServerConfig {
        let mut config = config(self.targets[at], self.workers);
        config.listen = vec![addr(at)];
        config.name = format!("s{at}");
        config.key = Some(KEY.to_vec());
        config.tunables.push(("server.checksums".into(), on_by(self.sim.seed()).into()));
        config.inodes_bytes = inodes_by(self.sim.seed());
        if at > 0 {
            config.join = vec![addr(0)];
        }
        config
    }

    async fn start(&self, at: usize) -> std::result::Result<Rc<Server<SimEnv>>, crate::ServerError> {
        Server::start(self.node(at), self.config(at)).await
    }

    async fn start_all(&self) -> Vec<Option<Rc<Server<SimEnv>>>> {
        let mut all = Vec::new();
        for at in 0..self.targets.len() {
            all.push(Some(self.start(at).await.expect("the server starts")));
        }
        all
    }

    async fn connect(&self, session: u64, at: usize, role: Role) -> std::io::Result<Connected> {
        self.connect_from("client", session, at, role).await
    }

    async fn connect_from(&self, node: &str, session: u64, at: usize, role: Role) -> std::io::Result<Connected> {
        let config = LinkConfig {
            addrs: vec![addr(at)],
            session: SessionId(session),
            role,
            name: format!("{node}:{session}"),
            key: Some(amphi_transport::ClusterKey::new(KEY).expect("a key")),
            identity: None,
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let first = self.targets[..at].iter().sum::<u16>();
        let targets = (first..first + self.targets[at]).map(TargetId).collect();
        let held = Rc::new(Held { targets: Some(targets), ..Held::default() });
        let env = self.sim.node(node);
        *held.env.borrow_mut() = Some(env.clone());
        let link = Link::connect(env, config, held.clone()).await?;
        *held.link.borrow_mut() = Rc::downgrade(&link);
        Ok((link, held))
    }

    async fn mount(&self, session: u64) -> std::io::Result<Mount<'_>> {
        self.mount_on("client", session).await
    }

    /// A mount on a node of its own choice, with connections to all servers.
    async fn mount_everywhere(&self, node: &str, session: u64) -> Mount<'_> {
        self.sim.node(node);
        let mount = self.mount_on(node, session).await.expect("let in");
        for target in 0..mount.pool() {
            mount.link_of(TargetId(target)).await;
        }
        mount
    }

    async fn mount_on(&self, node: &str, session: u64) -> std::io::Result<Mount<'_>> {
        let first = self.connect_from(node, session, 0, Role::Mount).await?;
        let node = node.to_string();
        let mount = Mount { world: self, node, session, links: RefCell::default(), map: RefCell::default() };
        mount.links.borrow_mut().insert(0, first);
        mount.refresh().await;
        Ok(mount)
    }

    /// Checks everything together, as it lies on the disks.
    async fn fsck(&self) -> crate::Report {
        let folders: Vec<_> = (0..self.targets.len()).map(|at| (self.node(at), "data".to_string())).collect();
        crate::fsck_folders(&folders, crate::CheckData::Yes).await.expect("readable")
    }

    /// Stops all servers, the master last.
    async fn stop_all(&self, servers: Vec<Option<Rc<Server<SimEnv>>>>) {
        // Decisions are forgotten when all who took part are stable.
        sleep(self, Duration::from_secs(20)).await;
        for server in servers.into_iter().rev().flatten() {
            server.stop().await.expect("it stops");
        }
        // Operations that waited for others release their locks.
        sleep(self, Duration::from_secs(2)).await;
    }
}

impl Mount<'_> {
    async fn refresh(&self) {
        let link = self.links.borrow()[&0].0.clone();
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Map };
        match link.call(Lane::Normal, call, None, 0).await.map(|(a, _)| a.result) {
            Ok(Ok(Reply::Map(map))) => drop(self.map.replace(map)),
            other => panic!("no map: {other:?}"),
        }
    }

    fn pool(&self) -> u16 {
        self.map.borrow().pool()
    }

    async fn link_of(&self, target: TargetId) -> Rc<Link<SimEnv>> {
        let at = self.map.borrow().server_of(target).expect("in the map");
        let name = self.map.borrow().servers[at].name.clone();
        let at: usize = name[1..].parse().expect("s0, s1, ...");
        if let Some((link, _)) = self.links.borrow().get(&at) {
            return link.clone();
        }
        loop {
            match self.world.connect_from(&self.node, self.session, at, Role::Mount).await {
                Ok(pair) => {
                    let link = pair.0.clone();
                    self.links.borrow_mut().insert(at, pair);
                    return link;
                }
                Err(_) => self.world.sim.node("client").sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn call(&self, op: Request) -> Result<Reply> {
        self.told(op).await.0
    }

    /// The answer to a request with its tokens.
    async fn told(&self, op: Request) -> (Result<Reply>, Tokens) {
        self.send(op, None).await
    }

    async fn send(&self, op: Request, payload: Option<Buf>) -> (Result<Reply>, Tokens) {
        let target = target_of(&op, self.pool());
        let link = self.link_of(target).await;
        let call = Call { target, cred: Cred::root(), op };
        match link.call(Lane::Normal, call, payload, 0).await {
            Ok((answer, _)) => (answer.result, answer.tokens.map_or(Tokens::default(), |t| *t)),
            Err(e) => (Err(e.errno()), Tokens::default()),
        }
    }

    /// The answers to pushes of server `at` that the test holds back.
    fn held(&self, at: usize) -> Rc<Held> {
        self.links.borrow()[&at].1.clone()
    }

    fn set_deaf(&self, deaf: bool) {
        self.links.borrow().values().for_each(|(_, held)| held.deaf.set(deaf));
    }

    /// Answers a push of server `at` that arrived while the client did not answer.
    async fn reply(&self, at: usize, push: &Push) {
        let (link, held) = self.links.borrow()[&at].clone();
        let call = held.answer(push, link.welcome().pool);
        link.call(Lane::Urgent, call, None, 0).await.unwrap().0.result.unwrap();
    }

    /// A directory in the root whose inode and files are on `target`.
    async fn dir_at(&self, target: u16) -> Ino {
        let text = dir_on(Ino::ROOT, target, self.pool());
        match self.lookup(Ino::ROOT, &text).await {
            Ok(view) => view.attr.ino,
            Err(_) => self.mkdir(Ino::ROOT, &text).await.expect("a directory"),
        }
    }

    async fn inode(&self, op: Request) -> Result<InodeView> {
        match self.call(op).await? {
            Reply::Inode(view) | Reply::Made { inode: view, .. } => Ok(view),
            other => panic!("no inode in {other:?}"),
        }
    }

    async fn lookup(&self, dir: Ino, text: &str) -> Result<InodeView> {
        self.inode(Request::Lookup { dir, name: name(text) }).await
    }

    async fn mkdir(&self, dir: Ino, text: &str) -> Result<Ino> {
        Ok(self.inode(Request::Make { dir, name: name(text), make: Make::Dir, perm: 0o755, umask: 0 }).await?.attr.ino)
    }

    async fn open_new(&self, dir: Ino, text: &str) -> Result<InodeView> {
        let make = Make::File { open: Some(RW), exclusive: true };
        self.inode(Request::Make { dir, name: name(text), make, perm: 0o644, umask: 0 }).await
    }

    async fn create(&self, dir: Ino, text: &str) -> Result<Ino> {
        let ino = self.open_new(dir, text).await?.attr.ino;
        self.call(Request::Close { ino, access: RW, atime: None }).await?;
        Ok(ino)
    }

    async fn link(&self, ino: Ino, dir: Ino, text: &str) -> Result<InodeView> {
        self.inode(Request::Link { ino, dir, name: name(text) }).await
    }

    async fn unlink(&self, dir: Ino, text: &str) -> Result<()> {
        self.call(Request::Unlink { dir, name: name(text) }).await.map(drop)
    }

    async fn rmdir(&self, dir: Ino, text: &str) -> Result<()> {
        self.call(Request::RmDir { dir, name: name(text) }).await.map(drop)
    }

    async fn rename(&self, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<()> {
        let op = Request::Rename { from: from.0, from_name: name(from.1), to: to.0, to_name: name(to.1), mode };
        self.call(op).await.map(drop)
    }

    async fn stat(&self, ino: Ino) -> Result<amphi_types::Attr> {
        Ok(self.inode(Request::GetAttr { ino }).await?.attr)
    }

    async fn list(&self, dir: Ino) -> Result<Vec<String>> {
        let op = Request::ReadDir { dir, cookie: 0, max: 1000, plus: false };
        let Reply::Entries { entries, .. } = self.call(op).await? else { panic!("no entries") };
        let mut all: Vec<String> = entries.into_iter().map(|e| e.name.to_string()).collect();
        all.sort();
        Ok(all)
    }

    /// The tree below `dir` as lines: path, kind, links.
    async fn tree(&self, dir: Ino) -> Result<BTreeMap<String, (Kind, u32)>> {
        let mut found = BTreeMap::new();
        let mut todo = vec![(String::new(), dir)];
        while let Some((path, dir)) = todo.pop() {
            for text in self.list(dir).await? {
                let view = self.lookup(dir, &text).await?;
                let path = format!("{path}/{text}");
                if view.attr.kind == Kind::Dir {
                    todo.push((path.clone(), view.attr.ino));
                }
                found.insert(path, (view.attr.kind, view.attr.nlink));
            }
        }
        Ok(found)
    }

    /// Records an open, to be presented again.
    fn opened(&self, ino: Ino) {
        let at = self.map.borrow().server_of(ino.target()).expect("in the map");
        self.links.borrow()[&at].1.opens.borrow_mut().push((ino, RW));
    }

    async fn goodbye(self) {
        let links: Vec<_> = self.links.borrow().iter().map(|(at, (link, _))| (*at, link.clone())).collect();
        for (at, link) in links.into_iter().rev() {
            if at == 0 {
                let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Goodbye };
                link.call(Lane::Normal, call, None, 0).await.expect("goodbye").0.result.expect("goodbye");
            }
            link.close().await;
        }
    }
}

/// A name for a directory that goes to `target` of a pool.
fn dir_on(dir: Ino, target: u16, pool: u16) -> String {
    let on = |n: &String| layout::directory_target(dir, n.as_bytes(), pool).0 == target;
    (0..).map(|i| format!("d{i}")).find(on).expect("a name")
}

async fn sleep(world: &World, d: Duration) {
    world.sim.node("client").sleep(d).await;
}

fn crash(world: &World, at: usize, kind: CrashKind) {
    world.sim.crash(&format!("s{at}"), kind);
}
