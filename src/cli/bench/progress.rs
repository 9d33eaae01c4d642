//! Progress on standard error: a bar on a terminal, a line every second where `--progress` asks for it, else nothing.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::output::{note, stderr_is_terminal};

/// Between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// How far a measurement is.
pub(crate) enum Progress {
    /// Nobody looks.
    Silent,
    /// A bar on a terminal.
    Bar(ProgressBar),
    /// Lines.
    Lines(Instant),
}

impl Progress {
    /// A terminal gets a bar, `asked` lines anywhere else.
    pub(crate) fn start(asked: bool) -> Self {
        if stderr_is_terminal() {
            let bar = ProgressBar::new(1000);
            let style = ProgressStyle::with_template("{bar:30.cyan} {elapsed:>4}  {msg}");
            Self::Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
        } else if asked {
            Self::Lines(Instant::now())
        } else {
            Self::Silent
        }
    }

    /// Says that `done` of `all` is done of what `text` names.
    pub(crate) fn tell(&mut self, text: &str, done: u64, all: u64) {
        match self {
            Self::Silent => {}
            Self::Bar(bar) => {
                bar.set_position(done.saturating_mul(1000) / all.max(1));
                bar.set_message(text.to_owned());
            }
            Self::Lines(next) if *next <= Instant::now() => {
                *next = Instant::now() + EVERY;
                note(&format!("{text}: {done} of {all}"));
            }
            Self::Lines(_) => {}
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
