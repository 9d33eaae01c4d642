//! Reading TOML tables key by key, so that every mistake of a plan is reported at once, each with its line and key.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One mistake in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line it is on, from 1.
    pub line: usize,
    /// Path of the key, such as `edge[0].dial`; empty for the file as a whole.
    pub key: String,
    /// What is wrong and what would be right.
    pub text: String,
}

/// Why a text is not a plan: every mistake found, in the order of lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PlanError {
    /// Name of the file, as the caller gave it.
    pub file: String,
    /// The mistakes, never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{}: ", self.file, problem.line)?;
            if !problem.key.is_empty() {
                write!(f, "{}: ", problem.key)?;
            }
            write!(f, "{}", problem.text)?;
        }
        Ok(())
    }
}

/// The mistakes found so far, and what turns byte offsets into lines.
pub(super) struct Problems<'a> {
    source: &'a str,
    list: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub(super) const fn new(source: &'a str) -> Self {
        Self { source, list: Vec::new() }
    }

    fn line(&self, offset: usize) -> usize {
        let end = offset.min(self.source.len());
        self.source.bytes().take(end).filter(|b| *b == b'\n').count() + 1
    }

    /// Notes a mistake at a byte offset.
    pub(super) fn add(&mut self, offset: usize, key: &str, text: impl Into<String>) {
        let line = self.line(offset);
        self.list.push(Problem { line, key: key.to_owned(), text: text.into() });
    }

    /// The text at a range, for quoting a key.
    pub(super) fn quote(&self, range: std::ops::Range<usize>) -> &'a str {
        self.source.get(range).unwrap_or_default()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All mistakes in the order of lines.
    pub(super) fn into_error(mut self, file: &str) -> PlanError {
        self.list.sort_by_key(|p| p.line);
        PlanError { file: file.to_owned(), problems: self.list }
    }
}

/// A value with the place it was read from.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) offset: usize,
    pub(super) key: String,
}

impl<T> At<T> {
    /// Parses the value; a failure is a mistake at its place.
    pub(super) fn parse<U, E: fmt::Display>(
        self,
        problems: &mut Problems<'_>,
        f: impl FnOnce(&T) -> Result<U, E>,
    ) -> Option<At<U>> {
        match f(&self.value) {
            Ok(value) => Some(At { value, offset: self.offset, key: self.key }),
            Err(error) => {
                problems.add(self.offset, &self.key, error.to_string());
                None
            }
        }
    }
}

/// One table being read; keys nobody asked for are mistakes.
pub(super) struct Reader<'a, 'i> {
    table: &'a DeTable<'i>,
    path: String,
    /// Where the table begins: the place of keys that are missing.
    pub(super) offset: usize,
    known: RefCell<BTreeSet<&'static str>>,
}

impl<'a, 'i> Reader<'a, 'i> {
    pub(super) const fn new(table: &'a DeTable<'i>, path: String, offset: usize) -> Self {
        Self { table, path, offset, known: RefCell::new(BTreeSet::new()) }
    }

    /// The path of a key of this table.
    pub(super) fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn value(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'i>>> {
        self.known.borrow_mut().insert(key);
        self.table.get(key)
    }

