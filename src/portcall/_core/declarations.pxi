# SPDX-License-Identifier: Apache-2.0
# What the binding uses of C: the core's table, Python, NumPy's layout, and small helpers in C++.

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
        kPortcallDynObjectBegin
        kPortcallMostTypes
        kPortcallFunctionShort
        kPortcallFunctionLibrary
        kPortcallFunctionSigned
        kPortcallFunctionGenerated
        kPortcallFunctionPython
        kDLCPU
        kDLUInt
        kDLComplex
        DLPACK_FLAG_BITMASK_READ_ONLY
    uint64_t PORTCALL_TENSOR_MARKED

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
        uint32_t padding
        void (*deleter)(void*, int) noexcept nogil

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
        TVMFFIByteArray metadata
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
    #include <unordered_map>

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

    #ifdef __GLIBCXX__
    using ForcedUnwind = abi::__forced_unwind;
    #else
    struct ForcedUnwind {};  // musl's pthread_exit() unwinds nothing
    #endif

    // While the process ends, Python ends the threads that want its lock: pthread_exit() unwinds their stacks, of which
    // frames of C++ make an abort. Such a thread waits here instead, until the process is gone.
    template <typename Body, typename... Args>
    static inline auto Shielded(Body body, Args... args) -> decltype(body(args...)) {
      try {
        return body(args...);
      } catch (ForcedUnwind&) {
        for (;;) pause();
      }
    }
    static inline PyObject* ShieldedVectorcall(PyObject* callable, PyObject* const* args, size_t size) {
      return Shielded(PyObject_Vectorcall, callable, args, size, (PyObject*)NULL);
    }
    static inline void ShieldedRestoreThread(PyThreadState* state) { Shielded(PyEval_RestoreThread, state); }

    // What escaped from the last call in this thread: an exception of C++ that a library let through, and that no frame
    // of Python's would catch.
    static thread_local bool escaped = false;
    static inline int CallCatching(TVMFFISafeCallType call, void* self, const TVMFFIAny* args, int32_t size,
                                   TVMFFIAny* result) {
      try {
        return call(self, args, size, result);
      } catch (ForcedUnwind&) {
        throw;
      } catch (...) {
        escaped = true;
        return -1;
      }
    }
    static bool TakeEscaped() {
      const bool was = escaped;
      escaped = false;
      return was;
    }

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

    #define PORTCALL_UNLIKELY(x) __builtin_expect(!!(x), 0)

    // The containers inside of one argument, each with what was made of it: it is made once, however often it occurs.
    class MadeContainers {
     public:
      ~MadeContainers() {
        for (auto& [container, handle] : made_) {
          if (handle) TVMFFI_RELEASE(handle);
          Py_DECREF(container);
        }
      }
      // The place for what is made of one, null so far; or of what was made of it, or is being made while that is null.
      TVMFFIObjectHandle* Find(PyObject* container, int* is_new) {
        auto [it, added] = made_.try_emplace(container, nullptr);
        if (added) Py_INCREF(container);  // else another one could take its address
        *is_new = added;
        return &it->second;
      }

     private:
      std::unordered_map<PyObject*, TVMFFIObjectHandle> made_;
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
      MadeContainers* made = nullptr;  // of the argument that the cells are inside of; null if they are arguments
      int32_t device_type = 0, device_id = 0;  // the device whose current stream is another package's until the end

      ~Frame() { Release(); }
      void Release() {
        for (int i = 0; i < num_held; ++i) TVMFFI_RELEASE(held[i]);
        num_held = 0;
        for (int i = 0; i < num_scratch; ++i) free(scratch[i].copy);
        num_scratch = 0;
        Py_CLEAR(copies);
        if (PORTCALL_UNLIKELY(device_type)) PortcallGetCore()->env_set_stream(device_type, device_id, nullptr, nullptr);
        device_type = 0;
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

    // Whether this thread holds the GIL. To ask costs a third of taking it once more.
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

    // The first of them for our own tensors. Callers need not hold the GIL.
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

    cppclass MadeContainers:
        void** Find(PyObject*, int*) except +

    cppclass Frame:
        MadeContainers* made
        Scratch* scratch
        int num_scratch
        TVMFFIAny* cells
        void** held
        int num_held
        int32_t flags
        PyObject* func
        DLTensor* tensors
        PyObject* copies
        int32_t device_type
        int32_t device_id
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
    int shielded_new_bytes "Shielded"(int (*)(size_t, char**, TVMFFIAny*) noexcept nogil, size_t, char**,
                                      TVMFFIAny*) noexcept nogil
    object ShieldedVectorcall(PyObject*, PyObject* const*, size_t)
    void ShieldedRestoreThread(PyThreadState*)
    int CallCatching(TVMFFISafeCallType, void*, const TVMFFIAny*, int32_t, TVMFFIAny*) nogil
    bint TakeEscaped()
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
    PyObject* PyErr_Occurred()
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
