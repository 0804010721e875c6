//! `amphi layout`: how the data of files is laid over targets, and which way their I/O goes.

use crate::control;
use crate::failure::Outcome;
use clap::{Args, Subcommand};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Show or set data layout and I/O mode of files and directories.
#[derive(Args, Debug)]
pub struct Layout {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Print layout and I/O mode
    Get {
        /// Files or directories
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Set layout or I/O mode; new files and directories in a directory inherit them
    Set {
        /// growing, whole, or striped[,size=SIZE][,count=N]; a file that has data keeps its layout
        #[arg(long, required_unless_present = "mode", value_name = "LAYOUT")]
        layout: Option<String>,
        /// auto, buffered or direct
        #[arg(long, value_parser = ["auto", "buffered", "direct"])]
        mode: Option<String>,
        /// Files or directories
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

impl Layout {
    /// Shows or sets, path by path.
    pub fn run(self) -> Outcome {
        match self.action {
            Action::Get { paths } => {
                for path in paths {
                    let layout = control::read(&path, "user.amphi.layout")?;
                    let mode = control::read(&path, "user.amphi.mode")?;
                    println!("{}: layout {layout} mode {mode}", path.display());
                }
            }
            Action::Set { layout, mode, paths } => {
                for (done, path) in paths.iter().enumerate() {
                    set(path, layout.as_deref(), mode.as_deref()).map_err(|f| f.behind(done))?;
                }
            }
        }
        Ok(())
    }
}

fn set(path: &Path, layout: Option<&str>, mode: Option<&str>) -> Outcome {
    // Another file system would take the attributes and mean nothing by them.
    control::read(path, "user.amphi.mode")?;
    if let Some(layout) = layout {
        set_layout(path, layout)?;
    }
    if let Some(mode) = mode {
        let set =
            control::write(path, "user.amphi.mode", mode, |_| format!("{}: '{mode}' is no I/O mode", path.display()));
        set.map_err(|f| f.behind(usize::from(layout.is_some())))?;
    }
    Ok(())
}

fn set_layout(path: &Path, layout: &str) -> Outcome {
    control::write(path, "user.amphi.layout", layout, |e| match e {
        Errno::BUSY => format!("{}: has data and keeps its layout; copy it to a new file instead", path.display()),
        // The mount says what is wrong; not everybody may ask it.
        _ => match control::read_if_any(path, "user.amphi.error") {
            Ok(Some(why)) if !why.is_empty() => format!("{}: '{layout}' is no layout: {why}", path.display()),
            _ => format!(
                "{}: '{layout}' is no layout; write growing, whole, or striped,size=1M,count=4 (size: a power of two, \
                 64K to 1G; count: at most {} for each target)",
                path.display(),
                amphi_types::Layout::STRIPES_A_TARGET
            ),
        },
    })
}
