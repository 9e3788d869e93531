# SPDX-License-Identifier: Apache-2.0
# Errors: exceptions to error objects and back; the same exception comes out where one went in.

cdef dict error_classes = {}  # kind -> exception class
cdef const char* kNotePrefix = b"  Note: "  # see portcall/error.h
OWN_NOTE_PREFIX = "  Own note: "  # of notes that a Python exception has itself, for other processes


def register_error_class(str kind, cls):
    """Have errors of ``kind`` arrive as ``cls``, which is called with the message, and with the facts that the core adds
    to errors of that kind by name.
    """
    error_classes[kind] = cls


def registered_error_class(str kind):
    """Return the exception class that ``register_error_class`` was given for ``kind``; None for others."""
    cls = error_classes.get(kind)
    return cls if isinstance(cls, type) and issubclass(cls, Exception) else None


cdef TVMFFIErrorCell* error_cell(void* handle):
    return <TVMFFIErrorCell*>(<char*>handle + sizeof(TVMFFIObject))


cdef bint is_our_opaque(TVMFFIObject* obj):
    return opaque_value_or_null(obj) != NULL


cdef PyObject* opaque_value_or_null(TVMFFIObject* obj):
    """The Python object inside, if this binding made the wrapper: the pointer after the header, then our release."""
    cdef void** body = <void**>(<char*>obj + sizeof(TVMFFIObject))
    return <PyObject*>body[0] if body[1] == <void*>release_python else NULL


cdef object opaque_value(TVMFFIObject* obj):
    return <object>opaque_value_or_null(obj)


cdef object take_exception(void* handle):
    """An exception for an error object, whose ownership passes to it. Not raised."""
    cdef TVMFFIErrorCell* cell = error_cell(handle)
    try:
        error = exception_of(cell)
        if memmem(cell.backtrace.data, cell.backtrace.size, kNotePrefix, strlen(kNotePrefix)) != NULL:
            add_notes(error, text_of(cell.backtrace))
        return error
    finally:
        core.object_dec_ref(handle)


cdef object exception_of(TVMFFIErrorCell* cell):
    cdef TVMFFIObject* extra = <TVMFFIObject*>cell.extra_context
    if extra != NULL and extra.type_index == kTVMFFIOpaquePyObject and is_our_opaque(extra):
        return opaque_value(extra)
    facts = error_facts(extra) if extra != NULL else {}
    message = text_of(cell.message)
    if "peer" in facts and cell.backtrace.size:
        facts["backtrace"] = text_of(cell.backtrace)
    if "position" in facts:
        if facts["got"] == "portcall.rpc.Tensor" and "Tensor" in facts["expected"]:
            message += ", which is on a server: give its .numpy(), or call a library that its session has loaded"
        return errors.ArgumentError(message, **facts)
    return exception_of_kind(text_of(cell.kind), message, facts)


cdef int add_notes(error, str backtrace) except -1:
    """Give an exception the notes that C++ left among the frames; Python 3.10 keeps them, and does not print them."""
    prefix = kNotePrefix.decode()
    notes = [line[len(prefix):] for line in backtrace.splitlines() if line.startswith(prefix)]
    error.__notes__ = [*getattr(error, "__notes__", ()), *notes]
    return 0


cdef object exception_of_kind(str kind, str message, dict facts):
    cls = error_classes.get(kind)
    try:
        if cls is not None:
            return cls(message, **facts)
    except Exception as error:  # a class that is not made from its message alone must not hide the error
        message = f"{message} ({cls.__name__} could not be made from this message: {error})"
    return RuntimeError(f"{kind}: {message}")


cdef dict error_facts(TVMFFIObject* extra):
    """What the core adds to an error: an Array that starts with a tag. Of a refused argument, a session, or a graph."""
    if extra.type_index != kTVMFFIArray:
        return {}
    core.object_inc_ref(extra)
    tag, *items = array_items(wrap(Object, extra)) or [None]
    if tag == "portcall.ArgumentError" and len(items) == 4:
        function, position, expected, got = items
        return {"function": function, "position": None if position < 0 else position, "expected": expected, "got": got}
    if tag == "portcall.RPCError" and len(items) == 1:
        return {"peer": items[0]}
    if tag == "portcall.RPCError" and len(items) == 2:
        return {"peer": items[0], "reason": items[1]} if items[1] else {"peer": items[0]}
    if tag == "portcall.GraphError" and len(items) == 1:
        return {"node": items[0]}
    return {}


