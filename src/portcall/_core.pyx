# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, binding=True, boundscheck=False, wraparound=False, initializedcheck=False
"""The binding: convert, own, raise. It decides nothing.

Rules:
  * Python values become cells, cells become Python values; every class here owns one handle of the core.
  * The core is called through one table (PortcallGetCore): other runtimes in the process export the same names.
  * A call builds its arguments on the stack. The interpreter lock is released around it, unless the function said that
    it is short; functions written in Python are, because they would take the lock again at once.
  * An exception of a Python function travels inside the error object and comes out as the same object.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strlen

cdef extern from "portcall/c_api.h" nogil:
    enum:
        kTVMFFINone
        kTVMFFIInt
        kTVMFFIBool
        kTVMFFIFloat
        kTVMFFIOpaquePtr
        kTVMFFIDataType
        kTVMFFIDevice
        kTVMFFIDLTensorPtr
        kTVMFFIRawStr
        kTVMFFIByteArrayPtr
        kTVMFFISmallStr
        kTVMFFISmallBytes
        kTVMFFIStaticObjectBegin
        kTVMFFIStr
        kTVMFFIBytes
        kTVMFFIError
        kTVMFFIFunction
        kTVMFFIShape
        kTVMFFITensor
        kTVMFFIArray
        kTVMFFIMap
        kTVMFFIModule
        kTVMFFIOpaquePyObject
        kTVMFFIList
        kTVMFFIDict
        kTVMFFIBigInt
        kTVMFFIStaticObjectEnd
        kTVMFFIDynObjectBegin
        kPortcallFunctionShort
        kPortcallFunctionLibrary
        kPortcallFunctionSigned
        kPortcallFunctionGenerated
        kDLCPU
        kDLUInt
        kDLComplex
        DLPACK_FLAG_BITMASK_READ_ONLY

    ctypedef struct DLDevice:
        int32_t device_type
        int32_t device_id

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct DLTensor:
        void* data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset

    ctypedef struct DLManagedTensor:
        DLTensor dl_tensor
        void (*deleter)(DLManagedTensor*) noexcept

    ctypedef struct DLManagedTensorVersioned:
        uint64_t flags
        DLTensor dl_tensor
        void (*deleter)(DLManagedTensorVersioned*) noexcept

    ctypedef struct TVMFFIObject:
        uint64_t combined_ref_count
        int32_t type_index

    ctypedef struct TVMFFIAny:
        int32_t type_index
        uint32_t zero_padding
        uint32_t small_str_len
        int64_t v_int64
        double v_float64
        void* v_ptr
        const char* v_c_str
        TVMFFIObject* v_obj
        DLDataType v_dtype
        DLDevice v_device
        char* v_bytes

    ctypedef struct TVMFFIByteArray:
        const char* data
        size_t size

    ctypedef struct TVMFFIShapeCell:
        const int64_t* data
        size_t size

    ctypedef struct TVMFFISeqCell:
        void* data
        int64_t size

    ctypedef struct TVMFFIErrorCell:
        TVMFFIByteArray kind
        TVMFFIByteArray message
        TVMFFIByteArray backtrace
        void* extra_context

    enum:
        kTVMFFIUnchanged
        kTVMFFIFieldFlagBitMaskWritable
        kTVMFFIFieldFlagBitMaskHasDefault
        kTVMFFIFieldFlagBitMaskKwOnly
    int64_t kPortcallFieldFlagCell

    ctypedef struct TVMFFIFieldInfo:
        TVMFFIByteArray name
        TVMFFIByteArray doc
        TVMFFIByteArray metadata
        int64_t flags
        int64_t offset
        int (*getter)(void*, TVMFFIAny*) noexcept nogil
        TVMFFIAny default_value_or_factory
        int32_t field_static_type_index

    ctypedef struct TVMFFIMethodInfo:
        TVMFFIByteArray name
        TVMFFIByteArray doc
        int64_t flags
        TVMFFIAny method

    ctypedef struct TVMFFITypeMetadata:
        TVMFFIByteArray doc
        void* creator
        int32_t structural_eq_hash_kind

    ctypedef struct TVMFFITypeInfo:
        int32_t type_index
        int32_t type_depth
        TVMFFIByteArray type_key
        const TVMFFITypeInfo** type_ancestors
        int32_t num_fields
        int32_t num_methods
        const TVMFFIFieldInfo* fields
        const TVMFFIMethodInfo* methods
        const TVMFFITypeMetadata* metadata

    ctypedef struct TVMFFITypeAttrColumn:
        const TVMFFIAny* data
        int32_t size

    ctypedef struct PortcallFieldSpec:
        TVMFFIByteArray name
        TVMFFIByteArray doc
        TVMFFIByteArray metadata
        int64_t flags
        TVMFFIAny default_value
        int32_t type_index

    ctypedef int (*TVMFFISafeCallType)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) noexcept nogil

    ctypedef struct PortcallFunctionInfo:
        TVMFFISafeCallType call
        void* self
        const char* name
        int32_t flags

    ctypedef void* TVMFFIObjectHandle

include "core_table.pxi"  # generated from c_api.h: struct PortcallCore

cdef extern from "portcall/c_api.h" nogil:
    const PortcallCore* PortcallGetCore()

cdef extern from *:
    """
    #include <Python.h>
    #include <cxxabi.h>
    #include <frameobject.h>
    #include <descrobject.h>
    #include <unistd.h>

    #include <string>

    // NumPy's array as its C API documents it: the leading fields have been the same since 1.0.
    typedef struct {
      PyObject_HEAD
      PyTypeObject* typeobj;
      char kind;
      char type;
      char byteorder;
      char former_flags;
      int type_num;
    } NumpyDescr;

    typedef struct {
      PyObject_HEAD
      char* data;
      int nd;
      Py_ssize_t* dimensions;
      Py_ssize_t* strides;
      PyObject* base;
      NumpyDescr* descr;
      int flags;
    } NumpyArray;

    // While the process ends, Python ends the threads that want its lock: pthread_exit() unwinds their stacks, of which
    // frames of C++ make an abort. Such a thread waits here instead, until the process is gone.
    template <typename Body, typename... Args>
    static inline auto Shielded(Body body, Args... args) -> decltype(body(args...)) {
      try {
        return body(args...);
      } catch (abi::__forced_unwind&) {
        for (;;) pause();
      }
    }
    static inline PyObject* ShieldedVectorcall(PyObject* callable, PyObject* const* args, size_t size) {
      return Shielded(PyObject_Vectorcall, callable, args, size, (PyObject*)NULL);
    }
    static inline void ShieldedRestoreThread(PyThreadState* state) { Shielded(PyEval_RestoreThread, state); }

    #define TVMFFI_RELEASE(handle) PortcallGetCore()->object_dec_ref(handle)

    // A type made by Cython has no slot for this call; its instances carry the function at `offset`.
    static void EnableVectorcall(PyTypeObject* type, Py_ssize_t offset) {
      type->tp_vectorcall_offset = offset;
      type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
      type->tp_call = PyVectorcall_Call;
      PyType_Modified(type);
    }

    // Calls of the class itself, past __new__ and __init__.
    static void SetTypeVectorcall(PyTypeObject* type, void* call) {
      type->tp_vectorcall = reinterpret_cast<vectorcallfunc>(call);
    }

    // Adds a frame that no Python code ran to the traceback of the exception being raised.
    static void AddForeignFrame(const char* file, const char* function, int line) {
      PyObject *type, *value, *traceback;
      PyErr_Fetch(&type, &value, &traceback);
      PyObject* globals = PyDict_New();
      PyCodeObject* code = PyCode_NewEmpty(file, function, line);
      PyFrameObject* frame = globals && code ? PyFrame_New(PyThreadState_Get(), code, globals, NULL) : NULL;
      if (!frame) PyErr_Clear();  // a traceback without this frame is still the right exception
      PyErr_Restore(type, value, traceback);
      if (frame) {
    #if PY_VERSION_HEX < 0x030B0000
        frame->f_lineno = line;
    #endif
        PyTraceBack_Here(frame);
      }
      Py_XDECREF((PyObject*)frame);
      Py_XDECREF((PyObject*)code);
      Py_XDECREF(globals);
    }

    // Raises `error`; frames is a list of (file, function, line), most recent first.
    static int RaiseWithFrames(PyObject* error, PyObject* frames) {
      PyErr_SetObject((PyObject*)Py_TYPE(error), error);
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(frames); ++i) {
        PyObject* frame = PyList_GET_ITEM(frames, i);
        AddForeignFrame(PyBytes_AS_STRING(PyTuple_GET_ITEM(frame, 0)), PyBytes_AS_STRING(PyTuple_GET_ITEM(frame, 1)),
                        (int)PyLong_AsLong(PyTuple_GET_ITEM(frame, 2)));
      }
      return -1;
    }

    // An array of which compiled code got an aligned copy; copied back after the call.
    struct Scratch {
      char* original;
      char* copy;
      size_t nbytes;
    };

    // One call: its cells, the objects that they own, and what else lives until it is over.
    struct Frame {
      TVMFFIAny* cells = nullptr;
      TVMFFIObjectHandle* held = nullptr;
      int num_held = 0;
      int32_t flags = 0;
      PyObject* func = nullptr;      // the function called, for messages; borrowed, may be null
      DLTensor* tensors = nullptr;   // a place for each argument, or null
      Scratch* scratch = nullptr;    // a place for each argument, or null
      int num_scratch = 0;
      PyObject* copies = nullptr;    // a list of (original, scratch, only read) tensors, or null

      ~Frame() { Release(); }
      void Release() {
        for (int i = 0; i < num_held; ++i) TVMFFI_RELEASE(held[i]);
        num_held = 0;
        for (int i = 0; i < num_scratch; ++i) free(scratch[i].copy);
        num_scratch = 0;
        Py_CLEAR(copies);
      }
    };

    // A new object of a class, past its __init__. Calling the class for it takes three times as long.
    static inline PyObject* NewOf(PyTypeObject* kind, PyObject* empty) { return kind->tp_new(kind, empty, nullptr); }

    // Frequent calls have few arguments: theirs are on the stack.
    constexpr int kStackArgs = 8;
    struct StackFrame : Frame {
      TVMFFIAny cell_space[kStackArgs];
      TVMFFIObjectHandle held_space[kStackArgs];
      DLTensor tensor_space[kStackArgs];
      Scratch scratch_space[kStackArgs];
      StackFrame() {
        cells = cell_space;
        held = held_space;
        tensors = tensor_space;
        scratch = scratch_space;
      }
    };

    // The arguments of a call of a Python function; what Python calls may use the place before the first.
    struct PythonArguments {
      PyObject* space[kStackArgs + 1];
      PyObject** items = space + 1;
      int size = 0;
      ~PythonArguments() {
        for (int i = 0; i < size; ++i) Py_DECREF(items[i]);
      }
      void Add(PyObject* item) {
        Py_INCREF(item);
        items[size++] = item;
      }
    };

    // The name of a function, bound method or function of C, as it keeps it: asking for __name__ takes five times as long.
    static const char* PlainName(PyObject* callable) {
      if (PyMethod_Check(callable)) callable = PyMethod_GET_FUNCTION(callable);
      if (PyCFunction_Check(callable)) return ((PyCFunctionObject*)callable)->m_ml->ml_name;
      const char* name = PyFunction_Check(callable) ? PyUnicode_AsUTF8(((PyFunctionObject*)callable)->func_name) : "";
      if (!name) PyErr_Clear();  // half of a surrogate pair
      return name;
    }

    // Whether this thread holds the interpreter lock. To ask costs a third of taking it once more.
    static bool HoldsLock() {
    #if PY_VERSION_HEX >= 0x030D0000
      PyThreadState* state = PyThreadState_GetUnchecked();
    #else
      PyThreadState* state = _PyThreadState_UncheckedGet();
    #endif
      return state && state == PyGILState_GetThisThreadState();
    }
    static void DropReference(void* object) {
      Shielded([](void* owned) { Py_DECREF((PyObject*)owned); }, object);
    }

    // How an attribute is read that C code offers, null for others. The look-up by name takes twice as long as the rest.
    static PyGetSetDef* GetterOf(PyObject* descriptor) {
      return Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) ? ((PyGetSetDescrObject*)descriptor)->d_getset : nullptr;
    }

    // How deep the containers nest that this thread is writing.
    static thread_local int container_depth = 0;
    static void change_container_depth(int by) { container_depth += by; }

    // dlpack.h, 1.3: what the capsule __dlpack_c_exchange_api__ of a type points to.
    struct DLPackExchange {
      uint32_t major, minor;
      void* previous;
      int (*allocate)(DLTensor*, DLManagedTensorVersioned**, void*, void (*)(void*, const char*, const char*));
      int (*from_object)(void*, DLManagedTensorVersioned**);
      int (*to_object)(DLManagedTensorVersioned*, void**);
      int (*borrow)(void*, DLTensor*);
      int (*current_stream)(int32_t, int32_t, void**);
    };

    // The first of them for our own tensors. Callers need not hold the interpreter lock.
    static int AllocateTensor(DLTensor* like, DLManagedTensorVersioned** out, void* context,
                              void (*set_error)(void*, const char*, const char*)) {
      const PortcallCore* core = PortcallGetCore();
      TVMFFIObjectHandle handle = nullptr;
      int status = core->tensor_alloc(like, &handle);
      if (status == 0) status = core->tensor_to_dlpack_versioned(handle, out);
      if (status != 0) {
        TVMFFIObjectHandle error = nullptr;
        core->error_move_from_raised(&error);
        auto* cell = reinterpret_cast<TVMFFIErrorCell*>(static_cast<TVMFFIObject*>(error) + 1);
        set_error(context, std::string(cell->kind.data, cell->kind.size).c_str(),
                  std::string(cell->message.data, cell->message.size).c_str());
        core->object_dec_ref(error);
      }
      core->object_dec_ref(handle);
      return status;
    }

    #define PORTCALL_UNLIKELY(x) __builtin_expect(!!(x), 0)
    """
    ctypedef struct NumpyDescr:
        char kind
        char byteorder
        int type_num

    ctypedef struct NumpyArray:
        char* data
        int nd
        Py_ssize_t* dimensions
        Py_ssize_t* strides
        NumpyDescr* descr
        int flags

    cppclass Scratch:
        char* original
        char* copy
        size_t nbytes

    cppclass Frame:
        Scratch* scratch
        int num_scratch
        TVMFFIAny* cells
        void** held
        int num_held
        int32_t flags
        PyObject* func
        DLTensor* tensors
        PyObject* copies
        void Release()

    cppclass StackFrame(Frame):
        pass

    cppclass PythonArguments:
        PyObject** items
        void Add(object)

    ctypedef struct DLPackExchange:
        uint32_t major
        uint32_t minor
        void* allocate
        int (*from_object)(void*, DLManagedTensorVersioned**) except -1
        int (*to_object)(DLManagedTensorVersioned*, void**) except -1
        int (*borrow)(void*, DLTensor*) except -1
        int (*current_stream)(int32_t, int32_t, void**) noexcept

    int container_depth
    void change_container_depth(int)

    enum:
        kStackArgs

    int shielded_call "Shielded"(TVMFFISafeCallType, void*, const TVMFFIAny*, int32_t, TVMFFIAny*) noexcept nogil
    void shielded_release "Shielded"(void (*)(void*) noexcept nogil, void*) noexcept nogil
    int shielded_check "Shielded"(int (*)() noexcept nogil) noexcept nogil
    object ShieldedVectorcall(PyObject*, PyObject* const*, size_t)
    void ShieldedRestoreThread(PyThreadState*)
    void EnableVectorcall(PyTypeObject*, Py_ssize_t)
    void SetTypeVectorcall(PyTypeObject*, void*)
    int RaiseWithFrames(object, list) except -1
    object NewOf(PyTypeObject*, tuple)
    void* AllocateTensor
    ctypedef struct PyGetSetDef:
        object (*get)(object, void*)
        void* closure

    bint HoldsLock() nogil
    void DropReference(void*) nogil
    const char* PlainName(PyObject*)
    PyGetSetDef* GetterOf(object)
    bint unlikely "PORTCALL_UNLIKELY"(bint) nogil

cdef extern from "sys/mman.h" nogil:
    int MADV_HUGEPAGE
    int madvise(void*, size_t, int)

cdef extern from "string.h" nogil:
    void* memmem(const void* text, size_t size, const void* part, size_t part_size)

cdef extern from "stdlib.h" nogil:
    void* aligned_alloc(size_t, size_t)

cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    ctypedef struct PyTupleObject:
        PyObject** ob_item
    ctypedef PyObject* (*vectorcallfunc)(PyObject*, PyObject* const*, size_t, PyObject*)
    PyTypeObject* Py_TYPE(PyObject*)
    Py_ssize_t Py_REFCNT(PyObject*)
    Py_ssize_t PyVectorcall_NARGS(size_t) nogil
    long long PyLong_AsLongLongAndOverflow(PyObject*, int*) except? -1
    double PyFloat_AS_DOUBLE(PyObject*) nogil
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*)
    object PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*)
    PyThreadState* PyEval_SaveThread()
    bint Py_IsInitialized() nogil
    int PyErr_CheckSignals() except -1
    void PyErr_Clear()
    PyTypeObject PyLong_Type
    PyTypeObject PyFloat_Type
    PyTypeObject PyUnicode_Type
    PyTypeObject PyBool_Type
    PyTypeObject PyFunction_Type
    PyTypeObject PyMethod_Type
    PyTypeObject PyCFunction_Type
    PyTypeObject PyList_Type
    PyTypeObject PyTuple_Type
    PyTypeObject PyDict_Type
    PyTypeObject PyBytes_Type
    bint PyType_IsSubtype(PyTypeObject*, PyTypeObject*)
    bint PyIndex_Check(object)
    object PyNumber_Index(object)
    PyObject* Py_None
    PyObject* PyList_GET_ITEM(object, Py_ssize_t)
    PyObject* Py_True

from portcall import errors

cdef dict later = {}  # what upper layers do for objects, by name: they are loaded when it is called


def provide(**functions):
    """Set functions of upper layers that this one calls: ``class_of_type``, ``deep_copy`` and ``reduce``."""
    later.update(functions)


cdef const PortcallCore* core = PortcallGetCore()

__version__ = (<bytes>core.version).decode()

cdef enum:
    kNumpyContiguous = 0x0001
    kNumpyWriteable = 0x0400
    kAlignment = 64
    kMaxSpareBytes = 64 << 20
    kNumNumpyTypes = 24
    kSmallCopy = 1 << 18
    kMaxExchangeTypes = 1000
    kMaxNesting = 1000
    kMaxDimensions = 64
    kNumpyUserTypes = 256


# ---- Objects ---------------------------------------------------------------------------------------------------------

cdef tuple kContainers = (kTVMFFIArray, kTVMFFIMap, kTVMFFIList, kTVMFFIDict)
cdef list classes = [None] * kTVMFFIStaticObjectEnd  # type index -> Python class of its values


def register_class(int type_index, cls):
    """Have values of a built-in type arrive as ``cls``, a subclass of this module's class for it."""
    classes[type_index] = cls
    global tensor_type
    if type_index == kTVMFFITensor:
        tensor_type = <PyTypeObject*>cls


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
        make_object(reflected, self, args, kwargs)

    def __dealloc__(self):
        if self.handle != NULL:
            core.object_dec_ref(self.handle)

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
        return later["deep_copy"](self)


