# SPDX-License-Identifier: Apache-2.0
"""The npm packages with the native core, as `make platforms` made them: what they hold, what they need of a system, and
the tests of js/test/native under Node 20 from npm, for another machine by qemu.

    python js/test/platforms.py linux-x64 linux-arm64
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile

JS = Path(__file__).parents[1]
NODES = JS.parent / "build" / "platform" / "node"
NODE = "20"
OLDEST_GLIBC = (2, 17)  # of 2012
LIBRARIES = ["libportcall.so", "libportcall_graph.so", "libportcall_ir.so"]
# By Node's name: the machine's, as ELF files, Linux and zig have it.
MACHINES = {"x64": ("EM_X86_64", "x86_64", "x86_64-linux-gnu"), "arm64": ("EM_AARCH64", "aarch64", "aarch64-linux-gnu")}
# Of the system, and of the package. C++'s library is inside.
NEEDED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libportcall.so"}
NEEDED |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
EXPORTED = ("TVM", "Portcall", "portcall_", "__tvm_ffi_", "napi_", "node_api_")


def check_content(folder: Path, name: str) -> None:
    """What `npm pack` takes."""
    words = ["npm", "pack", "--dry-run", "--json", "--loglevel=error"]
    packed = json.loads(subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout)[0]
    files = sorted(file["path"] for file in packed["files"])
    assert files == sorted(["LICENSE", "package.json", "portcall.node", *LIBRARIES]), files
    print(f"{name}: {packed['size']:,} bytes packed, {packed['unpackedSize']:,} unpacked")


def check_library(path: Path, machine: str) -> None:
    """The machine, the libraries and the versions of symbols that a file needs, and that it tells no path."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_machine"] == machine, elf["e_machine"]
        tags = list(elf.get_section_by_name(".dynamic").iter_tags())
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        assert needed <= NEEDED, needed - NEEDED
        paths = [tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH"]
        versions = {
            version.name
            for _, names in elf.get_section_by_name(".gnu.version_r").iter_versions()
            for version in names
            if version.name.startswith("GLIBC_")
        }
        newest = max(tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in versions)
        assert newest <= OLDEST_GLIBC, newest
        exported = {
            symbol.name
            for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
        }
    wrong = {name for name in exported if not name.startswith(EXPORTED)}
    assert not wrong, wrong
    assert set(paths) == ({"$ORIGIN"} if "libportcall.so" in needed else set()), paths
    assert str(JS.parent).encode() not in path.read_bytes(), f"{path} tells a path of this machine"
    print(f"  {path.name}: {path.stat().st_size:,} bytes, needs glibc {'.'.join(map(str, newest))}")


def node_of(name: str) -> Path:
    """Node for a platform, from npm."""
    folder = NODES / name
    program = folder / "package" / "bin" / "node"
    if not program.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        words = ["npm", "pack", "--silent", f"node-{name}@{NODE}"]
        packed = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
        subprocess.run(["tar", "xzf", packed], cwd=folder, check=True)
        (folder / packed).unlink()
    return program


def run_tests(name: str, machine: str, target: str) -> None:
    """The tests of the native core."""
    words, environment = [str(node_of(name))], dict(os.environ)
    if machine != platform.machine():
        emulator = [f"qemu-{machine}-static", "-L", f"/usr/{machine}-linux-gnu"]
        environment["PORTCALL_TEST_EMULATOR"] = " ".join(emulator)
        environment["CC"] = f"{sys.executable} -m ziglang cc -target {target}"
        words = [*emulator, *words]
    for path in sorted((JS / "build" / "test" / "native").glob("*.test.js")):
        subprocess.run([*words, "--test-reporter=dot", str(path)], check=True, env=environment, timeout=600)


def main() -> None:
    for name in sys.argv[1:]:
        elf_machine, machine, target = MACHINES[name.split("-")[1]]
        folder = JS / "platform" / name
        check_content(folder, name)
        for path in sorted([folder / "portcall.node", *(folder / library for library in LIBRARIES)]):
            check_library(path, elf_machine)
        run_tests(name, machine, target)


main()
