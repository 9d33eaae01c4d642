//! Who may connect: what the bundle says of a leaf whose chain was verified.
//!
//! The caller has verified signatures and takes the issuer from the verified path. Every function here ends in a
//! refusal unless an entry of the bundle says otherwise.

use std::collections::{BTreeMap, BTreeSet};

use super::checked::TenantEntry;
use super::{Bundle, BundleError, BundleState, Revocation};
use crate::deny::Deny;
use crate::guard::{self, Guard};
use crate::identity::{KeyId, LeafName, Role};
use crate::limits::SERIAL_BYTES_MAX;
use crate::name::{Label, NodeId};
use crate::time::UnixTime;

impl Bundle {
    /// Decides whether a leaf may open a new client session, and in which role.
    ///
    /// The role is [`Role::Superuser`] when the head lists the tenant; local configuration may narrow that.
    ///
    /// # Errors
    /// Why not.
    pub fn admit_client(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<Role, Deny> {
        self.check_new(now)?;
        self.client_role(leaf, issuer, now)
    }

    /// Decides whether a client session that exists may stay, as [`Bundle::admit_client`] does but through the grace
    /// after the bundle's expiry.
    ///
    /// # Errors
    /// Why not.
    pub fn retain_client(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<Role, Deny> {
        self.check_live(now)?;
        self.client_role(leaf, issuer, now)
    }

    /// Decides whether a leaf may open or accept a new bridge, and as which broker.
    ///
    /// # Errors
    /// Why not.
    pub fn admit_node(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<NodeId, Deny> {
        self.check_new(now)?;
        self.node_of(leaf, issuer, now)
    }

    /// Decides whether a bridge that exists may stay, as [`Bundle::admit_node`] does but through the grace after the
    /// bundle's expiry.
    ///
    /// # Errors
    /// Why not.
    pub fn retain_node(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<NodeId, Deny> {
        self.check_live(now)?;
        self.node_of(leaf, issuer, now)
    }

    /// Decides whether a leaf may stand for one tenant at one end of a connection that a dedicated edge gives that tenant,
    /// and at which broker. It is a leaf of a broker in all but its `O`, which names the tenant.
    ///
    /// # Errors
    /// Why not.
    pub fn admit_tenant_leaf(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<NodeId, Deny> {
        self.check_new(now)?;
        self.node_for_tenant(leaf, issuer, now)
    }

    /// Decides whether a connection under such a leaf may stay, as [`Bundle::admit_tenant_leaf`] does but through the
    /// grace after the bundle's expiry.
    ///
    /// # Errors
    /// Why not.
    pub fn retain_tenant_leaf(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<NodeId, Deny> {
        self.check_live(now)?;
        self.node_for_tenant(leaf, issuer, now)
    }

    /// Whether sessions without a certificate may be opened as `tenant`: it must be in the bundle, be no superuser, and
    /// be issued by no CA.
    ///
    /// # Errors
    /// Why not.
    pub fn admit_anonymous(&self, tenant: &str, now: UnixTime) -> Result<(), Deny> {
        self.check_new(now)?;
        self.check_anonymous(tenant)
    }

    /// Whether sessions without a certificate that exist may stay, as [`Bundle::admit_anonymous`] but through the
    /// grace after the bundle's expiry.
    ///
    /// # Errors
    /// Why not.
    pub fn retain_anonymous(&self, tenant: &str, now: UnixTime) -> Result<(), Deny> {
        self.check_live(now)?;
        self.check_anonymous(tenant)
    }

    fn check_anonymous(&self, tenant: &str) -> Result<(), Deny> {
        let section = self.section(tenant).ok_or(Deny::UnknownTenant)?;
        if self.is_superuser(tenant) || !section.issuers.is_empty() {
            return Err(Deny::Role);
        }
        Ok(())
    }

    fn check_new(&self, now: UnixTime) -> Result<(), Deny> {
        match self.state(now) {
            BundleState::Fresh | BundleState::Ageing => Ok(()),
            BundleState::Grace | BundleState::Dead => Err(Deny::BundleExpired),
        }
    }

    fn check_live(&self, now: UnixTime) -> Result<(), Deny> {
        match self.state(now) {
            BundleState::Fresh | BundleState::Ageing | BundleState::Grace => Ok(()),
            BundleState::Dead => Err(Deny::BundleExpired),
        }
    }

    fn client_role(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<Role, Deny> {
        if leaf.node.is_some() {
            return Err(Deny::NodeOnClientPort);
        }
        check_dates(leaf, now)?;
        let entry = self.tenant(&leaf.tenant).ok_or(Deny::UnknownTenant)?;
        if !entry.may_issue(issuer, leaf.region.as_ref()) && !guard::off(Guard::IssuerBinding) {
            return Err(Deny::IssuerBinding);
        }
        if entry.revocations.covers(leaf, issuer) {
            return Err(Deny::CertRevoked);
        }
        Ok(if self.is_superuser(leaf.tenant.as_str()) { Role::Superuser } else { Role::Tenant })
    }

    fn node_of(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<NodeId, Deny> {
        let node = match (&leaf.node, &leaf.region, &leaf.agent) {
            (Some(node), ..) => node.clone(),
            (None, Some(region), Some(agent)) if guard::off(Guard::NodeName) => {
                NodeId::new(region.clone(), agent.clone())
            }
            _ => return Err(Deny::ClientOnBridgePort),
        };
        check_dates(leaf, now)?;
        let entry = self.nodes.get(&node).ok_or(Deny::UnknownNode)?;
        let bound = entry.tenant == leaf.tenant && entry.issuers.contains(&issuer);
        if !bound && !guard::off(Guard::IssuerBinding) {
            return Err(Deny::IssuerBinding);
        }
        self.check_node_revoked(leaf, issuer)?;
        Ok(node)
    }

    /// The tenant must be in the bundle, and the issuer one that may issue this broker: who may issue a tenant's agents
    /// makes no brokers.
    fn node_for_tenant(&self, leaf: &LeafName, issuer: KeyId, now: UnixTime) -> Result<NodeId, Deny> {
        let node = leaf.node.clone().ok_or(Deny::ClientOnBridgePort)?;
        check_dates(leaf, now)?;
        let entry = self.nodes.get(&node).ok_or(Deny::UnknownNode)?;
        self.tenant(&leaf.tenant).ok_or(Deny::UnknownTenant)?;
        if !entry.issuers.contains(&issuer) && !guard::off(Guard::IssuerBinding) {
            return Err(Deny::IssuerBinding);
        }
        self.check_node_revoked(leaf, issuer)?;
        Ok(node)
    }

    fn check_node_revoked(&self, leaf: &LeafName, issuer: KeyId) -> Result<(), Deny> {
        // The operator's section may be missing here, so revocations of brokers stand in the head as well.
        let in_section = self.tenant(&leaf.tenant).is_some_and(|tenant| tenant.revocations.covers(leaf, issuer));
        if in_section || self.node_revocations.covers(leaf, issuer) {
            return Err(Deny::CertRevoked);
        }
        Ok(())
    }
}

impl TenantEntry {
    /// Whether the key may issue agents of this tenant in the region. A leaf without a region names none it could
    /// abuse, so any binding of the key to this tenant will do.
    fn may_issue(&self, issuer: KeyId, region: Option<&Label>) -> bool {
        let entry =
            self.issuers.binary_search_by_key(&issuer, |(key, _)| *key).ok().and_then(|at| self.issuers.get(at));
        entry.is_some_and(|(_, regions)| region.is_none_or(|region| regions.binary_search(region).is_ok()))
    }
}

fn check_dates(leaf: &LeafName, now: UnixTime) -> Result<(), Deny> {
    if now < leaf.not_before {
        Err(Deny::CertNotYetValid)
    } else if now > leaf.not_after {
        Err(Deny::CertExpired)
    } else {
        Ok(())
    }
}

/// Revocations by what a leaf is looked up with.
#[derive(Clone, Debug, Default)]
pub(super) struct RevocationIndex {
    serials: BTreeMap<KeyId, BTreeSet<Vec<u8>>>,
    /// By agent (`None` for all of a region), then region: certificates older than the date are revoked.
    before: BTreeMap<Option<Label>, BTreeMap<Label, UnixTime>>,
}

impl RevocationIndex {
    pub(super) fn build(revocations: &[Revocation], owner: impl Fn() -> String) -> Result<Self, BundleError> {
        let mut index = Self::default();
        for revocation in revocations {
            match revocation {
                Revocation::Serial { issuer, serial } => {
                    // Leaves are looked up by their serial without leading zeros: any other form would never match.
                    if serial.len() > SERIAL_BYTES_MAX || serial.first().is_none_or(|first| *first == 0) {
                        return Err(BundleError::Serial { owner: owner() });
                    }
                    index.serials.entry(*issuer).or_default().insert(serial.clone());
                }
                Revocation::IssuedBefore { region, agent, before } => {
                    let dates = index.before.entry(agent.clone()).or_default();
                    let date = dates.entry(region.clone()).or_insert(*before);
                    *date = (*date).max(*before);
                }
            }
        }
        Ok(index)
    }

    /// Whether the leaf is revoked. A leaf without a region is taken to be of every region.
    fn covers(&self, leaf: &LeafName, issuer: KeyId) -> bool {
        if self.serials.get(&issuer).is_some_and(|serials| serials.contains(leaf.serial.as_slice())) {
            return true;
        }
        let issued_before = |agent: &Option<Label>| {
            self.before.get(agent).is_some_and(|dates| match &leaf.region {
                Some(region) => dates.get(region).is_some_and(|date| leaf.not_before < *date),
                None => dates.values().any(|date| leaf.not_before < *date),
            })
        };
        issued_before(&None) || (leaf.agent.is_some() && issued_before(&leaf.agent))
    }
}
