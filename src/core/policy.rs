//! Policy: the only maker of permits (DESIGN section 4).
//!
//! [`Policy::authorize`] decides every operation from the principal, the name and the bundle; first match wins and the
//! last line is a refusal. A [`Permit`] owns the table handle, the object, the principal and the policy epoch, cannot be
//! cloned, and is what routing takes, so that an unchecked path does not compile.

use std::sync::Arc;

use crate::bundle::{Grant, Section};
use crate::deny::{Access, Deny};
use crate::edge::Edge;
use crate::guard::{Guard, off};
use crate::identity::{Principal, Role};
use crate::name::{Class, Destination, Filter, Label, RawFilter, RawName, TenantId, TenantPattern};
use crate::tenant::{Tenant, Tenants};

/// The first token of advisories, in class `ctrl`.
pub const ADVISORY_TOKEN: &str = "advisory";

/// Which line of the policy allowed an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A lane of a tenant effective on its edge.
    Node,
    /// The node's own part, for the tenant it names.
    Internal,
    /// A superuser; logged.
    Superuser,
    /// The caller's own subtree.
    Own,
    /// A named grant of the receiving tenant; logged.
    Grant(Label),
}

impl Rule {
    /// The text of ALLOW log lines.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Internal => "internal",
            Self::Superuser => "superuser",
            Self::Own => "tenant-namespace",
            Self::Grant(_) => "cross-tenant-sink",
        }
    }

    /// Whether a reader under this rule only observes: never a responder, in no queue group, in nobody's way.
    #[must_use]
    pub const fn is_observer(&self) -> bool {
        matches!(self, Self::Superuser | Self::Grant(_))
    }
}

/// What a permit reaches.
#[derive(Debug)]
pub enum Scope {
    /// One tenant's table.
    One(Arc<Tenant>),
    /// Every tenant's; a superuser's `T.*.…` filter.
    All,
}

/// Publishing to a destination.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a>(pub Destination<'a>);

/// Subscribing to a filter, in any way: plain, queue group, replay, pull or listing.
#[derive(Clone, Debug)]
pub struct Read(pub Filter);

/// Carrying a frame of a lane that was opened for `tenant` on `edge`.
#[derive(Clone, Copy, Debug)]
pub struct Relay<'a> {
    /// The tenant the lane was opened for.
    pub tenant: &'a Arc<Tenant>,
    /// The edge it came over.
    pub edge: &'a Edge,
    /// The class of the lane.
    pub class: Class,
    /// The frame's name.
    pub raw: RawName<'a>,
}

/// Asking the node about itself on the operators' socket.
#[derive(Clone, Copy, Debug)]
pub struct Administer<'a> {
    /// The tenant asked about; `None` for the whole node.
    pub tenant: Option<&'a str>,
}

/// An operation that policy can permit.
pub trait Operation: sealed::Sealed {
    /// How log lines name it.
    const ACCESS: Access;

    /// Decides the operation; called by [`Policy::authorize`] alone.
    ///
    /// # Errors
    /// Why not.
    #[doc(hidden)]
    fn decide(&self, policy: &Policy, principal: &Principal) -> Result<(Scope, Rule), Deny>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Write<'_> {}
    impl Sealed for super::Read {}
    impl Sealed for super::Relay<'_> {}
    impl Sealed for super::Administer<'_> {}
}

/// The proof that policy allowed one operation. Made by [`Policy::authorize`] alone, not cloneable.
#[derive(Debug)]
pub struct Permit<O> {
    scope: Scope,
    rule: Rule,
    object: O,
    principal: Arc<Principal>,
    epoch: u64,
}

impl<O> Permit<O> {
    /// What it reaches.
    #[must_use]
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The line of the policy that allowed it.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// What it allows.
    #[must_use]
    pub const fn object(&self) -> &O {
        &self.object
    }

