//! Tests of buffers: reuse, content, and the rules of parts.

use super::*;
use proptest::prelude::*;

/// Goal: used memory is reused, but zeroed memory is always zero, also memory that the store cannot keep. Method: fill,
/// drop and allocate again, for each kind: heap, chunk and mapping, in sizes that no other test uses. Then more chunks
/// of a class are owned at once than the store keeps. One test, because all share one store.
#[test]
fn scratch_is_reused_and_zeroed_is_zero() {
    for len in [3 * ALIGN, (512 << 10) + 7, (7 << 20) + 5 * ALIGN] {
        let mut b = Buf::zeroed(len);
        assert!(b.iter().all(|&byte| byte == 0));
        b.fill(7);
        let memory = b.as_ptr();
        drop(b);
        let scratch = Buf::scratch(len);
        assert!(scratch.as_ptr() == memory || len == 3 * ALIGN, "{len} is not reused");
        drop(scratch);
        assert!(Buf::zeroed(len).iter().all(|&byte| byte == 0), "{len}");
    }
    let take = || (0..800).map(|_| Buf::zeroed(100 << 10)).collect::<Vec<Buf>>();
    let mut many = take();
    many.iter_mut().for_each(|b| b.fill(9));
    drop(many);
    assert!(take().iter().all(|b| b.iter().all(|&byte| byte == 0)));
}

/// Goal: memory that comes new from the system is distinguished from reused memory. Method: a mapping and a chunk of
/// sizes that no other test uses, for the first time, and again. Other tests take new memory meanwhile, so the test
/// reads the count more than once.
#[test]
fn new_memory_is_counted() {
    for len in [11 << 20, (900 << 10) + 1] {
        let before = memory::new_bytes();
        let held: Vec<Buf> = (0..10).map(|_| Buf::zeroed(len)).collect();
        assert!(len < 1 << 20 || memory::new_bytes() >= before + 10 * len as u64);
        drop(held);
        let again = || {
            let before = memory::new_bytes();
            drop(Buf::scratch(len));
            memory::new_bytes() == before
        };
        assert!((0..1000).any(|_| again()), "{len}: what is used again is not new");
    }
}

/// Goal: memory of another owner is used in place, never changed, and returned with its last part. Method: parts of a
/// vector, one of which is changed.
#[test]
fn lent_memory_comes_back_unchanged() {
    let memory: Vec<u8> = (0..3 * ALIGN).map(|i| i as u8).collect();
    let (held, from) = (Arc::new(()), NonNull::from(&memory[100]));
    // SAFETY: the vector outlives the buffers, and nobody writes to it.
    let mut buf = unsafe { Buf::lent(from, 2 * ALIGN, held.clone()) };
    assert_eq!((buf.as_ptr(), &buf[..]), (from.as_ptr().cast_const(), &memory[100..100 + 2 * ALIGN]));
    let mut front = buf.split_to(5000);
    let place = front.as_ptr();
    front[0] ^= 1;
    assert!(front.as_ptr() != place && front[1..] == memory[101..5100]);
    assert_eq!(memory[100], 100);
    drop(front);
    assert_eq!(Arc::strong_count(&held), 2);
    let back = buf.split_to(1).join(buf).expect("neighbours");
    assert_eq!(&back[..], &memory[5100..100 + 2 * ALIGN]);
    drop(back);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Goal: buffers around the borders between the kinds are aligned, and writable to their ends.
#[test]
fn all_kinds_are_usable_to_the_end() {
    let mib = 1 << 20;
    for len in [
        1,
        ALIGN,
        (64 << 10) - 1,
        64 << 10,
        (64 << 10) + ALIGN + 1,
        mib - 1,
        mib,
        mib + ALIGN,
        mib + ALIGN + 1,
        5 * mib,
    ] {
        for mut b in [Buf::zeroed(len), Buf::scratch(len)] {
            b[len - 1] = 1;
            assert_eq!((b.as_ptr() as usize % ALIGN, b[len - 1]), (0, 1));
            assert!(b.capacity() >= len && b.capacity() < len + ALIGN);
        }
    }
}

/// Goal: parts of a buffer outlive the buffer from which they were cut, in any order of drops, and on other threads.
/// Method: a buffer is cut and the rest dropped; then two threads write and read the parts at the same time.
#[test]
fn parts_outlive_the_original() {
    let mut whole = Buf::zeroed(3 * ALIGN);
    whole[ALIGN] = 5;
    let (mut front, mut middle) = (whole.split_to(ALIGN), whole.split_to(ALIGN));
    drop(whole);
    let other = std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            front.fill(1);
            front
        });
        middle[1] = 6;
        thread.join().expect("the other thread writes its part")
    });
    assert!(other.iter().all(|&b| b == 1));
    drop(other);
    assert_eq!(middle[..3], [5, 6, 0]);
}

/// Goal: no part reaches into another. Method: every move of a window out of a part's room panics.
#[test]
fn a_part_stays_in_its_room() {
    let parts = || {
        let mut back = Buf::padded(100, 8000);
        (back.split_to(4096 - 100), back)
    };
    let (front, back) = parts();
    assert_eq!((front.room(), back.room()), (0..4096, 4096..8192));
    assert_eq!((front.window(), back.window()), (100..4096, 4096..8100));
    for (at, window) in [(0, 0..4097), (1, 4095..5000), (1, 5000..8193)] {
        let moved = std::panic::catch_unwind(|| {
            let (front, back) = parts();
            let mut part = if at == 0 { front } else { back };
            part.set_window(window);
        });
        assert!(moved.is_err());
    }
}

