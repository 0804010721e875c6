//! `amphi up`: server and mount in one process, in the foreground; further servers as children.

use super::metrics;
use crate::known_folders::KnownFolders;
use crate::members::{self, Members, SERVERS_MAX, Site};
use crate::secure::{level, split_listen};
use crate::storage::{Storage, spin_us};
use amphi_client::{ClientConfig, JOB_VARIABLES};
use amphi_host::cluster_key;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::signals::Stop;
use amphi_host::size;
use amphi_process::cluster::Around;
use amphi_process::mount::FUSE_SPIN_US;
use amphi_process::mount::MountOptions;
use amphi_process::mount_words::{MountWord, MountWords};
use amphi_sched::Cores;
use amphi_server::ServerConfig;
use amphi_server::config::NewZones;
use amphi_transport::Secure;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Options of a mount.
#[derive(Args, Clone, Debug)]
pub struct Mounting {
    /// Memory for the page cache [default: a quarter of the memory, at most 3/8 of the memory group's limit]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub cache: Option<u64>,
    /// Set a tunable at the start, of this mount or (server.*) of all servers; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Variables of a program's environment that name its job; the first that is set counts; '' for none
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values = JOB_VARIABLES)]
    pub job_env: Vec<String>,
    /// Only the user who mounts may use the mount (mounts by root are open to all users by default)
    #[arg(long)]
    pub private: bool,
    /// Options as mount(8) has them; the last of two opposites counts
    #[arg(short = 'o', long = "options", value_name = "WORD,...", value_delimiter = ',')]
    pub words: Vec<MountWord>,
    /// How long a reader of the kernel's requests polls before it sleeps, microseconds, if nobody else needs the core
    #[arg(long, default_value_t = FUSE_SPIN_US, value_parser = spin_us())]
    pub fuse_spin_us: u64,
    /// As soon as the file system is mounted, start a process session of its own (`setsid`); used by mount(8)
    #[arg(long, hide = true)]
    pub background: bool,
    /// End when this process ends, which must be the parent
    #[arg(long, hide = true, value_name = "PID")]
    pub with_parent: Option<i32>,
}

impl Mounting {
    /// The configuration that the client needs for these options.
    pub fn client_config(&self) -> Outcome<ClientConfig> {
        let words = MountWords(self.words.clone());
        for (yes, no, word) in [(MountWord::Dev, MountWord::NoDev, "dev"), (MountWord::Suid, MountWord::NoSuid, "suid")]
        {
            if words.said(yes, no) == Some(true) && !rustix::process::geteuid().is_root() {
                return Err(Failure::refused(format!("-o {word}: root alone may mount so")));
            }
        }
        let is_read_only = words.said(MountWord::Ro, MountWord::Rw) == Some(true);
        let no_atime = is_read_only || words.said(MountWord::NoAtime, MountWord::RelAtime) == Some(true);
        let atime = no_atime.then(|| "client.atime=none".to_string());
        let set: Vec<String> = atime.into_iter().chain(self.set.iter().cloned()).collect();
        let mut config = amphi_host::client::client_config(self.cache, &set)?;
        config.commit = words.said(MountWord::Commit, MountWord::Posix) == Some(true);
        config.job_variables = self.job_env.iter().filter(|name| !name.is_empty()).cloned().collect();
        Ok(config)
    }

    /// Makes this process end in order when its parent ends, if the option is set.
    pub fn watch_parent(&self) -> Outcome {
        self.with_parent.map_or(Ok(()), members::end_with)
    }

    /// Reports that the mount is ready, to a process that waits for it.
    pub fn say_ready(&self, dir: &std::path::Path) {
        // The process begins a session of its own only now. An automount lets only the processes in the process group
        // that began the mount pass, and makes all others wait for it.
        if self.background {
            let _ = rustix::process::setsid();
        }
        amphi_host::say::say_ready(dir.display());
    }

    /// The options that the mount needs. `shared`: others than this process can change what is mounted.
    pub fn options(&self, source: String, dir: &std::path::Path, shared: bool) -> MountOptions {
        MountOptions {
            shared,
            source,
            dir: dir.to_path_buf(),
            spin: Duration::from_micros(self.fuse_spin_us),
            allow_other: !self.private && rustix::process::geteuid().is_root(),
            words: MountWords(self.words.clone()),
        }
    }
}

/// Start a cluster on this machine and mount it, in one process unless --servers asks for more. Ctrl-C, SIGTERM or
/// SIGHUP ends it in order; a second signal at least a second after the first ends it at once.
#[derive(Args, Debug)]
pub struct Up {
    #[command(flatten)]
    storage: Storage,
    /// Mount point; must exist
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// Also listen on this address, for other mounts, further servers and `amphi status`: unix:PATH or tcp:HOST:PORT; a
    /// TCP address may have a level as in --secure behind it, as tcp:HOST:PORT,secure=tls; may be repeated
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// How connections over TCP are protected: off, mac (each message is signed) or tls (all is encrypted) [default:
    /// mac]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    secure: Option<Secure>,
    /// File with the cluster key (at least 16 random bytes, mode 0600) [default on TCP: one that is made, cluster.key
    /// in the data folder]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Number of servers: the first is in this process; each further one is a process with a folder of its own and as
    /// many targets. A cluster can grow but not shrink [default: the existing servers, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    servers: Option<u16>,
    /// Whether a worker keeps its core and who waits for it uses others, while most requests wait for workers and for
    /// less than 1 ms
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    cores: Placement,
    #[command(flatten)]
    mounting: Mounting,
}

