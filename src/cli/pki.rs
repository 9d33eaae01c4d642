//! `glocal pki`: single certificates.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_fabric::explain::{Explanation, explain};
use glocal_fabric::inspect::{Attribute, Certificate, date, inspect};
use glocal_fabric::issue::{self, read_certificates};
use glocal_fabric::pki::{LeafKind, LeafRequest};
use glocal_fabric::{bundle, plan};
use serde_json::{Value, json};

use super::output::Out;
use super::{WithHint, usage};

const EXAMPLES: &str = "\
Examples:
  glocal pki issue --region-ca certs/demo/regions/region-a --tenant tenantA --agent carol \\
         --out certs/demo/agents/tenantA
  glocal pki show certs/demo/agents/tenantA/carol@region-a.pem
  glocal pki verify --explain certs/demo/agents/tenantA/carol@region-a.pem";

/// Arguments of `glocal pki`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Issues one certificate with a new key.
    Issue(IssueArgs),
    /// Shows what certificates say.
    #[command(after_help = "\
Examples:
  glocal pki show root.pem
  glocal pki show alice@region-a.pem --json")]
    Show {
        /// Certificates in PEM form, or one in DER form.
        file: PathBuf,
        /// Prints one JSON document per certificate, one per line.
        #[arg(long)]
        json: bool,
    },
    /// Says whether a broker would admit a certificate, and as whom; exit code 1 when not.
    Verify(VerifyArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  glocal pki issue --region-ca certs/demo/regions/region-a --tenant tenantA --agent carol \\
         --out carol
  glocal pki issue --ca ca.pem --ca-key ca.key --tenant fabric-ops --agent broker-c --node \\
         --host broker-c.example --host 192.0.2.7 --out broker-c
  glocal pki issue --region-ca certs/demo/regions/region-a --tenant tenantA --agent broker-a \\
         --dedicated --out certs/demo/nodes/region-a-broker-a/tenantA

The signed bundle decides what a CA may issue: try 'glocal pki verify --explain' on the result.")]
struct IssueArgs {
    /// Directory of the region's CA, with ca.pem and ca.key.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ca", "ca_key"], required_unless_present = "ca")]
    region_ca: Option<PathBuf>,
    /// Certificate of the region's CA.
    #[arg(long, value_name = "FILE", requires = "ca_key")]
    ca: Option<PathBuf>,
    /// Private key of the region's CA.
    #[arg(long, value_name = "FILE", requires = "ca")]
    ca_key: Option<PathBuf>,
    /// The tenant, O.
    #[arg(long, value_parser = tenant)]
    tenant: TenantId,
    /// The region, OU; that of the CA when not given.
    #[arg(long, value_parser = label)]
    region: Option<Label>,
    /// The agent, CN.
    #[arg(long, value_parser = label)]
    agent: Label,
    /// Issues a broker's certificate, with the node name <region>/<agent>.
    #[arg(long, requires = "host")]
    node: bool,
    /// Issues a broker's certificate for its connections of one tenant on dedicated edges: with the node name
    /// <region>/<agent>, but the tenant as O, and no hosts.
    #[arg(long, conflicts_with = "node")]
    dedicated: bool,
    /// A host name or address the broker is dialled at; repeat for more.
    #[arg(long, requires = "node", conflicts_with = "dedicated", value_parser = host)]
    host: Vec<String>,
    /// How long it is valid, in days.
    #[arg(long, default_value_t = plan::LEAF_DAYS_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=825))]
    days: u32,
    /// Directory for <agent>@<region>.pem and .key.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Prints one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  glocal pki verify certs/demo/agents/tenantA/alice@region-a.pem
  glocal pki verify --explain --root root.pem --bundle bundle.glocal alice.pem

The root and the bundle are found by themselves below a directory made by 'glocal fabric apply'.")]
struct VerifyArgs {
    /// The certificates as they would be presented, leaf first.
    file: PathBuf,
    /// The root certificate.
    #[arg(long, value_name = "FILE")]
    root: Option<PathBuf>,
    /// The signed bundle.
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Tells step by step.
    #[arg(long)]
    explain: bool,
    /// Prints one JSON document.
    #[arg(long)]
    json: bool,
}

fn label(text: &str) -> Result<Label, String> {
    Label::parse(text).map_err(|error| error.to_string())
}

fn tenant(text: &str) -> Result<TenantId, String> {
    TenantId::parse(text).map_err(|error| error.to_string())
}

fn host(text: &str) -> Result<String, String> {
    let fits = text.parse::<IpAddr>().is_ok() || rustls_pki_types::DnsName::try_from(text).is_ok();
    if fits { Ok(text.to_owned()) } else { Err("is neither a host name nor an IP address".to_owned()) }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Issue(args) => run_issue(args),
        Command::Show { file, json } => show(&file, json),
        Command::Verify(args) => verify(&args),
    }
}

fn run_issue(args: IssueArgs) -> anyhow::Result<ExitCode> {
    let (certificate, key) = match (args.region_ca, args.ca, args.ca_key) {
        (Some(directory), _, _) => (directory.join("ca.pem"), directory.join("ca.key")),
        (None, Some(certificate), Some(key)) => (certificate, key),
        _ => return Err(usage("no CA is given", "give --region-ca DIR, or --ca FILE with --ca-key FILE")),
    };
    let (_, own_region) = issue::open_ca(&certificate, &key)?;
    let region = args.region.or(own_region).ok_or_else(|| {
        usage(format!("{}: does not name a region", certificate.display()), "give the region with --region")
    })?;
    let is_node = args.node || args.dedicated;
    let kind = if is_node { LeafKind::Node { hosts: args.host } } else { LeafKind::Agent };
    let request = LeafRequest { tenant: args.tenant, region, agent: args.agent, kind, days: args.days };
    let issued = issue::issue(&certificate, &key, &request, &args.out)?;
    let shown = inspect(&issued.der)?;
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "certificate": issued.certificate.display().to_string(),
            "key": issued.key.display().to_string(),
            "uid": shown.fingerprint.uid(),
            "serial": shown.serial,
            "not_after": date(shown.not_after),
        }))?;
    } else {
        let what = match &request.kind {
            LeafKind::Agent => format!("agent {}/{}", request.region, request.agent),
            LeafKind::Node { .. } => format!("node {}", NodeId::new(request.region.clone(), request.agent.clone())),
        };
        out.line(&format!("issued {what} of tenant '{}', valid to {}", request.tenant, date(shown.not_after)))?;
        out.line(&format!("  certificate  {}", issued.certificate.display()))?;
        out.line(&format!("  key          {}", issued.key.display()))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn show(file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let list = read_certificates(file)?;
    let mut out = Out::new();
    for (index, der) in list.iter().enumerate() {
        let certificate = inspect(der).with_context(|| format!("{}: certificate {}", file.display(), index + 1))?;
        if json {
            out.json(&certificate_document(&certificate))?;
            continue;
        }
        if index > 0 {
            out.line("")?;
        }
        for (name, value) in certificate_rows(&certificate) {
            out.line(&format!("{name:<12} {value}"))?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn certificate_rows(certificate: &Certificate) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    for attribute in &certificate.subject {
        rows.push(("subject", format!("{} = {}  ({})", attribute.name, attribute.value, attribute.string_type)));
    }
    for name in &certificate.names {
        rows.push(("name", name.clone()));
    }
    for attribute in &certificate.issuer {
        rows.push(("issuer", format!("{} = {}", attribute.name, attribute.value)));
    }
    rows.push(("kind", kind(certificate).to_owned()));
    rows.push(("valid from", date(certificate.not_before)));
    let now = glocal_fabric::apply::now();
    let expired = if certificate.not_after < now { "  (expired)" } else { "" };
    rows.push(("valid to", format!("{}{expired}", date(certificate.not_after))));
    rows.push(("usages", certificate.usages.join(", ")));
    rows.push(("key", format!("{}, id {}", certificate.key_algorithm, certificate.key_id)));
    if let Some(authority) = &certificate.authority_key {
        rows.push(("issuer key", format!("{authority}  (subject key identifier)")));
    }
    rows.push(("serial", certificate.serial.clone()));
    rows.push(("fingerprint", certificate.fingerprint.to_string()));
    rows.push(("uid", certificate.fingerprint.uid()));
    rows
}

fn kind(certificate: &Certificate) -> &'static str {
    match certificate.ca {
        Some(Some(0)) => "CA, issues leaves only",
        Some(_) => "CA",
        None if certificate.names.iter().any(|n| n.starts_with("URI:glocal://node/")) => "node",
        None if certificate.names.iter().any(|n| n.starts_with("URI:glocal://bundle-key/")) => "bundle key",
        None => "agent",
    }
}

fn certificate_document(certificate: &Certificate) -> Value {
    let attributes = |list: &[Attribute]| -> Vec<Value> {
        list.iter().map(|a| json!({"name": a.name, "value": a.value, "string_type": a.string_type})).collect()
    };
    json!({
        "subject": attributes(&certificate.subject),
        "issuer": attributes(&certificate.issuer),
        "names": certificate.names,
        "kind": kind(certificate),
        "not_before": date(certificate.not_before),
        "not_after": date(certificate.not_after),
        "usages": certificate.usages,
        "key_algorithm": certificate.key_algorithm,
        "key_id": certificate.key_id.to_string(),
        "authority_key": certificate.authority_key,
        "serial": certificate.serial,
        "fingerprint": certificate.fingerprint.to_string(),
        "uid": certificate.fingerprint.uid(),
    })
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let presented = read_certificates(&args.file)?;
    let root = find(args.root.as_deref(), &args.file, "root.pem", "root/root.pem", "root certificate", "--root")?;
    let bundle_path =
        find(args.bundle.as_deref(), &args.file, "bundle.glocal", "bundle/bundle.glocal", "bundle", "--bundle")?;
    let roots = read_certificates(&root)?;
    let envelope = bundle::read(&bundle_path)?;
    let answer = explain(&presented, &roots, &envelope, glocal_fabric::apply::now());
    let mut out = Out::new();
    if args.json {
        out.json(&explanation_document(&answer))?;
    } else if args.explain {
        out.line(&format!("root    {}\nbundle  {}\n", root.display(), bundle_path.display()))?;
        for step in &answer.steps {
            let mark = if step.passed { "✓" } else { "✗" };
            let code = step.deny.map(|deny| format!("{deny}: ")).unwrap_or_default();
            out.line(&format!("{mark} {:<10} {code}{}", step.name, step.text))?;
        }
    } else {
        out.line(&verdict(&answer))?;
        out.line(&format!("by root {} and bundle {}", root.display(), bundle_path.display()))?;
    }
    out.flush()?;
    Ok(if answer.is_admitted() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(answer: &Explanation) -> String {
    match (&answer.principal, answer.steps.last()) {
        (Some(principal), _) => format!("admitted as {}: {principal}", principal.role()),
        (None, Some(step)) => {
            let code = step.deny.map_or("bundle", |deny| deny.code());
            format!("refused: {code}: {}", step.text)
        }
        (None, None) => "refused".to_owned(),
    }
}

fn explanation_document(answer: &Explanation) -> Value {
    let steps: Vec<Value> = answer
        .steps
        .iter()
        .map(|s| json!({"step": s.name, "passed": s.passed, "text": s.text, "deny": s.deny.map(|d| d.code())}))
        .collect();
    let principal = answer.principal.as_ref().map(|p| {
        json!({
            "tenant": p.tenant().as_str(),
            "role": p.role().as_str(),
            "region": p.region().map(Label::as_str),
            "agent": p.agent().map(Label::as_str),
            "node": p.node().map(ToString::to_string),
            "uid": p.uid(),
        })
    });
    json!({"admitted": answer.is_admitted(), "principal": principal, "steps": steps})
}

fn find(given: Option<&Path>, file: &Path, name: &str, below: &str, what: &str, flag: &str) -> anyhow::Result<PathBuf> {
    given
        .map(Path::to_path_buf)
        .or_else(|| beside(file, name, below))
        .with_context(|| format!("no {what} is found near {}", file.display()))
        .hint(format!("give it with {flag} FILE"))
}

/// A file `name` in the directory of `file`, or `below` one of the three directories above it, as an apply lays them out.
pub(super) fn beside(file: &Path, name: &str, below: &str) -> Option<PathBuf> {
    let file = std::path::absolute(file).ok()?;
    let mut directories = file.ancestors().skip(1);
    let own = directories.next()?;
    std::iter::once(own.join(name))
        .chain(std::iter::once(own).chain(directories.take(3)).map(|d| d.join(below)))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use glocal_fabric::{Plan, apply};

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from(std::iter::once("pki").chain(line.iter().copied())).map(|line| line.args)
    }

    #[test]
    fn an_issue_needs_one_ca_and_a_node_its_hosts() {
        let common = ["issue", "--tenant", "acme", "--agent", "a", "--out", "o"];
        let with = |more: &[&str]| parse(&[&common[..], more].concat());
        assert!(with(&["--region-ca", "d"]).is_ok());
        assert!(with(&["--ca", "c", "--ca-key", "k"]).is_ok());
        assert!(with(&["--region-ca", "d", "--node", "--host", "h.example", "--host", "::1"]).is_ok());
        assert!(with(&["--region-ca", "d", "--dedicated"]).is_ok());
        for bad in [
            &[][..],
            &["--ca", "c"],
            &["--region-ca", "d", "--ca", "c", "--ca-key", "k"],
            &["--region-ca", "d", "--node"],
            &["--region-ca", "d", "--dedicated", "--node", "--host", "h"],
            &["--region-ca", "d", "--dedicated", "--host", "h"],
            &["--region-ca", "d", "--host", "h"],
            &["--region-ca", "d", "--node", "--host", "a b"],
            &["--region-ca", "d", "--days", "0"],
            &["--region-ca", "d", "--region", "a b"],
        ] {
            assert!(with(bad).is_err(), "{bad:?}");
        }
    }

    const NODE: &str = "[[node]]\nname = \"r/b\"\nrole = \"region\"\nhosts = [\"localhost\"]\n";

    #[test]
    fn what_the_bundle_does_not_know_is_refused_with_exit_code_1() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let text = "fabric = \"f\"\noperator = \"ops\"\nregion = [{ name = \"r\" }]\n\
                    [[tenant]]\nid = \"acme\"\nregions = [\"r\"]\n";
        apply(&Plan::parse(text, "p").unwrap(), &out, &mut |_| ()).unwrap();
        let (ca, agents) = (out.join("regions/r"), out.join("agents/acme"));
        for (tenant, code) in [("acme", ExitCode::SUCCESS), ("other", ExitCode::FAILURE)] {
            let agent = format!("of-{tenant}");
            let line = ["issue", "--tenant", tenant, "--agent", &agent, "--json", "--region-ca"];
            let paths = [ca.to_str().unwrap(), "--out", agents.to_str().unwrap()];
            run(parse(&[&line[..], &paths].concat()).unwrap()).unwrap();
            let file = agents.join(format!("{agent}@r.pem"));
            // Root and bundle are found above the file.
            let answer = run(parse(&["verify", "--explain", file.to_str().unwrap()]).unwrap()).unwrap();
            assert_eq!(format!("{answer:?}"), format!("{code:?}"), "{tenant}");
        }
        // A broker's certificate for a tenant, and one for a tenant that is not there.
        let broker = Plan::parse(&format!("{text}{NODE}"), "p").unwrap();
        apply(&broker, &out, &mut |_| ()).unwrap();
        for (tenant, code) in [("acme", ExitCode::SUCCESS), ("other", ExitCode::FAILURE)] {
            let place = out.join("nodes/r-b").join(tenant);
            let line = ["issue", "--tenant", tenant, "--agent", "b", "--dedicated", "--json", "--region-ca"];
            let paths = [ca.to_str().unwrap(), "--out", place.to_str().unwrap()];
            run(parse(&[&line[..], &paths].concat()).unwrap()).unwrap();
            let file = place.join("b@r.pem");
            let answer = run(parse(&["verify", "--explain", file.to_str().unwrap()]).unwrap()).unwrap();
            assert_eq!(format!("{answer:?}"), format!("{code:?}"), "broker for {tenant}");
        }
        let lonely = directory.path().join("lonely.pem");
        std::fs::copy(agents.join("of-acme@r.pem"), &lonely).unwrap();
        let error = run(parse(&["verify", lonely.to_str().unwrap()]).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("no root certificate is found near "), "{error}");
    }
}
