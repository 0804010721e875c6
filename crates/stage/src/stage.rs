//! A stage from the beginning to the end.
//!
//! Owns the order of the steps, the two rounds that a file has, and the decision whether the target is complete.

use crate::assemble::{Assembler, Kinds};
use crate::buffer::REQUEST_BYTES;
use crate::checkpoint::Checkpoints;
use crate::compare::Comparer;
use crate::copy::Copier;
use crate::dest::{Dest, Naming};
use crate::dirs::{DIRECTORY, Tree};
use crate::ends::{self, Ends};
use crate::entries::{Identity, Source, kind, size};
use crate::error::{Error, reason, show};
use crate::files::{FileState, Verdict};
use crate::journal::record::{Begin, NO_TREE, Record, VERSION};
use crate::journal::{Journal, Known, NoJournal};
use crate::leftovers;
use crate::options::{Existing, Keep, Leftovers, Options, Verify};
use crate::publish;
use crate::report::{Manifest, Phase, Progress};
use crate::skeleton::{self, Found};
use crate::stable::Stable;
use crate::walk;
use crate::whereabouts::{self, Whereabouts};
use crate::work::Stop;
use rustix::fs::{self, AtFlags, FileType, Mode};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;

/// Times that a file is copied before it is a failure.
const ROUNDS: usize = 2;

/// Removes remains of unfinished stages beside this target, unless a process works on them.
pub fn clean(target: &Path, progress: &Progress) -> Result<(), Error> {
    let target = ends::target(target, false)?;
    let ids = leftovers::find(&target, None)?;
    leftovers::clean(&target, &ids, progress)
}

/// Stages. When it returns a complete manifest, everything is durable under the target's name. With a manifest that is
/// not complete, and after an error that is no refusal, the same call continues where this one ended.
pub fn stage(options: &Options, progress: &Progress) -> Result<Manifest, Error> {
    let ends = ends::find(options)?;
    if options.leftovers == Leftovers::Remove {
        leftovers::clean(&ends.target, &leftovers::find(&ends.target, None)?, progress)?;
    }
    let others = leftovers::find(&ends.target, Some(ends.id))?;
    leftovers::tell(&ends.target, &others, progress);
    if let Some(manifest) = published(&ends, options.existing)? {
        return Ok(manifest);
    }
    let stable = Stable::of(&ends.target.base);
    let (journal, known) = open_journal(&ends, true)?;
    let is_new = known.begin.is_none();
    if is_new && ends.target.stat.is_none() && !matches!(ends.target.look(), Ok(None)) {
        // Another process finished the same stage before this one had the lock.
        let _ = fs::unlinkat(&ends.target.base, &*leftovers::journal(&ends.target.name, ends.id), AtFlags::empty());
        return Err(Error::refused(format!("{}: has just come into being", show(&ends.target.path))));
    }
    if let Some(manifest) = finish(&ends, &known)? {
        return Ok(manifest);
    }
    let walked = walk::walk(ends.source.tree(), &ends.source.path, options.threads, progress);
    let walked = walked.and_then(|source| {
        if ends.updates && options.existing == Existing::UpdateAndDelete {
            refuse_empty(&ends, &source, progress)?;
        }
        Ok(source)
    });
    let source = match walked {
        Ok(source) => source,
        Err(e) => {
            if is_new {
                let _ =
                    fs::unlinkat(&ends.target.base, &*leftovers::journal(&ends.target.name, ends.id), AtFlags::empty());
            }
            return Err(e);
        }
    };
    let piece_bytes = match &known.begin {
        Some(begin) => begin.piece_bytes,
        None => piece_bytes(options),
    };
    let stop = Stop::default();
    let path = ends.beside(&leftovers::journal(&ends.target.name, ends.id));
    let checkpoints = Checkpoints::new(&stable, journal, path, options.sync_bytes, &stop);
    if is_new {
        checkpoints.record(&[Record::Begin(begin(&ends, piece_bytes))]);
        stop.check()?;
        stable.sync_dir(&*ends.target.base).map_err(|e| Error::target("make the journal", &ends.target.path, e))?;
    }
    if known.publish.is_some() {
        // The tree is changed from here on, and its root may get another inode.
        checkpoints.record(&[Record::Publish { dev: 0, ino: NO_TREE }]);
        stop.check()?;
    }
    let run = Run { options, progress, ends: &ends, source: &source, stable: &stable, stop: &stop, piece_bytes };
    run.all(&checkpoints, known)
}

