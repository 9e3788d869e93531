// SPDX-License-Identifier: Apache-2.0
// The C ABI of portcall: layouts and functions that compiled libraries, C programs and language bindings use.
//
// Names and layouts of everything that starts with TVMFFI or TVMBackend are those of the tvm-ffi ABI (0.1.x), because
// libraries compiled for it import them by name; docs/abi.md describes them. What starts with Portcall is our own.
//
// Rules
//  * A function that returns int returns 0, or -1 with an error in the calling thread's slot (TVMFFIErrorMoveFromRaised).
//  * Arguments are borrowed. A result cell is owned by the caller, who sets its type_index to kTVMFFINone beforehand.
//  * A handle that is returned through an out parameter is owned by the caller, unless its comment says borrowed.
#ifndef PORTCALL_C_API_H_
#define PORTCALL_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "dlpack.h"

#if defined(PORTCALL_BUILDING) || defined(__GNUC__)
#define PORTCALL_API __attribute__((visibility("default")))
#else
#define PORTCALL_API
#endif

// The version of this ABI. PORTCALL_EXPORT_TYPED writes it into each library, so that a loader can tell.
#define PORTCALL_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

// ---- Values -------------------------------------------------------------------------------------------------------

typedef enum {
  kTVMFFIAny = -1,  // in field annotations only
  kTVMFFINone = 0,
  kTVMFFIInt = 1,
  kTVMFFIBool = 2,
  kTVMFFIFloat = 3,
  kTVMFFIOpaquePtr = 4,
  kTVMFFIDataType = 5,
  kTVMFFIDevice = 6,
  kTVMFFIDLTensorPtr = 7,       // borrowed: valid during the call
  kTVMFFIRawStr = 8,            // arguments only
  kTVMFFIByteArrayPtr = 9,      // arguments only
  kTVMFFIObjectRValueRef = 10,  // arguments only
  kTVMFFISmallStr = 11,
  kTVMFFISmallBytes = 12,
  kTVMFFIUnchanged = 13,
  kTVMFFIStaticObjectBegin = 64,
  kTVMFFIObject = 64,
  kTVMFFIStr = 65,
  kTVMFFIBytes = 66,
  kTVMFFIError = 67,
  kTVMFFIFunction = 68,
  kTVMFFIShape = 69,
  kTVMFFITensor = 70,
  kTVMFFIArray = 71,
  kTVMFFIMap = 72,
  kTVMFFIModule = 73,
  kTVMFFIOpaquePyObject = 74,
  kTVMFFIList = 75,
  kTVMFFIDict = 76,
  kTVMFFIVisitInterrupt = 77,
  kTVMFFIBigInt = 78,
  kTVMFFIStaticObjectEnd = 79,
  kTVMFFIDynObjectBegin = 128,
  kPortcallDynObjectBegin = 8320,  // of this runtime; below, and from 128 on, are types of another one in the process
  kPortcallMostTypes = 32768,      // of this runtime
} TVMFFITypeIndex;

// Header of every object. combined_ref_count: strong count in the low 32 bits, weak count in the high 32 bits; all
// strong references together own one weak reference. deleter flags: 1 runs the destructor, 2 frees the storage.
typedef struct TVMFFIObject {
  uint64_t combined_ref_count;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
} TVMFFIObject;

typedef void* TVMFFIObjectHandle;

// A value of any type: 16 bytes. Bytes of the union that the payload does not cover are zero.
typedef struct TVMFFIAny {
  int32_t type_index;
  union {
    uint32_t zero_padding;
    uint32_t small_str_len;
  };
  union {
    int64_t v_int64;
    double v_float64;
    void* v_ptr;
    const char* v_c_str;
    TVMFFIObject* v_obj;
    DLDataType v_dtype;
    DLDevice v_device;
    char v_bytes[8];
    uint64_t v_uint64;
  };
} TVMFFIAny;

typedef struct TVMFFIByteArray {
  const char* data;
  size_t size;
} TVMFFIByteArray;

// Body of ffi.Shape, after the object header.
typedef struct TVMFFIShapeCell {
  const int64_t* data;
  size_t size;
} TVMFFIShapeCell;

// Body of ffi.Array and ffi.List. data points to `size` owned TVMFFIAny.
typedef struct TVMFFISeqCell {
  void* data;
  int64_t size;
  int64_t capacity;
  void (*data_deleter)(void*);
} TVMFFISeqCell;

