//! One raw value to one checked value, by the kind of its key.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use glocal_core::limits::{CONFIG_LIST_MAX, CONFIG_RATE_BITS_MAX, CONFIG_RATE_BITS_MIN};
use glocal_core::name::{Label, NodeId, RawFilter, TenantId};

use super::glob::TenantGlob;
use super::keys::{Key, Kind};
use super::problem::{Place, Problem};
use super::raw::{Raw, RawValue, shown};
use super::value::{CrossTenantSink, HostPort, Secret, SecretSource, check_host};
use super::walk::{Table, suggest};

/// A checked value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Integer(u64),
    Word(&'static str),
    Label(Label),
    Node(NodeId),
    Tenant(TenantId),
    Tenants(Vec<TenantId>),
    Globs(Vec<TenantGlob>),
    Filters(Vec<RawFilter>),
    Sinks(Vec<CrossTenantSink>),
    Origins(Vec<String>),
    Ip(IpAddr),
    Listen(Option<SocketAddr>),
    Host(String),
    Addresses(Vec<HostPort>),
    Path(PathBuf),
    Secret(SecretSource),
    Tables(Vec<Table>),
}

impl Value {
    /// Whether it is a list without entries.
    pub(super) const fn is_empty_list(&self) -> bool {
        match self {
            Self::Tenants(list) => list.is_empty(),
            Self::Globs(list) => list.is_empty(),
            Self::Filters(list) => list.is_empty(),
            Self::Sinks(list) => list.is_empty(),
            Self::Origins(list) => list.is_empty(),
            Self::Addresses(list) => list.is_empty(),
            Self::Tables(list) => list.is_empty(),
            _ => false,
        }
    }
}

/// Which source a value comes from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    File,
    Variable(String),
    Override(String),
}

/// What a conversion needs to know, and where it reports.
pub(super) struct Context<'a> {
    pub(super) file: &'a Path,
    pub(super) origin: Origin,
    pub(super) problems: &'a mut Vec<Problem>,
}

impl Context<'_> {
    pub(super) fn place(&self, line: usize) -> Place {
        match &self.origin {
            Origin::File => Place::line(self.file, line),
            Origin::Variable(name) => Place::Variable(name.clone()),
            Origin::Override(name) => Place::Override(name.clone()),
        }
    }

    pub(super) fn report(&mut self, line: usize, path: &str, message: impl Into<String>) {
        let place = self.place(line);
        self.problems.push(Problem::new(place, path, message));
    }

    /// A path of the file, relative to its directory.
    pub(super) fn join(&self, text: &str) -> PathBuf {
        self.file.parent().unwrap_or_else(|| Path::new("")).join(text)
    }
}

/// Converts a value that is no table; reports and gives `None` when it is not of the key's kind.
pub(super) fn convert(key: &Key, raw: &Raw, path: &str, context: &mut Context<'_>) -> Option<Value> {
    if key.kind.is_list() {
        return convert_list(key, raw, path, context);
    }
    match scalar(&key.kind, &raw.value, context) {
        Ok(value) => Some(value),
        Err(Wrong::Type) => {
            let found = found(&raw.value, key.is_secret());
            context.report(raw.line, path, format!("expected {}, found {found}", key.kind.expected()));
            None
        }
        Err(Wrong::Value(message)) => {
            let found = found(&raw.value, key.is_secret());
            context.report(raw.line, path, format!("{found} {message}"));
            None
        }
    }
}

enum Wrong {
    /// It is of another type, or out of range.
    Type,
    /// It is of the type, but the sentence says why it will not do.
    Value(String),
}

fn scalar(kind: &Kind, raw: &RawValue, context: &Context<'_>) -> Result<Value, Wrong> {
    match kind {
        Kind::Bool => boolean(raw).map(Value::Bool).ok_or(Wrong::Type),
        Kind::Integer { min, max } => integer(raw, *min, *max).map(Value::Integer).ok_or(Wrong::Type),
        Kind::Rate => match raw {
            RawValue::Integer(_) => {
                integer(raw, CONFIG_RATE_BITS_MIN, CONFIG_RATE_BITS_MAX).map(Value::Integer).ok_or(Wrong::Type)
            }
            _ => rate(text(raw)?).map(Value::Integer).ok_or(Wrong::Type),
        },
        _ => textual(kind, text(raw)?, context),
    }
}