cdef void* made(Object obj) except NULL:
    """The handle. A class of ours called past its constructor has none."""
    if obj.handle == NULL:
        raise ValueError(f"this {type(obj).__name__} was never made; a constructor of its own calls super().__init__(...)")
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


cdef enum:
    kLargePage = 2 << 20

cdef dict keyed_classes = {}    # type key -> Python class, for types that get their index at run time
cdef list dynamic_classes = []  # the same by index - kTVMFFIDynObjectBegin, as they are met
cdef dict adopters = {}         # class of that kind -> what makes of its objects what Python sees instead


def register_object_class(str type_key, cls, adopt=None):
    """Have objects of a type arrive as ``cls``, a subclass of Object; or as what ``adopt`` makes of such an object."""
    keyed_classes[type_key] = cls
    if adopt is not None:
        adopters[cls] = adopt
    dynamic_classes.clear()


def registered_object_class(str type_key):
    """The class that objects of a type arrive as; None when there is none yet."""
    return keyed_classes.get(type_key)


cdef object wrap_object(TVMFFIObject* handle):
    cdef object cls = None
    cdef Py_ssize_t place = handle.type_index - kTVMFFIDynObjectBegin
    if place < 0:
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
    while len(dynamic_classes) <= type_index - kTVMFFIDynObjectBegin:
        dynamic_classes.append(None)
    dynamic_classes[type_index - kTVMFFIDynObjectBegin] = cls
    return cls


