# SPDX-License-Identifier: Apache-2.0
# Functions: calls in both directions, and the registry.

cdef class PackedFunc(Object):
    """A function of any language, called like a Python function. Functions of Python take keyword arguments, too."""

    cdef vectorcallfunc vectorcall
    cdef TVMFFISafeCallType call
    cdef void* self_
    cdef int32_t flags

    def __init__(self, *args, **kwargs):
        raise TypeError("use portcall.convert(callable) to make a PackedFunc")

    def __call__(self, *args):
        """Call the function. Its errors arrive as exceptions of their kind."""
        return call_long(self, args)

    def future(self, *args):
        """Call the function without waiting for its result, and return a ``portcall.Future`` of it.

        A call of a session goes out at once, and many may be on their way: results come in the order of the calls.
        Any other call, and one with arrays of this process, is over when this returns.
        """
        if self.flags & kPortcallFunctionLibrary:  # its arguments are checked, and copied, as in a call of it
            return later["start_call"](convert_function(lambda: self(*args)))
        return start_call(self, args)

    def map(self, rows):
        """Call the function once for each row, and return a list of the results.

        A row that is a tuple has the arguments of a call; any other is its one argument. Of a function of a session many
        calls are on their way at once, and the first one that fails raises its error when those are over, with the row's
        index as the error's attribute ``row``. No more calls are begun then.
        """
        return later["map_calls"](self, rows)

    def with_timeout(self, seconds):
        """Return this function of a session with a time for each call, in seconds, the wait before it included.

        A call that takes longer raises CallTimeoutError. The session goes on: a server of portcall stops a function of
        Python as Ctrl-C does, and does not begin a call that still waits. Other code goes on, and later requests of the
        session wait for it. With a server that cannot cancel calls, such as TVM's, the session is closed
        (SessionTimeoutError), as by ``call_timeout``.
        """
        return get_global("portcall.rpc.WithTimeout")(self, float(seconds))

    async def aio(self, *args):
        """Call the function, and await its result; the event loop goes on meanwhile.

        A call of a session goes out at once, as one of ``future`` does. Any other call, and one with arrays of this
        process, runs in a thread of the loop's executor, as ``asyncio.to_thread`` has it: with the context variables
        and current streams of the caller. Cancelling does not end it.
        """
        return await later["await_call"](self, args)

    @property
    def name(self) -> str:
        """The function's name in messages; empty when it has none."""
        cdef PortcallFunctionInfo info
        core.function_get_info(made(self), &info)
        return (<bytes>info.name).decode(errors="replace")

    @property
    def holds_gil(self) -> bool:
        """Whether calls hold the GIL."""
        return bool(self.flags & kPortcallFunctionShort)

    def __getattr__(self, name):
        """``__signature__``, for ``inspect.signature``; a property would stand for the class's signature too."""
        if name != "__signature__":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        python = <object>self.self_ if <void*>self.call == <void*>call_python else None
        text = signature_text(self)
        if python is None and not text and (found := later["remote_signature"](self)) is not None:
            return found
        from portcall._signature import signature_of  # here: few programs ask, and it loads a lot
        return signature_of(self, python, text)

    def __repr__(self):
        return f"PackedFunc({self.name or 'at ' + hex(<uintptr_t>self.handle)})"


def signature_text(PackedFunc func not None):
    """What a library says of the types of a function, as its compiler or headers wrote it; empty if nothing."""
    cdef PortcallFunctionInfo info
    core.function_get_info(made(func), &info)
    text = (<bytes>(info.name + strlen(info.name) + 1)) if info.flags & kPortcallFunctionSigned else b""
    return text.decode(errors="replace")


cdef object wrap_function(void* handle):
    cdef PortcallFunctionInfo info
    cdef PackedFunc func = PackedFunc.__new__(PackedFunc)
    func.handle = handle
    core.function_get_info(handle, &info)
    func.call = info.call
    func.self_ = info.self
    func.flags = info.flags
    func.vectorcall = <vectorcallfunc>call_function
    return func


def as_subclass(cls, Object obj not None):
    """A reference to the same object as an instance of ``cls``, a subclass of its class."""
    if not issubclass(cls, type(obj)):
        raise TypeError(f"{cls.__name__} is no subclass of {type(obj).__name__}")
    core.object_inc_ref(made(obj))
    cdef Object other = wrap(cls, obj.handle)
    if isinstance(obj, PackedFunc):
        (<PackedFunc>other).call = (<PackedFunc>obj).call
        (<PackedFunc>other).self_ = (<PackedFunc>obj).self_
        (<PackedFunc>other).flags = (<PackedFunc>obj).flags
        (<PackedFunc>other).vectorcall = (<PackedFunc>obj).vectorcall
    return other


cdef int invoke(PackedFunc func, const TVMFFIAny* cells, int32_t size, TVMFFIAny* result) noexcept:
    cdef PyThreadState* state
    cdef int status
    if func.flags & kPortcallFunctionShort:
        return CallCatching(func.call, func.self_, cells, size, result)
    state = PyEval_SaveThread()
    status = CallCatching(func.call, func.self_, cells, size, result)
    ShieldedRestoreThread(state)
    return status


