//! Emits `--cfg glocal_guards` for the one build in which tests may switch single guards off.

fn main() {
    println!("cargo:rerun-if-env-changed=GLOCAL_GUARDS_BUILD");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=GLOCAL_BARE_BUILD");
    if std::env::var("GLOCAL_BARE_BUILD").as_deref() == Ok("1") {
        // Without `--cfg glocal_bare` it does nothing, and without it that does not compile.
        println!("cargo:rustc-cfg=glocal_bare_meant");
    }
    if std::env::var("GLOCAL_GUARDS_BUILD").as_deref() == Ok("1") {
        let profile = std::env::var("PROFILE").unwrap_or_default();
        assert!(profile == "debug", "GLOCAL_GUARDS_BUILD=1 is for debug builds only, never for {profile}");
        println!("cargo:rustc-cfg=glocal_guards");
    }
}