# ---- Described types -------------------------------------------------------------------------------------------------

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
    cdef bint writable
    cdef readonly str __name__
    cdef readonly str __doc__
    cdef public object check  # check(value), for what the core does not check by itself; or None

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
        cdef TVMFFIObject* obj = self.node(instance)
        if not self.writable:
            raise AttributeError(f"{type(instance).__name__} objects do not change: replace({self.__name__}=...) makes "
                                 "another one")
        self.write(obj, value)

    cdef int write(self, TVMFFIObject* obj, value) except -1:
        cdef StackFrame frame
        if self.check is not None:
            self.check(value)
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
    cdef object checks    # place -> check(value), for what the core does not check by itself; or None
    cdef bint post_init
    cdef object init      # makes the object of the arguments, in place of the fields; or None

    cdef int make(
        self, Object obj, PyObject* const* args, Py_ssize_t given, PyObject* keywords, bint checked=True
    ) except -1:
        """Give an object what it refers to. Values by position come first, then those of the names ``keywords``."""
        cdef StackFrame space
        cdef Frame* frame = &space
        cdef Cells cells
        cdef int n = <int>len(self.names), place = 0
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
            self.fill(frame, args, given, keywords, type(obj), checked, &place)
        except errors.ArgumentError as error:
            raise field_error(self.type_index, self.names[place], place, error) from None
        self.create(obj, frame.cells)
        if self.post_init:
            obj.__post_init__()
        return 0

    cdef int fill(
        self, Frame* frame, PyObject* const* args, Py_ssize_t given, PyObject* keywords, cls, bint checked, int* at
    ) except -1:
        """Write the values into the frame. ``at`` is the place that is worked on."""
        cdef int place
        cdef Py_ssize_t i
        for place in range(<int>len(self.names)):
            set_cell(&frame.cells[place], kTVMFFIUnchanged)
        for i in range(given):
            at[0] = place = <int>i if self.in_order else self.positional[i]
            self.set_value(frame, place, <object>args[i], checked)
        if keywords != NULL:
            for i, name in enumerate(<tuple>keywords):
                found = self.places.get(name)
                if found is None:
                    raise unknown_field(cls, name, tuple(self.places))
                at[0] = place = found
                if frame.cells[place].type_index != kTVMFFIUnchanged:
                    raise TypeError(f"{cls.__name__}() got '{name}' twice: by position and by name")
                self.set_value(frame, place, <object>args[given + i], checked)
        return 0

    cdef int call_init(self, Object obj, list args, PyObject* keywords) except -1:
        if keywords != NULL and <tuple>keywords:
            raise TypeError(f"{type(obj).__name__}() takes its arguments by position only")
        made_object = self.init(*args)
        if not is_object_of(made_object, self.type_index):
            raise TypeError(f"the constructor of {type_key_of(self.type_index)} gave {made_object!r}")
        core.object_inc_ref((<Object>made_object).handle)
        return become(obj, (<Object>made_object).handle)

    cdef inline int set_value(self, Frame* frame, int place, value, bint checked) except -1:
        if checked and self.checks is not None and place in self.checks:
            self.checks[place](value)
        return set_argument(frame, place, <PyObject*>value)

    cdef int create(self, Object obj, TVMFFIAny* cells) except -1:
        cdef void* handle
        if core.object_create(self.type_index, cells, <int32_t>len(self.names), &handle) != 0:
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


