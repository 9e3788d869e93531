# SPDX-License-Identifier: Apache-2.0
# Copies for compiled code, which takes neither strides nor addresses that are not 64-byte aligned.

cdef bint copies_allowed = True
cdef int64_t copy_count = 0, copy_nbytes = 0
cdef bint copy_warned = False


cdef inline bint is_compact(const DLTensor* tensor) noexcept nogil:
    cdef int64_t expected = 1
    cdef int k
    if tensor.strides == NULL:
        return True
    for k in range(tensor.ndim - 1, -1, -1):
        if tensor.shape[k] != 1 and tensor.strides[k] != expected:
            return num_elements(tensor) == 0
        expected *= tensor.shape[k]
    return True


cdef inline bint fits_compiled_code(const DLTensor* dl) noexcept nogil:
    return is_compact(dl) and (dl.device.device_type != kDLCPU
                               or (<uintptr_t>dl.data + dl.byte_offset) % kAlignment == 0)


cdef int set_tensor(Frame* frame, int i, Tensor tensor, bint only_read) except -1:
    """Pass a tensor. Compiled code gets one that is compact, aligned and writable, if need be a copy."""
    cdef const DLTensor* dl = tensor.dl()
    cdef bint fits = True
    if frame.flags & kPortcallFunctionLibrary:
        if not only_read and core.tensor_get_flags(tensor.handle) & DLPACK_FLAG_BITMASK_READ_ONLY:
            raise argument_error(frame, i, "a writable tensor, because compiled code may write to it", "a read-only one",
                                 "pass portcall.ReadOnly(a) if it is only read, or a copy")
        fits = fits_compiled_code(dl)
    if fits:
        return borrow(frame, i, tensor)
    return hold(frame, i, scratch_of(frame, i, tensor, only_read))


cdef int set_made_tensor(Frame* frame, int i, Tensor tensor, bint only_read) except -1:
    """The same for a tensor that only this call refers to."""
    set_tensor(frame, i, tensor, only_read)
    return hold(frame, i, tensor) if frame.cells[i].v_ptr == tensor.handle else 0


cdef int own_tensor(Frame* frame, int i, void* handle) except -1:
    """The same for a tensor that no object of Python refers to yet: none is made for one that fits."""
    if not frame.flags & kPortcallFunctionLibrary or (
            fits_compiled_code(<const DLTensor*>(<char*>handle + sizeof(TVMFFIObject)))
            and not core.tensor_get_flags(handle) & DLPACK_FLAG_BITMASK_READ_ONLY):
        return own(frame, i, handle)
    return set_made_tensor(frame, i, <Tensor>wrap(classes[kTVMFFITensor], handle), False)


cdef int set_aligned_copy(Frame* frame, int i, PyObject* arg) except -1:
    """Pass a copy of an array that only its address keeps from compiled code. The same memory gets one copy."""
    global copy_count, copy_nbytes
    cdef DLTensor* tensor = &frame.tensors[i]
    cdef Scratch* scratch
    cdef size_t nbytes
    cdef int k
    describe_ndarray(frame, i, arg, tensor)
    nbytes = <size_t>num_elements(tensor) * tensor.dtype.bits * tensor.dtype.lanes // 8
    if nbytes > kSmallCopy:
        return set_made_tensor(frame, i, tensor_from_ndarray(frame, i, <object>arg), False)
    frame.cells[i].type_index = kTVMFFIDLTensorPtr
    frame.cells[i].v_ptr = tensor
    for k in range(frame.num_scratch):
        if frame.scratch[k].original == <char*>tensor.data and frame.scratch[k].nbytes == nbytes:
            tensor.data = frame.scratch[k].copy
            return 0
    scratch = &frame.scratch[frame.num_scratch]
    scratch.copy = <char*>aligned_alloc(64, (nbytes + 63) & ~<size_t>63)
    if scratch.copy == NULL:
        raise MemoryError
    scratch.original = <char*>tensor.data
    scratch.nbytes = nbytes
    frame.num_scratch += 1
    memcpy(scratch.copy, scratch.original, nbytes)
    tensor.data = scratch.copy
    copy_count += 1
    copy_nbytes += nbytes
    return 0


cdef Tensor read_only_view(Tensor tensor):
    cdef void* handle
    cdef uint64_t flags = DLPACK_FLAG_BITMASK_READ_ONLY | PORTCALL_TENSOR_MARKED
    if core.tensor_get_flags(tensor.handle) & PORTCALL_TENSOR_MARKED:
        return tensor
    if core.tensor_from_memory(tensor.dl(), flags, <void*>tensor, release_python, &handle) != 0:
        raise_raised(None)
    Py_INCREF(tensor)
    return <Tensor>wrap(classes[kTVMFFITensor], handle)


