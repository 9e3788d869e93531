# SPDX-License-Identifier: Apache-2.0
"""The classes of values."""

from dataclasses import MISSING

from portcall._container import Shape
from portcall._core import Object
from portcall._core import PackedFunc as Function
from portcall._device import Device
from portcall._dtype import DataType
from portcall._tensor import Tensor

__all__ = ["MISSING", "Bytes", "DataType", "Device", "Function", "Object", "Shape", "String", "Tensor"]

String, Bytes = str, bytes