/// Which cores the threads of an embedded cluster use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Placement {
    /// Workers use other cores than the reader threads that wait for them
    Apart,
    /// All threads use the cores that the scheduler chooses
    Free,
}

impl Up {
    /// Runs until a signal or an unmount ends it.
    pub fn run(mut self) -> Outcome {
        self.mounting.watch_parent()?;
        let site = Site::look(&self.storage.data, self.servers)?;
        site.share(&mut self.storage);
        let mut config = self.storage.config()?;
        if let Some(first) = site.first() {
            config.data_dir = Storage { data: first, ..self.storage.clone() }.config()?.data_dir;
        }
        if !config.workers_wanted {
            // The mount of this process reaches only worker 0 without another hop, and is often the only mount.
            config.workers = 1;
        }
        let known = KnownFolders::here();
        config.new_zones = self.new_zones(&site, &known)?;
        config.listen = self.listen.clone();
        split_listen(&mut config)?;
        config.secure = self.secure.unwrap_or(config.secure);
        amphi_process::cluster::settle_addresses(&mut config)?;
        config.key = cluster_key::read(self.key.as_deref())?.map(|(bytes, _)| bytes);
        config.socket_mode = self.storage.socket_mode;
        let own = amphi_process::own_key::of_server(&mut config, &self.storage.data)?;
        amphi_process::mount::check_mount_point(&self.mount)?;
        amphi_process::mount::check_apart(&self.storage.data, &self.mount)?;
        let client = self.mounting.client_config()?;
        let stop = Stop::on_signals()?;
        let key = self.key.clone().or_else(|| own.as_ref().map(|own| own.path.clone()));
        let keep = move || own.map_or(Ok(()), |own| own.keep());
        if site.servers == 1 {
            let around = Around { before: Some(Box::new(keep)), ..Around::default() };
            return self.serve(config, client, around, stop, &site, &known);
        }
        site.lead(&mut config);
        config.check().map_err(amphi_process::cluster::server_failure)?;
        let new = site.make()?;
        let members = Arc::<Mutex<Option<Members>>>::default();
        let (args, running) = (site.members(&self.storage, key.as_deref()), members.clone());
        let around = Around {
            before: Some(Box::new(move || {
                keep()?;
                let started = Members::start(args)?;
                *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
                Ok(())
            })),
            after: Some(Box::new(move || {
                let running = members.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(members) = running {
                    members.stop();
                }
            })),
            beside: None,
        };
        let data = self.storage.data.clone();
        let ended = self.serve(config, client, around, stop, &site, &known);
        if new && ended.is_err() {
            // The folder is removed only if nothing was made in it.
            let _ = std::fs::remove_dir(data);
        }
        ended
    }

    /// Whether the first server makes zones if its folder has none.
    ///
    /// Errors: zones are missing although the folder was in use, or zones exist although new ones are requested.
    fn new_zones(&self, site: &Site, known: &KnownFolders) -> Outcome<NewZones> {
        let (data, is_there) = (site.data().display(), site.has_first_zones());
        match (self.storage.format, is_there) {
            (true, true) => Err(Failure::refused(format!(
                "{data} holds a cluster already, which stays as it is; start it without --format"
            ))),
            (false, false) if known.has(site.data()) => Err(Failure::refused(format!(
                "{data} was in use and holds no zones any more: is its disk mounted? If a new cluster shall begin there, \
                 say so with --format"
            ))),
            (_, true) => Ok(NewZones::Refused),
            (_, false) => Ok(NewZones::Made),
        }
    }

    fn serve(
        self,
        config: ServerConfig,
        client: ClientConfig,
        around: Around,
        stop: Stop,
        site: &Site,
        known: &KnownFolders,
    ) -> Outcome {
        let mut workers = self.storage.workers();
        if self.cores == Placement::Apart {
            workers.cores = Cores::Kept;
        }
        let is_new = !site.has_first_zones();
        let (server_numbers, questions) = metrics::serve_server();
        let beside = move |server| Box::pin(metrics::answer(server, questions)) as _;
        let around = Around { beside: Some(Box::new(beside)), ..around };
        let running = amphi_process::cluster::start_cluster(config, workers, client, around, stop.also())?;
        if is_new {
            amphi_host::say::say(&format!("a new cluster begins in {}", site.data().display()));
        }
        if let Err(e) = known.note(site.data()) {
            tracing::warn!(
                "{} empty would pass for new, since it cannot be noted that it is in use: {e}",
                site.data().display()
            );
        }
        let data = std::path::absolute(&self.storage.data).unwrap_or(self.storage.data);
        let options = self.mounting.options(data.display().to_string(), &self.mount, !self.listen.is_empty());
        let mounted = amphi_host::client::set_on_servers(&running.client, &self.mounting.set)
            .and_then(|()| amphi_process::mount::mount(running.client.clone(), &options, stop.also()));
        let session = match mounted {
            Ok(session) => session,
            Err(e) => {
                let _ = running.stop();
                return Err(e);
            }
        };
        let mount_numbers = metrics::serve_mount(running.client.clone());
        self.mounting.say_ready(session.mount_point());
        stop.wait();
        drop((mount_numbers, server_numbers));
        amphi_host::notify::stopping("Writing back what the mount has");
        amphi_process::mount::end(&session, running)
    }
}
