//! Files of at most 600 lines, functions of about a screen.

use super::{report, scan};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// Files that may be longer, and why.
const LONG_FILES: &[(&str, &str)] = &[];
/// Functions that may be longer, as `file: name`, and why.
const LONG_FUNCTIONS: &[(&str, &str)] = &[];

#[test]
fn files_are_small() {
    let long: Vec<String> = scan::sources()
        .iter()
        .map(|source| (&source.file, source.text.lines().count()))
        .filter(|(file, lines)| *lines > FILE_LINES_MAX && !LONG_FILES.iter().any(|(f, _)| f == file))
        .map(|(file, lines)| format!("{file}: {lines} lines"))
        .collect();
    report(&format!("files have at most {FILE_LINES_MAX} lines"), &long);
}

/// Tests are exempt: a table of cases is data.
#[test]
fn functions_fit_a_screen() {
    let mut long = Vec::new();
    for source in scan::sources() {
        for (name, from, to) in scan::functions(&source.production) {
            let lines = source.production[from..to].lines().count();
            let known = LONG_FUNCTIONS.iter().any(|(f, _)| *f == format!("{}: {name}", source.file));
            if lines > FUNCTION_LINES_MAX && !known {
                long.push(format!("{}:{}: {name} has {lines} lines", source.file, source.line(from)));
            }
        }
    }
    report(&format!("functions have at most {FUNCTION_LINES_MAX} lines"), &long);
}

#[test]
fn exceptions_are_still_needed() {
    let sources = scan::sources();
    let mut stale = Vec::new();
    for (file, _) in LONG_FILES {
        if !sources.iter().any(|s| s.file == *file && s.text.lines().count() > FILE_LINES_MAX) {
            stale.push((*file).to_owned());
        }
    }
    for (entry, _) in LONG_FUNCTIONS {
        let still = sources.iter().any(|s| {
            scan::functions(&s.production).iter().any(|(name, from, to)| {
                *entry == format!("{}: {name}", s.file) && s.production[*from..*to].lines().count() > FUNCTION_LINES_MAX
            })
        });
        if !still {
            stale.push((*entry).to_owned());
        }
    }
    report("exceptions that nothing needs any more", &stale);
}
