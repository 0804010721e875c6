//! The life of a link's connections: first dial, break, reconnect with backoff, recovery, giving up, close.
//!
//! Owns: when connections are made and ended. Does not own: calls (`state`), reading and writing (`traffic`).

use super::state::{Phase, State};
use super::traffic;
use super::{Link, LinkConfig, LinkEvents, Numbered, Recovery, Timeouts};
use crate::bell::{Bell, Cut, Ending};
use crate::beside::OtherEnd;
use crate::error::LinkError;
use crate::handshake::{self, NotWelcome};
use crate::local::LocalDialer;
use crate::pipe::{Inbound, Outbound, over_local, over_stream, passed_memory};
use amphi_env::Env;
use amphi_wire::handshake::Secure;
use amphi_wire::slots::SlotTable;
use amphi_wire::{Hello, Role, VERSION, Welcome};
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// Both halves of a connection, and the server's end if the server has memory of this process.
type Pipe<E> = (Outbound<E>, Inbound<E>, Option<OtherEnd>);

/// One connection of a link, shared by its three tasks.
#[derive(Default)]
pub(super) struct Attachment {
    pub(super) cut: Cut,
    running: Cell<u32>,
    ended: Bell,
}

impl Attachment {
    fn spawn<E: Env>(self: &Rc<Self>, env: &E, task: impl Future<Output = ()> + 'static) {
        self.running.set(self.running.get() + 1);
        let attachment = self.clone();
        env.spawn(async move {
            task.await;
            attachment.running.set(attachment.running.get() - 1);
            attachment.ended.ring();
        });
    }

    async fn ended(&self) {
        self.ended.until(|| (self.running.get() == 0).then_some(())).await;
    }
}

fn not_welcome(e: NotWelcome) -> io::Error {
    match e {
        NotWelcome::Refused(why) => io::Error::new(io::ErrorKind::PermissionDenied, format!("refused: {why}")),
        NotWelcome::Foreign(why) => io::Error::new(io::ErrorKind::InvalidData, why),
        NotWelcome::Ended(why) => io::Error::new(io::ErrorKind::ConnectionAborted, why.to_string()),
    }
}

async fn attempt<E: Env>(
    env: &E,
    config: &LinkConfig,
    local: Option<&LocalDialer>,
    addr: &str,
    (Numbered { link, links }, last_boot): (Numbered, u64),
) -> io::Result<(Pipe<E>, Welcome)> {
    let (mut out, mut inb) = match local {
        Some(dialer) => {
            let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "no in-process server");
            over_local::<E>(dialer.dial().ok_or_else(refused)?)
        }
        // Errors of dialling name the address, later errors do not.
        None => over_stream::<E>(env.dial(addr).await?),
    };
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{addr}: {e}"));
    let (session, role, name) = (config.session, config.role, config.name.clone());
    let hello = Hello { version: VERSION, session, role, name, last_boot, clock: env.wall(), link, links };
    // A server in this process needs no key: it can read this process's memory anyway.
    let proves = match local {
        Some(_) => handshake::Proves::default(),
        None => handshake::Proves {
            key: config.key.as_ref(),
            identity: config.identity.as_ref(),
            // The kernel, and the owner of the socket, guarantee the identity of the server.
            any_server: crate::auth::is_unix(addr),
            secure: if crate::auth::is_unix(addr) { Secure::Off } else { config.secure },
            passes_memory: config.role == Role::Mount,
        },
    };
    let greeted = handshake::greet(env, &mut out, &mut inb, hello, proves).await;
    let (welcome, passed) = greeted.map_err(|e| named(not_welcome(e)))?;
    let other_end = if passed { passed_memory(&mut out, &mut inb) } else { None };
    Ok(((out, inb, other_end), welcome))
}

/// Tries every address once.
async fn try_all<E: Env>(
    env: &E,
    config: &LinkConfig,
    addrs: &[String],
    local: Option<&LocalDialer>,
    limit: Duration,
    who: (Numbered, u64),
) -> io::Result<(Pipe<E>, Welcome)> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to");
    let in_process = ["local".to_owned()];
    let addrs = if local.is_some() { &in_process[..] } else { addrs };
    for addr in addrs {
        let attempt = attempt(env, config, local, addr, who);
        last = match amphi_env::timeout(env, limit, attempt).await {
            Some(Ok(done)) => return Ok(done),
            Some(Err(e)) => e,
            None => io::Error::new(io::ErrorKind::TimedOut, format!("{addr}: no answer within {limit:?}")),
        };
    }
    Err(last)
}

fn next_pause(pause: Duration, timeouts: &Timeouts) -> Duration {
    (pause * 2).min(timeouts.backoff_max)
}

impl<E: Env> Link<E> {
    pub(super) async fn start<H: LinkEvents<E>>(
        env: E,
        config: LinkConfig,
        local: Option<LocalDialer>,
        numbered: Numbered,
        events: Rc<H>,
    ) -> io::Result<Rc<Link<E>>> {
        let timeouts = config.timeouts;
        let begun = env.now();
        let mut pause = timeouts.backoff_min;
        let (pipe, welcome) = loop {
            match try_all(&env, &config, &config.addrs, local.as_ref(), timeouts.connect, (numbered, 0)).await {
                Ok(connected) => break connected,
                Err(e) if env.now().since(begun) >= timeouts.first_connect => return Err(e),
                Err(e) => debug!("not connected yet: {e}"),
            }
            env.sleep(pause).await;
            pause = next_pause(pause, &timeouts);
        };
        let table = SlotTable::new(welcome.normal_credits, welcome.urgent_credits)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let mut state = State::new(welcome, table);
        state.resume(env.now());
        let link = Rc::new(Link {
            addrs: RefCell::new(config.addrs.clone()),
            env,
            config,
            local,
            numbered: Cell::new(numbered),
            timeouts: Cell::new(timeouts),
            state: RefCell::new(state),
            outgoing: Bell::default(),
            changed: Bell::default(),
            closing: Cut::default(),
            ended: Cell::new(false),
        });
        link.env.spawn(link.clone().supervise(pipe, events));
        Ok(link)
    }

