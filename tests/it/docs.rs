//! Runs the commands that the documents show, and compares what they print.
//!
//! Every block fenced as `console` in `README.md` and `docs/*.md` is run; blocks fenced as `sh` or `text` are not. In a
//! block,
//!
//! - `$ command` is a command of bash, and `> more` continues it;
//! - the lines up to the next command are what it prints, standard error included. `…` stands for any text within a line,
//!   and a line `...` for any number of lines. With no lines at all, what it prints does not matter;
//! - it must end with status 0. One that must fail is shown as `$ ! command`.
//!
//! The blocks of one document run in one shell, in order, in a temporary directory with copies of `mesh-configs/`, `run/`
//! and the documents, an empty home, and the built `glocal` first in the path. What they start in the background ends
//! with the shell. A document has [`DEADLINE_SECONDS`] in all.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tidy::root;

/// How long the commands of one document may take together.
const DEADLINE_SECONDS: u32 = 120;

/// One command of a document.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// Its line in the document, from 1.
    line: usize,
    command: String,
    expected: Vec<String>,
}

#[test]
fn documents_show_what_happens() {
    let mut failures = Vec::new();
    for document in documents() {
        let text = std::fs::read_to_string(root().join(&document)).unwrap();
        let steps = steps(&text).unwrap_or_else(|error| panic!("{document}: {error}"));
        println!("{document}: {} commands", steps.len());
        if let Err(failure) = run(&steps) {
            failures.push(format!("{document}:{failure}"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn documents() -> Vec<String> {
    let mut found: Vec<String> = ["README.md".to_owned()].into_iter().filter(|f| root().join(f).exists()).collect();
    let mut docs: Vec<String> = std::fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| format!("docs/{}", entry.unwrap().file_name().to_str().unwrap()))
        .filter(|name| name.ends_with(".md"))
        .collect();
    docs.sort();
    found.append(&mut docs);
    found
}

fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block: Option<&str> = None;
    let mut fresh = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(info.trim()) };
            fresh = true;
            continue;
        }
        if block != Some("console") {
            continue;
        }
        let line_number = number + 1;
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: line_number, command: command.to_owned(), expected: Vec::new() });
        } else if fresh {
            return Err(format!("line {line_number}: a console block begins with '$ '"));
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("> ") {
                Some(more) if step.expected.is_empty() => step.command = format!("{}\n{more}", step.command),
                _ => step.expected.push(line.to_owned()),
            }
        }
        fresh = false;
    }
    if block.is_some() { Err("a block has no end".to_owned()) } else { Ok(steps) }
}

/// Runs all steps in one shell; the error names the line of the first that differs.
fn run(steps: &[Step]) -> Result<(), String> {
    if steps.is_empty() {
        return Ok(());
    }
    let directory = tempfile::tempdir().unwrap();
    let (place, results) = (directory.path().join("glocal"), directory.path().join("results"));
    for path in [&place, &results, &directory.path().join("home")] {
        std::fs::create_dir(path).unwrap();
    }
    for part in ["mesh-configs", "run", "docs", "README.md"] {
        copy(&root().join(part), &place.join(part));
    }
    let script = directory.path().join("script.sh");
    std::fs::write(&script, script_of(steps, &results)).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_glocal")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &DEADLINE_SECONDS.to_string(), "bash"]).arg(&script);
    command.current_dir(&place).env("PATH", path).env("HOME", directory.path().join("home"));
    command.env("NO_COLOR", "1").env("MESH_BIN", env!("CARGO_BIN_EXE_glocal"));
    let inherited = std::env::vars().map(|(name, _)| name);
    for name in inherited.filter(|name| ["GLOCAL_", "CRESCO_", "XDG_"].iter().any(|p| name.starts_with(p))) {
        command.env_remove(name);
    }
    let shell = command.output().unwrap();
    for (index, step) in steps.iter().enumerate() {
        let printed = std::fs::read_to_string(results.join(format!("{index}.out"))).unwrap_or_default();
        let status = std::fs::read_to_string(results.join(format!("{index}.status"))).unwrap_or_default();
        let problem = match status.trim() {
            "0" if matches(&step.expected, &printed.lines().collect::<Vec<_>>()) => continue,
            "0" => format!("printed something else than:\n{}", step.expected.join("\n")),
            "" => format!("did not end within {DEADLINE_SECONDS} s, or ended its shell ({})", shell.status),
            other => format!("ended with status {other}"),
        };
        return Err(format!("{}: '{}' {problem}\n--- it printed:\n{printed}", step.line, step.command));
    }
    Ok(())
}