fn textual(kind: &Kind, text: &str, context: &Context<'_>) -> Result<Value, Wrong> {
    let named = |error: glocal_core::name::NameError| Wrong::Value(format!("will not do: {error}"));
    match kind {
        Kind::Choice(words) => match words.iter().find(|word| **word == text) {
            Some(word) => Ok(Value::Word(word)),
            None => match suggest(text, words.iter().copied()) {
                Some(near) => Err(Wrong::Value(format!("is not {}; did you mean \"{near}\"?", kind.expected()))),
                None => Err(Wrong::Type),
            },
        },
        Kind::Label => Label::parse(text).map(Value::Label).map_err(named),
        Kind::Node => NodeId::parse(text)
            .map(Value::Node)
            .map_err(|_| Wrong::Value("is not a node id <region>/<agent> of two names".to_owned())),
        Kind::Tenant => TenantId::parse(text).map(Value::Tenant).map_err(named),
        Kind::Ip => text.parse().map(Value::Ip).map_err(|_| Wrong::Type),
        Kind::Listen if text == "off" => Ok(Value::Listen(None)),
        Kind::Listen => text.parse().map(|address| Value::Listen(Some(address))).map_err(|_| Wrong::Type),
        Kind::Host => check_host(text).map(Value::Host).map_err(Wrong::Value),
        Kind::Path if text.is_empty() => Err(Wrong::Type),
        Kind::Path => Ok(Value::Path(context.join(text))),
        Kind::SecretPem if text.is_empty() => Err(Wrong::Type),
        Kind::SecretPem if text.contains(PEM_MARK) => {
            Ok(Value::Secret(SecretSource::Inline(Secret::new(text.to_owned()))))
        }
        Kind::SecretPem => Ok(Value::Secret(SecretSource::File(context.join(text)))),
        _ => Err(Wrong::Type),
    }
}

/// What tells PEM text from a path.
const PEM_MARK: &str = "-----BEGIN ";

/// Converts the value of `<key>_file`: always a path.
pub(super) fn convert_secret_file(raw: &Raw, path: &str, context: &mut Context<'_>) -> Option<Value> {
    match text(&raw.value) {
        Ok(text) if !text.is_empty() && !text.contains(PEM_MARK) => {
            Some(Value::Secret(SecretSource::File(context.join(text))))
        }
        _ => {
            context.report(raw.line, path, format!("expected a path, found {}", found(&raw.value, true)));
            None
        }
    }
}

fn convert_list(key: &Key, raw: &Raw, path: &str, context: &mut Context<'_>) -> Option<Value> {
    let items = list_items(key, raw, path, context)?;
    let mut failed = false;
    let mut parse = |item: &Item<'_>| -> Option<Value> {
        let parsed = list_item(&key.kind, item.text);
        if let Err(message) = &parsed {
            context.report(item.line, &item.path, format!("\"{}\" {message}", shown(item.text)));
            failed = true;
        }
        parsed.ok()
    };
    let mut value = match key.kind {
        Kind::Tenants => Value::Tenants(Vec::new()),
        Kind::Globs => Value::Globs(Vec::new()),
        Kind::Filters => Value::Filters(Vec::new()),
        Kind::Sinks => Value::Sinks(Vec::new()),
        Kind::Origins => Value::Origins(Vec::new()),
        _ => Value::Addresses(Vec::new()),
    };
    for item in &items {
        match (&mut value, parse(item)) {
            (Value::Tenants(list), Some(Value::Tenants(more))) => list.extend(more),
            (Value::Globs(list), Some(Value::Globs(more))) => list.extend(more),
            (Value::Filters(list), Some(Value::Filters(more))) => list.extend(more),
            (Value::Sinks(list), Some(Value::Sinks(more))) => list.extend(more),
            (Value::Origins(list), Some(Value::Origins(more))) => list.extend(more),
            (Value::Addresses(list), Some(Value::Addresses(more))) => list.extend(more),
            _ => {}
        }
    }
    for (index, item) in items.iter().enumerate() {
        if items.iter().take(index).any(|earlier| earlier.text == item.text) {
            context.report(item.line, &item.path, format!("\"{}\" is in the list twice", shown(item.text)));
            failed = true;
        }
    }
    (!failed).then_some(value)
}

/// One entry of a list as text.
struct Item<'a> {
    line: usize,
    path: String,
    text: &'a str,
}

