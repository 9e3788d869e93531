# SPDX-License-Identifier: Apache-2.0
"""Compress the files of a wheel again, as small as deflate can be: 3 % less to download, for half a minute here.

Usage: shrink_wheel.py WHEEL...
"""

import stat
import sys
import zipfile
from pathlib import Path

from zopfli import ZipFile


def shrink(wheel: Path) -> None:
    """Replace a wheel by one with the same files, in the same order, with the same times.

    Everybody may read them, and run those that their owner may, whatever rights they had where the wheel was built.
    """
    small = wheel.with_suffix(".small")
    with zipfile.ZipFile(wheel) as source, ZipFile(small, "w", zipfile.ZIP_DEFLATED, iterations=5) as target:
        for member in source.infolist():
            mode, low = member.external_attr >> 16, member.external_attr & 0xFFFF
            member.external_attr = (stat.S_IFMT(mode) | (0o755 if mode & 0o100 else 0o644)) << 16 | low
            target.writestr(member, source.read(member))
    small.replace(wheel)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        shrink(Path(path))