/// Goal: only adjacent parts of one memory can be joined, and the joined buffer equals the original. Method: each wrong
/// combination once.
#[test]
fn only_neighbours_join() {
    let mut c = Buf::zeroed(3 * ALIGN);
    let (a, b) = (c.split_to(ALIGN), c.split_to(ALIGN));
    let (a, c) = a.join(c).expect_err("not neighbours");
    let (b, a) = b.join(a).expect_err("the wrong way round");
    let (b, foreign) = b.join(Buf::zeroed(ALIGN)).expect_err("another memory");
    let (_, mut b) = foreign.join(b).expect_err("another memory");
    b.narrow(1..ALIGN);
    let (a, mut b) = a.join(b).expect_err("a gap between the windows");
    b.set_window(b.room());
    let ab = a.join(b).expect("neighbours");
    let abc = ab.join(c).expect("neighbours");
    assert_eq!((abc.window(), abc.room()), (0..3 * ALIGN, 0..3 * ALIGN));
    assert!(matches!(abc.owner, Owner::Sole(_)), "it can be cut and joined again without leaving a trace");
}

/// Goal: a buffer whose other parts are gone stays within its own memory. Method: drop the first of three parts and
/// join the others.
#[test]
fn a_joined_rest_keeps_to_its_room() {
    let mut c = Buf::zeroed(3 * ALIGN);
    drop(c.split_to(ALIGN));
    let b = c.split_to(ALIGN);
    let bc = b.join(c).expect("neighbours");
    assert_eq!((bc.room(), bc.capacity()), (ALIGN..3 * ALIGN, 2 * ALIGN));
}

/// Goal: buffers stay small, since messages carry them.
#[test]
fn a_buffer_is_five_words() {
    assert_eq!((size_of::<Buf>(), size_of::<Option<Buf>>()), (40, 40));
}

proptest! {
    /// Goal: a buffer cut anywhere, written in parts and joined again holds what a vector would. Method: random cuts,
    /// each part filled with its number, dropped parts in between.
    #[test]
    fn cuts_and_joins_match_a_vector(pad in 0usize..4096, len in 0usize..20_000, cuts in proptest::collection::vec(0.0..1.0f64, 0..6)) {
        let mut rest = Buf::padded(pad, len);
        let mut model = vec![0u8; len];
        let mut parts = Vec::new();
        let mut at = 0;
        for (i, cut) in cuts.iter().enumerate() {
            let n = (cut * rest.len() as f64) as usize;
            let mut part = rest.split_to(n);
            part.fill(i as u8 + 1);
            model[at..at + n].fill(i as u8 + 1);
            at += n;
            parts.push(part);
        }
        parts.push(rest);
        let mut parts = parts.into_iter();
        let mut whole = parts.next().expect("at least the rest");
        for part in parts {
            whole = whole.join(part).expect("neighbours");
        }
        prop_assert_eq!(&whole[..], &model[..]);
        prop_assert_eq!(whole.window(), pad..pad + len);
    }
}

/// Goal: adjacent parts are passed on as one buffer without a copy, in parts that can be joined again. Nobody can
/// change them meanwhile, and a change of the passed-on buffer is made in a copy. Method: three parts of one memory,
/// shared, cut, joined, changed and dropped.
#[test]
fn neighbours_are_shared() {
    let mut c = Buf::zeroed(3 * ALIGN);
    let mut held: Vec<Arc<Buf>> = [c.split_to(ALIGN), c.split_to(ALIGN), c].map(Arc::new).to_vec();
    held.iter_mut().zip(1..).for_each(|(part, byte)| Arc::get_mut(part).expect("alone").fill(byte));
    assert!(held.iter().all(|part| !part.is_whole()));
    let first = held[0].as_ptr();
    assert!(Buf::shared([held[0].clone(), held[2].clone()]).is_none(), "there is one between");
    assert!(Buf::shared([held[1].clone(), held[0].clone()]).is_none(), "the wrong way round");
    assert!(Buf::shared([]).is_none());
    let mut all = Buf::shared(held.iter().cloned()).expect("neighbours");
    assert_eq!((all.as_ptr(), all.len(), all.room()), (first, 3 * ALIGN, 0..3 * ALIGN));
    let front = all.split_to(ALIGN + 100);
    assert_eq!((front.len(), front[ALIGN], all[0], all[2 * ALIGN - 101]), (ALIGN + 100, 2, 2, 3));
    let (all, front) = all.join(front).expect_err("the wrong way round");
    let mut all = front.join(all).expect("neighbours");
    assert_eq!((all.as_ptr(), all.len(), all.room()), (first, 3 * ALIGN, 0..3 * ALIGN));
    assert!(held.iter_mut().all(|part| Arc::get_mut(part).is_none()), "they are shared");
    let mut front = all.split_to(ALIGN + 100);
    front.narrow(5..50);
    all[0] = 77;
    assert_ne!(all.as_ptr(), held[1][100..].as_ptr(), "a change goes to a copy");
    assert_eq!((all.window(), all[0], all[1], held[1][100]), (100..2 * ALIGN, 77, 2, 2));
    assert_eq!(front[..], [1; 45]);
    drop(front);
    held.iter_mut().for_each(|part| Arc::get_mut(part).expect("alone again").fill(9));
    assert_eq!((all[1], all[2 * ALIGN - 101]), (2, 3));
    let alone = Arc::new(Buf::copy_of(&[5; 10]));
    let shared = Buf::shared([alone.clone()]).expect("one is its own neighbour");
    drop(alone);
    assert_eq!((shared[..].len(), shared[9]), (10, 5), "it holds what it shares");
}
