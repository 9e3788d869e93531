# SPDX-License-Identifier: Apache-2.0
# Described types: fields that are read and written in place, constructors, and the tables of `portcall.ir`.

cdef dict reflected_classes = {}  # Python class -> Reflected


cdef bint is_instance(int32_t index, int32_t base):
    cdef const TVMFFITypeInfo* info
    cdef const TVMFFITypeInfo* base_info
    if index == base:
        return True
    info, base_info = core.get_type_info(index), core.get_type_info(base)
    return (info != NULL and base_info != NULL and info.type_depth > base_info.type_depth
            and info.type_ancestors[base_info.type_depth].type_index == base)


cdef class FieldAccess:
    """A field of a described type, as an attribute of its class."""

    cdef const TVMFFIFieldInfo* info
    cdef int64_t offset
    cdef int32_t type_index
    cdef bint in_place
    cdef public bint writable
    cdef readonly str __name__
    cdef readonly str __doc__
    cdef public object check  # check(value) gives the value to keep, after what the core does not check; or None

    cdef inline TVMFFIObject* node(self, instance) except NULL:
        """The object that the field is read from or written to: one of its type, for sure."""
        if not isinstance(instance, Object):
            raise TypeError(f"'{self.__name__}' is a field of {type_key_of(self.type_index)}, not of {type(instance).__name__}")
        cdef TVMFFIObject* obj = <TVMFFIObject*>made(<Object>instance)
        if unlikely(obj.type_index != self.type_index and not is_instance(obj.type_index, self.type_index)):
            raise TypeError(f"'{self.__name__}' is a field of {type_key_of(self.type_index)}, not of {type_key_of(obj.type_index)}")
        return obj

    def __get__(self, instance, owner):
        cdef TVMFFIAny cell
        cdef char* place
        if instance is None:
            return self
        place = <char*>self.node(instance) + self.offset
        if self.in_place:
            cell = (<TVMFFIAny*>place)[0]
            if cell.type_index >= kTVMFFIStaticObjectBegin:
                core.object_inc_ref(cell.v_obj)
            return take_value(&cell)
        cell.type_index = kTVMFFINone
        if self.info.getter(place, &cell) != 0:
            raise_raised(None)
        return take_value(&cell)

    def __set__(self, instance, value):
        cdef TVMFFIObject* obj
        if isinstance(instance, Object) and (<Object>instance).handle == NULL and self.writable:
            blank_object(<Object>instance)  # its constructor sets the fields one by one
        obj = self.node(instance)
        if not self.writable:
            raise AttributeError(f"{type(instance).__name__}.{self.__name__} is read-only: replace({self.__name__}=...) makes "
                                 "another object")
        self.write(obj, value)

    def set(self, instance, value):
        """Write the field of an object, also where it is read-only: for code that has just made the object."""
        self.write(self.node(instance), value)

    cdef int write(self, TVMFFIObject* obj, value) except -1:
        cdef StackFrame frame
        if self.check is not None:
            value = self.check(value)
        try:
            set_argument(&frame, 0, <PyObject*>value)
        except errors.ArgumentError as error:
            raise field_error(self.type_index, self.__name__, 0, error) from None
        if core.object_set_field(obj, self.info, frame.cells) != 0:
            raise_raised(None)
        return 0

    def __delete__(self, instance):
        raise AttributeError(f"{type(instance).__name__}.{self.__name__} is a field and stays")

    def __repr__(self):
        return f"<field {self.__name__!r} of {type_key_of(self.type_index)}>"


