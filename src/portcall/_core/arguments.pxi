# SPDX-License-Identifier: Apache-2.0
# Python values to cells: the frequent types first, then the rest, then a refusal that names the argument.

cdef PyTypeObject* tensor_type = NULL
cdef PyTypeObject* packed_func_type = NULL
cdef PyTypeObject* shape_type = NULL


cdef inline void set_cell(TVMFFIAny* cell, int32_t type_index) noexcept nogil:
    cell.type_index = type_index
    cell.zero_padding = 0
    cell.v_int64 = 0


cdef str place_of(Frame* frame, int i):
    """Which argument it is, "f(): argument #0: ", or which item of a container; empty for a value."""
    if frame == NULL:
        return ""
    name = (<PackedFunc>frame.func).name if frame.func != NULL else ""
    return f"{name}(): argument #{i}: " if name else f"argument #{i}: " if frame.func != NULL else f"item {i}: "


cdef object argument_error(Frame* frame, int i, expected, got, advice=""):
    """The error for argument ``i`` of a call, or for an item of a container; without a frame, for a value."""
    text = f"{place_of(frame, i)}expected {expected}, got {got}{'; ' + advice if advice else ''}"
    if frame == NULL:
        return errors.ArgumentError(text, expected=expected, got=got)
    name = (<PackedFunc>frame.func).name if frame.func != NULL else ""
    return errors.ArgumentError(text, function=name, position=i, expected=expected, got=got)


cdef inline int borrow(Frame* frame, int i, Object obj) except -1:
    """Pass an object that the caller holds until the call is over."""
    cdef TVMFFIAny* cell = &frame.cells[i]
    if obj.handle == NULL:
        raise argument_error(frame, i, "an object", f"a {type(obj).__name__} that is not initialised")
    set_cell(cell, (<TVMFFIObject*>obj.handle).type_index)
    cell.v_ptr = obj.handle
    return 0


cdef inline int own(Frame* frame, int i, void* handle) except -1:
    """Pass an object in cell ``i``, which holds it until the call is over."""
    cdef TVMFFIAny* cell = &frame.cells[i]
    set_cell(cell, (<TVMFFIObject*>handle).type_index)
    cell.v_ptr = handle
    frame.held[frame.num_held] = handle
    frame.num_held += 1
    return 0


cdef int own_cell(Frame* frame, int i, int status) except -1:
    """The same for a cell that the core has just filled."""
    if status != 0:
        raise_raised(None)
    if frame.cells[i].type_index >= kTVMFFIStaticObjectBegin:
        frame.held[frame.num_held] = frame.cells[i].v_ptr
        frame.num_held += 1
    return 0


cdef inline int set_argument(Frame* frame, int i, PyObject* arg) except -1:
    """Write a Python value into cell ``i``: the frequent types here, the rest in ``set_other``."""
    cdef TVMFFIAny* cell = &frame.cells[i]
    cdef PyTypeObject* kind = Py_TYPE(arg)
    cdef int overflow
    cell.zero_padding = 0
    if kind == &PyLong_Type:
        cell.type_index = kTVMFFIInt
        cell.v_int64 = PyLong_AsLongLongAndOverflow(arg, &overflow)
        return set_wide_integer(frame, i, <object>arg) if unlikely(overflow) else 0
    if kind == &PyFloat_Type:
        cell.type_index = kTVMFFIFloat
        cell.v_float64 = PyFloat_AS_DOUBLE(arg)
        return 0
    if kind == &PyUnicode_Type:
        return set_text(frame, i, arg)
    if kind == ndarray_type:
        return set_ndarray(frame, i, arg)
    if kind == tensor_type:
        return set_tensor(frame, i, <Tensor>arg, False)
    if kind == packed_func_type:
        return borrow(frame, i, <Object>arg)
    if kind == &PyBool_Type:
        cell.type_index = kTVMFFIBool
        cell.v_int64 = arg == Py_True
        return 0
    if arg == Py_None:
        cell.type_index = kTVMFFINone
        cell.v_int64 = 0
        return 0
    return set_other(frame, i, <object>arg)