// Body of ffi.Map and ffi.Dict. The last three are of a table, and hold anything in a row: docs/abi.md, section 3.
typedef struct PortcallMapCell {
  void* data;      // pairs, or blocks of slots
  uint64_t size;   // pairs
  uint64_t slots;  // a power of two; with the highest bit, a row has so many places for pairs
  void (*data_deleter)(void*);
  uint32_t shift;
  uint64_t first, last;  // slots, in order of insertion
} PortcallMapCell;

// Body of ffi.Error.
typedef struct TVMFFIErrorCell {
  TVMFFIByteArray kind;
  TVMFFIByteArray message;
  TVMFFIByteArray backtrace;  // `  File "f", line n, in g` a frame, most recent first
  void (*update_backtrace)(TVMFFIObjectHandle self, const TVMFFIByteArray* text, int32_t mode);  // 0 replace, 1 append
  TVMFFIObjectHandle cause_chain;
  TVMFFIObjectHandle extra_context;
} TVMFFIErrorCell;

typedef int (*TVMFFISafeCallType)(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

// Body of ffi.Function.
typedef struct TVMFFIFunctionCell {
  TVMFFISafeCallType safe_call;
  void* cpp_call;  // NULL for every function made here
} TVMFFIFunctionCell;

typedef struct TVMFFIVersion {
  uint32_t major;
  uint32_t minor;
  uint32_t patch;
} TVMFFIVersion;

PORTCALL_API void TVMFFIGetVersion(TVMFFIVersion* out);

// ---- Objects and types --------------------------------------------------------------------------------------------

PORTCALL_API int TVMFFIObjectIncRef(TVMFFIObjectHandle obj);
PORTCALL_API int TVMFFIObjectDecRef(TVMFFIObjectHandle obj);
// Wraps a foreign pointer as an object; deleter(handle) runs when the last reference goes.
PORTCALL_API int TVMFFIObjectCreateOpaque(void* handle, int32_t type_index, void (*deleter)(void*),
                                          TVMFFIObjectHandle* out);
PORTCALL_API int TVMFFIAnyViewToOwnedAny(const TVMFFIAny* view, TVMFFIAny* out);

// How a field is read, written and compared. Those below 32 are the ABI's.
enum {
  kTVMFFIFieldFlagBitMaskWritable = 1 << 0,
  kTVMFFIFieldFlagBitMaskHasDefault = 1 << 1,
  kTVMFFIFieldFlagBitMaskIsStaticMethod = 1 << 2,
  kTVMFFIFieldFlagBitMaskSEqHashIgnore = 1 << 3,      // not part of structural equality and hash
  kTVMFFIFieldFlagBitMaskSEqHashDefPattern = 1 << 4,  // what it reaches defines variables
  kTVMFFIFieldFlagBitMaskDefaultFromFactory = 1 << 5,
  kTVMFFIFieldFlagBitMaskReprOff = 1 << 6,
  kTVMFFIFieldFlagBitMaskCompareOff = 1 << 7,
  kTVMFFIFieldFlagBitMaskHashOff = 1 << 8,
  kTVMFFIFieldFlagBitMaskInitOff = 1 << 9,
  kTVMFFIFieldFlagBitMaskKwOnly = 1 << 10,
  kTVMFFIFieldFlagBitSetterIsFunctionObj = 1 << 11,
  kTVMFFIFieldFlagBitMaskSEqHashDefSimple = 1 << 12,  // its value is a variable that is defined here
};
#define kPortcallFieldFlagCell (INT64_C(1) << 32)       // a TVMFFIAny lies at the offset: it may be read in place
#define kPortcallFieldFlagReference (INT64_C(1) << 33)  // a pointer to an object, or null
#define kPortcallFieldFlagOptional (INT64_C(1) << 34)   // None will do
#define kPortcallFieldFlagIdentity (INT64_C(1) << 35)   // equal only when it is the same object

typedef int (*TVMFFIFieldGetter)(void* field, TVMFFIAny* result);
typedef int (*TVMFFIFieldSetter)(void* field, const TVMFFIAny* value);
typedef int (*TVMFFIObjectCreator)(TVMFFIObjectHandle* result);

typedef struct TVMFFIFieldInfo {
  TVMFFIByteArray name;
  TVMFFIByteArray doc;
  TVMFFIByteArray metadata;  // JSON
  int64_t flags;
  int64_t size;
  int64_t alignment;
  int64_t offset;  // from the object's header
  TVMFFIFieldGetter getter;
  void* setter;  // a TVMFFIFieldSetter, or a function object; there even when users may not write the field
  TVMFFIAny default_value_or_factory;
  int32_t field_static_type_index;  // as declared: kTVMFFIAny for anything
} TVMFFIFieldInfo;

typedef enum {
  kTVMFFISEqHashKindUnsupported = 0,
  kTVMFFISEqHashKindTreeNode = 1,  // by its fields
  kTVMFFISEqHashKindFreeVar = 2,   // a variable: equal to what it was defined beside
  kTVMFFISEqHashKindDAGNode = 3,   // by its fields, and shared alike
  kTVMFFISEqHashKindConstTreeNode = 4,
  kTVMFFISEqHashKindUniqueInstance = 5,  // by identity
} TVMFFISEqHashKind;

typedef struct TVMFFITypeMetadata {
  TVMFFIByteArray doc;
  TVMFFIObjectCreator creator;  // a new object whose fields are still to be set; or NULL
  int32_t total_size;
  int32_t structural_eq_hash_kind;  // TVMFFISEqHashKind
} TVMFFITypeMetadata;

// One attribute of many types: data[type_index - begin_index], None where a type has none.
typedef struct TVMFFITypeAttrColumn {
  const TVMFFIAny* data;
  int32_t size;
  int32_t begin_index;
} TVMFFITypeAttrColumn;

typedef struct TVMFFIMethodInfo {
  TVMFFIByteArray name;
  TVMFFIByteArray doc;
  TVMFFIByteArray metadata;
  int64_t flags;
  TVMFFIAny method;
} TVMFFIMethodInfo;

typedef struct TVMFFITypeInfo {
  int32_t type_index;
  int32_t type_depth;
  TVMFFIByteArray type_key;
  const struct TVMFFITypeInfo** type_ancestors;  // from the root; type_depth of them
  uint64_t type_key_hash;
  int32_t num_fields;
  int32_t num_methods;
  const TVMFFIFieldInfo* fields;
  const TVMFFIMethodInfo* methods;
  const TVMFFITypeMetadata* metadata;
} TVMFFITypeInfo;

// static_type_index >= 0 is registered as given, -1 allocates. parent_type_index -2 only asks (-2 when unknown).
PORTCALL_API int32_t TVMFFITypeGetOrAllocIndex(const TVMFFIByteArray* type_key, int32_t static_type_index,
                                               int32_t type_depth, int32_t num_child_slots,
                                               int32_t child_slots_can_overflow, int32_t parent_type_index);
PORTCALL_API const TVMFFITypeInfo* TVMFFIGetTypeInfo(int32_t type_index);  // NULL when unknown
PORTCALL_API int TVMFFITypeKeyToIndex(const TVMFFIByteArray* type_key, int32_t* out);
// Descriptions of types: copied, and kept forever. Read them in TVMFFITypeInfo; a type's fields are its own, those of
// its ancestors come before them. A field, method or attribute that is registered again replaces the one before.
PORTCALL_API int TVMFFITypeRegisterField(int32_t type_index, const TVMFFIFieldInfo* info);
PORTCALL_API int TVMFFITypeRegisterMethod(int32_t type_index, const TVMFFIMethodInfo* info);
PORTCALL_API int TVMFFITypeRegisterMetadata(int32_t type_index, const TVMFFITypeMetadata* metadata);
PORTCALL_API int TVMFFITypeRegisterAttr(int32_t type_index, const TVMFFIByteArray* name, const TVMFFIAny* value);
PORTCALL_API const TVMFFITypeAttrColumn* TVMFFIGetTypeAttrColumn(const TVMFFIByteArray* name);  // NULL when unknown

// A field of a type that is defined at run time. Its default is a value, or a function without arguments (flags).
typedef struct PortcallFieldSpec {
  TVMFFIByteArray name;
  TVMFFIByteArray doc;
  TVMFFIByteArray metadata;
  int64_t flags;
  TVMFFIAny default_value;
  int32_t type_index;  // of its values: kTVMFFIAny: anything; an object's: that and what derives from it; or as below
} PortcallFieldSpec;
#define kPortcallTypeSelf (-3)  // the type that is being defined

// Defines a type whose objects hold one TVMFFIAny a field, those of the parent first. The parent has no fields, or was
// defined in this way. A type of that key which was defined before with the same fields is given back.
PORTCALL_API int PortcallTypeDefine(const TVMFFIByteArray* type_key, int32_t parent_type_index,
                                    const TVMFFITypeMetadata* metadata, const PortcallFieldSpec* fields,
                                    int32_t num_fields, int32_t* type_index);
// A new object of any described type from the values of its fields, ancestors' first; kTVMFFIUnchanged asks for the
// default. TypeError names the field whose value does not fit or is missing. Without values (NULL) fields without a
// default stay unset, which reads as None in types that were defined at run time; so do those with the flag InitOff.
PORTCALL_API int PortcallObjectCreate(int32_t type_index, const TVMFFIAny* values, int32_t num_values,
                                      TVMFFIObjectHandle* out);

// Writes a field of an object, checked like the values of PortcallObjectCreate; whether users may is for the caller.
PORTCALL_API int PortcallObjectSetField(TVMFFIObjectHandle obj, const TVMFFIFieldInfo* field, const TVMFFIAny* value);

// Deleters of nodes that hold references bracket their work with these, so that long chains do not use up the stack:
// when Enter returns 0, the deleter returns at once, and is called again once those further out are done.
PORTCALL_API int PortcallObjectEnterDelete(TVMFFIObjectHandle obj);
PORTCALL_API void PortcallObjectLeaveDelete(void);

// ---- Errors -------------------------------------------------------------------------------------------------------

PORTCALL_API void TVMFFIErrorSetRaised(TVMFFIObjectHandle error);
PORTCALL_API void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
PORTCALL_API void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t num_parts);
PORTCALL_API void TVMFFIErrorMoveFromRaised(TVMFFIObjectHandle* out);  // NULL when the slot is empty
PORTCALL_API int TVMFFIErrorCreate(const TVMFFIByteArray* kind, const TVMFFIByteArray* message,
                                   const TVMFFIByteArray* backtrace, TVMFFIObjectHandle* out);
