//! `amphi bench idle`: memory and processor time of an embedded cluster that nobody uses.

use super::Run;
use super::clock::{now, pause};
use super::cluster::Cluster;
use super::report::{Finding, Goal, Table, digits, spread};
use super::turns::{Arm, alternate};
use amphi_host::failure::{During, Failure, Outcome};
use std::time::Duration;

/// Memory that an idle cluster may use.
const MEMORY_GOAL_MIB: f64 = 200.0;
/// Below this share of a core nobody notices: the timer ticks of an idle ring are 0.02 %.
const CPU_GOAL_PERCENT: f64 = 0.2;

/// Measures a fresh cluster, and one that worked before.
pub fn run(run: &mut Run) -> Outcome {
    let cluster = Cluster::up(&run.dir.join("idle"), &[])?;
    let pid = cluster.pid();
    let mut table = Table::new(
        "An idle embedded cluster with its mount (median and range)",
        &["state", "resident MiB", "proportional MiB", "goal", "% of a core", "goal"],
    );
    let window = Duration::from_millis(if run.quick { 300 } else { 1000 });
    for state in ["fresh", "after work"] {
        if state == "after work" {
            work(&cluster)?;
        }
        pause(Duration::from_millis(if run.quick { 500 } else { 7000 }));
        let arms = vec![
            Arm::new("resident", || memory_mib(pid, "Rss:")),
            Arm::new("proportional", || memory_mib(pid, "Pss:")),
            Arm::new("processor", || cpu_percent(pid, window)),
        ];
        let series = alternate(run, state, arms)?;
        let (memory, cpu) = (Goal::AtMost(MEMORY_GOAL_MIB), Goal::AtMost(CPU_GOAL_PERCENT));
        // Memory of the cache after work is in use and bounded by its own limit.
        let memory_goal = (state == "fresh").then_some(memory);
        table.row(vec![
            state.into(),
            spread(&series[0]),
            spread(&series[1]),
            memory_goal.map_or_else(|| "-".into(), |g| g.show(series[0].median())),
            format!("{:.3} ({:.3}-{:.3})", series[2].median(), series[2].range().0, series[2].range().1),
            cpu.show(series[2].median()),
        ]);
        let found = Finding::new("idle", format!("memory, {state}"))
            .series("resident_mib", &series[0])
            .series("proportional_mib", &series[1]);
        run.report.findings.push(match memory_goal {
            Some(goal) => found.goal(series[0].median(), goal),
            None => found.value(series[0].median()),
        });
        run.report.findings.push(
            Finding::new("idle", format!("processor, {state}"))
                .with("window_ms", window.as_millis() as u64)
                .series("percent_of_a_core", &series[2])
                .goal(series[2].median(), cpu),
        );
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |d| d.count());
    table.note(format!(
        "{threads} threads. After work: 1,000 files made, read and removed, {} MiB streamed; its cache stays.",
        digits(64.0)
    ));
    run.show(&table);
    cluster.stop()
}

fn work(cluster: &Cluster) -> Outcome {
    let dir = cluster.mount.join("work");
    std::fs::create_dir(&dir).during(|| format!("make {}", dir.display()))?;
    for i in 0..1000 {
        let path = dir.join(i.to_string());
        std::fs::write(&path, [7u8; 1000]).during(|| format!("write {}", path.display()))?;
        std::fs::read(&path).during(|| format!("read {}", path.display()))?;
    }
    std::fs::remove_dir_all(&dir).during(|| format!("remove {}", dir.display()))?;
    super::stream::prepare(&cluster.mount.join("streamed"), 64 << 20)
}

/// A line of the kernel's sum over the process's memory, MiB.
pub fn memory_mib(pid: u32, line: &str) -> Outcome<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).during(|| format!("read {path}"))?;
    let value = text.lines().find_map(|l| l.strip_prefix(line)?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    value.map(|kib| kib / 1024.0).ok_or_else(|| Failure::broken(format!("{path} has no line {line}")))
}

/// Processor time of all threads over `window`, in percent of one core.
fn cpu_percent(pid: u32, window: Duration) -> Outcome<f64> {
    let before = cpu_ns(pid)?;
    let start = now();
    pause(window);
    let passed = start.elapsed().as_nanos() as f64;
    Ok(cpu_ns(pid)?.saturating_sub(before) as f64 / passed * 100.0)
}

/// Nanoseconds that the process's threads ran.
pub fn cpu_ns(pid: u32) -> Outcome<u64> {
    let dir = format!("/proc/{pid}/task");
    let tasks = std::fs::read_dir(&dir).during(|| format!("read {dir}"))?;
    let of_task = |path: std::path::PathBuf| -> Option<u64> {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Ok(tasks.flatten().filter_map(|t| of_task(t.path())).sum())
}
