//! Reloading the files of a node: its configuration, and the bundle the configuration names.

use std::sync::Arc;

use glocal_core::rate::RateBounds;
use serde::Serialize;

use super::{BundleRefusal, Refused, Reloader, names, unread};
use crate::config::{self, Config, EdgeConfig};
use crate::context::Context;
use crate::start;
use crate::trust::{read_bundle_file, unix_now};

/// What a reload brought about.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What has changed, in words; empty when nothing did.
    pub changed: Vec<String>,
    /// Epoch and version of the bundle in force.
    pub bundle: (u64, u64),
    /// What was refused, in words; what it is about stays as it was.
    pub refused: Vec<String>,
    /// Configuration keys that differ from those in force and need a restart. As long as there are any, nothing else of
    /// the configuration is taken either.
    pub restart: Vec<&'static str>,
}

impl Report {
    /// Whether everything was taken.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.refused.is_empty() && self.restart.is_empty()
    }
}

impl Reloader {
    /// Reads the configuration and the bundle file again and takes what is new.
    pub async fn reload(&self, context: &Context) -> Report {
        let mut report = Report::default();
        self.reload_config(context, &mut report).await;
        self.reload_bundle(context, &mut report).await;
        report.bundle = context.shared.bundle();
        for line in &report.changed {
            tracing::info!("reloaded: {line}");
        }
        if !report.restart.is_empty() {
            let keys = report.restart.join(", ");
            tracing::warn!(%keys, "not reloaded: these keys need a restart, and nothing of the configuration was taken");
        }
        report
    }

    async fn reload_config(&self, context: &Context, report: &mut Report) {
        let mut held = self.held.lock().await;
        let overrides = self.overrides.as_slice();
        let loaded = Config::load(&held.raw.file, overrides, config::environment());
        let checked = loaded.and_then(|loaded| loaded.config.check_supported().map(|()| loaded.config));
        let new = match checked {
            Ok(config) => Arc::new(config),
            Err(errors) => {
                tracing::error!("configuration refused, the one in force stays: {errors}");
                return report.refused.extend(errors.to_string().lines().map(str::to_owned));
            }
        };
        report.restart = needs_restart(&held.raw, &new);
        let changes = changes(&held.raw, &new);
        if !report.restart.is_empty() || changes.is_empty() {
            return;
        }
        let bundle = Arc::clone(held.holding.bundle());
        let checked = start::edges(&new, &bundle).and_then(|_| start::check_tenant_leaves(&new, unix_now()));
        if let Err(error) = checked {
            let why = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
            tracing::error!("configuration refused, the one in force stays: {error}{why}");
            return report.refused.push(format!("{error}{why}"));
        }
        let holding = held.holding.clone();
        let applied = held.apply(context, holding, Some(new)).await.map(|()| true);
        match self.settle(&held, applied, context, "configuration") {
            Ok(_) => report.changed.extend(changes),
            Err(refused) => report.refused.push(refused.to_string()),
        }
    }

    async fn reload_bundle(&self, context: &Context, report: &mut Report) {
        let config = context.config();
        let (trust, file) = (context.trust(), config.bundle.display().to_string());
        let read = read_bundle_file(&config.bundle, trust.configured_roots(), config.bundle_min_version, unix_now());
        let before = context.shared.bundle();
        let result = match read {
            // The file may lag behind what peers have told; that is no fault.
            Ok((signed, _)) if (signed.head.epoch, signed.head.version) < before => Ok(false),
            Ok((signed, pieces)) => self.offer(context, signed, pieces, true, &file).await,
            Err(error) => {
                let refused = unread(&error);
                self.refusals.record(&refused, &file, context.clock.now());
                Err(refused)
            }
        };
        match result {
            Ok(true) => {
                let (epoch, version) = context.shared.bundle();
                report.changed.push(format!("bundle {}.{} -> {epoch}.{version}", before.0, before.1));
            }
            Ok(false) => {}
            Err(Refused { reason, text }) => {
                report.refused.push(format!("{file}: {}: {text}", BundleRefusal::code(reason)));
            }
        }
    }
}