PORTCALL_API int TVMFFIErrorCreateWithCauseAndExtraContext(const TVMFFIByteArray* kind, const TVMFFIByteArray* message,
                                                           const TVMFFIByteArray* backtrace,
                                                           TVMFFIObjectHandle cause_chain,
                                                           TVMFFIObjectHandle extra_context, TVMFFIObjectHandle* out);
// One frame, in a buffer of this thread that the next call overwrites. Native stacks are not walked.
PORTCALL_API const TVMFFIByteArray* TVMFFIBacktrace(const char* file, int line, const char* function,
                                                    int cross_boundary);

// ---- Functions ----------------------------------------------------------------------------------------------------

PORTCALL_API int TVMFFIFunctionCreate(void* self, TVMFFISafeCallType safe_call, void (*deleter)(void* self),
                                      TVMFFIObjectHandle* out);
PORTCALL_API int TVMFFIFunctionCall(TVMFFIObjectHandle func, const TVMFFIAny* args, int32_t num_args,
                                    TVMFFIAny* result);
PORTCALL_API int TVMFFIFunctionGetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle* out);  // NULL when missing
PORTCALL_API int TVMFFIFunctionSetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle func, int allow_override);
PORTCALL_API int TVMFFIFunctionSetGlobalFromMethodInfo(const TVMFFIMethodInfo* info, int allow_override);

