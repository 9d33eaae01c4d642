//! `glocal demo`.

/// Arguments of `glocal demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args) -> anyhow::Result<std::process::ExitCode> {
    Err(anyhow::anyhow!("not built yet"))
}
