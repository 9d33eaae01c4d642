//! The tree of a file, the environment and the overrides, held against the table of keys.

use std::collections::BTreeMap;
use std::path::Path;

use super::convert::{Context, Origin, Value, convert, convert_secret_file, found};
use super::keys::{FILE_SUFFIX, KEYS, Key, Kind, OTHER_VARIABLES, Presence, Unsupported};
use super::problem::{Note, Place, Problem};
use super::raw::{Entry, Parsed, Raw, RawValue, join};

/// Prefix of Glocal's variables.
pub(super) const GLOCAL_PREFIX: &str = "GLOCAL_";
/// Prefix of Cresco's variables.
pub(super) const CRESCO_PREFIX: &str = "CRESCO_";

/// The checked keys of one table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    /// Line of its header; 1 for the file itself.
    pub(super) line: usize,
    slots: BTreeMap<&'static str, Slot>,
}

/// What is known of one key.
#[derive(Clone, Debug, Default, PartialEq)]
struct Slot {
    value: Option<Value>,
    /// Where it was given; `None` for a default.
    place: Option<Place>,
}

impl Table {
    /// The key's value: given and good, or its default.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.slots.get(key)?.value.as_ref()
    }

    /// Where the key was given, good or not; `None` when it was not.
    pub(super) fn given(&self, key: &str) -> Option<&Place> {
        self.slots.get(key)?.place.as_ref()
    }
}

/// What the walk found.
pub(super) struct Walked {
    pub(super) table: Table,
    pub(super) problems: Vec<Problem>,
    pub(super) unsupported: Vec<Problem>,
    pub(super) notes: Vec<Note>,
}

/// A value with its source, waiting to be checked.
struct Candidate {
    origin: Origin,
    /// The key as it was written: the key itself or `<key>_file`.
    name: String,
    /// Line of the key; 0 outside the file.
    line: usize,
    raw: Raw,
}

/// Checks all sources against the table of keys.
pub(super) fn walk(
    file: &Path,
    parsed: Parsed,
    overrides: &[(String, String)],
    env: impl IntoIterator<Item = (String, String)>,
) -> Walked {
    let mut env: Vec<(String, String)> = env.into_iter().collect();
    env.sort();
    let mut problems = parsed.duplicates;
    let mut notes = Vec::new();
    let mut walker = Walker { file, problems: &mut problems, unsupported: Vec::new() };
    let layers = [
        walker.override_layer(overrides),
        walker.variable_layer(GLOCAL_PREFIX, &env, &mut notes),
        walker.variable_layer(CRESCO_PREFIX, &env, &mut notes),
        file_layer(parsed.entries),
    ];
    let table = walker.table(KEYS, &layers, "", 1);
    let mut unsupported = walker.unsupported;
    unsupported.sort();
    Walked { table, problems, unsupported, notes }
}

struct Walker<'a> {
    file: &'a Path,
    problems: &'a mut Vec<Problem>,
    unsupported: Vec<Problem>,
}

fn file_layer(entries: Vec<Entry>) -> Vec<Candidate> {
    let candidate =
        |entry: Entry| Candidate { origin: Origin::File, name: entry.key, line: entry.line, raw: entry.raw };
    entries.into_iter().map(candidate).collect()
}

fn loose(origin: Origin, name: String, text: &str) -> Candidate {
    Candidate { origin, name, line: 0, raw: Raw { line: 0, value: RawValue::Loose(text.to_owned()) } }
}

