//! Runs `glocal demo` as a newcomer would, and reads what it tells.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Lines of the whole story. A line that is lost would otherwise be missed by nobody.
const LINES: usize = 75;
/// The attacks among them, by their numbers in the catalogue, with how many ways each is tried.
const ATTACKS: &[(&str, usize)] = &[("1", 1), ("2", 1), ("3", 6), ("7", 3), ("8", 2), ("9", 6), ("11", 5), ("19", 2)];
/// How long it may take, in a debug build on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn every_line_of_the_demo_comes_out_as_it_must() {
    let began = Instant::now();
    let demo = Command::new(env!("CARGO_BIN_EXE_glocal"))
        .args(["demo", "--json"])
        .stdin(Stdio::null())
        .output()
        .expect("the built binary runs");
    let printed = String::from_utf8(demo.stdout).expect("JSON is UTF-8");
    let objects: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let (totals, lines) = objects.split_last().expect("it prints something");
    let failed: Vec<&Value> = lines.iter().filter(|line| line["ok"] != true).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(demo.status.success(), "{}: {}", demo.status, String::from_utf8_lossy(&demo.stderr));
    assert_eq!((totals["ok"].as_bool(), lines.len()), (Some(true), LINES), "{totals}");
    assert_eq!(totals["attacks"], totals["attacks_refused"]);
    let told = lines.iter().filter(|line| line["attack"] == true);
    let told: Vec<&str> = told.map(|line| line["what"].as_str().unwrap().split_whitespace().next().unwrap()).collect();
    for (number, tried) in ATTACKS {
        assert_eq!(told.iter().filter(|n| n == &number).count(), *tried, "attack {number}");
    }
    assert!(began.elapsed() < DEADLINE, "it took {:?}", began.elapsed());
}
