//! `glocal run`: a broker until it is told to leave.

use std::path::PathBuf;
use std::process::ExitCode;

use glocal_node::config::{self, Config};
use glocal_node::{Node, telemetry};
use tokio::signal::unix::{SignalKind, signal};

use super::check::key_value;

mod copies;

const EXAMPLES: &str = "\
Examples:
  glocal fabric apply mesh-configs/single.fabric.toml --out certs/single
  glocal run -c mesh-configs/single.toml
  glocal run -c node.toml -D broker_port=0 -D ready_file=ready.json   on any free port
  GLOCAL_LOG=debug glocal run -c node.toml                            says more

It takes changed files by itself, and at once on SIGHUP or 'glocal reload'.
Stop it with SIGTERM or Ctrl-C: it tells its clients and waits lame_duck_ms; a second one ends it at once.";

/// Arguments of `glocal run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The node's configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,

    /// Sets a key; stronger than the environment and the file.
    #[arg(short = 'D', value_name = "KEY=VALUE", value_parser = key_value)]
    define: Vec<(String, String)>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    copies::settle();
    let Args { config, define } = args;
    let loaded = Config::load(&config, &define, config::environment())?;
    telemetry::start(&loaded.config);
    for note in &loaded.notes {
        tracing::warn!("{}", note.what);
    }
    switch_guards_off()?;
    let threads = loaded.config.runtime_threads;
    let prepared = glocal_node::prepare(loaded.config)?.with_overrides(define);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if threads > 0 {
        runtime.worker_threads(threads);
    }
    let runtime = runtime.enable_all().build()?;
    runtime.block_on(async {
        // Before the node says that it is ready: whoever hears that may stop it at once.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let node = Node::start(prepared).await?;
        let mut hang_up = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = node.broken() => anyhow::bail!("the node has failed; its log says where"),
                // Log rotation sends it out of habit, and must not cost a single bridge.
                _ = hang_up.recv() => {
                    let context = node.context();
                    // What was refused is logged.
                    let _ = context.reloader.reload(context).await;
                }
            }
        }
        tokio::select! {
            () = node.leave() => {}
            _ = terminate.recv() => tracing::warn!("told twice: ending at once"),
            _ = interrupt.recv() => tracing::warn!("told twice: ending at once"),
        }
        anyhow::Ok(())
    })?;
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    Ok(ExitCode::SUCCESS)
}

/// In the test-only build, switches off the guards that a test names.
#[cfg(glocal_guards)]
fn switch_guards_off() -> anyhow::Result<()> {
    let names = std::env::var("GLOCAL_GUARDS_OFF").unwrap_or_default();
    let unknown = glocal_core::guard::switch_off(&names);
    anyhow::ensure!(unknown.is_empty(), "GLOCAL_GUARDS_OFF: no such guard: {}", unknown.join(", "));
    if !names.is_empty() {
        tracing::warn!("TEST BUILD: guards switched off: {names}");
    }
    Ok(())
}

#[cfg(not(glocal_guards))]
#[expect(clippy::unnecessary_wraps, reason = "the test-only build can refuse")]
fn switch_guards_off() -> anyhow::Result<()> {
    Ok(())
}
