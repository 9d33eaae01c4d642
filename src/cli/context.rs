//! `glocal context`: connections saved under a name, so that certificates need not be typed each time.
//!
//! A context is a TOML file that holds paths, never keys, readable by its owner only. Files are replaced whole, so a
//! reader never sees half of one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use glocal_client::Address;
use glocal_core::limits::CONFIG_BYTES_MAX;
use glocal_core::name::Label;
use serde::{Deserialize, Serialize};

use super::connect::{self, Settings};
use super::output::Out;
use super::{WithHint as _, usage};

const EXAMPLES: &str = "\
Examples:
  glocal context add dev --server 127.0.0.1:32010 --root certs/root.pem \\
         --cert certs/agent.pem --key certs/agent.key --use
  glocal context list
  glocal context validate dev --connect
  GLOCAL_CONTEXT=dev glocal whoami

Contexts live in $GLOCAL_CONFIG_DIR, or $XDG_CONFIG_HOME/glocal, or ~/.config/glocal.
They hold the paths of certificates and keys, never their contents.";

/// Arguments of `glocal context`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Saves a connection; an existing name needs --force.
    #[command(after_help = EXAMPLES)]
    Add(AddArgs),
    /// Makes a context the one used when no other is named.
    Use {
        /// The context's name.
        #[arg(value_parser = name)]
        name: String,
    },
    /// Lists the contexts; the current one is marked.
    #[command(visible_alias = "ls")]
    List {
        /// Prints one JSON object per context.
        #[arg(long)]
        json: bool,
    },
    /// Shows one context.
    Show {
        /// The context's name; the current one by default.
        #[arg(value_parser = name)]
        name: Option<String>,
        /// Prints a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Deletes a context; the files it names stay.
    #[command(visible_alias = "rm")]
    Remove {
        /// The context's name.
        #[arg(value_parser = name)]
        name: String,
    },
    /// Checks that a context's files are there and fit together.
    Validate {
        /// The context's name; the current one by default.
        #[arg(value_parser = name)]
        name: Option<String>,
        /// Connects as well, and says who the broker takes us for.
        #[arg(long)]
        connect: bool,
    },
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// The context's name: letters, digits, `-` and `_`.
    #[arg(value_parser = name)]
    name: String,
    /// The brokers' addresses: host:port, tls://host:port or quic://host:port; several by comma or repetition.
    #[arg(short, long, value_delimiter = ',', required = true, value_name = "ADDRESS")]
    server: Vec<Address>,
    /// The fabric's root certificate (PEM).
    #[arg(long, value_name = "FILE")]
    root: PathBuf,
    /// The agent's certificate chain (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The agent's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The broker's name, `<region>/<agent>`, when only that one will do.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Makes it the current context.
    #[arg(long = "use")]
    make_current: bool,
    /// Replaces a context of the same name.
    #[arg(long)]
    force: bool,
}

