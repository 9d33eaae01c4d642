//! How much memory the node lets sessions have, by its configuration and by what the machine has.

use std::path::Path;

use glocal_core::limits::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};
use glocal_core::memory::MemoryBounds;

use crate::config::Config;

/// The bounds of a configuration.
pub(crate) fn bounds(config: &Config) -> MemoryBounds {
    let node_bytes = config.memory_bytes.unwrap_or_else(|| of_machine(machine_bytes()));
    let by_half = MemoryBounds::of_node(node_bytes);
    MemoryBounds { tenant_bytes: config.tenant_memory_bytes.unwrap_or(by_half.tenant_bytes), ..by_half }
}

/// A quarter of what there is.
fn of_machine(bytes: Option<u64>) -> usize {
    let quarter = bytes.and_then(|bytes| usize::try_from(bytes / 4).ok());
    quarter.map_or(MEMORY_BYTES_DEFAULT, |quarter| quarter.max(MEMORY_BYTES_MIN))
}

/// What the machine has, or what the group of processes may have where that is less; `None` where nobody says it.
fn machine_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).ok();
    let machine = read("/proc/meminfo").and_then(|text| mem_total(&text));
    let group = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

/// The first line of `/proc/meminfo` (proc(5)), in bytes.
fn mem_total(text: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_machine_is_for_sessions() {
        let text = "MemTotal:       16303428 kB\nMemFree:         1024 kB\n";
        assert_eq!(mem_total(text), Some(16_303_428 * 1024));
        assert_eq!(mem_total("MemFree: 12 kB\n"), None);
        assert_eq!(mem_total("MemTotal: much\n"), None);
        assert_eq!(of_machine(Some(8 << 30)), 2 << 30);
        assert_eq!(of_machine(Some(1 << 20)), MEMORY_BYTES_MIN);
        assert_eq!(of_machine(None), MEMORY_BYTES_DEFAULT);
    }
}
