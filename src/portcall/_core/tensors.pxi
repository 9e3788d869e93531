# SPDX-License-Identifier: Apache-2.0
# Tensors: a description, memory and its owner.

cdef class Tensor(Object):
    """Base of portcall.Tensor: shared memory with a shape."""

    cdef const DLTensor* dl(self) except NULL:
        if self.handle == NULL:
            raise ValueError("the tensor is not initialised: use portcall.empty or portcall.tensor")
        cdef const DLTensor* dl = <const DLTensor*>(<char*>self.handle + sizeof(TVMFFIObject))
        if dl.data == NULL and num_elements(dl) > 0:
            raise ValueError(
                "this tensor was lent to a function for one call, which has ended; copy it inside the function to keep it")
        return dl

    @property
    def shape(self) -> tuple:
        cdef const DLTensor* dl = self.dl()
        return tuple([dl.shape[k] for k in range(dl.ndim)])

    @property
    def strides(self) -> tuple:
        """Distances between neighbours along each axis, in elements."""
        cdef const DLTensor* dl = self.dl()
        return tuple([dl.strides[k] for k in range(dl.ndim)])

    @property
    def ndim(self) -> int:
        return self.dl().ndim

    @property
    def dtype(self):
        dtype = classes[kTVMFFIDataType]()
        (<DataType>dtype).value = self.dl().dtype
        return dtype

    @property
    def device(self):
        cdef DLDevice device = self.dl().device
        return classes[kTVMFFIDevice](device.device_type, device.device_id)

    @property
    def size(self) -> int:
        """Number of elements."""
        return num_elements(self.dl())

    @property
    def nbytes(self) -> int:
        cdef DLDataType dtype = self.dl().dtype
        return (self.size * dtype.bits * dtype.lanes + 7) // 8

    @property
    def data_ptr(self) -> int:
        """Address of the first element."""
        cdef const DLTensor* dl = self.dl()
        return <uintptr_t>dl.data + dl.byte_offset

    @property
    def is_contiguous(self) -> bool:
        return is_compact(self.dl())

    @property
    def readonly(self) -> bool:
        self.dl()
        return bool(core.tensor_get_flags(self.handle) & DLPACK_FLAG_BITMASK_READ_ONLY)

    def _part(self, tuple shape, strides, DataType dtype not None, uint64_t byte_offset):
        """A view, which the caller has checked to be inside. Without strides it is compact."""
        cdef DLTensor description = self.dl()[0]
        cdef int64_t extents[kMaxDimensions]
        cdef int64_t steps[kMaxDimensions]
        cdef void* handle
        fill_extents(extents, shape)
        description.ndim = <int32_t>len(shape)
        description.shape = extents
        description.strides = NULL
        if strides is not None:
            fill_extents(steps, strides)
            description.strides = steps
        description.dtype = dtype.value
        description.byte_offset += byte_offset
        if core.tensor_create_view(self.handle, &description, &handle) != 0:
            raise_raised(None)
        return wrap(classes[kTVMFFITensor], handle)

    def _copy_from(self, Tensor source):
        copy_tensor(source.dl(), self.dl())

    def _export(self, bint versioned):
        cdef DLManagedTensor* managed
        cdef DLManagedTensorVersioned* managed_versioned
        self.dl()
        if versioned:
            if core.tensor_to_dlpack_versioned(self.handle, &managed_versioned) != 0:
                raise_raised(None)
            return PyCapsule_New(managed_versioned, "dltensor_versioned", delete_versioned_capsule)
        if core.tensor_to_dlpack(self.handle, &managed) != 0:
            raise_raised(None)
        return PyCapsule_New(managed, "dltensor", delete_capsule)


def tensor_over(source):
    """A tensor over the memory of any array object, which it keeps alive.

    Raises:
        ArgumentError: ``source`` is not an array.
    """
    if ndarray_type == NULL:
        learn_numpy(source)
    if is_numpy_scalar(source):  # an array without dimensions here; a number where it is an argument
        import numpy
        source = numpy.asarray(source)
    found = as_tensor(NULL, 0, source)
    if found is None:
        raise errors.ArgumentError(f"expected an array (NumPy, DLPack or array interface), got {type(source).__name__}",
                                   expected="an array", got=type(source).__name__)
    return found


def tensor_over_bytes(buffer):
    """A tensor of bytes over a buffer, which it keeps; read-only where that is."""
    cdef DLTensor description
    cdef int64_t extent
    cdef void* handle
    view = memoryview(buffer).cast("B")
    cdef Py_buffer* raw = PyMemoryView_GET_BUFFER(view)
    extent = raw.len
    memset(&description, 0, sizeof(description))
    description.data = raw.buf
    description.device.device_type = kDLCPU
    description.ndim = 1
    description.shape = &extent
    description.dtype = DLDataType(code=kDLUInt, bits=8, lanes=1)
    if core.tensor_from_memory(&description, DLPACK_FLAG_BITMASK_READ_ONLY if raw.readonly else 0, <void*>view,
                               release_python, &handle) != 0:
        raise_raised(None)
    Py_INCREF(view)
    return wrap(classes[kTVMFFITensor], handle)


def memory_of(Tensor tensor not None):
    """The bytes of a compact tensor on the host as a memoryview, valid as long as the tensor."""
    cdef const DLTensor* dl = tensor.dl()
    if dl.device.device_type != kDLCPU or not tensor.is_contiguous:
        raise ValueError(f"expected a compact tensor on the host, got one on {tensor.device}")
    return PyMemoryView_FromMemory(<char*>dl.data + dl.byte_offset, tensor.nbytes,
                                   PyBUF_READ if tensor.readonly else PyBUF_WRITE)


def new_bytes(Py_ssize_t size):
    """Bytes, and a memoryview to fill them through before anybody else sees them; it is valid as long as they are."""
    cdef bytes made = unfilled_bytes(size)
    return made, PyMemoryView_FromMemory(PyBytes_AS_STRING(made), size, PyBUF_WRITE)


cdef int fill_extents(int64_t* out, tuple values) except -1:
    if len(values) > kMaxDimensions:
        raise ValueError(f"a tensor with {len(values)} dimensions; at most {kMaxDimensions} are supported")
    for k, value in enumerate(values):
        try:
            out[k] = value
        except OverflowError:
            raise ValueError(f"the tensor is too large (axis {k} has extent {value})") from None
    return 0


def empty_tensor(tuple shape, DataType dtype not None, Device device not None):
    """Uninitialised memory, 64-byte aligned."""
    cdef DLTensor prototype
    cdef int64_t extents[kMaxDimensions]
    cdef void* handle
    fill_extents(extents, shape)
    memset(&prototype, 0, sizeof(prototype))
    prototype.shape = extents
    prototype.ndim = <int32_t>len(shape)
    prototype.dtype = dtype.value
    prototype.device = device.value
    if core.tensor_alloc(&prototype, &handle) != 0:
        raise_raised(None)
    return wrap(classes[kTVMFFITensor], handle)
