//! The cryptography of link state: this node's link key in this life, and the words of other brokers.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use glocal_core::name::{Label, NodeId};
use glocal_core::topology::{LinkCrypto, LinkKey, PublicKey, Signature};
use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::{NodeIdentity, Usage, unix_now};

/// Who may verify that a chain is of a broker, by the trust in force.
pub(crate) type Admit = Box<dyn Fn(&[CertificateDer<'_>], Usage) -> Option<NodeId> + Send>;

/// This node's link key, certified by its leaf.
pub struct NodeLinkCrypto {
    pair: Ed25519KeyPair,
    own: LinkKey,
    admit: Admit,
}

impl std::fmt::Debug for NodeLinkCrypto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLinkCrypto").field("own", &self.own.node).finish_non_exhaustive()
    }
}

/// Why a node has no link key.
#[derive(Debug, thiserror::Error)]
pub enum LinkKeyError {
    /// No key could be made.
    #[error("no link key could be made")]
    Make,
    /// The node's private key does not sign.
    #[error("the node's key does not sign its link key")]
    Sign(#[source] rustls::Error),
}

impl NodeLinkCrypto {
    /// Makes the link key of one life of this node, and has it signed by the node's own key.
    ///
    /// # Errors
    /// When no key can be made, or the node's key is of a kind that signs nothing.
    pub fn make(fabric: &Label, identity: &NodeIdentity, incarnation: u64, admit: Admit) -> Result<Self, LinkKeyError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| LinkKeyError::Make)?;
        let key: PublicKey = pair.public_key().as_ref().try_into().map_err(|_| LinkKeyError::Make)?;
        let bytes = LinkKey::signed_bytes(fabric, identity.node(), incarnation, &key);
        let certified = identity.certified_key();
        let schemes = super::tls::signature_algorithms().supported_schemes();
        let signer = certified.key.choose_scheme(&schemes);
        let signer = signer.ok_or_else(|| LinkKeyError::Sign(rustls::Error::General("no scheme fits".to_owned())))?;
        let signature = signer.sign(&bytes).map_err(LinkKeyError::Sign)?;
        let chain = identity.chain().iter().map(|certificate| certificate.to_vec()).collect();
        let own = LinkKey { node: identity.node().clone(), incarnation, key, chain, signature };
        Ok(Self { pair, own, admit })
    }
}

impl LinkCrypto for NodeLinkCrypto {
    fn own_key(&self) -> LinkKey {
        self.own.clone()
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        let mut out = [0; 64];
        out.iter_mut().zip(self.pair.sign(bytes).as_ref()).for_each(|(slot, byte)| *slot = *byte);
        out
    }

    fn verify_key(&self, key: &LinkKey, bytes: &[u8]) -> bool {
        let chain: Vec<CertificateDer<'_>> = key.chain.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
        let admitted =
            [Usage::Client, Usage::Server].iter().any(|usage| (self.admit)(&chain, *usage).as_ref() == Some(&key.node));
        let Some(leaf) = chain.first().filter(|_| admitted) else { return false };
        let Ok(leaf) = EndEntityCert::try_from(leaf) else { return false };
        let algorithms = super::tls::signature_algorithms().all;
        algorithms.iter().any(|algorithm| leaf.verify_signature(*algorithm, bytes, &key.signature).is_ok())
    }

    fn is_own(&self, key: &LinkKey) -> bool {
        // A renewed certificate has the same key.
        let key_of = |chain: &[Vec<u8>]| {
            let leaf = CertificateDer::from(chain.first()?.as_slice());
            let leaf = EndEntityCert::try_from(&leaf).ok()?;
            Some(super::chain::key_id(&leaf.subject_public_key_info()))
        };
        let own = key_of(&self.own.chain);
        own.is_some() && own == key_of(&key.chain)
    }

    fn verify(&self, key: &PublicKey, bytes: &[u8], signature: &Signature) -> bool {
        UnparsedPublicKey::new(&ED25519, key).verify(bytes, signature).is_ok()
    }
}

/// Says by `trust`, whatever it is at the time, whether a chain is of a broker of the fabric.
pub fn admit_by<T>(trust: impl Fn() -> T + Send + 'static) -> Admit
where
    T: std::ops::Deref<Target = super::Trust>,
{
    Box::new(move |chain, usage| trust().admit_broker(chain, usage, unix_now()).ok())
}
