//! Values of configuration keys: small types with one fallible constructor each.

use std::fmt;
use std::path::{Path, PathBuf};

use glocal_core::name::TenantId;

/// A host name or address with a port, not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// A DNS name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
}

impl HostPort {
    /// Parses `host:port` or `[v6]:port`.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "is not of the form host:port".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = check_host(host)?;
        let port = port.parse::<u16>().ok().filter(|_| port.bytes().all(|b| b.is_ascii_digit())).ok_or_else(wrong)?;
        if port == 0 {
            return Err("needs a port from 1 to 65535".to_owned());
        }
        Ok(Self { host, port })
    }
}

/// A host name, an IPv4 address, or an IPv6 address in brackets; without brackets when it comes back.
pub(super) fn check_host(text: &str) -> Result<String, String> {
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match inner.parse::<std::net::Ipv6Addr>() {
            Ok(_) => Ok(inner.to_owned()),
            Err(_) => Err("is not an IPv6 address in brackets".to_owned()),
        };
    }
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if text.is_empty() || text.len() > 253 || !text.bytes().all(good) || text.starts_with('-') {
        return Err("is not a host name or address (an IPv6 address goes in brackets)".to_owned());
    }
    Ok(text.to_owned())
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What a cross-tenant sink lets the source tenant do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkAccess {
    /// Write into the other tenant.
    Write,
    /// Read from it.
    Read,
    /// Both.
    Any,
}

/// One `src->dst[:write|read|any]` of `broker_cross_tenant_sinks`; Cresco's grammar, `write` when not said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrossTenantSink {
    /// Who is let in.
    pub source: TenantId,
    /// Whose destinations they are.
    pub target: TenantId,
    /// To do what.
    pub access: SinkAccess,
}

impl CrossTenantSink {
    /// Parses one entry.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "is not of the form src->dst[:write|read|any]".to_owned();
        let (source, rest) = text.split_once("->").ok_or_else(wrong)?;
        let (target, access) = match rest.split_once(':') {
            None => (rest, SinkAccess::Write),
            Some((target, access)) => match access.trim() {
                "write" => (target, SinkAccess::Write),
                "read" => (target, SinkAccess::Read),
                "any" => (target, SinkAccess::Any),
                _ => return Err(wrong()),
            },
        };
        let tenant = |text: &str| TenantId::parse(text.trim()).map_err(|error| error.to_string());
        let (source, target) = (tenant(source)?, tenant(target)?);
        if source == target {
            return Err("names the same tenant twice".to_owned());
        }
        Ok(Self { source, target, access })
    }
}

/// A secret text: never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself, for the one place that uses it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// Where a secret is: in the configuration, or in a file that is read when it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// The secret itself.
    Inline(Secret),
    /// A file that holds it.
    File(PathBuf),
}

impl SecretSource {
    /// The secret, read from its file when it is in one.
    ///
    /// # Errors
    /// A file that cannot be read, is larger than a configuration may be, or is not UTF-8.
    pub fn read(&self) -> std::io::Result<Secret> {
        match self {
            Self::Inline(secret) => Ok(secret.clone()),
            Self::File(path) => {
                // What a decoding error says of the bytes could tell of the secret, so it says nothing.
                let not_text = |_| std::io::Error::new(std::io::ErrorKind::InvalidData, "is not UTF-8 text");
                String::from_utf8(super::read_bounded(path)?).map(Secret::new).map_err(not_text)
            }
        }
    }

    /// The file, when it is in one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Inline(_) => None,
            Self::File(path) => Some(path),
        }
    }
}
