#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: venv.sh PYTHON DIR. Makes the virtual environment DIR, unless it is there and whole. On Debian and its kin
# the parts of Python that this needs (venv, the C headers) come from apt when they are missing.
set -euo pipefail
python=$1 dir=$2
install=$(dirname "$0")/apt_install.sh

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import ensurepip, venv' 2>/dev/null || "$install" "python$version-venv"
"$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    "$install" "python$version-dev"
# A venv that was cut off while being made has no working pip: make it again.
"$dir/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$dir"