    /// Whether the key is written.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn wrong_type(&self, problems: &mut Problems<'_>, value: &Spanned<DeValue<'_>>, key: &str, wanted: &str) {
        let text = format!("expected {wanted}, found {}", value.get_ref().type_str());
        problems.add(value.span().start, &self.key(key), text);
    }

    /// A string, absent when the key is.
    pub(super) fn string(&self, problems: &mut Problems<'_>, key: &'static str) -> Option<At<String>> {
        let value = self.value(key)?;
        let Some(text) = value.get_ref().as_str() else {
            self.wrong_type(problems, value, key, "a string");
            return None;
        };
        Some(At { value: text.to_owned(), offset: value.span().start, key: self.key(key) })
    }

    /// A string that must be there.
    pub(super) fn required(&self, problems: &mut Problems<'_>, key: &'static str) -> Option<At<String>> {
        if self.value(key).is_none() {
            problems.add(self.offset, &self.key(key), "missing");
            return None;
        }
        self.string(problems, key)
    }

    /// A whole number within a range.
    pub(super) fn number(
        &self,
        problems: &mut Problems<'_>,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Option<u32> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.large_number(problems, key, range).and_then(|n| u32::try_from(n).ok())
    }

    /// A whole number within a range that may exceed 32 bits.
    pub(super) fn large_number(
        &self,
        problems: &mut Problems<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = self.value(key)?;
        let Some(digits) = value.get_ref().as_integer() else {
            self.wrong_type(problems, value, key, "a whole number");
            return None;
        };
        let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok().filter(|n| range.contains(n));
        if number.is_none() {
            let text = format!("{digits} is not between {} and {}", range.start(), range.end());
            problems.add(value.span().start, &self.key(key), text);
        }
        number
    }

    /// A port; 0 means that the system chooses.
    pub(super) fn port(&self, problems: &mut Problems<'_>, key: &'static str) -> Option<u16> {
        self.number(problems, key, 0..=u32::from(u16::MAX)).and_then(|n| u16::try_from(n).ok())
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, problems: &mut Problems<'_>, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong_type(problems, value, key, "true or false");
        }
        flag
    }

    /// A size: bytes as a number, or a text such as `"1 MiB"` or `"512 KiB"`.
    pub(super) fn size(
        &self,
        problems: &mut Problems<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let value = self.value(key)?;
        let Some(text) = value.get_ref().as_str() else {
            return self.large_number(problems, key, range);
        };
        let size = parse_size(text).filter(|n| range.contains(n));
        if size.is_none() {
            let text = format!(
                "'{text}' is not a size between {} and {} bytes; write bytes, or a text such as \"1 MiB\"",
                range.start(),
                range.end()
            );
            problems.add(value.span().start, &self.key(key), text);
        }
        size
    }

    /// A list of strings; absent when the key is.
    pub(super) fn strings(&self, problems: &mut Problems<'_>, key: &'static str) -> Option<Vec<At<String>>> {
        let value = self.value(key)?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(problems, value, key, "a list of strings");
            return None;
        };
        let mut list = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let path = format!("{key}[{index}]");
            match item.get_ref().as_str() {
                Some(text) => {
                    list.push(At { value: text.to_owned(), offset: item.span().start, key: self.key(&path) });
                }
                None => self.wrong_type(problems, item, &path, "a string"),
            }
        }
        Some(list)
    }

    /// The table of `key`, written in a line or as one of its own; absent when the key is.
    pub(super) fn table(&self, problems: &mut Problems<'_>, key: &'static str) -> Option<Reader<'a, 'i>> {
        let value = self.value(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_type(problems, value, key, "a table");
        }
        table.map(|table| Reader::new(table, self.key(key), value.span().start))
    }

    /// The tables of `[[key]]`, empty when there is none.
    pub(super) fn tables(&self, problems: &mut Problems<'_>, key: &'static str) -> Vec<Reader<'a, 'i>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let wanted = format!("tables written as [[{key}]]");
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(problems, value, key, &wanted);
            return Vec::new();
        };
        let mut list = Vec::new();
        for (index, item) in array.iter().enumerate() {
            let path = format!("{key}[{index}]");
            match item.get_ref().as_table() {
                Some(table) => list.push(Reader::new(table, self.key(&path), item.span().start)),
                None => self.wrong_type(problems, item, &path, &wanted),
            }
        }
        list
    }

    /// Reports the keys nobody asked for.
    pub(super) fn finish(&self, problems: &mut Problems<'_>) {
        let known = self.known.borrow();
        for name in self.table.keys() {
            if known.contains(name.get_ref().as_ref()) {
                continue;
            }
            let list = known.iter().copied().collect::<Vec<_>>().join(", ");
            let path = self.key(&name.get_ref().escape_debug().to_string());
            problems.add(name.span().start, &path, format!("unknown key; known here: {list}"));
        }
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(split)?;
    let factor = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1024,
        "MiB" => 1024 * 1024,
        "GiB" => 1024 * 1024 * 1024,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("1 MiB"), Some(1 << 20));
        assert_eq!(parse_size("512KiB"), Some(512 << 10));
        assert_eq!(parse_size("9 GiB"), Some(9 << 30));
        assert_eq!(parse_size("77"), Some(77));
        for bad in ["", "MiB", "1 MB", "-1", "1.5 MiB", "99999999999999999 MiB", "1 mib"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
