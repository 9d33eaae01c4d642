//! The command line: one file per subcommand.
//!
//! It guarantees the exit codes 0 (ok), 1 (refused or failed) and 2 (usage), errors as one `error: …` line on standard
//! error with an optional `hint: …` below it, and silence when the reader of standard output goes away. It never prints
//! a key or a secret.

use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Parser, Subcommand};

mod bench;
mod check;
mod completions;
mod connect;
mod context;
mod demo;
mod edges;
mod fabric;
mod failure;
mod message;
mod output;
mod pki;
mod publish;
mod reload;
mod reply;
mod request;
mod routes;
mod run;
mod status;
mod subscribe;
mod whoami;

pub(crate) use failure::{Failure, WithHint, usage};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Try it:
  glocal demo                              see a whole mesh at work, refusals included
  glocal context add dev --server 127.0.0.1:32010 --root root.pem \\
         --cert agent.pem --key agent.key --use
  glocal sub 'orders.>'                    in one terminal
  glocal pub orders.new 'hello'            in another

Exit codes: 0 ok, 1 refused or failed, 2 wrong usage.";

/// One fabric, many organisations: a federated mTLS message mesh.
#[derive(Debug, Parser)]
#[command(name = "glocal", version, styles = STYLES, after_help = EXAMPLES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Cli {
    /// Says more on standard error; repeat for more.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 1000)]
    verbose: u8,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a broker from its configuration.
    Run(run::Args),
    /// Checks a broker's configuration; needs no ports.
    Check(check::Args),
    /// Makes certificates, the signed bundle and configurations from a plan.
    Fabric(fabric::Args),
    /// Issues, shows and verifies single certificates.
    Pki(pki::Args),
    /// Publishes messages.
    #[command(visible_alias = "publish")]
    Pub(publish::Args),
    /// Subscribes and prints messages.
    #[command(visible_alias = "subscribe")]
    Sub(subscribe::Args),
    /// Sends a request and prints the replies.
    Request(request::Args),
    /// Answers requests.
    Reply(reply::Args),
    /// Says who the broker takes this certificate for.
    Whoami(whoami::Args),
    /// Saves connections under a name.
    Context(context::Args),
    /// Starts a mesh on this machine and tells its story.
    Demo(demo::Args),
    /// Asks a running broker how it is.
    Status(status::Args),
    /// Shows the edges of a running broker: state, cost, who may cross, what waits.
    Edges(edges::Args),
    /// Shows which way a running broker sends what is for another one.
    Routes(routes::Args),
    /// Has a running broker read its configuration and its bundle again.
    Reload(reload::Args),
    /// Puts load on a mesh and measures how it carries it.
    Bench(bench::Args),
    /// Prints a completion script for a shell.
    Completions(completions::Args),
    /// Writes the manual pages.
    Man(completions::ManArgs),
}

/// Parses the command line and runs the subcommand.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are "errors" of clap that succeed.
            let code = if error.use_stderr() { 2 } else { 0 };
            // A closed standard output is no reason to complain.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    // A broker sets up its own log from its configuration.
    if !matches!(cli.command, Command::Run(_)) {
        log_to_stderr(cli.verbose);
    }
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Fabric(args) => fabric::run(args),
        Command::Pki(args) => pki::run(args),
        Command::Pub(args) => publish::run(args),
        Command::Sub(args) => subscribe::run(args),
        Command::Request(args) => request::run(args),
        Command::Reply(args) => reply::run(args),
        Command::Whoami(args) => whoami::run(&args),
        Command::Context(args) => context::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Status(args) => status::run(args),
        Command::Edges(args) => edges::run(args),
        Command::Routes(args) => routes::run(args),
        Command::Reload(args) => reload::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => completions::man(&args),
    }
}

/// Logs to standard error: warnings, more with `-v`, or what `GLOCAL_LOG` says in the syntax of `tracing`.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = std::env::var("GLOCAL_LOG")
        .ok()
        .and_then(|text| tracing_subscriber::EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| tracing_subscriber::EnvFilter::new(level));
    // Fails only when a log is set up already, which serves as well.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .try_init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn own_commands_have_examples_in_their_help() {
        let mut command = Cli::command();
        for name in ["pub", "sub", "request", "reply", "whoami", "context", "reload", "bench", "completions", "man"] {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(help.contains("Examples:"), "{name}: {help}");
        }
        let bench = command.find_subcommand_mut("bench").unwrap();
        for mode in bench.get_subcommands_mut().filter(|mode| mode.get_name() != "help") {
            let help = mode.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{help}");
        }
    }

    #[test]
    fn messaging_commands_parse() {
        for line in [
            "glocal pub a.b hello",
            "glocal publish a.b hello --class bulk --header K=V --header X=Y --ack",
            "glocal pub a.b --lines --rate 100/s",
            "glocal pub a.b msg-{{n}} --count 10",
            "glocal pub a.b --file payload.bin --reply r.s",
            "glocal sub a.> b.* --count 3 --json --timeout 2.5 --ready-file /tmp/r",
            "glocal sub a.> --queue workers --raw -vv",
            "glocal request a.b hi --timeout 1 --replies 2",
            "glocal reply a.b pong --queue q --count 1",
            "glocal reply a.b --echo",
            "glocal reply a.b --command cat",
            "glocal whoami --json --server tls://h:1,quic://h:2 --root r --cert c --key k",
            "glocal context add dev --server h:1 --root r --cert c --key k --use",
            "glocal context validate --connect",
            "glocal bench pub --rate 100/s --duration 2 --size 64KiB",
            "glocal bench sub a.> --count 3 --json",
            "glocal bench pair --to b --size 16 --size 1KiB --broker-pid x=1",
            "glocal bench request --subject a.b --in-flight 4 --protocol nats",
            "glocal bench flood-and-victim --context a --to b --flood c:d --flood e --flood-class bulk",
            "glocal bench connect -n 5 --concurrency 2 --protocol nats",
            "glocal bench idle --sessions 5 --pid 1",
            "glocal completions bash",
            "glocal man /tmp/x",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "glocal",
            "glocal nosuch",
            "glocal pub",
            "glocal pub a b --file f",
            "glocal pub a --lines --count 2",
            "glocal pub a b --class urgent",
            "glocal pub a b --header novalue",
            "glocal pub a b --rate 0",
            "glocal sub",
            "glocal sub a --json --raw",
            "glocal sub a --timeout -1",
            "glocal reply a",
            "glocal reply a x --echo",
            "glocal whoami --cert c",
            "glocal bench",
            "glocal bench pub --size 15",
            "glocal bench flood-and-victim --flood a:../b",
            "glocal bench request --rate 1 --in-flight 2",
            "glocal bench connect --protocol amqp",
            "glocal bench connect --concurrency 1025",
            "glocal bench idle --sessions 50001",
            "glocal bench pub --count 100000001",
            "glocal context add ../x --server h:1 --root r",
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.exit_code() == 2, "{line}");
        }
    }
}