// What a caller may know of a function. The flags decide how a language binding passes arguments.
enum {
  kPortcallFunctionShort = 1,      // returns in well under a microsecond: the GIL may be kept
  kPortcallFunctionLibrary = 2,    // compiled code: tensors must be compact, 64-byte aligned and writable
  kPortcallFunctionGenerated = 4,  // made by a kernel compiler: takes numbers, pointers, strings and tensors only
  kPortcallFunctionSigned = 8,     // after the name and its NUL is the signature: C++ types, as their compiler has them
  kPortcallFunctionPython = 16,    // a Python function: tensors in its lists and dicts leave a session by value
  kPortcallFunctionForeign = 32    // of a library on another runtime: takes no object whose type is registered here
};

typedef struct PortcallFunctionInfo {
  TVMFFISafeCallType call;  // call(self, args, n, result) is the same call with one step less
  void* self;
  const char* name;  // "" when it has none; lives as long as the function
  int32_t flags;
} PortcallFunctionInfo;

// As TVMFFIFunctionCreate, with flags and a name (or NULL) for messages.
PORTCALL_API int PortcallFunctionCreate(void* self, TVMFFISafeCallType safe_call, void (*deleter)(void* self),
                                        int32_t flags, const char* name, TVMFFIObjectHandle* out);
// Works for functions that others made too: their flags are 0, or kPortcallFunctionForeign.
PORTCALL_API void PortcallFunctionGetInfo(TVMFFIObjectHandle func, PortcallFunctionInfo* out);
PORTCALL_API int PortcallFunctionRemoveGlobal(const TVMFFIByteArray* name, int* removed);

// ---- Strings, bytes, data types -----------------------------------------------------------------------------------

