# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, binding=True, boundscheck=False, wraparound=False, initializedcheck=False
"""The binding: convert, own, raise. It decides nothing.

Rules:
  * Python values become cells, cells become Python values; every class here owns one handle of the core.
  * The core is called through one table (PortcallGetCore): other runtimes in the process export the same names.
  * A call builds its arguments on the stack. The GIL is released around it, unless the function was
    registered as short; functions written in Python are, because they would take the GIL again at once.
  * An exception of a Python function travels inside the error object and comes out as the same object.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strlen

include "_core/declarations.pxi"

from collections.abc import Mapping
from contextlib import ContextDecorator
from ctypes import c_void_p

from portcall import errors

cdef dict later = {}  # what upper layers do for objects, by name: they are loaded when it is called


def provide(**functions):
    """Set functions of upper layers that this one calls: ``await_call``, ``class_of_type``, ``deep_copy``,
    ``map_calls``, ``name_lost``, ``reduce``, ``remote_caller``, ``remote_signature`` and ``start_call``."""
    later.update(functions)


cdef const PortcallCore* core = PortcallGetCore()

__version__ = (<bytes>core.version).decode()

cdef enum:
    kNumpyContiguous = 0x0001
    kNumpyWriteable = 0x0400
    kAlignment = 64
    kMaxSpareBytes = 64 << 20
    kNumNumpyTypes = 24
    kSmallCopy = 1 << 18
    kMaxExchangeTypes = 1000
    kMaxNesting = 1000
    kMaxDimensions = 64
    kNumpyUserTypes = 256


include "_core/numbers.pxi"
include "_core/objects.pxi"
include "_core/bytes.pxi"
include "_core/described_types.pxi"
include "_core/values.pxi"
include "_core/arguments.pxi"
include "_core/numpy.pxi"
include "_core/alignment.pxi"
include "_core/dlpack.pxi"
include "_core/containers.pxi"
include "_core/results.pxi"
include "_core/functions.pxi"
include "_core/errors.pxi"
include "_core/tensors.pxi"

packed_func_type = <PyTypeObject*>PackedFunc
cdef PackedFunc sample = make_function(len, "")
EnableVectorcall(<PyTypeObject*>PackedFunc, <char*>&sample.vectorcall - <char*><PyObject*>sample)
sample = None
