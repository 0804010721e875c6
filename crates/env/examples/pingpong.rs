//! Prints, as JSON lines, the round trip of a 64-byte message over a Unix and a TCP socket between two threads
//! that both spin, one where both park, the streaming rate of 1 MiB payloads, and the CPU time that an idle
//! environment uses in one second.

use amphi_env::{Buf, Conn, Env, Listener, RealEnv, Rx, Tx};
use std::sync::mpsc;
use std::time::Duration;

const ROUNDS: usize = 100_000;
const STREAMED: usize = 2_000;

fn pair(addr: String, spin: Duration, rounds: usize, payload: usize) -> Vec<u64> {
    let (tell, told) = mpsc::channel();
    let server = std::thread::Builder::new().name("server".into()).spawn(move || {
        RealEnv::run(spin, |env| async move {
            let listener = env.listen(&addr).await.expect("listen");
            tell.send(listener.local_addr()).expect("client waits");
            let (mut tx, mut rx) = listener.accept().await.expect("accept").split();
            let (mut head, mut body) = (Buf::zeroed(64), Buf::zeroed(payload));
            for _ in 0..rounds {
                let r;
                (r, head) = rx.recv_exact(head).await;
                r.expect("receive");
                if payload > 0 {
                    let r;
                    (r, body) = rx.recv_exact(body).await;
                    r.expect("receive");
                }
                let r;
                (r, head, _) = tx.send(head, None).await;
                r.expect("send");
            }
        })
    });
    let addr = told.recv().expect("address");
    let times = RealEnv::run(spin, |env| async move {
        let (mut tx, mut rx) = env.dial(&addr).await.expect("dial").split();
        let mut times = Vec::with_capacity(rounds);
        let (mut head, mut body) = (Buf::zeroed(64), (payload > 0).then(|| Buf::zeroed(payload)));
        for _ in 0..rounds {
            let start = env.now();
            let r;
            (r, head, body) = tx.send(head, body).await;
            r.expect("send");
            let r;
            (r, head) = rx.recv_exact(head).await;
            r.expect("receive");
            times.push(env.now().0 - start.0);
        }
        times
    });
    server.expect("thread").join().expect("server");
    times
}

fn percentile(times: &mut [u64], p: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * p / 100] as f64 / 1000.0
}

fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e6
}

fn main() {
    let dir = std::env::temp_dir().join(format!("amphi-pingpong-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("directory");
    for (kind, addr) in [("unix", format!("unix:{}/s", dir.display())), ("tcp", "tcp:127.0.0.1:0".to_string())] {
        for (mode, spin, rounds) in [("spin", Duration::MAX, ROUNDS), ("park", Duration::ZERO, ROUNDS / 10)] {
            let mut t = pair(addr.clone(), spin, rounds, 0);
            let (p50, p99) = (percentile(&mut t, 50), percentile(&mut t, 99));
            println!(
                "{{\"bench\":\"pingpong\",\"socket\":\"{kind}\",\"mode\":\"{mode}\",\"p50_us\":{p50:.2},\"p99_us\":{p99:.2}}}"
            );
        }
        for payload in [64 << 10, 1 << 20] {
            let t = pair(addr.clone(), Duration::from_micros(50), STREAMED, payload);
            let mib_s = (payload * STREAMED) as f64 / (1 << 20) as f64 / (t.iter().sum::<u64>() as f64 / 1e9);
            println!("{{\"bench\":\"stream\",\"socket\":\"{kind}\",\"payload_bytes\":{payload},\"mib_s\":{mib_s:.0}}}");
        }
    }
    let idle = RealEnv::run(Duration::from_micros(50), |env| async move {
        env.sleep(Duration::from_millis(10)).await;
        let before = cpu_ms();
        env.sleep(Duration::from_secs(1)).await;
        cpu_ms() - before
    });
    println!("{{\"bench\":\"idle\",\"cpu_ms_per_s\":{idle:.3}}}");
    let _ = std::fs::remove_dir_all(&dir);
}
