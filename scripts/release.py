# SPDX-License-Identifier: Apache-2.0
"""Write what goes beside the files of a release: SHA256SUMS, and an SBOM in CycloneDX's JSON, version 1.6.

Usage: release.py FOLDER. Of the same files, with the same tools installed, both are the same: the time is that of
SOURCE_DATE_EPOCH, and the serial number comes from the files.
"""

import hashlib
import json
import os
import re
import sys
import uuid
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from portcall.extras import EXTRAS

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

SUMS = "SHA256SUMS"
TOOLS = (
    "auditwheel",
    "cmake",
    "cython",
    "ninja",
    "scikit-build-core",
    "ziglang",
    "zopflipy",
)  # zig's libc++ is in npm's and Java's
_NAME = re.compile(r"[\w.-]+")


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a release, by its name, in the order of names."""
    files = sorted(file for file in folder.iterdir() if file.name != SUMS and not file.name.endswith(".cdx.json"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def bill(project: dict[str, Any], files: dict[str, str], epoch: int) -> dict[str, Any]:
    """Return the SBOM: the files, what the package requires, and what it was built with."""
    name, version = project["name"], project["version"]
    own = f"pkg:pypi/{name}@{version}"
    required, optional = project["dependencies"], project["optional-dependencies"]
    needs = [_requirement(text, "required") for text in required]
    needs += [_requirement(text, "optional") for extra in EXTRAS for text in optional[extra]]
    needs = list({need["bom-ref"]: need for need in reversed(needs)}.values())[::-1]
    contents = [
        {"type": "file", "bom-ref": f"file:{file}", "name": file, "hashes": [{"alg": "SHA-256", "content": sum_}]}
        for file, sum_ in files.items()
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, files]))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [tool for name in TOOLS if (tool := _tool(name))]},
            "component": {
                "type": "library", "bom-ref": own, "name": name, "version": version, "purl": own,
                "description": project["description"], "licenses": [{"license": {"id": project["license"]}}],
            },
        },
        "components": [*contents, *needs],
        "dependencies": [{"ref": own, "dependsOn": [need["bom-ref"] for need in needs if need["scope"] == "required"]}],
    }  # fmt: skip


def _requirement(text: str, scope: str) -> dict[str, Any]:
    """Return a requirement, which says a range of versions and no version."""
    name = _NAME.match(text)[0].lower()  # type: ignore[index]
    asked = [{"name": "portcall:requirement", "value": text}]
    return {"type": "library", "bom-ref": f"pkg:pypi/{name}", "name": name, "scope": scope, "purl": f"pkg:pypi/{name}",
            "properties": asked}  # fmt: skip


def _tool(name: str) -> dict[str, str] | None:
    try:
        return {"type": "application", "name": name, "version": metadata.version(name)}
    except metadata.PackageNotFoundError:
        return None


def main(folder: Path) -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = sums(folder)
    if not files:
        sys.exit(f"there is no file of a release in {folder}")
    bom = folder / f"{project['name']}-{project['version']}.cdx.json"
    bom.write_text(json.dumps(bill(project, files, int(os.environ["SOURCE_DATE_EPOCH"])), indent=2) + "\n", "utf-8")
    files[bom.name] = hashlib.sha256(bom.read_bytes()).hexdigest()
    (folder / SUMS).write_text("".join(f"{sum_}  {name}\n" for name, sum_ in sorted(files.items())), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