    /// Whom it allows.
    #[must_use]
    pub const fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// The policy it was made under.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The one tenant it reaches, if it is one.
    #[must_use]
    pub const fn tenant(&self) -> Option<&Arc<Tenant>> {
        match &self.scope {
            Scope::One(tenant) => Some(tenant),
            Scope::All => None,
        }
    }
}

/// The policy in force: the tenants of the bundle under one epoch. Immutable; replaced as a whole.
#[derive(Debug)]
pub struct Policy {
    epoch: u64,
    tenants: Arc<Tenants>,
}

impl Policy {
    /// The policy over these tenants.
    #[must_use]
    pub const fn new(epoch: u64, tenants: Arc<Tenants>) -> Self {
        Self { epoch, tenants }
    }

    /// The epoch; cached decisions hold for one epoch only.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The tenants it knows.
    #[must_use]
    pub const fn tenants(&self) -> &Arc<Tenants> {
        &self.tenants
    }

    /// Decides one operation of one principal.
    ///
    /// # Errors
    /// The catalogued reason why not.
    pub fn authorize<O: Operation>(&self, principal: &Arc<Principal>, object: O) -> Result<Permit<O>, Deny> {
        let (scope, rule) = object.decide(self, principal)?;
        Ok(Permit { scope, rule, object, principal: Arc::clone(principal), epoch: self.epoch })
    }

    /// Decides whether a message that `rule` lets into `tenant` may ask for replies to `reply`: whoever answers writes
    /// there, so the sender must be allowed to itself. Its own reply inboxes need no allow line.
    ///
    /// # Errors
    /// The catalogued reason why not.
    pub fn check_reply(principal: &Principal, tenant: &Tenant, rule: &Rule, reply: RawName<'_>) -> Result<(), Deny> {
        let section = tenant.section();
        match rule {
            Rule::Own if reply.tokens().next() == Some(REPLY_TOKEN) => {
                reply_owner_rule(&section, principal, reply.tokens())
            }
            Rule::Own => own_rules(&section, principal, true, |f| f.matches(reply)),
            Rule::Grant(_) => {
                let granted = grant_of(&section, principal.tenant(), true, |f| f.matches(reply));
                granted.map(|_| ()).ok_or(Deny::CrossTenant)
            }
            Rule::Node | Rule::Internal | Rule::Superuser => Ok(()),
        }
    }

    fn tenant(&self, id: &str) -> Result<Arc<Tenant>, Deny> {
        self.tenants.by_id(id).cloned().ok_or(Deny::UnknownTenant)
    }

    /// The answer for a name outside the caller's tenant that no rule allows: the same for tenants that exist and
    /// tenants that do not.
    fn foreign(&self, id: &str) -> Result<(Scope, Rule), Deny> {
        match self.tenants.by_id(id) {
            Some(tenant) if off(Guard::CrossTenant) => Ok((Scope::One(Arc::clone(tenant)), Rule::Own)),
            _ => Err(Deny::CrossTenant),
        }
    }
}

impl Operation for Write<'_> {
    const ACCESS: Access = Access::Write;

    fn decide(&self, policy: &Policy, principal: &Principal) -> Result<(Scope, Rule), Deny> {
        let destination = &self.0;
        let own = principal.tenant().as_str() == destination.tenant();
        if is_advisory(destination) && principal.role() != Role::Internal {
            return Err(if own { Deny::AdvisoryWrite } else { Deny::CrossTenant });
        }
        match principal.role() {
            Role::Node => Err(Deny::Role),
            Role::Internal if own => Ok((Scope::One(policy.tenant(destination.tenant())?), Rule::Internal)),
            Role::Internal => Err(Deny::CrossTenant),
            // In its own tenant a superuser is an agent like any other, and may answer requests.
            Role::Superuser if own => Ok((Scope::One(policy.tenant(destination.tenant())?), Rule::Own)),
            Role::Superuser => Ok((Scope::One(policy.tenant(destination.tenant())?), Rule::Superuser)),
            Role::Tenant if own => {
                let tenant = policy.tenant(destination.tenant())?;
                own_rules(&tenant.section(), principal, true, |f| f.matches(destination.raw()))?;
                Ok((Scope::One(tenant), Rule::Own))
            }
            Role::Tenant => match policy.tenants.by_id(destination.tenant()) {
                Some(tenant) => grant(tenant, principal.tenant(), true, |f| f.matches(destination.raw()))
                    .map_or_else(|| policy.foreign(destination.tenant()), Ok),
                None => policy.foreign(destination.tenant()),
            },
        }
    }
}

