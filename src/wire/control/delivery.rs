//! The bodies by which brokers speak of what became of messages. All travel inside [`super::Routed`].

use bincode::{Decode, Encode};
use glocal_core::limits::{QUEUE_GROUP_BYTES_MAX, UNSERVED_GROUPS_MAX};
use glocal_core::name::Class;

use super::body::{at_most, ensure};

/// What a target has delivered of one origin's messages of a reliable class. Travels inside [`super::Routed`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Delivered {
    /// The class.
    pub class: u8,
    /// The life of the origin that numbered the messages.
    pub incarnation: u64,
    /// Everything for this target up to here is in all its sessions' lanes.
    pub through: u64,
    /// Whether later messages wait at the target for one that has not come.
    pub gap: bool,
}

impl Delivered {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        reliable(self.class)
    }
}

/// Asks how many copies of a class that is not acknowledged have arrived; goes behind them in their lane, inside [`super::Routed`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Tally {
    /// The class.
    pub class: u8,
    /// The life of the origin that sent them.
    pub incarnation: u64,
    /// How many the origin has sent so far.
    pub copies: u64,
}

impl Tally {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        unreliable(self.class)
    }
}

/// Answers a [`Tally`]. Travels inside [`super::Routed`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Tallied {
    /// The class.
    pub class: u8,
    /// The life of the origin that asked.
    pub incarnation: u64,
    /// What it asked with.
    pub copies: u64,
    /// How many have arrived in this life of the target.
    pub received: u64,
}

impl Tallied {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        unreliable(self.class)
    }
}

/// A target had nobody for a request in a class that is not acknowledged. Travels inside [`super::Routed`], to the request's origin.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Unserved {
    /// The class.
    pub class: u8,
    /// The life of the origin.
    pub incarnation: u64,
    /// The requester's session at the origin.
    pub session: u64,
    /// The request's number among that session's messages of the class.
    pub seq: u64,
    /// The queue groups that have no member there any more.
    pub groups: Vec<String>,
    /// Whether any plain subscriber there has it.
    pub plain: bool,
}

impl Unserved {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        unreliable(self.class)?;
        ensure("groups", self.groups.len() <= UNSERVED_GROUPS_MAX)?;
        self.groups.iter().try_for_each(|group| at_most("groups", group, QUEUE_GROUP_BYTES_MAX))
    }
}

/// A full lane dropped a message of a reliable class on its way. Travels inside [`super::Routed`], to the message's origin.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Overflowed {
    /// The class.
    pub class: u8,
    /// The life of the origin that numbered the message.
    pub incarnation: u64,
    /// The first message that was dropped.
    pub seq: u64,
}

impl Overflowed {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        reliable(self.class)
    }
}

/// A target has no member of a queue group for a message any more; the origin picks again. Travels inside [`super::Routed`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Memberless {
    /// The class.
    pub class: u8,
    /// The life of the origin that numbered the message.
    pub incarnation: u64,
    /// The message.
    pub seq: u64,
    /// The queue group.
    pub group: String,
}

impl Memberless {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        reliable(self.class)?;
        ensure("group", !self.group.is_empty())?;
        at_most("group", &self.group, QUEUE_GROUP_BYTES_MAX)
    }
}

fn reliable(class: u8) -> Result<(), &'static str> {
    ensure("class", Class::from_code(class).is_some_and(Class::is_reliable))
}

fn unreliable(class: u8) -> Result<(), &'static str> {
    ensure("class", Class::from_code(class).is_some_and(|class| !class.is_reliable()))
}
