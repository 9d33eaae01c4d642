//! What may lie in the repository: the top level, no keys, no traces of a workplace.

use std::collections::BTreeSet;

use super::{files, report, text};

/// The entries of the top level, beside dot files.
const TOP: &[&str] = &[
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "certs",
    "docs",
    "mesh-configs",
    "run",
    "src",
    "tests",
];

#[test]
fn the_top_level_is_what_the_map_says() {
    let found: BTreeSet<String> = files()
        .iter()
        .filter_map(|file| file.split('/').next())
        .filter(|entry| !entry.starts_with('.'))
        .map(str::to_owned)
        .collect();
    let wanted: BTreeSet<String> = TOP.iter().map(|entry| (*entry).to_owned()).collect();
    assert_eq!(found, wanted);
}

/// A header line of a private key followed by a line of base64: sources may write the words, not a key.
#[test]
fn no_private_key_is_committed() {
    let breaches: Vec<String> = files().into_iter().filter(|f| text(f).is_some_and(|t| has_key(&t))).collect();
    report("private keys are never committed", &breaches);
}

fn has_key(text: &str) -> bool {
    let (begin, end) = ("-----BEGIN ", concat!("PRIVATE", " KEY-----"));
    let base64 = |line: &str| {
        let line = line.trim().trim_end_matches("\\n");
        line.len() >= 40 && line.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
    };
    let lines: Vec<&str> = text.lines().collect();
    lines.windows(2).any(|pair| pair[0].contains(begin) && pair[0].contains(end) && base64(pair[1]))
}

#[test]
fn a_key_would_be_found() {
    let header = concat!("-----BEGIN EC PRIVATE", " KEY-----");
    assert!(has_key(&format!("{header}\n{}\n", "Ab0+".repeat(16))));
    assert!(!has_key(&format!("a file that begins with {header}\nis a key\n")));
}

#[test]
fn sources_speak_of_the_project_only() {
    let forbidden =
        [concat!("/wo", "rk/"), concat!("shared/", "DESIGN"), concat!("/ro", "ot/"), concat!("bash_", "jobs")];
    let mut breaches = Vec::new();
    for file in files() {
        let Some(text) = text(&file) else { continue };
        for (number, line) in text.lines().enumerate() {
            if forbidden.iter().any(|word| line.contains(word)) {
                breaches.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report("paths of one machine do not belong here", &breaches);
}

/// Not every source is compiled with the workspace: a load program outside it would miss its modules in silence.
#[test]
fn modules_lie_where_their_paths_say() {
    let mut breaches = Vec::new();
    let mark = concat!("#[pa", "th = \"");
    for file in files().into_iter().filter(|f| f.ends_with(".rs")) {
        let (text, home) = (text(&file).unwrap(), super::root().join(&file));
        for (number, line) in text.lines().enumerate() {
            let path = line.trim().strip_prefix(mark).and_then(|rest| rest.strip_suffix("\"]"));
            if let Some(path) = path.filter(|path| !home.parent().unwrap().join(path).is_file()) {
                breaches.push(format!("{file}:{}: there is no {path}", number + 1));
            }
        }
    }
    report("paths of modules", &breaches);
}

#[test]
fn scripts_are_strict_and_can_be_run() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut breaches = Vec::new();
    for file in files().into_iter().filter(|f| f.ends_with(".sh") || f == ".ci/run") {
        let text = text(&file).unwrap();
        if !text.starts_with("#!/usr/bin/env bash\n") {
            breaches.push(format!("{file}: does not begin with #!/usr/bin/env bash"));
        }
        if !text.contains("\nset -euo pipefail\n") && !file.ends_with("lib.sh") {
            breaches.push(format!("{file}: is not strict: set -euo pipefail"));
        }
        let mode = std::fs::metadata(super::root().join(&file)).unwrap().permissions().mode();
        if mode & 0o111 == 0 && !file.ends_with("lib.sh") {
            breaches.push(format!("{file}: is not executable"));
        }
        if text.contains(concat!("pk", "ill")) || text.contains(concat!("kill", "all")) {
            breaches.push(format!("{file}: ends processes by name"));
        }
    }
    report("scripts", &breaches);
}

#[test]
fn test_tools_do_not_retry_and_no_test_is_left_out() {
    assert!(text(".config/nextest.toml").unwrap().contains("\nretries = 0\n"));
    let ignored = concat!("#[", "ignore");
    let breaches: Vec<String> =
        files().into_iter().filter(|f| f.ends_with(".rs") && text(f).is_some_and(|t| t.contains(ignored))).collect();
    report("a test that is not run tests nothing", &breaches);
}