PORTCALL_API int TVMFFIStringFromByteArray(const TVMFFIByteArray* input, TVMFFIAny* out);
PORTCALL_API int TVMFFIBytesFromByteArray(const TVMFFIByteArray* input, TVMFFIAny* out);
// A bytes object whose `size` bytes, at `data`, are filled before anybody else sees it.
PORTCALL_API int PortcallBytesCreate(size_t size, char** data, TVMFFIAny* out);
PORTCALL_API int TVMFFIDataTypeFromString(const TVMFFIByteArray* text, DLDataType* out);
PORTCALL_API int TVMFFIDataTypeToString(const DLDataType* dtype, TVMFFIAny* out);
// Integers beyond 64 bits: words of 64 bits, least significant first, two's complement.
PORTCALL_API int TVMFFIBigIntFromByteArray(const TVMFFIByteArray* words, TVMFFIAny* out);
// Borrowed: of the object, or of the cell of an int. No words for anything else.
PORTCALL_API TVMFFIByteArray TVMFFIBigIntGetContentByteArray(const TVMFFIAny* value);

// ---- Containers ---------------------------------------------------------------------------------------------------

PORTCALL_API int PortcallShapeCreate(const int64_t* values, size_t size, TVMFFIObjectHandle* out);
PORTCALL_API int PortcallArrayCreate(const TVMFFIAny* items, int64_t size, TVMFFIObjectHandle* out);
// cells: key, value, key, value, …; a repeated key keeps its first place and takes the last value.
PORTCALL_API int PortcallMapCreate(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out);
// List and Dict are the containers that change. Of Array and Map a changed copy takes the place of *container when
// somebody else holds it too (copy on write); of all four the functions below read alike.
PORTCALL_API int PortcallListCreate(const TVMFFIAny* items, int64_t size, TVMFFIObjectHandle* out);
PORTCALL_API int PortcallDictCreate(const TVMFFIAny* cells, int64_t num_pairs, TVMFFIObjectHandle* out);
// Puts `size` items in the place of the `count` from `start` on.
PORTCALL_API int PortcallArraySplice(TVMFFIObjectHandle* container, int64_t start, int64_t count,
                                     const TVMFFIAny* items, int64_t size);
PORTCALL_API int PortcallMapSet(TVMFFIObjectHandle* container, const TVMFFIAny* key, const TVMFFIAny* value);
PORTCALL_API int PortcallMapErase(TVMFFIObjectHandle* container, const TVMFFIAny* key, int* erased);
PORTCALL_API int64_t PortcallMapSize(TVMFFIObjectHandle map);
// Borrowed views that live until the map changes. *value is NULL when there is no such key.
PORTCALL_API int PortcallMapFind(TVMFFIObjectHandle map, const TVMFFIAny* key, const TVMFFIAny** value);
// The pair (key, then value) after another one, in order of insertion; after NULL the first, after the last NULL.
PORTCALL_API const TVMFFIAny* PortcallMapNext(TVMFFIObjectHandle map, const TVMFFIAny* pair);

// ---- Tensors ------------------------------------------------------------------------------------------------------

// Ownership of `from` passes on success only.
PORTCALL_API int TVMFFITensorFromDLPack(DLManagedTensor* from, int32_t require_alignment, int32_t require_contiguous,
                                        TVMFFIObjectHandle* out);
PORTCALL_API int TVMFFITensorFromDLPackVersioned(DLManagedTensorVersioned* from, int32_t require_alignment,
                                                 int32_t require_contiguous, TVMFFIObjectHandle* out);
PORTCALL_API int TVMFFITensorToDLPack(TVMFFIObjectHandle from, DLManagedTensor** out);
PORTCALL_API int TVMFFITensorToDLPackVersioned(TVMFFIObjectHandle from, DLManagedTensorVersioned** out);
PORTCALL_API int TVMFFITensorCreateUnsafeView(TVMFFIObjectHandle source, const DLTensor* prototype,
                                              TVMFFIObjectHandle* out);
// A tensor over memory that belongs to `owner`; release(owner) runs with the last reference. Shape and strides are
// copied; strides may be NULL. flags: DLPACK_FLAG_BITMASK_READ_ONLY, and beside it PORTCALL_TENSOR_MARKED when a caller says
// that a function only reads it.
#define PORTCALL_TENSOR_MARKED (UINT64_C(1) << 32)
PORTCALL_API int PortcallTensorFromMemory(const DLTensor* description, uint64_t flags, void* owner,
                                          void (*release)(void* owner), TVMFFIObjectHandle* out);
