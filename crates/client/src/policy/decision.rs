//! The hybrid decision of a mount: the rules of `amphi_policy`, and which of the settings of the mode counts.
//!
//! Owns: the precedence of settings. Does not own: the rules and their order (`amphi_policy::decision`), how their
//! inputs are measured (`ops::input`).

pub use amphi_policy::decision::{Decision, Input, Mode, Reason, Way, decide};
use amphi_types::IoMode;

/// The mode that was set with the highest precedence. The order is: the open file, the file, the process that opened
/// it, the mount. `Auto` counts as no setting for the open file and the file, whose initial value it is. For a process
/// it is a setting.
pub(crate) fn asked(open_and_file: [IoMode; 2], process: Option<IoMode>, mount: IoMode) -> IoMode {
    let nearest = open_and_file.into_iter().find(|mode| *mode != IoMode::Auto);
    nearest.or(process).unwrap_or(mount)
}

/// A mode as the decision knows it: `None` if the rules decide.
pub(crate) fn set(mode: IoMode) -> Option<Mode> {
    match mode {
        IoMode::Auto => None,
        IoMode::Buffered => Some(Mode::Buffered),
        IoMode::Direct => Some(Mode::Direct),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the precedence of settings of the mode: the open file, the file, the process, the mount.
    /// Method: all combinations are compared with the order written out.
    #[test]
    fn order_of_those_who_ask() {
        const MODES: [IoMode; 3] = [IoMode::Auto, IoMode::Buffered, IoMode::Direct];
        for open_mode in MODES {
            for file_mode in MODES {
                for process_mode in [None, Some(MODES[0]), Some(MODES[1]), Some(MODES[2])] {
                    for mount_mode in MODES {
                        let said = |mode: IoMode| (mode != IoMode::Auto).then_some(mode);
                        let spoke = [said(open_mode), said(file_mode), process_mode, Some(mount_mode)];
                        let mode = match spoke.into_iter().flatten().next() {
                            Some(IoMode::Direct) => Some(Mode::Direct),
                            Some(IoMode::Buffered) => Some(Mode::Buffered),
                            _ => None,
                        };
                        let found = asked([open_mode, file_mode], process_mode, mount_mode);
                        assert_eq!(set(found), mode, "{spoke:?}");
                    }
                }
            }
        }
    }
}
