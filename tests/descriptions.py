# SPDX-License-Identifier: Apache-2.0
"""DLPack's description of a tensor, for tests that hand one to compiled code or get one from it."""

from __future__ import annotations

import ctypes


class DLTensor(ctypes.Structure):
    """A description of a tensor, which compiled code accepts as a pointer: any field can be made wrong."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )
