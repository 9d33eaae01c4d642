//! What differs between two bundles, in lines for people. Version and dates are no difference of contents.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use glocal_core::bundle::{Bundle, Section};

/// What differs between `before` and `after`: one line each, `+` for what came, `-` for what went, `~` for what changed.
/// Sections are compared where both bundles hold them; of others it is told that they came or went.
#[must_use]
pub fn diff(before: &Bundle, after: &Bundle) -> Vec<String> {
    let mut lines = Vec::new();
    let (old, new) = (before.head(), after.head());
    changed(&mut lines, "fabric", &old.fabric, &new.fabric);
    changed(&mut lines, "max payload", &old.max_payload_bytes, &new.max_payload_bytes);
    let resigner =
        |head: &glocal_core::bundle::Head| head.resigner.as_ref().map_or("none".to_owned(), ToString::to_string);
    changed(&mut lines, "re-signer", &resigner(old), &resigner(new));
    set(&mut lines, "root", &old.roots, &new.roots);
    set(&mut lines, "superuser", &old.superusers, &new.superusers);
    let nodes = |head: &glocal_core::bundle::Head| -> BTreeMap<String, String> {
        let text = |issuers: &[glocal_core::identity::KeyId]| join(issuers.iter().map(short));
        head.nodes
            .iter()
            .map(|n| (n.node.to_string(), format!("of {}, issued by {}", n.tenant, text(&n.issuers))))
            .collect()
    };
    map(&mut lines, "node", &nodes(old), &nodes(new));
    let edges = |head: &glocal_core::bundle::Head| -> BTreeMap<String, String> {
        head.edges.iter().map(|e| (e.name.to_string(), format!("{} <-> {}", e.a, e.b))).collect()
    };
    map(&mut lines, "edge", &edges(old), &edges(new));
    if old.revocations != new.revocations {
        lines.push(format!("~ revocations of nodes: {} -> {}", old.revocations.len(), new.revocations.len()));
    }
    let of = |bundle: &Bundle| -> BTreeMap<String, Arc<Section>> {
        bundle.sections().map(|section| (section.tenant.to_string(), Arc::clone(section))).collect()
    };
    let (held, next) = (of(before), of(after));
    for tenant in held.keys().filter(|tenant| !next.contains_key(*tenant)) {
        lines.push(format!("- tenant {tenant}"));
    }
    for (tenant, section) in &next {
        match held.get(tenant) {
            None => lines.push(format!("+ tenant {tenant}: edges {}", join(section.edges.iter()))),
            Some(earlier) => sections(&mut lines, earlier, section),
        }
    }
    lines
}

fn sections(lines: &mut Vec<String>, before: &Section, after: &Section) {
    let tenant = format!("tenant {}", after.tenant);
    changed(lines, &format!("{tenant}: weight"), &before.weight, &after.weight);
    changed(lines, &format!("{tenant}: sessions per node"), &before.sessions_max, &after.sessions_max);
    changed(lines, &format!("{tenant}: limits"), &before.limits, &after.limits);
    changed(lines, &format!("{tenant}: terms on edges"), &before.terms, &after.terms);
    let memory =
        |section: &Section| section.memory_bytes.map_or("not set".to_owned(), |bytes| format!("{bytes} bytes"));
    changed(lines, &format!("{tenant}: memory"), &memory(before), &memory(after));
    changed(lines, &format!("{tenant}: owner-only replies"), &before.owner_only_replies, &after.owner_only_replies);
    set(lines, &format!("{tenant}: edge"), &before.edges, &after.edges);
    let issuers = |section: &Section| -> BTreeMap<String, String> {
        section.issuers.iter().map(|i| (short(&i.key), format!("in {}", join(i.regions.iter())))).collect()
    };
    map(lines, &format!("{tenant}: issuer"), &issuers(before), &issuers(after));
    let grants = |section: &Section| -> BTreeMap<String, String> {
        let access = |write| if write { "write" } else { "read" };
        let text = |g: &glocal_core::bundle::Grant| format!("{} may {} {}", g.tenant, access(g.write), g.filter);
        section.grants.iter().map(|g| (g.name.to_string(), text(g))).collect()
    };
    map(lines, &format!("{tenant}: grant"), &grants(before), &grants(after));
    if before.rules != after.rules {
        lines.push(format!("~ {tenant}: rules: {} -> {}", before.rules.len(), after.rules.len()));
    }
    let came = after.revocations.iter().filter(|r| !before.revocations.contains(r)).count();
    let went = before.revocations.iter().filter(|r| !after.revocations.contains(r)).count();
    if came + went > 0 {
        lines.push(format!("~ {tenant}: revocations: {came} came, {went} went"));
    }
}

fn changed<T: PartialEq + Display>(lines: &mut Vec<String>, what: &str, before: &T, after: &T) {
    if before != after {
        lines.push(format!("~ {what}: {before} -> {after}"));
    }
}

fn set<T: PartialEq + Display>(lines: &mut Vec<String>, what: &str, before: &[T], after: &[T]) {
    lines.extend(before.iter().filter(|item| !after.contains(item)).map(|item| format!("- {what} {item}")));
    lines.extend(after.iter().filter(|item| !before.contains(item)).map(|item| format!("+ {what} {item}")));
}

fn map(lines: &mut Vec<String>, what: &str, before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) {
    lines.extend(before.keys().filter(|key| !after.contains_key(*key)).map(|key| format!("- {what} {key}")));
    for (key, text) in after {
        match before.get(key) {
            None => lines.push(format!("+ {what} {key}: {text}")),
            Some(earlier) if earlier != text => lines.push(format!("~ {what} {key}: {earlier} -> {text}")),
            Some(_) => {}
        }
    }
}

/// The first digits of a key id, enough for people to compare.
fn short(key: &glocal_core::identity::KeyId) -> String {
    key.to_string().chars().take(16).collect()
}

fn join<T: Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
