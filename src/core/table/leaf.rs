//! Who holds one filter: nearly always one subscription here or one broker elsewhere, which then costs no memory of its own.

use std::sync::Arc;

use rpds::RedBlackTreeMapSync;

use super::RemoteInterest;
use super::tree::Value;
use crate::port::Sub;

/// Everybody who holds one filter.
#[derive(Clone, Debug, Default)]
pub(super) enum Leaf {
    /// Nobody.
    #[default]
    Nobody,
    /// One subscription here.
    Local(Arc<Sub>),
    /// One broker elsewhere.
    Remote(RemoteInterest),
    /// More than one.
    Many(Arc<Many>),
}

/// More than one.
#[derive(Clone, Debug, Default)]
pub(super) struct Many {
    /// Local subscriptions by (session, subscription id).
    locals: RedBlackTreeMapSync<(u64, u32), Arc<Sub>>,
    /// Remote interest.
    remotes: RedBlackTreeMapSync<RemoteInterest, ()>,
}

fn key(sub: &Sub) -> (u64, u32) {
    (sub.port().id(), sub.sid())
}

impl Leaf {
    /// Adds a subscription here, in place of one with the same number of the same session.
    pub(super) fn insert_local(&mut self, sub: Arc<Sub>) {
        match self {
            Self::Nobody => *self = Self::Local(sub),
            Self::Local(known) if key(known) == key(&sub) => *known = sub,
            _ => self.many(|many| many.locals.insert_mut(key(&sub), Arc::clone(&sub))),
        }
    }

    /// Removes a subscription here.
    pub(super) fn remove_local(&mut self, session: u64, sid: u32) {
        match self {
            Self::Local(known) if key(known) == (session, sid) => *self = Self::Nobody,
            Self::Many(_) => self.many(|many| _ = many.locals.remove_mut(&(session, sid))),
            _ => {}
        }
    }

    /// Adds what a broker elsewhere wants.
    pub(super) fn insert_remote(&mut self, interest: &RemoteInterest) {
        match self {
            Self::Nobody => *self = Self::Remote(interest.clone()),
            Self::Remote(known) if known == interest => {}
            _ => self.many(|many| many.remotes.insert_mut(interest.clone(), ())),
        }
    }

    /// Removes what a broker elsewhere wants.
    pub(super) fn remove_remote(&mut self, interest: &RemoteInterest) {
        match self {
            Self::Remote(known) if known == interest => *self = Self::Nobody,
            Self::Many(_) => self.many(|many| _ = many.remotes.remove_mut(interest)),
            _ => {}
        }
    }

    /// Changes it as more than one; one that is left over is one again.
    fn many(&mut self, change: impl FnOnce(&mut Many)) {
        let mut many = match std::mem::take(self) {
            Self::Nobody => Arc::default(),
            Self::Local(sub) => {
                let mut many = Many::default();
                many.locals.insert_mut(key(&sub), sub);
                Arc::new(many)
            }
            Self::Remote(interest) => {
                let mut many = Many::default();
                many.remotes.insert_mut(interest, ());
                Arc::new(many)
            }
            Self::Many(many) => many,
        };
        change(Arc::make_mut(&mut many));
        *self = match (many.locals.size(), many.remotes.size()) {
            (0, 0) => Self::Nobody,
            (1, 0) => many.locals.values().next().map_or(Self::Nobody, |sub| Self::Local(Arc::clone(sub))),
            (0, 1) => many.remotes.keys().next().map_or(Self::Nobody, |interest| Self::Remote(interest.clone())),
            _ => Self::Many(many),
        };
    }

    /// The subscriptions here, by session and number.
    pub(super) fn locals(&self) -> impl Iterator<Item = &Arc<Sub>> {
        let (one, many) = match self {
            Self::Local(sub) => (Some(sub), None),
            Self::Many(many) => (None, Some(many.locals.values())),
            Self::Nobody | Self::Remote(_) => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// What brokers elsewhere want, in order.
    pub(super) fn remotes(&self) -> impl Iterator<Item = &RemoteInterest> {
        let (one, many) = match self {
            Self::Remote(interest) => (Some(interest), None),
            Self::Many(many) => (None, Some(many.remotes.keys())),
            Self::Nobody | Self::Local(_) => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl Value for Leaf {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Nobody)
    }
}
