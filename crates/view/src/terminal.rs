//! The screen of a terminal: tabs, the last minutes as lines of bars, and the lines of the chosen screen.
//!
//! Owns: the layout. Does not own: keys and when it is drawn.

use crate::change::Change;
use crate::screen::{Screen, lines};
use crate::unit::bytes;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style};
use ratatui::widgets::{Paragraph, Sparkline, Tabs};

/// How many earlier samples are drawn.
const LOOKS_MAX: usize = 240;

/// Rates of the last looks, bytes a second, the newest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl History {
    /// Notes another look.
    pub fn note(&mut self, change: &Change<'_>) {
        for (all, prefix) in [(&mut self.reads, "read_"), (&mut self.writes, "write_")] {
            all.insert(0, change.total(prefix).1 as u64);
            all.truncate(LOOKS_MAX);
        }
    }
}

/// Draws one look.
pub fn draw(frame: &mut Frame<'_>, screen: Screen, name: &str, change: &Change<'_>, history: &History) {
    let parts = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(3),
    ]);
    let [tabs, reads, writes, _, rest] = parts.areas(frame.area());
    let names = Screen::ALL.iter().enumerate().map(|(n, s)| format!("{} {}", n + 1, s.name()));
    let names: Vec<String> = names.chain(["q quit".to_string()]).collect();
    let selected = Screen::ALL.iter().position(|s| *s == screen);
    frame.render_widget(Tabs::new(names).select(selected), tabs);
    for (area, what, all, color) in
        [(reads, "read", &history.reads, Color::Cyan), (writes, "written", &history.writes, Color::Green)]
    {
        let most = all.iter().copied().max().unwrap_or(0);
        let label = format!("{what:<8}at most {}/s", bytes(most as f64));
        let [text, bars] = Layout::horizontal([Constraint::Length(28), Constraint::Min(10)]).areas(area);
        frame.render_widget(Paragraph::new(label), text);
        frame.render_widget(Sparkline::default().data(all).style(Style::new().fg(color)), bars);
    }
    frame.render_widget(Paragraph::new(lines(screen, name, change)), rest);
}
