//! The interest of one origin, as pulled: asked for, taken message by message, and asked for again where one is missing.

use super::stream::{News, Pull, Start};
use super::{Change, Interest, List};
use crate::limits::{
    INTEREST_ACK_EVERY, INTEREST_ACK_MS, INTEREST_RENEW_MS, INTEREST_RESEND_MS, INTEREST_RETRY_MS,
    INTEREST_RETRY_MS_MAX,
};
use crate::time::Time;

/// What a message changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Filters that came and went, in order.
    pub changes: Vec<Change>,
    /// Whether a message was missing or the list is not what the origin says: ask again.
    pub broken: bool,
    /// Whether the origin told of more filters than are kept.
    pub overfull: bool,
    /// What to answer.
    pub answer: Option<Pull>,
}

/// The interest of one origin in one tenant.
#[derive(Debug, Default)]
pub struct Pulled {
    list: List,
    /// A list that comes in while an older one is held.
    staging: Option<List>,
    /// The stream asked for; 0 before any.
    stream: u64,
    next: u64,
    acked: u64,
    complete: bool,
    asked: Time,
    /// When it last said something, or was told that it is still wanted.
    since: Time,
    patience_ms: u64,
    /// Whether the origin has still to say that it goes on.
    renewing: bool,
}

impl Pulled {
    /// Begins a new stream, and returns what to ask.
    pub fn ask(&mut self, stream: u64, now: Time) -> Pull {
        self.stream = stream;
        (self.next, self.acked) = (0, 0);
        self.complete = false;
        self.staging = None;
        (self.asked, self.since) = (now, now);
        self.patience_ms = if self.patience_ms == 0 { INTEREST_RETRY_MS } else { self.patience_ms * 2 };
        self.patience_ms = self.patience_ms.min(INTEREST_RETRY_MS_MAX);
        self.state()
    }

    /// Takes one message of the origin. Messages of other streams, and repeats, change nothing.
    pub fn take(&mut self, news: News, now: Time, filters_max: usize) -> Taken {
        let mut taken = Taken::default();
        if self.stream == 0 || news.stream != self.stream || news.number < self.next {
            return taken;
        }
        match news.start {
            None if news.number > self.next => {
                self.doubt();
                taken.broken = true;
                return taken;
            }
            None => {}
            Some(Start::Kept) => self.staging = None,
            Some(Start::Anew) => {
                // What is held stays in use until the new list is complete.
                self.staging = (!self.list.is_empty()).then(List::default);
                self.complete = false;
            }
        }
        self.next = news.number + 1;
        (self.since, self.renewing) = (now, false);
        for change in news.changes {
            if change.add && self.target().len() >= filters_max {
                taken.overfull = true;
                break;
            }
            let changed = if change.add {
                self.target().insert(change.interest.clone())
            } else {
                self.target().remove(&change.interest)
            };
            if changed && self.staging.is_none() {
                taken.changes.push(change);
            }
        }
        if let Some(sum) = news.complete {
            if self.target().sum() == sum {
                (self.complete, self.patience_ms) = (true, 0);
                self.adopt(&mut taken);
            } else {
                self.doubt();
                taken.broken = true;
            }
        }
        if self.next - self.acked >= INTEREST_ACK_EVERY && !taken.broken {
            taken.answer = Some(self.answer());
        }
        taken
    }

    fn target(&mut self) -> &mut List {
        self.staging.as_mut().unwrap_or(&mut self.list)
    }

    fn adopt(&mut self, taken: &mut Taken) {
        let Some(list) = self.staging.take() else { return };
        let changed = |add| move |interest: &Interest| Change { add, interest: interest.clone() };
        taken.changes.extend(self.list.difference(&list).map(changed(false)));
        taken.changes.extend(list.difference(&self.list).map(changed(true)));
        self.list = list;
    }

    /// Whether a new stream is due, since none was asked for or the last one fell silent before its list was complete.
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        let from = if self.stream == 0 { self.asked } else { self.asked.max(self.since) };
        !self.complete && now >= from.plus_millis(self.patience_ms)
    }

    /// What is to be said after a while: what was taken, and that it is still wanted. An origin that does not answer to
    /// that may have forgotten: then its list is not believed any more.
    pub fn tick(&mut self, now: Time) -> Option<Pull> {
        if self.renewing && now >= self.since.plus_millis(INTEREST_RESEND_MS) {
            self.doubt();
            return None;
        }
        if self.acked < self.next && now >= self.since.plus_millis(INTEREST_ACK_MS) {
            return Some(self.answer());
        }
        let renews = self.complete && !self.renewing && now >= self.since.plus_millis(INTEREST_RENEW_MS);
        renews.then(|| {
            (self.since, self.renewing) = (now, true);
            self.answer()
        })
    }

    /// What ends the stream.
    #[must_use]
    pub fn end(&self) -> Option<Pull> {
        (self.stream > 0).then(|| Pull { end: true, ..self.state() })
    }

    /// The origin has nothing, or is not who it was: what is held goes.
    pub fn clear(&mut self) -> Vec<Change> {
        let Self { list, .. } = std::mem::take(self);
        list.wishes.into_iter().map(|interest| Change { add: false, interest }).collect()
    }

    /// It must be asked again before it is believed: changes may have been missed.
    pub const fn doubt(&mut self) {
        (self.complete, self.renewing) = (false, false);
        // Nothing is said of what was taken of a stream that is over.
        (self.stream, self.acked) = (0, self.next);
    }

    fn answer(&mut self) -> Pull {
        self.acked = self.next;
        self.state()
    }

    const fn state(&self) -> Pull {
        Pull { stream: self.stream, taken: self.next, have: self.list.sum(), end: false }
    }

    /// Whether the list is complete and current, as far as is known.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the origin was told of everything taken.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.complete && self.acked == self.next && !self.renewing
    }

    /// The filters held.
    #[must_use]
    pub const fn list(&self) -> &List {
        &self.list
    }
}
