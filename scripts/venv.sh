#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: venv.sh PYTHON DIR. Makes the virtual environment DIR, unless it is there and whole. On Debian and its kin
# the parts of Python that this needs (venv, the C headers) come from apt when they are missing.
set -euo pipefail
python=$1 dir=$2

apt_install() {
    command -v apt-get >/dev/null || { echo "venv.sh: install $* with your package manager" >&2; exit 1; }
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -q
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -q -y --no-install-recommends "$@"
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install "python$version-venv"
"$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    apt_install "python$version-dev"
# A venv that was cut off while being made has no working pip: make it again.
"$dir/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$dir"