cdef Tensor scratch_of(Frame* frame, int i, Tensor tensor, bint only_read):
    """A compact, aligned copy for one call. The same memory passed twice gets one copy."""
    global copy_count, copy_nbytes, copy_warned
    cdef const DLTensor* dl = tensor.dl()
    if not copies_allowed:
        raise argument_error(
            frame, i, f"a compact tensor aligned to {kAlignment} bytes",
            "one that is not compact" if not is_compact(dl) else "one that is not aligned",
            'make it with portcall.empty or portcall.tensor, or allow copies: portcall.set_alignment_policy("copy")')
    copies = <list>frame.copies if frame.copies != NULL else []
    for k, (original, scratch, unwritten) in enumerate(copies):
        if same_memory((<Tensor>original).dl(), dl):
            copies[k] = original, scratch, unwritten and only_read
            return scratch
    made = spare_tensor(tensor)
    copy_tensor(dl, made.dl())
    if frame.copies == NULL:
        frame.copies = <PyObject*>copies
        Py_INCREF(copies)
    copies.append((tensor, made, only_read))
    nbytes = made.nbytes
    copy_count += 1
    copy_nbytes += nbytes
    if nbytes > 1 << 20 and not copy_warned:
        copy_warned = True
        import warnings
        warnings.warn(
            f"a tensor of {nbytes / (1 << 20):.1f} MiB is copied for each call of compiled code, because it is not "
            f"compact or not aligned to {kAlignment} bytes; make it with portcall.empty or portcall.tensor",
            stacklevel=1)  # the caller: compiled functions such as this one have no frame
    return made


cdef int64_t num_elements(const DLTensor* dl) noexcept nogil:
    cdef int64_t n = 1
    cdef int k
    for k in range(dl.ndim):
        n *= dl.shape[k]
    return n


cdef bint same_memory(const DLTensor* a, const DLTensor* b):
    cdef int k
    if (<uintptr_t>a.data + a.byte_offset != <uintptr_t>b.data + b.byte_offset or a.ndim != b.ndim
            or not memcmp_dtype(a.dtype, b.dtype)):
        return False
    for k in range(a.ndim):
        if a.shape[k] != b.shape[k] or a.strides[k] != b.strides[k]:
            return False
    return True


cdef int copy_tensor(const DLTensor* source, const DLTensor* target) except -1:
    cdef int status
    with nogil:
        status = core.tensor_copy(source, target)
    if status != 0:
        raise_raised(None)
    return 0


cdef int copy_back(Frame* frame) except -1:
    for original, scratch, only_read in <list>frame.copies:
        if not only_read:
            copy_tensor((<Tensor>scratch).dl(), (<Tensor>original).dl())
    return 0


cdef list spare_blocks = []  # memory of earlier copies: fresh pages cost more than the copy itself
cdef int64_t spare_nbytes = 0


cdef class Block:
    """Memory lent to one tensor, which is returned when that tensor is freed."""

    cdef void* tensor
    cdef int64_t nbytes

    def __dealloc__(self):
        if self.tensor != NULL:
            core.object_dec_ref(self.tensor)


cdef void return_block(void* owner) noexcept nogil:
    if Py_IsInitialized():
        shielded_release(return_with_lock, owner)


cdef void return_with_lock(void* owner) noexcept with gil:
    global spare_nbytes
    block = <Block><object>owner
    Py_DECREF(block)
    if spare_nbytes + block.nbytes <= kMaxSpareBytes:
        spare_blocks.append(block)
        spare_nbytes += block.nbytes


cdef Block take_block(int64_t nbytes):
    """Memory of at least that size, and of no more than twice that."""
    global spare_nbytes
    cdef Block block
    cdef DLTensor prototype
    cdef int i
    for i in range(len(spare_blocks) - 1, -1, -1):
        block = <Block>spare_blocks[i]
        if nbytes <= block.nbytes <= 2 * nbytes + kAlignment:
            del spare_blocks[i]
            spare_nbytes -= block.nbytes
            return block
    block = Block()
    block.nbytes = nbytes
    memset(&prototype, 0, sizeof(prototype))
    prototype.shape = &block.nbytes
    prototype.ndim = 1
    prototype.dtype = DLDataType(code=1, bits=8, lanes=1)
    prototype.device.device_type = kDLCPU
    if core.tensor_alloc(&prototype, &block.tensor) != 0:
        raise_raised(None)
    return block


cdef Tensor spare_tensor(Tensor like):
    """Uninitialised memory for a copy of ``like``."""
    cdef const DLTensor* dl = like.dl()
    cdef void* handle
    cdef DLTensor description
    cdef Block block
    if dl.device.device_type != kDLCPU:
        if core.tensor_alloc(dl, &handle) != 0:
            raise_raised(None)
        return <Tensor>wrap(classes[kTVMFFITensor], handle)
    block = take_block(like.nbytes)
    description = dl[0]
    description.data = (<const DLTensor*>(<char*>block.tensor + sizeof(TVMFFIObject))).data
    description.byte_offset = 0
    description.strides = NULL
    if core.tensor_from_memory(&description, 0, <void*>block, return_block, &handle) != 0:
        raise_raised(None)
    Py_INCREF(block)
    return <Tensor>wrap(classes[kTVMFFITensor], handle)


def set_copies_allowed(bint allowed):
    """Whether compiled code may be given aligned copies of tensors that it could not use as they are."""
    global copies_allowed
    copies_allowed = allowed


def copy_statistics():
    """How many such copies were made, and of how many bytes in all."""
    return copy_count, copy_nbytes


def release_spare_memory():
    """Give back the memory of earlier copies that was kept for later ones."""
    global spare_nbytes
    spare_nbytes = 0
    spare_blocks.clear()
