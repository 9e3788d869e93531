# SPDX-License-Identifier: Apache-2.0
# DLPack, in both directions: capsules, and the table of C functions that array libraries offer beside them.

cdef class Exchange:
    """How tensors of a type are taken without calling Python."""

    cdef DLPackExchange* table
    # Of torch alone, whose tensors can be described in place: none is read-only, which a description cannot say.
    cdef PyGetSetDef* requires_grad


cdef dict exchanges = {}  # type -> its Exchange, None where it has none
cdef PyTypeObject* last_exchange_type = NULL  # the key of the last that was found
cdef Exchange last_exchange = None


cdef Exchange exchange_of(arg):
    global last_exchange, last_exchange_type
    kind = type(arg)
    try:
        found = exchanges[kind]
    except KeyError:
        found = read_exchange(kind)
        if len(exchanges) > kMaxExchangeTypes:  # types that come and go are not kept forever
            last_exchange_type = NULL
            exchanges.clear()
        exchanges[kind] = found
    if found is not None:
        last_exchange, last_exchange_type = found, <PyTypeObject*>kind
    return found


cdef Exchange read_exchange(kind):
    import sys
    cdef Exchange exchange
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if not PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        return None
    exchange = Exchange()
    exchange.table = <DLPackExchange*>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    if exchange.table.major != 1:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        exchange.requires_grad = GetterOf(kind.requires_grad)
        if exchange.requires_grad == NULL or exchange.table.borrow == NULL:  # a class that answers by itself
            return None
    return exchange


cdef int set_exchanged(Frame* frame, int i, arg, Exchange exchange) except -1:
    try:
        return take_exchanged(frame, i, arg, exchange)
    except Exception as error:
        raise not_shared(frame, i, arg, error) from None


cdef object not_shared(Frame* frame, int i, arg, error):
    """The error for an array whose package does not give its memory away, in words of that package."""
    if isinstance(error, (errors.PortcallError, MemoryError)):
        return error
    why = str(error).partition("\n")[0]  # torch adds frames of C++
    advice = "pass a.detach()" if getattr(arg, "requires_grad", False) else "pass a dense array that has memory"
    return argument_error(frame, i, "an array whose memory can be shared", f"{kind_of(arg)} ({why})", advice)


cdef int take_exchanged(Frame* frame, int i, arg, Exchange exchange) except -1:
    cdef DLManagedTensorVersioned* managed
    cdef DLTensor dl
    cdef void* handle
    if exchange.requires_grad != NULL:
        if exchange.requires_grad.get(arg, exchange.requires_grad.closure):  # torch checks that in Python only
            return set_made_tensor(frame, i, from_dlpack(arg), False)
        exchange.table.borrow(<PyObject*>arg, &dl)
        if dl.dtype.code == kDLComplex:  # the same of those that have yet to be conjugated
            return set_made_tensor(frame, i, from_dlpack(arg), False)
        if dl.device.device_type == kDLCPU:
            return set_borrowed(frame, i, arg, &dl)
    exchange.table.from_object(<PyObject*>arg, &managed)
    if unlikely(managed.dl_tensor.device.device_type != kDLCPU):
        if not share_stream(frame, exchange, managed.dl_tensor.device):
            managed.deleter(managed)
            return set_made_tensor(frame, i, from_dlpack(arg), False)
    if core.tensor_from_dlpack_versioned(managed, 0, 0, &handle) != 0:
        raise_raised(None)
    return own_tensor(frame, i, handle)


cdef bint share_stream(Frame* frame, Exchange exchange, DLDevice device):
    """Whether the producer's current stream is ours, so that no wait is needed. During a call it becomes ours, unless the
    user chose another one."""
    cdef void* theirs = NULL
    cdef void* ours = core.env_get_stream(device.device_type, device.device_id)
    if exchange.table.current_stream == NULL:
        return False
    if exchange.table.current_stream(device.device_type, device.device_id, &theirs) != 0:
        PyErr_Clear()
        return False
    if theirs != ours and ours == NULL and frame.func != NULL and frame.device_type == 0:
        core.env_set_stream(device.device_type, device.device_id, theirs, NULL)
        frame.device_type, frame.device_id = device.device_type, device.device_id
        return True
    return theirs == ours


