//! What a session has published, counted together: messages in a row of one tenant and class are one addition to counters
//! that all sessions of the tenant share.

use std::sync::Arc;

use glocal_core::name::Class;
use glocal_core::tenant::Tenant;

/// Accepted publishes that the counters do not know of yet.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    of: Option<(Arc<Tenant>, Class)>,
    messages: u64,
    bytes: u64,
    unmatched: u64,
}

impl Accepted {
    /// Counts one publish.
    pub(super) fn add(&mut self, tenant: &Arc<Tenant>, class: Class, bytes: usize, matched: bool) {
        let same = self.of.as_ref().is_some_and(|(last, of)| Arc::ptr_eq(last, tenant) && *of == class);
        if !same {
            self.settle();
            self.of = Some((Arc::clone(tenant), class));
        }
        self.messages += 1;
        self.bytes += bytes as u64;
        self.unmatched += u64::from(!matched);
    }

    /// Tells the counters.
    pub(super) fn settle(&mut self) {
        let Some((tenant, class)) = self.of.as_ref().filter(|_| self.messages > 0) else { return };
        let counters = tenant.counters().class(*class);
        counters.published.add(std::mem::take(&mut self.messages));
        counters.published_bytes.add(std::mem::take(&mut self.bytes));
        counters.unmatched.add(std::mem::take(&mut self.unmatched));
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Node;

    #[test]
    fn every_publish_is_counted_once_where_it_belongs() {
        let node = Node::new(0);
        let (a, b) = (node.tenant("tenantA"), node.tenant("tenantB"));
        let counted = |tenant: &Tenant, class| {
            let counters = tenant.counters().class(class);
            (counters.published.value(), counters.published_bytes.value(), counters.unmatched.value())
        };
        let mut accepted = Accepted::default();
        accepted.settle();
        accepted.add(&a, Class::Live, 10, true);
        accepted.add(&a, Class::Live, 5, false);
        assert_eq!(counted(&a, Class::Live), (0, 0, 0));
        accepted.add(&a, Class::Bulk, 1, true);
        assert_eq!(counted(&a, Class::Live), (2, 15, 1), "another class");
        accepted.add(&b, Class::Bulk, 2, true);
        assert_eq!(counted(&a, Class::Bulk), (1, 1, 0), "another tenant");
        accepted.settle();
        accepted.settle();
        assert_eq!(counted(&b, Class::Bulk), (1, 2, 0), "once");
        accepted.add(&b, Class::Bulk, 3, true);
        drop(accepted);
        assert_eq!(counted(&b, Class::Bulk), (2, 5, 0), "with the session's end");
    }
}