/// A script that keeps each command's output and status in files of their own; its background jobs end with it.
fn script_of(steps: &[Step], results: &Path) -> String {
    let results = results.display();
    // A document that fails half-way leaves no broker of its mesh behind either.
    let mut script = String::from(
        "place=$PWD\n\
         end() {\n\
         jobs -p | xargs -r kill 2>/dev/null\n\
         for pids in \"$place\"/*/run/*.pid; do\n\
         [ -f \"$pids\" ] && \"$place/run/mesh-down.sh\" --dir \"${pids%/run/*}\" >/dev/null 2>&1\n\
         done\n\
         }\n\
         trap end EXIT\n",
    );
    for (index, step) in steps.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(
            script,
            "{{\n{}\n}} >'{results}/{index}.out' 2>&1 </dev/null\necho $? >'{results}/{index}.status'\n\
             [ \"$(cat '{results}/{index}.status')\" = 0 ] || exit 1\n",
            step.command
        );
    }
    script
}

fn copy(from: &PathBuf, to: &PathBuf) {
    if from.is_file() {
        std::fs::copy(from, to).unwrap();
    } else if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            if name != ".state" {
                copy(&from.join(&name), &to.join(&name));
            }
        }
    }
}

/// Whether the printed lines are the expected ones, with `...` for any lines.
fn matches(expected: &[String], printed: &[&str]) -> bool {
    if expected.is_empty() {
        return true;
    }
    lines_match(expected, printed)
}

fn lines_match(expected: &[String], printed: &[&str]) -> bool {
    match expected {
        [] => printed.is_empty(),
        [wild, rest @ ..] if wild.trim() == "..." => {
            (0..=printed.len()).any(|skip| lines_match(rest, &printed[skip..]))
        }
        [line, rest @ ..] => printed.split_first().is_some_and(|(first, others)| {
            line_matches(line.trim_end(), first.trim_end()) && lines_match(rest, others)
        }),
    }
}

/// Whether a line is the expected one, with `…` for any text.
fn line_matches(expected: &str, printed: &str) -> bool {
    match expected.split_once('…') {
        None => expected == printed,
        Some((head, tail)) => printed.strip_prefix(head).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| line_matches(tail, &rest[at..]))
        }),
    }
}

#[test]
fn blocks_become_steps() {
    let text = "```sh\n$ no\n```\n```console\n$ a \\\n> b\nx\n\n$ c\n```\n";
    let step = |line, command: &str, expected: &[&str]| Step {
        line,
        command: command.to_owned(),
        expected: expected.iter().map(|e| (*e).to_owned()).collect(),
    };
    assert_eq!(steps(text).unwrap(), [step(5, "a \\\nb", &["x", ""]), step(9, "c", &[])]);
    assert!(steps("```console\nx\n```\n").is_err());
    assert!(steps("```console\n$ x\n").is_err());
}

#[test]
fn output_is_compared_with_its_wildcards() {
    let check = |expected: &str, printed: &str| {
        let expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        matches(&expected, &printed.lines().collect::<Vec<_>>())
    };
    assert!(check("a\n...\nz", "a\nz") && check("a\n...\nz", "a\nb\nc\nz") && check("...", ""));
    assert!(check("port … of …!", "port 1 of 2!") && check("", "anything"));
    assert!(!check("a", "a\nb") && !check("a\nb", "a") && !check("a … c", "a b") && !check("a\n...\nz", "a\nb"));
}

#[test]
fn a_document_that_lies_is_found() {
    let run = |block: &str| run(&steps(&format!("```console\n{block}\n```\n")).unwrap());
    run("$ x=1; cd mesh-configs\n$ echo $x; basename $PWD\n1\nmesh-configs\n$ ! false\n$ cat <<E\n> …\n> E\n…")
        .unwrap();
    assert!(run("$ echo a\nb").unwrap_err().contains("2: 'echo a' printed something else"));
    assert!(run("$ true\n$ false").unwrap_err().contains("3: 'false' ended with status 1"));
    assert!(run("$ exit 0\n$ true").unwrap_err().contains("2: 'exit 0' did not end"));
    run("$ glocal --version\nglocal …").unwrap();
}
