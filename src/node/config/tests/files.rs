//! The configurations of `mesh-configs/`: the good ones compile, the bad ones give exactly the errors they announce.

use std::path::PathBuf;

use super::*;

fn toml_files(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            toml_files(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "toml") {
            found.push(entry);
        }
    }
}

fn mesh_configs() -> Vec<PathBuf> {
    let mut found = Vec::new();
    toml_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mesh-configs"), &mut found);
    // Fabric plans are not node configurations; the crate that reads them tests them.
    found.retain(|file| !file.file_name().unwrap().to_string_lossy().contains("fabric"));
    found
}

fn is_bad(file: &Path) -> bool {
    file.to_string_lossy().ends_with(".bad.toml")
}

#[test]
fn good_configurations_compile() {
    let mut count = 0;
    for file in mesh_configs().iter().filter(|file| !is_bad(file)) {
        let loaded = Config::load(file, &[], []).unwrap_or_else(|errors| panic!("{errors}"));
        let compat = file.ends_with("cresco-compat.toml");
        assert_eq!(loaded.config.unsupported.is_empty(), !compat, "{}", file.display());
        count += 1;
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn bad_configurations_give_the_errors_they_announce() {
    let mut count = 0;
    for file in mesh_configs().iter().filter(|file| is_bad(file)) {
        let text = std::fs::read_to_string(file).unwrap();
        let expected: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("# expect: ")).collect();
        assert!(!expected.is_empty(), "{} announces nothing", file.display());
        let name = Path::new(file.file_name().unwrap());
        let errors = compile(&text, name, &[], []).expect_err(&name.display().to_string()).to_string();
        assert_eq!(errors.lines().collect::<Vec<_>>(), expected, "{}", file.display());
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn the_two_region_mesh_fits_together() {
    let load = |name: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mesh-configs/two-region").join(name);
        Config::load(&file, &[], []).unwrap().config
    };
    let global = load("global.toml");
    for region in [load("region-a.toml"), load("region-b.toml")] {
        let up = &region.edges[0];
        assert_eq!(up.peer, global.node);
        assert_eq!(region.addresses_of(up)[0].to_string(), global.bridge.to_string());
        let down = global.edges.iter().find(|edge| edge.name == up.name).unwrap();
        assert_eq!(down.peer, region.node);
        assert!(down.addresses.is_empty(), "the global accepts");
    }
}

#[test]
fn unreadable_files_are_errors_that_name_them() {
    let errors = Config::load(Path::new("/nowhere/node.toml"), &[], []).unwrap_err().to_string();
    assert!(errors.starts_with("/nowhere/node.toml: cannot be read: "), "{errors}");
}
