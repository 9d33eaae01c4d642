//! The extensions of deliveries: the same for messages in a row of one sender to the same subscriptions.

use std::sync::Arc;

use glocal_core::port::Sub;
use glocal_wire::ext::ExtBuilder;
use smallvec::SmallVec;

/// The extensions that were made last, with what they were made of.
#[derive(Debug, Default)]
pub(super) struct DeliveryExt {
    pub(super) ext: ExtBuilder,
    sids: SmallVec<[u32; 4]>,
    sender: String,
    redelivered: bool,
}

impl DeliveryExt {
    /// Empty, for other extensions than those of a delivery.
    pub(super) fn others(&mut self) -> &mut ExtBuilder {
        self.sids.clear();
        self.ext.clear();
        &mut self.ext
    }

    /// Makes [`Self::ext`] those of a delivery, unless they are.
    pub(super) fn set(&mut self, subs: &[&Arc<Sub>], sender: &str, redelivered: bool) {
        let sids = || subs.iter().map(|sub| sub.sid());
        let same = self.redelivered == redelivered && self.sids.iter().copied().eq(sids()) && self.sender == sender;
        // Nothing was made of no subscriptions.
        if same && !self.sids.is_empty() {
            return;
        }
        self.ext.clear();
        self.ext.subs(sids()).sender_text(sender).redelivered(redelivered);
        self.sids.clear();
        self.sids.extend(sids());
        self.sender.clear();
        self.sender.push_str(sender);
        self.redelivered = redelivered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::principal;
    use glocal_core::identity::Role;
    use glocal_core::inbox::Inbox;
    use glocal_core::name::Filter;
    use glocal_core::port::SessionPort;
    use glocal_core::sched::SessionLanes;

    #[test]
    fn each_part_makes_them_others() {
        let alice = principal("tenantA", "alice", Role::Tenant);
        let inbox = Inbox::new(SessionLanes::default());
        let port = Arc::new(SessionPort::new(1, Arc::clone(&alice), true, inbox));
        let filter = Filter::qualify(alice.tenant(), b"x").unwrap();
        let sub = |sid| Arc::new(Sub::new(Arc::clone(&port), sid, &filter, None, false));
        let (one, two) = (sub(1), sub(2));
        let mut kept = DeliveryExt::default();
        let cases: [(&[&Arc<Sub>], &str, bool); 8] = [
            (&[&one], "region-a/alice", false),
            (&[&one], "region-a/alice", false),
            (&[&two], "region-a/alice", false),
            (&[&two, &one], "region-a/alice", false),
            (&[&two], "region-a/alice", false),
            (&[&two], "region-a/bob", false),
            (&[&two], "region-a/bob", true),
            (&[&two], "tenantB", true),
        ];
        for (subs, sender, redelivered) in cases {
            kept.set(subs, sender, redelivered);
            let mut fresh = ExtBuilder::new();
            fresh.subs(subs.iter().map(|sub| sub.sid())).sender_text(sender).redelivered(redelivered);
            assert_eq!(kept.ext.bytes(), fresh.bytes(), "{sender} {redelivered}");
        }
        assert_eq!(kept.others().bytes(), Ok(&[][..]));
        kept.set(&[&two], "tenantB", true);
        assert_ne!(kept.ext.bytes(), Ok(&[][..]), "made again after others");
    }
}