def describe_type(int32_t type_index):
    """What is known of a type: (key, keys of its ancestors, doc, whether it can be made, kind of comparison, fields,
    methods). A field is (FieldAccess, flags, JSON, declared type, default); a method (name, doc, flags, function)."""
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
        methods.append((text_of(info.methods[i].name), text_of(info.methods[i].doc), info.methods[i].flags,
                        borrowed_value(&cell)))
    ancestors = [text_of(info.type_ancestors[depth].type_key) for depth in range(info.type_depth)]
    has_creator = info.metadata != NULL and info.metadata.creator != NULL
    kind = info.metadata.structural_eq_hash_kind if info.metadata != NULL else 0
    doc = text_of(info.metadata.doc) if info.metadata != NULL else ""
    return text_of(info.type_key), ancestors, doc, has_creator, kind, fields, methods


def type_attribute(int32_t type_index, str name):
    """What is said of a type under that name, such as a hook of C++; None when nothing is."""
    cdef TVMFFIByteArray text
    cdef list kept = []
    set_bytes(&text, name, kept)
    cdef const TVMFFITypeAttrColumn* column = core.get_type_attr_column(&text)
    if column == NULL or type_index >= column.size:
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
                       init):
    """Let a class make objects of a described type: ``cls(...)`` takes the fields ``settable`` by name, and those at the
    places ``positional`` by position; or ``init`` makes an object of its arguments."""
    cdef Reflected reflected = Reflected.__new__(Reflected)
    reflected.type_index = type_index
    reflected.names = names
    reflected.places = {name: i for i, name in enumerate(names) if name in settable}
    reflected.positional = positional
    reflected.in_order = positional == tuple(range(len(positional)))
    reflected.checks = checks
    reflected.post_init = post_init
    reflected.init = init
    reflected_classes[cls] = reflected
    if cls.__init__ is Object.__init__ and cls.__new__ is Object.__new__:
        SetTypeVectorcall(<PyTypeObject*>cls, <void*>call_class)


def create_object(cls, dict values, dict changes):
    """Make an object of a class from its fields by name, past its ``__init__``: those of another one, changed."""
    cdef Reflected reflected = reflected_classes[cls]
    cdef Object obj = cls.__new__(cls)
    if reflected.checks is not None:
        for name, value in changes.items():
            check = reflected.checks.get(reflected.places.get(name))
            if check is not None:
                check(value)
    make_object(reflected, obj, (), values | changes, False)
    return obj


def change_fields(cls, Object obj, dict changes):
    """Write fields of an object that nobody else has seen yet, whether they may be written later or not."""
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
    """The names of the fields of a class's objects; None when it is no class of a described type."""
    cdef Reflected reflected = reflected_classes.get(cls)
    return None if reflected is None else reflected.names


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


cdef class DataType:
    """Base of portcall.DataType: an element type of tensors."""

    cdef DLDataType value

    def __init__(self, text="void", *, code=None, bits=None, lanes=1):
        cdef TVMFFIByteArray view
        if code is not None:
            self.value = DLDataType(code=code, bits=bits, lanes=lanes)
            return
        data = str(text).encode()
        view.data = PyBytes_AS_STRING(data)
        view.size = len(data)
        if core.data_type_from_string(&view, &self.value) != 0:
            raise_raised(None)

    @property
    def code(self) -> int:
        return self.value.code

    @property
    def bits(self) -> int:
        return self.value.bits

    @property
    def lanes(self) -> int:
        return self.value.lanes

    def __str__(self):
        cdef TVMFFIAny text
        if core.data_type_to_string(&self.value, &text) != 0:
            raise_raised(None)
        return take_value(&text) or "void"  # which has no name in the ABI

    def __eq__(self, other):
        if isinstance(other, DataType):
            return memcmp_dtype(self.value, (<DataType>other).value)
        return str(self) == other if isinstance(other, str) else NotImplemented

    def __ne__(self, other):
        return differs(self, other)

    def __hash__(self):
        return hash(str(self))


cdef bint memcmp_dtype(DLDataType a, DLDataType b):
    return a.code == b.code and a.bits == b.bits and a.lanes == b.lanes


cdef class Device:
    """Base of portcall.Device: a kind and an index. One that is not of this process is passed as ``stand_in``."""

    cdef DLDevice value
    cdef Object stand_in

    def __init__(self, int32_t device_type, int32_t device_id=0, Object stand_in=None):
        self.value = DLDevice(device_type=device_type, device_id=device_id)
        self.stand_in = stand_in

    @property
    def device_type(self) -> int:
        return self.value.device_type

    @property
    def device_id(self) -> int:
        return self.value.device_id

    def __eq__(self, other):
        if not isinstance(other, Device):
            return NotImplemented
        cdef DLDevice a = self.value, b = (<Device>other).value
        return a.device_type == b.device_type and a.device_id == b.device_id

    def __ne__(self, other):
        return differs(self, other)

    def __hash__(self):
        return hash((self.value.device_type, self.value.device_id))

    def __reduce__(self):
        return type(self), (self.value.device_type, self.value.device_id)


cdef class In:
    """Marks an array argument of a call as only read: ``lib["sum"](portcall.In(a), out)``.

    Compiled code says of no argument whether it writes to it. So read-only arrays are refused, and a copy that had to
    be made is copied back, unless the argument is marked.
    """

    cdef readonly object value

    def __init__(self, value):
        self.value = value


# ---- Python to cells -------------------------------------------------------------------------------------------------

cdef PyTypeObject* ndarray_type = NULL
cdef PyTypeObject* tensor_type = NULL
cdef PyTypeObject* packed_func_type = NULL
cdef DLDataType numpy_types[kNumNumpyTypes]
cdef dict numpy_extra_types = {}  # dtype -> DataType, for types that NumPy does not define itself
cdef bint copies_allowed = True
cdef int64_t copy_count = 0, copy_nbytes = 0
cdef bint copy_warned = False


cdef void fill_numpy_types():
    # NumPy's numbers of its own types, which are part of its ABI.
    memset(numpy_types, 0, sizeof(numpy_types))
    for number, code, bits in [
        (0, 6, 8), (1, 0, 8), (2, 1, 8), (3, 0, 16), (4, 1, 16), (5, 0, 32), (6, 1, 32),
        (7, 0, 8 * sizeof(long)), (8, 1, 8 * sizeof(long)), (9, 0, 64), (10, 1, 64),
        (11, 2, 32), (12, 2, 64), (14, 5, 64), (15, 5, 128), (23, 2, 16),
    ]:
        numpy_types[number] = DLDataType(code=code, bits=bits, lanes=1)


fill_numpy_types()


cdef inline void set_cell(TVMFFIAny* cell, int32_t type_index) noexcept nogil:
    cell.type_index = type_index
    cell.zero_padding = 0
    cell.v_int64 = 0


cdef object argument_error(Frame* frame, int i, expected, got, advice=""):
    """The error for argument ``i`` of a call, or for an item of a container; without a frame, for a value."""
    if frame == NULL:
        return errors.ArgumentError(f"expected {expected}, got {got}{'; ' + advice if advice else ''}",
                                    expected=expected, got=got)
    name = (<PackedFunc>frame.func).name if frame.func != NULL else ""
    where = f"{name}(): argument #{i}" if name else f"argument #{i}" if frame.func != NULL else f"item {i}"
    return errors.ArgumentError(f"{where}: expected {expected}, got {got}{'; ' + advice if advice else ''}",
                                function=name, position=i, expected=expected, got=got)


