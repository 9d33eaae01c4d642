//! Emits `--cfg glocal_guards` for the one build in which tests may switch single guards off.

fn main() {
    println!("cargo:rerun-if-env-changed=GLOCAL_GUARDS_BUILD");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("GLOCAL_GUARDS_BUILD").as_deref() == Ok("1") {
        let profile = std::env::var("PROFILE").unwrap_or_default();
        assert!(profile == "debug", "GLOCAL_GUARDS_BUILD=1 is for debug builds only, never for {profile}");
        println!("cargo:rustc-cfg=glocal_guards");
    }
}
