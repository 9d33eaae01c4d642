#!/usr/bin/env bash
# How many instructions a message costs, and whether that stays the same however many tenants, subscriptions and sessions
# there are: a load that does the same at every run (tests/bench/steps.rs), counted by callgrind. What it costs is held
# against run/bench/smoke.txt. Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
# A binary that is named is taken as it is.
BUILD=true
[ -z "${STEPS_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'END'
usage: run/bench/smoke.sh [--large] [--bare] [--write]

  --bare    besides, what the filter of tenants and the scheduler of an edge cost: against a second build, without either
  --large   a million subscriptions instead of a hundred thousand; takes some minutes and a gigabyte of memory
  --write   writes what is measured, and 5 % more as bounds, to run/bench/smoke.txt: after a change that is worth it, or
            for another compiler

Needs valgrind, which is installed by apt-get when this runs as root on Debian. STEPS_BIN names another build of
tests/bench/steps.rs than the one that this script makes in target/release, BARE_STEPS_BIN another bare one than that in
target/bare/release.
END
}

SUBSCRIPTIONS=100000
BARE=false
WRITE=false
while [ $# -gt 0 ]; do
    case $1 in
        --large) SUBSCRIPTIONS=1000000 ;;
        --bare) BARE=true ;;
        --write) WRITE=true ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

need_tool valgrind
STEPS_BIN=${STEPS_BIN:-$TARGET_DIR/release/examples/steps}
if $BUILD; then (cd "$REPO" && cargo build --release --locked --quiet -p glocal-sim --example steps); fi
[ -x "$STEPS_BIN" ] || die "'$STEPS_BIN' is not built" "cargo build --release -p glocal-sim --example steps"

# Such a build takes this variable as well as the flag, and no node can be made of it.
if $BARE && [ -z "${BARE_STEPS_BIN:-}" ]; then
    (cd "$REPO" && GLOCAL_BARE_BUILD=1 RUSTFLAGS="--cfg glocal_bare" CARGO_TARGET_DIR="$TARGET_DIR/bare" \
        cargo build --release --locked --quiet -p glocal-sim --example steps)
fi
BARE_STEPS_BIN=${BARE_STEPS_BIN:-$TARGET_DIR/bare/release/examples/steps}

TABLE=$REPO/run/bench/smoke.txt
OUT=$(mktemp -d "${TMPDIR:-/tmp}/glocal-smoke.XXXXXX")
trap 'rm -rf "$OUT"' EXIT

# count BINARY NAME CASE…: runs the cases one after another in one process, and writes a line "CASE INSTRUCTIONS" each, of one
# message, to NAME.counts.
count() {
    local binary=$1 name=$2 number=0 word case messages
    shift 2
    # Counted byte by byte, large copies would weigh more than they cost.
    GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1073741824 \
        valgrind --tool=callgrind --callgrind-out-file="$OUT/$name.dump" --toggle-collect='steps::counted*' \
        --dump-after='steps::finished*' "$binary" "$@" >"$OUT/$name.cases" 2>"$OUT/$name.log" || {
        cat "$OUT/$name.log" >&2
        return 1
    }
    while read -r word case messages; do
        [ "$word" = case ] || continue
        number=$((number + 1))
        awk -v case="$case" -v messages="$messages" '
            /^summary:/ { found = $2 }
            END { if (found == 0) exit 1; printf "%s %.1f\n", case, found / messages }' "$OUT/$name.dump.$number" ||
            die "callgrind has counted nothing of '$case'" "are functions called 'counted' and 'finished' in $binary?"
    done <"$OUT/$name.cases" >"$OUT/$name.counts"
}

# What a message costs: these have bounds in the table.
COSTS=()
for what in native nats native,far; do
    for bytes in 16 256 1024; do COSTS+=("$what,bytes=$bytes"); done
