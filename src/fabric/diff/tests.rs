use std::path::Path;

use glocal_core::time::UnixTime;

use super::*;
use crate::plan::Plan;

fn bundle_of(text: &str) -> Bundle {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::parse(text, "fabric.toml").unwrap_or_else(|error| panic!("{error}"));
    crate::apply::apply_at(&plan, dir.path(), UnixTime(1_800_000_000), &mut |_| {}).unwrap();
    let envelope = crate::bundle::read(&dir.path().join("bundle/bundle.glocal")).unwrap();
    crate::bundle::unverified(&envelope).unwrap()
}

#[test]
fn every_change_of_a_plan_is_a_line() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mesh-configs/two-region/fabric.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let before = bundle_of(&text);
    let changed = text
        .replacen(
            "weight = 1 ",
            "messages_per_s = 1000\nbytes_per_s = \"1 MiB\"\nedge_bytes_per_s = 65536\nmemory_bytes = \"64 MiB\"\nweight = 7 ",
            1,
        )
        .replacen("tenants = [\"*\"]", "tenants = [\"tenantA\"]", 1)
        .replace("max_payload = \"1 MiB\"", "max_payload = \"2 MiB\"")
        + "\n[[tenant]]\nid = \"tenantC\"\nregions = [\"region-a\"]\n\n[[revocation]]\ntenant = \"tenantA\"\n\
           region = \"region-a\"\nagent = \"alice\"\nbefore = \"2026-05-01T00:00:00Z\"\n";
    let lines = diff(&before, &bundle_of(&changed)).join("\n");
    for line in [
        "~ max payload: 1048576 -> 2097152",
        "~ tenant tenantA: weight: 1 -> 7",
        "~ tenant tenantA: limits: none -> 1000 messages/s, 1048576 bytes/s, bursts of 1000 ms",
        "~ tenant tenantA: memory: not set -> 67108864 bytes",
        "~ tenant tenantA: terms on edges: default -> at most 65536 bytes/s",
        "~ tenant tenantA: revocations: 1 came, 0 went",
        "- tenant tenantB: edge global-region-a",
        "+ tenant tenantC: edges global-region-b",
    ] {
        assert!(lines.lines().any(|found| found == line), "{line} in:\n{lines}");
    }
    let back = diff(&bundle_of(&changed), &before).join("\n");
    assert!(back.contains("- tenant tenantC") && back.contains("+ tenant tenantB: edge global-region-a"), "{back}");
    assert!(diff(&before, &before).is_empty());
}