impl Operation for Read {
    const ACCESS: Access = Access::Read;

    fn decide(&self, policy: &Policy, principal: &Principal) -> Result<(Scope, Rule), Deny> {
        let filter = &self.0;
        let TenantPattern::One(id) = filter.tenant() else {
            return match principal.role() {
                Role::Superuser => Ok((Scope::All, Rule::Superuser)),
                Role::Node | Role::Internal => Err(Deny::Role),
                Role::Tenant => Err(Deny::AllTenants),
            };
        };
        let own = principal.tenant() == id;
        match principal.role() {
            Role::Node => Err(Deny::Role),
            Role::Internal if own => Ok((Scope::One(policy.tenant(id.as_str())?), Rule::Internal)),
            Role::Internal => Err(Deny::CrossTenant),
            Role::Superuser if own => Ok((Scope::One(policy.tenant(id.as_str())?), Rule::Own)),
            Role::Superuser => Ok((Scope::One(policy.tenant(id.as_str())?), Rule::Superuser)),
            Role::Tenant if own => {
                let tenant = policy.tenant(id.as_str())?;
                read_owner_rules(&tenant.section(), principal, filter.raw())?;
                own_rules(&tenant.section(), principal, false, |f| f.covers(filter.raw()))?;
                Ok((Scope::One(tenant), Rule::Own))
            }
            Role::Tenant => match policy.tenants.by_id(id.as_str()) {
                Some(tenant) => grant(tenant, principal.tenant(), false, |f| f.covers(filter.raw()))
                    .map_or_else(|| policy.foreign(id.as_str()), Ok),
                None => policy.foreign(id.as_str()),
            },
        }
    }
}

impl Operation for Relay<'_> {
    const ACCESS: Access = Access::Write;

    fn decide(&self, _policy: &Policy, principal: &Principal) -> Result<(Scope, Rule), Deny> {
        if principal.role() != Role::Node || principal.node() != Some(self.edge.peer()) {
            return Err(Deny::Role);
        }
        if !self.edge.may_receive(self.tenant.key()) {
            return Err(Deny::EdgeTenant);
        }
        Ok((Scope::One(Arc::clone(self.tenant)), Rule::Node))
    }
}

impl Operation for Administer<'_> {
    const ACCESS: Access = Access::Read;

    fn decide(&self, policy: &Policy, principal: &Principal) -> Result<(Scope, Rule), Deny> {
        match (principal.role(), self.tenant) {
            (Role::Superuser, None) => Ok((Scope::All, Rule::Superuser)),
            (Role::Superuser, Some(id)) => Ok((Scope::One(policy.tenant(id)?), Rule::Superuser)),
            (Role::Tenant, Some(id)) if id == principal.tenant().as_str() => {
                Ok((Scope::One(policy.tenant(id)?), Rule::Own))
            }
            (Role::Tenant, _) => Err(Deny::CrossTenant),
            (Role::Node | Role::Internal, _) => Err(Deny::Role),
        }
    }
}

fn is_advisory(destination: &Destination<'_>) -> bool {
    destination.class() == Class::Ctrl && destination.raw().tokens().next() == Some(ADVISORY_TOKEN)
}

