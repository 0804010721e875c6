//! The beginning and the end of the library in a program.
//!
//! Owns: the constructor, which finds the real functions and looks at `AMPHI_PRELOAD`, and what `report` prints.

use crate::real::Real;
use crate::{hints, process, reads, sizes, writes};
use amphi_attach::{counts, is_counting, set_counting, set_strict, turn_off, turn_posts_off, write_all};
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
    // SAFETY: the environment is whole, and no other thread runs yet.
    let said = unsafe { libc::getenv(c"AMPHI_PRELOAD".as_ptr()) };
    if said.is_null() {
        return;
    }
    // SAFETY: a value of the environment is a C string.
    for word in unsafe { CStr::from_ptr(said) }.to_bytes().split(|byte| *byte == b',') {
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
}

/// A line of text for people, built without allocating memory.
struct Line {
    text: [u8; 128],
    len: usize,
}

impl Line {
    fn put(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.text.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn put_number(&mut self, number: u64) {
        let mut divisor = 1;
        while number / divisor >= 10 {
            divisor *= 10;
        }
        while divisor > 0 {
            self.put(&[b'0' + (number / divisor % 10) as u8]);
            divisor /= 10;
        }
    }

    fn flush(&mut self) {
        write_all(2, self.text.get(..self.len).unwrap_or_default());
        self.len = 0;
    }
}
