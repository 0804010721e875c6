//! Child processes: this program itself, as a cluster with a mount or as the do-nothing mount.
//!
//! Invariants: a child that was started is stopped and its mount is gone when its `Program` is dropped, also after an
//! error. The do-nothing mount also ends when the parent does: it watches its standard input.

use super::round_trip::Way;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A running child and the mount that it serves, if any.
pub struct Program {
    child: Child,
    mount: Option<PathBuf>,
    /// Its message when it was ready.
    ready: String,
    /// Open as long as the child shall run.
    _stdin: Option<ChildStdin>,
}

/// This program, behind a command that becomes it, if there is one.
pub fn this_program(enter: &[String]) -> Outcome<Command> {
    let program = std::env::current_exe().during(|| "find this program".into())?;
    Ok(match enter {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    })
}

impl Program {
    /// Starts `amphi ARGS..` and waits for its line `ready`.
    pub fn start(args: &[&OsStr], mount: Option<&Path>) -> Outcome<Program> {
        Program::start_behind(&[], args, mount)
    }

    /// The same, by a command that enters a memory group or a network name space and becomes the program.
    pub fn start_behind(enter: &[String], args: &[&OsStr], mount: Option<&Path>) -> Outcome<Program> {
        let shown: Vec<String> = args.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        let mut child = this_program(enter)?
            .args(args)
            .env("AMPHI_LOG", std::env::var("AMPHI_LOG").unwrap_or_else(|_| "warn".into()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .during(|| format!("start amphi {}", shown.join(" ")))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut program = Program { child, mount: mount.map(Path::to_path_buf), ready: String::new(), _stdin: stdin };
        let mut lines = BufReader::new(stdout.ok_or_else(|| Failure::broken("a child has no output"))?).lines();
        match lines.next() {
            Some(Ok(line)) if line.starts_with("ready") => {
                program.ready = line;
                Ok(program)
            }
            other => Err(Failure::broken(format!("amphi {} did not become ready: {other:?}", shown.join(" ")))),
        }
    }

    /// The do-nothing file system, mounted at `mount` with the settings of a real mount.
    pub fn null_mount(mount: &Path) -> Outcome<Program> {
        std::fs::create_dir_all(mount).during(|| format!("make {}", mount.display()))?;
        Program::start(&["bench".as_ref(), "--null-mount".as_ref(), mount.as_os_str()], Some(mount))
    }

    /// `amphi server` on the fresh folder `data`, and its address.
    pub fn server(data: &Path, way: Way) -> Outcome<(Program, String)> {
        Program::server_with(data, way, &[])
    }

    /// As `server`, with more options.
    pub fn server_with(data: &Path, way: Way, more: &[&OsStr]) -> Outcome<(Program, String)> {
        let listen = match way {
            Way::Tcp => "tcp:127.0.0.1:0".to_string(),
            // The socket is not in the storage folder, because its path must be short.
            _ => {
                // More than one server may run at a time.
                static COUNT: AtomicU32 = AtomicU32::new(0);
                let (tmp, n) = (std::env::temp_dir(), COUNT.fetch_add(1, Relaxed));
                format!("unix:{}/amphi-bench-{}-{n}.sock", tmp.display(), std::process::id())
            }
        };
        Program::server_at(&[], data, &listen, more)
    }

    /// As `server_with`, behind a command and at an address of one's own.
    pub fn server_at(enter: &[String], data: &Path, listen: &str, more: &[&OsStr]) -> Outcome<(Program, String)> {
        let mut args: Vec<&OsStr> =
            vec!["server".as_ref(), "--data".as_ref(), data.as_os_str(), "--listen".as_ref(), listen.as_ref()];
        let is_new = !std::fs::read_dir(data).is_ok_and(|mut names| names.next().is_some());
        args.extend(is_new.then_some(OsStr::new("--format")));
        args.extend(more);
        let server = Program::start_behind(enter, &args, None)?;
        let addr = server.ready().split(' ').nth(1).unwrap_or_default().to_string();
        Ok((server, addr))
    }

    /// Its message when it was ready.
    pub fn ready(&self) -> &str {
        &self.ready
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM, then waits; the exit code must be 0.
    pub fn stop(mut self) -> Outcome {
        kill_process(Pid::from_child(&self.child), Signal::TERM).during(|| "stop a child".into())?;
        let status = self.child.wait().during(|| "wait for a child".into())?;
        if status.success() { Ok(()) } else { Err(Failure::broken(format!("a child ended with {status}"))) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(socket) = self.ready.split(' ').find_map(|word| word.strip_prefix("unix:")) {
            let _ = std::fs::remove_file(socket);
        }
        if let Some(mount) = &self.mount {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Serves the do-nothing file system at `mount` until standard input ends or a signal comes.
pub fn serve_null(mount: &Path) -> Outcome {
    let config = crate::session_config();
    let session = amphi_fuse::Session::mount(std::sync::Arc::new(amphi_fuse::NullFs::new()), mount, config)
        .map_err(|e| Failure::refused(e.to_string()))?;
    println!("ready {}", session.mount_point().display());
    let unmounter = session.unmounter();
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])
        .during(|| "catch signals".into())?;
    let by_signal = unmounter.clone();
    std::thread::Builder::new()
        .name("bench-signals".into())
        .spawn(move || {
            signals.forever().next();
            by_signal.unmount_by_force();
        })
        .during(|| "start a thread".into())?;
    std::thread::Builder::new()
        .name("bench-parent".into())
        .spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            unmounter.unmount_by_force();
        })
        .during(|| "start a thread".into())?;
    session.wait();
    Ok(())
}