cdef class Reflected:
    """How objects of a class are made: its type, and the names of the fields in the order of their places."""

    cdef int32_t type_index
    cdef tuple positional  # places of the fields that may be given by position
    cdef bint in_order     # whether these are 0, 1, 2, ...
    cdef tuple names
    cdef dict places
    cdef object checks    # place -> check(value), which gives the value to keep; or None
    cdef bint post_init
    cdef bint own_init    # whether the class defines a constructor
    cdef bint required    # whether a field needs a value
    cdef object init      # makes the object of the arguments, in place of the fields; or None

    cdef int make(
        self, Object obj, PyObject* const* args, Py_ssize_t given, PyObject* keywords, bint checked=True
    ) except -1:
        """Give an object what it refers to. Values by position come first, then those of the names ``keywords``."""
        cdef StackFrame space
        cdef Frame* frame = &space
        cdef Cells cells
        cdef int n = <int>len(self.names), place = 0
        cdef list kept = None if self.checks is None else []
        if self.init is not None and checked:
            self.call_init(obj, [<object>args[i] for i in range(given)], keywords)
            if self.post_init:
                obj.__post_init__()
            return 0
        if given > <Py_ssize_t>len(self.positional):
            raise TypeError(f"{type(obj).__name__}() takes {len(self.positional)} positional arguments, got {given}")
        if n > kStackArgs:
            cells = Cells((None,) * n)
            frame = &cells.frame
        try:
            self.fill(frame, args, given, keywords, type(obj), checked, &place, kept)
        except errors.ArgumentError as error:
            raise field_error(self.type_index, self.names[place], place, error) from None
        self.create(obj, frame.cells)
        if self.post_init:
            obj.__post_init__()
        return 0

    cdef int fill(
        self, Frame* frame, PyObject* const* args, Py_ssize_t given, PyObject* keywords, cls, bint checked, int* at,
        list kept
    ) except -1:
        """Write the values into the frame. ``at`` is the place that is worked on, ``kept`` holds what checks made."""
        cdef int place
        cdef Py_ssize_t i
        for place in range(<int>len(self.names)):
            set_cell(&frame.cells[place], kTVMFFIUnchanged)
        for i in range(given):
            at[0] = place = <int>i if self.in_order else self.positional[i]
            self.set_value(frame, place, <object>args[i], checked, kept)
        if keywords != NULL:
            for i, name in enumerate(<tuple>keywords):
                found = self.places.get(name)
                if found is None:
                    raise unknown_field(cls, name, tuple(self.places))
                at[0] = place = found
                if frame.cells[place].type_index != kTVMFFIUnchanged:
                    raise TypeError(f"{cls.__name__}() got '{name}' twice: by position and by name")
                self.set_value(frame, place, <object>args[given + i], checked, kept)
        return 0

    cdef int call_init(self, Object obj, list args, PyObject* keywords) except -1:
        if keywords != NULL and <tuple>keywords:
            import inspect
            raise TypeError(f"{type(obj).__name__}() takes its arguments by position only: {inspect.signature(type(obj))}")
        made_object = self.init(*args)
        if not is_object_of(made_object, self.type_index):
            raise TypeError(f"the constructor of {type_key_of(self.type_index)} gave {made_object!r}")
        core.object_inc_ref((<Object>made_object).handle)
        return become(obj, (<Object>made_object).handle)

    cdef inline int set_value(self, Frame* frame, int place, value, bint checked, list kept) except -1:
        if checked and self.checks is not None and place in self.checks:
            value = self.checks[place](value)
            kept.append(value)
        return set_argument(frame, place, <PyObject*>value)

    cdef int create(self, Object obj, TVMFFIAny* cells) except -1:
        cdef void* handle
        if core.object_create(self.type_index, cells, <int32_t>len(self.names), &handle) != 0:
            raise_raised(None)
        return become(obj, handle)


cdef int blank_object(Object obj) except -1:
    """Give an object of a class with a constructor of its own what it refers to, fields without a default unset."""
    cdef Reflected reflected = reflected_classes.get(type(obj))
    cdef void* handle
    if reflected is None:
        return 0
    if core.object_create(reflected.type_index, NULL, 0, &handle) != 0:
        raise_raised(None)
    return become(obj, handle)


cdef int make_object(Reflected reflected, Object obj, tuple args, dict kwargs, bint checked=True) except -1:
    values = (*args, *kwargs.values())
    names = tuple(kwargs)
    return reflected.make(
        obj, (<PyTupleObject*>values).ob_item, len(args), <PyObject*>names if names else NULL, checked
    )


cdef object call_class(object cls, PyObject* const* args, size_t nargsf, PyObject* keywords):
    """``cls(...)`` for a class that leaves construction to Object: without a tuple and a dict for the arguments."""
    cdef Object obj = <Object>NewOf(<PyTypeObject*>cls, ())
    (<Reflected>reflected_classes[cls]).make(obj, args, PyVectorcall_NARGS(nargsf), keywords)
    return obj


