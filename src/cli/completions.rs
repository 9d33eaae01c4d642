//! `glocal completions` and `glocal man`: what a package installs beside the binary.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory;

use super::output::Out;

const EXAMPLES: &str = "\
Examples:
  glocal completions bash > ~/.local/share/bash-completion/completions/glocal
  glocal completions zsh  > ~/.zfunc/_glocal
  glocal completions fish > ~/.config/fish/completions/glocal.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  glocal man ./man            one page per command
  man ./man/glocal-pub.1";

/// Arguments of `glocal completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Arguments of `glocal man`.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder to write to; made when absent.
    dir: PathBuf,
}

/// Prints the completion script.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "glocal", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes one manual page per command.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let dir = args.dir.display();
    std::fs::create_dir_all(&args.dir).with_context(|| format!("cannot make '{dir}'"))?;
    clap_mangen::generate_to(super::Cli::command(), &args.dir)
        .with_context(|| format!("cannot write manual pages to '{dir}'"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_pages_are_written_for_every_command() {
        let dir = tempfile::tempdir().unwrap();
        man(&ManArgs { dir: dir.path().join("man") }).unwrap();
        for page in ["glocal.1", "glocal-pub.1", "glocal-context-add.1", "glocal-bench-flood-and-victim.1"] {
            assert!(dir.path().join("man").join(page).exists(), "{page}");
        }
    }
}
