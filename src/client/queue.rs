//! The buffer between the connection's reader and one subscription or request.
//!
//! It guarantees both bounds, messages and bytes (one message always fits an empty buffer), counts what it drops, and
//! ends with a reason after the messages that came before it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use glocal_core::name::Class;
use tokio::sync::Notify;

use crate::error::Denied;
use crate::message::Delivery;
use crate::options::{Buffering, Overflow};
use crate::sync::lock;

/// Why no more messages come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The subscription was given up, or the client closed.
    Closed,
    /// The broker refused it.
    Denied(Denied),
    /// A request: nobody answers.
    NoResponders,
    /// A request: the connection was lost.
    Disconnected,
}

/// What became of a message.
pub(crate) enum Offer {
    /// It is in the buffer, or the buffer's owner is gone.
    Taken,
    /// It, or the oldest, was dropped; `first` since there was space last.
    Dropped {
        /// Whether this is news.
        first: bool,
    },
    /// There is no space; the reader waits for [`Queue::space`] and offers it again.
    Full(Delivery),
}

/// See the module.
pub(crate) struct Queue {
    limits: Buffering,
    items: Mutex<Items>,
    filled: Notify,
    space: Notify,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Items {
    messages: VecDeque<Delivery>,
    bytes: usize,
    end: Option<End>,
    /// A message was dropped since there was space last.
    is_slow: bool,
}

impl Queue {
    pub(crate) fn new(limits: Buffering) -> Self {
        Self {
            limits,
            items: Mutex::new(Items::default()),
            filled: Notify::new(),
            space: Notify::new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Puts a message in, by the buffer's rule when it is full. With `may_wait` the rule may be to wait.
    pub(crate) fn offer(&self, delivery: Delivery, may_wait: bool) -> Offer {
        let mut items = lock(&self.items);
        if items.end.is_some() {
            return Offer::Taken;
        }
        let fits = items.messages.is_empty()
            || items.messages.len() < self.limits.messages_max
                && items.bytes + delivery.bytes() <= self.limits.bytes_max;
        if fits {
            let was_empty = items.messages.is_empty();
            items.is_slow = false;
            items.bytes += delivery.bytes();
            items.messages.push_back(delivery);
            drop(items);
            if was_empty {
                self.filled.notify_one();
            }
            return Offer::Taken;
        }
        let rule = match (self.limits.overflow, delivery.class) {
            (Overflow::ByClass, Class::Live) => Overflow::DropOldest,
            (Overflow::ByClass, Class::Tele) => Overflow::DropNewest,
            (Overflow::ByClass, Class::Ctrl | Class::Bulk) => Overflow::Wait,
            (rule, _) => rule,
        };
        // A reader that waited in vain does not wait again before there was space.
        if rule == Overflow::Wait && may_wait && !items.is_slow {
            return Offer::Full(delivery);
        }
        let first = !std::mem::replace(&mut items.is_slow, true);
        if rule == Overflow::DropOldest {
            self.replace_oldest(&mut items, delivery);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Offer::Dropped { first }
    }

    fn replace_oldest(&self, items: &mut Items, delivery: Delivery) {
        while items.messages.len() >= self.limits.messages_max || items.bytes + delivery.bytes() > self.limits.bytes_max
        {
            let Some(oldest) = items.messages.pop_front() else { break };
            items.bytes -= oldest.bytes();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        items.bytes += delivery.bytes();
        items.messages.push_back(delivery);
    }

    /// Waits until a message was taken out.
    pub(crate) async fn space(&self) {
        self.space.notified().await;
    }

    /// The next message, or why there is none.
    pub(crate) async fn next(&self) -> Result<Delivery, End> {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            self.filled.notified().await;
        }
    }

    /// The next message or the end, without waiting.
    pub(crate) fn try_next(&self) -> Option<Result<Delivery, End>> {
        let mut items = lock(&self.items);
        match items.messages.pop_front() {
            Some(delivery) => {
                items.bytes -= delivery.bytes();
                drop(items);
                self.space.notify_one();
                Some(Ok(delivery))
            }
            None => items.end.clone().map(Err),
        }
    }

    /// No more messages are taken; the first reason stays.
    pub(crate) fn end(&self, end: End) {
        lock(&self.items).end.get_or_insert(end);
        self.filled.notify_one();
        self.space.notify_one();
    }

    /// Why the queue ended, if it did.
    pub(crate) fn ended(&self) -> Option<End> {
        lock(&self.items).end.clone()
    }

    /// Messages dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Messages waiting.
    pub(crate) fn len(&self) -> usize {
        lock(&self.items).messages.len()
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use glocal_wire::data::{DataFrame, DataHead, DataKind};

    use super::*;

    fn delivery(class: Class, name: &str) -> Delivery {
        let mut frame = BytesMut::new();
        let head = DataHead::new(DataKind::Deliver, Some(class));
        head.encode_into(&mut frame, &[], name.as_bytes(), b"", b"", b"payload").unwrap();
        Delivery::from_frame(&DataFrame::decode(&frame).unwrap()).unwrap()
    }

    fn queue(overflow: Overflow) -> Queue {
        Queue::new(Buffering { messages_max: 2, bytes_max: usize::MAX, overflow })
    }

    async fn names(queue: &Queue) -> Vec<String> {
        queue.end(End::Closed);
        let mut names = Vec::new();
        while let Ok(delivery) = queue.next().await {
            names.push(delivery.subject().to_owned());
        }
        names
    }

    #[tokio::test]
    async fn each_class_overflows_by_its_rule() {
        for (class, expected, dropped) in [(Class::Live, ["b", "c"], 1), (Class::Tele, ["a", "b"], 1)] {
            let queue = queue(Overflow::ByClass);
            for name in ["a", "b"] {
                assert!(matches!(queue.offer(delivery(class, name), true), Offer::Taken));
            }
            assert!(matches!(queue.offer(delivery(class, "c"), true), Offer::Dropped { first: true }));
            assert_eq!(queue.dropped(), dropped);
            assert_eq!(names(&queue).await, expected);
        }
    }

    #[tokio::test]
    async fn a_reliable_message_waits_once_and_then_drops() {
        let queue = queue(Overflow::ByClass);
        for name in ["a", "b"] {
            queue.offer(delivery(Class::Bulk, name), true);
        }
        let Offer::Full(waiting) = queue.offer(delivery(Class::Bulk, "c"), true) else { panic!("not full") };
        assert!(matches!(queue.offer(waiting, false), Offer::Dropped { first: true }));
        assert!(matches!(queue.offer(delivery(Class::Bulk, "d"), true), Offer::Dropped { first: false }));
        assert_eq!(queue.next().await.unwrap().subject(), "a");
        assert!(matches!(queue.offer(delivery(Class::Bulk, "e"), true), Offer::Taken));
        assert_eq!(names(&queue).await, ["b", "e"]);
    }

    #[tokio::test]
    async fn bytes_are_bounded_but_one_message_always_fits() {
        let queue = Queue::new(Buffering { messages_max: 9, bytes_max: 1, overflow: Overflow::DropNewest });
        assert!(matches!(queue.offer(delivery(Class::Live, "a"), true), Offer::Taken));
        assert!(matches!(queue.offer(delivery(Class::Live, "b"), true), Offer::Dropped { .. }));
    }

    #[tokio::test]
    async fn the_first_end_stays() {
        let queue = queue(Overflow::Wait);
        queue.end(End::NoResponders);
        queue.end(End::Closed);
        assert_eq!(queue.next().await.err(), Some(End::NoResponders));
    }
}
