# SPDX-License-Identifier: Apache-2.0
"""Modules."""

from portcall._module import Module, system_lib
from portcall.tvm_ffi._load import load_module

__all__ = ["Module", "load_module", "system_lib"]