cdef object field_error(int32_t type_index, name, int place, error):
    """The error for a value that no object can hold, as that of the field in the frame's cell ``place``."""
    message = str(error).removeprefix(f"item {place}: ")
    return errors.ArgumentError(f"{type_key_of(type_index)}.{name}: {message}", expected=error.expected, got=error.got)


cdef object unknown_field(cls, name, names):
    import difflib
    near = difflib.get_close_matches(name, names, 1)
    return TypeError(f"{cls.__name__}() has no field '{name}'" + (f"; did you mean '{near[0]}'?" if near else
                     f"; its fields are {', '.join(names)}" if names else "; it has none"))


def type_index_of(str type_key):
    """The index of a type, -1 when there is none of that key."""
    cdef TVMFFIByteArray key
    cdef int32_t index = -1
    cdef bytes data = type_key.encode()
    cdef void* handle = NULL
    key.data, key.size = PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)
    if core.type_key_to_index(&key, &index) != 0:
        core.error_move_from_raised(&handle)
        core.object_dec_ref(handle)
        return -1
    return index


def type_keys():
    """The keys of all types that there are now."""
    cdef const TVMFFITypeInfo* info
    cdef int32_t first, index
    keys = []
    for first, most in (0, kTVMFFIDynObjectBegin), (kPortcallDynObjectBegin, kPortcallMostTypes):
        for index in range(first, first + <int32_t>most):  # the indices have gaps
            info = core.get_type_info(index)
            if info != NULL:
                keys.append(text_of(info.type_key))
    return keys


def describe_type(int32_t type_index):
    """What is known of a type: (key, keys of its ancestors, doc, whether it can be made, kind of comparison, fields,
    methods). A field is (FieldAccess, flags, JSON, declared type, default); a method (name, doc, JSON, flags, function)."""
    cdef const TVMFFITypeInfo* info = core.get_type_info(type_index)
    cdef const TVMFFITypeInfo* owner
    cdef const TVMFFIFieldInfo* field
    cdef FieldAccess access
    cdef TVMFFIAny cell
    cdef int depth, i
    if info == NULL:
        raise ValueError(f"no type has the index {type_index}")
    fields, methods = [], []
    for depth in range(info.type_depth + 1):
        owner = info.type_ancestors[depth] if depth < info.type_depth else info
        for i in range(owner.num_fields):
            field = &owner.fields[i]
            access = FieldAccess.__new__(FieldAccess)
            access.info = field
            access.offset = field.offset
            access.type_index = type_index
            access.in_place = (field.flags & kPortcallFieldFlagCell) != 0
            access.writable = (field.flags & kTVMFFIFieldFlagBitMaskWritable) != 0
            access.__name__ = text_of(field.name)
            access.__doc__ = text_of(field.doc)
            default = None
            if field.flags & kTVMFFIFieldFlagBitMaskHasDefault:
                default = borrowed_value(&field.default_value_or_factory)
            fields.append((access, field.flags, text_of(field.metadata), field.field_static_type_index, default))
    for i in range(info.num_methods):
        cell = info.methods[i].method
        methods.append((text_of(info.methods[i].name), text_of(info.methods[i].doc), text_of(info.methods[i].metadata),
                        info.methods[i].flags, borrowed_value(&cell)))
    ancestors = [text_of(info.type_ancestors[depth].type_key) for depth in range(info.type_depth)]
    has_creator = info.metadata != NULL and info.metadata.creator != NULL
    kind = info.metadata.structural_eq_hash_kind if info.metadata != NULL else 0
    doc = text_of(info.metadata.doc) if info.metadata != NULL else ""
    return text_of(info.type_key), ancestors, doc, has_creator, kind, fields, methods


def type_attribute(int32_t type_index, str name):
    """An attribute of a type, such as a hook of C++; None when unset."""
    cdef TVMFFIByteArray text
    cdef list kept = []
    set_bytes(&text, name, kept)
    cdef const TVMFFITypeAttrColumn* column = core.get_type_attr_column(&text)
    if column == NULL or not 0 <= type_index < column.size:
        return None
    return borrowed_value(&column.data[type_index])


