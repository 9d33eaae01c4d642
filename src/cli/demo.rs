//! `glocal demo`: a whole mesh on this machine, what it does for two tenants, and what it refuses.
//!
//! It guarantees real certificates, real processes and real sockets, exit code 0 only when every line came out as it must,
//! and that nothing it started is left running unless `--keep` asks for it. It never waits by sleeping: it waits for
//! conditions, each with a deadline, and shows that nothing arrived by a marker that arrives after it would have.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::connect::block_on;
use super::output::PipeClosed;
use super::{WithHint as _, usage};

mod attacks;
mod cast;
mod keep;
mod mesh;
mod plan;
mod raw;
mod story;
mod traffic;

use cast::Cast;
use mesh::{Mesh, PATIENCE, class_sum, list};
use plan::{Fabric, GLOBAL, NODES};
use story::{Story, short};

const EXAMPLES: &str = "\
Examples:
  glocal demo                    a story of about ten seconds; nothing of it stays
  glocal demo --keep             leaves the mesh running, and says how to use and to stop it
  glocal demo --json | jq 'select(.ok == false)'

Exit codes: 0 every line came out as it must, 1 one did not, 2 wrong usage.";

/// Arguments of `glocal demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Leaves the brokers running and prints commands to try.
    #[arg(long)]
    keep: bool,

    /// Prints one JSON object per line of the story, and one with the totals.
    #[arg(long)]
    json: bool,

    /// Puts everything here, where it stays, instead of into a temporary folder; must be empty or missing.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { keep, json, dir } = args;
    let folder = Folder::new(dir)?;
    let mut story = Story::new(json);
    let played = block_on(async {
        let mut hangup = signal(SignalKind::hangup())?;
        // Whatever ends the story drops the mesh, and with it the brokers.
        tokio::select! {
            good = play(&mut story, &folder, keep) => good.map(Some),
            () = super::connect::interrupted() => Ok(None),
            _ = hangup.recv() => Ok(None),
        }
    });
    match played {
        Ok(Some(true)) => {
            if keep {
                folder.stay();
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(Some(false)) => {
            let path = folder.stay();
            story.note(&format!("Certificates and logs are kept in '{}'.", path.display()))?;
            Ok(ExitCode::FAILURE)
        }
        Ok(None) => Err(anyhow::anyhow!("interrupted; the brokers are stopped")),
        // A story that nobody has heard to its end proves nothing, so this is no ordinary end of a pipe.
        Err(error) if error.is::<PipeClosed>() => Err(anyhow::anyhow!("standard output was closed before the end")),
        Err(error) => {
            let path = folder.stay();
            Err(error).hint(format!("certificates and logs are kept in '{}'", path.display()))
        }
    }
}

/// Where everything is: a temporary folder that goes, unless it is told to stay, or the user's own, which stays.
struct Folder {
    path: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl Folder {
    fn new(dir: Option<PathBuf>) -> anyhow::Result<Self> {
        let Some(dir) = dir else {
            let temporary = tempfile::Builder::new().prefix("glocal-demo-").tempdir().context("no temporary folder")?;
            return Ok(Self { path: temporary.path().to_owned(), temporary: Some(temporary) });
        };
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
        let path = dir.canonicalize().with_context(|| format!("cannot find '{}'", dir.display()))?;
        if std::fs::read_dir(&path)?.next().is_some() {
            return Err(usage(format!("'{}' is not empty", path.display()), "name an empty or a new folder"));
        }
        Ok(Self { path, temporary: None })
    }

    const fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    fn stay(self) -> PathBuf {
        if let Some(temporary) = self.temporary {
            let _ = temporary.keep();
        }
        self.path
    }
}

/// Tells the whole story; `true` when every line came out as it must.
async fn play(story: &mut Story, folder: &Folder, keep: bool) -> anyhow::Result<bool> {
    story.section("A mesh: one global and two regions, each a process, mutual TLS between all")?;
    let began = Instant::now();
    let fabric = Fabric::make(&folder.path)?;
    let made =
        format!("{} files: CAs, leaves, the signed bundle, configurations; {}", fabric.files(), short(began.elapsed()));
    story.tell("glocal fabric apply fabric.toml", &Ok(made))?;
    let mut mesh = Mesh::start(&folder.path, &fabric)?;
    if !bring_up(story, &mut mesh).await? {
        return story.finish(&[]);
    }
    let cast = Cast::gather(&mesh, &fabric).await;
    let came = cast.as_ref().map(|cast| format!("{} connected, each to its own region's broker", cast.players().len()));
    story.tell("agents of tenantA, tenantB, tenantC and a superuser", &came.map_err(|e| anyhow::anyhow!("{e:#}")))?;
    let Ok(cast) = cast else { return story.finish(&[]) };
    traffic::tell(story, &mesh, &cast).await?;
    attacks::tell(story, &mesh, &fabric, &cast).await?;
    story.section("The books: what brokers and agents have counted")?;
    let totals = books(story, &mesh, &cast).await?;
    cast.leave().await;
    let good = story.finish(&totals)?;
    if keep && good {
        keep::hand_over(story, &mut mesh, &fabric, folder)?;
    }
    Ok(good)
}

/// Waits for the brokers and their bridges; `false` when one does not come up.
async fn bring_up(story: &mut Story, mesh: &mut Mesh) -> anyhow::Result<bool> {
    let mut good = true;
    for node in NODES {
        let ready = mesh.await_ready(node).await;
        let ready =
            ready.map(|r| format!("ready: clients {}, QUIC {}, bridges {}", r.native_tcp, r.native_quic, r.bridge));
        good &= ready.is_ok();
        story.tell(&format!("glocal run {node}"), &ready)?;
    }
    if !good {
        return Ok(false);
    }
    for node in NODES.into_iter().filter(|node| *node != GLOBAL) {
        let edges = mesh.await_edges(node).await;
        let shown = edges.map(|edges| {
            let text = |key| edges.iter().filter_map(|e| e.get(key)?.as_str()).collect::<Vec<_>>().join(", ");
            let tenants: Vec<String> = edges.iter().flat_map(|e| list(e, "tenants")).map(|t| t.to_string()).collect();
            format!("{} up, for {}", text("name"), tenants.join(" ").replace('"', ""))
        });
        good &= shown.is_ok();
        story.tell(&format!("{node} ◀─ QUIC bridge ─▶ {GLOBAL}"), &shown)?;
    }
    Ok(good)
}

/// What one broker has counted.
struct Counted {
    node: &'static str,
    published: u64,
    delivered: u64,
    relayed_in: u64,
    relayed_out: u64,
    dropped: u64,
    operations_refused: u64,
    handshakes_refused: u64,
}

impl Counted {
    async fn ask(mesh: &Mesh, node: &'static str) -> anyhow::Result<Self> {
        let status = mesh.status(node).await?;
        let sum = |key| class_sum(&status, None, key);
        Ok(Self {
            node,
            published: sum("published"),
            delivered: sum("delivered"),
            relayed_in: sum("relayed_in"),
            relayed_out: sum("relayed_out"),
            dropped: sum("dropped"),
            operations_refused: list(&status, "tenants").iter().filter_map(|t| t.get("denied")?.as_u64()).sum(),
            handshakes_refused: mesh.metric(node, "glocal_handshakes_failed", "").await?,
        })
    }

    fn line(&self) -> anyhow::Result<String> {
        let Self { published, delivered, relayed_in, relayed_out, dropped, .. } = self;
        anyhow::ensure!(*dropped == 0, "{dropped} DROPPED");
        let (operations, handshakes) = (self.operations_refused, self.handshakes_refused);
        Ok(format!(
            "published {published}, delivered {delivered}, relayed {relayed_in} in, {relayed_out} out; \
             refused {operations} operations, {handshakes} handshakes; dropped 0"
        ))
    }
}

/// Compares what brokers and agents have counted, when the last copy has arrived.
async fn books(story: &mut Story, mesh: &Mesh, cast: &Cast) -> anyhow::Result<Vec<(&'static str, u64)>> {
    let deadline = Instant::now() + PATIENCE;
    let (counted, sent, received) = loop {
        let mut counted = Vec::new();
        for node in NODES {
            counted.push(Counted::ask(mesh, node).await?);
        }
        let (sent, received) = cast.counted();
        let sum = |of: fn(&Counted) -> u64| counted.iter().map(of).sum::<u64>();
        let settled = sum(|c| c.delivered) == received && sum(|c| c.relayed_in) == sum(|c| c.relayed_out);
        if settled || Instant::now() > deadline {
            break (counted, sent, received);
        }
    };
    for node in &counted {
        story.tell(&format!("glocal status: {}", node.node), &node.line())?;
    }
    let sum = |of: fn(&Counted) -> u64| counted.iter().map(of).sum::<u64>();
    let equal = |what: &str, gave: u64, got: u64| match gave == got {
        true => Ok(format!("{what}: {gave} = {got}")),
        false => Err(anyhow::anyhow!("{what}: {gave} IS NOT {got}")),
    };
    let (relayed, delivered) = (sum(|c| c.relayed_out), sum(|c| c.delivered));
    story.tell(
        "what one broker sent over a bridge, another received",
        &equal("copies", relayed, sum(|c| c.relayed_in)),
    )?;
    story.tell("what brokers delivered, agents received, each once", &equal("copies", delivered, received))?;
    Ok(vec![
        ("messages_sent", sent),
        ("messages_delivered", received),
        ("messages_relayed", relayed),
        ("operations_refused", sum(|c| c.operations_refused)),
        ("handshakes_refused", sum(|c| c.handshakes_refused)),
    ])
}