/// Number of bytes of a piece. It is so small that, within the bound for a crash, every thread can have one piece under
/// way and the checkpoint before it as many bytes again.
fn piece_bytes(options: &Options) -> u64 {
    let request = REQUEST_BYTES as u64;
    let share = options.sync_bytes / (2 * options.threads.max(1) as u64);
    let piece = options.piece_bytes.min(share.max(request));
    // Ends of pieces are ends of blocks.
    (piece - piece % crate::buffer::ALIGN).max(crate::buffer::ALIGN)
}

fn begin(ends: &Ends, piece_bytes: u64) -> Begin {
    Begin {
        version: VERSION,
        mode: u8::from(ends.updates),
        piece_bytes,
        source: ends.source.path.as_os_str().as_bytes().to_vec(),
        target: ends.target.name.as_bytes().to_vec(),
    }
}

/// Opens this stage's journal.
fn open_journal(ends: &Ends, create: bool) -> Result<(Journal, Known), Error> {
    let name = leftovers::journal(&ends.target.name, ends.id);
    let path = show(&ends.beside(&name));
    let (journal, known) = Journal::open(&*ends.target.base, &name, create).map_err(|e| match e {
        NoJournal::InUse => Error::refused(format!(
            "{}: another process stages the same source to this target; wait for it",
            show(&ends.target.path)
        )),
        NoJournal::NotOne => Error::refused(format!(
            "{path}: is no journal that this version knows; look at it, and remove it with the tree beside it"
        )),
        NoJournal::Failed(e @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Error::refused(format!(
            "{}: cannot write into the folder of the target: {}",
            show(&ends.target.path),
            reason(e)
        )),
        NoJournal::Failed(Errno::NOENT) if !create => Error::refused(format!(
            "{}: another process has just finished the same stage; look at it",
            show(&ends.target.path)
        )),
        NoJournal::Failed(e) => Error::target("open the journal", &ends.beside(&name), e),
    })?;
    let is_other = |known: &Begin| {
        let own = begin(ends, known.piece_bytes);
        *known != own || known.piece_bytes < crate::buffer::ALIGN
    };
    if known.begin.as_ref().is_some_and(is_other) {
        return Err(Error::refused(format!("{path}: belongs to another stage; --clean removes it")));
    }
    let tree = ends.beside(&ends.temporary());
    if create
        && known.begin.is_none()
        && fs::statat(&*ends.target.base, &*ends.temporary(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    {
        let _ = fs::unlinkat(&*ends.target.base, &*name, AtFlags::empty());
        return Err(Error::refused(format!(
            "{}: is in the way and has no journal; look at it and remove it",
            show(&tree)
        )));
    }
    Ok((journal, known))
}

/// Finishes a stage whose target has its name already; refuses a target that exists otherwise.
fn published(ends: &Ends, existing: Existing) -> Result<Option<Manifest>, Error> {
    if ends.updates {
        return Ok(None);
    }
    let name = leftovers::journal(&ends.target.name, ends.id);
    if fs::statat(&*ends.target.base, &*name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        let (_journal, known) = open_journal(ends, false)?;
        if let Some(manifest) = finish(ends, &known)? {
            return Ok(Some(manifest));
        }
    }
    if ends.target.stat.is_some() && existing == Existing::Refuse {
        let path = show(&ends.target.path);
        return Err(Error::refused(format!(
            "{path}: exists; give --replace to put the copy in its place, --update to bring it up to date, or another name"
        )));
    }
    Ok(None)
}

/// Finishes a stage whose journal, which is locked, says that its tree was about to get the name, if the tree has it.
fn finish(ends: &Ends, known: &Known) -> Result<Option<Manifest>, Error> {
    let Some(ino) = known.publish else { return Ok(None) };
    match whereabouts::look(&ends.target, ends.id, ino)? {
        Whereabouts::Beside | Whereabouts::Gone => Ok(None),
        Whereabouts::Named => {
            publish::tidy_up(ends, &Stable::of(&ends.target.base))?;
            Ok(Some(Manifest { complete: true, already: true, ..Manifest::default() }))
        }
        Whereabouts::Lost => {
            let path = show(&ends.beside(&ends.temporary()));
            Err(Error::refused(format!("{path}: {}", whereabouts::advice(&ends.target, ends.id))))
        }
    }
}

/// Refuses to bring a target up to date with a source that has nothing at all: it is more likely not mounted than
/// meant.
fn refuse_empty(ends: &Ends, source: &Source, progress: &Progress) -> Result<(), Error> {
    let is_empty = source.entries.len() == 1 && source.entries[0].own.is_some() && progress.failed.count() == 0;
    let target = || fs::openat(&ends.target.base, &*ends.target.name, DIRECTORY, Mode::empty());
    if !is_empty || target().and_then(|dir| walk::names(&dir)).is_ok_and(|names| names.is_empty()) {
        return Ok(());
    }
    Err(Error::refused(format!(
        "{}: is empty, so that --delete would remove everything in {}; look whether the source is mounted, and if it is \
         meant so, remove that yourself",
        show(&ends.source.path),
        show(&ends.target.path)
    )))
}

/// A stage whose source is listed and whose journal is open.
struct Run<'a> {
    options: &'a Options,
    progress: &'a Progress,
    ends: &'a Ends,
    source: &'a Source,
    stable: &'a Stable,
    stop: &'a Stop,
    piece_bytes: u64,
}

impl Run<'_> {
    fn all(&self, checkpoints: &Checkpoints<'_>, mut known: Known) -> Result<Manifest, Error> {
        let (ends, threads) = (self.ends, self.options.threads.max(1));
        let dest = match ends.updates {
            true => Dest { tree: ends.target.tree(), naming: Naming::Each(ends.id) },
            false => Dest { tree: Tree::new(ends.target.base.clone(), ends.temporary()), naming: Naming::Whole },
        };
        let mut found = skeleton::make(self.source, &dest, threads, self.stop)?;
        dest.tree.forget();
        let path = |n: u32| self.source.below_root(&self.source.entries[n as usize]).into_os_string();
        let kinds = Kinds::of(self.source, |n, entry| {
            (ends.updates && found.entries.contains_key(&n))
                || known.files.contains_key(self.source.below_root(entry).as_os_str().as_bytes())
        });
        let numbers = AtomicU32::new(known.next_number);
        let files: Vec<FileState> =
            kinds.files.iter().map(|n| FileState::new(*n, known.files.remove(path(*n).as_bytes()))).collect();
        drop(known);
        if self.options.existing != Existing::UpdateAndDelete {
            found.extras.clear();
        }
        self.count(&files);
        if ends.updates {
            files.iter().for_each(|file| self.find_unchanged(file, &found));
        }
        let (source, progress, stop, stable) = (self.source, self.progress, self.stop, self.stable);
        let assembler = Assembler { source, dest: &dest, found: &found, stable, progress, stop, threads };
        assembler.others(&kinds.others);
        stop.check()?;
        let piece_bytes = self.piece_bytes;
        let files = files.as_slice();
        let copier = Copier { source, dest: &dest, files, checkpoints, stable, progress, stop, piece_bytes, numbers };
        let comparer = Comparer { source, dest: &dest, files, checkpoints, progress, stop, piece_bytes };
        for round in 1..=ROUNDS {
            progress.enter(Phase::Copying);
            copier.run(threads);
            stop.check()?;
            if self.options.verify == Verify::Yes {
                progress.enter(Phase::Verifying);
                comparer.run(threads);
                stop.check()?;
            }
            progress.enter(Phase::Finishing);
            assembler.files(files);
            stop.check()?;
            if !self.again(files, round == ROUNDS) {
                break;
            }
        }
        assembler.names(files);
        stop.check()?;
        assembler.links(&kinds.links);
        assembler.extras();
        stop.check()?;
        assembler.directories();
        stop.check()?;
        self.end(checkpoints, files, &kinds)
    }

    /// Counts what is to be copied.
    fn count(&self, files: &[FileState]) {
        self.progress.files.add(files.len() as u64);
        let bytes = files.iter().map(|file| size(&self.source.entries[file.entry as usize].stat)).sum();
        self.progress.bytes.add(bytes);
    }

    /// Finds out whether the target of an update has a file already, by size and time of modification.
    fn find_unchanged(&self, file: &FileState, found: &Found) {
        let entry = &self.source.entries[file.entry as usize];
        let Some(has) = found.entries.get(&file.entry) else { return };
        let (own, there) = (Identity::of(&entry.stat), Identity::of(has));
        if kind(has) == FileType::RegularFile && (own.size, own.mtime_ns) == (there.size, there.mtime_ns) {
            let mut state = file.state();
            state.forget();
            (state.verdict, state.identity) = (Verdict::Unchanged, own);
            self.progress.skipped_files.add(1);
            self.progress.skipped_bytes.add(own.size);
            self.progress.trusted_bytes.add(own.size);
        }
    }

    /// Prepares files that are to be copied once more, or reports them if they were copied too often; returns true if
    /// there are some to copy.
    fn again(&self, files: &[FileState], is_last: bool) -> bool {
        let mut any = false;
        for file in files {
            let mut state = file.state();
            let Verdict::Again(why) = &state.verdict else { continue };
            if is_last {
                let path = self.source.path(&self.source.entries[file.entry as usize]);
                self.progress.failed.add(&path, format!("{why}, twice"));
                state.verdict = Verdict::Failed;
            } else {
                if state.number.is_none() {
                    self.progress.trusted_bytes.sub(state.identity.size.min(self.progress.trusted_bytes.get()));
                }
                self.progress.verified_bytes.sub(std::mem::take(&mut state.verified_bytes));
                state.forget();
                state.verdict = Verdict::Todo;
                any = true;
            }
        }
        any
    }

    /// Publishes what is complete.
    fn end(&self, checkpoints: &Checkpoints<'_>, files: &[FileState], kinds: &Kinds) -> Result<Manifest, Error> {
        let ends = self.ends;
        let of_kind = |is: fn(FileType) -> bool| self.source.entries.iter().filter(|e| is(e.kind())).count() as u64;
        let mut manifest = Manifest {
            complete: false,
            already: false,
            directories: self.source.dirs.len() as u64,
            symlinks: of_kind(|kind| kind == FileType::Symlink),
            hard_links: kinds.links.len() as u64,
            specials: of_kind(|kind| !matches!(kind, FileType::Symlink | FileType::Directory | FileType::RegularFile)),
            verified: self.options.verify == Verify::Yes,
        };
        let is_kept = self.options.keep == Keep::Possible || self.progress.not_kept.count() == 0;
        if self.progress.failed.count() > 0 || !is_kept {
            return Ok(manifest);
        }
        for file in files {
            let state = file.state();
            let path = || show(&self.source.path(&self.source.entries[file.entry as usize]));
            let is_done = matches!(state.verdict, Verdict::Whole | Verdict::Unchanged);
            assert!(is_done, "{} is neither copied nor a failure", path());
            if manifest.verified && state.verdict == Verdict::Whole {
                assert_eq!(state.verified_bytes, state.identity.size, "{} was compared", path());
            }
        }
        let failed = |e| Error::target("make the copy durable", &ends.target.path, e);
        self.stable.sync_all().map_err(failed)?;
        if !ends.updates {
            let root = fs::statat(&*ends.target.base, &*ends.temporary(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            checkpoints.record(&[Record::Publish { dev: root.st_dev, ino: root.st_ino }]);
            self.stop.check()?;
            publish::rename(ends, self.options.existing)?;
        }
        publish::tidy_up(ends, self.stable)?;
        manifest.complete = true;
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs as files;

    /// A folder as a stage leaves it that is killed around its last rename: `new` is the source, and the journal says
    /// that everything is copied and compared, and which tree was about to get the name.
    struct Killed {
        _folder: tempfile::TempDir,
        options: Options,
        ends: Ends,
    }

    impl Killed {
        fn new(target: Option<&str>, temporary: &str, inode_of: &str) -> Killed {
            let folder = tempfile::tempdir().expect("folder");
            let at = |name: &str| folder.path().join(name);
            let fill = |name: &str, text: &str| {
                files::create_dir(at(name)).expect("mkdir");
                files::write(at(name).join("file"), text).expect("write");
            };
            fill("source", "new");
            fill("elsewhere", "other");
            target.into_iter().for_each(|text| fill("target", text));
            let options = Options { existing: Existing::Replace, ..Options::new(at("source"), at("target")) };
            let ends = ends::find(&options).expect("ends");
            fill(&ends.temporary().to_string_lossy(), temporary);
            let name = leftovers::journal(&ends.target.name, ends.id);
            let Ok((mut journal, _)) = Journal::open(&*ends.target.base, &name, true) else { panic!("a journal") };
            let ino = match inode_of {
                "temporary" => fs::statat(&*ends.target.base, &*ends.temporary(), AtFlags::SYMLINK_NOFOLLOW),
                name => fs::stat(at(name)),
            };
            let identity = Identity::of(&fs::stat(at("source/file")).expect("stat"));
            journal
                .append(&[
                    Record::Begin(begin(&ends, 1 << 20)),
                    Record::File { number: 0, identity, path: b"file".to_vec() },
                    Record::Piece { number: 0, index: 0, crc: crc32c::crc32c(b"new") },
                    Record::Compared { number: 0, index: 0 },
                    // The device has another number since it was mounted again.
                    Record::Publish { dev: 1 << 40, ino: ino.expect("stat").st_ino },
                ])
                .expect("append");
            Killed { _folder: folder, options, ends }
        }

        /// What is in the target and in the tree beside it.
        fn both(&self) -> [Option<String>; 2] {
            let path = |path: &Path| files::read_to_string(path.join("file")).ok();
            [path(&self.ends.target.path), path(&self.ends.beside(&self.ends.temporary()))]
        }
    }

    /// Goal: a stage that was killed around its last rename goes on, also if the device has another number: the old
    /// tree never gets the name again. Method: the states before and after the rename, with and without a tree that is
    /// replaced.
    #[test]
    fn killed_around_the_last_rename() {
        for (target, temporary, inode_of, is_done) in [
            (Some("new"), "old", "target", true),
            (Some("old"), "new", "temporary", false),
            (None, "new", "temporary", false),
        ] {
            let killed = Killed::new(target, temporary, inode_of);
            let progress = Progress::default();
            let manifest = stage(&killed.options, &progress).expect("goes on");
            assert_eq!((manifest.complete, manifest.already), (true, is_done), "{target:?}");
            assert_eq!(killed.both(), [Some("new".into()), None], "{target:?}");
            assert_eq!(progress.copied_bytes.get(), 0, "{target:?}");
        }
    }

    /// Goal: a tree beside the target that is not the finished one is never continued as a copy, and never removed.
    /// Method: one, with a target that is not the finished copy either, and with none; the stage, and cleaning.
    #[test]
    fn a_tree_that_was_replaced_is_no_copy() {
        for target in [Some("any"), None] {
            let killed = Killed::new(target, "old", "elsewhere");
            let before = [target.map(String::from), Some("old".into())];
            let error = stage(&killed.options, &Progress::default()).expect_err("refused");
            assert!(error.kind == crate::ErrorKind::Refused && error.text.contains("look at both"), "{error}");
            assert_eq!(killed.both(), before);
            let progress = Progress::default();
            clean(&killed.options.target, &progress).expect("cleaned");
            assert!(progress.remarks.first()[0].reason.contains("stays"), "{:?}", progress.remarks.first());
            assert_eq!(killed.both(), before);
        }
    }
}
