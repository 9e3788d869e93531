# SPDX-License-Identifier: Apache-2.0
# Values that are not objects: DataType, Device; and ReadOnly, which marks an argument that is only read.

cdef class DataType:
    """Base of portcall.DataType: an element type of tensors."""

    cdef DLDataType value

    def __init__(self, text="void", *, code=None, bits=None, lanes=1):
        cdef TVMFFIByteArray view
        if code is not None:
            self.value = DLDataType(code=code, bits=bits, lanes=lanes)
            return
        data = str(text).encode()
        view.data = PyBytes_AS_STRING(data)
        view.size = len(data)
        if core.data_type_from_string(&view, &self.value) != 0:
            raise_raised(None)

    @property
    def code(self) -> int:
        return self.value.code

    @property
    def bits(self) -> int:
        return self.value.bits

    @property
    def lanes(self) -> int:
        return self.value.lanes

    def __str__(self):
        cdef TVMFFIAny text
        if core.data_type_to_string(&self.value, &text) != 0:
            raise_raised(None)
        return take_value(&text) or "void"  # void has no name in the ABI

    def __eq__(self, other):
        if isinstance(other, DataType):
            return memcmp_dtype(self.value, (<DataType>other).value)
        return str(self) == other if isinstance(other, str) else NotImplemented

    def __ne__(self, other):
        return differs(self, other)

    def __hash__(self):
        return hash(str(self))


cdef bint memcmp_dtype(DLDataType a, DLDataType b):
    return a.code == b.code and a.bits == b.bits and a.lanes == b.lanes


cdef class Device:
    """Base of portcall.Device: a kind and an index. One that is not of this process is passed as ``stand_in``."""

    cdef DLDevice value
    cdef Object stand_in

    def __init__(self, int32_t device_type, int32_t device_id=0, Object stand_in=None):
        self.value = DLDevice(device_type=device_type, device_id=device_id)
        self.stand_in = stand_in

    @property
    def device_type(self) -> int:
        return self.value.device_type

    @property
    def device_id(self) -> int:
        return self.value.device_id

    def __eq__(self, other):
        if not isinstance(other, Device):
            return NotImplemented
        cdef DLDevice a = self.value, b = (<Device>other).value
        return a.device_type == b.device_type and a.device_id == b.device_id

    def __ne__(self, other):
        return differs(self, other)

    def __hash__(self):
        return hash((self.value.device_type, self.value.device_id))

    def __reduce__(self):
        return type(self), (self.value.device_type, self.value.device_id)


cdef class ReadOnly:
    """Marks an array argument of a call as only read: ``lib["sum"](portcall.ReadOnly(a), out)``.

    Compiled code does not declare which arguments it writes to. So read-only arrays are refused, and a copy that had to
    be made is copied back, unless the argument is marked.
    """

    cdef readonly object value

    def __init__(self, value):
        self.value = value