cdef object tracer = None  # what calls functions that may be a session's, while somebody traces


def set_tracer(call):
    """Have ``call(function, arguments)`` make the calls of functions without flags; None ends that. Return the one before."""
    global tracer
    before, tracer = tracer, call
    return before


def call_untraced(PackedFunc func not None, list args not None):
    """Call a function as ever, also while calls are traced."""
    return call_long(func, args)


cdef object call_function(object self, PyObject* const* args, size_t nargsf, PyObject* keywords):
    """What Python calls: arguments on the stack, up to kStackArgs of them."""
    cdef StackFrame frame
    cdef TVMFFIAny result
    cdef int i
    cdef int32_t size = <int32_t>PyVectorcall_NARGS(nargsf)
    cdef PackedFunc func = <PackedFunc>self
    if unlikely(keywords != NULL):
        return call_with_names(func, [<object>args[i] for i in range(size + len(<object>keywords))], <object>keywords)
    if unlikely(tracer is not None) and func.flags == 0:  # as those of sessions are
        return tracer(func, [<object>args[i] for i in range(size)])
    if unlikely(size > kStackArgs):
        return call_long(func, [<object>args[i] for i in range(size)])
    frame.flags = func.flags
    frame.func = <PyObject*>func
    set_cell(&result, kTVMFFINone)
    for i in range(size):
        set_argument(&frame, i, args[i])
    if unlikely(invoke(func, frame.cells, size, &result) != 0):
        raise_raised(func)
    return finish(&frame, &result, func)


cdef inline object finish(Frame* frame, TVMFFIAny* result, PackedFunc func):
    """Copy back what was copied, and convert the result."""
    cdef int k
    for k in range(frame.num_scratch):
        memcpy(frame.scratch[k].original, frame.scratch[k].copy, frame.scratch[k].nbytes)
    if unlikely(frame.copies != NULL):
        copy_back(frame)
    if unlikely(result.type_index == kTVMFFIDLTensorPtr):
        raise errors.InternalError(
            f"{func.name or 'the function'}() returned a borrowed tensor (DLTensor*), whose owner is unknown")
    return take_value(result)


cdef object start_call(PackedFunc func, tuple args):
    """Call ``portcall.StartCall``, whose first argument is the function: it lies before those of the function."""
    cdef StackFrame frame
    cdef TVMFFIAny result
    cdef int i
    cdef int32_t size = <int32_t>len(args)
    cdef object found = later["start_call"]
    if size >= kStackArgs or type(found) is not PackedFunc:  # the latter at the first call
        return found(func, *args)
    frame.flags = func.flags
    frame.func = <PyObject*>func
    set_cell(frame.cells, kTVMFFIFunction)
    frame.cells.v_ptr = made(func)
    frame.cells += 1
    set_cell(&result, kTVMFFINone)
    for i in range(size):
        set_argument(&frame, i, <PyObject*>args[i])
    if unlikely(invoke(<PackedFunc>found, frame.cells - 1, size + 1, &result) != 0):
        raise_raised(func)
    return finish(&frame, &result, func)


def set_row(error, index):
    """Tell in an error of ``map`` the index of its row."""
    error.row = index


def map_remote(PackedFunc run not None, list funcs not None, list rows not None, Object results not None):
    """Call ``run``, which is ``portcall.MapCalls``, with all rows (tuples), and the function of each; ``results`` is an
    empty List."""
    cdef PackedFunc func = funcs[0]  # in errors
    cdef Cells cells = Cells([None] * (1 + 2 * len(rows) + sum([len(row) for row in rows])), func, False)
    cdef TVMFFIAny* first = cells.frame.cells
    cdef TVMFFIAny result
    cdef int32_t i
    cdef int32_t size
    index = 0
    borrow(&cells.frame, 0, results)
    cells.frame.cells += 1
    try:
        for index, (called, row) in enumerate(zip(funcs, rows, strict=True)):
            size = <int32_t>len(<tuple>row)
            set_cell(cells.frame.cells, kTVMFFIInt)
            cells.frame.cells.v_int64 = size
            set_argument(&cells.frame, 1, <PyObject*>called)
            cells.frame.cells += 2
            for i in range(size):  # each has its place among the row's arguments
                set_argument(&cells.frame, i, <PyObject*>(<tuple>row)[i])
            cells.frame.cells += size
    except Exception as error:
        set_row(error, index)
        raise
    finally:
        cells.frame.cells = first
    set_cell(&result, kTVMFFINone)
    try:
        if invoke(run, first, cells.size, &result) != 0:
            raise_raised(func)
    except Exception as error:
        set_row(error, len(array_items(results)))
        raise
    finish(&cells.frame, &result, func)
    return array_items(results)