cdef inline int borrow(Frame* frame, int i, Object obj) except -1:
    """Pass an object that the caller holds until the call is over."""
    cdef TVMFFIAny* cell = &frame.cells[i]
    if obj.handle == NULL:
        raise argument_error(frame, i, "an object", f"a {type(obj).__name__} that was never made")
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
    """Pass text as a copy. Bytes that were no UTF-8 came in as surrogates and go out as they were."""
    cdef TVMFFIByteArray view
    try:
        data = str.encode(text, "utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise argument_error(frame, i, "text that UTF-8 can express", f"half a surrogate pair at {error.start}") from None
    view.data = PyBytes_AS_STRING(data)
    view.size = <size_t>PyBytes_GET_SIZE(data)
    return own_cell(frame, i, core.string_from_byte_array(&view, &frame.cells[i]))


cdef int set_wide_integer(Frame* frame, int i, value) except -1:
    words = value.bit_length() // 64 + 1
    data = value.to_bytes(words * 8, "little", signed=True)
    cdef TVMFFIByteArray view
    view.data = PyBytes_AS_STRING(data)
    view.size = len(data)
    return own_cell(frame, i, core.big_int_from_byte_array(&view, &frame.cells[i]))


cdef int describe_ndarray(Frame* frame, int i, PyObject* arg, DLTensor* tensor) except -1:
    """Describe an array's memory; shape is NumPy's own, strides are left to the caller."""
    cdef NumpyArray* array = <NumpyArray*>arg
    cdef int number = array.descr.type_num
    if unlikely(number < 0 or number >= kNumNumpyTypes or numpy_types[number].bits == 0):
        tensor.dtype = other_numpy_type(frame, i, <object>arg)
    else:
        tensor.dtype = numpy_types[number]
    if unlikely(array.descr.byteorder == c">"):
        raise argument_error(frame, i, "an array with its bytes in this machine's order", f"dtype {(<object>arg).dtype}",
                             "convert it with a.astype(a.dtype.newbyteorder('='))")
    tensor.data = array.data
    tensor.device.device_type = kDLCPU
    tensor.device.device_id = 0
    tensor.ndim = array.nd
    tensor.shape = <int64_t*>array.dimensions
    tensor.strides = NULL
    tensor.byte_offset = 0
    return 0


cdef DLDataType other_numpy_type(Frame* frame, int i, array) except *:
    """The data type of an array whose element type another package defines (ml_dtypes), by its name."""
    found = numpy_extra_types.get(array.dtype)
    if found is None:
        found = data_type_named(array.dtype) if array.dtype.num >= kNumpyUserTypes else None
        if found is None:
            raise argument_error(frame, i, "an array of numbers that tensors can hold", f"dtype {array.dtype}")
        numpy_extra_types[array.dtype] = found
    return (<DataType>found).value


cdef object data_type_named(numpy_dtype):
    """None where there is none, or where tensors keep such elements otherwise: several to a byte."""
    try:
        found = DataType(numpy_dtype.name)
    except ValueError:
        return None
    return found if found.bits == 8 * numpy_dtype.itemsize else None


cdef inline int set_ndarray(Frame* frame, int i, PyObject* arg) except -1:
    cdef NumpyArray* array = <NumpyArray*>arg
    cdef DLTensor* tensor
    cdef void* handle
    if unlikely(frame.flags & kPortcallFunctionLibrary and not (
            array.flags & kNumpyContiguous and array.flags & kNumpyWriteable
            and <uintptr_t>array.data % kAlignment == 0)):
        if (not frame.flags & kPortcallFunctionGenerated or frame.tensors == NULL or not copies_allowed
                or not array.flags & kNumpyContiguous or not array.flags & kNumpyWriteable):
            return set_made_tensor(frame, i, tensor_from_ndarray(frame, i, <object>arg), False)
        return set_aligned_copy(frame, i, arg)
    if frame.flags & kPortcallFunctionGenerated and frame.tensors != NULL:
        tensor = &frame.tensors[i]
        describe_ndarray(frame, i, arg, tensor)
        frame.cells[i].type_index = kTVMFFIDLTensorPtr
        frame.cells[i].v_ptr = tensor
        return 0
    memory_of_ndarray(frame, i, arg, &handle)
    return own(frame, i, handle)


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


cdef void release_python(void* owner) noexcept nogil:
    """Drop a reference to a Python object, from any thread."""
    if HoldsLock():
        DropReference(owner)
    elif Py_IsInitialized():
        shielded_release(release_with_lock, owner)


cdef void release_with_lock(void* owner) noexcept with gil:
    Py_DECREF(<object>owner)


cdef int memory_of_ndarray(Frame* frame, int i, PyObject* arg, void** handle) except -1:
    """A tensor object over the array's memory, which it keeps alive."""
    cdef NumpyArray* view = <NumpyArray*>arg
    cdef DLTensor tensor
    cdef int64_t strides[64]
    cdef int64_t item
    cdef int k
    describe_ndarray(frame, i, arg, &tensor)
    if not view.flags & kNumpyContiguous:
        item = tensor.dtype.bits * tensor.dtype.lanes // 8
        for k in range(view.nd):
            if item == 0 or view.strides[k] % item != 0:
                raise argument_error(frame, i, "an array with strides of whole elements", f"strides {(<object>arg).strides}",
                                     "pass np.ascontiguousarray(a)")
            strides[k] = view.strides[k] // item
        tensor.strides = strides
    cdef uint64_t flags = 0 if view.flags & kNumpyWriteable else DLPACK_FLAG_BITMASK_READ_ONLY
    if core.tensor_from_memory(&tensor, flags, arg, release_python, handle) != 0:
        raise_raised(None)
    Py_INCREF(<object>arg)
    return 0


cdef Tensor tensor_from_ndarray(Frame* frame, int i, array):
    cdef void* handle
    memory_of_ndarray(frame, i, <PyObject*>array, &handle)
    return <Tensor>wrap(classes[kTVMFFITensor], handle)


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


cdef int set_tensor(Frame* frame, int i, Tensor tensor, bint only_read) except -1:
    """Pass a tensor. Compiled code gets one that is compact, aligned and writable, if need be a copy."""
    cdef const DLTensor* dl = tensor.dl()
    cdef bint fits = True
    if frame.flags & kPortcallFunctionLibrary:
        if not only_read and core.tensor_get_flags(tensor.handle) & DLPACK_FLAG_BITMASK_READ_ONLY:
            raise argument_error(frame, i, "a writable tensor, because compiled code may write to it", "a read-only one",
                                 "pass portcall.In(a) if it is only read, or a copy")
        fits = is_compact(dl) and (dl.device.device_type != kDLCPU
                                   or (<uintptr_t>dl.data + dl.byte_offset) % kAlignment == 0)
    if fits:
        return borrow(frame, i, tensor)
    return hold(frame, i, scratch_of(frame, i, tensor, only_read))


cdef int hold(Frame* frame, int i, Object obj) except -1:
    """Pass an object that was made for this call."""
    core.object_inc_ref(obj.handle)
    return own(frame, i, obj.handle)


cdef int set_made_tensor(Frame* frame, int i, Tensor tensor, bint only_read) except -1:
    """The same for a tensor that only this call refers to."""
    set_tensor(frame, i, tensor, only_read)
    return hold(frame, i, tensor) if frame.cells[i].v_ptr == tensor.handle else 0


cdef Tensor read_only_view(Tensor tensor):
    cdef void* handle
    if core.tensor_get_flags(tensor.handle) & DLPACK_FLAG_BITMASK_READ_ONLY:
        return tensor
    if core.tensor_from_memory(tensor.dl(), DLPACK_FLAG_BITMASK_READ_ONLY, <void*>tensor, release_python, &handle) != 0:
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


cdef int set_other(Frame* frame, int i, arg) except -1:
    """Write a value of a less frequent type, or refuse it."""
    cdef TVMFFIAny* cell = &frame.cells[i]
    cdef TVMFFIByteArray view
    cdef object plain
    cdef PyTypeObject* kind = Py_TYPE(<PyObject*>arg)
    if kind == last_exchange_type:
        return set_exchanged(frame, i, arg, last_exchange)
    if kind == &PyFunction_Type or kind == &PyMethod_Type or kind == &PyCFunction_Type:
        return own(frame, i, function_handle(arg, PlainName(<PyObject*>arg)))
    if kind == &PyList_Type or kind == &PyTuple_Type:
        return own(frame, i, make_array(arg))
    if kind == &PyDict_Type:
        return own(frame, i, make_map(arg))
    if kind == &PyBytes_Type:
        view.data = PyBytes_AS_STRING(arg)
        view.size = PyBytes_GET_SIZE(arg)
        return own_cell(frame, i, core.bytes_from_byte_array(&view, cell))
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
    if isinstance(arg, In):
        value = as_tensor(frame, i, (<In>arg).value)
        if value is None:
            raise argument_error(frame, i, "an array inside portcall.In", type((<In>arg).value).__name__)
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
        data = bytes(arg)
        view.data = PyBytes_AS_STRING(data)
        view.size = PyBytes_GET_SIZE(data)
        return own_cell(frame, i, core.bytes_from_byte_array(&view, cell))
    return set_rest(frame, i, arg)


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
        if len(exchanges) > kMaxExchangeTypes:  # types that come and go are not kept for ever
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
    cdef DLManagedTensorVersioned* managed
    cdef DLTensor dl
    cdef void* handle
    if exchange.requires_grad != NULL:
        if exchange.requires_grad.get(arg, exchange.requires_grad.closure):  # which torch checks in Python only
            return set_made_tensor(frame, i, from_dlpack(arg), False)
        exchange.table.borrow(<PyObject*>arg, &dl)
        if dl.dtype.code == kDLComplex:  # the same of those that have yet to be conjugated
            return set_made_tensor(frame, i, from_dlpack(arg), False)
        if dl.device.device_type == kDLCPU:
            return set_borrowed(frame, i, arg, &dl)
    exchange.table.from_object(<PyObject*>arg, &managed)
    if unlikely(managed.dl_tensor.device.device_type != kDLCPU):  # the producer has streams to wait for
        managed.deleter(managed)
        return set_made_tensor(frame, i, from_dlpack(arg), False)
    if core.tensor_from_dlpack_versioned(managed, 0, 0, &handle) != 0:
        raise_raised(None)
    if frame.flags & kPortcallFunctionLibrary:
        return set_made_tensor(frame, i, <Tensor>wrap(classes[kTVMFFITensor], handle), False)
    return own(frame, i, handle)


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
    if frame.flags & kPortcallFunctionLibrary:
        return set_made_tensor(frame, i, <Tensor>wrap(classes[kTVMFFITensor], handle), False)
    return own(frame, i, handle)


cdef int set_rest(Frame* frame, int i, arg) except -1:
    cdef void* handle
    if boxers:
        boxer = boxer_of(arg)
        if boxer is not None:
            return hold(frame, i, <Object>boxer(arg))
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
        return own(frame, i, make_array(arg))
    if isinstance(arg, Mapping):
        return own(frame, i, make_map(arg))
    if isinstance(arg, BaseException):
        return own(frame, i, make_error(arg))
    if isinstance(arg, c_void_p):
        set_cell(&frame.cells[i], kTVMFFIOpaquePtr)
        frame.cells[i].v_ptr = <void*><uintptr_t>(arg.value or 0)
        return 0
    if callable(arg):
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
        raise argument_error(frame, i, "a number, str, bytes, tensor, function or container", type(arg).__name__)
    if core.object_create_opaque(<void*>arg, kTVMFFIOpaquePyObject, release_python, &handle) != 0:
        raise_raised(None)
    Py_INCREF(arg)
    return own(frame, i, handle)


cdef object dtype_reader = None


def register_dtype_reader(reader):
    """Have element types of other packages travel as the DataType that ``reader`` returns; None for other values."""
    global dtype_reader
    dtype_reader = reader


cdef bint is_numpy_scalar(arg):
    return ndarray_type != NULL and isinstance(arg, numpy_generic)


cdef object python_scalar(scalar):
    item = scalar.item()
    if isinstance(item, numpy_generic):  # Python has no number as wide as a long double
        return complex(item) if scalar.dtype.kind == "c" else float(item)
    return item


cdef object numpy_generic = None
cdef PyTypeObject* numpy_integer = NULL
cdef PyTypeObject* numpy_floating = NULL
cdef PyTypeObject* numpy_bool = NULL


cdef bint learn_numpy(arg):
    """Note the array type the first time that one is seen; NumPy is not imported for this."""
    global ndarray_type, numpy_generic, numpy_integer, numpy_floating, numpy_bool
    import sys
    numpy = sys.modules.get("numpy")
    if ndarray_type != NULL or numpy is None:
        return False
    ndarray_type = <PyTypeObject*>numpy.ndarray
    numpy_generic = numpy.generic
    numpy_integer = <PyTypeObject*>numpy.integer
    numpy_floating = <PyTypeObject*>numpy.floating
    numpy_bool = <PyTypeObject*>numpy.bool_
    return True


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
        return from_dlpack(arg)
    if hasattr(arg, "__array_interface__"):
        import numpy
        learn_numpy(arg)
        return tensor_from_ndarray(frame, i, numpy.asarray(arg))
    return None


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
        raise RecursionError(f"containers nest more than {kMaxNesting} deep, or contain themselves")
    change_container_depth(1)
    return 0


cdef Cells cells_of(items):
    """The cells of a container's items, which may be containers."""
    enter_container()
    try:
        return Cells(items)
    finally:
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


cdef void* make_array(items) except NULL:
    cdef StackFrame frame
    cdef PythonArguments held  # a list may change while its items are read
    cdef Cells cells
    cdef void* handle
    cdef Py_ssize_t size
    cdef tuple values
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
    cells = cells_of(values)
    if core.array_create(cells.frame.cells, cells.size, &handle) != 0:
        raise_raised(None)
    return handle


cdef void* make_map(mapping) except NULL:
    cdef StackFrame frame
    cdef Cells cells
    cdef void* handle
    cdef list pairs = []
    cdef tuple flat
    for key, value in mapping.items():
        pairs.append(key)
        pairs.append(value)
    flat = tuple(pairs)
    if len(flat) <= kStackArgs:
        fill(&frame, (<PyTupleObject*>flat).ob_item, len(flat))
        if core.map_create(frame.cells, len(flat) // 2, &handle) != 0:
            raise_raised(None)
        return handle
    cells = cells_of(flat)
    if core.map_create(cells.frame.cells, cells.size // 2, &handle) != 0:
        raise_raised(None)
    return handle


cdef class Cells:
    """Python values as cells on the heap, for containers and long calls."""

    cdef Frame frame
    cdef int size
    cdef object values  # alive as long as the cells that borrow from them

    def __cinit__(self, values, PackedFunc func=None):
        self.values = tuple(values)
        self.size = len(self.values)
        if func is not None:
            self.frame.flags = func.flags
            self.frame.func = <PyObject*>func
        self.frame.cells = <TVMFFIAny*>malloc(max(self.size, 1) * sizeof(TVMFFIAny))
        self.frame.held = <void**>malloc(max(self.size, 1) * sizeof(void*))
        if self.frame.cells == NULL or self.frame.held == NULL:
            raise MemoryError
        for i in range(self.size):
            set_argument(&self.frame, i, <PyObject*>self.values[i])

    def __dealloc__(self):
        self.frame.Release()
        free(self.frame.cells)
        free(self.frame.held)


cdef int copy_back(Frame* frame) except -1:
    for original, scratch, only_read in <list>frame.copies:
        if not only_read:
            copy_tensor((<Tensor>scratch).dl(), (<Tensor>original).dl())
    return 0


cdef list spare_blocks = []  # memory of earlier copies: fresh pages cost more than the copy itself
cdef int64_t spare_nbytes = 0


cdef class Block:
    """Memory lent to one tensor, which comes back when nobody refers to that any more."""

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
    description.data = (<const DLTensor*>(<char*>block.tensor + 24)).data
    description.byte_offset = 0
    description.strides = NULL
    if core.tensor_from_memory(&description, 0, <void*>block, return_block, &handle) != 0:
        raise_raised(None)
    Py_INCREF(block)
    return <Tensor>wrap(classes[kTVMFFITensor], handle)


# ---- Cells to Python -------------------------------------------------------------------------------------------------

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
    cdef void* body = <char*>obj + 24
    cdef TVMFFIByteArray* text = <TVMFFIByteArray*>body
    cdef TVMFFIShapeCell* shape = <TVMFFIShapeCell*>body
    cdef TVMFFIAny cell
    cdef TVMFFIByteArray words
    if kind == kTVMFFIStr:
        return text_of(text[0])
    if kind == kTVMFFIBytes:
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


# ---- Functions -------------------------------------------------------------------------------------------------------

cdef class PackedFunc(Object):
    """A function of any language, called like a Python function. Positional arguments only."""

    cdef vectorcallfunc vectorcall
    cdef TVMFFISafeCallType call
    cdef void* self_
    cdef int32_t flags

    def __init__(self, *args, **kwargs):
        raise TypeError("use portcall.convert(callable) to make a PackedFunc")

    def __call__(self, *args):
        """Call the function. Its errors arrive as exceptions of their kind."""
        return call_long(self, args)

    @property
    def name(self) -> str:
        """The function's name in messages; empty when it has none."""
        cdef PortcallFunctionInfo info
        core.function_get_info(made(self), &info)
        return (<bytes>info.name).decode(errors="replace")

    @property
    def is_short(self) -> bool:
        """Whether calls keep the interpreter lock."""
        return bool(self.flags & kPortcallFunctionShort)

    def __getattr__(self, name):
        """``__signature__``, for ``inspect.signature``; a property would stand for the class's signature too."""
        if name != "__signature__":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        cdef PortcallFunctionInfo info
        core.function_get_info(made(self), &info)
        python = <object>self.self_ if <void*>self.call == <void*>call_python else None
        text = (<bytes>(info.name + strlen(info.name) + 1)) if info.flags & kPortcallFunctionSigned else b""
        from portcall._signature import signature_of  # here: few programs ask, and it loads a lot
        return signature_of(self, python, text.decode(errors="replace"))

    def __repr__(self):
        return f"PackedFunc({self.name or 'at ' + hex(<uintptr_t>self.handle)})"


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


cdef int invoke(PackedFunc func, const TVMFFIAny* cells, int32_t size, TVMFFIAny* result) noexcept:
    cdef PyThreadState* state
    cdef int status
    if func.flags & kPortcallFunctionShort:
        return func.call(func.self_, cells, size, result)
    state = PyEval_SaveThread()
    status = func.call(func.self_, cells, size, result)
    ShieldedRestoreThread(state)
    return status


cdef object call_function(object self, PyObject* const* args, size_t nargsf, PyObject* keywords):
    """What Python calls: arguments on the stack, up to kStackArgs of them."""
    cdef StackFrame frame
    cdef TVMFFIAny result
    cdef int i
    cdef int32_t size = <int32_t>PyVectorcall_NARGS(nargsf)
    cdef PackedFunc func = <PackedFunc>self
    if unlikely(keywords != NULL):
        refuse_keywords(func, <object>keywords)
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
            f"{func.name or 'the function'}() returned a borrowed tensor (DLTensor*), whose owner is not known")
    return take_value(result)


cdef object call_long(PackedFunc func, args):
    cdef Cells cells = Cells(args, func)
    cdef TVMFFIAny result
    set_cell(&result, kTVMFFINone)
    if invoke(func, cells.frame.cells, cells.size, &result) != 0:
        raise_raised(func)
    return finish(&cells.frame, &result, func)


cdef refuse_keywords(PackedFunc func, names):
    raise errors.ArgumentError(
        f"{func.name or 'a PackedFunc'}() takes positional arguments only, got {', '.join(names)}=", function=func.name,
        expected="positional arguments", got=f"keyword {names[0]!r}")


# ---- Functions written in Python -------------------------------------------------------------------------------------

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
    """A tensor that was lent for one call: whoever still holds it finds its memory gone rather than dangling."""
    (<DLTensor*>(<char*>tensor.handle + 24)).data = NULL
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
    if core.function_create(<void*>callable_, call_python, release_python, kPortcallFunctionShort, name, &handle) != 0:
        raise_raised(None)
    Py_INCREF(callable_)
    return handle


cdef PackedFunc make_function(callable_, name):
    cdef bytes text = str(name).encode(errors="replace")
    return wrap_function(function_handle(callable_, text))


# ---- Errors ----------------------------------------------------------------------------------------------------------

cdef dict error_classes = {}  # kind -> exception class
cdef const char* kNotePrefix = b"  Note: "  # see portcall/error.h


def register_error_class(str kind, cls):
    """Have errors of ``kind`` arrive as ``cls``, which is called with the message, and with the facts that the core adds
    to errors of that kind by name.
    """
    error_classes[kind] = cls


cdef TVMFFIErrorCell* error_cell(void* handle):
    return <TVMFFIErrorCell*>(<char*>handle + 24)


cdef bint is_our_opaque(TVMFFIObject* obj):
    return opaque_value_or_null(obj) != NULL


cdef PyObject* opaque_value_or_null(TVMFFIObject* obj):
    """The Python object inside, if this binding made the wrapper: the pointer behind the header, then our release."""
    cdef void** body = <void**>(<char*>obj + 24)
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
    if "position" in facts:
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
    if tag == "portcall.GraphError" and len(items) == 1:
        return {"node": items[0]}
    return {}


cdef int raise_raised(PackedFunc func) except -1:
    """Raise what the core left in this thread's slot, with the frames of its own language below ours."""
    cdef void* handle = NULL
    core.error_move_from_raised(&handle)
    if handle == NULL:
        name = func.name if func is not None else ""
        raise RuntimeError(f"{name or 'the function'}() failed (nonzero return) without setting an error")
    cdef TVMFFIErrorCell* cell = error_cell(handle)
    frames = parse_frames(text_of(cell.backtrace)) if cell.backtrace.size and cell.extra_context == NULL else []
    return RaiseWithFrames(take_exception(handle), frames)


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
    return "".join(reversed(lines))


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


# ---- Tensors ---------------------------------------------------------------------------------------------------------

cdef class Tensor(Object):
    """Base of portcall.Tensor: shared memory with a shape."""

    cdef const DLTensor* dl(self) except NULL:
        if self.handle == NULL:
            raise ValueError("the tensor was never made; use portcall.empty or portcall.tensor")
        cdef const DLTensor* dl = <const DLTensor*>(<char*>self.handle + 24)
        if dl.data == NULL and num_elements(dl) > 0:
            raise ValueError(
                "this tensor was lent to a function for one call, which is over; copy it inside the function to keep it")
        return dl

    @property
    def shape(self) -> tuple:
        cdef const DLTensor* dl = self.dl()
        return tuple([dl.shape[k] for k in range(dl.ndim)])

    @property
    def strides(self) -> tuple:
        """Distances between neighbours along each axis, in elements."""
        cdef const DLTensor* dl = self.dl()
        return tuple([dl.strides[k] for k in range(dl.ndim)])

    @property
    def ndim(self) -> int:
        return self.dl().ndim

    @property
    def dtype(self):
        dtype = classes[kTVMFFIDataType]()
        (<DataType>dtype).value = self.dl().dtype
        return dtype

    @property
    def device(self):
        cdef DLDevice device = self.dl().device
        return classes[kTVMFFIDevice](device.device_type, device.device_id)

    @property
    def size(self) -> int:
        """Number of elements."""
        return num_elements(self.dl())

    @property
    def nbytes(self) -> int:
        cdef DLDataType dtype = self.dl().dtype
        return (self.size * dtype.bits * dtype.lanes + 7) // 8

    @property
    def data_ptr(self) -> int:
        """Address of the first element."""
        cdef const DLTensor* dl = self.dl()
        return <uintptr_t>dl.data + dl.byte_offset

    @property
    def is_contiguous(self) -> bool:
        return is_compact(self.dl())

    @property
    def readonly(self) -> bool:
        self.dl()
        return bool(core.tensor_get_flags(self.handle) & DLPACK_FLAG_BITMASK_READ_ONLY)

    def _part(self, tuple shape, strides, DataType dtype not None, uint64_t byte_offset):
        """A view, which the caller has checked to be inside. Without strides it is compact."""
        cdef DLTensor description = self.dl()[0]
        cdef int64_t extents[kMaxDimensions]
        cdef int64_t steps[kMaxDimensions]
        cdef void* handle
        fill_extents(extents, shape)
        description.ndim = <int32_t>len(shape)
        description.shape = extents
        description.strides = NULL
        if strides is not None:
            fill_extents(steps, strides)
            description.strides = steps
        description.dtype = dtype.value
        description.byte_offset += byte_offset
        if description.device.device_type == kDLCPU and description.data != NULL:  # kernels of TVM take no offset
            description.data = <char*>description.data + description.byte_offset
            description.byte_offset = 0
        if core.tensor_create_view(self.handle, &description, &handle) != 0:
            raise_raised(None)
        return wrap(classes[kTVMFFITensor], handle)

    def _copy_from(self, Tensor source):
        copy_tensor(source.dl(), self.dl())

    def _export(self, bint versioned):
        cdef DLManagedTensor* managed
        cdef DLManagedTensorVersioned* managed_versioned
        self.dl()
        if versioned:
            if core.tensor_to_dlpack_versioned(self.handle, &managed_versioned) != 0:
                raise_raised(None)
            return PyCapsule_New(managed_versioned, "dltensor_versioned", delete_versioned_capsule)
        if core.tensor_to_dlpack(self.handle, &managed) != 0:
            raise_raised(None)
        return PyCapsule_New(managed, "dltensor", delete_capsule)


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
    elif type(source) in unversioned_types:
        capsule = source.__dlpack__()
    else:
        try:
            capsule = source.__dlpack__(max_version=(1, 1))
        except TypeError:
            unversioned_types.add(type(source))
            capsule = source.__dlpack__()
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
        raise errors.ArgumentError("expected a DLPack capsule that nobody has used yet", expected="a DLPack capsule",
                                   got=repr(capsule))
    return wrap(classes[kTVMFFITensor], handle)


def tensor_over(source):
    """A tensor over the memory of any array object, which it keeps alive.

    Raises:
        ArgumentError: ``source`` is not an array.
    """
    if ndarray_type == NULL:
        learn_numpy(source)
    if is_numpy_scalar(source):  # an array without dimensions here; a number where it is an argument
        import numpy
        source = numpy.asarray(source)
    found = as_tensor(NULL, 0, source)
    if found is None:
        raise errors.ArgumentError(f"expected an array (NumPy, DLPack or array interface), got {type(source).__name__}",
                                   expected="an array", got=type(source).__name__)
    return found


def tensor_over_bytes(buffer):
    """A tensor of bytes over a buffer, which it keeps; read-only where that is."""
    cdef DLTensor description
    cdef int64_t extent
    cdef void* handle
    view = memoryview(buffer).cast("B")
    cdef Py_buffer* raw = PyMemoryView_GET_BUFFER(view)
    extent = raw.len
    memset(&description, 0, sizeof(description))
    description.data = raw.buf
    description.device.device_type = kDLCPU
    description.ndim = 1
    description.shape = &extent
    description.dtype = DLDataType(code=kDLUInt, bits=8, lanes=1)
    if core.tensor_from_memory(&description, DLPACK_FLAG_BITMASK_READ_ONLY if raw.readonly else 0, <void*>view,
                               release_python, &handle) != 0:
        raise_raised(None)
    Py_INCREF(view)
    return wrap(classes[kTVMFFITensor], handle)


def memory_of(Tensor tensor not None):
    """The bytes of a compact tensor on the host as a memoryview, valid as long as the tensor."""
    cdef const DLTensor* dl = tensor.dl()
    if dl.device.device_type != kDLCPU or not tensor.is_contiguous:
        raise ValueError(f"expected a compact tensor on the host, got one on {tensor.device}")
    return PyMemoryView_FromMemory(<char*>dl.data + dl.byte_offset, tensor.nbytes,
                                   PyBUF_READ if tensor.readonly else PyBUF_WRITE)


def new_bytes(Py_ssize_t size):
    """Bytes, and a memoryview to fill them through before anybody else sees them; it is valid as long as they are."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    cdef uintptr_t end = <uintptr_t>PyBytes_AS_STRING(made) + size
    cdef uintptr_t start = (<uintptr_t>PyBytes_AS_STRING(made) + kLargePage - 1) & ~<uintptr_t>(kLargePage - 1)
    if end > start:  # where the system has them: filling them for the first time then costs a fraction
        madvise(<void*>start, end - start, MADV_HUGEPAGE)
    return made, PyMemoryView_FromMemory(PyBytes_AS_STRING(made), size, PyBUF_WRITE)


cdef int fill_extents(int64_t* out, tuple values) except -1:
    if len(values) > kMaxDimensions:
        raise ValueError(f"a tensor with {len(values)} dimensions; at most {kMaxDimensions} are supported")
    for k, value in enumerate(values):
        try:
            out[k] = value
        except OverflowError:
            raise ValueError(f"the tensor is too large (axis {k} has extent {value})") from None
    return 0


def empty_tensor(tuple shape, DataType dtype not None, Device device not None):
    """Uninitialised memory, 64-byte aligned."""
    cdef DLTensor prototype
    cdef int64_t extents[kMaxDimensions]
    cdef void* handle
    fill_extents(extents, shape)
    memset(&prototype, 0, sizeof(prototype))
    prototype.shape = extents
    prototype.ndim = <int32_t>len(shape)
    prototype.dtype = dtype.value
    prototype.device = device.value
    if core.tensor_alloc(&prototype, &handle) != 0:
        raise_raised(None)
    return wrap(classes[kTVMFFITensor], handle)


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


def registries():
    """The tables of what was registered with the binding; for tests, which take out of them what they put in."""
    dynamic_classes.clear()
    return {"value type": boxers, "error class": error_classes, "class of objects": keyed_classes,
            "alignment policy": {"copies": copies_allowed}}


# ---- Containers ------------------------------------------------------------------------------------------------------

def array_items(Object array not None):
    """The elements of an Array or List, as they are now: making objects of Python may run anything."""
    cdef TVMFFISeqCell* cell = <TVMFFISeqCell*>(<char*>made(array) + 24)
    cdef void* copy
    if (<TVMFFIObject*>array.handle).type_index != kTVMFFIList:
        return [borrowed_value(&(<TVMFFIAny*>cell.data)[k]) for k in range(cell.size)]
    if core.array_create(<TVMFFIAny*>cell.data, cell.size, &copy) != 0:
        raise_raised(None)
    return array_items(<Object>wrap(classes[kTVMFFIArray], copy))


def array_size(Object array not None):
    return (<TVMFFISeqCell*>(<char*>made(array) + 24)).size


def array_item(Object array not None, int64_t index):
    cdef TVMFFISeqCell* cell = <TVMFFISeqCell*>(<char*>made(array) + 24)
    if index < 0 or index >= cell.size:
        raise IndexError(f"index {index} is out of range for {cell.size} items")
    return borrowed_value(&(<TVMFFIAny*>cell.data)[index])


def fill_array(Object array not None, items):
    """Make an object of Python refer to a new Array."""
    become(array, make_array(items))


def map_size(Object map_ not None):
    return core.map_size(made(map_))


def map_parts(Object map_ not None, bint with_values):
    """The keys in order of insertion, as they are now, or keys and values in turn."""
    cdef void* handle = made(map_)
    cdef const TVMFFIAny* pair = NULL
    cdef int64_t each = 2 if with_values else 1, size = core.map_size(handle), k
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
    return array_items(<Object>wrap(classes[kTVMFFIArray], array))


def map_get(Object map_ not None, key, default):
    cdef Cells cells = Cells((key,))
    cdef const TVMFFIAny* value
    if core.map_find(made(map_), cells.frame.cells, &value) != 0:
        raise_raised(None)
    return default if value == NULL else borrowed_value(value)


def fill_map(Object map_ not None, mapping):
    """The same for a Map."""
    become(map_, make_map(mapping))


def fill_list(Object list_ not None, items):
    """The same for a List."""
    cdef Cells cells = cells_of(items)
    cdef void* handle
    if core.list_create(cells.frame.cells, cells.size, &handle) != 0:
        raise_raised(None)
    become(list_, handle)


def fill_dict(Object dict_ not None, mapping):
    """The same for a Dict."""
    cdef Cells cells = cells_of([part for pair in mapping.items() for part in pair])
    cdef void* handle
    if core.dict_create(cells.frame.cells, cells.size // 2, &handle) != 0:
        raise_raised(None)
    become(dict_, handle)


def splice_list(Object list_ not None, int64_t start, int64_t count, items):
    """Put items in the place of ``count`` from ``start`` on."""
    cdef Cells cells = cells_of(items)
    made(list_)
    if core.array_splice(&list_.handle, start, count, cells.frame.cells, cells.size) != 0:
        raise_raised(None)


def set_pair(Object dict_ not None, key, value):
    cdef Cells cells = cells_of((key, value))
    made(dict_)
    if core.map_set(&dict_.handle, cells.frame.cells, cells.frame.cells + 1) != 0:
        raise_raised(None)


def erase_pair(Object dict_ not None, key):
    """Whether there was one."""
    cdef Cells cells = cells_of((key,))
    cdef int erased = 0
    made(dict_)
    if core.map_erase(&dict_.handle, cells.frame.cells, &erased) != 0:
        raise_raised(None)
    return erased != 0


# ---- Registry --------------------------------------------------------------------------------------------------------

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


packed_func_type = <PyTypeObject*>PackedFunc
cdef PackedFunc sample = make_function(len, "")
EnableVectorcall(<PyTypeObject*>PackedFunc, <char*>&sample.vectorcall - <char*><PyObject*>sample)
sample = None

from collections.abc import Mapping
from ctypes import c_void_p
