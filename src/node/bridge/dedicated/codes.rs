//! Codes by which the two ends of a bridge know a tenant's connection. All come from keys that TLS exports (RFC 8446 section
//! 7.5), so none means anything on another connection, and none tells a tenant's name.

use aws_lc_rs::hmac;
use glocal_engine::handshake::Mac;
use glocal_engine::link::Link;

use super::super::{Ended, code_of, exported_key, own_macs};
use super::AttachPoint;
use crate::context::Context;
use glocal_core::tenant::TenantKey;

/// Label of the key by which a tenant's connection proves that it belongs to a bridge.
const PROOF_LABEL: &[u8] = b"EXPORTER-glocal-tenant-connection";
/// Label of the key of the names by which certificates of tenants are asked for.
const NAME_LABEL: &[u8] = b"EXPORTER-glocal-tenant-name";

/// The tenant's code on its own connection.
pub(super) fn tenant_code(link: &Link, connection: &quinn::Connection, tenant: &str) -> Result<Mac, Ended> {
    Ok(code_of(&exported_key(connection, super::super::EXPORTER_LABEL, link)?, tenant))
}

/// The tenant that a code means, of those that this side allows on the edge.
pub(super) fn tenant_of(
    context: &Context,
    link: &Link,
    connection: &quinn::Connection,
    code: &Mac,
) -> Option<TenantKey> {
    let own = own_macs(context, link, connection).ok()?;
    own.into_iter().find(|(_, mac)| mac == code).map(|(tenant, _)| tenant)
}

/// What only an end of the bridge can say of a connection.
pub(super) fn proof(point: &AttachPoint, link: &Link, connection: &quinn::Connection) -> Result<[u8; 32], Ended> {
    let key = exported_key(&point.connection, PROOF_LABEL, link)?;
    let tag = hmac::sign(&key, &exported(link, connection)?);
    Ok(tag.as_ref().first_chunk::<32>().copied().unwrap_or_default())
}

/// Whether it was said by an end of the bridge.
pub(super) fn is_proof(point: &AttachPoint, link: &Link, connection: &quinn::Connection, said: &[u8; 32]) -> bool {
    let key = exported_key(&point.connection, PROOF_LABEL, link);
    let exported = exported(link, connection);
    key.and_then(|key| Ok((key, exported?))).is_ok_and(|(key, exported)| hmac::verify(&key, &exported, said).is_ok())
}

fn exported(link: &Link, connection: &quinn::Connection) -> Result<[u8; 32], Ended> {
    super::super::exported(connection, PROOF_LABEL, link)
}

/// The name by which the dialler asks for the certificate of a tenant.
pub(super) fn server_name(point: &AttachPoint, link: &Link, tenant: &str) -> Option<String> {
    let key = exported_key(&point.connection, NAME_LABEL, link).ok()?;
    let name: String = code_of(&key, tenant).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{name}.tenant.glocal"))
}
