# SPDX-License-Identifier: Apache-2.0
# Containers: made of Python values, and read and changed in place.

cdef void* make_shape(values) except NULL:
    cdef void* handle
    cdef int64_t* extents = <int64_t*>malloc(max(len(values), 1) * sizeof(int64_t))
    if extents == NULL:
        raise MemoryError
    try:
        for k, value in enumerate(values):
            extents[k] = value
        if core.shape_create(extents, len(values), &handle) != 0:
            raise_raised(None)
    finally:
        free(extents)
    return handle


cdef int enter_container() except -1:
    """Count how deep containers nest. Not Python's own limit: some versions allow more than a stack holds of this."""
    if container_depth >= kMaxNesting:
        raise RecursionError(f"containers nest more than {kMaxNesting} deep")
    change_container_depth(1)
    return 0


ctypedef void* (*Maker)(object, MadeContainers*) except NULL


cdef str kContainsItself = ("a list or dict that contains itself cannot be passed; a portcall.List or portcall.Dict "
                            "that contains itself can")


cdef void* argument_container(arg, Frame* frame, int i, Maker make) except NULL:
    """What a container of Python travels as; errors name the argument that it is."""
    cdef MadeContainers inside
    try:
        return make(arg, &inside)
    except (ValueError, errors.ArgumentError) as error:
        ours = error.args[:1] == (kContainsItself,) or (isinstance(error, errors.ArgumentError) and not error.function)
        if frame.func == NULL or not ours:  # a value, or of what somebody called meanwhile
            raise
        text = f"{place_of(frame, i)}{error}"
        if isinstance(error, errors.ArgumentError):
            raise errors.ArgumentError(text, function=(<PackedFunc>frame.func).name, position=i,
                                       expected=error.expected, got=error.got) from None
        raise ValueError(text) from None


cdef void* container_of(arg, Frame* frame, int i, Maker make) except NULL:
    """The same for one that may be inside of another: it is made once, however often it occurs there."""
    cdef int is_new = 0
    cdef void** place
    cdef void* handle
    if frame.made == NULL:
        return argument_container(arg, frame, i, make)
    place = frame.made.Find(<PyObject*>arg, &is_new)
    if not is_new:
        if place[0] == NULL:
            raise ValueError(kContainsItself)
        core.object_inc_ref(place[0])
        return place[0]
    handle = make(arg, frame.made)
    core.object_inc_ref(handle)
    place[0] = handle
    return handle


cdef Cells cells_of(items, MadeContainers* made):
    """The cells of a container's items, which may be containers."""
    cdef Cells cells = Cells.__new__(Cells, items, None, False)
    enter_container()
    try:
        cells.frame.made = made
        cells.write()
        return cells
    finally:
        cells.frame.made = NULL
        change_container_depth(-1)


cdef int fill(Frame* frame, PyObject** values, Py_ssize_t size) except -1:
    """Write a container's items, which may be containers."""
    cdef int i
    enter_container()
    try:
        for i in range(<int>size):
            set_argument(frame, i, values[i])
    finally:
        change_container_depth(-1)
    return 0


cdef void* make_array(items, MadeContainers* made) except NULL:
    cdef StackFrame frame
    cdef PythonArguments held  # a list may change while its items are read
    cdef Cells cells
    cdef void* handle
    cdef Py_ssize_t size
    cdef tuple values
    frame.made = made
    if type(items) is list and len(<list>items) <= kStackArgs:
        size = len(<list>items)
        for i in range(size):
            held.Add(<object>PyList_GET_ITEM(items, i))
        fill(&frame, held.items, size)
        if core.array_create(frame.cells, size, &handle) != 0:
            raise_raised(None)
        return handle
    values = tuple(items)
    if len(values) <= kStackArgs:
        fill(&frame, (<PyTupleObject*>values).ob_item, len(values))
        if core.array_create(frame.cells, len(values), &handle) != 0:
            raise_raised(None)
        return handle
    cells = cells_of(values, made)
    if core.array_create(cells.frame.cells, cells.size, &handle) != 0:
        raise_raised(None)
    return handle


