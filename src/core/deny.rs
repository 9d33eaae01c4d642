//! The deny catalogue: every reason an operation or a connection is refused (DESIGN section 4).
//!
//! One entry is the code, the log text, the metric label and the row in `docs/DENY-REASONS.md`; a test holds them
//! together. Where Cresco has a reason string, the text is Cresco's.

use std::fmt;

use crate::identity::Principal;
use crate::limits::LOG_FIELD_BYTES_MAX;
use crate::name::NameError;

macro_rules! catalogue {
    ($($(#[doc = $doc:literal])+ $variant:ident = $code:literal, $text:literal;)*) => {
        /// Why an operation or a connection was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Deny { $($(#[doc = $doc])+ $variant,)* }

        impl Deny {
            /// Every reason, in the order of the catalogue.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable code: metric label and protocol field.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// The log text; `{own}` stands for the caller's own tenant.
            #[must_use]
            pub const fn template(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What the reason means and what to do about it, for the documentation.
            #[must_use]
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)* }
            }
        }
    };
}

catalogue! {
    /// The destination or filter is empty.
    NoDestination = "no-destination", "null/empty destination";
    /// The name is not in the grammar: empty token, control character, space, bad UTF-8, too long or too deep.
    MalformedName = "malformed-name", "malformed destination";
    /// A comma in a qualified name; there are no composite destinations. Publish to each one.
    CompositeDestination = "composite-destination", "composite destination";
    /// The class token of a qualified name is none of live, ctrl, tele, bulk.
    UnknownClass = "unknown-class", "unknown class";
    /// The connection has no identity on a node that requires one.
    Unidentified = "unidentified", "unidentified principal on secured connection";
    /// The name lies in another tenant's subtree and no grant covers it.
    CrossTenant = "cross-tenant", "cross-tenant namespaced dest (own tenant '{own}')";
    /// The filter spans all tenants, which only a superuser may read.
    AllTenants = "all-tenants", "cross-tenant namespaced dest (own tenant '{own}')";
    /// The inbox belongs to another agent of the same tenant.
    InboxOwner = "inbox-owner", "read of peer inbox in region denied";
    /// The reply subject belongs to another agent of the same tenant.
    ReplyOwner = "reply-owner", "reply subject of another agent";
    /// Only the node itself writes advisories.
    AdvisoryWrite = "advisory-write", "advisories are written by the node only";
    /// The tenant's own deny list names this.
    DenyList = "deny-list", "denied by the tenant's own rules";
    /// The tenant's own allow list does not name this.
    NotInAllowList = "not-in-allow-list", "not in the tenant's own allow rules";
    /// The tenant of this lane is not allowed on this edge.
    EdgeTenant = "edge-tenant", "tenant not allowed on this edge";
    /// The tenant is not in the signed bundle, or its section is out of date.
    UnknownTenant = "unknown-tenant", "tenant is not in the fabric";
    /// This role may not do this.
    Role = "role", "role may not do this";
    /// A limit of the session or the node is reached; see the documentation of limits.
    Limit = "limit", "limit reached";
    /// The session or its tenant publishes more than it may in messages or bytes per second. Try again when told, or publish less.
    Rate = "rate-limited", "rate limit exceeded";
    /// A broker or session that must take the message did not keep up for five seconds. Try again later, or publish less.
    Congested = "congested", "a subscriber or its broker does not keep up";
    /// For five seconds there was no memory to read a large message into: others of the tenant are being read, or it holds too
    /// much otherwise. The session ends. Publish fewer large messages at a time, or allow the tenant more memory.
    Memory = "memory", "no memory left for a large message of this tenant";
    /// The payload is larger than the fabric allows.
    PayloadTooLarge = "payload-too-large", "maximum payload exceeded";
    /// The certificate cannot be parsed.
    CertMalformed = "cert-malformed", "certificate cannot be parsed";
    /// The certificate's subject has no O.
    CertNoTenant = "cert-no-tenant", "certificate has no O";
    /// The certificate's subject has more than one O.
    CertAmbiguousTenant = "ambiguous-tenant", "certificate has more than one O";
    /// The O is neither a UTF8String nor a PrintableString.
    CertStringType = "unsupported-string-type", "certificate O is not a UTF8String or PrintableString";
    /// The O is not a valid tenant id.
    CertBadTenant = "cert-bad-tenant", "certificate O is not a valid tenant id";
    /// The subject has more than one OU or CN.
    CertAmbiguousName = "ambiguous-name", "certificate has more than one OU or CN";
    /// A node's URI SAN does not equal its OU and CN, or there is more than one.
    CertNodeName = "cert-node-name", "certificate's node name does not match its OU and CN";
    /// The chain does not lead to a root of this fabric.
    CertUntrusted = "cert-untrusted", "certificate is not issued by this fabric";
    /// The certificate has expired.
    CertExpired = "cert-expired", "certificate has expired";
    /// The certificate is not valid yet; check the local clock.
    CertNotYetValid = "cert-not-yet-valid", "certificate is not valid yet (check the local clock)";
    /// The certificate may not be used this way.
    CertUsage = "cert-usage", "certificate is not for this use";
    /// The certificate is revoked by the bundle.
    CertRevoked = "cert-revoked", "certificate is revoked";
    /// The issuing CA is trusted, but the bundle does not let it issue this tenant, region or role.
    IssuerBinding = "issuer-binding", "issuer may not issue this tenant, region or role";
    /// A broker's certificate was used on a client port.
    NodeOnClientPort = "node-on-client-port", "node certificate on a client port";
    /// A certificate without a node name was used on a bridge port.
    ClientOnBridgePort = "client-on-bridge-port", "client certificate on a bridge port";
    /// No client certificate was presented where one is required.
    NoCertificate = "no-certificate", "no client certificate";
    /// The peer broker is not in the bundle, or has no edge with this node.
    UnknownNode = "unknown-node", "node is not in the fabric";
    /// The signed bundle is past its grace: no new sessions.
    BundleExpired = "bundle-expired", "the fabric bundle has expired";
    /// The peer broke the protocol.
    Protocol = "protocol", "protocol error";
    /// The node is shutting down.
    ShuttingDown = "shutting-down", "node is shutting down";
}

