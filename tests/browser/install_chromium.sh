#!/usr/bin/env bash
# Make sure that there is a Chromium, and print its path. Installs Debian's where that is possible: as root, with apt.
set -euo pipefail

find_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

if ! find_browser; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "no chromium, chromium-browser or google-chrome on the path, and apt cannot be used to install one" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends chromium >&2
    find_browser
fi
