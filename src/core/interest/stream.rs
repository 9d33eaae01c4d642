//! Streams of interest at the origin: its list and then its changes, to each broker that asked.
//!
//! A stream is a row of numbered messages. At first they carry the list, in its order, with the changes that happen
//! meanwhile between; then changes alone. The one that asked says what it has taken, and at most a window's worth is on
//! its way. Where nothing is heard of a message for too long the stream starts afresh, and after the lease it ends.

use std::collections::{BTreeMap, VecDeque};

use super::{Change, Interest, Local, Sum};
use crate::limits::{
    INTEREST_LEASE_MS, INTEREST_LISTINGS_MAX, INTEREST_LOG_MAX, INTEREST_NEWS_BYTES_MAX, INTEREST_NEWS_WINDOW,
    INTEREST_RESEND_MS, INTEREST_RETRY_MS_MAX,
};
use crate::routes::BrokerIndex;
use crate::time::Time;

/// What a broker asks of an origin: to begin a stream, to go on with it, or to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The stream; greater numbers are newer.
    pub stream: u64,
    /// How many of its messages were taken.
    pub taken: u64,
    /// The list that is held.
    pub have: Sum,
    /// Whether nothing more is wanted.
    pub end: bool,
}

/// What becomes of the list held before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The list follows from its beginning.
    Anew,
    /// The list that is held is right.
    Kept,
}

/// One message of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The stream.
    pub stream: u64,
    /// Its place in the stream.
    pub number: u64,
    /// Whether a list begins here.
    pub start: Option<Start>,
    /// What came and went.
    pub changes: Vec<Change>,
    /// After these changes the list is complete, and this is its sum.
    pub complete: Option<Sum>,
}

/// How much of the list was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cursor {
    At(Option<Interest>),
    Done,
}

#[derive(Debug)]
struct Stream {
    id: u64,
    sent: u64,
    acked: u64,
    /// The next change to tell, by its number in the log.
    change: u64,
    cursor: Cursor,
    start: Option<Start>,
    told_complete: bool,
    lease: Time,
    sent_at: Time,
    patience_ms: u64,
}

impl Stream {
    fn new(id: u64, taken: u64, kept: bool, change: u64, now: Time) -> Self {
        let mut stream = Self {
            id,
            sent: taken,
            acked: taken,
            change,
            cursor: Cursor::Done,
            start: Some(Start::Kept),
            told_complete: false,
            lease: now.plus_millis(INTEREST_LEASE_MS),
            sent_at: now,
            patience_ms: INTEREST_RESEND_MS,
        };
        if !kept {
            stream.restart(change);
        }
        stream
    }

    fn restart(&mut self, change: u64) {
        self.acked = self.sent;
        self.change = change;
        self.cursor = Cursor::At(None);
        self.start = Some(Start::Anew);
        self.told_complete = false;
    }

    /// It is still wanted, and some of it was taken.
    fn heard(&mut self, pull: Pull, head: u64, sum: Sum, now: Time) {
        self.lease = now.plus_millis(INTEREST_LEASE_MS);
        let is_renewal = pull.taken == self.acked;
        if pull.taken > self.acked && pull.taken <= self.sent {
            self.acked = pull.taken;
            self.patience_ms = INTEREST_RESEND_MS;
        }
        let is_told = self.told_complete && self.change == head && pull.taken == self.sent;
        if is_told && pull.have != sum {
            self.restart(head);
        } else if is_told && is_renewal {
            // One message more, which says that the list is still what it was.
            self.told_complete = false;
        }
    }

    const fn is_outstanding(&self) -> bool {
        self.acked < self.sent
    }

    fn is_listing(&self) -> bool {
        self.cursor != Cursor::Done
    }
}

/// The streams of one tenant, with the changes they have not all told.
#[derive(Debug, Default)]
pub struct Streams {
    streams: BTreeMap<BrokerIndex, Stream>,
    log: VecDeque<Change>,
    /// The number of the first change in the log.
    first: u64,
}

impl Streams {
    /// Takes what a broker asks. `false` when there are `pullers_max` others already, and nothing was begun.
    pub fn pull(&mut self, puller: BrokerIndex, pull: Pull, local: &Local, now: Time, pullers_max: usize) -> bool {
        let head = self.head();
        let known = self.streams.get(&puller).map(|stream| stream.id);
        if known.is_some_and(|id| id > pull.stream) {
            // Overtaken by what the same broker asked later.
            return true;
        }
        if pull.end {
            self.streams.remove(&puller);
            return true;
        }
        if known.is_none() && self.streams.len() >= pullers_max {
            return false;
        }
        match self.streams.get_mut(&puller).filter(|stream| stream.id == pull.stream) {
            Some(stream) => stream.heard(pull, head, local.sum(), now),
            None => {
                let kept = pull.have == local.sum();
                self.streams.insert(puller, Stream::new(pull.stream, pull.taken, kept, head, now));
            }
        }
        true
    }