cdef object call_long(PackedFunc func, args):
    cdef Cells cells = Cells(args, func)
    cdef TVMFFIAny result
    set_cell(&result, kTVMFFINone)
    if invoke(func, cells.frame.cells, cells.size, &result) != 0:
        raise_raised(func)
    return finish(&cells.frame, &result, func)


cdef object call_with_names(PackedFunc func, list args, tuple names):
    """Call a function of Python, here or in a session, with its last arguments by name."""
    if <void*>func.call == <void*>call_python:
        callable_, count = <object>func.self_, len(args) - len(names)

        def call(*values):
            return callable_(*values[:count], **dict(zip(names, values[count:])))

        return call_long(make_function(call, func.name), args)
    remote = later["remote_caller"](func)
    if remote is not None:
        return remote(func, list(names), *args)
    raise errors.ArgumentError(
        f"{func.name or 'a PackedFunc'}() takes positional arguments only, got {', '.join(names)}=", function=func.name,
        expected="positional arguments", got=f"keyword {names[0]!r}")


cdef int call_python(void* self, const TVMFFIAny* args, int32_t size, TVMFFIAny* result) noexcept nogil:
    """What the core calls for a Python function."""
    return shielded_call(call_with_lock, self, args, size, result)


cdef int call_with_lock(void* self, const TVMFFIAny* args, int32_t size, TVMFFIAny* result) noexcept with gil:
    try:
        return call_callable(<PyObject*>self, args, size, result)
    except BaseException as error:
        core_raise(error)
        return -1


cdef inline int call_callable(PyObject* callable_, const TVMFFIAny* args, int32_t size, TVMFFIAny* result) except -1:
    cdef PythonArguments stack
    cdef int i
    cdef bint lent = False
    if unlikely(size > kStackArgs):
        return give_value((<object>callable_)(*[borrowed_value(&args[i]) for i in range(size)]), result)
    for i in range(size):
        stack.Add(borrowed_value(&args[i]))
        lent |= args[i].type_index == kTVMFFIDLTensorPtr
    if unlikely(lent):
        return call_with_loans(callable_, stack.items, args, size, result)
    return give_value(ShieldedVectorcall(callable_, stack.items, <size_t>size), result)


cdef int call_with_loans(PyObject* callable_, PyObject** items, const TVMFFIAny* args, int32_t size,
                         TVMFFIAny* result) except -1:
    try:
        return give_value(ShieldedVectorcall(callable_, items, <size_t>size), result)
    finally:
        for i in range(size):
            if args[i].type_index == kTVMFFIDLTensorPtr:
                end_loan(<Tensor>items[i])


cdef int end_loan(Tensor tensor) except -1:
    """A tensor that was lent for one call: code that still holds it gets an error, not a dangling pointer."""
    (<DLTensor*>(<char*>tensor.handle + sizeof(TVMFFIObject))).data = NULL
    return 0


cdef int give_value(value, TVMFFIAny* out) except -1:
    """An owned cell for a Python value, as the result of a call."""
    cdef StackFrame frame
    set_argument(&frame, 0, <PyObject*>value)
    if frame.cells.type_index < kTVMFFIRawStr:
        out[0] = frame.cells[0]
    elif core.any_view_to_owned(frame.cells, out) != 0:
        raise_raised(None)
    return 0


cdef void* function_handle(callable_, const char* name) except NULL:
    cdef void* handle
    cdef int32_t flags = kPortcallFunctionShort | kPortcallFunctionPython
    if core.function_create(<void*>callable_, call_python, release_python, flags, name, &handle) != 0:
        raise_raised(None)
    Py_INCREF(callable_)
    return handle


cdef PackedFunc make_function(callable_, name):
    cdef bytes text = str(name).encode(errors="replace")
    return wrap_function(function_handle(callable_, text))


cdef class Module(Object):
    """Base of portcall.Module: a set of functions that came from somewhere."""


def convert_function(callable_, name=""):
    """A Python callable as a PackedFunc; a PackedFunc as it is."""
    return callable_ if isinstance(callable_, PackedFunc) else make_function(callable_, name)


def get_global(str name not None):
    """The global function of that name, or None."""
    cdef TVMFFIByteArray view
    cdef void* handle
    text = name.encode()
    view.data, view.size = PyBytes_AS_STRING(text), len(text)
    if core.function_get_global(&view, &handle) != 0:
        raise_raised(None)
    return None if handle == NULL else wrap_function(handle)


def set_global(str name not None, PackedFunc func not None, bint override):
    """Register ``func`` under ``name``."""
    cdef TVMFFIByteArray view
    text = name.encode()
    view.data, view.size = PyBytes_AS_STRING(text), len(text)
    if core.function_set_global(&view, func.handle, override) != 0:
        raise_raised(None)


def registries():
    """The tables of what was registered with the binding; for tests, which take out of them what they put in."""
    dynamic_classes.clear()
    return {"value type": boxers, "error class": error_classes, "class of objects": keyed_classes,
            "alignment policy": {"copies": copies_allowed}}
