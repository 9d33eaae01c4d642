//! How the C library copies memory, which it asks its environment once, before `main`.
//!
//! glibc before 2.40 copies two kilobytes and more by `rep movsb` wherever the processor says that this is fast. AMD's Zen
//! says so, and then takes twenty-five times as long where the destination lies a few bytes above the source, counted within
//! a page (glibc bug 30994). A TLS record lies five bytes into a buffer and its plaintext at the start of the next one: just
//! there. A broker on such a processor therefore begins once more in the same process, with the tunable that keeps glibc
//! from it; docs/PERFORMANCE.md has the figures.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Where glibc takes its settings from; whoever has set anything there has decided.
const TUNABLES: &str = "GLIBC_TUNABLES";
/// From so many bytes on copies go by `rep movsb`: never.
const NEVER_BY_STRING: &str = "glibc.cpu.x86_rep_movsb_threshold=1000000000";

/// Replaces this program by itself with the environment it needs, where it needs another one. Returns where it does not, and
/// where that fails: it would only be slower.
pub(crate) fn settle() {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))
        || std::env::var_os(TUNABLES).is_some()
    {
        return;
    }
    if !std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| copies_slowly(&text)) {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    drop(again.args(arguments).env(TUNABLES, NEVER_BY_STRING).exec());
}

/// Whether the processors that `/proc/cpuinfo` lists are AMD's.
fn copies_slowly(cpuinfo: &str) -> bool {
    let vendor = cpuinfo.lines().find(|line| line.starts_with("vendor_id"));
    vendor.is_some_and(|line| line.ends_with("AuthenticAMD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processors_of_one_make_are_told() {
        assert!(copies_slowly("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n"));
        assert!(!copies_slowly("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: not AuthenticAMD\n"));
        assert!(!copies_slowly(""));
    }
}
