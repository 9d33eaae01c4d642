#!/usr/bin/env bash
# Tests everything: form, lints, every test of the workspace, the documents' commands, the mesh scripts, the demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'END'
usage: run/test.sh [--quick]

Runs, in this order, and stops at the first failure:
  format       cargo fmt --check
  lints        cargo clippy, warnings are errors
  tests        every test of the workspace, with the guards that tests may switch off
  doc-tests    the examples in the documentation
  release      cargo build --release
  shellcheck   the scripts
  mesh         run/tests/*.sh: meshes of real processes
  demo         glocal demo
  bench        run/bench/hop.sh: what one bridge costs
  smoke        run/bench/smoke.sh: how many instructions a message costs

--quick leaves out what needs the release build: release, mesh, demo, bench and smoke.

Needs cargo with rustfmt and clippy, and a C compiler. With cargo-nextest it is faster. The mesh tests with NATS clients
need python3 with venv, Node.js 20 with npm, nats-server and chromium besides, and fetch the clients in pinned versions.
shellcheck, valgrind, nats-server and chromium are installed by apt-get when this runs as root on Debian; otherwise it
says so.
END
}

QUICK=false
for argument in "$@"; do
    case $argument in
        --quick) QUICK=true ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
done

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# shellcheck source=run/lib.sh
source run/lib.sh
unset GLOCAL_GUARDS_BUILD GLOCAL_GUARDS_OFF
BEGAN=$SECONDS
TIMES=()
STEPS=0

# step NAME COMMAND…
step() {
    local name=$1 began=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if ! "$@"; then
        report
        printf '\nstep %s failed after %d s\nsteps: %d passed, 1 failed\n' "$name" "$((SECONDS - began))" "$STEPS"
        exit 1
    fi
    STEPS=$((STEPS + 1))
    TIMES+=("$(printf '%-12s %4d s' "$name" "$((SECONDS - began))")")
}

report() {
    printf '\n== time of each step\n'
    [ ${#TIMES[@]} -eq 0 ] || printf '%s\n' "${TIMES[@]}"
    printf '%-12s %4d s\n' 'in all' "$((SECONDS - BEGAN))"
}

require_tools() {
    command -v cargo >/dev/null || die 'cargo is missing' 'install Rust: https://rustup.rs'
    cargo fmt --version >/dev/null 2>&1 || die 'rustfmt is missing' 'rustup component add rustfmt'
    cargo clippy --version >/dev/null 2>&1 || die 'clippy is missing' 'rustup component add clippy'
    command -v cc >/dev/null || command -v gcc >/dev/null || die 'a C compiler is missing' 'apt-get install gcc'
    command -v git >/dev/null || printf 'note: without git, the test of what lies in the repository looks at all files\n'
    need_tool shellcheck
}

# Tests are not retried: one that fails now and then has found something.
tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        GLOCAL_GUARDS_BUILD=1 cargo nextest run --workspace --locked
    else
        printf 'note: cargo-nextest is not installed; cargo test takes longer\n'
        GLOCAL_GUARDS_BUILD=1 cargo test --workspace --locked --lib --bins --tests
    fi
}

# By itself, what is counted depends on nothing but the code that is counted.
release() {
    cargo build --release --locked --bin glocal --example hop &&
        cargo build --release --locked -p glocal-sim --example steps
}

scripts() {
    local files
    mapfile -t files < <(find run -name '*.sh' -not -path 'run/.state/*' | sort)
    shellcheck --external-sources .ci/run "${files[@]}"
}

mesh() {
    local script
    for script in run/tests/*.sh; do
        printf -- '-- %s\n' "$script"
        # The tests above have just built the binary whose guards can be switched off.
        GUARDS_BIN=$TARGET_DIR/debug/glocal bash "$script" || return 1
    done
}

require_tools
step format cargo fmt --all --check
step lints cargo clippy --workspace --all-targets --locked -- -D warnings
step tests tests
step doc-tests env GLOCAL_GUARDS_BUILD=1 cargo test --workspace --locked --doc --quiet
step shellcheck scripts
if ! $QUICK; then
    step release release
    step mesh mesh
    step demo "$TARGET_DIR/release/glocal" demo
    if [ -x run/bench/hop.sh ]; then step bench run/bench/hop.sh; fi
    if [ -x run/bench/smoke.sh ]; then step smoke run/bench/smoke.sh; fi
fi
report
printf '\nsteps: %d passed, 0 failed\n' "$STEPS"