cdef void* make_map(mapping, MadeContainers* made) except NULL:
    cdef StackFrame frame
    cdef Cells cells
    cdef void* handle
    cdef list pairs = []
    cdef tuple flat
    frame.made = made
    for key, value in mapping.items():
        pairs.append(key)
        pairs.append(value)
    flat = tuple(pairs)
    if len(flat) <= kStackArgs:
        fill(&frame, (<PyTupleObject*>flat).ob_item, len(flat))
        if core.map_create(frame.cells, len(flat) // 2, &handle) != 0:
            raise_raised(None)
        return handle
    cells = cells_of(flat, made)
    if core.map_create(cells.frame.cells, cells.size // 2, &handle) != 0:
        raise_raised(None)
    return handle


cdef class Cells:
    """Python values as cells on the heap, for containers and long calls."""

    cdef Frame frame
    cdef int size
    cdef object values  # alive as long as the cells that borrow from them

    def __cinit__(self, values, PackedFunc func=None, bint write=True):
        self.values = tuple(values)
        self.size = len(self.values)
        if func is not None:
            self.frame.flags = func.flags
            self.frame.func = <PyObject*>func
        self.frame.cells = <TVMFFIAny*>malloc(max(self.size, 1) * sizeof(TVMFFIAny))
        self.frame.held = <void**>malloc(max(self.size, 1) * sizeof(void*))
        if self.frame.cells == NULL or self.frame.held == NULL:
            raise MemoryError
        if write:
            self.write()

    cdef int write(self) except -1:
        for i in range(self.size):
            set_argument(&self.frame, i, <PyObject*>self.values[i])
        return 0

    def __dealloc__(self):
        self.frame.Release()
        free(self.frame.cells)
        free(self.frame.held)


def array_items(Object array not None):
    """The elements of an Array or List, as they are now: making objects of Python may run anything."""
    cdef TVMFFISeqCell* cell = <TVMFFISeqCell*>(<char*>made(array) + sizeof(TVMFFIObject))
    cdef void* copy
    if (<TVMFFIObject*>array.handle).type_index != kTVMFFIList:
        return [borrowed_value(&(<TVMFFIAny*>cell.data)[k]) for k in range(cell.size)]
    if core.array_create(<TVMFFIAny*>cell.data, cell.size, &copy) != 0:
        raise_raised(None)
    return array_items(<Object>wrap(classes[kTVMFFIArray], copy))


def array_size(Object array not None):
    return (<TVMFFISeqCell*>(<char*>made(array) + sizeof(TVMFFIObject))).size


def array_item(Object array not None, int64_t index):
    cdef TVMFFISeqCell* cell = <TVMFFISeqCell*>(<char*>made(array) + sizeof(TVMFFIObject))
    if index < 0 or index >= cell.size:
        raise IndexError(f"index {index} is out of range for {cell.size} items")
    return borrowed_value(&(<TVMFFIAny*>cell.data)[index])


def fill_array(Object array not None, items):
    """Make an object of Python refer to a new Array."""
    cdef MadeContainers inside
    become(array, make_array(items, &inside))


def map_size(Object map_ not None):
    return core.map_size(made(map_))


cdef void* copied_parts(Object map_, int64_t each) except NULL:
    """A new Array of the keys in order of insertion, or of keys and values in turn (``each`` is 2)."""
    cdef void* handle = made(map_)
    cdef const TVMFFIAny* pair = NULL
    cdef int64_t size = core.map_size(handle), k
    cdef TVMFFIAny* parts = <TVMFFIAny*>malloc((size * each + 1) * sizeof(TVMFFIAny))
    cdef void* array
    cdef int failed
    if parts == NULL:
        raise MemoryError
    for k in range(size):
        pair = core.map_next(handle, pair)
        memcpy(&parts[k * each], pair, each * sizeof(TVMFFIAny))
    failed = core.array_create(parts, size * each, &array)
    free(parts)
    if failed:
        raise_raised(None)
    return array


def map_parts(Object map_ not None, bint with_values):
    """The keys in order of insertion, as they are now, or keys and values in turn."""
    return array_items(<Object>wrap(classes[kTVMFFIArray], copied_parts(map_, 2 if with_values else 1)))


def map_keys(Object map_ not None):
    """The keys as they are now, as an Array."""
    return wrap(classes[kTVMFFIArray], copied_parts(map_, 1))


def has_keys(Object map_ not None, Object keys not None, int64_t at):
    """Whether there are as many keys as before, and still the one at a place; at the end, whether they are the same."""
    cdef void* handle = made(map_)
    cdef const TVMFFISeqCell* cell = <TVMFFISeqCell*>(<char*>made(keys) + sizeof(TVMFFIObject))
    cdef const TVMFFIAny* before = <const TVMFFIAny*>cell.data
    cdef const TVMFFIAny* pair = NULL
    if core.map_size(handle) != cell.size:
        return False
    if at < cell.size:
        if core.map_find(handle, &before[at], &pair) != 0:
            raise_raised(None)
        return pair != NULL
    for at in range(cell.size):
        pair = core.map_next(handle, pair)
        if pair.type_index != before[at].type_index or pair.v_int64 != before[at].v_int64:
            return False
    return True


def map_get(Object map_ not None, key, default):
    cdef Cells cells = Cells((key,))
    cdef const TVMFFIAny* value
    if core.map_find(made(map_), cells.frame.cells, &value) != 0:
        raise_raised(None)
    return default if value == NULL else borrowed_value(value)


def fill_map(Object map_ not None, mapping):
    """The same for a Map."""
    cdef MadeContainers inside
    become(map_, make_map(mapping, &inside))


def fill_list(Object list_ not None, items):
    """The same for a List."""
    cdef MadeContainers inside
    cdef Cells cells = cells_of(items, &inside)
    cdef void* handle
    if core.list_create(cells.frame.cells, cells.size, &handle) != 0:
        raise_raised(None)
    become(list_, handle)


def fill_dict(Object dict_ not None, mapping):
    """The same for a Dict."""
    cdef MadeContainers inside
    cdef Cells cells = cells_of([part for pair in mapping.items() for part in pair], &inside)
    cdef void* handle
    if core.dict_create(cells.frame.cells, cells.size // 2, &handle) != 0:
        raise_raised(None)
    become(dict_, handle)


def splice_list(Object list_ not None, int64_t start, int64_t count, items):
    """Put items in the place of ``count`` from ``start`` on."""
    cdef MadeContainers inside
    cdef Cells cells = cells_of(items, &inside)
    made(list_)
    if core.array_splice(&list_.handle, start, count, cells.frame.cells, cells.size) != 0:
        raise_raised(None)


def set_pair(Object dict_ not None, key, value):
    cdef MadeContainers inside
    cdef Cells cells = cells_of((key, value), &inside)
    made(dict_)
    if core.map_set(&dict_.handle, cells.frame.cells, cells.frame.cells + 1) != 0:
        raise_raised(None)


def erase_pair(Object dict_ not None, key):
    """Whether there was one."""
    cdef MadeContainers inside
    cdef Cells cells = cells_of((key,), &inside)
    cdef int erased = 0
    made(dict_)
    if core.map_erase(&dict_.handle, cells.frame.cells, &erased) != 0:
        raise_raised(None)
    return erased != 0
