# SPDX-License-Identifier: Apache-2.0
"""The devices of this machine or of a server, for ``portcall doctor``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from portcall import Device, device, get_global_func
from portcall.bench import format_size
from portcall.errors import CompileError, PortcallError

KINDS = (
    "cpu", "cuda", "rocm", "opencl", "vulkan", "metal", "webgpu", "oneapi", "hexagon", "maia", "trn", "ext_dev",
)  # fmt: skip
WITH_PLUGINS = ("cuda", "opencl")  # plug-ins that come with portcall: they say what is missing


@dataclass(frozen=True)
class DeviceFacts:
    """A device; None where it does not say.

    Attributes:
        memory: bytes in all, and ``free`` of them.
        units: cores, compute units or multiprocessors.
    """

    name: str
    product: str | None
    driver: str | None
    memory: int | None
    free: int | None
    units: int | None
    generation: str | None

    def __str__(self) -> str:
        words = [self.product or ""]
        if self.generation:
            words.append(f"compute capability {self.generation}")
        if self.memory:
            words.append(format_size(self.memory) + (f" ({format_size(self.free)} free)" if self.free else ""))
        if self.units:
            words.append(f"{self.units} compute unit{'s' if self.units > 1 else ''}")
        if self.driver:
            words.append(f"driver {self.driver}")
        return ", ".join(word for word in words if word)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def find_devices(make: Callable[[str, int], Device]) -> Iterator[DeviceFacts]:
    """Yield every device of each kind; ``make`` returns that of a kind and an index."""
    for kind in KINDS:
        index = 0
        while (device := make(kind, index)).exist:
            yield facts_of(f"{kind}:{index}", device)
            index += 1


def facts_of(name: str, device: Device) -> DeviceFacts:
    def ask(attribute: str) -> Any:
        try:
            return getattr(device, attribute)
        except PortcallError:  # servers of others do not know all of them
            return None

    return DeviceFacts(
        name, ask("device_name"), ask("driver_version"), ask("total_global_memory"), ask("available_global_memory"),
        ask("multi_processor_count"), ask("compute_version"),
    )  # fmt: skip


def cuda_compiler() -> tuple[str, str]:
    """Return the version of NVRTC, which modules with CUDA source need; or "" and what to install."""
    try:
        return get_global_func("portcall.CudaCompilerVersion")(), ""
    except CompileError as error:
        return "", str(error)


def reasons(found: list[DeviceFacts]) -> dict[str, str]:
    """Return why there is no device of a kind, by kind, with the package to install.

    It is for the kinds that portcall has a plug-in for, and those that ``PORTCALL_DEVICES`` names.
    """
    said = {}
    named = [item.partition("=")[0] for item in os.environ.get("PORTCALL_DEVICES", "").split(":") if "=" in item]
    for kind in dict.fromkeys((*WITH_PLUGINS, *(kind for kind in named if kind in KINDS))):
        if not any(facts.name.startswith(f"{kind}:") for facts in found):
            try:
                _ = device(kind).device_name
            except PortcallError as error:
                said[kind] = str(error)
    return said