PORTCALL_API int PortcallTensorAlloc(const DLTensor* prototype, TVMFFIObjectHandle* out);
PORTCALL_API uint64_t PortcallTensorGetFlags(TVMFFIObjectHandle tensor);  // 0 for tensors of other runtimes
// Copies between any two devices and strides; shapes (in elements) and dtypes must agree.
PORTCALL_API int PortcallTensorCopy(const DLTensor* from, const DLTensor* to);

// ---- Modules ------------------------------------------------------------------------------------------------------

// For constructors of libraries, where an exception would end the process: loading the library fails with this thread's
// raised error. -1: this thread is loading none.
PORTCALL_API int PortcallModuleFailLoad(void);
// A module over a C++ portcall::ModuleNode (module.h), which it owns on success.
PORTCALL_API int PortcallModuleCreate(void* module_node, TVMFFIObjectHandle* out);
// That node, borrowed; NULL for a module of another runtime.
PORTCALL_API void* PortcallModuleGetNode(TVMFFIObjectHandle module);

// ---- Environment of compiled code ---------------------------------------------------------------------------------

typedef int (*DLPackManagedTensorAllocator)(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
                                            void (*SetError)(void* error_ctx, const char* kind, const char* message));

PORTCALL_API int TVMFFIEnvSetStream(int32_t device_type, int32_t device_id, void* stream, void** opt_out_original);
PORTCALL_API void* TVMFFIEnvGetStream(int32_t device_type, int32_t device_id);
PORTCALL_API int TVMFFIEnvSetDLPackManagedTensorAllocator(DLPackManagedTensorAllocator allocator,
                                                          int write_to_global_context,
                                                          DLPackManagedTensorAllocator* opt_out_original);
PORTCALL_API DLPackManagedTensorAllocator TVMFFIEnvGetDLPackManagedTensorAllocator(void);
PORTCALL_API int TVMFFIEnvTensorAlloc(DLTensor* prototype, TVMFFIObjectHandle* out);
PORTCALL_API int TVMFFIEnvCheckSignals(void);
// "PyErr_CheckSignals": int(void), called by long work without locks; nonzero with a raised error interrupts it.
// "PortcallBytesCreate": what that function calls, for a language that has its own bytes.
PORTCALL_API int TVMFFIEnvRegisterCAPI(const char* name, void* symbol);
PORTCALL_API int TVMFFIEnvModRegisterContextSymbol(const char* name, void* symbol);
PORTCALL_API int TVMFFIEnvModRegisterSystemLibSymbol(const char* name, void* symbol);
// Borrowed: `out` lives as long as the library.
PORTCALL_API int TVMFFIEnvModLookupFromImports(TVMFFIObjectHandle library_ctx, const char* name,
                                               TVMFFIObjectHandle* out);
PORTCALL_API int TVMFFIHandleInitOnce(void** slot, int (*init)(void** result));
PORTCALL_API int TVMFFIHandleDeinitOnce(void** slot, int (*deinit)(void* handle));

// ---- Backend of generated code ------------------------------------------------------------------------------------

typedef struct TVMParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;

typedef int (*FTVMParallelLambda)(int task_id, TVMParallelGroupEnv* penv, void* cdata);

PORTCALL_API void* TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int dtype_code_hint,
                                            int dtype_bits_hint);
PORTCALL_API int TVMBackendFreeWorkspace(int device_type, int device_id, void* ptr);
PORTCALL_API int TVMBackendParallelLaunch(FTVMParallelLambda lambda, void* cdata, int num_task);
PORTCALL_API int TVMBackendParallelBarrier(int task_id, TVMParallelGroupEnv* penv);
PORTCALL_API int TVMBackendGetFuncFromEnv(void* library_ctx, const char* name, void** out);
PORTCALL_API int TVMBackendAnyListSetPackedArg(void* list, int index, TVMFFIAny* args, int arg_offset);
PORTCALL_API int TVMBackendAnyListMoveFromPackedReturn(void* list, int index, TVMFFIAny* args, int ret_offset);
PORTCALL_API int TVMBackendAnyListResetItem(void* list, int index);
PORTCALL_API int TVMBackendRegisterSystemLibSymbol(const char* name, void* symbol);
PORTCALL_API int TVMBackendRegisterEnvCAPI(const char* name, void* symbol);
PORTCALL_API int TVMBackendRunOnce(void** handle, int (*f)(void*), void* cdata, int nbytes);

// ---- Devices ------------------------------------------------------------------------------------------------------