cdef int raise_raised(PackedFunc func) except -1:
    """Raise what the core left in this thread's slot, with the frames of its language below ours."""
    cdef void* handle = NULL
    core.error_move_from_raised(&handle)
    if PyErr_Occurred() != NULL:  # left by what asked for signals, in a library on another runtime
        core.object_dec_ref(handle)
        return -1
    escaped = TakeEscaped()
    if handle == NULL or escaped:
        core.object_dec_ref(handle)
        name = func.name if func is not None else ""
        if escaped:
            raise RuntimeError(f"{name or 'the function'}() threw a C++ exception that it should have caught: an error of "
                               "portcall or tvm-ffi, or a std::exception, arrives as an exception here")
        raise RuntimeError(f"{name or 'the function'}() failed (nonzero return) without setting an error")
    cdef TVMFFIErrorCell* cell = error_cell(handle)
    cdef TVMFFIObject* extra = <TVMFFIObject*>cell.extra_context
    frames = parse_frames(text_of(cell.backtrace)) if cell.backtrace.size and extra == NULL else []
    remote = cell.backtrace.size and extra != NULL and extra.type_index == kTVMFFIArray
    error = take_exception(handle)
    if isinstance(error, errors.SessionLostError) and func is not None:
        later["name_lost"](error, func)
    if remote:  # the frames of a session's other end, below ours
        frames = parse_frames(getattr(error, "remote_frames", ""))
    return RaiseWithFrames(error, frames)


cdef list parse_frames(str text):
    """(file, function, line) of each line `  File "f", line n, in g`."""
    frames = []
    for line in text.splitlines():
        head, found, function = line.partition(", in ")
        file, _, number = head.strip().removeprefix('File "').rpartition('", line ')
        if found and number.isdigit():
            frames.append((file.encode(), function.encode(), min(int(number), 2**31 - 1)))
    return frames


cdef str frames_of(error):
    """The frames of an exception, most recent first."""
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}\n')
        traceback = traceback.tb_next
    return "".join([*reversed(lines), *own_notes_of(error)])


cdef list own_notes_of(error):
    """The notes that an exception has itself, as lines."""
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, (list, tuple)):
        return []
    return [f"{OWN_NOTE_PREFIX}{' '.join(note.split())}\n" for note in notes if isinstance(note, str)]


cdef str message_of(error):
    try:
        return str(error)
    except Exception as failure:
        return f"(its message cannot be made: {type(failure).__name__})"


cdef void* make_error(error) except NULL:
    """An error object that carries the exception itself."""
    cdef TVMFFIByteArray kind, message, backtrace
    cdef void* opaque
    cdef void* handle
    parts = [text.encode(errors="replace") for text in (type(error).__name__, message_of(error), frames_of(error))]
    kind.data, kind.size = PyBytes_AS_STRING(parts[0]), len(parts[0])
    message.data, message.size = PyBytes_AS_STRING(parts[1]), len(parts[1])
    backtrace.data, backtrace.size = PyBytes_AS_STRING(parts[2]), len(parts[2])
    if core.object_create_opaque(<void*>error, kTVMFFIOpaquePyObject, release_python, &opaque) != 0:
        raise MemoryError
    Py_INCREF(error)
    status = core.error_create(&kind, &message, &backtrace, NULL, opaque, &handle)
    core.object_dec_ref(opaque)
    if status != 0:
        raise MemoryError
    return handle


cdef void core_raise(error) noexcept:
    """Leave an exception in the core's slot of this thread."""
    cdef void* handle
    try:
        handle = make_error(error)
        core.error_set_raised(handle)
        core.object_dec_ref(handle)
    except BaseException:
        pass  # out of memory: the caller reports a failure without an error


cdef int check_signals() noexcept nogil:
    """Let Python's signal handlers run inside of long native work; what they raise interrupts it."""
    return shielded_check(check_with_lock)


cdef int check_with_lock() noexcept with gil:
    try:
        PyErr_CheckSignals()
        return 0
    except BaseException as error:
        core_raise(error)
        return -1


core.env_register_c_api(b"PyErr_CheckSignals", <void*>check_signals)
