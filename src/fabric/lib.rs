//! Fabric plans, certificates and signed bundles of the Glocal mesh.
//!
//! One readable plan, [`Plan`], becomes a PKI, a signed bundle and a directory per broker and agent with [`apply()`].
//! Guarantees: a plan with any mistake changes nothing; nothing that exists is overwritten but bundles by newer bundles;
//! private keys are readable by their owner only from the moment they exist. Never: a network, or a secret in a message.

pub mod apply;
pub mod bundle;
pub mod chain;
pub mod diff;
pub mod explain;
mod files;
pub mod inspect;
pub mod issue;
pub mod node_config;
pub mod pki;
pub mod plan;
pub mod sign;
pub mod testing;

pub use apply::{Action, Applied, ApplyError, Conflict, Event, apply, apply_above, preview, preview_empty};
pub use plan::{Plan, PlanError};
