# SPDX-License-Identifier: Apache-2.0
# Cells to Python values.

cdef object take_value(TVMFFIAny* cell):
    """A Python value for an owned cell, whose ownership passes to it."""
    cdef int32_t kind = cell.type_index
    if kind == kTVMFFINone:
        return None
    if kind == kTVMFFIInt:
        return cell.v_int64
    if kind == kTVMFFIFloat:
        return cell.v_float64
    if kind == kTVMFFIBool:
        return cell.v_int64 != 0
    if kind == kTVMFFISmallStr:
        return PyUnicode_DecodeUTF8(cell.v_bytes, cell.small_str_len, "surrogateescape")
    if kind >= kTVMFFIStaticObjectBegin:
        return take_object(cell.v_obj, kind)
    return plain_value(cell)


cdef object take_object(TVMFFIObject* obj, int32_t kind):
    cdef TVMFFIByteArray* text
    if kind == kTVMFFIStr or kind == kTVMFFIBytes or kind == kTVMFFIShape or kind == kTVMFFIBigInt:
        try:
            return object_content(obj, kind)
        finally:
            core.object_dec_ref(obj)
    if kind == kTVMFFIOpaquePyObject and is_our_opaque(obj):
        value = opaque_value(obj)
        core.object_dec_ref(obj)
        return value
    if kind == kTVMFFIFunction:
        return wrap_function(obj)
    if kind == kTVMFFIError:
        return take_exception(obj)
    return wrap_object(obj)


cdef object object_content(TVMFFIObject* obj, int32_t kind):
    cdef void* body = <char*>obj + sizeof(TVMFFIObject)
    cdef TVMFFIByteArray* text = <TVMFFIByteArray*>body
    cdef TVMFFIShapeCell* shape = <TVMFFIShapeCell*>body
    cdef TVMFFIAny cell
    cdef TVMFFIByteArray words
    if kind == kTVMFFIStr:
        return text_of(text[0])
    if kind == kTVMFFIBytes:
        if is_lent(obj):
            return <object>(<LentBytes*>obj).owner
        return PyBytes_FromStringAndSize(text.data, <Py_ssize_t>text.size)
    if kind == kTVMFFIShape:
        return classes[kTVMFFIShape](tuple([shape.data[k] for k in range(shape.size)]))
    set_cell(&cell, kTVMFFIBigInt)
    cell.v_obj = obj
    words = core.big_int_get_content(&cell)
    return int.from_bytes(PyBytes_FromStringAndSize(words.data, <Py_ssize_t>words.size), "little", signed=True)


cdef object plain_value(const TVMFFIAny* cell):
    """A Python value for a cell that owns nothing."""
    cdef TVMFFIByteArray* view
    cdef int32_t kind = cell.type_index
    if kind == kTVMFFIRawStr:
        return PyUnicode_DecodeUTF8(cell.v_c_str, <Py_ssize_t>strlen(cell.v_c_str), "surrogateescape")
    if kind == kTVMFFISmallBytes:
        return PyBytes_FromStringAndSize(<const char*>cell.v_bytes, cell.small_str_len)
    if kind == kTVMFFIByteArrayPtr:
        view = <TVMFFIByteArray*>cell.v_ptr
        return PyBytes_FromStringAndSize(view.data, <Py_ssize_t>view.size)
    if kind == kTVMFFIDataType:
        dtype = classes[kTVMFFIDataType]()
        (<DataType>dtype).value = cell.v_dtype
        return dtype
    if kind == kTVMFFIDevice:
        return classes[kTVMFFIDevice](cell.v_device.device_type, cell.v_device.device_id)
    if kind == kTVMFFIOpaquePtr:
        return c_void_p(<uintptr_t>cell.v_ptr)
    if kind == kTVMFFIDLTensorPtr:
        raise errors.InternalError("a borrowed tensor outside of the call that lends it")
    raise errors.InternalError(f"a value of unknown type index {kind}")


cdef object borrowed_value(const TVMFFIAny* cell):
    """A Python value for an argument of a Python function."""
    cdef TVMFFIAny copy
    cdef void* handle
    if cell.type_index == kTVMFFIDLTensorPtr:
        if core.tensor_from_memory(<DLTensor*>cell.v_ptr, 0, NULL, NULL, &handle) != 0:
            raise_raised(None)
        return wrap(classes[kTVMFFITensor], handle)
    if cell.type_index >= kTVMFFIStaticObjectBegin or cell.type_index == 10:  # an rvalue reference is taken over
        if core.any_view_to_owned(cell, &copy) != 0:
            raise_raised(None)
        return take_value(&copy)
    copy = cell[0]
    return take_value(&copy)
