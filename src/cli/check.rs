//! `glocal check`: compiles configurations and says everything that is wrong with them.
//!
//! It opens no port, reads no certificate and changes nothing. It exits 0 when every file compiles, even with values
//! that `glocal run` will not accept yet: those are warnings here, with a line that says so.

use std::path::PathBuf;
use std::process::ExitCode;

use glocal_node::config::{self, ClientAuth, Config, Loaded, Place, Problem};
use serde_json::{Value, json};

use super::output::{Out, escape};

/// Arguments of `glocal check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration files of brokers.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Sets a key for every file, as `glocal run` would; stronger than the environment and the file.
    #[arg(short = 'D', value_name = "KEY=VALUE", value_parser = key_value)]
    define: Vec<(String, String)>,

    /// Prints one JSON object per file.
    #[arg(long)]
    json: bool,
}

/// Parses `key=value`.
///
/// # Errors
/// A text without `=` or without a key.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { files, define, json } = args;
    let mut out = Out::new();
    let mut all_good = true;
    for file in &files {
        let report = match Config::load(file, &define, config::environment()) {
            Ok(loaded) => Report::good(&loaded),
            Err(errors) => Report { errors: errors.problems().to_vec(), ..Report::default() },
        };
        all_good &= report.errors.is_empty();
        let name = file.display().to_string();
        if json {
            out.json(&report.json(&name))?;
        } else {
            for line in report.lines(&name) {
                out.line(&escape(line.as_bytes()))?;
            }
        }
    }
    out.flush()?;
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is to be said of one file.
#[derive(Debug, Default)]
struct Report {
    errors: Vec<Problem>,
    /// Values that `glocal run` refuses in this release.
    unsupported: Vec<Problem>,
    warnings: Vec<Problem>,
    notes: Vec<Problem>,
    /// The node and what it does, when it compiles.
    node: Option<(String, &'static str)>,
    anonymous_tenant: Option<String>,
}

impl Report {
    fn good(loaded: &Loaded) -> Self {
        let Loaded { config, notes } = loaded;
        let of = |warning| notes.iter().filter(move |note| note.warning == warning).map(|note| note.what.clone());
        let missing = config.files().into_iter().filter(|(_, path)| !path.exists()).map(|(key, path)| {
            Problem::new(Place::file(&config.file), key, format!("there is no file {} yet", path.display()))
        });
        Self {
            errors: Vec::new(),
            unsupported: config.unsupported.clone(),
            warnings: of(true).collect(),
            notes: of(false).chain(missing).collect(),
            node: Some((config.node.to_string(), config.role.as_str())),
            anonymous_tenant: match &config.clients {
                ClientAuth::Required => None,
                ClientAuth::AnonymousAs(tenant) => Some(tenant.to_string()),
            },
        }
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let kinds: [(&str, &[Problem]); 4] = [
            ("", &self.errors),
            ("warning: ", &self.unsupported),
            ("warning: ", &self.warnings),
            ("note: ", &self.notes),
        ];
        let mut lines: Vec<String> = kinds
            .iter()
            .flat_map(|(kind, problems)| problems.iter().map(move |problem| format!("{kind}{problem}")))
            .collect();
        lines.push(self.summary(file));
        lines
    }

    fn summary(&self, file: &str) -> String {
        let Some((node, role)) = &self.node else {
            return format!("{file}: refused, {}", counted(self.errors.len(), "error"));
        };
        let clients = match &self.anonymous_tenant {
            None => "clients need a certificate".to_owned(),
            Some(tenant) => format!("clients without a certificate are tenant \"{tenant}\""),
        };
        match self.unsupported.len() {
            0 => format!("{file}: ok, {role} {node}, {clients}"),
            count => format!(
                "{file}: compiles as {role} {node}, {clients}; `glocal run` refuses it: {} not yet supported",
                counted(count, "value")
            ),
        }
    }

    fn json(&self, file: &str) -> Value {
        let list = |problems: &[Problem]| problems.iter().map(problem_json).collect::<Value>();
        json!({
            "file": file,
            "ok": self.errors.is_empty(),
            "runnable": self.errors.is_empty() && self.unsupported.is_empty(),
            "node": self.node.as_ref().map(|(node, _)| node),
            "role": self.node.as_ref().map(|(_, role)| role),
            "anonymous_tenant": self.anonymous_tenant,
            "errors": list(&self.errors),
            "unsupported": list(&self.unsupported),
            "warnings": list(&self.warnings),
            "notes": list(&self.notes),
        })
    }
}

fn problem_json(problem: &Problem) -> Value {
    json!({
        "place": problem.place.to_string(),
        "line": problem.place.line_number(),
        "key": problem.path,
        "message": problem.message,
        "text": problem.to_string(),
    })
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        match config::compile(text, "node.toml".as_ref(), &[], []) {
            Ok(loaded) => Report::good(&loaded),
            Err(errors) => Report { errors: errors.problems().to_vec(), ..Report::default() },
        }
    }

    const BASE: &str = "regionname = \"a\"\nagentname = \"b\"\nis_region = true\n";

    #[test]
    fn overrides_are_key_and_value() {
        assert_eq!(key_value("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(key_value("a="), Ok(("a".to_owned(), String::new())));
        assert!(key_value("a").is_err() && key_value("=b").is_err());
    }

    #[test]
    fn a_refused_file_lists_all_errors_and_counts_them() {
        let lines = report("colour = 1\n").lines("node.toml");
        assert_eq!(lines.last().map(String::as_str), Some("node.toml: refused, 4 errors"));
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn values_for_later_are_warnings_and_the_summary_says_so() {
        let report = report(&format!("{BASE}tenant_namespacing = false\n"));
        let lines = report.lines("node.toml");
        assert_eq!(lines[0], "warning: node.toml:4: tenant_namespacing: false is not yet supported");
        assert!(lines.last().unwrap().ends_with("`glocal run` refuses it: 1 value not yet supported"), "{lines:?}");
        let json = report.json("node.toml");
        assert_eq!((&json["ok"], &json["runnable"]), (&json!(true), &json!(false)));
        assert_eq!(json["unsupported"][0]["key"], "tenant_namespacing");
        assert_eq!(json["unsupported"][0]["line"], 4);
    }

    #[test]
    fn anonymous_clients_are_reported() {
        let report = report(&format!("{BASE}broker_require_client_auth = false\nanonymous_tenant = \"guests\"\n"));
        assert_eq!(report.json("x")["anonymous_tenant"], "guests");
        let lines = report.lines("node.toml");
        assert!(lines[0].starts_with("warning: node.toml:5: anonymous_tenant: "), "{lines:?}");
        assert!(lines.last().unwrap().contains("clients without a certificate are tenant \"guests\""), "{lines:?}");
    }

    #[test]
    fn missing_files_are_notes() {
        let lines = report(BASE).lines("node.toml");
        assert_eq!(lines[0], "note: node.toml: fabric_root: there is no file root.pem yet");
        assert_eq!(lines.len(), 5, "root, bundle, certificate and key");
    }
}