/// A tenant's own allow and deny lists: deny wins; an agent with any allow line of this kind needs one that fits.
fn own_rules(
    section: &Section,
    principal: &Principal,
    write: bool,
    fits: impl Fn(&RawFilter) -> bool,
) -> Result<(), Deny> {
    let (mut has_allow, mut allowed) = (false, false);
    for rule in section.rules.iter().filter(|r| r.write == write && applies(r, principal)) {
        match (rule.deny, fits(&rule.filter)) {
            (true, true) => return Err(Deny::DenyList),
            (true, false) => {}
            (false, fit) => {
                has_allow = true;
                allowed |= fit;
            }
        }
    }
    if has_allow && !allowed { Err(Deny::NotInAllowList) } else { Ok(()) }
}

fn applies(rule: &crate::bundle::AgentRule, principal: &Principal) -> bool {
    // A rule that names a region or agent is meant for named principals; for a nameless one, a deny applies and an
    // allow does not.
    let part = |wanted: &Option<Label>, have: Option<&Label>| match (wanted, have) {
        (None, _) => true,
        (Some(wanted), Some(have)) => wanted == have,
        (Some(_), None) => rule.deny,
    };
    part(&rule.region, principal.region()) && part(&rule.agent, principal.agent())
}

fn grant(
    tenant: &Arc<Tenant>,
    caller: &TenantId,
    write: bool,
    fits: impl Fn(&RawFilter) -> bool,
) -> Option<(Scope, Rule)> {
    let section = tenant.section();
    let found = grant_of(&section, caller, write, fits)?;
    Some((Scope::One(Arc::clone(tenant)), Rule::Grant(found.name.clone())))
}

fn grant_of<'s>(
    section: &'s Section,
    caller: &TenantId,
    write: bool,
    fits: impl Fn(&RawFilter) -> bool,
) -> Option<&'s Grant> {
    section.grants.iter().find(|g| g.write == write && g.tenant == *caller && fits(&g.filter))
}

/// The first token of reply subjects.
pub const REPLY_TOKEN: &str = "_INBOX";

/// Inboxes and, where the tenant says so, reply subjects are named in a filter by their owner only.
fn read_owner_rules(section: &Section, principal: &Principal, filter: &RawFilter) -> Result<(), Deny> {
    if filter.inbox_owner().is_some_and(|owner| !is_owner(section, principal, owner)) {
        return Err(Deny::InboxOwner);
    }
    reply_owner_rule(section, principal, filter.tokens())
}

/// Where the tenant says so, reply subjects belong to the agent they name.
fn reply_owner_rule<'n>(
    section: &Section,
    principal: &Principal,
    mut tokens: impl Iterator<Item = &'n str>,
) -> Result<(), Deny> {
    if !section.owner_only_replies || tokens.next() != Some(REPLY_TOKEN) {
        return Ok(());
    }
    let owner = tokens.next().zip(tokens.next());
    if owner.is_some_and(|owner| is_owner(section, principal, owner)) { Ok(()) } else { Err(Deny::ReplyOwner) }
}

fn is_owner(section: &Section, principal: &Principal, (region, agent): (&str, &str)) -> bool {
    section.tenant == *principal.tenant()
        && principal.named().is_some_and(|(r, a)| r.as_str() == region && a.as_str() == agent)
}

/// Whether a session of `principal`, subscribed in its own tenant by a wider filter, may be given `raw`: the check at
/// delivery that goes with the one at subscription.
#[must_use]
pub fn may_deliver(section: &Section, principal: &Principal, raw: RawName<'_>) -> bool {
    if principal.role() != Role::Tenant {
        return true;
    }
    if raw.inbox_owner().is_some_and(|owner| !is_owner(section, principal, owner)) {
        return false;
    }
    if reply_owner_rule(section, principal, raw.tokens()).is_err() {
        return false;
    }
    section.tenant != *principal.tenant() || own_rules(section, principal, false, |f| f.matches(raw)).is_ok()
}

#[cfg(test)]
mod tests;
