//! The data half: choosing members of queue groups, and where replies go.
//!
//! Functions over immutable tables, and state with its own bound. Nothing here knows frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::limits::{REPLY_ROUTE_MS, REPLY_ROUTES_MAX};
use crate::port::Sub;
use crate::routes::BrokerIndex;
use crate::table::GroupMatch;
use crate::time::Time;

/// The one member of a queue group that gets a message.
#[derive(Clone, Debug)]
pub enum Member<'m> {
    /// A subscription here.
    Local(&'m Arc<Sub>),
    /// A broker that picks one of its own.
    Remote(BrokerIndex),
}

/// Picks the member for one message: local first, then among the nearest brokers, spread by `turn`. `may` filters local
/// members, for instance a publisher that wants no echo.
#[must_use]
pub fn choose<'m>(group: &'m GroupMatch, turn: u64, may: impl Fn(&Sub) -> bool) -> Option<Member<'m>> {
    choose_local(group, turn, may).map(Member::Local).or_else(|| {
        let nearest = group.remotes.get(..group.nearest)?;
        pick(nearest, turn).copied().map(Member::Remote)
    })
}

/// Picks a member on this broker, as the target of a message that entered elsewhere.
#[must_use]
pub fn choose_local(group: &GroupMatch, turn: u64, may: impl Fn(&Sub) -> bool) -> Option<&Arc<Sub>> {
    let first = pick(&group.locals, turn)?;
    if may(first) {
        return Some(first);
    }
    let allowed: Vec<_> = group.locals.iter().filter(|s| may(s)).collect();
    pick(&allowed, turn).copied()
}

fn pick<T>(list: &[T], turn: u64) -> Option<&T> {
    let len = u64::try_from(list.len()).ok().filter(|len| *len > 0)?;
    list.get(usize::try_from(turn % len).ok()?)
}

/// Where the reply to a remote requester goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyRoute {
    /// The broker at which the request entered.
    pub origin: BrokerIndex,
    /// The requester's token there.
    pub token: u64,
}

/// The reply routes of one tenant: reply subject to origin, bounded, each for [`REPLY_ROUTE_MS`] after its last use.
#[derive(Debug, Default)]
pub struct ReplyRoutes {
    len: AtomicUsize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    routes: HashMap<Box<str>, (ReplyRoute, Time)>,
    /// When those that have expired were looked for last, which costs a walk over all.
    swept: Time,
}

impl Held {
    fn sweep(&mut self, now: Time) {
        self.swept = now;
        self.routes.retain(|_, (_, expires)| *expires > now);
    }
}

impl ReplyRoutes {
    /// Remembers where replies to `subject` go. When full, what has expired goes first, once a second at most; if nothing
    /// has, the new route is not remembered and `false` comes back.
    pub fn remember(&self, subject: &str, route: ReplyRoute, now: Time) -> bool {
        /// Pause between walks over a full map, in milliseconds.
        const SWEEP_MS: u64 = 1_000;
        let mut held = self.held.lock();
        let expires = now.plus_millis(REPLY_ROUTE_MS);
        if held.routes.len() >= REPLY_ROUTES_MAX && !held.routes.contains_key(subject) {
            if now >= held.swept.plus_millis(SWEEP_MS) {
                held.sweep(now);
            }
            if held.routes.len() >= REPLY_ROUTES_MAX {
                return false;
            }
        }
        held.routes.insert(Box::from(subject), (route, expires));
        self.len.store(held.routes.len(), Ordering::Release);
        true
    }

    /// Whether nobody waits for a reply from elsewhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// The route of `subject`, renewed by being used.
    #[must_use]
    pub fn find(&self, subject: &str, now: Time) -> Option<ReplyRoute> {
        if self.is_empty() {
            return None;
        }
        let mut held = self.held.lock();
        let (route, expires) = held.routes.get_mut(subject)?;
        if *expires <= now {
            held.routes.remove(subject);
            self.len.store(held.routes.len(), Ordering::Release);
            return None;
        }
        *expires = now.plus_millis(REPLY_ROUTE_MS);
        Some(*route)
    }

    /// Forgets what has expired.
    pub fn sweep(&self, now: Time) {
        if self.len.load(Ordering::Acquire) > 0 {
            let mut held = self.held.lock();
            held.sweep(now);
            self.len.store(held.routes.len(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: ReplyRoute = ReplyRoute { origin: BrokerIndex(3), token: 9 };

    #[test]
    fn reply_routes_live_thirty_seconds_after_their_last_use() {
        let routes = ReplyRoutes::default();
        assert_eq!(routes.find("r", Time(0)), None);
        assert!(routes.remember("r", ROUTE, Time(0)));
        assert_eq!(routes.find("r", Time::from_millis(29_000)), Some(ROUTE));
        assert_eq!(routes.find("r", Time::from_millis(58_000)), Some(ROUTE), "renewed by use");
        assert_eq!(routes.find("r", Time::from_millis(88_001)), None);
    }

    #[test]
    fn reply_routes_are_bounded_and_recover() {
        let routes = ReplyRoutes::default();
        for i in 0..REPLY_ROUTES_MAX {
            assert!(routes.remember(&format!("r{i}"), ROUTE, Time(0)));
        }
        assert!(!routes.remember("one more", ROUTE, Time(1)), "full");
        assert!(!routes.remember("one more", ROUTE, Time::from_millis(REPLY_ROUTE_MS - 1)), "still, after a walk");
        let soon = Time::from_millis(REPLY_ROUTE_MS);
        assert!(!routes.remember("one more", ROUTE, soon), "one walk a second, however many ask");
        assert!(routes.remember("later", ROUTE, soon.plus_millis(1_000)), "expired ones made room");
    }
}