    async fn supervise<H: LinkEvents<E>>(self: Rc<Self>, mut pipe: Pipe<E>, events: Rc<H>) {
        let mut known_boot = self.welcome().boot;
        let mut owes_recovery = false;
        let error = loop {
            let conn = Rc::new(Attachment::default());
            self.state.borrow_mut().payloads.other_end = pipe.2;
            conn.spawn(&self.env, traffic::read(self.clone(), pipe.1, conn.clone(), events.clone()));
            conn.spawn(&self.env, traffic::write(self.clone(), pipe.0, conn.clone()));
            conn.spawn(&self.env, traffic::watch(self.clone(), conn.clone()));
            let mut fatal = None;
            if owes_recovery {
                fatal = self.recover(&conn, &*events).await;
            }
            if fatal.is_none() && !conn.cut.is_cut() {
                (known_boot, owes_recovery) = (self.welcome().boot, false);
                self.state.borrow_mut().resume(self.env.now());
                self.outgoing.ring();
                events.state_changed(true);
            }
            self.outlive(&conn).await;
            let was_up = self.is_up();
            let lost = self.state.borrow_mut().part_from_connection();
            if let Some(lost) = lost {
                self.env.spawn(lost.outlast(self.env.clone()));
            }
            self.state.borrow_mut().handle_break();
            self.changed.ring();
            if was_up {
                events.state_changed(false);
            }
            if let Some(e) = fatal {
                break LinkError::Lost(e);
            }
            if self.state.borrow().closing || self.closing.is_cut() || self.local.is_some() {
                break LinkError::Closed;
            }
            match conn.cut.ending() {
                Some(Ending::Violation(why)) => warn!("connection cut: {why}"),
                Some(other) => info!("connection lost, reconnecting: {other}"),
                None => {}
            }
            let Some((again, mut welcome)) = self.closing.guard(self.redial(known_boot)).await else {
                break LinkError::Closed;
            };
            // The server may know a session only because it began it for an earlier welcome that was lost.
            welcome.resumed &= welcome.begun == self.welcome().begun;
            events.welcomed(&welcome);
            owes_recovery |= welcome.boot != known_boot || !welcome.resumed;
            if !welcome.resumed {
                warn!("the server has ended the session meanwhile: calls under way fail");
                self.state.borrow_mut().session_ended();
            }
            self.state.borrow_mut().welcome = welcome;
            pipe = again;
        };
        self.state.borrow_mut().fail(error);
        self.ended.set(true);
        self.changed.ring();
    }

    /// Lets the owner present its state again. Returns the error that ends the link.
    async fn recover<H: LinkEvents<E>>(self: &Rc<Self>, conn: &Attachment, events: &H) -> Option<amphi_types::Errno> {
        self.state.borrow_mut().phase = Phase::Recovering;
        let recovery = Recovery { link: self.clone(), welcome: self.welcome() };
        let both = self.closing.guard(events.restarted(recovery));
        match conn.cut.guard(both).await {
            Some(Some(Ok(()))) | None => None,
            Some(None) => {
                conn.cut.cut(Ending::Bye);
                None
            }
            // An error that was caused by the break says nothing about the session.
            Some(Some(Err(_))) if conn.cut.is_cut() => None,
            Some(Some(Err(e))) => {
                warn!("the session's state is lost with the restart of the server: {e}");
                conn.cut.cut(Ending::Lost("recovery failed".into()));
                Some(e)
            }
        }
    }

    /// Waits until the connection's tasks have ended, which `close` may request.
    async fn outlive(&self, conn: &Attachment) {
        if self.closing.guard(conn.ended()).await.is_none() {
            conn.cut.cut(Ending::Bye);
            conn.ended().await;
        }
    }

    /// Connects again, however long it takes. From `give_up` on, calls fail.
    async fn redial(&self, last_boot: u64) -> (Pipe<E>, Welcome) {
        let search = pin!(self.search(last_boot));
        let patience = pin!(self.env.sleep(self.timeouts.get().give_up));
        match select(search, patience).await {
            Either::Left((found, _)) => found,
            Either::Right(((), search)) => {
                warn!("no server for {:?}: calls fail until there is one", self.timeouts.get().give_up);
                self.state.borrow_mut().fail(LinkError::Unreachable);
                search.await
            }
        }
    }

    async fn search(&self, last_boot: u64) -> (Pipe<E>, Welcome) {
        let mut pause = self.timeouts.get().backoff_min;
        let mut told = false;
        loop {
            let timeouts = self.timeouts.get();
            let addrs = self.addrs.borrow().clone();
            let who = (self.numbered.get(), last_boot);
            let tried = try_all(&self.env, &self.config, &addrs, self.local.as_ref(), timeouts.connect, who).await;
            let tried = tried.and_then(|(pipe, welcome)| {
                let same = self.state.borrow().table().check(welcome.normal_credits, welcome.urgent_credits);
                same.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)).map(|()| (pipe, welcome))
            });
            match tried {
                Ok(connected) => return connected,
                Err(e) if !told => {
                    warn!("cannot reconnect yet: {e}");
                    told = true;
                }
                Err(e) => debug!("cannot reconnect yet: {e}"),
            }
            self.env.sleep(pause).await;
            pause = next_pause(pause, &timeouts);
        }
    }
}
