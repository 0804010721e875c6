//! Real programs on the mount: git, SQLite, the Rust compiler and the program it makes.

use super::done;
use super::stop::Stop;
use amphi_env::real::monotonic;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs a shell script in `dir`; its output is shown only if it fails.
fn shell(dir: &Path, what: &str, script: &str, stop: &Stop) -> Outcome<String> {
    let t = monotonic();
    let out = output(dir, script, stop)?;
    if !out.status.success() {
        let (o, e) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        return Err(Failure::broken(format!("{what} failed ({}):\n{o}{e}", out.status)));
    }
    done(what, t);
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// How often it is asked whether the demo is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a script to its end, or to that of the demo: then with all processes that it has started.
fn output(dir: &Path, script: &str, stop: &Stop) -> Outcome<Output> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(dir).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().during(|| "run bash".into())?;
    let group = Pid::from_child(&child);
    let (sender, ended) = channel();
    let waits = std::thread::Builder::new().name("bash".into());
    let waits = waits.spawn(move || sender.send(child.wait_with_output())).during(|| "wait for bash".into())?;
    let out = loop {
        match ended.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) if stop.is_wanted() => {
                let _ = kill_process_group(group, Signal::KILL);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(out) => break out.during(|| "wait for bash".into()),
            Err(RecvTimeoutError::Disconnected) => break Err(Failure::broken("nobody waits for bash")),
        }
    };
    let _ = waits.join();
    stop.check()?;
    out
}

const GIT: &str = r#"
cd tree
git init -q .
git config gc.auto 0
git config core.fsync none
find . -path ./.git -prune -o -type f -print | sort > ../all
head -3000 ../all > ../list
git add -f --pathspec-from-file=../list 2>/dev/null
git -c user.name=demo -c user.email=demo@localhost commit -q -m "the tree"
git fsck --full >/dev/null 2>&1
git diff --quiet HEAD
cd ..
git clone -q --no-hardlinks tree clone
while read -r f; do cmp -s "tree/$f" "clone/$f"; done < list
git -C clone status --porcelain | wc -l | grep -qx 0
rm -rf clone tree/.git all list
"#;

const SQLITE: &str = r#"
sqlite3 demo.db "PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, x INTEGER, s TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<100000)
INSERT INTO t SELECT i, i*i % 9973, hex(i*7919) FROM n; CREATE INDEX ix ON t(x);" >/dev/null
sqlite3 demo.db "UPDATE t SET x = x + 1 WHERE id % 3 = 0; DELETE FROM t WHERE id % 5 = 0; VACUUM;"
test "$(sqlite3 demo.db 'PRAGMA integrity_check;')" = ok
test "$(sqlite3 demo.db 'SELECT count(*) FROM t;')" = 80000
"#;

const BUILD: &str = r#"
mkdir build && cd build
cat > words.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    size_t lines = 0, bytes = 0;
    static char buffer[1 << 16];
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) { perror(argv[i]); return 1; }
        size_t n;
        while ((n = fread(buffer, 1, sizeof buffer, f)) > 0) {
            bytes += n;
            for (size_t k = 0; k < n; k++) lines += buffer[k] == '\n';
        }
        fclose(f);
    }
    printf("%zu %zu\n", lines, bytes);
    return 0;
}
C
printf 'words: words.o\n\tgcc -o $@ $<\nwords.o: words.c\n\tgcc -O2 -c -o $@ $<\n' > Makefile
make -s
find ../tree -type f '(' -name '*.rs' -o -name '*.h' ')' > all
head -500 all > list
test "$(./words $(cat list))" = "$(cat $(cat list) | wc -lc | awk '{print $1, $2}')"
if command -v cargo >/dev/null; then
  mkdir -p hello/src && cd hello
  printf '[package]\nname = "hello"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
  printf 'fn main() { println!("{}", (1..=20u64).product::<u64>()); }\n' > src/main.rs
  cargo build --quiet --offline --release 2>/dev/null
  test "$(target/release/hello)" = 2432902008176640000
fi
"#;

/// Runs all three on `mount`, which holds the tree in `tree/`.
pub fn run(mount: &Path, stop: &Stop) -> Outcome {
    shell(mount, "git: init, add, commit, fsck, clone, diff", GIT, stop)?;
    shell(mount, "SQLite: 100,000 rows in WAL mode, index, vacuum, check", SQLITE, stop)?;
    shell(mount, "C and Rust programs built and run from the mount", BUILD, stop)?;
    Ok(())
}
