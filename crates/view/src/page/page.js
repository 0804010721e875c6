"use strict";
// The page of `amphi top --web`. Functions above `start` turn samples (docs/json/top.json) into text and touch nothing
// else; `start` asks for samples and puts the text into the page.

// Samples that are kept, seconds, and the spans of graphs.
const KEPT_S = 300;
const SPANS_S = [60, 120, KEPT_S];
const COLORS = ["var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)", "var(--f)"];

// Room beside a graph.
const LEFT = 74, RIGHT = 8;

const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

function bytes(n) {
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  while (n >= 1000 && unit < units.length - 1) { n /= 1024; unit++; }
  return `${n < 100 && unit > 0 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

function count(n) {
  if (n >= 1e6) return `${(n / 1e6).toFixed(2)} M`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(1)} k`;
  return n >= 10 || n === Math.trunc(n) ? String(Math.round(n)) : n.toFixed(1);
}

function micros(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(1)} s`;
  return us >= 1000 ? `${(us / 1000).toFixed(1)} ms` : us >= 10 ? `${Math.round(us)} µs` : `${us.toFixed(1)} µs`;
}

function age(s) {
  return s >= 172800 ? `${Math.round(s / 86400)} d` : s >= 7200 ? `${Math.round(s / 3600)} h`
    : s >= 120 ? `${Math.round(s / 60)} min` : `${Math.round(s)} s`;
}

const percent = (share) => share < 9.95 ? `${share.toFixed(1)} %` : `${Math.round(share)} %`;

// The smallest round number from `most` on: 1, 2 or 5 times a power of two or ten.
function ceiling(most, binary) {
  if (!(most > 0)) return 1;
  const base = binary ? 1024 : 1000;
  let unit = 1;
  while (most / unit >= base) unit *= base;
  for (const step of [1, 2, 5, 10, 20, 50, 100, 200, 500]) if (most <= step * unit) return step * unit;
  return base * unit;
}

// The span of a graph of samples of these times, seconds.
const spanOf = (times) => SPANS_S.find((span) => times.length === 0 || times[0] >= -span) || KEPT_S;

// A graph over the last minutes as SVG. `series`: name, color, values; `times`: seconds before now, ascending to 0.
function graph(times, series, { show, binary = true, stacked = false, width = 760, height = 190, at = null }) {
  const left = LEFT, right = width - RIGHT, top = 8, bottom = height - 22, span = spanOf(times);
  const sums = times.map((_, i) => series.reduce((sum, s) => sum + s.values[i], 0));
  const most = ceiling(Math.max(1e-9, ...(stacked ? sums : series.flatMap((s) => s.values))), binary);
  const x = (time) => right + (right - left) * Math.max(-span, time) / span;
  const y = (value) => bottom - (bottom - top) * value / most;
  const point = (i, value) => `${x(times[i]).toFixed(1)},${y(value).toFixed(1)}`;
  let out = `<svg viewBox="0 0 ${width} ${height}" role="img">`;
  for (let part = 0; part <= 4; part++) {
    const value = most * part / 4;
    out += `<line class="grid" x1="${left}" x2="${right}" y1="${y(value)}" y2="${y(value)}"/>`;
    if (part % 2 !== 0) continue;
    out += `<text x="${left - 8}" y="${y(value) + 4}" text-anchor="end">${escaped(show(value))}</text>`;
  }
  const step = span > 60 ? 60 : 20;
  for (let back = 0; back <= span; back += step) {
    const anchor = back === 0 ? "end" : "middle";
    const label = back === 0 ? "now" : step === 60 ? `-${back / 60} min` : `-${back} s`;
    out += `<text x="${x(-back)}" y="${bottom + 16}" text-anchor="${anchor}">${label}</text>`;
  }
  const below = times.map(() => 0);
  for (const s of series) {
    const floor = below.slice();
    const tops = s.values.map((value, i) => (stacked ? (below[i] += value) : value));
    const line = tops.map((value, i) => point(i, value)).join(" ");
    const ground = floor.map((value, i) => point(i, stacked ? value : 0)).reverse().join(" ");
    if (times.length > 0) {
      out += `<polygon points="${line} ${ground}" fill="${s.color}" fill-opacity="${stacked ? 0.55 : 0.12}"/>`;
      out += `<polyline points="${line}" fill="none" stroke="${s.color}" stroke-width="1.6" stroke-linejoin="round"/>`;
    }
  }
  if (at !== null && at < times.length) {
    const cross = x(times[at]).toFixed(1);
    out += `<line class="cross" x1="${cross}" x2="${cross}" y1="${top}" y2="${bottom}"/>`;
  }
  return out + "</svg>";
}

// Numbers of one moment above a graph.
function legend(series, i, show, more = "") {
  const one = (s) => `<div><span class="key" style="background:${s.color}"></span>${escaped(s.name)}<br>` +
    `<b>${escaped(i < 0 ? "-" : show(s.values[i]))}</b></div>`;
  return `<div class="now">${series.map(one).join("")}${more}</div>`;
}

function bar(share, color) {
  const width = Math.max(0, Math.min(100, share));
  return `<div class="bar"><i style="width:${width.toFixed(1)}%;background:${color}"></i></div>`;
}

const row = (name, share, color, text) =>
  `<div class="row"><span>${escaped(name)}</span>${bar(share, color)}<span>${escaped(text)}</span></div>`;

const nothing = (text) => `<p class="soft">${escaped(text)}</p>`;

// A table; columns: title, text of an item, whether it is a number.
function table(items, columns, empty) {
  if (items.length === 0) return nothing(empty);
  const kind = (column) => (column[2] ? ' class="n"' : "");
  const head = columns.map((column) => `<th${kind(column)}>${escaped(column[0])}</th>`).join("");
  const cells = (item) => columns.map((column) => `<td${kind(column)}>${column[1](item)}</td>`).join("");
  return `<table><tr>${head}</tr>${items.map((item) => `<tr>${cells(item)}</tr>`).join("")}</table>`;
}

const series = (all, kinds) => kinds.map(([name, of], i) => ({ name, color: COLORS[i], values: all.map(of) }));
const atLeast = (n, text) => (n > 0 ? escaped(text) : '<span class="soft">-</span>');

// The parts of the page, each a function of all samples, their times, and which of them is pointed at.
const PARTS = {
  found: (all, times, i) => all[i].findings.map((f) => {
    const [kind, word] = f.weight === "trouble" ? ["found trouble", "Trouble"] : ["found", "Slow"];
    const advice = f.advice ? `<br><span class="soft">${escaped(f.advice)}</span>` : "";
    return `<div class="${kind}"><b>${word}:</b> ${escaped(f.what)}${advice}</div>`;
  }).join(""),

  rates: (all, times, i, at) => {
    const lines = series(all, [["read", (s) => s.read.bytes_per_s], ["written", (s) => s.write.bytes_per_s]]);
    const show = (n) => `${bytes(n)}/s`;
    const sides = [["reads", all[i].read], ["writes", all[i].write]];
    const more = sides.map(([name, side]) => {
      const often = side.requests_per_s, size = often > 0 ? bytes(side.bytes_per_s / often) : "-";
      return `<div><span class="soft">${name}</span><br><b>${count(often)}/s</b> <span class="soft">of ${size}</span></div>`;
    });
    return legend(lines, i, show, more.join("")) + graph(times, lines, { show, at });
  },

  unstable: (all, times, i, at) => {
    const lines = series(all, [
      ["in this mount", (s) => Math.max(0, s.cache_dirty_bytes - s.writeback_flight_bytes)],
      ["on its way", (s) => s.writeback_flight_bytes],
      ["in the servers, not on their disks", (s) => s.servers_unstable_bytes],
    ]);
    const text = '<p class="soft">A killed mount loses the first two, power loss of a server the third; fsync and ' +
      "<code>amphi sync</code> make all of it stable.</p>";
    return legend(lines, i, bytes) + graph(times, lines, { show: bytes, stacked: true, height: 170, at }) + text;
  },

  limits: (all, times, i) => {
    const color = (share) => (share >= 90 ? "var(--bad)" : share >= 60 ? "var(--b)" : "var(--a)");
    const show = (l, n) => (/bytes|copies|payload/.test(l.what) ? bytes(n) : count(n));
    const one = (l) => row(l.what, l.share_percent, color(l.share_percent), percent(l.share_percent)) +
      `<div class="soft">${escaped(show(l, l.rate))}/s of ${escaped(show(l, l.limit))}/s</div>`;
    return all[i].limits.map(one).join("") || nothing("Not measured: run amphi calibrate on this mount, which takes " +
      "less than a minute; a calibration of another machine, or an old one, does not count.");
  },

  ways: (all, times, i) => [["read", all[i].read], ["write", all[i].write]].map(([name, side]) => {
    const most = Math.max(1, side.bytes_per_s);
    const color = { direct: "var(--b)", buffered: "var(--a)", cache: "var(--d)" };
    const one = (w) =>
      row(`${w.way} ${w.reason}`, 100 * w.bytes_per_s / most, color[w.way], `${count(w.requests_per_s)}/s`);
    return `<div class="soft">${name}</div>` + (side.ways.slice(0, 6).map(one).join("") || nothing("none"));
  }).join(""),

  files: (all, times, i) => table(all[i].files.slice(0, 12), [
    ["file", (f) => escaped(f.file)],
    ["read", (f) => atLeast(f.read_bytes_per_s, `${bytes(f.read_bytes_per_s)}/s`), true],
    ["written", (f) => atLeast(f.write_bytes_per_s, `${bytes(f.write_bytes_per_s)}/s`), true],
    ["requests", (f) => atLeast(f.requests_per_s, `${count(f.requests_per_s)}/s`), true],
    ["waits", (f) => atLeast(f.lock_wait_s_per_s, percent(100 * f.lock_wait_s_per_s)), true],
    ["wanted", (f) => atLeast(f.wanted_by_others_per_s, `${count(f.wanted_by_others_per_s)}/s`), true],
    ["dirty", (f) => atLeast(f.dirty_bytes, bytes(f.dirty_bytes)), true],
    ["open", (f) => count(f.open), true],
  ], "No open file has anything to do."),

  contention: (all, times, i, at) => {
    const lines = series(all, [
      ["waits for locks", (s) => 100 * s.contention.lock_wait_s_per_s],
      ["locks to and fro", (s) => 100 * s.contention.lock_ping_pong_s_per_s],
    ]);
    const c = all[i].contention;
    const rows = [["calls that waited", c.lock_waits_per_s], ["locks given back", c.lock_callbacks_per_s],
      ["conflicts at servers", c.lock_conflicts_per_s], ["to and fro", c.lock_ping_pongs_per_s],
      ["writers held", c.writers_held_per_s]];
    const form = { show: percent, binary: false, width: 380, height: 130, at };
    return legend(lines, i, percent) + graph(times, lines, form) +
      table(rows, [["", (r) => escaped(r[0])], ["", (r) => `${count(r[1])}/s`, true]], "");
  },

  operations: (all, times, i) => {
    const rows = Object.entries(all[i].operations_per_s);
    const most = Math.max(1, ...rows.map((r) => r[1]));
    return rows.map(([name, n]) => row(name, 100 * n / most, "var(--c)", `${count(n)}/s`)).join("");
  },

  latencies: (all, times, i) => table(all[i].latencies, [
    ["", (l) => escaped(l.what)],
    ["a second", (l) => count(l.per_s), true],
    ["time", (l) => (l.mean_us === undefined
      ? `half ≤ ${micros(l.p50_at_most_us)}, 99 % ≤ ${micros(l.p99_at_most_us)}` : `mean ${micros(l.mean_us)}`), true],
  ], "Nothing was timed."),

  jobs: (all, times, i) => table(all[i].jobs.slice(0, 10), [
    ["job", (j) => escaped(j.job)],
    ["read", (j) => atLeast(j.read_bytes_per_s, `${bytes(j.read_bytes_per_s)}/s`), true],
    ["written", (j) => atLeast(j.write_bytes_per_s, `${bytes(j.write_bytes_per_s)}/s`), true],
    ["open", (j) => count(j.open), true],
  ], "No job has opened a file on this mount."),

  servers: (all, times, i) => table(all[i].servers, [
    ["server", (s) => escaped(s.server)],
    ["", (s) => (s.up ? `<span class="soft">up ${age(s.uptime_s)}</span>`
      : '<b style="color:var(--bad)">no answer</b>')],
    ["read", (s) => `${bytes(s.read_bytes_per_s)}/s`, true],
    ["written", (s) => `${bytes(s.write_bytes_per_s)}/s`, true],
    ["disk reads, writes, syncs",
      (s) => [s.disk_reads_per_s, s.disk_writes_per_s, s.disk_syncs_per_s].map(count).join(", "), true],
    ["not stable", (s) => bytes(s.unstable_bytes), true],
  ], "No server answers.") + "<br>" + table(all[i].targets.slice(0, 64), [
    ["target", (t) => `${count(t.target)} <span class="soft">${escaped(t.server)}</span>`],
    ["space", (t) => bar(t.used_percent, t.used_percent >= 90 ? "var(--bad)" : "var(--d)")],
    ["used", (t) => `${percent(t.used_percent)} of ${bytes(t.space_bytes)}`, true],
    ["log", (t) => percent(t.log_percent), true],
    ["damaged", (t) => atLeast(t.damaged_blocks, count(t.damaged_blocks)), true],
  ], "No target is known."),

  mounts: (all, times, i) => table(all[i].mounts, [
    ["mount", (m) => escaped(m.mount)],
    ["", (m) => (m.connected ? "" : '<b style="color:var(--warn)">not connected</b>')],
    ["open", (m) => count(m.open), true],
    ["locks", (m) => count(m.locks), true],
  ], "No mount is known."),
};

// Everything that is shown, by the id of its place. `at`: which sample is pointed at, or null for the last.
function drawn(all, times, at) {
  const last = all[all.length - 1];
  const i = at === null ? all.length - 1 : at;
  const parts = {};
  for (const [id, part] of Object.entries(PARTS)) parts[id] = part(all, times, i, at);
  const up = last.servers.filter((s) => s.up).length;
  parts.name = escaped(last.mount);
  parts.cluster = `${up} of ${last.servers.length} servers up, ${last.targets.length} targets, ` +
    `${last.mounts.filter((m) => m.connected).length} mounts`;
  return parts;
}

function start() {
  // Behind the hash, so that it is in no request line and no log.
  const token = decodeURIComponent(location.hash.slice(1)) || sessionStorage.getItem("token") || "";
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
  const place = (id) => document.getElementById(id);
  let all = [], last = 0, pointed = null, paused = false;
  const draw = () => {
    if (all.length === 0) return;
    const now = all[all.length - 1].at;
    const at = pointed === null ? null : Math.max(0, Math.min(all.length - 1, pointed));
    const parts = drawn(all.map((s) => s.sample), all.map((s) => s.at - now), at);
    for (const [id, text] of Object.entries(parts)) if (place(id).innerHTML !== text) place(id).innerHTML = text;
  };
  const say = (text, bad) => { place("state").innerHTML = `<b class="${bad ? "bad" : ""}">${escaped(text)}</b>`; };
  const ask = async () => {
    try {
      const answer = await fetch(`v1/top?after=${last}`, { headers: { Authorization: `Bearer ${token}` } });
      if (answer.status === 401) return say("this page needs the address that amphi top has printed", true);
      if (!answer.ok) return say((await answer.text()).trim(), true);
      const got = await answer.json();
      if (got.last < last) all = [];
      last = got.last;
      if (!paused) all.push(...got.samples);
      all = all.filter((s) => s.at > got.now - KEPT_S - 5);
      say(got.failed ? got.failed : paused ? "paused" : "live", Boolean(got.failed));
      if (!paused) draw();
    } catch (e) {
      say("amphi top does not answer any more", true);
    } finally {
      setTimeout(ask, 1000);
    }
  };
  place("pause").onclick = () => {
    paused = !paused;
    place("pause").textContent = paused ? "Go on" : "Pause";
  };
  for (const id of ["rates", "unstable", "contention"]) {
    place(id).onmousemove = (event) => {
      const svg = event.target.closest("svg");
      if (!svg || all.length === 0) return;
      const box = svg.getBoundingClientRect();
      const width = svg.viewBox.baseVal.width, now = all[all.length - 1].at;
      const part = ((event.clientX - box.left) / box.width * width - LEFT) / (width - RIGHT - LEFT);
      const time = now - spanOf(all.map((s) => s.at - now)) * (1 - part);
      const distance = (s) => Math.abs(s.at - time);
      pointed = all.reduce((best, s, i) => (distance(s) < distance(all[best]) ? i : best), 0);
      draw();
    };
    place(id).onmouseleave = () => { pointed = null; draw(); };
  }
  ask();
}

if (typeof document !== "undefined") start();