impl Walker<'_> {
    fn override_layer(&mut self, overrides: &[(String, String)]) -> Vec<Candidate> {
        let mut layer: Vec<Candidate> = Vec::new();
        for (name, text) in overrides {
            let origin = Origin::Override(name.clone());
            if layer.iter().any(|earlier| earlier.name == *name) {
                self.context(&origin).report(0, name, "is given twice");
            } else {
                layer.push(loose(origin, name.clone(), text));
            }
        }
        layer
    }

    /// Variables of one prefix. Cresco's own may be meant for Cresco: an unknown one is only noted.
    fn variable_layer(&mut self, prefix: &str, env: &[(String, String)], notes: &mut Vec<Note>) -> Vec<Candidate> {
        let mut layer: Vec<Candidate> = Vec::new();
        for (variable, text) in env {
            let Some(name) = variable.strip_prefix(prefix) else { continue };
            if OTHER_VARIABLES.iter().any(|(other, _)| other == variable) {
                continue;
            }
            let name = name.to_ascii_lowercase();
            let origin = Origin::Variable(variable.clone());
            if prefix == CRESCO_PREFIX && find(KEYS, &name).is_none() {
                let what = Problem::new(Place::Variable(variable.clone()), "", "is no key of this program; not used");
                notes.push(Note { warning: false, what });
            } else if layer.iter().any(|earlier| earlier.name == name) {
                self.context(&origin).report(0, &name, "is given twice, in different case");
            } else {
                layer.push(loose(origin, name, text));
            }
        }
        layer
    }

    fn context(&mut self, origin: &Origin) -> Context<'_> {
        Context { file: self.file, origin: origin.clone(), problems: self.problems }
    }

    /// Checks one table; the first layer that gives a key wins, and what the file gives is checked even if it loses.
    fn table(&mut self, keys: &'static [Key], layers: &[Vec<Candidate>], parent: &str, line: usize) -> Table {
        for candidate in layers.iter().flatten() {
            if find(keys, &candidate.name).is_none() {
                let message = unknown(keys, parent.is_empty(), candidate);
                let path = join(parent, &candidate.name);
                self.context(&candidate.origin).report(candidate.line, &path, message);
            }
        }
        let mut slots = BTreeMap::new();
        for key in keys {
            let mut slot = None;
            for layer in layers {
                let Some(candidate) = self.candidate(key, layer, parent) else { continue };
                if slot.is_none() {
                    slot = Some(self.slot(key, candidate, parent));
                } else if matches!(candidate.origin, Origin::File) {
                    self.convert(key, candidate, parent);
                }
            }
            let slot = slot.unwrap_or_else(|| self.absent(key, parent, line));
            slots.insert(key.name, slot);
        }
        Table { line, slots }
    }

    /// What one layer says of a key: itself or, for a secret, its file; both is an error.
    fn candidate<'c>(&mut self, key: &Key, layer: &'c [Candidate], parent: &str) -> Option<&'c Candidate> {
        let mut said = layer.iter().filter(|candidate| is_name_of(key, &candidate.name));
        let first = said.next();
        if let (Some(first), Some(second)) = (first, said.next()) {
            let message = format!("is given together with {}; keep one", join(parent, &first.name));
            self.context(&second.origin).report(second.line, &join(parent, &second.name), message);
        }
        first
    }

    fn slot(&mut self, key: &'static Key, candidate: &Candidate, parent: &str) -> Slot {
        let value = self.convert(key, candidate, parent);
        let path = join(parent, &candidate.name);
        let place = self.context(&candidate.origin).place(candidate.raw.line);
        if let Some(value) = &value
            && let Some(message) = self.not_yet(key, value)
        {
            self.unsupported.push(Problem::new(place.clone(), path, message));
        }
        Slot { value, place: Some(place) }
    }

    fn convert(&mut self, key: &'static Key, candidate: &Candidate, parent: &str) -> Option<Value> {
        let path = join(parent, &candidate.name);
        if let Kind::Tables { keys, .. } = key.kind {
            return self.tables(key, keys, candidate, &path);
        }
        let mut context = self.context(&candidate.origin);
        if candidate.name == key.name {
            convert(key, &candidate.raw, &path, &mut context)
        } else {
            convert_secret_file(&candidate.raw, &path, &mut context)
        }
    }

    fn tables(&mut self, key: &Key, keys: &'static [Key], candidate: &Candidate, path: &str) -> Option<Value> {
        let RawValue::List(items) = &candidate.raw.value else {
            let message = match &candidate.raw.value {
                RawValue::Loose(_) => "can only be given in the file".to_owned(),
                other => format!("expected {}, found {}", key.kind.expected(), found(other, false)),
            };
            self.context(&candidate.origin).report(candidate.raw.line, path, message);
            return None;
        };
        let mut tables = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{path}[{index}]");
            if let RawValue::Table(entries) = &item.value {
                tables.push(self.table(keys, &[file_layer(entries.clone())], &path, item.line));
            } else {
                let message = format!("expected a table, found {}", found(&item.value, false));
                self.context(&candidate.origin).report(item.line, &path, message);
            }
        }
        Some(Value::Tables(tables))
    }

    fn absent(&mut self, key: &'static Key, parent: &str, line: usize) -> Slot {
        let value = match key.presence {
            Presence::Required => {
                let message = format!("is missing; expected {}", key.kind.expected());
                self.context(&Origin::File).report(line, &join(parent, key.name), message);
                None
            }
            Presence::Absent(_) => None,
            Presence::Default(_) if matches!(key.kind, Kind::Tables { .. }) => Some(Value::Tables(Vec::new())),
            Presence::Default(text) => self.constant(key, text),
        };
        Slot { value, place: None }
    }

    /// A value written in the table of keys itself.
    fn constant(&mut self, key: &Key, text: &str) -> Option<Value> {
        let raw = Raw { line: 0, value: RawValue::Loose(text.to_owned()) };
        convert(key, &raw, key.name, &mut self.context(&Origin::File))
    }

    fn not_yet(&mut self, key: &'static Key, value: &Value) -> Option<String> {
        match key.unsupported {
            Unsupported::Never => None,
            Unsupported::Given => (!value.is_empty_list()).then(|| "is not yet supported".to_owned()),
            Unsupported::Value(text) => {
                (self.constant(key, text).as_ref() == Some(value)).then(|| format!("{text} is not yet supported"))
            }
        }
    }
}

