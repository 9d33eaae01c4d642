//! `glocal fabric`: from one readable plan to certificates, the signed bundle and configurations.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use glocal_core::bundle::{Bundle, BundleState, Section};
use glocal_core::limits::PLAN_BYTES_MAX;
use glocal_core::name::{Class, Label};
use glocal_core::rate::RateLimits;
use glocal_core::sched::EdgeTerms;
use glocal_fabric::inspect::date;
use glocal_fabric::{Action, Applied, Event, Plan, apply_above, bundle, issue};
use serde_json::{Value, json};

use super::WithHint;
use super::output::Out;

const EXAMPLES: &str = "\
Examples:
  glocal fabric plan mesh-configs/single.fabric.toml
  glocal fabric apply mesh-configs/single.fabric.toml --out certs/single
  glocal fabric show certs/single
  glocal run -c certs/single/nodes/region-a-broker/node.toml

Applying again makes only what is missing. Nothing that exists is overwritten, except bundles by newer versions.";

/// Arguments of `glocal fabric`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Shows what a plan would make; writes nothing.
    #[command(after_help = "\
Examples:
  glocal fabric plan fabric.toml                 everything the plan describes
  glocal fabric plan fabric.toml --out certs/x   what is still missing there")]
    Plan {
        /// The plan.
        file: PathBuf,
        /// The directory an apply would write to; without it, one that is empty.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Gives the bundle a greater version than this: that of the bundle in force, where a re-signer has signed.
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        above: u64,
        /// Prints one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Makes certificates, the signed bundle and a directory per broker and agent.
    #[command(after_help = "\
Examples:
  glocal fabric apply fabric.toml --out certs/demo
  glocal fabric apply fabric.toml --out certs/demo --json | jq .bundle

Keep root/root.key offline: it is needed only for new regions, and for the key of a new re-signer
('resigner = \"<region>/<agent>\"' in the plan). Where a re-signer has signed since, 'glocal status' at a broker
says which version is in force: give it with --above.")]
    Apply {
        /// The plan.
        file: PathBuf,
        /// Where everything goes; made when missing.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Gives the bundle a greater version than this: that of the bundle in force, where a re-signer has signed.
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        above: u64,
        /// Prints one JSON document instead of progress lines.
        #[arg(long)]
        json: bool,
    },
    /// Signs the same contents afresh: the next version with new dates.
    #[command(after_help = "\
Examples:
  glocal fabric sign certs/demo                  valid for as long as before
  glocal fabric sign certs/demo --days 14 --json

It renews bundle/bundle.glocal and the bundle of every broker's directory. Give the new one to one
running broker: the others hear of it.")]
    Sign {
        /// The directory that apply has made.
        directory: PathBuf,
        /// How long it is valid, in days; as long as before without it.
        #[arg(long)]
        days: Option<u32>,
        /// Gives the bundle a greater version than this: that of the bundle in force, where a re-signer has signed.
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        above: u64,
        /// Prints one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Says what differs between two bundles; exits with 0 when nothing does and 1 when something does.
    #[command(after_help = "\
Examples:
  glocal fabric diff old.glocal certs/demo
  glocal fabric diff node/bundle.glocal node/state/bundle.glocal --json

Version and dates alone are no difference. Signatures are not verified: 'show' does that.")]
    Diff {
        /// The earlier bundle: a file, or a directory as for 'show'.
        before: PathBuf,
        /// The later one.
        after: PathBuf,
        /// Prints one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Shows a signed bundle: brokers, edges, tenants and who may issue whom.
    #[command(after_help = "\
Examples:
  glocal fabric show certs/demo
  glocal fabric show certs/demo/nodes/region-a-broker-a
  glocal fabric show bundle.glocal --root root.pem --json")]
    Show {
        /// A bundle file, or a directory made by apply, or a broker's directory in it.
        path: PathBuf,
        /// The root certificate to verify it with; found beside the bundle when it is there.
        #[arg(long, value_name = "FILE")]
        root: Option<PathBuf>,
        /// Prints one JSON document.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Plan { file, out, above, json } => plan(&file, out.as_deref(), above, json),
        Command::Apply { file, out, above, json } => run_apply(&file, &out, above, json),
        Command::Sign { directory, days, above, json } => sign(&directory, days, above, json),
        Command::Diff { before, after, json } => diff(&before, &after, json),
        Command::Show { path, root, json } => show(&path, root.as_deref(), json),
    }
}

fn read_plan(file: &Path) -> anyhow::Result<Plan> {
    let name = file.display().to_string();
    let length = std::fs::metadata(file).with_context(|| name.clone())?.len();
    if length > PLAN_BYTES_MAX as u64 {
        anyhow::bail!("{name}: is larger than {PLAN_BYTES_MAX} bytes");
    }
    let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
    Plan::parse(&text, &name).map_err(|error| all_at_once(&error.to_string(), "nothing was written"))
}

/// Several lines of mistakes: all but the last are written at once, the last becomes the error.
fn all_at_once(lines: &str, hint: &str) -> anyhow::Error {
    let mut lines: Vec<&str> = lines.lines().collect();
    let last = lines.pop().unwrap_or_default().to_owned();
    for line in lines {
        super::output::complain("error", line);
    }
    let result: anyhow::Result<()> = Err(anyhow::anyhow!(last)).hint(hint);
    result.err().unwrap_or_else(|| anyhow::anyhow!("failed"))
}

fn refused(error: &glocal_fabric::ApplyError) -> anyhow::Error {
    let hint = match error {
        glocal_fabric::ApplyError::Conflicts(_) => "nothing was written; what exists is never overwritten",
        glocal_fabric::ApplyError::Busy(_) => "wait for the other one to finish",
        _ => "apply again to continue where it stopped",
    };
    all_at_once(&error.to_string(), hint)
}

fn plan(file: &Path, directory: Option<&Path>, above: u64, json: bool) -> anyhow::Result<ExitCode> {
    let plan = read_plan(file)?;
    let preview = match directory {
        Some(directory) => glocal_fabric::preview(&plan, directory, above),
        None => glocal_fabric::preview_empty(&plan),
    };
    let (applied, events) = preview.map_err(|error| refused(&error))?;
    let mut out = Out::new();
    if json {
        out.json(&document(&plan, &applied, &events))?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    out.line(&format!("fabric '{}', operator '{}'", plan.fabric, plan.operator))?;
    for node in &plan.nodes {
        let mut ports = format!("tcp {}, quic {}, bridge {}", node.broker_port, node.quic_port, node.bridge_port);
        for (name, port) in [("nats", node.nats_port), ("nats ws", node.nats_ws_port)] {
            ports += &port.map_or_else(String::new, |port| format!(", {name} {port}"));
        }
        out.line(&format!("  node   {}  {} on {} ({ports})", node.id, node.role.as_str(), node.listen))?;
    }
    for edge in &plan.edges {
        let tenants = join(edge.tenants.iter(), ", ");
        out.line(&format!("  edge   {}  {} -> {} at {}: {tenants}", edge.name, edge.dial, edge.accept, edge.address))?;
    }
    for tenant in &plan.tenants {
        let superuser = if plan.superusers.contains(&tenant.id) { ", superuser" } else { "" };
        let regions = join(tenant.regions.iter(), ", ");
        out.line(&format!("  tenant {}  weight {}, in {regions}{superuser}", tenant.id, tenant.weight))?;
    }
    out.line("")?;
    for event in &events {
        out.line(&would(event))?;
    }
    out.line("")?;
    out.line(&format!("{} to make, {} to update, {} fit already", applied.made, applied.updated, applied.kept))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn would(event: &Event) -> String {
    let word = match event.action {
        Action::Made => "make",
        Action::Kept => "keep",
        Action::Updated => "update",
    };
    format!("{word:<7} {}  {}", event.path.display(), event.what)
}

fn run_apply(file: &Path, directory: &Path, above: u64, json: bool) -> anyhow::Result<ExitCode> {
    let plan = read_plan(file)?;
    let mut out = Out::new();
    let mut events = Vec::new();
    let mut printed = Ok(());
    let applied = apply_above(&plan, directory, above, &mut |event| {
        // A closed pipe ends the printing, not the work.
        if !json && event.action != Action::Kept && printed.is_ok() {
            printed = out.line(&event.to_string()).and_then(|()| out.flush());
        }
        events.push(event);
    })
    .map_err(|error| refused(&error))?;
    printed?;
    if json {
        out.json(&document(&plan, &applied, &events))?;
    } else if applied.is_unchanged() {
        out.line(&format!("nothing to do: all {} files fit the plan", applied.kept))?;
    } else {
        out.line(&format!("{} made, {} updated, {} kept", applied.made, applied.updated, applied.kept))?;
    }
    if !json {
        let expires = date(applied.bundle_expires);
        out.line(&format!("bundle version {} of '{}', expires {expires}", applied.bundle_version, plan.fabric))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn document(plan: &Plan, applied: &Applied, events: &[Event]) -> Value {
    let files: Vec<Value> = events
        .iter()
        .map(|e| json!({"action": e.action.as_str(), "path": e.path.display().to_string(), "what": e.what}))
        .collect();
    json!({
        "fabric": plan.fabric.as_str(),
        "made": applied.made,
        "updated": applied.updated,
        "kept": applied.kept,
        "bundle": {
            "epoch": applied.bundle_epoch,
            "version": applied.bundle_version,
            "expires": date(applied.bundle_expires),
        },
        "files": files,
    })
}

fn sign(directory: &Path, days: Option<u32>, above: u64, json: bool) -> anyhow::Result<ExitCode> {
    let signed = glocal_fabric::sign::resign(directory, days, above, glocal_fabric::apply::now())?;
    let (expires, mut out) = (date(signed.expires), Out::new());
    if json {
        let files: Vec<String> = signed.files.iter().map(|file| file.display().to_string()).collect();
        out.json(&json!({"epoch": signed.epoch, "version": signed.version, "expires": expires, "files": files}))?;
    } else {
        for file in &signed.files {
            out.line(&format!("updated {}", file.display()))?;
        }
        out.line(&format!("bundle version {}, expires {expires}", signed.version))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn diff(before: &Path, after: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let read = |path: &Path| -> anyhow::Result<Bundle> {
        let file = bundle_file(path);
        bundle::unverified(&bundle::read(&file)?).with_context(|| file.display().to_string())
    };
    let (old, new) = (read(before)?, read(after)?);
    let lines = glocal_fabric::diff::diff(&old, &new);
    let version = |bundle: &Bundle| format!("{}.{}", bundle.head().epoch, bundle.head().version);
    let mut out = Out::new();
    if json {
        out.json(&json!({"before": version(&old), "after": version(&new), "differences": lines}))?;
    } else {
        out.line(&format!("bundle {} -> {}", version(&old), version(&new)))?;
        for line in &lines {
            out.line(line)?;
        }
        if lines.is_empty() {
            out.line("no difference")?;
        }
    }
    out.flush()?;
    Ok(if lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(path: &Path, root: Option<&Path>, json: bool) -> anyhow::Result<ExitCode> {
    let file = bundle_file(path);
    let envelope = bundle::read(&file)?;
    let root = root.map(Path::to_path_buf).or_else(|| super::pki::beside(&file, "root.pem", "root/root.pem"));
    let now = glocal_fabric::apply::now();
    let (contents, signature) = match &root {
        Some(root) => {
            let roots = issue::read_certificates(root)?;
            let contents = bundle::verify(&envelope, &roots, now)
                .with_context(|| file.display().to_string())
                .hint(format!("it was verified against {}", root.display()))?;
            (contents, format!("verified against {}", root.display()))
        }
        None => {
            let contents = bundle::unverified(&envelope).with_context(|| file.display().to_string())?;
            (contents, "not verified: no root certificate beside it, give one with --root".to_owned())
        }
    };
    let state = state_word(contents.state(now));
    let mut out = Out::new();
    if json {
        out.json(&bundle_document(&contents, root.is_some(), state))?;
    } else {
        print_bundle(&mut out, &contents, &signature, state)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn bundle_file(path: &Path) -> PathBuf {
    if !path.is_dir() {
        return path.to_owned();
    }
    let whole = path.join("bundle/bundle.glocal");
    if whole.exists() { whole } else { path.join("bundle.glocal") }
}

const fn state_word(state: BundleState) -> &'static str {
    match state {
        BundleState::Fresh => "fresh",
        BundleState::Ageing => "past half of its life: sign it afresh with 'glocal fabric sign'",
        BundleState::Grace => "expired: no new sessions",
        BundleState::Dead => "expired for more than a day: no sessions",
    }
}

fn print_bundle(out: &mut Out, bundle: &Bundle, signature: &str, state: &str) -> anyhow::Result<()> {
    let head = bundle.head();
    let held = bundle.sections().len();
    let rows = [
        ("fabric", head.fabric.to_string()),
        ("bundle", format!("epoch {}, version {}", head.epoch, head.version)),
        ("issued", date(head.issued)),
        ("expires", format!("{} ({state})", date(head.expires))),
        ("signature", signature.to_owned()),
        ("max payload", format!("{} bytes", head.max_payload_bytes)),
        ("superusers", join(head.superusers.iter(), ", ")),
        ("roots", join(head.roots.iter(), ", ")),
        ("re-signer", head.resigner.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
        ("sections", format!("{held} of {} are in this file", head.sections.len())),
    ];
    for (name, value) in rows {
        out.line(&format!("{name:<12} {value}"))?;
    }
    out.line("\nnodes")?;
    for node in &head.nodes {
        let issuers = join(node.issuers.iter().map(short), ", ");
        out.line(&format!("  {}  of {}, issued by {issuers}", node.node, node.tenant))?;
    }
    out.line("\nedges")?;
    for edge in &head.edges {
        let tenants = join(carried(bundle, &edge.name), ", ");
        out.line(&format!("  {}  {} <-> {}: {tenants}", edge.name, edge.a, edge.b))?;
    }
    out.line("\ntenants")?;
    for section in bundle.sections() {
        for line in tenant_lines(section, bundle.is_superuser(section.tenant.as_str())) {
            out.line(&line)?;
        }
    }
    Ok(())
}

fn tenant_lines(section: &Section, is_superuser: bool) -> Vec<String> {
    let superuser = if is_superuser { ", superuser" } else { "" };
    let replies = if section.owner_only_replies { ", owner-only replies" } else { "" };
    let sessions = match section.sessions_max {
        0 => String::new(),
        most => format!(", at most {most} sessions per node"),
    };
    let edges = join(section.edges.iter(), ", ");
    let mut lines = vec![
        format!("  {}  weight {}{superuser}{replies}{sessions}", section.tenant, section.weight),
        format!("    edges   {}", if edges.is_empty() { "none" } else { &edges }),
    ];
    if section.limits != RateLimits::NONE {
        lines.push(format!("    limits  {} per node", section.limits));
    }
    if section.terms != EdgeTerms::DEFAULT {
        lines.push(format!("    terms   {} on every edge", section.terms));
    }
    if let Some(bytes) = section.memory_bytes {
        lines.push(format!("    memory  at most {bytes} bytes per node"));
    }
    for issuer in &section.issuers {
        lines.push(format!("    issuer  {} in {}", short(&issuer.key), join(issuer.regions.iter(), ", ")));
    }
    for grant in &section.grants {
        let access = if grant.write { "write" } else { "read" };
        lines.push(format!("    grant   {}: {} may {access} {}", grant.name, grant.tenant, grant.filter));
    }
    if !section.revocations.is_empty() {
        lines.push(format!("    revoked {} entries", section.revocations.len()));
    }
    lines
}

/// The tenants of this file's sections that the edge may carry.
fn carried<'a>(bundle: &'a Bundle, edge: &'a Label) -> impl Iterator<Item = &'a glocal_core::name::TenantId> {
    bundle.sections().filter(move |s| s.edges.contains(edge)).map(|s| &s.tenant)
}

/// The first digits of a key id, enough for people to compare.
fn short(key: &glocal_core::identity::KeyId) -> String {
    key.to_string().chars().take(16).collect()
}

fn join<T: std::fmt::Display>(items: impl Iterator<Item = T>, separator: &str) -> String {
    items.map(|i| i.to_string()).collect::<Vec<_>>().join(separator)
}

fn texts<T: std::fmt::Display>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn bundle_document(bundle: &Bundle, verified: bool, state: &str) -> Value {
    let head = bundle.head();
    let nodes: Vec<Value> = head
        .nodes
        .iter()
        .map(|n| json!({"node": n.node.to_string(), "tenant": n.tenant.as_str(), "issuers": texts(&n.issuers)}))
        .collect();
    let edges: Vec<Value> = head
        .edges
        .iter()
        .map(|e| {
            let tenants: Vec<&str> = carried(bundle, &e.name).map(|t| t.as_str()).collect();
            json!({"name": e.name.as_str(), "a": e.a.to_string(), "b": e.b.to_string(), "tenants": tenants})
        })
        .collect();
    let tenants: Vec<Value> = bundle.sections().map(|section| section_document(section)).collect();
    json!({
        "fabric": head.fabric.as_str(),
        "epoch": head.epoch,
        "version": head.version,
        "issued": date(head.issued),
        "expires": date(head.expires),
        "state": state,
        "verified": verified,
        "max_payload_bytes": head.max_payload_bytes,
        "superusers": texts(&head.superusers),
        "roots": texts(&head.roots),
        "resigner": head.resigner.as_ref().map(ToString::to_string),
        "sections_listed": head.sections.len(),
        "nodes": nodes,
        "edges": edges,
        "tenants": tenants,
    })
}

/// A value for each class, by its name.
fn by_class<T: Into<Value>>(values: [T; 4]) -> Value {
    Class::ALL.iter().zip(values).map(|(class, value)| (class.as_str().to_owned(), value.into())).collect()
}

fn section_document(section: &Section) -> Value {
    let issuers: Vec<Value> =
        section.issuers.iter().map(|i| json!({"key": i.key.to_string(), "regions": texts(&i.regions)})).collect();
    let grants: Vec<Value> = section
        .grants
        .iter()
        .map(|g| {
            let access = if g.write { "write" } else { "read" };
            json!({"name": g.name.as_str(), "to": g.tenant.as_str(), "access": access, "filter": g.filter.as_str()})
        })
        .collect();
    let limits = &section.limits;
    json!({
        "tenant": section.tenant.as_str(),
        "weight": section.weight,
        "edges": texts(&section.edges),
        "issuers": issuers,
        "grants": grants,
        "owner_only_replies": section.owner_only_replies,
        "sessions_max": section.sessions_max,
        "limits": {
            "messages_per_s": limits.messages_per_s,
            "bytes_per_s": limits.bytes_per_s,
            "burst_ms": limits.burst_ms,
            "live_percent": limits.live_percent,
            "ctrl_percent": limits.ctrl_percent,
            "session_messages_per_s": limits.session_messages_per_s,
            "session_bytes_per_s": limits.session_bytes_per_s,
        },
        "class_weights": by_class(section.terms.class_weights),
        "memory_bytes": section.memory_bytes,
        "edge_bytes_per_s": section.terms.bytes_per_s,
        "edge_class_bytes_per_s": by_class(section.terms.class_bytes_per_s),
        "revocations": section.revocations.len(),
    })
}
