# SPDX-License-Identifier: Apache-2.0
"""``portcall board``: the server for machines without Python."""

from __future__ import annotations

import contextlib

import click

from portcall.bench import format_size
from portcall.cli._command import Command, Group
from portcall.cli._output import print_json, print_line
from portcall.cli._progress import StatusLine

EXAMPLES = """
portcall board build                                              for machines like this: ./portcall-server
portcall board build --target aarch64-linux-gnu                   for a Raspberry Pi
portcall board build --target x86_64-linux-musl -o server         for Alpine or OpenWrt
portcall board build --target arm-linux-musleabihf --with k.o     static, with kernels linked in
portcall board build --target aarch64-linux-gnu --with vm         with the machine for models of TVM's Relax VM
portcall board build --target aarch64-linux-android --ndk DIR     for a phone
"""


@click.command("build", cls=Command, examples=EXAMPLES)
@click.option("--target", metavar="TRIPLE", help="The board: x86_64-, aarch64- or riscv64-linux-gnu or -linux-musl, "
              "arm-linux-gnueabihf or arm-linux-musleabihf, or another one that zig knows; by default a machine like "
              "this one.")  # fmt: skip
@click.option("--output", "-o", default="portcall-server", show_default=True, type=click.Path(dir_okay=False),
              help="The file to write.")  # fmt: skip
@click.option("--with", "linked", multiple=True, type=click.Path(), metavar="FILE.o|vm",
              help="Link kernels in, which clients find by system_lib; or, with the word vm, the machine for models of "
              "TVM's Relax VM. Can be repeated.")  # fmt: skip
@click.option("--ndk", type=click.Path(file_okay=False), metavar="DIR", help="The folder of Android's NDK, for "
              "aarch64-linux-android and x86_64-linux-android.")  # fmt: skip
def build(target: str | None, output: str, linked: tuple[str, ...], ndk: str | None, json_to: str | None) -> None:
    """The server is one file, which needs neither Python nor portcall. The first build for a target takes minutes."""
    from portcall import board
    from portcall.inspect import this_machine

    target = target or this_machine().target
    files = [path for path in linked if path != "vm"]
    slow = "" if ndk else "; the first time zig compiles its C++ library for that, which takes minutes"
    with StatusLine() as status, contextlib.ExitStack() as stages:
        advance = stages.enter_context(status.count(f"compiling the server for {target}", "files"))

        def progress(done: int, of: int) -> None:
            advance(done, of)
            if done == of:
                stages.enter_context(status.expect(f"linking the server for {target}{slow}", 0))

        made = board.build_server(target, output, files, ndk, progress=progress, vm="vm" in linked)
    facts = {"path": str(made), "target": target, "nbytes": made.stat().st_size}
    if json_to is not None:
        print_json(facts, json_to)
    else:
        print_line(f"made {output}, {format_size(made.stat().st_size)}, for {target}")


command = Group("board", examples=EXAMPLES, summaries={build: "Compile the server without Python for a board."})
