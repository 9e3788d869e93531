#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: apt_install.sh PACKAGE... Installs packages of Debian and its kin, with sudo where that takes root. One after
# the other, where several are started; what there is is asked for once an hour.
set -euo pipefail
command -v apt-get >/dev/null || { echo "install $* with your package manager" >&2; exit 1; }
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
asked=$(dirname "$0")/../build/apt-asked
exec 9<"$0"
flock 9
if [ -z "$(find "$asked" -mmin -60 2>/dev/null)" ]; then
    "${sudo[@]}" apt-get update -q
    mkdir -p "$(dirname "$asked")"
    touch "$asked"
fi
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -q -y --no-install-recommends "$@"
