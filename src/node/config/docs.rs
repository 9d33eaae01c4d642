//! `docs/CONFIG.md`, made from the table of keys; a test holds the file equal to it.

use std::fmt::Write as _;

use super::keys::{FILE_SUFFIX, KEYS, Key, Kind, OTHER_VARIABLES, Presence, Unsupported};
use super::raw::join;

/// The text of `docs/CONFIG.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    write_index(&mut text);
    text.push_str("\n## Keys\n");
    for (path, key) in all() {
        let heading = if path.contains('.') { "####" } else { "###" };
        write_key(&mut text, key, heading, &path);
    }
    text.push_str(VARIABLES);
    for (name, doc) in OTHER_VARIABLES {
        line(&mut text, format_args!("- `{name}`: {doc}."));
    }
    text
}

const INTRODUCTION: &str = "\
# Configuration

<!-- Made from the table in src/node/config/keys.rs.
     After a change there: UPDATE_DOCS=1 cargo test -p glocal-node config -->

A node reads one TOML file. `glocal check FILE` compiles it without touching a port and prints every error at once,
each as `file:line: key: message`; `glocal run` refuses the same errors. Unknown and duplicate keys are errors at
every depth.

**Precedence**, strongest first:

1. `-D key=value` on the command line;
2. the environment variable `GLOCAL_<KEY>`, the key in upper case;
3. the environment variable `CRESCO_<KEY>`;
4. the file;
5. the default below.

A value in the file is checked even when a stronger source replaces it. An unknown `-D` key or `GLOCAL_` variable is
an error; an unknown `CRESCO_` variable is only noted, since it may be meant for Cresco. `[[edges]]` are given in
the file only.

**Forms.** In the file, values have TOML's types. On the command line and in the environment everything is text:
`true` and `false`, decimal numbers, and lists separated by commas (`broker_cross_tenant_sinks`: by semicolons). The
same text form of a list is accepted in the file, as Cresco writes it. Relative paths belong to the directory of the
file, wherever they are given.

**Secrets.** `node_key` is a path, or the PEM text itself; `node_key_file` is always a path. Give one of the two; the
same goes for `bundle_signing_key`. A secret is never shown in an error, a log line or the output of `glocal check`.

**Not yet supported.** Some values are understood but not carried out by this release. `glocal check` lists them as
warnings; `glocal run` refuses them, naming each key. None is ever ignored.

**Narrowing.** The signed bundle decides who may issue whom, which edges carry which tenants and who is a superuser. A
configuration only narrows that.

**Departure from Cresco.** A new node starts secure: security, client certificates and namespacing are on. Cresco's
defaults are in `mesh-configs/cresco-compat.toml`.

| key | value | default |
| --- | --- | --- |
";

const VARIABLES: &str = "
## Other variables

These begin with `GLOCAL_` and are not keys:

";

/// One line; writing to a `String` cannot fail.
fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(arguments);
    text.push('\n');
}

fn write_index(text: &mut String) {
    for (path, key) in all() {
        index_row(text, key, &path);
    }
}

/// Every key with its path, tables before what they hold.
fn all() -> Vec<(String, &'static Key)> {
    fn add(out: &mut Vec<(String, &'static Key)>, parent: &str, keys: &'static [Key]) {
        for key in keys {
            let path = join(parent, key.name);
            out.push((path.clone(), key));
            if let Kind::Tables { keys, .. } = key.kind {
                add(out, &path, keys);
            }
        }
    }
    let mut out = Vec::new();
    add(&mut out, "", KEYS);
    out
}

fn index_row(text: &mut String, key: &Key, path: &str) {
    let expected = expected(key).replace('|', "\\|");
    line(text, format_args!("| [`{path}`](#{}) | {expected} | {} |", path.replace('.', ""), default(key)));
}

/// What the value must be, with what Markdown would take for a tag escaped.
fn expected(key: &Key) -> String {
    key.kind.expected().replace('<', "&lt;")
}

fn default(key: &Key) -> String {
    match key.presence {
        Presence::Required => "required".to_owned(),
        Presence::Default("") => "empty".to_owned(),
        Presence::Default(value) => format!("`{value}`"),
        Presence::Absent(meaning) => format!("not set: {meaning}"),
    }
}

fn write_key(text: &mut String, key: &Key, heading: &str, path: &str) {
    line(text, format_args!("\n{heading} {path}\n"));
    line(text, format_args!("{}\n", key.doc));
    line(text, format_args!("- Value: {}", expected(key)));
    line(text, format_args!("- Default: {}", default(key)));
    if key.is_secret() {
        line(text, format_args!("- A secret; `{}{FILE_SUFFIX}` names its file", key.name));
    }
    if key.cresco {
        line(text, format_args!("- A key of Cresco's"));
    }
    match key.unsupported {
        Unsupported::Never => {}
        Unsupported::Given => line(text, format_args!("- Not yet supported, unless empty or not set")),
        Unsupported::Value(value) => line(text, format_args!("- Not yet supported: `{value}`")),
    }
}
