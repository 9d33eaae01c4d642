//! Whether a broker would admit a certificate, step by step, and as whom.
//!
//! The steps are those of a broker's handshake: the file, the names, the path to the root, the bundle, the dates, the
//! issuer's binding, revocation and role. The first that fails ends the list with its catalogued reason.

use glocal_core::bundle::Bundle;
use glocal_core::deny::Deny;
use glocal_core::identity::{KeyId, LeafName, Principal, Role, leaf_name};
use glocal_core::time::UnixTime;
use glocal_wire::bundle::Envelope;
use rustls_pki_types::CertificateDer;

use crate::bundle;
use crate::chain::{self, Usage};
use crate::inspect::{date, hex, inspect};
use crate::pki;

/// One step and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is checked, in one word.
    pub name: &'static str,
    /// Whether it holds.
    pub passed: bool,
    /// What was found.
    pub text: String,
    /// The catalogued reason, when it does not hold and there is one.
    pub deny: Option<Deny>,
}

/// The whole answer.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The steps, up to the first that fails.
    pub steps: Vec<Step>,
    /// Who the certificate speaks for, when it is admitted.
    pub principal: Option<Principal>,
}

impl Explanation {
    /// Whether a broker would admit it.
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        self.principal.is_some()
    }

    /// The catalogued reason why not.
    #[must_use]
    pub fn deny(&self) -> Option<Deny> {
        self.steps.last().and_then(|step| step.deny)
    }

    fn pass(&mut self, name: &'static str, text: impl Into<String>) {
        self.steps.push(Step { name, passed: true, text: text.into(), deny: None });
    }

    fn fail(mut self, name: &'static str, text: impl Into<String>, deny: Option<Deny>) -> Self {
        self.steps.push(Step { name, passed: false, text: text.into(), deny });
        self
    }
}

/// Explains what a broker that trusts `roots` and holds `bundle` makes of a presented chain, leaf first.
#[must_use]
pub fn explain(
    presented: &[CertificateDer<'_>],
    roots: &[CertificateDer<'_>],
    envelope: &Envelope,
    now: UnixTime,
) -> Explanation {
    let mut answer = Explanation { steps: Vec::new(), principal: None };
    let Some((leaf, others)) = presented.split_first() else {
        return answer.fail("file", "it holds no certificate", Some(Deny::NoCertificate));
    };
    let subject = match inspect(leaf) {
        Ok(certificate) => certificate,
        Err(error) => return answer.fail("file", error.to_string(), Some(Deny::CertMalformed)),
    };
    let parts: Vec<String> =
        subject.subject.iter().map(|a| format!("{}={} ({})", a.name, a.value, a.string_type)).collect();
    let parts = if parts.is_empty() { "an empty subject".to_owned() } else { parts.join(" · ") };
    answer.pass("file", format!("{} certificate(s); the leaf's subject is {parts}", presented.len()));
    let name = match leaf_name(leaf) {
        Ok(name) => name,
        Err(deny) => return answer.fail("names", deny.text(""), Some(deny)),
    };
    answer.pass("names", named(&name));
    let verified = match chain::verify(leaf, others, roots, Usage::Client, now) {
        Ok(verified) => verified,
        Err(error) => return answer.fail("chain", error.text, Some(error.deny)),
    };
    let decoys = chain::unused(others, verified.issuer).len();
    let ignored =
        if decoys > 0 { format!("; {decoys} other certificate(s) in the file ignored") } else { String::new() };
    answer.pass("chain", format!("leads to a trusted root; the key that signed it is {}{ignored}", verified.issuer));
    let checked = match bundle::verify(envelope, roots, now) {
        Ok(checked) => checked,
        Err(error) => return answer.fail("bundle", error.to_string(), None),
    };
    let head = checked.head();
    let bundle_text = format!(
        "fabric '{}', epoch {}, version {}, expires {}",
        head.fabric,
        head.epoch,
        head.version,
        date(head.expires)
    );
    admission(answer, leaf, name, verified.issuer, &checked, &bundle_text, now)
}

fn named(name: &LeafName) -> String {
    let mut text = format!("tenant '{}'", name.tenant);
    match (&name.region, &name.agent) {
        (Some(region), Some(agent)) => text.push_str(&format!(", region '{region}', agent '{agent}'")),
        _ => text.push_str(", nameless: OU or CN is absent or ill-formed, so no inbox and never a node"),
    }
    if let Some(node) = &name.node {
        text.push_str(&format!(", node name '{node}'"));
    }
    text
}

/// The bundle's part: one decision, told as the steps it is made of.
fn admission(
    mut answer: Explanation,
    leaf: &CertificateDer<'_>,
    name: LeafName,
    issuer: KeyId,
    bundle: &Bundle,
    bundle_text: &str,
    now: UnixTime,
) -> Explanation {
    // A broker's leaf with a tenant as its O is for that tenant's connections alone.
    let own = name.node.is_some().then(|| bundle.admit_node(&name, issuer, now));
    let for_tenant = own == Some(Err(Deny::IssuerBinding)) && bundle.admit_tenant_leaf(&name, issuer, now).is_ok();
    let decision = if for_tenant {
        Ok(Role::Node)
    } else if let Some(own) = own {
        own.map(|_| Role::Node)
    } else {
        bundle.admit_client(&name, issuer, now)
    };
    let dates = format!("valid from {} to {}", date(name.not_before), date(name.not_after));
    let kind = if name.node.is_some() { "node" } else { "agent" };
    let region = name.region.as_ref().map_or("-", |r| r.as_str());
    let binding = format!("the bundle lets this issuer issue {kind}s of tenant '{}' in region '{region}'", name.tenant);
    let order = ["bundle", "dates", "binding", "revocation"];
    let passed = [bundle_text, dates.as_str(), binding.as_str(), "not revoked"];
    let stop = decision.as_ref().err().map(|deny| (step_of(*deny), *deny));
    let details = [
        bundle_text.to_owned(),
        dates.clone(),
        format!("{kind} of tenant '{}' in region '{region}', signed by {issuer}", name.tenant),
        format!("serial {}, valid from {}", hex(&name.serial), date(name.not_before)),
    ];
    for ((step, text), detail) in order.into_iter().zip(passed).zip(details) {
        if let Some((failed, deny)) = stop
            && failed == step
        {
            return answer.fail(step, format!("{} ({detail})", deny.text(name.tenant.as_str())), Some(deny));
        }
        answer.pass(step, text);
    }
    match decision {
        Ok(role) => {
            let principal = Principal::from_leaf(name, role, issuer, pki::fingerprint(leaf));
            let port = match (principal.node().is_some(), for_tenant) {
                (true, true) => "for its tenant's connections on dedicated edges",
                (true, false) => "on a bridge port",
                (false, _) => "on a client port",
            };
            answer.pass("role", format!("admitted {port} as {role}: {principal}"));
            answer.principal = Some(principal);
            answer
        }
        Err(deny) => {
            let text = deny.text(name.tenant.as_str());
            answer.fail("role", text, Some(deny))
        }
    }
}

const fn step_of(deny: Deny) -> &'static str {
    match deny {
        Deny::BundleExpired => "bundle",
        Deny::CertExpired | Deny::CertNotYetValid => "dates",
        Deny::UnknownTenant | Deny::UnknownNode | Deny::IssuerBinding => "binding",
        Deny::CertRevoked => "revocation",
        _ => "role",
    }
}