    /// Notes a change of the list, to be told to whoever asked.
    pub fn changed(&mut self, change: Change) {
        if self.streams.is_empty() {
            return;
        }
        self.log.push_back(change);
        while self.log.len() > INTEREST_LOG_MAX {
            self.log.pop_front();
            self.first += 1;
        }
    }

    /// Everything that may be sent now.
    pub fn send(&mut self, local: &Local, now: Time) -> Vec<(BrokerIndex, News)> {
        let mut out = Vec::new();
        let head = self.head();
        let listing = |stream: &&Stream| stream.is_listing() && stream.is_outstanding();
        let mut listings = self.streams.values().filter(listing).count();
        for (puller, stream) in &mut self.streams {
            if stream.is_listing() && !stream.is_outstanding() {
                if listings >= INTEREST_LISTINGS_MAX {
                    continue;
                }
                listings += 1;
            }
            while let Some(news) = next(stream, &self.log, self.first, head, local, now) {
                out.push((*puller, news));
            }
        }
        let told = self.streams.values().map(|stream| stream.change).min().unwrap_or(head);
        while self.first < told && self.log.pop_front().is_some() {
            self.first += 1;
        }
        out
    }

    /// Starts afresh what was lost on its way, and ends what nobody asks for any more.
    pub fn tick(&mut self, now: Time) {
        let head = self.head();
        self.streams.retain(|_, stream| stream.lease > now);
        for stream in self.streams.values_mut() {
            if stream.is_outstanding() && now >= stream.sent_at.plus_millis(stream.patience_ms) {
                stream.patience_ms = (stream.patience_ms * 2).min(INTEREST_RETRY_MS_MAX);
                stream.sent_at = now;
                stream.restart(head);
            }
        }
        if self.streams.is_empty() {
            self.first += self.log.len() as u64;
            self.log = VecDeque::new();
        }
    }

    /// Ends the stream of a broker that is no part of the fabric any more.
    pub fn forget(&mut self, puller: BrokerIndex) {
        self.streams.remove(&puller);
    }

    /// Changes kept for those who have not been told.
    #[must_use]
    pub fn untold(&self) -> usize {
        self.log.len()
    }

    /// How many brokers asked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether nobody asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether everything was told and taken.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.streams.values().all(|s| !s.is_outstanding() && s.told_complete && s.change == self.head())
    }

    fn head(&self) -> u64 {
        self.first + self.log.len() as u64
    }
}

fn next(stream: &mut Stream, log: &VecDeque<Change>, first: u64, head: u64, local: &Local, now: Time) -> Option<News> {
    let is_told = stream.start.is_none() && stream.told_complete && stream.change == head;
    if is_told || stream.sent - stream.acked >= INTEREST_NEWS_WINDOW {
        return None;
    }
    if stream.change < first {
        // It lags so far behind that changes it was not told are gone.
        stream.restart(head);
    }
    let (mut changes, mut bytes) = (Vec::new(), 0);
    let skip = usize::try_from(stream.change - first).unwrap_or(usize::MAX);
    for change in log.iter().skip(skip) {
        if bytes > INTEREST_NEWS_BYTES_MAX {
            break;
        }
        bytes += change.interest.weight_bytes();
        changes.push(change.clone());
        stream.change += 1;
    }
    // Nothing of the list is told before the changes made so far are.
    if stream.change == head
        && let Cursor::At(last) = &stream.cursor
    {
        stream.cursor = list(last.clone(), local, &mut changes, bytes);
    }
    let complete = (stream.cursor == Cursor::Done && stream.change == head).then(|| local.sum());
    stream.told_complete = complete.is_some();
    let number = stream.sent;
    stream.sent += 1;
    stream.sent_at = now;
    Some(News { stream: stream.id, number, start: stream.start.take(), changes, complete })
}

/// Appends the wishes after `last`, up to the size of a message; where the next one goes on.
fn list(mut last: Option<Interest>, local: &Local, changes: &mut Vec<Change>, mut bytes: usize) -> Cursor {
    let before = last.clone();
    let mut rest = local.after(before.as_ref());
    while bytes <= INTEREST_NEWS_BYTES_MAX {
        let Some(interest) = rest.next() else { return Cursor::Done };
        bytes += interest.weight_bytes();
        changes.push(Change { add: true, interest: interest.clone() });
        last = Some(interest.clone());
    }
    Cursor::At(last)
}
