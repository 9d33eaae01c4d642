//! The node's own log: text or JSON on standard error. Payloads and secrets are never logged.

use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Sets up the log as the configuration says; `GLOCAL_LOG` (syntax of `tracing`) overrides its level. A log that is set
/// up already stays.
pub fn start(config: &Config) {
    let default = EnvFilter::new(config.log_level.to_string().to_lowercase());
    let filter = std::env::var("GLOCAL_LOG").ok().and_then(|text| EnvFilter::try_new(text).ok()).unwrap_or(default);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let _ = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
