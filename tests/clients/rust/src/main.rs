//! Scenarios of the NATS client protocol with async-nats, and the parts of a matrix test. See `tests/clients/README.md`.

mod connections;
mod harness;
mod messages;
mod roles;

use std::future::Future;
use std::pin::Pin;

use harness::{Options, Scenario};

/// What a scenario returns: an error ends it, facts that are not as expected do not.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;
/// A scenario, or a part of a matrix test.
pub(crate) type Body = for<'a> fn(&'a mut Scenario) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// Names async functions as a table of scenarios.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), |s| Box::pin($name(s)))),*]
    };
}
pub(crate) use scenarios;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let options = Options::parse();
    harness::watchdog(options.watchdog);
    harness::warm_up();
    let fine = match options.role.clone() {
        Some(role) => roles::run(&options, &role).await,
        None => run(&options).await,
    };
    // A thread may still wait for standard input: it must not keep the program.
    std::process::exit(if fine { 0 } else { 1 });
}

async fn run(options: &Options) -> bool {
    let plain = messages::SCENARIOS.iter().chain(connections::SCENARIOS).map(|s| (s, harness::SCENARIO));
    let table: Vec<_> = plain.chain(connections::WITH_HARNESS.iter().map(|s| (s, harness::HARNESS))).collect();
    if options.scenario == "list" {
        table.iter().for_each(|((name, _), _)| println!("{name}"));
        return true;
    }
    let wanted: Vec<&str> = options.scenario.split(',').collect();
    if let Some(unknown) = wanted.iter().find(|w| **w != "all" && !table.iter().any(|((name, _), _)| name == *w)) {
        harness::usage(&format!("unknown scenario: {unknown}"));
    }
    let mut fine = true;
    for ((name, body), limit) in table {
        if wanted.contains(&"all") || wanted.contains(name) {
            fine &= harness::run_scenario(options, name, *body, limit).await;
        }
    }
    fine
}