typedef enum {
  kPortcallAttrExist = 0,
  kPortcallAttrMaxThreadsPerBlock = 1,
  kPortcallAttrWarpSize = 2,
  kPortcallAttrMaxSharedMemoryPerBlock = 3,
  kPortcallAttrComputeVersion = 4,
  kPortcallAttrDeviceName = 5,
  kPortcallAttrMaxClockRate = 6,
  kPortcallAttrMultiProcessorCount = 7,
  kPortcallAttrMaxThreadDimensions = 8,
  kPortcallAttrMaxRegistersPerBlock = 9,
  kPortcallAttrGcnArch = 10,
  kPortcallAttrApiVersion = 11,
  kPortcallAttrDriverVersion = 12,
  kPortcallAttrL2CacheSizeBytes = 13,
  kPortcallAttrTotalGlobalMemory = 14,
  kPortcallAttrAvailableGlobalMemory = 15,
  kPortcallAttrImagePitchAlignment = 16,  // of images in a buffer: the pixels of a row are a multiple of it
} PortcallDeviceAttr;

typedef enum {
  kPortcallDevicePlainAddresses = 1,  // an address is a number: adding n to it names the memory n bytes further
  kPortcallDeviceHostReadable = 2,    // the host may read and write the memory by the same address
} PortcallDeviceFlags;

// One kind of device. Every function returns 0, or -1 with a raised error. `ctx` is handed back to each of them.
// Copies: at least one side is this kind, the other this kind or the host; offsets are in bytes.
typedef struct PortcallDeviceAPI {
  uint32_t struct_size;  // sizeof(PortcallDeviceAPI) of the caller: fields may be added at the end
  void* ctx;
  int (*set_device)(void* ctx, DLDevice device);                                         // optional
  int (*get_attr)(void* ctx, DLDevice device, PortcallDeviceAttr attr, TVMFFIAny* out);  // kPortcallAttrExist is a must
  int (*alloc)(void* ctx, DLDevice device, size_t nbytes, size_t alignment, DLDataType hint, void** out);
  int (*free)(void* ctx, DLDevice device, void* ptr);
  int (*copy)(void* ctx, const void* from, size_t from_offset, DLDevice from_device, void* to, size_t to_offset,
              DLDevice to_device, size_t nbytes, void* stream);
  int (*create_stream)(void* ctx, DLDevice device, void** out);           // optional
  int (*free_stream)(void* ctx, DLDevice device, void* stream);           // optional
  int (*sync_stream)(void* ctx, DLDevice device, void* stream);           // NULL: work is always finished
  int (*sync_streams)(void* ctx, DLDevice device, void* from, void* to);  // optional
  uint64_t flags;                                                         // PortcallDeviceFlags
  // The device's own clock; optional, both or none. start makes *timer. stop waits for the work that this thread has put
  // on the stream since, gives the nanoseconds from the begin of the first to the end of the last of it, and frees the
  // timer; with NULL for `nanoseconds` it only frees it.
  int (*start_timer)(void* ctx, DLDevice device, void* stream, void** timer);
  int (*stop_timer)(void* ctx, DLDevice device, void* stream, void* timer, int64_t* nanoseconds);
  // Memory that is `nbytes` of `ptr` from `offset` on, to be freed like any other; for kinds without plain addresses.
  // Optional: without it, compiled code takes no tensors that begin inside of an allocation.
  int (*view)(void* ctx, DLDevice device, void* ptr, size_t offset, size_t nbytes, void** out);
  // Memory of another kind than global, such as "global.texture"; optional. `like` has shape and dtype of the tensor.
  int (*alloc_scope)(void* ctx, DLDevice device, const DLTensor* like, const char* scope, void** out);
  // Events; optional, all or none. record_event marks the end of what is on the stream now, in place of what the event
  // marked before. wait_event has what comes on the stream from now on start after it; sync_event waits on the host.
  // event_time waits for both events, and gives the nanoseconds between them.
  int (*create_event)(void* ctx, DLDevice device, void** out);
  int (*free_event)(void* ctx, DLDevice device, void* event);
  int (*record_event)(void* ctx, DLDevice device, void* event, void* stream);
  int (*wait_event)(void* ctx, DLDevice device, void* event, void* stream);
  int (*sync_event)(void* ctx, DLDevice device, void* event);
  int (*event_time)(void* ctx, DLDevice device, void* from, void* to, int64_t* nanoseconds);
} PortcallDeviceAPI;

