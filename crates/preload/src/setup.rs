//! The beginning and the end of the library in a program.
//!
//! Owns: the constructor, which finds the real functions and looks at `AMPHI_PRELOAD`, and what `report` prints.

use crate::real::Real;
use crate::{hints, process, reads, sizes, writes};
use amphi_attach::{
    counts, direct_counts, is_counting, put, put_number, set_counting, set_strict, turn_direct_on, turn_off,
    turn_posts_off, write_all,
};
use core::ffi::CStr;

static OTHERS: &[&Real] = &[
    &reads::READ,
    &reads::READ_CHK,
    &reads::PREAD,
    &reads::PREAD_CHK,
    &reads::READV,
    &reads::PREADV,
    &reads::PREADV2,
    &writes::WRITE,
    &writes::PWRITE,
    &writes::WRITEV,
    &writes::PWRITEV,
    &writes::PWRITEV2,
    &sizes::MMAP,
    &sizes::SENDFILE,
    &sizes::SPLICE,
    &sizes::COPY_FILE_RANGE,
    &process::SETRLIMIT,
    &process::PRLIMIT,
    &process::UNSHARE,
    &process::PRCTL,
];

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    OTHERS.iter().chain(hints::ALL).chain(hints::OTHERS).for_each(|real| real.find());
    if let Some(folders) = variable(c"AMPHI_HYBRID") {
        turn_direct_on(folders, variable(c"AMPHI_IO_MODE"));
    }
    for word in variable(c"AMPHI_PRELOAD").unwrap_or_default().split(|byte| *byte == b',') {
        match word {
            b"off" => {
                turn_off();
                sizes::be_silent();
            }
            b"reads" => turn_posts_off(),
            b"strict" => set_strict(),
            b"report" => set_counting(),
            _ => {}
        }
    }
}

/// The value of a variable of the environment, in the constructor.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the environment is whole, no other thread runs yet, and a value is a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: as above.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

extern "C" fn end() {
    if !is_counting() {
        return;
    }
    let mut line = Line { text: [0; 128], len: 0 };
    for (what, count) in counts().filter(|(_, count)| *count > 0) {
        line.put(b"amphi: ");
        line.put(what.as_bytes());
        line.put(b": ");
        line.put_number(count);
        line.put(b"\n");
        line.flush();
    }
    for (system, way, why, requests, bytes) in direct_counts() {
        for word in ["amphi: ", system, " ", way, " ", why, ": "] {
            line.put(word.as_bytes());
        }
        line.put_number(requests);
        line.put(b", bytes ");
        line.put_number(bytes);
        line.put(b"\n");
        line.flush();
    }
}

/// A line of text for people, built without allocating memory.
struct Line {
    text: [u8; 128],
    len: usize,
}

impl Line {
    fn put(&mut self, bytes: &[u8]) {
        self.len = put(&mut self.text, self.len, bytes);
    }

    fn put_number(&mut self, number: u64) {
        self.len = put_number(&mut self.text, self.len, number);
    }

    fn flush(&mut self) {
        write_all(2, self.text.get(..self.len).unwrap_or_default());
        self.len = 0;
    }
}
