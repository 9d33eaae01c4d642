//! A small reader of Rust sources: what is code and what is not, what is test and what is not, where functions end.
//!
//! It knows comments, strings and braces, no grammar. Masked text has the length and lines of the source, so offsets
//! and line numbers are those of the file.

use std::collections::BTreeSet;

/// One source file of the workspace.
pub(crate) struct Source {
    /// Path from the root of the repository.
    pub(crate) file: String,
    /// The text as it is.
    pub(crate) text: String,
    /// The text with comments, strings and `#[cfg(test)]` items blanked; blank in files of test modules.
    pub(crate) production: String,
}

impl Source {
    /// The line number of an offset, from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count()
    }
}

/// Every Rust file below `src/` and `tests/`.
pub(crate) fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut test_modules = BTreeSet::new();
    for file in super::files() {
        if !file.ends_with(".rs") || !(file.starts_with("src/") || file.starts_with("tests/")) {
            continue;
        }
        let text = super::text(&file).expect("sources are UTF-8");
        let masked = mask(&text);
        let (production, modules) = without_tests(&masked);
        let home = home_of_modules(&file);
        test_modules.extend(modules.iter().map(|module| format!("{home}{module}")));
        sources.push(Source { file, text, production });
    }
    for source in &mut sources {
        let path = source.file.trim_end_matches(".rs").trim_end_matches("/mod");
        let in_test = test_modules.iter().any(|m| path == m || path.starts_with(&format!("{m}/")));
        if in_test || source.file.starts_with("tests/") {
            source.production = blank(&source.production);
        }
    }
    sources
}

/// Where the out-of-line modules of a file lie: beside `lib.rs` and `main.rs`, below the others.
fn home_of_modules(file: &str) -> String {
    let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{directory}/"),
        _ => format!("{}/", file.trim_end_matches(".rs")),
    }
}

fn blank(text: &str) -> String {
    String::from_utf8(text.bytes().map(|b| if b == b'\n' { b } else { b' ' }).collect()).unwrap()
}

/// Blanks comments and what is inside quotes.
pub(crate) fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = end_of_opaque(bytes, at);
        if let Some(end) = end {
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        // A whole word is passed at once, so that the `r` of `for"` is not taken for a raw string.
        at = end.unwrap_or_else(|| at + word_length(bytes, at).max(1));
    }
    String::from_utf8(out).expect("whole characters are blanked")
}

/// The end of the comment, string or character that begins at `at`.
fn end_of_opaque(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(at + block_comment_length(rest));
    }
    let prefix = word_length(bytes, at);
    if matches!(&rest[..prefix], b"" | b"b" | b"c" | b"r" | b"br" | b"cr") {
        let raw = rest[..prefix].ends_with(b"r");
        let hashes = rest[prefix..].iter().take_while(|b| **b == b'#').count();
        if raw && rest.get(prefix + hashes) == Some(&b'"') {
            let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            let body = &rest[prefix + hashes + 1..];
            let length = body.windows(close.len()).position(|w| w == close).map_or(body.len(), |p| p + close.len());
            return Some(at + prefix + hashes + 1 + length);
        }
        if !raw && rest.get(prefix) == Some(&b'"') {
            return Some(at + prefix + quoted_length(&rest[prefix..], b'"'));
        }
        if matches!(&rest[..prefix], b"" | b"b") && rest.get(prefix) == Some(&b'\'') {
            return character_length(&rest[prefix..]).map(|length| at + prefix + length);
        }
    }
    None
}

fn block_comment_length(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        match rest.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a character literal; `None` for a lifetime.
fn character_length(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return Some(quoted_length(rest, b'\''));
    }
    let character = std::str::from_utf8(&rest[1..rest.len().min(5)]).map_or_else(
        |error| std::str::from_utf8(&rest[1..=error.valid_up_to()]).ok().and_then(|t| t.chars().next()),
        |t| t.chars().next(),
    )?;
    (rest.get(1 + character.len_utf8()) == Some(&b'\'')).then_some(2 + character.len_utf8())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn word_length(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().take_while(|b| is_word(**b)).count()
}

/// Every place where `word` stands as a whole word; `::` in it may be surrounded by nothing else.
pub(crate) fn places(text: &str, word: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| *at == 0 || !is_word(bytes[at - 1]))
        .filter(|at| bytes.get(at + word.len()).is_none_or(|b| !is_word(*b)))
        .collect()
}