cdef int set_borrowed(Frame* frame, int i, arg, DLTensor* dl) except -1:
    """Pass a writable tensor on the host that is described in place: as that description, or as one that keeps ``arg``."""
    cdef void* handle
    if is_compact(dl):
        dl.strides = NULL  # those of axes of one element may be anything
        if (frame.flags & kPortcallFunctionGenerated and frame.tensors != NULL
                and (<uintptr_t>dl.data + dl.byte_offset) % kAlignment == 0):
            frame.tensors[i] = dl[0]
            set_cell(&frame.cells[i], kTVMFFIDLTensorPtr)
            frame.cells[i].v_ptr = &frame.tensors[i]
            return 0
    if core.tensor_from_memory(dl, 0, <void*>arg, release_python, &handle) != 0:
        raise_raised(None)
    Py_INCREF(arg)
    return own_tensor(frame, i, handle)


cdef void delete_capsule(object capsule) noexcept:
    cdef DLManagedTensor* managed
    if PyCapsule_IsValid(capsule, "dltensor"):
        managed = <DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        managed.deleter(managed)


cdef void delete_versioned_capsule(object capsule) noexcept:
    cdef DLManagedTensorVersioned* managed
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        managed = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        managed.deleter(managed)


cdef int tensor_to_managed(void* tensor, DLManagedTensorVersioned** out) except -1:
    (<Tensor>tensor).dl()
    if core.tensor_to_dlpack_versioned((<Tensor>tensor).handle, out) != 0:
        raise_raised(None)
    return 0


cdef int tensor_of_managed(DLManagedTensorVersioned* managed, void** out) except -1:
    cdef void* handle
    if core.tensor_from_dlpack_versioned(managed, 0, 0, &handle) != 0:
        raise_raised(None)
    made = wrap(classes[kTVMFFITensor], handle)
    Py_INCREF(made)
    out[0] = <void*>made
    return 0


cdef int lend_description(void* tensor, DLTensor* out) except -1:
    out[0] = (<Tensor>tensor).dl()[0]
    if (<Tensor>tensor).readonly:
        raise BufferError("a description cannot say that this tensor is read-only; take it as a managed one")
    return 0


cdef int stream_of_device(int32_t device_type, int32_t device_id, void** out) noexcept:
    out[0] = core.env_get_stream(device_type, device_id)
    return 0


cdef DLPackExchange own_exchange
own_exchange.major, own_exchange.minor = 1, 3
own_exchange.allocate = AllocateTensor
own_exchange.from_object = tensor_to_managed
own_exchange.to_object = tensor_of_managed
own_exchange.borrow = lend_description
own_exchange.current_stream = stream_of_device


def exchange_capsule():
    """What other packages take tensors by without calling Python, as DLPack 1.3 describes it."""
    return PyCapsule_New(&own_exchange, "dlpack_exchange_api", NULL)


cdef set unversioned_types = set()  # types whose __dlpack__ does not know max_version


cdef dict current_stream_for(source):
    """The argument of __dlpack__ that has the producer order its work before our current stream, where one is set."""
    cdef uintptr_t stream
    if not hasattr(source, "__dlpack_device__"):
        return {}
    device_type, device_id = source.__dlpack_device__()
    if device_type == kDLCPU:
        return {}
    stream = <uintptr_t>core.env_get_stream(device_type, device_id)
    return {"stream": stream} if stream else {}


cdef object exported(source, dict stream):
    if type(source) not in unversioned_types:
        try:
            return source.__dlpack__(max_version=(1, 1), **stream)
        except TypeError:
            unversioned_types.add(type(source))
    return source.__dlpack__(**stream)


def from_dlpack(source):
    """A tensor over the memory of any object with ``__dlpack__``, or of a capsule."""
    cdef void* handle
    cdef DLManagedTensor* managed
    cdef DLManagedTensorVersioned* managed_versioned
    if type(source).__name__ == "PyCapsule":
        capsule = source
    elif not hasattr(source, "__dlpack__"):
        raise errors.ArgumentError(f"from_dlpack() takes an object with __dlpack__, got {type(source).__name__}",
                                   function="from_dlpack", expected="an object with __dlpack__",
                                   got=type(source).__name__)
    else:
        capsule = exported(source, current_stream_for(source))
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        managed_versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if core.tensor_from_dlpack_versioned(managed_versioned, 0, 0, &handle) != 0:
            raise_raised(None)
        PyCapsule_SetName(capsule, "used_dltensor_versioned")
    elif PyCapsule_IsValid(capsule, "dltensor"):
        managed = <DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        if core.tensor_from_dlpack(managed, 0, 0, &handle) != 0:
            raise_raised(None)
        PyCapsule_SetName(capsule, "used_dltensor")
    else:
        raise errors.ArgumentError("expected an unused DLPack capsule", expected="a DLPack capsule",
                                   got=repr(capsule))
    return wrap(classes[kTVMFFITensor], handle)