/// One saved connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saved {
    /// The brokers' addresses.
    pub(crate) server: Vec<String>,
    /// The fabric's root certificate.
    pub(crate) root: PathBuf,
    /// The agent's certificate chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    /// The agent's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// The one broker that will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let store = Store::open()?;
    match args.verb {
        Verb::Add(args) => add(&store, args),
        Verb::Use { name } => {
            store.load(&name)?;
            store.set_current(&name)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::List { json } => list(&store, json),
        Verb::Show { name, json } => show(&store, name.as_deref(), json),
        Verb::Remove { name } => {
            store.remove(&name)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Validate { name, connect } => validate(&store, name.as_deref(), connect),
    }
}

fn add(store: &Store, args: AddArgs) -> anyhow::Result<ExitCode> {
    if store.path(&args.name).exists() && !args.force {
        return Err(usage(
            format!("context '{}' exists", args.name),
            "pass --force to replace it, or choose another name",
        ));
    }
    let saved = Saved {
        server: args.server.iter().map(ToString::to_string).collect(),
        root: absolute(&args.root)?,
        cert: args.cert.as_deref().map(absolute).transpose()?,
        key: args.key.as_deref().map(absolute).transpose()?,
        node: args.node,
    };
    store.save(&args.name, &saved)?;
    if args.make_current {
        store.set_current(&args.name)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(store: &Store, json: bool) -> anyhow::Result<ExitCode> {
    let current = store.current()?;
    let mut out = Out::new();
    let mut rows = Vec::new();
    for name in store.names()? {
        let is_current = current.as_deref() == Some(&name);
        // One damaged file must not hide the others.
        let (servers, error) = match store.load(&name) {
            Ok(saved) => (saved.server, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        if json {
            out.json(&serde_json::json!({"name": name, "current": is_current, "server": servers, "error": error}))?;
            continue;
        }
        let mark = if is_current { "*" } else { "" };
        rows.push(vec![name, mark.to_owned(), error.unwrap_or_else(|| servers.join(","))]);
    }
    if !json {
        out.table(&["NAME", "CURRENT", "SERVER"], &rows)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn show(store: &Store, name: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let (name, saved) = store.named_or_current(name)?;
    let mut out = Out::new();
    if json {
        let mut value = serde_json::to_value(&saved).context("cannot write JSON")?;
        if let Some(object) = value.as_object_mut() {
            object.insert("name".to_owned(), name.into());
        }
        out.json(&value)?;
    } else {
        let path = |p: Option<PathBuf>| p.map_or("-".to_owned(), |p| p.display().to_string());
        let rows = [
            ("name", name),
            ("server", saved.server.join(",")),
            ("root", saved.root.display().to_string()),
            ("cert", path(saved.cert)),
            ("key", path(saved.key)),
            ("node", saved.node.unwrap_or_else(|| "-".to_owned())),
        ]
        .map(|(key, value)| vec![key.to_owned(), value]);
        out.table(&["", ""], &rows)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn validate(store: &Store, name: Option<&str>, and_connect: bool) -> anyhow::Result<ExitCode> {
    let (name, saved) = store.named_or_current(name)?;
    if let Some(key) = &saved.key {
        connect::warn_about_open_key(key);
    }
    let options = Settings::from_saved(&name, saved)?.options();
    options.check().with_context(|| format!("context '{name}'"))?;
    let mut out = Out::new();
    out.line(&format!("context '{name}': files are there and fit together"))?;
    if and_connect {
        let who = connect::block_on(async {
            let client = connect::connect(options).await?;
            let who = client.whoami();
            client.close().await;
            anyhow::Ok(who)
        })?;
        let node = &who.node;
        out.line(&format!("context '{name}': {node} takes this client for {} of tenant {}", who.role, who.tenant))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Parses a context's name, which becomes a file name.
pub(crate) fn name(text: &str) -> Result<String, String> {
    Label::parse(text)
        .map(|label| label.as_str().to_owned())
        .map_err(|_| "a context's name is letters, digits, '-' and '_', at most 63".to_owned())
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot make '{}' absolute", path.display()))
}

/// The folder of contexts.
pub(crate) struct Store {
    dir: PathBuf,
}

impl Store {
    /// The store this environment names; nothing is made yet.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let dir = var("GLOCAL_CONFIG_DIR")
            .or_else(|| var("XDG_CONFIG_HOME").map(|d| d.join("glocal")))
            .or_else(|| var("HOME").map(|d| d.join(".config").join("glocal")))
            .context("no folder for contexts: HOME is not set")
            .hint("set GLOCAL_CONFIG_DIR")?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join("contexts").join(format!("{name}.toml"))
    }

    fn current_path(&self) -> PathBuf {
        self.dir.join("current-context")
    }

    /// The current context's name.
    pub(crate) fn current(&self) -> anyhow::Result<Option<String>> {
        let path = self.current_path();
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(name(text.trim()).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read '{}'", path.display())),
        }
    }

    /// Reads one context.
    pub(crate) fn load(&self, name: &str) -> anyhow::Result<Saved> {
        let path = self.path(name);
        let shown = path.display();
        let size = match std::fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(anyhow::anyhow!("there is no context '{name}'"))
                    .hint("see 'glocal context list', or make it with 'glocal context add'");
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read '{shown}'")),
        };
        anyhow::ensure!(size <= CONFIG_BYTES_MAX as u64, "'{shown}' is larger than {CONFIG_BYTES_MAX} bytes");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read '{shown}'"))?;
        let first_line = |error: &toml::de::Error| error.message().lines().next().unwrap_or_default().to_owned();
        toml::from_str(&text).map_err(|error| anyhow::anyhow!("context file '{shown}': {}", first_line(&error)))
    }

    fn named_or_current(&self, name: Option<&str>) -> anyhow::Result<(String, Saved)> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => self
                .current()?
                .ok_or_else(|| usage("no context is current", "name one, or choose with 'glocal context use'"))?,
        };
        let saved = self.load(&name)?;
        Ok((name, saved))
    }

    /// Writes one context, readable by its owner only.
    fn save(&self, name: &str, saved: &Saved) -> anyhow::Result<()> {
        let text = toml::to_string(saved).context("cannot write TOML")?;
        write_private(&self.path(name), &format!("# A connection saved by 'glocal context add'.\n{text}"))
    }

    fn set_current(&self, name: &str) -> anyhow::Result<()> {
        write_private(&self.current_path(), &format!("{name}\n"))
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(anyhow::anyhow!("there is no context '{name}'")).hint("see 'glocal context list'");
            }
            Err(error) => return Err(error).with_context(|| format!("cannot delete '{}'", path.display())),
        }
        if self.current()?.as_deref() == Some(name) {
            let path = self.current_path();
            std::fs::remove_file(&path).with_context(|| format!("cannot delete '{}'", path.display()))?;
        }
        Ok(())
    }

    /// The names of all contexts, sorted.
    fn names(&self) -> anyhow::Result<Vec<String>> {
        let dir = self.dir.join("contexts");
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("cannot list '{}'", dir.display())),
        };
        let mut names: Vec<String> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".toml").and_then(|n| name(n).ok()))
            .collect();
        names.sort();
        Ok(names)
    }
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let dir = path.parent().context("a context needs a folder")?;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
    // A temporary file is made with mode 0600, and a rename replaces the old file whole.
    let mut file =
        tempfile::NamedTempFile::new_in(dir).with_context(|| format!("cannot write in '{}'", dir.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write '{shown}'"))?;
    file.persist(path).map_err(|error| error.error).with_context(|| format!("cannot write '{shown}'"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn saved() -> Saved {
        Saved {
            server: vec!["tls://127.0.0.1:1".to_owned()],
            root: "/r.pem".into(),
            cert: Some("/c.pem".into()),
            key: Some("/k.pem".into()),
            node: None,
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { dir: dir.path().join("glocal") };
        (dir, store)
    }

    #[test]
    fn a_context_is_saved_privately_and_read_back() {
        let (_dir, store) = store();
        store.save("dev", &saved()).unwrap();
        assert_eq!(store.load("dev").unwrap(), saved());
        assert_eq!(std::fs::metadata(store.path("dev")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&store.dir).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_current_context_follows_use_and_remove() {
        let (_dir, store) = store();
        assert_eq!(store.names().unwrap(), Vec::<String>::new());
        assert_eq!(store.current().unwrap(), None);
        for name in ["b", "a"] {
            store.save(name, &saved()).unwrap();
        }
        store.set_current("b").unwrap();
        assert_eq!(store.names().unwrap(), ["a", "b"]);
        assert_eq!(store.named_or_current(None).unwrap().0, "b");
        store.remove("b").unwrap();
        assert_eq!(store.current().unwrap(), None);
        assert!(store.load("b").is_err() && store.remove("b").is_err());
    }

    #[test]
    fn a_damaged_file_is_named_in_the_error() {
        let (_dir, store) = store();
        store.save("dev", &saved()).unwrap();
        std::fs::write(store.path("dev"), "server = []\nroot = 'r'\nsecret = 'x'\n").unwrap();
        let error = format!("{:#}", store.load("dev").unwrap_err());
        assert!(error.contains("dev.toml") && error.contains("secret"), "{error}");
    }

    #[test]
    fn names_cannot_leave_the_folder() {
        for bad in ["", "..", "a/b", "../a", "a.b", "-a"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
