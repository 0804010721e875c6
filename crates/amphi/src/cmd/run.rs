//! `amphi run`: starts a program with a library of ours between it and one of its own.
//!
//! Owns the search for the shim of the program's MPI library and how it reaches the ranks: launchers get it as an
//! option of theirs, so that only the ranks load it; any other program gets it in its environment.

use amphi_host::failure::{Failure, Outcome};
use amphi_process::launch::{Mpi, ask, find_shim, is_launcher, launcher_options};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Run a program with the cooperative cache below its MPI-IO: `amphi run --mpiio -- mpirun -n 64 ./app`.
#[derive(Args, Debug)]
pub struct Run {
    /// Put the cache of docs/MPIIO.md below the program's MPI_File_* functions; hints:
    /// AMPHI_MPIIO_HINTS='key=value;...'
    #[arg(long, required = true)]
    mpiio: bool,
    /// Which MPI library the program uses; auto asks the launcher; abi: it was compiled for the standard binary
    /// interface of MPI 5 (mpicc_abi)
    #[arg(long, value_enum, default_value_t = Mpi::Auto, value_name = "LIBRARY")]
    mpi: Mpi,
    /// Folder of the shims libamphi_mpiio_*.so; default: AMPHI_MPIIO_SHIMS, or beside this program (make mpiio, make
    /// install)
    #[arg(long, value_name = "DIR")]
    shims: Option<PathBuf>,
    /// The command, best behind --
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Becomes the command.
    pub fn run(self) -> Outcome {
        let program = &self.command[0];
        // The launcher of a program with the standard interface may be that of any library.
        let launcher = match self.mpi {
            Mpi::Auto | Mpi::Abi if is_launcher(program) => Some(ask(program)?),
            named => is_launcher(program).then_some(named),
        };
        let mpi = match (self.mpi, launcher) {
            (Mpi::Auto, Some(found)) => found,
            (Mpi::Auto, None) => {
                return Err(Failure::refused(format!(
                    "'{}' is no MPI launcher that can be asked for its library; say which one: --mpi openmpi, mpich or abi",
                    program.display()
                )));
            }
            (named, _) => named,
        };
        let shim = find_shim(self.shims.as_deref(), mpi.shim())?;
        let mut preload = OsString::from(&shim);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let mut command = Command::new(program);
        match launcher {
            Some(launcher) => command.args(launcher_options(launcher, &preload)),
            None => command.env("LD_PRELOAD", &preload),
        };
        let error = command.args(&self.command[1..]).exec();
        Err(Failure::refused(format!("cannot start {}: {error}", program.display())))
    }
}