// The table is copied. A kind is registered once; a second registration is an error.
PORTCALL_API int PortcallDeviceRegister(int32_t device_type, const PortcallDeviceAPI* api);
PORTCALL_API int PortcallDeviceGetAPI(int32_t device_type, const PortcallDeviceAPI** out);  // error when unknown
PORTCALL_API int PortcallDeviceSync(DLDevice device, void* stream);

// ---- The table for bindings ---------------------------------------------------------------------------------------

// A binding that is loaded beside other runtimes which export the same TVMFFI names must not find those by accident.
// It imports PortcallGetCore and calls the core through the table. Entries are added at the end. The Cython binding's
// declaration of the table is made from this list (scripts/core_table.py).
#define PORTCALL_CORE_FUNCTIONS(X)                                 \
  X(object_inc_ref, TVMFFIObjectIncRef)                            \
  X(object_dec_ref, TVMFFIObjectDecRef)                            \
  X(object_create_opaque, TVMFFIObjectCreateOpaque)                \
  X(any_view_to_owned, TVMFFIAnyViewToOwnedAny)                    \
  X(get_type_info, TVMFFIGetTypeInfo)                              \
  X(error_set_raised, TVMFFIErrorSetRaised)                        \
  X(error_move_from_raised, TVMFFIErrorMoveFromRaised)             \
  X(error_create, TVMFFIErrorCreateWithCauseAndExtraContext)       \
  X(function_create, PortcallFunctionCreate)                       \
  X(function_get_info, PortcallFunctionGetInfo)                    \
  X(function_get_global, TVMFFIFunctionGetGlobal)                  \
  X(function_set_global, TVMFFIFunctionSetGlobal)                  \
  X(string_from_byte_array, TVMFFIStringFromByteArray)             \
  X(bytes_from_byte_array, TVMFFIBytesFromByteArray)               \
  X(big_int_from_byte_array, TVMFFIBigIntFromByteArray)            \
  X(big_int_get_content, TVMFFIBigIntGetContentByteArray)          \
  X(data_type_from_string, TVMFFIDataTypeFromString)               \
  X(data_type_to_string, TVMFFIDataTypeToString)                   \
  X(shape_create, PortcallShapeCreate)                             \
  X(array_create, PortcallArrayCreate)                             \
  X(map_create, PortcallMapCreate)                                 \
  X(map_size, PortcallMapSize)                                     \
  X(map_find, PortcallMapFind)                                     \
  X(map_next, PortcallMapNext)                                     \
  X(tensor_from_dlpack, TVMFFITensorFromDLPack)                    \
  X(tensor_from_dlpack_versioned, TVMFFITensorFromDLPackVersioned) \
  X(tensor_to_dlpack, TVMFFITensorToDLPack)                        \
  X(tensor_to_dlpack_versioned, TVMFFITensorToDLPackVersioned)     \
  X(tensor_from_memory, PortcallTensorFromMemory)                  \
  X(tensor_alloc, PortcallTensorAlloc)                             \
  X(tensor_get_flags, PortcallTensorGetFlags)                      \
  X(tensor_copy, PortcallTensorCopy)                               \
  X(env_register_c_api, TVMFFIEnvRegisterCAPI)                     \
  X(type_key_to_index, TVMFFITypeKeyToIndex)                       \
  X(type_define, PortcallTypeDefine)                               \
  X(object_create, PortcallObjectCreate)                           \
  X(object_set_field, PortcallObjectSetField)                      \
  X(list_create, PortcallListCreate)                               \
  X(dict_create, PortcallDictCreate)                               \
  X(array_splice, PortcallArraySplice)                             \
  X(map_set, PortcallMapSet)                                       \
  X(map_erase, PortcallMapErase)                                   \
  X(tensor_create_view, TVMFFITensorCreateUnsafeView)              \
  X(env_get_stream, TVMFFIEnvGetStream)                            \
  X(type_register_attr, TVMFFITypeRegisterAttr)                    \
  X(get_type_attr_column, TVMFFIGetTypeAttrColumn)                 \
  X(env_set_stream, TVMFFIEnvSetStream)

typedef struct PortcallCore {
  uint32_t struct_size;
  const char* version;
#define PORTCALL_CORE_MEMBER(name, function) __typeof__(&(function)) name;
  PORTCALL_CORE_FUNCTIONS(PORTCALL_CORE_MEMBER)
#undef PORTCALL_CORE_MEMBER
} PortcallCore;

PORTCALL_API const PortcallCore* PortcallGetCore(void);

#ifdef __cplusplus
}  // extern "C"
#endif
#endif  // PORTCALL_C_API_H_
