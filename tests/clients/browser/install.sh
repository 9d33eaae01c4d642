#!/usr/bin/env bash
# Installs what the tests of WebSocket need: the packages of package-lock.json into node_modules, which git ignores, and
# Debian's chromium where there is no Chromium yet, for which it must be root. Says what the machine lacks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The browser that is there.
browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

lacks() {
    printf 'error: this machine lacks %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

command -v python3 >/dev/null || lacks python3 'apt-get install python3'
command -v node >/dev/null || lacks node 'Node.js 20.11 or newer: apt-get install nodejs npm'
command -v npm >/dev/null || lacks npm 'apt-get install npm'
node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 11) ? 0 : 1)' ||
    lacks 'node 20.11 or newer' "this one is $(node --version)"

stamp=node_modules/.installed
if [ ! -e "$stamp" ] || ! cmp -s package-lock.json "$stamp"; then
    npm ci --silent --ignore-scripts || lacks 'the packages of tests/clients/browser/package-lock.json' 'npm ci failed; see above'
    cp package-lock.json "$stamp"
fi

if ! browser >/dev/null; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then lacks chromium 'apt-get install chromium, as root'; fi
    printf 'chromium is missing: apt-get install chromium\n'
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 ||
        lacks chromium 'apt-get install chromium failed; install it by hand'
fi
for package in @nats-io/nats-core ws esbuild playwright-core; do
    printf '%-20s %s\n' "$package" "$(sed -n 's/^  "version": "\(.*\)",\{0,1\}$/\1/p' "node_modules/$package/package.json")"
done
printf '%-20s %s, %s\n' chromium "$("$(browser)" --version 2>/dev/null)" "$(browser)"
