//! Presence and interest as frames.

use bytes::BytesMut;
use glocal_core::control::{Message, Outgoing};
use glocal_core::interest::presence::Record;
use glocal_core::interest::stream::{News, Pull, Start};
use glocal_core::interest::{Change, Interest, Sum};
use glocal_core::name::{ClassSet, QueueGroup, RawFilter};
use glocal_wire::control as wire;

use crate::link::{Handles, append};

/// The frame of a record for a neighbour, and the handles it uses.
pub(crate) fn frame(outgoing: &Outgoing) -> (BytesMut, Handles) {
    let mut handles = Handles::default();
    let (origin, incarnation) = (outgoing.origin.0, outgoing.incarnation);
    if !matches!(outgoing.record, Record::Sum { .. } | Record::End { .. }) {
        handles.brokers.push((outgoing.origin, 0));
    }
    let control: wire::Control = match &outgoing.record {
        Record::Presence { seq, present } => {
            wire::Presence { origin, incarnation, seq: *seq, present: *present }.into()
        }
        Record::Cut { edge, seq, cut } => {
            let edge = edge.as_str().to_owned();
            wire::EdgeCut { origin, incarnation, seq: *seq, edge, cut: *cut }.into()
        }
        Record::Sum { digest } => wire::PresenceSum { digest: *digest }.into(),
        Record::End { told } => wire::PresenceEnd { told: *told }.into(),
    };
    let mut frame = BytesMut::new();
    append(&mut frame, &control);
    (frame, handles)
}

/// The body of a message for a broker of the mesh.
pub(crate) fn body(message: &Message) -> wire::Control {
    match message {
        Message::Pull(pull) => {
            let Pull { stream, taken, have, end } = *pull;
            wire::InterestPull { stream, taken, have: sum(have), end }.into()
        }
        Message::News(news) => wire::InterestNews {
            stream: news.stream,
            number: news.number,
            start: match news.start {
                None => 0,
                Some(Start::Anew) => 1,
                Some(Start::Kept) => 2,
            },
            changes: news.changes.iter().map(change).collect(),
            complete: news.complete.map(sum),
        }
        .into(),
    }
}

const fn sum(sum: Sum) -> wire::InterestSum {
    wire::InterestSum { digest: sum.digest, count: sum.count }
}

fn change(change: &Change) -> wire::InterestChange {
    let interest = &change.interest;
    wire::InterestChange {
        add: change.add,
        filter: interest.filter.as_str().to_owned(),
        classes: interest.classes.bits(),
        queue: interest.queue.as_ref().map(|queue| queue.as_str().to_owned()),
        observer: interest.observer,
    }
}

/// What a pull says.
pub(crate) const fn pull(body: &wire::InterestPull) -> Pull {
    let have = Sum { digest: body.have.digest, count: body.have.count };
    Pull { stream: body.stream, taken: body.taken, have, end: body.end }
}

/// What a message of a stream says; `None` where it names what cannot be wanted.
pub(crate) fn news(body: &wire::InterestNews) -> Option<News> {
    let changes = body.changes.iter().map(|change| {
        let interest = Interest {
            filter: RawFilter::parse(change.filter.as_bytes()).ok()?,
            classes: ClassSet::from_bits(change.classes)?,
            queue: change.queue.as_deref().map(QueueGroup::parse).transpose().ok()?,
            observer: change.observer,
        };
        // Observers are in no queue group.
        let is_whole = !(interest.observer && interest.queue.is_some());
        is_whole.then_some(Change { add: change.add, interest })
    });
    Some(News {
        stream: body.stream,
        number: body.number,
        start: match body.start {
            1 => Some(Start::Anew),
            2 => Some(Start::Kept),
            _ => None,
        },
        changes: changes.collect::<Option<_>>()?,
        complete: body.complete.map(|sum| Sum { digest: sum.digest, count: sum.count }),
    })
}
