//! TOML text to an owned tree that knows its lines.
//!
//! The parser reports all syntax errors; duplicate keys are named here, because the parser's own message does not.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::problem::{ConfigErrors, Place, Problem};

/// An unchecked value with the line it stands on.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) line: usize,
    pub(super) value: RawValue,
}

/// An unchecked value.
#[derive(Clone, Debug)]
pub(super) enum RawValue {
    Bool(bool),
    /// `None` when it does not fit 128 bits.
    Integer(Option<i128>),
    Text(String),
    /// A text from the environment or `-D`, which has no types of its own.
    Loose(String),
    /// A float or a date: no key has these types.
    Other(&'static str),
    List(Vec<Raw>),
    Table(Vec<Entry>),
}

/// A key and its value, in file order.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) raw: Raw,
}

/// The tree of a file and the duplicate keys found in it.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) entries: Vec<Entry>,
    pub(super) duplicates: Vec<Problem>,
}

/// Parses a file's text.
///
/// # Errors
/// All syntax errors, duplicate keys included, when there is any other than duplicate keys.
pub(super) fn parse(text: &str, file: &Path) -> Result<Parsed, ConfigErrors> {
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut positions = Vec::new();
    let entries = convert_table(table.get_ref(), &lines, "", &mut positions);
    let mut duplicates = Vec::new();
    let mut only_duplicates = true;
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let place = Place::line(file, lines.line(span.start));
        if error.message() == DUPLICATE {
            duplicates.push(duplicate(text, &lines, &positions, span, place));
        } else {
            only_duplicates = false;
            duplicates.push(Problem::new(place, "", format!("not TOML: {}", error.message())));
        }
    }
    if only_duplicates { Ok(Parsed { entries, duplicates }) } else { Err(ConfigErrors::sorted(duplicates)) }
}

/// The parser's message for a key that was given before.
const DUPLICATE: &str = "duplicate key";

/// Where each key of the tree starts, with its path.
type Positions = Vec<(usize, String, String)>;

/// Names a duplicate by the nearest earlier key of the same name, which is the one it repeats.
fn duplicate(text: &str, lines: &Lines, positions: &Positions, span: std::ops::Range<usize>, place: Place) -> Problem {
    let name = text.get(span.clone()).unwrap_or("").trim_matches(['"', '\'']);
    let first = positions.iter().filter(|(at, key, _)| *at < span.start && key == name).max_by_key(|(at, ..)| *at);
    match first {
        Some((at, _, path)) => {
            Problem::new(place, path.clone(), format!("duplicate key, first given on line {}", lines.line(*at)))
        }
        None => Problem::new(place, shown(name), DUPLICATE),
    }
}

fn convert_table(table: &DeTable<'_>, lines: &Lines, parent: &str, positions: &mut Positions) -> Vec<Entry> {
    let mut entries: Vec<(usize, Entry)> = table
        .iter()
        .map(|(key, value)| {
            let start = key.span().start;
            let path = join(parent, key.get_ref());
            positions.push((start, key.get_ref().to_string(), path.clone()));
            let line = lines.line(start);
            let raw = convert_value(value.get_ref(), lines, lines.line(value.span().start), &path, positions);
            (start, Entry { key: key.get_ref().to_string(), line, raw })
        })
        .collect();
    entries.sort_by_key(|(start, _)| *start);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

fn convert_value(value: &DeValue<'_>, lines: &Lines, line: usize, path: &str, positions: &mut Positions) -> Raw {
    let value = match value {
        DeValue::Boolean(value) => RawValue::Bool(*value),
        DeValue::Integer(value) => RawValue::Integer(i128::from_str_radix(value.as_str(), value.radix()).ok()),
        DeValue::String(value) => RawValue::Text(value.to_string()),
        DeValue::Float(_) => RawValue::Other("a float"),
        DeValue::Datetime(_) => RawValue::Other("a date"),
        DeValue::Array(items) => RawValue::List(
            items
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    let line = lines.line(item.span().start);
                    convert_value(item.get_ref(), lines, line, &format!("{path}[{index}]"), positions)
                })
                .collect(),
        ),
        DeValue::Table(table) => RawValue::Table(convert_table(table, lines, path, positions)),
    };
    Raw { line, value }
}

/// The path of a key in a table.
pub(super) fn join(parent: &str, key: &str) -> String {
    if parent.is_empty() { shown(key) } else { format!("{parent}.{}", shown(key)) }
}

/// A text from outside as messages show it: escaped, and cut when it is long.
pub(super) fn shown(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 64;
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Byte offsets to line numbers.
#[derive(Debug)]
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    /// The line of an offset, from 1.
    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|newline| *newline < offset) + 1
    }
}
