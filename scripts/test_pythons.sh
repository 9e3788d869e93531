#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a wheel for each supported Python found on this machine (PATH or pyenv) and runs the tests against it, each
# in an environment of its own under build/. Tests marked `peers` are left to `make test`.
# Usage: test_pythons.sh [VERSION ...]
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 3.10 3.11 3.12 3.13

find_python() { # prints the path of a working interpreter of version $1, if there is one
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
}

mkdir -p build
.venv/bin/python scripts/requirements.py test >build/requirements-test.txt
tested=() missing=()
for version in "$@"; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        missing+=("$version")
        continue
    fi
    env=build/venv-$version
    echo "== Python $version ($python)"
    scripts/venv.sh "$python" "$env"
    "$env/bin/python" -m pip install -q -r build/requirements-test.txt
    rm -rf "$env/wheel"
    "$env/bin/python" -m pip wheel -q --no-build-isolation --no-deps -w "$env/wheel" .
    "$env/bin/python" -m pip install -q --no-deps --force-reinstall "$env"/wheel/portcall-*.whl
    "$env/bin/python" -m pytest -n auto -m "not peers and not slow"
    tested+=("$version")
done
echo "tested: ${tested[*]:-none}; not found: ${missing[*]:-none}"
[ ${#tested[@]} -gt 0 ]