def set_type_attribute(int32_t type_index, str name, value):
    """Say something of a type, for every language, in place of what was said under that name before."""
    cdef TVMFFIByteArray text
    cdef list kept = []
    cdef Cells cells = Cells([value])
    set_bytes(&text, name, kept)
    if core.type_register_attr(type_index, &text, cells.frame.cells) != 0:
        raise_raised(None)


def define_type(str type_key, int32_t parent, str doc, int32_t kind, list fields):
    """Define a type whose objects are rows of cells, and return its index. A field is (name, doc, JSON, flags, declared
    type, default)."""
    cdef int n = <int>len(fields), i
    cdef TVMFFIByteArray key
    cdef TVMFFITypeMetadata metadata
    cdef int32_t index = -1
    cdef Cells defaults = Cells([field[5] for field in fields])
    cdef PortcallFieldSpec* specs = <PortcallFieldSpec*>malloc(max(n, 1) * sizeof(PortcallFieldSpec))
    cdef list kept = []
    if specs == NULL:
        raise MemoryError
    memset(specs, 0, max(n, 1) * sizeof(PortcallFieldSpec))
    memset(&metadata, 0, sizeof(metadata))
    try:
        set_bytes(&key, type_key, kept)
        set_bytes(&metadata.doc, doc, kept)
        metadata.structural_eq_hash_kind = kind
        for i in range(n):
            name, text, schema, flags, declared, _ = fields[i]
            set_bytes(&specs[i].name, name, kept)
            set_bytes(&specs[i].doc, text, kept)
            set_bytes(&specs[i].metadata, schema, kept)
            specs[i].flags = flags
            specs[i].type_index = declared
            specs[i].default_value = defaults.frame.cells[i]
        if core.type_define(&key, parent, &metadata, specs, n, &index) != 0:
            raise_raised(None)
    finally:
        free(specs)
    return index


cdef int set_bytes(TVMFFIByteArray* out, str text, list kept) except -1:
    data = text.encode()
    kept.append(data)
    out.data, out.size = PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)
    return 0


def register_reflected(cls, int32_t type_index, tuple names, tuple positional, tuple settable, checks, bint post_init,
                       init, bint generated, bint required):
    """Let a class make objects of a described type: ``cls(...)`` takes the fields ``settable`` by name, and those at the
    places ``positional`` by position; or ``init`` makes an object of its arguments. ``generated``: the class
    defines no constructor. ``required``: a field has no default."""
    cdef Reflected reflected = Reflected.__new__(Reflected)
    reflected.type_index = type_index
    reflected.names = names
    reflected.places = {name: i for i, name in enumerate(names) if name in settable}
    reflected.positional = positional
    reflected.in_order = positional == tuple(range(len(positional)))
    reflected.checks = checks
    reflected.post_init = post_init
    reflected.init = init
    reflected.own_init = not generated
    reflected.required = required
    reflected_classes[cls] = reflected
    if generated and cls.__new__ is Object.__new__:
        SetTypeVectorcall(<PyTypeObject*>cls, <void*>call_class)


def create_object(cls, dict values, dict changes):
    """Make an object of a class from its fields by name, past its ``__init__``: those of another one, changed."""
    cdef Reflected reflected = reflected_classes[cls]
    cdef Object obj = cls.__new__(cls)
    if reflected.checks is not None:
        for name, value in changes.items():
            check = reflected.checks.get(reflected.places.get(name))
            if check is not None:
                changes[name] = check(value)
    make_object(reflected, obj, (), values | changes, False)
    return obj


def change_fields(cls, Object obj, dict changes):
    """Write fields of an object that was just made; read-only fields too."""
    cdef FieldAccess access
    for name, value in changes.items():
        if name not in (<Reflected>reflected_classes[cls]).names:
            raise unknown_field(cls, name, (<Reflected>reflected_classes[cls]).names)
        access = getattr(cls, name)
        access.write(access.node(obj), value)


def is_object_of(value, int32_t type_index):
    """Whether a value is an object of a type or of one that derives from it."""
    return isinstance(value, Object) and is_instance((<TVMFFIObject*>made(<Object>value)).type_index, type_index)


def fields_of_class(cls):
    """The names of the fields of a class's objects; None when it is not a class of a described type."""
    cdef Reflected reflected = reflected_classes.get(cls)
    return None if reflected is None else reflected.names
