# SPDX-License-Identifier: Apache-2.0
# Arrays of NumPy, by the layout of its C API: NumPy is neither needed to build nor imported here.

cdef PyTypeObject* ndarray_type = NULL
cdef DLDataType numpy_types[kNumNumpyTypes]
cdef dict numpy_extra_types = {}  # dtype -> DataType, for types that NumPy does not define itself


cdef void fill_numpy_types():
    # NumPy's numbers of its own types, which are part of its ABI.
    memset(numpy_types, 0, sizeof(numpy_types))
    for number, code, bits in [
        (0, 6, 8), (1, 0, 8), (2, 1, 8), (3, 0, 16), (4, 1, 16), (5, 0, 32), (6, 1, 32),
        (7, 0, 8 * sizeof(long)), (8, 1, 8 * sizeof(long)), (9, 0, 64), (10, 1, 64),
        (11, 2, 32), (12, 2, 64), (14, 5, 64), (15, 5, 128), (23, 2, 16),
    ]:
        numpy_types[number] = DLDataType(code=code, bits=bits, lanes=1)


fill_numpy_types()


cdef int describe_ndarray(Frame* frame, int i, PyObject* arg, DLTensor* tensor) except -1:
    """Describe an array's memory; shape is NumPy's own, strides are left to the caller."""
    cdef NumpyArray* array = <NumpyArray*>arg
    cdef int number = array.descr.type_num
    if unlikely(number < 0 or number >= kNumNumpyTypes or numpy_types[number].bits == 0):
        tensor.dtype = other_numpy_type(frame, i, <object>arg)
    else:
        tensor.dtype = numpy_types[number]
    if unlikely(array.descr.byteorder == c">"):
        raise argument_error(frame, i, "an array with its bytes in this machine's order", f"dtype {(<object>arg).dtype}",
                             "convert it with a.astype(a.dtype.newbyteorder('='))")
    tensor.data = array.data
    tensor.device.device_type = kDLCPU
    tensor.device.device_id = 0
    tensor.ndim = array.nd
    tensor.shape = <int64_t*>array.dimensions
    tensor.strides = NULL
    tensor.byte_offset = 0
    return 0


cdef DLDataType other_numpy_type(Frame* frame, int i, array) except *:
    """The data type of an array whose element type another package defines (ml_dtypes), by its name."""
    found = numpy_extra_types.get(array.dtype)
    if found is None:
        found = data_type_named(array.dtype) if array.dtype.num >= kNumpyUserTypes else None
        if found is None:
            raise argument_error(frame, i, "an array of numbers that tensors can hold", f"dtype {array.dtype}")
        numpy_extra_types[array.dtype] = found
    return (<DataType>found).value


cdef object data_type_named(numpy_dtype):
    """None where there is none, or where tensors keep such elements otherwise: several to a byte."""
    try:
        found = DataType(numpy_dtype.name)
    except ValueError:
        return None
    return found if found.bits == 8 * numpy_dtype.itemsize else None


cdef inline int set_ndarray(Frame* frame, int i, PyObject* arg) except -1:
    cdef NumpyArray* array = <NumpyArray*>arg
    cdef DLTensor* tensor
    cdef void* handle
    if unlikely(frame.flags & kPortcallFunctionLibrary and not (
            array.flags & kNumpyContiguous and array.flags & kNumpyWriteable
            and <uintptr_t>array.data % kAlignment == 0)):
        if (not frame.flags & kPortcallFunctionGenerated or frame.tensors == NULL or not copies_allowed
                or not array.flags & kNumpyContiguous or not array.flags & kNumpyWriteable):
            return set_made_tensor(frame, i, tensor_from_ndarray(frame, i, <object>arg), False)
        return set_aligned_copy(frame, i, arg)
    if frame.flags & kPortcallFunctionGenerated and frame.tensors != NULL:
        tensor = &frame.tensors[i]
        describe_ndarray(frame, i, arg, tensor)
        frame.cells[i].type_index = kTVMFFIDLTensorPtr
        frame.cells[i].v_ptr = tensor
        return 0
    memory_of_ndarray(frame, i, arg, &handle)
    return own(frame, i, handle)


cdef int memory_of_ndarray(Frame* frame, int i, PyObject* arg, void** handle) except -1:
    """A tensor object over the array's memory, which it keeps alive."""
    cdef NumpyArray* view = <NumpyArray*>arg
    cdef DLTensor tensor
    cdef int64_t strides[64]
    cdef int64_t item
    cdef int k
    describe_ndarray(frame, i, arg, &tensor)
    if not view.flags & kNumpyContiguous:
        item = tensor.dtype.bits * tensor.dtype.lanes // 8
        for k in range(view.nd):
            if item == 0 or view.strides[k] % item != 0:
                raise argument_error(frame, i, "an array with strides of whole elements", f"strides {(<object>arg).strides}",
                                     "pass np.ascontiguousarray(a)")
            strides[k] = view.strides[k] // item
        tensor.strides = strides
    cdef uint64_t flags = 0 if view.flags & kNumpyWriteable else DLPACK_FLAG_BITMASK_READ_ONLY
    if core.tensor_from_memory(&tensor, flags, arg, release_python, handle) != 0:
        raise_raised(None)
    Py_INCREF(<object>arg)
    return 0


cdef Tensor tensor_from_ndarray(Frame* frame, int i, array):
    cdef void* handle
    memory_of_ndarray(frame, i, <PyObject*>array, &handle)
    return <Tensor>wrap(classes[kTVMFFITensor], handle)


cdef bint is_numpy_scalar(arg):
    return ndarray_type != NULL and isinstance(arg, numpy_generic)


cdef object python_scalar(scalar):
    item = scalar.item()
    if isinstance(item, numpy_generic):  # Python has no number as wide as a long double
        return complex(item) if scalar.dtype.kind == "c" else float(item)
    return item


cdef object numpy_generic = None
cdef PyTypeObject* numpy_integer = NULL
cdef PyTypeObject* numpy_floating = NULL
cdef PyTypeObject* numpy_bool = NULL


cdef bint learn_numpy(arg):
    """Note the array type the first time that one is seen; NumPy is not imported for this."""
    global ndarray_type, numpy_generic, numpy_integer, numpy_floating, numpy_bool
    import sys
    numpy = sys.modules.get("numpy")
    if ndarray_type != NULL or numpy is None:
        return False
    ndarray_type = <PyTypeObject*>numpy.ndarray
    numpy_generic = numpy.generic
    numpy_integer = <PyTypeObject*>numpy.integer
    numpy_floating = <PyTypeObject*>numpy.floating
    numpy_bool = <PyTypeObject*>numpy.bool_
    return True