impl Deny {
    /// The log text with the caller's own tenant filled in.
    #[must_use]
    pub fn text(self, own: &str) -> String {
        self.template().replace("{own}", own)
    }

    /// The index into counter arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Deny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl From<NameError> for Deny {
    fn from(error: NameError) -> Self {
        match error {
            NameError::Empty => Self::NoDestination,
            NameError::Composite => Self::CompositeDestination,
            NameError::UnknownClass => Self::UnknownClass,
            _ => Self::MalformedName,
        }
    }
}

/// What was attempted, as Cresco's log form names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Subscribing or receiving.
    Read,
    /// Publishing.
    Write,
}

impl Access {
    /// `READ` or `WRITE`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
        }
    }
}

/// Text of a peer made safe for a log line: escaped, and cut to [`LOG_FIELD_BYTES_MAX`].
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, cut) = match self.0.get(..LOG_FIELD_BYTES_MAX) {
            Some(head) if self.0.len() > LOG_FIELD_BYTES_MAX => (head, true),
            _ => (self.0, false),
        };
        for chunk in shown.utf8_chunks() {
            for c in chunk.valid().chars() {
                let blank = c.is_whitespace() && c != ' ';
                if c == '\'' || c == '\\' || c.is_control() || blank || is_invisible(c) {
                    write!(f, "{}", c.escape_unicode())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        if cut { write!(f, "…({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// Characters without a shape that change how those around them are shown, such as the direction of writing: a log
/// line must look like what it is.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// The log line of one refusal, in Cresco's form:
/// `DENY <READ|WRITE> '<dest>' for CrescoIdentity{tenant=…, region=…, agent=…, uid=…} : <reason>`.
pub struct DenyLine<'a> {
    /// What was attempted.
    pub access: Access,
    /// The destination or filter as the client wrote it.
    pub destination: &'a [u8],
    /// Who attempted it.
    pub principal: &'a Principal,
    /// Why it was refused.
    pub reason: Deny,
}

impl fmt::Display for DenyLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DENY {} '{}' for {} : {}",
            self.access.as_str(),
            Escaped(self.destination),
            self.principal,
            self.reason.text(self.principal.tenant().as_str())
        )
    }
}