/// Blanks items under `#[cfg(test)]`, and names the out-of-line modules among them.
fn without_tests(masked: &str) -> (String, Vec<String>) {
    let mut out = masked.as_bytes().to_vec();
    let mut modules = Vec::new();
    let attributes = masked.match_indices("#[cfg(").filter(|(at, _)| {
        let condition = &masked[*at..masked[*at..].find(']').map_or(masked.len(), |end| at + end)];
        !places(condition, "test").is_empty()
            && places(condition, "not").is_empty()
            && places(condition, "any").is_empty()
    });
    for (at, _) in attributes {
        let end = end_of_item(masked.as_bytes(), at);
        let item = &masked[at..end];
        if let Some(name) = item.trim_end().strip_suffix(';').and_then(|i| i.rsplit_once("mod ")) {
            modules.push(name.1.trim().to_owned());
        }
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    (String::from_utf8(out).unwrap(), modules)
}

/// The end of the item that begins at `at`: after its `;`, or after its braces.
fn end_of_item(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in bytes.iter().enumerate().skip(at) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && *byte == b'}' {
                    // `use a::{b};` ends with its semicolon.
                    let next = bytes[offset + 1..].iter().position(|b| !b.is_ascii_whitespace());
                    return match next {
                        Some(gap) if bytes[offset + 1 + gap] == b';' => offset + gap + 2,
                        _ => offset + 1,
                    };
                }
            }
            b';' if depth == 0 => return offset + 1,
            _ => {}
        }
    }
    bytes.len()
}

/// Every function with a body in masked text: its name, where it begins and where it ends.
pub(crate) fn functions(masked: &str) -> Vec<(String, usize, usize)> {
    let bytes = masked.as_bytes();
    let mut found = Vec::new();
    for at in places(masked, "fn") {
        let Some(gap) = bytes[at + 2..].iter().position(|b| !b.is_ascii_whitespace()) else { continue };
        let length = word_length(bytes, at + 2 + gap);
        if length == 0 {
            // A type such as `fn(u8)`.
            continue;
        }
        let name = masked[at + 2 + gap..at + 2 + gap + length].to_owned();
        let end = end_of_item(bytes, at);
        if bytes[end - 1] == b'}' {
            found.push((name, at, end));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blank_and_lifetimes_stay() {
        let source =
            "fn a<'x>(s: &'x str) { let c = '{'; let q = b'\\''; \"}//\"; r#\"\"}\"#; /* { /* */ */ b(); } // {";
        let masked = mask(source);
        assert_eq!(masked.len(), source.len());
        assert_eq!(masked.matches('{').count(), 1, "{masked}");
        assert_eq!(masked.matches('}').count(), 1, "{masked}");
        assert!(masked.contains("fn a<'x>(s: &'x str)") && masked.contains("b();"), "{masked}");
        assert_eq!(mask("'é' 'ß"), "     'ß");
    }

    #[test]
    fn test_items_are_left_out() {
        let source = "use a;\n#[cfg(test)]\nuse b::{c};\n#[cfg(test)]\nmod tests;\n#[cfg(not(test))]\nfn d() {}\n\
                      #[cfg(test)]\n#[allow(x)]\nmod e { fn f() {} }\nfn g() {}\n";
        let (production, modules) = without_tests(&mask(source));
        assert_eq!(modules, ["tests"]);
        let words: Vec<&str> =
            ["a", "b", "c", "d", "f", "g"].into_iter().filter(|w| !places(&production, w).is_empty()).collect();
        assert_eq!(words, ["a", "d", "g"]);
    }

    #[test]
    fn functions_end_at_their_own_brace() {
        let source = "trait T { fn a(x: [u8; 2]); fn b() { if x { y } } }\nconst F: fn(u8) = c;\nfn c() {\n}\n";
        let found: Vec<(String, usize)> =
            functions(source).into_iter().map(|(name, from, to)| (name, source[from..to].lines().count())).collect();
        assert_eq!(found, [("b".to_owned(), 1), ("c".to_owned(), 2)]);
    }

    /// A scanner that blanks too much would let everything pass.
    #[test]
    fn the_sources_are_seen() {
        let sources = sources();
        let of = |file: &str| sources.iter().find(|s| s.file == file).unwrap_or_else(|| panic!("no {file}"));
        let names = |file: &str| functions(&of(file).production).into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
        assert!(names("src/core/policy.rs").iter().any(|n| n == "authorize"));
        assert!(names("src/main.rs").iter().any(|n| n == "main"));
        assert!(names("src/core/policy/tests.rs").is_empty() && names("tests/it/tidy/scan.rs").is_empty());
        let production: usize = sources.iter().map(|s| functions(&s.production).len()).sum();
        assert!(production > 500, "{production} functions");
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(places("rand operand rand_core a::rand", "rand"), [0, 26]);
    }
}