/// The entries of an array, or of a text with separators, which is Cresco's form.
fn list_items<'a>(key: &Key, raw: &'a Raw, path: &str, context: &mut Context<'_>) -> Option<Vec<Item<'a>>> {
    let mut items = Vec::new();
    let mut failed = false;
    match &raw.value {
        RawValue::List(list) => {
            for (index, item) in list.iter().enumerate() {
                let path = format!("{path}[{index}]");
                match &item.value {
                    RawValue::Text(text) => items.push(Item { line: item.line, path, text }),
                    other => {
                        context.report(item.line, &path, format!("expected a string, found {}", found(other, false)));
                        failed = true;
                    }
                }
            }
        }
        RawValue::Text(text) | RawValue::Loose(text) if text.trim().is_empty() => {}
        RawValue::Text(text) | RawValue::Loose(text) => {
            let separator = if matches!(key.kind, Kind::Sinks) { ';' } else { ',' };
            let text = text.trim().strip_suffix(separator).unwrap_or_else(|| text.trim());
            items.extend(text.split(separator).map(|text| Item {
                line: raw.line,
                path: path.to_owned(),
                text: text.trim(),
            }));
        }
        other => {
            let message = format!("expected {}, found {}", key.kind.expected(), found(other, false));
            context.report(raw.line, path, message);
            return None;
        }
    }
    if items.len() > CONFIG_LIST_MAX {
        context.report(raw.line, path, format!("has more than {CONFIG_LIST_MAX} entries"));
        return None;
    }
    (!failed).then_some(items)
}

/// One entry, as a list of one.
fn list_item(kind: &Kind, text: &str) -> Result<Value, String> {
    let named = |error: glocal_core::name::NameError| format!("will not do: {error}");
    match kind {
        Kind::Tenants => TenantId::parse(text).map(|t| Value::Tenants(vec![t])).map_err(named),
        Kind::Globs => TenantGlob::parse(text).map(|g| Value::Globs(vec![g])),
        Kind::Filters => RawFilter::parse(text.as_bytes()).map(|f| Value::Filters(vec![f])).map_err(named),
        Kind::Sinks => CrossTenantSink::parse(text).map(|s| Value::Sinks(vec![s])),
        Kind::Origins => origin(text).map(|o| Value::Origins(vec![o])),
        Kind::Addresses => HostPort::parse(text).map(|a| Value::Addresses(vec![a])),
        _ => Err("is not a list".to_owned()),
    }
}

fn text(raw: &RawValue) -> Result<&str, Wrong> {
    match raw {
        RawValue::Text(text) | RawValue::Loose(text) => Ok(text),
        _ => Err(Wrong::Type),
    }
}

fn boolean(raw: &RawValue) -> Option<bool> {
    match raw {
        RawValue::Bool(value) => Some(*value),
        RawValue::Loose(text) if text.eq_ignore_ascii_case("true") => Some(true),
        RawValue::Loose(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

fn integer(raw: &RawValue, min: u64, max: u64) -> Option<u64> {
    let value = match raw {
        RawValue::Integer(value) => u64::try_from((*value)?).ok()?,
        RawValue::Loose(text) => digits(text)?,
        _ => return None,
    };
    (min..=max).contains(&value).then_some(value)
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// `100 Mbit/s` or plain bits per second.
fn rate(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let factor: u64 = match unit.trim() {
        "" | "bit/s" => 1,
        "kbit/s" => 1_000,
        "Mbit/s" => 1_000_000,
        "Gbit/s" => 1_000_000_000,
        _ => return None,
    };
    let bits = digits(number)?.checked_mul(factor)?;
    (CONFIG_RATE_BITS_MIN..=CONFIG_RATE_BITS_MAX).contains(&bits).then_some(bits)
}

/// How an error names the value it found; a secret only by its type.
pub(super) fn found(raw: &RawValue, secret: bool) -> String {
    match raw {
        RawValue::Text(_) | RawValue::Loose(_) if secret => "a string that is not shown".to_owned(),
        RawValue::Bool(value) => format!("{value}"),
        RawValue::Integer(Some(value)) if !secret => format!("the integer {value}"),
        RawValue::Integer(_) => "an integer".to_owned(),
        RawValue::Text(text) => format!("the string \"{}\"", shown(text)),
        RawValue::Loose(text) => format!("\"{}\"", shown(text)),
        RawValue::Other(what) => (*what).to_owned(),
        RawValue::List(_) => "a list".to_owned(),
        RawValue::Table(_) => "a table".to_owned(),
    }
}

/// A web origin: scheme, host and port where it is not the scheme's own, as browsers write it (RFC 6454 section 6.2).
fn origin(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(host) if !host.is_empty() && !host.contains(['/', '*', ' ', '@', '?', '#']) => Ok(text.to_lowercase()),
        _ => Err("is not an origin, such as https://dashboard.example:8443, without a path".to_owned()),
    }
}
