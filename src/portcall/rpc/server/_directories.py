# SPDX-License-Identifier: Apache-2.0
"""Delete and count directories that a stranger filled: of any depth, with any rights and any number of files.

Folders are opened one from the other, links are not followed, and nothing recurses: a path may be longer than the
system takes, and a tree deeper than Python's stack. Also a program: see ``main``, and ``_directory_process`` for its
other side. It imports the standard library alone, so that it starts at once and is small.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import queue

MOST_DEPTH = 256  # folders that lie deeper than this count as too much: no honest session has them
DELETING_THREADS = 3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_Order = dict[str, str | int]


def delete_tree(directory: str) -> None:
    """Delete a directory and all that is in it; what cannot be deleted stays, without an error.

    Folders inside of folders are moved up to the top and deleted there, so the depth costs neither stack nor
    descriptors.
    """
    prefix, number = os.urandom(8).hex(), 0
    with contextlib.suppress(OSError), _opened(directory) as top:
        progress = True
        while progress:
            progress = False
            for name in os.listdir(top):
                if _unlink(name, top):
                    progress = True
                    continue
                with contextlib.suppress(OSError), _opened(name, top) as folder:
                    for inner in os.listdir(folder):
                        if not _unlink(inner, folder):
                            number += 1
                            _move(inner, folder, f"{prefix}-{number}", top)
                        progress = True
                    os.rmdir(name, dir_fd=top)
                    progress = True
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def disk_usage(directory: str, enough: int) -> int:
    """Return the bytes that a directory's files take; counting ends once it is more than ``enough``.

    Each name takes 512 bytes at least, and a file with several names its blocks once. Folders deeper than
    ``MOST_DEPTH`` are more than enough.
    """
    total = 0
    seen: set[tuple[int, int]] = set()
    open_folders: list[tuple[int, list[str]]] = []  # from the top down: descriptor, folders in it that are left
    try:
        with contextlib.suppress(OSError):
            open_folders.append((_open_folder(directory), []))
            total += _count(*open_folders[0], enough, seen)
        while open_folders and total <= enough:
            folder, left = open_folders[-1]
            if not left:
                os.close(open_folders.pop()[0])
            elif len(open_folders) >= MOST_DEPTH:
                return enough + 1
            else:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it was there a moment ago
                    open_folders.append((_open_folder(left.pop(), folder), []))
                    total += _count(*open_folders[-1], enough - total, seen)
    finally:
        for folder, _ in open_folders:
            os.close(folder)
    return total


def _count(folder: int, folders: list[str], enough: int, seen: set[tuple[int, int]]) -> int:
    """Return the bytes of what lies in an open folder; the names of the folders in it are appended to ``folders``."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            is_folder = stat.S_ISDIR(facts.st_mode)
            known = not is_folder and facts.st_nlink > 1 and (facts.st_dev, facts.st_ino) in seen
            total += max(0 if known else facts.st_blocks * 512, 512)
            if is_folder:
                folders.append(entry.name)
            elif facts.st_nlink > 1:
                seen.add((facts.st_dev, facts.st_ino))
            if total > enough:
                break
    return total


def _open_folder(name: str, parent: int | None = None) -> int:
    """Open a folder for reading, and give its owner all rights where they were taken away."""
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        _give_rights(name, parent)
        return os.open(name, _FOLDER, dir_fd=parent)


@contextlib.contextmanager
def _opened(name: str, parent: int | None = None) -> Iterator[int]:
    """Open a folder that is to be emptied."""
    folder = _open_folder(name, parent)
    try:
        if os.fstat(folder).st_mode & 0o700 != 0o700:
            os.fchmod(folder, 0o700)
        yield folder
    finally:
        os.close(folder)


def _give_rights(name: str, parent: int | None) -> None:
    folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{folder}", 0o700)
    finally:
        os.close(folder)


def _unlink(name: str, parent: int) -> bool:
    """Delete what is not a folder; return whether it is gone."""
    try:
        os.unlink(name, dir_fd=parent)
    except OSError:
        return False
    return True


def _move(name: str, parent: int, new_name: str, new_parent: int) -> None:
    try:
        os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=new_parent)
    except PermissionError:  # a folder that is moved is written to: it notes where it lies
        _give_rights(name, parent)
        os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=new_parent)


# ---- The process ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Carry out orders until no more can come, and then what is left of them.

    The only argument is the descriptor of a socket. Orders are ``DIRECTORY_ORDERS``, reports ``DIRECTORY_REPORTS`` in
    ``_messages``, one a packet.
    """
    import queue  # here: the process that sessions are forked from has use for delete_tree alone
    import threading

    for number in (signal.SIGINT, signal.SIGTERM):  # they stop the server, and its end is ours
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    link = socket.socket(fileno=int(sys.argv[1]))
    deletions: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
    counts: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
    queues = [counts, *[deletions] * DELETING_THREADS]
    threads = [threading.Thread(target=_work, args=(link, orders)) for orders in queues]
    for thread in threads:
        thread.start()
    while data := link.recv(1 << 16):
        order = json.loads(data)
        (counts if order["message"] == "CountDirectory" else deletions).put(order)
    for orders in queues:
        orders.put(None)
    for thread in threads:
        thread.join()


def _work(link: socket.socket, orders: queue.SimpleQueue[_Order | None]) -> None:
    while (order := orders.get()) is not None:
        directory = str(order["directory"])
        report: _Order = {"message": "DirectoryDeleted", "directory": directory}
        if order["message"] == "CountDirectory":
            nbytes = disk_usage(directory, int(order["enough"]))
            report = {"message": "DirectoryCounted", "directory": directory, "nbytes": nbytes}
        else:
            delete_tree(directory)
        with contextlib.suppress(OSError):  # the supervisor has gone
            link.send(json.dumps(report).encode())


if __name__ == "__main__":
    main()
