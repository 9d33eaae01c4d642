use super::*;
use crate::plan::Plan;

const NOW: UnixTime = UnixTime(1_800_000_000);

fn fabric() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mesh-configs/two-region/fabric.toml");
    let plan = Plan::parse(&std::fs::read_to_string(file).unwrap(), "fabric.toml").unwrap();
    crate::apply::apply_at(&plan, dir.path(), NOW, &mut |_| {}).unwrap();
    dir
}

fn head_of(dir: &Path, path: &str) -> (Envelope, glocal_core::bundle::Bundle) {
    let envelope = bundle::read(&dir.join(path)).unwrap();
    let roots = issue::read_certificates(&dir.join("root/root.pem")).unwrap();
    let checked = bundle::verify(&envelope, &roots, UnixTime(NOW.0 + 86_400)).unwrap();
    (envelope, checked)
}

#[test]
fn the_same_contents_are_signed_afresh_for_everybody() {
    let dir = fabric();
    let files = ["bundle/bundle.glocal", "nodes/region-a-broker-a/bundle.glocal"];
    let before = files.map(|file| head_of(dir.path(), file));
    let later = UnixTime(NOW.0 + 86_400);
    let signed = resign(dir.path(), None, 0, later).unwrap();
    assert_eq!((signed.epoch, signed.version, signed.files.len()), (1, 2, 4));
    for (file, (envelope, old)) in files.iter().zip(before) {
        let (fresh, new) = head_of(dir.path(), file);
        assert_eq!(fresh.sections, envelope.sections, "not a byte of them changes");
        assert_eq!(new.head().version, 2);
        assert_eq!(new.head().issued, later);
        assert_eq!(new.head().expires.0 - old.head().expires.0, 86_400, "as long as before");
        assert!(crate::diff::diff(&old, &new).is_empty());
    }
    let signed = resign(dir.path(), Some(3), 0, later).unwrap();
    assert_eq!((signed.version, signed.expires), (3, UnixTime(later.0 + 3 * 86_400)));
}

#[test]
fn without_the_key_or_with_another_nothing_is_signed() {
    let dir = fabric();
    let other = fabric();
    let key = dir.path().join("bundle/bundle.key");
    let before = std::fs::read(dir.path().join("bundle/bundle.glocal")).unwrap();
    std::fs::copy(other.path().join("bundle/bundle.key"), &key).unwrap();
    let error = resign(dir.path(), None, 0, NOW).unwrap_err().to_string();
    assert!(error.ends_with("bundle/bundle.key: is not the key that signed the bundle"), "{error}");
    std::fs::remove_file(&key).unwrap();
    assert!(matches!(resign(dir.path(), None, 0, NOW), Err(ResignError::Key { .. })));
    assert!(matches!(resign(dir.path(), Some(0), 0, NOW), Err(ResignError::Days(0))));
    // A broker's bundle of another fabric.
    std::fs::copy(
        other.path().join("nodes/region-a-broker-a/bundle.glocal"),
        dir.path().join("nodes/region-a-broker-a/bundle.glocal"),
    )
    .unwrap();
    assert!(matches!(resign(dir.path(), None, 0, NOW), Err(ResignError::Bundle { .. })));
    assert_eq!(std::fs::read(dir.path().join("bundle/bundle.glocal")).unwrap(), before);
}
