//! `amphi run`: starts a program with libraries of ours between it and those of its own.
//!
//! Owns: the choice of the libraries that a program gets, and the way in which it gets them. Most programs get them by
//! their environment; launchers of MPI programs get them by an option, so that only the ranks load them. Does not own:
//! where the libraries lie (`process::launch`).

use amphi_host::failure::{Failure, Outcome};
use amphi_process::launch::{
    HYBRID, Mpi, ask, find_preload, find_shim, hybrid_folders, is_launcher, launcher_options, preload_list,
};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Run a program that reads cached files without calls of the kernel: `amphi run -- ./app`. With --mpiio also with the
/// cooperative cache below its MPI-IO: `amphi run --mpiio -- mpirun -n 64 ./app`. With --hybrid its large reads and
/// writes below folders of other file systems bypass the kernel's page cache: `amphi run --hybrid /scratch -- ./app`.
#[derive(Args, Debug)]
pub struct Run {
    /// Put the cache of docs/MPIIO.md below the program's MPI_File_* functions; hints:
    /// AMPHI_MPIIO_HINTS='key=value;...'
    #[arg(long)]
    mpiio: bool,
    /// Which MPI library the program uses; auto asks the launcher; abi: it was compiled for the standard binary
    /// interface of MPI 5 (mpicc_abi)
    #[arg(long, value_enum, default_value_t = Mpi::Auto, value_name = "LIBRARY", requires = "mpiio")]
    mpi: Mpi,
    /// Folder of the shims libamphi_mpiio_*.so; default: AMPHI_MPIIO_SHIMS, or beside this program (make mpiio, make
    /// install)
    #[arg(long, value_name = "DIR", requires = "mpiio")]
    shims: Option<PathBuf>,
    /// Folders of a local disk, NFS or Lustre: writes from 2 MiB and reads from 8 MiB on of files below them go direct
    /// (O_DIRECT); the same as AMPHI_HYBRID=DIR:DIR. AMPHI_IO_MODE=direct lets all requests from 4 KiB on go direct
    #[arg(long, value_name = "DIR,...", value_delimiter = ',')]
    hybrid: Vec<PathBuf>,
    /// The command, best behind --
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Replaces this process by the command.
    pub fn run(self) -> Outcome {
        let program = &self.command[0];
        // The launcher of a program with the standard interface may be that of any library.
        let launcher = match self.mpi {
            Mpi::Auto | Mpi::Abi if self.mpiio && is_launcher(program) => Some(ask(program)?),
            named => (self.mpiio && is_launcher(program)).then_some(named),
        };
        let shim = match self.mpiio {
            true => Some(find_shim(self.shims.as_deref(), self.library(launcher)?.shim())?),
            false => None,
        };
        let there = std::env::var_os("LD_PRELOAD");
        let library = match find_preload() {
            Ok(library) => Some(library),
            // Programs with the MPI-IO cache do not need the library.
            Err(_) if self.mpiio && self.hybrid.is_empty() => None,
            Err(missing) => return Err(missing),
        };
        let preload = preload_list(shim.as_deref(), there.as_deref(), library.as_deref());
        let mut command = Command::new(program);
        let hybrid = (!self.hybrid.is_empty()).then_some(HYBRID);
        if hybrid.is_some() {
            command.env(HYBRID, hybrid_folders(&self.hybrid)?);
        }
        match launcher {
            Some(launcher) => command.args(launcher_options(launcher, &preload, hybrid)),
            None => command.env("LD_PRELOAD", &preload),
        };
        let error = command.args(&self.command[1..]).exec();
        Err(Failure::refused(format!("cannot start {}: {error}", program.display())))
    }

    /// The MPI library of the program.
    fn library(&self, launcher: Option<Mpi>) -> Outcome<Mpi> {
        match (self.mpi, launcher) {
            (Mpi::Auto, Some(found)) => Ok(found),
            (Mpi::Auto, None) => Err(Failure::refused(format!(
                "'{}' is no MPI launcher that can be asked for its library; say which one: --mpi openmpi, mpich or abi",
                self.command[0].display()
            ))),
            (named, _) => Ok(named),
        }
    }
}
