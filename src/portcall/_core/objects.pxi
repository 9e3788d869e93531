# SPDX-License-Identifier: Apache-2.0
# Objects: one handle of the core each, released with the Python object; and the classes that they arrive as.

cdef tuple kContainers = (kTVMFFIArray, kTVMFFIMap, kTVMFFIList, kTVMFFIDict)
cdef list classes = [None] * kTVMFFIStaticObjectEnd  # type index -> Python class of its values


def register_class(int type_index, cls):
    """Make values of a built-in type arrive as ``cls``, a subclass of this module's class for it."""
    classes[type_index] = cls
    global tensor_type, shape_type
    if type_index == kTVMFFITensor:
        tensor_type = <PyTypeObject*>cls
    if type_index == kTVMFFIShape:
        shape_type = <PyTypeObject*>cls


cdef str text_of(TVMFFIByteArray text):
    return PyUnicode_DecodeUTF8(text.data, <Py_ssize_t>text.size, "surrogateescape")


cdef str type_key_of(int32_t type_index):
    cdef const TVMFFITypeInfo* info = core.get_type_info(type_index)
    return text_of(info.type_key) if info != NULL else f"object({type_index})"


cdef object differs(self, other):
    """``!=``, the opposite of the ``==`` of the very class. Cython would make it of that of the extension type, past an
    ``__eq__`` that a class of Python defines."""
    equal = type(self).__eq__(self, other)
    return NotImplemented if equal is NotImplemented else not equal


cdef class Object:
    """A reference to an object of the core; two are equal when they refer to the same one."""

    cdef void* handle

    def __init__(self, *args, **kwargs):
        cdef Reflected reflected = reflected_classes.get(type(self))
        if reflected is None:
            raise TypeError(f"a {type(self).__name__} is made by a function of portcall, not by its class; a class of your "
                            "own is registered: @portcall.register_object(\"its.key\")")
        if reflected.own_init and not args and not kwargs:
            if self.handle != NULL:
                return  # super().__init__() after the constructor has set fields
            if reflected.required:
                blank_object(self)  # the constructor sets them
                return
        make_object(reflected, self, args, kwargs)

    def __dealloc__(self):
        if self.handle != NULL:
            core.object_dec_ref(self.handle)

    def __ffi_init__(self, *args, **kwargs):
        """Make the object of its fields, as the class's constructor would if it defined none."""
        cdef Reflected reflected = reflected_classes.get(type(self))
        if reflected is None:
            raise TypeError(f"{type(self).__name__} is not a class of a described type")
        make_object(reflected, self, args, kwargs)

    def __init_handle_by_constructor__(self, constructor, *args):
        """Refer to the object that a function makes of the arguments: for constructors of tvm-ffi's classes."""
        cdef Reflected reflected = reflected_classes.get(type(self))
        result = constructor(*args)
        if not isinstance(result, Object) or (reflected is not None and not is_object_of(result, reflected.type_index)):
            raise TypeError(f"the constructor of {type(self).__name__} gave {result!r}")
        core.object_inc_ref(made(<Object>result))
        become(self, (<Object>result).handle)

    def __chandle__(self) -> int:
        """The same as ``handle_value``, by tvm-ffi's name."""
        return <uintptr_t>self.handle

    @property
    def type_key(self) -> str:
        """The key of the object's type, such as ``ffi.Tensor``."""
        return type_key_of((<TVMFFIObject*>made(self)).type_index)

    def same_as(self, other) -> bool:
        """Whether ``other`` refers to the same object."""
        return isinstance(other, Object) and (<Object>other).handle == self.handle

    @property
    def handle_value(self) -> int:
        """The object's address, for C code. It stays valid while this reference does."""
        return <uintptr_t>self.handle

    def __eq__(self, other):
        return self.same_as(other) if isinstance(other, Object) else NotImplemented

    def __ne__(self, other):
        return differs(self, other)

    def __hash__(self):
        return hash(<uintptr_t>self.handle)

    def __repr__(self):
        return f"{type(self).__name__}({self.type_key} at {<uintptr_t>self.handle:#x})"

    def __reduce__(self):
        if type(self) in reflected_classes or (<TVMFFIObject*>made(self)).type_index in kContainers:
            return later["reduce"](self)
        raise TypeError(f"a {type(self).__name__} lives in this process and cannot be pickled")

    def __deepcopy__(self, memo):
        return later["deep_copy"](self, memo)


cdef void* made(Object obj) except NULL:
    """The handle. An object whose constructor did not run has none."""
    if obj.handle == NULL:
        raise ValueError(f"this {type(obj).__name__} is not initialised: its constructor must call super().__init__(...)")
    return obj.handle


cdef int become(Object obj, void* handle) except -1:
    """Have an object refer to something else, whose reference passes to it."""
    if obj.handle != NULL:
        core.object_dec_ref(obj.handle)
    obj.handle = handle
    return 0


cdef Object wrap(cls, void* handle):
    """Take over one reference."""
    cdef Object obj = <Object>NewOf(<PyTypeObject*>cls, ())
    obj.handle = handle
    return obj


cdef dict keyed_classes = {}    # type key -> Python class, for types that get their index at run time
cdef list dynamic_classes = []  # the same by index - kPortcallDynObjectBegin, as they are met
cdef dict adopters = {}         # class of that kind -> what makes of its objects what Python sees instead


def register_object_class(str type_key, cls, adopt=None):
    """Make objects of a type arrive as ``cls``, a subclass of Object; or as what ``adopt`` makes of such an object."""
    keyed_classes[type_key] = cls
    if adopt is not None:
        adopters[cls] = adopt
    dynamic_classes.clear()


def registered_object_class(str type_key):
    """The class that objects of a type arrive as; None when there is none yet."""
    return keyed_classes.get(type_key)


cdef object wrap_object(TVMFFIObject* handle):
    cdef object cls = None
    cdef Py_ssize_t place = handle.type_index - kPortcallDynObjectBegin
    if place < 0:  # of the ABI, or of another runtime, whose objects have no class here
        cls = classes[handle.type_index] if handle.type_index < kTVMFFIStaticObjectEnd else None
        return wrap(Object if cls is None else cls, handle)
    if place < len(dynamic_classes):
        cls = dynamic_classes[place]
    if cls is None:
        try:
            cls = class_of_dynamic(handle.type_index)
        except BaseException:
            core.object_dec_ref(handle)
            raise
    if cls in adopters:
        return adopters[cls](wrap(cls, handle))
    return wrap(cls, handle)


cdef object class_of_dynamic(int32_t type_index):
    key = type_key_of(type_index)
    cls = keyed_classes.get(key)
    if cls is None and core.get_type_info(type_index) != NULL:
        cls = later["class_of_type"](key)
    if cls is None:
        cls = Object
    while len(dynamic_classes) <= type_index - kPortcallDynObjectBegin:
        dynamic_classes.append(None)
    dynamic_classes[type_index - kPortcallDynObjectBegin] = cls
    return cls


cdef void release_python(void* owner) noexcept nogil:
    """Drop a reference to a Python object, from any thread."""
    if HoldsLock():
        DropReference(owner)
    elif Py_IsInitialized():
        shielded_release(release_with_lock, owner)


cdef void release_with_lock(void* owner) noexcept with gil:
    Py_DECREF(<object>owner)
