#!/usr/bin/env bash
# Make sure that there is a Chromium, and print its path. Installs Debian's where that is possible: as root, with apt.
# The headless shell comes first: a whole Chromium draws its own window for each page, which costs half of its CPU.
set -euo pipefail

find_shell() {
    command -v chromium-headless-shell
}

find_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

install() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 1
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$1"; } >&2
}

find_shell && exit
if install chromium-headless-shell && find_shell; then exit; fi
find_browser && exit
if install chromium && find_browser; then exit; fi
echo "no chromium-headless-shell, chromium, chromium-browser or google-chrome on the path, and apt cannot install one" >&2
exit 1
