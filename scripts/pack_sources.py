# SPDX-License-Identifier: Apache-2.0
"""Pack the core's sources for the wheel, together: the same sources give the same bytes.

Usage: pack_sources.py CORE OUTPUT.tar.bz2 FOLDER...
"""

import sys
import tarfile
from pathlib import Path


def pack(core: Path, output: Path, folders: list[str]) -> None:
    with tarfile.open(output, "w:bz2") as archive:
        for path in sorted(path for folder in folders for path in (core / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                member = tarfile.TarInfo(path.relative_to(core).as_posix())  # of nobody, and of no time
                member.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(member, content)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
