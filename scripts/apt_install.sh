#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: apt_install.sh PACKAGE... Installs packages of Debian and its kin, with sudo where that takes root.
set -euo pipefail
command -v apt-get >/dev/null || { echo "install $* with your package manager" >&2; exit 1; }
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get update -q
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -q -y --no-install-recommends "$@"
