//! What one session pays for what it publishes: from its own buckets and its tenant's.
//!
//! Every message is paid once, however often its session comes back to it. Classes that nobody acknowledges are granted or
//! refused at once. Reliable ones wait: they are paid in advance and told exactly from when on they are good, so that
//! whoever waits has its turn, however many others keep asking. Nothing is lost when a session ends or limits change: what
//! was paid in advance or taken in stock goes back.

use std::sync::Arc;

use super::ingress::{Answer, Ask, Ingress, Kind, Lease, limit};
use super::{Dual, RateLimits};
use crate::limits::RELIABLE_WAIT_MS_MAX;
use crate::name::Class;
use crate::time::Time;

/// Why a message does not go on now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The session is to come back to it at this time.
    Wait(Time),
    /// It is refused; this many milliseconds later it would be granted, if nobody else asks. At least one.
    Refused(u32),
}

/// The account of one session.
#[derive(Debug)]
pub struct Meter {
    ingress: Arc<Ingress>,
    seen: u32,
    own: Dual,
    /// What is held in stock by class, beyond what was used.
    stock: [Option<Lease>; 4],
    /// By class, from which size on messages are refused without asking again, as long as the session works on what it has read.
    dry: [Option<Dry>; 4],
    reserved: Option<Reserved>,
    /// Since when the message at hand waits.
    since: Option<Time>,
    /// Whether the last wait was in vain: the next message does not wait in vain, too.
    in_vain: bool,
    /// Whether the message at hand is paid.
    paid: bool,
}

#[derive(Clone, Copy, Debug)]
struct Dry {
    bytes: u64,
    until: Time,
}

#[derive(Clone, Copy, Debug)]
struct Reserved {
    class: Class,
    bytes: u64,
    until: Time,
}

impl Meter {
    /// The account of a new session of a tenant.
    #[must_use]
    pub fn new(ingress: Arc<Ingress>) -> Self {
        Self {
            // Any other state than the one now.
            seen: ingress.state().wrapping_add(1),
            ingress,
            own: Dual::default(),
            stock: [None; 4],
            dry: [None; 4],
            reserved: None,
            since: None,
            in_vain: false,
            paid: false,
        }
    }

    /// Pays for the message at hand, of so many bytes, unless that is done already. To be called again, at the time told,
    /// for the same message where it waits.
    ///
    /// # Errors
    /// [`Over`].
    pub fn pay(&mut self, class: Class, bytes: u64, now: Time) -> Result<(), Over> {
        let state = self.ingress.state();
        if state != self.seen {
            self.adapt(state, now);
        }
        if self.paid || !Ingress::is_limited(state) {
            return Ok(());
        }
        if let Some(reserved) = self.reserved {
            if now < reserved.until {
                return Err(Over::Wait(reserved.until));
            }
            self.reserved = None;
            return self.granted();
        }
        let is_reliable = class.is_reliable();
        let own_micros = self.own.wait_micros(1, bytes, is_reliable, now);
        let stock = self.stock.get_mut(class.index()).and_then(Option::as_mut);
        if own_micros == 0 && stock.is_some_and(|lease| lease.spend(bytes)) {
            self.own.charge(1, bytes, now);
            return self.granted();
        }
        if is_reliable { self.wait(class, bytes, own_micros, now) } else { self.try_now(class, bytes, own_micros, now) }
    }

    /// The message at hand is done with: what comes next is another one.
    pub const fn done(&mut self) {
        self.paid = false;
    }

    /// Gives back what is held in stock: to be called when everything that was read is worked on.
    pub fn settle(&mut self) {
        self.dry = [None; 4];
        for class in Class::ALL {
            if let Some(lease) = self.stock.get_mut(class.index()).and_then(Option::take) {
                self.ingress.refund(Kind::of(class), lease);
            }
        }
    }

    fn granted(&mut self) -> Result<(), Over> {
        self.since = None;
        self.in_vain = false;
        self.paid = true;
        Ok(())
    }

    fn try_now(&mut self, class: Class, bytes: u64, own_micros: u64, now: Time) -> Result<(), Over> {
        let dry = self.dry.get(class.index()).copied().flatten();
        if let Some(dry) = dry.filter(|dry| now < dry.until && bytes >= dry.bytes) {
            return Err(refused(dry.until.micros_since(now).max(own_micros)));
        }
        if own_micros > 0 {
            return Err(refused(own_micros));
        }
        match self.ask(class, bytes, 0, 0, now) {
            Answer::Granted(_) | Answer::Reserved(_) => self.granted(),
            Answer::Over(micros) => {
                if let Some(dry) = self.dry.get_mut(class.index()) {
                    *dry = Some(Dry { bytes, until: now.plus_micros(micros) });
                }
                Err(refused(micros))
            }
        }
    }

    fn wait(&mut self, class: Class, bytes: u64, own_micros: u64, now: Time) -> Result<(), Over> {
        let until = self.since.unwrap_or(now).plus_millis(RELIABLE_WAIT_MS_MAX);
        let patience_micros = until.micros_since(now);
        match self.ask(class, bytes, own_micros, patience_micros, now) {
            Answer::Granted(_) => self.granted(),
            Answer::Reserved(micros) => {
                let until = now.plus_micros(micros);
                self.since.get_or_insert(now);
                self.reserved = Some(Reserved { class, bytes, until });
                Err(Over::Wait(until))
            }
            Answer::Over(_) if patience_micros > 0 && !self.in_vain => {
                self.since.get_or_insert(now);
                Err(Over::Wait(until))
            }
            Answer::Over(micros) => {
                self.since = None;
                self.in_vain = true;
                Err(refused(micros))
            }
        }
    }

    /// Asks the tenant's buckets and charges the session's own with what was granted.
    fn ask(&mut self, class: Class, bytes: u64, own_micros: u64, patience_micros: u64, now: Time) -> Answer {
        let ask = Ask { class, bytes, own_micros, patience_micros };
        let stock = self.stock.get_mut(class.index()).and_then(Option::take);
        let mut answer = self.ingress.ask(&ask, stock.unwrap_or_default(), now);
        if matches!(answer, Answer::Over(_)) && self.stock.iter().any(Option::is_some) {
            // What is missing may lie in stock for another class.
            self.settle();
            answer = self.ingress.ask(&ask, Lease::default(), now);
        }
        if let (Answer::Granted(lease), Some(stock)) = (answer, self.stock.get_mut(class.index())) {
            *stock = Some(lease);
        }
        if !matches!(answer, Answer::Over(_)) {
            self.own.charge(1, bytes, now);
        }
        answer
    }

    /// Takes over limits that have changed.
    fn adapt(&mut self, state: u32, now: Time) {
        self.settle();
        self.cancel();
        let RateLimits { session_messages_per_s, session_bytes_per_s, burst_ms, .. } = self.ingress.limits();
        let of = |rate: Option<u64>| rate.map(|rate| limit(rate, burst_ms));
        self.own.adapt(of(session_messages_per_s), of(session_bytes_per_s), now);
        self.seen = state;
    }

    /// Gives back what was paid in advance.
    fn cancel(&mut self) {
        if let Some(Reserved { class, bytes, .. }) = self.reserved.take() {
            self.ingress.refund(Kind::of(class), Lease { messages: Some(1), bytes: Some(bytes) });
            self.own.refund(1, bytes);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.settle();
        self.cancel();
    }
}

/// A refusal that says when to come back.
fn refused(micros: u64) -> Over {
    Over::Refused(u32::try_from(micros.div_ceil(1000)).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests;
