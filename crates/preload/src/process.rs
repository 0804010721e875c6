//! Functions after which this library has to stop its work: a child that shares memory but not descriptors, threads
//! with descriptors of their own, system calls that are forbidden.

use crate::real::{Real, absent, real};
use crate::sizes;
use amphi_attach::{turn_off, turn_posts_off};
use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

pub(crate) static UNSHARE: Real = Real::new(c"unshare");
pub(crate) static PRCTL: Real = Real::new(c"prctl");

pub(crate) static SETRLIMIT: Real = Real::new(c"setrlimit64");
pub(crate) static PRLIMIT: Real = Real::new(c"prlimit64");

/// A limit on the length of files is the kernel's to judge.
fn limits(what: c_uint, new: *const c_void) {
    if what == libc::RLIMIT_FSIZE && !new.is_null() {
        turn_posts_off();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(what: c_uint, new: *const c_void) -> c_int {
    limits(what, new);
    real!(SETRLIMIT, fn(c_uint, *const c_void) -> c_int, (what, new), else absent())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(what: c_uint, new: *const c_void) -> c_int {
    // SAFETY: the same function where limits have 64 bits.
    unsafe { setrlimit64(what, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit64(pid: c_int, what: c_uint, new: *const c_void, old: *mut c_void) -> c_int {
    limits(what, new);
    real!(PRLIMIT, fn(c_int, c_uint, *const c_void, *mut c_void) -> c_int, (pid, what, new, old), else absent())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit(pid: c_int, what: c_uint, new: *const c_void, old: *mut c_void) -> c_int {
    // SAFETY: the same function where limits have 64 bits.
    unsafe { prlimit64(pid, what, new, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_FILES != 0 {
        // From now on a number may mean different files in different threads.
        turn_off();
    }
    real!(UNSHARE, fn(c_int) -> c_int, (flags), else absent())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        filters_calls();
    }
    real!(
        PRCTL,
        fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int,
        (option, a, b, c, d),
        else absent()
    )
}

/// Called before a filter of system calls is installed. Behind it, calls that the program does not make itself may end
/// it.
extern "C" fn filters_calls() {
    sizes::ask_for_the_last_time();
    turn_off();
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// The function of this name in libc.
    fn __errno_location() -> *mut c_int;
}

/// The child runs in the memory and on the stack of its parent. So this can be no function that returns twice through a
/// frame: the return address is kept in a register over the call, as libc does. The parent continues when the child no
/// longer uses its memory; until then the counter tells every thread not to identify descriptors.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> c_int {
    core::arch::naked_asm!(
        "mov rdx, qword ptr [rip + {vforks}@GOTPCREL]",
        "lock inc dword ptr [rdx]",
        "pop rdi",
        "mov eax, 58",
        "syscall",
        "push rdi",
        "test eax, eax",
        "jz 2f",
        "lock dec dword ptr [rdx]",
        "cmp rax, -4095",
        "jae 3f",
        "2:",
        "ret",
        "3:",
        "neg eax",
        "push rax",
        "call {errno}@PLT",
        "pop rcx",
        "mov dword ptr [rax], ecx",
        "mov rax, -1",
        "ret",
        vforks = sym amphi_attach::VFORKS,
        errno = sym __errno_location,
    )
}

/// As `vfork`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn __vfork() -> c_int {
    core::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

/// Has the effect of libc's function, and turns the library off before a filter of system calls is installed. Without a
/// frame, because some calls return on another stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall(number: c_long) -> c_long {
    core::arch::naked_asm!(
        "cmp rdi, 317",
        "jne 4f",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {filters}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "4:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "neg eax",
        "push rax",
        "call {errno}@PLT",
        "pop rcx",
        "mov dword ptr [rax], ecx",
        "mov rax, -1",
        "ret",
        filters = sym filters_calls,
        errno = sym __errno_location,
    )
}
