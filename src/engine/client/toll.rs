//! What a session pays for each publish before anything is asked of it (DESIGN section 11): a flood of forbidden names is
//! limited as any other.

use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny};
use glocal_core::limits::RATE_TEXTS_PER_SECOND;
use glocal_core::name::Class;
use glocal_core::rate::{LogLimiter, Meter, Over};
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;

use super::{Outgoing, Unpublished};

/// The account of one session, and what its tenant's counters say of it.
#[derive(Debug)]
pub(super) struct Toll {
    tenant: Arc<Tenant>,
    meter: Meter,
    texts: LogLimiter,
}

impl Toll {
    pub(super) fn new(tenant: Arc<Tenant>, now: Time) -> Self {
        let meter = Meter::new(Arc::clone(tenant.ingress()));
        Self { tenant, meter, texts: LogLimiter::new(RATE_TEXTS_PER_SECOND, now) }
    }

    /// Pays for the publish at hand, once. A refusal is counted; whoever numbers its publishes is told of each, others of
    /// a few in a second.
    pub(super) fn pay(&mut self, outgoing: &Outgoing<'_>, class: Class, now: Time) -> Result<(), Unpublished<'static>> {
        let class = written_class(outgoing.name).unwrap_or(class);
        match self.meter.pay(class, bytes(outgoing), now) {
            Ok(()) => Ok(()),
            Err(Over::Wait(until)) => Err(Unpublished::Wait(Some(until))),
            Err(Over::Refused(retry_after_ms)) => {
                let counters = self.tenant.counters();
                counters.class(class).dropped(DropReason::Rate, 1);
                let told = outgoing.number.is_some() || self.texts.allow(now).is_some();
                if !told {
                    counters.deny(Access::Write, Deny::Rate);
                }
                Err(Unpublished::Over { retry_after_ms, told })
            }
        }
    }

    /// Pays for the publish at hand, of so many bytes; `false` where it is not to be had at once. Nothing is counted then.
    pub(super) fn has_paid(&mut self, class: Class, bytes: u64, now: Time) -> bool {
        self.meter.pay(class, bytes, now).is_ok()
    }

    /// The publish at hand is done with.
    pub(super) const fn done(&mut self) {
        self.meter.done();
    }

    /// Gives back what was taken in stock.
    pub(super) fn settle(&mut self) {
        self.meter.settle();
    }
}

fn bytes(outgoing: &Outgoing<'_>) -> u64 {
    (outgoing.name.len() + outgoing.reply.len() + outgoing.headers.len() + outgoing.payload.len()) as u64
}

/// The class that a qualified name names, before it is looked at closely.
fn written_class(name: &[u8]) -> Option<Class> {
    let rest = name.strip_prefix(b"T.")?;
    Class::from_name(std::str::from_utf8(rest.split(|b| *b == b'.').nth(1)?).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_a_qualified_name_is_the_one_it_is_paid_as() {
        for (name, class) in [
            (&b"T.acme.ctrl.x"[..], Some(Class::Ctrl)),
            (b"T.other.bulk", Some(Class::Bulk)),
            (b"T.acme.nonsense.x", None),
            (b"T.acme", None),
            (b"acme.ctrl.x", None),
            (b"T", None),
            (b"T.acme.\xff.x", None),
        ] {
            assert_eq!(written_class(name), class, "{name:?}");
        }
    }
}
