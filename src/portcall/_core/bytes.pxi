# SPDX-License-Identifier: Apache-2.0
# Bytes of Python as objects of the core: the same memory, in both directions.

cdef enum:
    kLentBytes = 4 << 10  # of fewer bytes a copy costs less
    kLargePage = 2 << 20


cdef struct LentBytes:
    TVMFFIObject header
    TVMFFIByteArray content
    void* owner


cdef void delete_lent_bytes(void* self, int flags) noexcept nogil:
    if flags & 1:  # no strong reference is left
        release_python((<LentBytes*>self).owner)
    if flags & 2:  # and no weak one
        free(self)


cdef void* lend_bytes(bytes data) except NULL:
    cdef LentBytes* made = <LentBytes*>malloc(sizeof(LentBytes))
    if made == NULL:
        raise MemoryError
    made.header.combined_ref_count = (<uint64_t>1 << 32) | 1  # a weak and a strong reference
    made.header.type_index = kTVMFFIBytes
    made.header.padding = 0
    made.header.deleter = delete_lent_bytes
    made.content.data = PyBytes_AS_STRING(data)
    made.content.size = <size_t>PyBytes_GET_SIZE(data)
    made.owner = <void*>data
    Py_INCREF(data)
    return made


cdef bytes unfilled_bytes(Py_ssize_t size):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef uintptr_t end = <uintptr_t>PyBytes_AS_STRING(made) + size
    cdef uintptr_t start = (<uintptr_t>PyBytes_AS_STRING(made) + kLargePage - 1) & ~<uintptr_t>(kLargePage - 1)
    if end > start:  # where the system has them: filling them for the first time then costs a fraction
        madvise(<void*>start, end - start, MADV_HUGEPAGE)
    return made


cdef bint is_lent(TVMFFIObject* obj) noexcept nogil:
    return obj.deleter == delete_lent_bytes


cdef int new_bytes_with_lock(size_t size, char** data, TVMFFIAny* out) noexcept with gil:
    cdef bytes made
    try:
        made = unfilled_bytes(<Py_ssize_t>size)
        data[0] = PyBytes_AS_STRING(made)
        set_cell(out, kTVMFFIBytes)
        out.v_ptr = lend_bytes(made)
        return 0
    except BaseException as error:
        core_raise(error)
        return -1


cdef int new_bytes_of_python(size_t size, char** data, TVMFFIAny* out) noexcept nogil:
    """What the core calls for bytes that it receives."""
    return shielded_new_bytes(new_bytes_with_lock, size, data, out)


core.env_register_c_api(b"PortcallBytesCreate", <void*>new_bytes_of_python)