/// The keys that differ and cannot change on a running node.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let differs = [
        ("regionname", old.node != new.node || old.role != new.role),
        ("tenant_id", old.tenant_id != new.tenant_id || old.tenant_id_form != new.tenant_id_form),
        ("tenant_namespacing", old.tenant_namespacing != new.tenant_namespacing || old.transition != new.transition),
        ("broker_security_enabled", old.broker_security_enabled != new.broker_security_enabled),
        ("broker_require_client_auth", old.clients != new.clients),
        ("broker_shared_destinations", old.broker_shared_destinations != new.broker_shared_destinations),
        ("security_regional_ca", old.security_regional_ca != new.security_regional_ca),
        ("broker_port", old.native_tcp != new.native_tcp),
        ("quic_port", old.native_quic != new.native_quic),
        ("bridge_port", old.bridge != new.bridge),
        ("nats_port", old.nats_tcp != new.nats_tcp),
        ("nats_ws_port", old.nats_ws != new.nats_ws),
        ("ops_listen", old.ops_listen != new.ops_listen),
        ("state_dir", old.state_dir != new.state_dir),
        ("fabric_root", old.fabric_root != new.fabric_root),
        ("node_certificate", old.node_certificate != new.node_certificate),
        ("node_key", old.node_key.path() != new.node_key.path()),
        ("bundle_signing_key", old.bundle_signing != new.bundle_signing),
        ("log_format", old.log_format != new.log_format),
        ("log_level", old.log_level != new.log_level),
        ("ready_file", old.ready_file != new.ready_file),
        ("runtime_threads", old.runtime_threads != new.runtime_threads),
        ("bridge_threads", old.bridge_threads != new.bridge_threads),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// What differs and can be taken, in words.
fn changes(old: &Config, new: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    let mut note = |differs: bool, key: &str| {
        if differs {
            lines.push(format!("{key} changed"));
        }
    };
    note(old.broker_superuser_tenants != new.broker_superuser_tenants, "broker_superuser_tenants");
    note(old.broker_security_log_allow != new.broker_security_log_allow, "broker_security_log_allow");
    note(old.bundle != new.bundle, "bundle");
    note(old.bundle_min_version != new.bundle_min_version, "bundle_min_version");
    note(old.lame_duck_ms != new.lame_duck_ms, "lame_duck_ms");
    let rates = |config: &Config| {
        let RateBounds { tenant_messages_per_s, tenant_bytes_per_s, session_messages_per_s, session_bytes_per_s } =
            config.rates;
        [
            ("tenant_messages_per_s", tenant_messages_per_s),
            ("tenant_bytes_per_s", tenant_bytes_per_s),
            ("session_messages_per_s", session_messages_per_s),
            ("session_bytes_per_s", session_bytes_per_s),
        ]
    };
    for ((key, before), (_, after)) in rates(old).into_iter().zip(rates(new)) {
        note(before != after, key);
    }
    note(old.memory_bytes != new.memory_bytes, "memory_bytes");
    note(old.tenant_memory_bytes != new.tenant_memory_bytes, "tenant_memory_bytes");
    note(old.busy_poll_us != new.busy_poll_us, "busy_poll_us");
    note(old.nats_ws_allowed_origins != new.nats_ws_allowed_origins, "nats_ws_allowed_origins");
    note(old.uplink != new.uplink, "global_controller_host");
    let (before, after) = (names(&old.edges), names(&new.edges));
    lines.extend(after.iter().filter(|name| !before.contains(name)).map(|name| format!("edge '{name}' added")));
    lines.extend(before.iter().filter(|name| !after.contains(name)).map(|name| format!("edge '{name}' removed")));
    for edge in &new.edges {
        let same = |before: &EdgeConfig| EdgeConfig { line: edge.line, ..before.clone() } == *edge;
        if old.edges.iter().any(|before| before.name == edge.name && !same(before)) {
            lines.push(format!("edge '{}' changed", edge.name));
        }
    }
    lines
}
