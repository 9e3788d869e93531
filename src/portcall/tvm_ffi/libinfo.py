# SPDX-License-Identifier: Apache-2.0
"""Libraries that packages ship, found by the name of the package and of the library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata, util
from pathlib import Path

from portcall._module import Module
from portcall.errors import ModuleLoadError
from portcall.tvm_ffi._load import load_module

__all__ = ["load_lib_module"]


def load_lib_module(
    package: str, target_name: str, keep_module_alive: bool = True, extra_lib_paths: Sequence[Path] | None = None
) -> Module:
    """Load ``lib<target_name>.so`` of an installed package, on portcall's runtime.

    Parameters:
        extra_lib_paths: folders to look into, after the files that the package's metadata lists.

    Raises:
        ModuleLoadError: there is no such file, or it cannot be loaded.
    """
    name = f"lib{target_name}.so"
    for path in _candidates(package, name, extra_lib_paths or ()):
        if path.is_file():
            return load_module(path, keep_module_alive)
    raise ModuleLoadError(f"package '{package}' has no file '{name}'", path=name)


def _candidates(package: str, name: str, folders: Sequence[Path]) -> Iterator[Path]:
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())) for file in files if file.name == name)
    yield from (folder / name for folder in folders)
    spec = util.find_spec(package) if package.isidentifier() else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from (Path(folder, name), Path(folder, "lib", name))
