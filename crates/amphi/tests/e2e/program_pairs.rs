//! Real programs that work together through two mounts: SQLite, git, make.

use crate::harness::{Daemon, Place};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Starts a shell script in `dir`.
fn start(dir: &Path, script: &str) -> Child {
    Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash starts")
}

/// Waits for a script, and returns its output. Panics with its errors if it failed.
fn end(what: &str, child: Child) -> String {
    let out = child.wait_with_output().expect("wait");
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{what}: {}\n{text}{errors}", out.status);
    text.trim().to_string()
}

fn shell(dir: &Path, what: &str, script: &str) -> String {
    end(what, start(dir, script))
}

fn pair(place: &Place) -> (Daemon, [Daemon; 2], [PathBuf; 2]) {
    let server = place.server(&["--targets", "3"]);
    let mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    (server, mounts, [place.path("a"), place.path("b")])
}

fn stop(place: &Place, server: Daemon, mounts: [Daemon; 2]) {
    mounts.into_iter().for_each(Daemon::stop);
    server.stop();
    place.fsck();
}

/// Goal: locks, data and names are coherent enough for a database: none of the increments that two mounts make at the
/// same time is lost, and the file is sound. Method: SQLite with its default rollback journal, 60 transactions on each
/// mount.
#[test]
fn sqlite_counts_right_on_two_mounts() {
    let place = Place::new();
    let (server, mounts, [a, b]) = pair(&place);
    shell(
        &a,
        "make the database",
        r#"sqlite3 c.db "CREATE TABLE c(n INTEGER, who TEXT); INSERT INTO c VALUES(0, '');""#,
    );
    let script = |who: &str| {
        format!(
            r#"for i in $(seq 60); do
                 echo "BEGIN IMMEDIATE; UPDATE c SET n = n + 1 WHERE n >= 0; INSERT INTO c VALUES(-1, '{who}$i'); COMMIT;"
               done | sqlite3 -bail -cmd '.timeout 120000' c.db"#
        )
    };
    let (one, two) = (start(&a, &script("a")), start(&b, &script("b")));
    end("SQLite on the first mount", one);
    end("SQLite on the second mount", two);
    for m in [&a, &b] {
        let read = |sql: &str| shell(m, sql, &format!("sqlite3 -cmd '.timeout 60000' c.db '{sql}'"));
        assert_eq!(read("SELECT n FROM c WHERE n >= 0"), "120");
        assert_eq!(read("SELECT count(DISTINCT who) FROM c WHERE n = -1"), "120");
        assert_eq!(read("PRAGMA integrity_check"), "ok");
    }
    stop(&place, server, mounts);
}

/// Goal: a repository made and packed on one mount is sound on the other, and the other way round. Method: init,
/// commit, gc on the first; fsck, clone and commit on the second; pull on the first.
#[test]
fn git_on_one_mount_and_fsck_on_the_other() {
    let place = Place::new();
    let (server, mounts, [a, b]) = pair(&place);
    let me = "git config user.name test; git config user.email test@localhost; git config gc.auto 0; git config core.fsync none";
    shell(
        &a,
        "make a repository",
        &format!(
            "git init -q -b main repo; cd repo; {me}; mkdir -p src/deep; \
             for i in $(seq 120); do seq $i > src/f$i; seq $((i * 7)) > src/deep/g$i; done; \
             git add .; git commit -qm one; git gc -q; echo more >> src/f1; git commit -qam two"
        ),
    );
    shell(
        &b,
        "check it",
        "cd repo; git fsck --full --strict 2>&1; test -z \"$(git status --porcelain)\"; git log --oneline | wc -l | grep -qx 2",
    );
    shell(
        &b,
        "clone and change it",
        &format!("git clone -q --no-hardlinks repo clone; cd clone; {me}; echo other > src/f2; git commit -qam three"),
    );
    shell(
        &a,
        "take the change over",
        "cd repo; git pull -q ../clone main; git fsck --full 2>&1; grep -qx other src/f2",
    );
    shell(
        &b,
        "see it",
        "cd repo; test -z \"$(git status --porcelain)\"; git log --oneline | wc -l | grep -qx 3; diff -r src ../clone/src",
    );
    stop(&place, server, mounts);
}

/// Goal: a build that runs on two mounts at once makes one program, and this program is right. Method: 24 C files. A
/// parallel make builds half of the objects on each mount. The objects are linked on one mount, and the program is run
/// on both.
#[test]
fn make_on_two_mounts_at_once() {
    let place = Place::new();
    let (server, mounts, [a, b]) = pair(&place);
    shell(
        &a,
        "write the sources",
        r#"mkdir build; cd build
           for i in $(seq 24); do printf '#include "all.h"\nint f%d(int x) { return x + %d; }\n' $i $i > f$i.c; done
           for i in $(seq 24); do echo "int f$i(int);"; done > all.h
           { echo '#include <stdio.h>'; echo '#include "all.h"'; echo 'int main(void) { int x = 0;'
             for i in $(seq 24); do echo "x = f$i(x);"; done; echo 'printf("%d\n", x); return 0; }'; } > main.c
           { printf 'prog: main.o'; for i in $(seq 24); do printf ' f%d.o' $i; done; printf '\n\tgcc -o $@ $^\n'
             printf '%%.o: %%.c all.h\n\tgcc -c -o $@ $<\n'
             printf 'odd:'; for i in $(seq 1 2 24); do printf ' f%d.o' $i; done; printf '\neven:'
             for i in $(seq 2 2 24); do printf ' f%d.o' $i; done; printf '\n'; } > Makefile"#,
    );
    let (odd, even) = (start(&a.join("build"), "make -s -j2 odd"), start(&b.join("build"), "make -s -j2 even"));
    end("make on the first mount", odd);
    end("make on the second mount", even);
    let made = shell(&b.join("build"), "link", "make -j2 prog");
    assert!(!made.contains("-o f"), "objects made on the other mount are up to date here:\n{made}");
    for m in [&a, &b] {
        assert_eq!(shell(&m.join("build"), "run", "./prog"), "300");
        assert!(shell(&m.join("build"), "make again", "make -j2 prog").contains("up to date"));
    }
    stop(&place, server, mounts);
}