done
# What must not grow, in turns: name, the case, and what it is compared with. Names that were never seen before are matched
# each; a thousand names are known, and a subscription makes all decisions on them anew.
SESSIONS=messages=64000
CHANGES=changes=200
# At a million messages a second, two fifths of what a core carries, that is a thousand changes a second.
CHANGES_AND_COST=changes=1000,all
GROWTH=(
    tenants "native,tenants=10000" "native"
    tenants_across "native,far,tenants=10000" "native,far"
    subscriptions "native,subscriptions=$SUBSCRIPTIONS" "native,subscriptions=10"
    subscriptions_new_names "native,names=2048,subscriptions=$SUBSCRIPTIONS" "native,names=2048,subscriptions=10"
    sessions "native,pairs=500,$SESSIONS" "native"
    sessions_nats "nats,pairs=500,$SESSIONS" "nats"
    changes "native,$CHANGES" "native"
    changes_and_their_own_cost "native,$CHANGES_AND_COST" "native"
)
GROWTH_MOST=1.1

# Two processes at a time. Those that take long come first in one of them.
LONG=() SHORT_ONES=("${COSTS[@]}")
for ((at = 0; at < ${#GROWTH[@]}; at += 3)); do
    for case in "${GROWTH[at + 1]}" "${GROWTH[at + 2]}"; do
        case $case in
            *"subscriptions=$SUBSCRIPTIONS"*) LONG+=("$case") ;;
            *) [[ " ${SHORT_ONES[*]} " == *" $case "* ]] || SHORT_ONES+=("$case") ;;
        esac
    done
done
count "$STEPS_BIN" long "${LONG[@]}" &
LONG_PID=$!
count "$STEPS_BIN" short "${SHORT_ONES[@]}" || { wait "$LONG_PID" || true; die 'the load failed'; }
wait "$LONG_PID" || die 'the load failed'
ACROSS=()
for case in "${COSTS[@]}"; do [[ $case != native,far* ]] || ACROSS+=("$case"); done
if $BARE; then count "$BARE_STEPS_BIN" bare "${ACROSS[@]}"; fi
BARE_MOST=1.05

# instructions CASE [NAME]: of these counts, without a name of those that were not of a bare build.
instructions() {
    local counts=("$OUT/short.counts" "$OUT/long.counts")
    [ $# -eq 1 ] || counts=("$OUT/$2.counts")
    awk -v case="$1" '$1 == case { print $2; found = 1; exit } END { exit !found }' "${counts[@]}" ||
        die "nothing was counted of '$1'"
}

if $WRITE; then
    {
        echo '# Instructions a message costs, and the most it may: written by run/bench/smoke.sh --write.'
        for case in "${COSTS[@]}"; do
            measured=$(instructions "$case")
            echo "$measured" | awk -v case="$case" '{ printf "%s %.0f %.0f\n", case, $1, $1 * 1.05 }'
        done
    } >"$TABLE"
fi
{
    for case in "${COSTS[@]}"; do
        bound=$(awk -v case="$case" '$1 == case { print $3 }' "$TABLE")
        [ -n "$bound" ] || die "'$TABLE' has no bound of '$case'" 'run/bench/smoke.sh --write'
        measured=$(instructions "$case")
        goal "instructions.$case" "$measured" most "$bound"
    done
    for ((at = 0; at < ${#GROWTH[@]}; at += 3)); do
        more=$(instructions "${GROWTH[at + 1]}")
        less=$(instructions "${GROWTH[at + 2]}")
        say "${GROWTH[at + 1]}: $more, ${GROWTH[at + 2]}: $less"
        goal "growth.${GROWTH[at]}" "$(awk -v a="$more" -v b="$less" 'BEGIN { printf "%.3f", a / b }')" most "$GROWTH_MOST"
    done
    for case in "${ACROSS[@]}"; do
        $BARE || break
        more=$(instructions "$case")
        less=$(instructions "$case" bare)
        say "$case: $more, bare: $less"
        goal "bare.$case" "$(awk -v a="$more" -v b="$less" 'BEGIN { printf "%.3f", a / b }')" most "$BARE_MOST"
    done
} >"$OUT/goals"
grep -v '^goal ' "$OUT/goals"
grep '^goal ' "$OUT/goals"
! grep -q ' short$' "$OUT/goals"
