# SPDX-License-Identifier: Apache-2.0
"""Print what pyproject.toml requires, one requirement a line, for `pip install -r`.

Usage: requirements.py [EXTRA ...]. The build tools and the run-time dependencies are always among them, so that the
package itself can then be installed with --no-build-isolation --no-deps, which takes a second instead of a minute.
"""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

# The build back end asks for these only where the machine lacks them; with no build isolation they must be there.
BUILD_TOOLS = ["cmake>=3.21", "ninja>=1.10"]


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Return the requirements of the build, of the package, and of its ``extras``."""
    settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = settings["project"]
    wanted = settings["build-system"]["requires"] + BUILD_TOOLS + project["dependencies"]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return list(dict.fromkeys(wanted))


if __name__ == "__main__":
    print("\n".join(requirements(Path(__file__).parents[1] / "pyproject.toml", sys.argv[1:])))
