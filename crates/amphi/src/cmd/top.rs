//! `amphi top`: what a mount and its cluster are doing, live, in a terminal, as JSON or in a browser.

mod looks;
mod web;

use crate::web::read_token;
use amphi_env::{Env, RealEnv};
use amphi_host::control;
use amphi_host::failure::{During, Outcome};
use amphi_view::screen::{Screen, lines, text};
use amphi_view::terminal::{History, draw};
use amphi_view::{Change, report};
use clap::Args;
use looks::{Looks, name_of};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shortest time between two samples, seconds: each sample asks every server.
const INTERVAL_MIN: f64 = 0.1;
/// Default address of the page: any free port, reachable from this machine only.
const WEB_DEFAULT: &str = "127.0.0.1:0";

/// Show what a mount is doing, live: rates, which way requests go and why, cache, servers, jobs, and what stands out.
///
/// Keys: 1 to 5 or Tab for the screens, q to leave. If standard output is no terminal, it prints one screen after the
/// other. With --web it serves a page with graphs, at an address that it prints.
#[derive(Args, Debug)]
pub struct Top {
    /// Mount point, or any file or directory there; default: the only mount here
    mount: Option<PathBuf>,
    /// Seconds between two samples
    #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,
    /// Print one sample and exit
    #[arg(long)]
    once: bool,
    /// Print N samples and exit
    #[arg(long, value_name = "N", conflicts_with = "once")]
    batch: Option<u64>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Serve a page with live graphs, and print its address; port 0 chooses a free port
    #[arg(
        long,
        value_name = "ADDR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = WEB_DEFAULT,
        conflicts_with_all = ["once", "batch", "json"]
    )]
    web: Option<SocketAddr>,
    /// File with the token that the page's readers have to know; readable by its user alone [default: a random one, of
    /// an address of this machine]
    #[arg(long, value_name = "FILE", requires = "web")]
    token: Option<PathBuf>,
    /// Serve the page, also to other machines, without a token
    #[arg(long, requires = "web", conflicts_with = "token")]
    open: bool,
}

impl Top {
    /// Takes samples until a signal or a key ends the command, or the wanted number is reached.
    pub fn run(self) -> Outcome {
        let path = control::find_mount(self.mount, "")?;
        let interval = Duration::from_secs_f64(self.interval.clamp(INTERVAL_MIN, 3600.0));
        if let Some(addr) = self.web {
            let token = self.token.as_deref().map(read_token).transpose()?;
            return web::serve(addr, &path, interval, token, self.open);
        }
        let looks = if self.once { Some(1) } else { self.batch };
        if looks.is_none() && !self.json && io::stdout().is_terminal() {
            return live(&path, interval);
        }
        print(&path, interval, looks, self.json)
    }
}

/// Prints samples to standard output.
fn print(path: &Path, interval: Duration, looks: Option<u64>, json: bool) -> Outcome {
    RealEnv::run(Duration::ZERO, |env| async move {
        let name = name_of(path);
        let mut all = Looks::begin(path, env.clone())?;
        let mut left = looks.unwrap_or(u64::MAX);
        while left > 0 {
            env.sleep(interval).await;
            let (before, after) = all.next()?;
            let change = Change { before: &before, after: &after };
            let shown = match json {
                true => format!("{}\n", report::json(&name, &change)),
                false => text(&lines(Screen::Overview, &name, &change)),
            };
            let mut out = io::stdout().lock();
            out.write_all(shown.as_bytes()).and_then(|()| out.flush()).during(|| "write to standard output".into())?;
            left -= 1;
        }
        Ok(())
    })
}

/// The action of a key.
enum Asked {
    Nothing,
    Show(Screen),
    End,
}

fn asked(event: &Event, shown: Screen) -> Asked {
    let Event::Key(key) = event else { return Asked::Nothing };
    if key.kind != KeyEventKind::Press {
        return Asked::Nothing;
    }
    let at = Screen::ALL.iter().position(|s| *s == shown).unwrap_or(0);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Asked::End,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Asked::End,
        KeyCode::Tab | KeyCode::Right => Asked::Show(Screen::ALL[(at + 1) % Screen::ALL.len()]),
        KeyCode::BackTab | KeyCode::Left => Asked::Show(Screen::ALL[(at + Screen::ALL.len() - 1) % Screen::ALL.len()]),
        KeyCode::Char(digit) => {
            let number = digit.to_digit(10).map_or(0, |n| n as usize);
            number.checked_sub(1).and_then(|n| Screen::ALL.get(n)).map_or(Asked::Nothing, |s| Asked::Show(*s))
        }
        _ => Asked::Nothing,
    }
}

/// Shows the screens in the terminal until a key ends it.
fn live(path: &Path, interval: Duration) -> Outcome {
    RealEnv::run(Duration::ZERO, |env| async move {
        let name = name_of(path);
        let mut looks = Looks::begin(path, env.clone())?;
        let (mut before, mut after) = (looks.before.clone(), looks.before.clone());
        let (mut screen, mut history) = (Screen::default(), History::default());
        let mut terminal = ratatui::try_init().during(|| "set up the terminal".into())?;
        let mut due = env.now().0 + interval.as_nanos() as u64;
        let done = loop {
            let change = Change { before: &before, after: &after };
            if let Err(e) = terminal.draw(|frame| draw(frame, screen, &name, &change, &history)) {
                break Err(e).during(|| "draw the screen".into());
            }
            let left = Duration::from_nanos(due.saturating_sub(env.now().0));
            match event::poll(left).and_then(|ready| if ready { event::read().map(Some) } else { Ok(None) }) {
                Ok(Some(event)) => match asked(&event, screen) {
                    Asked::Nothing => {}
                    Asked::Show(other) => screen = other,
                    Asked::End => break Ok(()),
                },
                Ok(None) => match looks.next() {
                    Ok(pair) => {
                        (before, after) = pair;
                        history.note(&Change { before: &before, after: &after });
                        due = env.now().0 + interval.as_nanos() as u64;
                    }
                    Err(e) => break Err(e),
                },
                Err(e) => break Err(e).during(|| "read a key".into()),
            }
        };
        ratatui::restore();
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    /// Goal: keys choose screens and end the program, and other keys do nothing. Method: a table.
    #[test]
    fn keys() {
        let press = |code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        let shows = |code, from, to| matches!(asked(&press(code), from), Asked::Show(s) if s == to);
        assert!(shows(KeyCode::Char('3'), Screen::Overview, Screen::Jobs));
        assert!(shows(KeyCode::Tab, Screen::Counters, Screen::Overview));
        assert!(shows(KeyCode::Left, Screen::Overview, Screen::Counters));
        assert!(matches!(asked(&press(KeyCode::Char('q')), Screen::Jobs), Asked::End));
        let control = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(matches!(asked(&control, Screen::Jobs), Asked::End));
        for code in [KeyCode::Char('9'), KeyCode::Char('x'), KeyCode::F(1)] {
            assert!(matches!(asked(&press(code), Screen::Jobs), Asked::Nothing));
        }
    }
}
