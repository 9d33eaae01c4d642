//! The table of attacks and the table of cases in the document of security: every test they name exists.

use std::collections::BTreeSet;

use super::{files, report, root, scan, text};

const DOCUMENT: &str = "docs/SECURITY.md";

/// The names of all functions in the sources that are tests, or are in files of tests.
pub(crate) fn every_test() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in scan::sources() {
        for (at, _) in source.text.match_indices("fn ") {
            let rest = &source.text[at + 3..];
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            // What is blanked in production code belongs to tests.
            if !source.production[at..].starts_with("fn ") {
                names.insert(name);
            }
        }
    }
    names
}

/// The sources below a directory.
pub(crate) fn sources_of(directory: &str) -> Vec<String> {
    files().into_iter().filter(|file| file.starts_with(directory) && file.ends_with(".rs")).collect()
}

/// The last cell of every row of a table under a heading.
fn rows(document: &str, heading: &str) -> Vec<(String, String)> {
    let (_, section) = document.split_once(heading).unwrap_or_else(|| panic!("{DOCUMENT} has no '{heading}'"));
    let section = section.split("\n## ").next().unwrap();
    let table = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let cells = table.skip(1).map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| (cells[0].to_owned(), (*cells.last().unwrap()).to_owned())).collect()
}

#[test]
fn tests_that_the_tables_name_exist() {
    let document = text(DOCUMENT).unwrap();
    let tests = every_test();
    let mut breaches = Vec::new();
    for heading in ["\n## The attacks\n", "\n## Cases\n"] {
        let rows = rows(&document, heading);
        assert!(rows.len() > 10, "{heading}: {} rows", rows.len());
        for (row, cell) in rows {
            for name in cell.split('`').skip(1).step_by(2) {
                let is_there = if name.contains('/') { root().join(name).is_file() } else { tests.contains(name) };
                // A function of production code that checks by itself is named with its file.
                if !is_there && !cell.contains(&format!("`{name}` in `")) {
                    breaches.push(format!("{DOCUMENT}: row {row}: there is no test {name}"));
                }
            }
        }
    }
    report("tables name tests that exist", &breaches);
}

/// A test or script that is there for a case says so, and the case has a row.
#[test]
fn cases_that_tests_name_have_a_row() {
    let document = text(DOCUMENT).unwrap();
    let rows: BTreeSet<String> = rows(&document, "\n## Cases\n").into_iter().map(|(case, _)| case).collect();
    let mut breaches = Vec::new();
    for file in files().iter().filter(|f| f.starts_with("tests/it/mesh_") || f.starts_with("run/tests/")) {
        for line in text(file).unwrap().lines().filter(|line| line.contains("ase RB-") || line.contains("ases RB-")) {
            for number in line.split("RB-").skip(1) {
                let case = format!("RB-{}", number.chars().take_while(char::is_ascii_digit).collect::<String>());
                if !rows.contains(&case) {
                    breaches.push(format!("{file}: {case} has no row in {DOCUMENT}"));
                }
            }
        }
    }
    report("cases", &breaches);
}