/// Whether `name` gives this key: the key itself or, for a secret, the key of its file.
fn is_name_of(key: &Key, name: &str) -> bool {
    name == key.name || (key.is_secret() && name.strip_suffix(FILE_SUFFIX) == Some(key.name))
}

fn find(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    keys.iter().find(|key| is_name_of(key, name))
}

/// What to say of a key that a table does not have.
fn unknown(keys: &'static [Key], at_top: bool, candidate: &Candidate) -> String {
    let name = candidate.name.as_str();
    if !at_top && find(KEYS, name).is_some() {
        return "unknown key here; it is a key of the file itself, to be given before the first [[edges]]".to_owned();
    }
    if at_top {
        for key in KEYS {
            if let Kind::Tables { keys: inner, .. } = key.kind
                && find(inner, name).is_some()
            {
                return format!("unknown key here; it is a key of [[{}]]", key.name);
            }
        }
    }
    match suggest(name, keys.iter().map(|key| key.name)) {
        Some(near) => format!("unknown key; did you mean {near}?"),
        None => "unknown key".to_owned(),
    }
}

/// The nearest of some words, when it is near enough to be meant.
pub(super) fn suggest<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    const SUGGEST_CHARS_MAX: usize = 64;
    let text: Vec<char> = text.chars().take(SUGGEST_CHARS_MAX).flat_map(char::to_lowercase).collect();
    let nearest = words.map(|word| (distance(&text, &word.chars().collect::<Vec<_>>()), word)).min()?;
    (nearest.0 <= 1 + nearest.1.len() / 5).then_some(nearest.1)
}

/// Edit distance with swaps of neighbours counted once (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX / 2);
            let mut best = (at(&last, j) + usize::from(x != y)).min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(usize::MAX)
}