cdef inline int set_text(Frame* frame, int i, PyObject* arg) except -1:
    cdef TVMFFIAny* cell = &frame.cells[i]
    cdef Py_ssize_t size
    cdef TVMFFIByteArray view
    cdef const char* data = PyUnicode_AsUTF8AndSize(arg, &size)
    if unlikely(data == NULL):
        PyErr_Clear()
        return set_copied_text(frame, i, <object>arg)
    if size <= 7:
        cell.type_index = kTVMFFISmallStr
        cell.small_str_len = <uint32_t>size
        cell.v_int64 = 0
        memcpy(cell.v_bytes, data, size)
    elif strlen(data) == <size_t>size:
        cell.type_index = kTVMFFIRawStr  # the string keeps these bytes, and the caller the string
        cell.v_c_str = data
    else:
        view.data = data
        view.size = <size_t>size
        return own_cell(frame, i, core.string_from_byte_array(&view, cell))
    return 0


cdef int set_copied_text(Frame* frame, int i, text) except -1:
    """Pass text as a copy. Bytes that are not UTF-8 are surrogates in a str, and are passed unchanged."""
    cdef TVMFFIByteArray view
    try:
        data = str.encode(text, "utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise argument_error(frame, i, "a str that UTF-8 can encode", f"half a surrogate pair at {error.start}") from None
    view.data = PyBytes_AS_STRING(data)
    view.size = <size_t>PyBytes_GET_SIZE(data)
    return own_cell(frame, i, core.string_from_byte_array(&view, &frame.cells[i]))


cdef int set_byte_string(Frame* frame, int i, bytes data) except -1:
    cdef TVMFFIByteArray view
    view.data = PyBytes_AS_STRING(data)
    view.size = <size_t>PyBytes_GET_SIZE(data)
    if view.size >= kLentBytes:
        return own(frame, i, lend_bytes(data))
    return own_cell(frame, i, core.bytes_from_byte_array(&view, &frame.cells[i]))


cdef int set_wide_integer(Frame* frame, int i, value) except -1:
    words = value.bit_length() // 64 + 1
    data = value.to_bytes(words * 8, "little", signed=True)
    cdef TVMFFIByteArray view
    view.data = PyBytes_AS_STRING(data)
    view.size = len(data)
    return own_cell(frame, i, core.big_int_from_byte_array(&view, &frame.cells[i]))


cdef int hold(Frame* frame, int i, Object obj) except -1:
    """Pass an object that was made for this call."""
    core.object_inc_ref(obj.handle)
    return own(frame, i, obj.handle)


cdef int set_other(Frame* frame, int i, arg) except -1:
    """Write a value of a less frequent type, or refuse it."""
    cdef TVMFFIAny* cell = &frame.cells[i]
    cdef object plain
    cdef PyTypeObject* kind = Py_TYPE(<PyObject*>arg)
    if kind == last_exchange_type:
        return set_exchanged(frame, i, arg, last_exchange)
    if kind == shape_type:
        return own(frame, i, make_shape(arg))
    if kind == &PyFunction_Type or kind == &PyMethod_Type or kind == &PyCFunction_Type:
        return own(frame, i, function_handle(arg, PlainName(<PyObject*>arg)))
    if kind == &PyList_Type or kind == &PyTuple_Type:
        return own(frame, i, container_of(arg, frame, i, make_array))
    if kind == &PyDict_Type:
        return own(frame, i, container_of(arg, frame, i, make_map))
    if kind == &PyBytes_Type:
        return set_byte_string(frame, i, <bytes>arg)
    if numpy_integer != NULL:  # their item() takes fifteen times as long
        if PyType_IsSubtype(kind, numpy_integer) and PyIndex_Check(arg):
            plain = PyNumber_Index(arg)
            return set_argument(frame, i, <PyObject*>plain)
        if PyType_IsSubtype(kind, numpy_floating):
            cell.type_index = kTVMFFIFloat
            cell.v_float64 = arg
            return 0
        if kind == numpy_bool:
            cell.type_index = kTVMFFIBool
            cell.v_int64 = bool(arg)
            return 0
    if isinstance(arg, Tensor):
        return set_tensor(frame, i, <Tensor>arg, False)
    exchange = exchange_of(arg)
    if exchange is not None:
        return set_exchanged(frame, i, arg, exchange)
    if isinstance(arg, Object):
        return borrow(frame, i, <Object>arg)
    if isinstance(arg, ReadOnly):
        value = as_tensor(frame, i, (<ReadOnly>arg).value)
        if value is None:
            raise argument_error(frame, i, "an array inside portcall.ReadOnly", type((<ReadOnly>arg).value).__name__)
        if not frame.flags & kPortcallFunctionLibrary:  # there is no argument's type to say so; the tensor does
            value = read_only_view(<Tensor>value)
        return set_made_tensor(frame, i, value, True)
    if isinstance(arg, DataType):
        set_cell(cell, kTVMFFIDataType)
        cell.v_dtype = (<DataType>arg).value
        return 0
    if isinstance(arg, Device):
        if (<Device>arg).stand_in is not None:
            borrow(frame, i, (<Device>arg).stand_in)
            return 0
        set_cell(cell, kTVMFFIDevice)
        cell.v_device = (<Device>arg).value
        return 0
    if isinstance(arg, int):
        plain = int(arg)
        return set_argument(frame, i, <PyObject*>plain)
    if isinstance(arg, float):
        plain = float(arg)
        return set_argument(frame, i, <PyObject*>plain)
    if isinstance(arg, str):
        return set_copied_text(frame, i, arg)
    if isinstance(arg, (bytes, bytearray, memoryview)):
        return set_byte_string(frame, i, bytes(arg))
    return set_rest(frame, i, arg)


cdef dict boxers = {}  # a user's type -> makes the object that its values travel as


def register_boxer(kind, box):
    """Have values of a Python type travel as the objects that ``box`` makes of them."""
    boxers[kind] = box


cdef object boxer_of(arg):
    for kind in type(arg).__mro__:
        boxer = boxers.get(kind)
        if boxer is not None:
            return boxer
    return None


cdef int set_stand_in(Frame* frame, int i, value) except -1:
    """Pass what a value says to pass in its place, and keep it for the call."""
    cdef TVMFFIAny given
    tensor = as_tensor(frame, i, value)
    if tensor is not None:
        return set_made_tensor(frame, i, tensor, False)
    set_argument(frame, i, <PyObject*>value)
    given = frame.cells[i]
    return own_cell(frame, i, core.any_view_to_owned(&given, &frame.cells[i]))


cdef object stand_in_of(arg):
    """What a value of a user's class, by the protocols of tvm-ffi and CUDA, says to pass in its place; or itself."""
    kind = type(arg)
    if hasattr(kind, "__tvm_ffi_object__"):
        return arg.__tvm_ffi_object__()
    if hasattr(kind, "__tvm_ffi_value__"):
        return arg.__tvm_ffi_value__()
    if hasattr(kind, "__tvm_ffi_int__"):
        return int(arg.__tvm_ffi_int__())
    if hasattr(kind, "__tvm_ffi_float__"):
        return float(arg.__tvm_ffi_float__())
    if hasattr(kind, "__tvm_ffi_opaque_ptr__"):
        return c_void_p(arg.__tvm_ffi_opaque_ptr__())
    if hasattr(kind, "__cuda_stream__"):
        return c_void_p(arg.__cuda_stream__()[1])
    if hasattr(kind, "__dlpack_data_type__"):
        code, bits, lanes = arg.__dlpack_data_type__()
        return classes[kTVMFFIDataType](code=code, bits=bits, lanes=lanes)
    if hasattr(kind, "__dlpack_device__") and not hasattr(kind, "__dlpack__"):
        return classes[kTVMFFIDevice](*arg.__dlpack_device__())
    return arg


cdef int set_rest(Frame* frame, int i, arg) except -1:
    cdef void* handle
    if boxers:
        boxer = boxer_of(arg)
        if boxer is not None:
            return hold(frame, i, <Object>boxer(arg))
    stand_in = stand_in_of(arg)
    if stand_in is not arg:
        return set_stand_in(frame, i, stand_in)
    shape_class = classes[kTVMFFIShape]
    if isinstance(arg, shape_class):
        return own(frame, i, make_shape(arg))
    tensor = as_tensor(frame, i, arg)
    if tensor is not None:
        return set_made_tensor(frame, i, tensor, False)
    if is_numpy_scalar(arg):
        item = python_scalar(arg)
        return set_argument(frame, i, <PyObject*>item)
    if isinstance(arg, (list, tuple)):
        return own(frame, i, container_of(arg, frame, i, make_array))
    if isinstance(arg, Mapping):
        return own(frame, i, container_of(arg, frame, i, make_map))
    if isinstance(arg, BaseException):
        return own(frame, i, make_error(arg))
    if isinstance(arg, c_void_p):
        set_cell(&frame.cells[i], kTVMFFIOpaquePtr)
        frame.cells[i].v_ptr = <void*><uintptr_t>(arg.value or 0)
        return 0
    if callable(arg) and not isinstance(arg, ContextDecorator):  # what @contextmanager makes is there for `with`
        return hold(frame, i, make_function(arg, getattr(arg, "__name__", "")))
    if hasattr(arg, "__index__"):
        index = arg.__index__()
        return set_argument(frame, i, <PyObject*>index)
    if dtype_reader is not None:
        try:
            dtype = dtype_reader(arg)
        except ValueError as error:
            raise argument_error(frame, i, "an element type that tensors can have", f"{arg!r}", str(error)) from None
        if dtype is not None:
            return set_argument(frame, i, <PyObject*>dtype)
    if frame.flags & kPortcallFunctionLibrary:
        raise argument_error(frame, i, "a number, str, bytes, tensor, function or container", kind_of(arg), in_place_of(arg))
    if core.object_create_opaque(<void*>arg, kTVMFFIOpaquePyObject, release_python, &handle) != 0:
        raise_raised(None)
    Py_INCREF(arg)
    return own(frame, i, handle)


cdef str kind_of(arg):
    """The name of a value's type, with its package where that may be mistaken for portcall's."""
    kind = type(arg)
    package = getattr(kind, "__module__", None) or "builtins"
    known = package in ("builtins", "__main__") or package.partition(".")[0] == "portcall"
    return kind.__name__ if known else f"{package}.{kind.__name__}"


cdef str in_place_of(arg):
    """What to pass to compiled code in place of a value that it cannot take."""
    if type(arg).__name__ == "Device":
        return "pass portcall.device(str(d))"
    if isinstance(arg, complex):
        return "pass a.real and a.imag, or a tensor"
    if hasattr(arg, "__fspath__"):
        return "pass str(a)"
    if hasattr(arg, "__iter__") and hasattr(arg, "__len__"):
        return "pass list(a)"
    return "pass what it consists of, or [a] to code that hands it on and does not look inside"


cdef object dtype_reader = None


def register_dtype_reader(reader):
    """Have element types of other packages travel as the DataType that ``reader`` returns; None for other values."""
    global dtype_reader
    dtype_reader = reader


cdef object as_tensor(Frame* frame, int i, arg):
    """A tensor over the memory of any array object; None when this is not one."""
    if ndarray_type == NULL:
        learn_numpy(arg)
    if isinstance(arg, Tensor):
        return arg
    if ndarray_type != NULL:
        if isinstance(arg, <object>ndarray_type):
            return tensor_from_ndarray(frame, i, arg)
        if isinstance(arg, numpy_generic):
            return None
    if isinstance(arg, type):
        return None
    if hasattr(arg, "__dlpack__"):
        try:
            return from_dlpack(arg)
        except Exception as error:
            raise not_shared(frame, i, arg, error) from None
    if hasattr(arg, "__array_interface__"):
        import numpy
        learn_numpy(arg)
        return tensor_from_ndarray(frame, i, numpy.asarray(arg))
    return None
