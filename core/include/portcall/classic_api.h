// SPDX-License-Identifier: Apache-2.0
// The classic C API (TVM 0.6 to 0.20) over the same registry, functions, modules and tensors as c_api.h: one registry,
// two doors. A handle of one door is a handle of the other; what one registers, the other finds.
//
// Rules
//  * A function that returns int returns 0, or -1 with an error: TVMGetLastError gives its text, "Kind: message".
//  * Arguments are borrowed. A handle that comes back through an out parameter, or as a result of a call with code 8, 9,
//    10 or 13, is owned by the caller, who frees it with the function for its kind. Freeing NULL does nothing.
//  * Text and bytes that come back lie in storage of the calling thread: valid until its next call of the same function.
//  * A wrong argument (NULL, a negative count, an unknown code, a handle of another kind) is an error, not a crash.
//
// For every function: docs/abi.md, "The classic door".
#ifndef PORTCALL_CLASSIC_API_H_
#define PORTCALL_CLASSIC_API_H_

#include "c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Values -------------------------------------------------------------------------------------------------------

typedef int64_t tvm_index_t;

// What a TVMValue holds. The code travels beside the value, in an array of int.
typedef enum {
  kTVMArgInt = 0,  // a bool too
  kTVMArgFloat = 2,
  kTVMOpaqueHandle = 3,
  kTVMNullptr = 4,
  kTVMDataType = 5,
  kDLDevice = 6,
  kTVMDLTensorHandle = 7,  // a borrowed DLTensor*
  kTVMObjectHandle = 8,
  kTVMModuleHandle = 9,
  kTVMPackedFuncHandle = 10,
  kTVMStr = 11,                 // ends with a NUL
  kTVMBytes = 12,               // a TVMByteArray*
  kTVMNDArrayHandle = 13,       // a TVMArrayHandle: shared, where code 7 is only lent
  kTVMObjectRValueRefArg = 14,  // the address of a variable with an object, which the callee may move out of it
  kTVMArgBool = 15,             // accepted; never given, since only 0.18 to 0.20 know it
} TVMArgTypeCode;

typedef union {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
} TVMValue;

typedef TVMFFIByteArray TVMByteArray;

typedef void* TVMModuleHandle;    // an ffi.Module
typedef void* TVMFunctionHandle;  // an ffi.Function
typedef void* TVMObjectHandle;    // any object
typedef void* TVMRetValueHandle;  // where a callback puts its result
typedef void* TVMStreamHandle;
typedef DLTensor* TVMArrayHandle;  // the description inside an ffi.Tensor: its address + 24

// A C function as a value. It gives its result to TVMCFuncSetReturn(ret, ...) and returns 0, or -1 after
// TVMAPISetLastError.
typedef int (*TVMPackedCFunc)(TVMValue* args, int* type_codes, int num_args, TVMRetValueHandle ret, void* resource);
typedef void (*TVMPackedCFuncFinalizer)(void* resource);
// A function of a compiled library, from 0.7 on. *out_code is kTVMNullptr when it is called.
typedef int (*TVMBackendPackedCFunc)(TVMValue* args, int* type_codes, int num_args, TVMValue* out_value, int* out_code,
                                     void* resource);

// ---- Errors -------------------------------------------------------------------------------------------------------

// "ValueError: text" is an error of kind ValueError, any other text a RuntimeError; what follows a line "Stack trace:"
// becomes the backtrace. It is the same slot as TVMFFIErrorSetRaised's.
PORTCALL_API void TVMAPISetLastError(const char* text);
// Never NULL. Reading takes nothing away: a callback may print the text and still return -1.
PORTCALL_API const char* TVMGetLastError(void);
// The frames of the last error, most recent first; never NULL.
PORTCALL_API const char* TVMGetLastBacktrace(void);
// A front end's exception as the last error. It is only lent: the caller keeps it alive until it was dropped.
PORTCALL_API void TVMAPISetLastPythonError(void* exception);
PORTCALL_API void* TVMGetLastPythonError(void);  // NULL unless the last error came from Python
PORTCALL_API void TVMDropLastPythonError(void);
// For C++ callers only: throws the last error as portcall::Error.
PORTCALL_API void TVMThrowLastError(void);

// ---- Functions ----------------------------------------------------------------------------------------------------

// The result of a str function is code 11, of a bytes function 12, of a dtype function 11.
PORTCALL_API int TVMFuncCall(TVMFunctionHandle func, TVMValue* args, int* type_codes, int num_args, TVMValue* ret_val,
                             int* ret_type_code);
PORTCALL_API int TVMFuncFree(TVMFunctionHandle func);
// fin(resource), if given, runs when the last reference to the function goes; not when this call fails.
PORTCALL_API int TVMFuncCreateFromCFunc(TVMPackedCFunc func, void* resource, TVMPackedCFuncFinalizer fin,
                                        TVMFunctionHandle* out);
// Within a callback: num_ret is 1. Text is copied and a handle retained, so the callback still owns its own.
PORTCALL_API int TVMCFuncSetReturn(TVMRetValueHandle ret, TVMValue* value, int* type_code, int num_ret);
// Within a callback: makes an argument outlive the call. Handles are retained; text must be copied instead.
PORTCALL_API int TVMCbArgToReturn(TVMValue* value, int* type_code);
PORTCALL_API int TVMFuncRegisterGlobal(const char* name, TVMFunctionHandle func, int can_override);
PORTCALL_API int TVMFuncGetGlobal(const char* name, TVMFunctionHandle* out);  // NULL when there is none
PORTCALL_API int TVMFuncListGlobalNames(int* out_size, const char*** out_names);
PORTCALL_API int TVMFuncRemoveGlobal(const char* name);  // 0 when there was none

// ---- Modules ------------------------------------------------------------------------------------------------------

// format: "" or NULL (the file's extension decides), or the extension, such as "so".
PORTCALL_API int TVMModLoadFromFile(const char* path, const char* format, TVMModuleHandle* out);
PORTCALL_API int TVMModImport(TVMModuleHandle mod, TVMModuleHandle dependency);
PORTCALL_API int TVMModGetFunction(TVMModuleHandle mod, const char* name, int query_imports,
                                   TVMFunctionHandle* out);  // NULL when there is none
PORTCALL_API int TVMModFree(TVMModuleHandle mod);

// ---- Arrays -------------------------------------------------------------------------------------------------------

// Uninitialised memory, 64-byte aligned.
PORTCALL_API int TVMArrayAlloc(const tvm_index_t* shape, int ndim, int dtype_code, int dtype_bits, int dtype_lanes,
                               int device_type, int device_id, TVMArrayHandle* out);
PORTCALL_API int TVMArrayFree(TVMArrayHandle handle);
// nbytes is the size of the whole array, exactly. Any DLTensor will do, also one that was not allocated here.
PORTCALL_API int TVMArrayCopyFromBytes(TVMArrayHandle handle, void* data, size_t nbytes);
PORTCALL_API int TVMArrayCopyToBytes(TVMArrayHandle handle, void* data, size_t nbytes);
PORTCALL_API int TVMArrayCopyFromTo(TVMArrayHandle from, TVMArrayHandle to, TVMStreamHandle stream);
// Takes the tensor over, on success only.
PORTCALL_API int TVMArrayFromDLPack(DLManagedTensor* from, TVMArrayHandle* out);
PORTCALL_API int TVMArrayToDLPack(TVMArrayHandle from, DLManagedTensor** out);
PORTCALL_API void TVMDLManagedTensorCallDeleter(DLManagedTensor* tensor);
PORTCALL_API int TVMByteArrayFree(TVMByteArray* bytes);  // bytes of a TVMFuncCall; freeing them is not needed

// ---- Devices and streams ------------------------------------------------------------------------------------------

PORTCALL_API int TVMStreamCreate(int device_type, int device_id,
                                 TVMStreamHandle* out);  // NULL: the device has one only
PORTCALL_API int TVMStreamFree(int device_type, int device_id, TVMStreamHandle stream);
PORTCALL_API int TVMSetStream(int device_type, int device_id, TVMStreamHandle stream);  // of this thread
PORTCALL_API int TVMSynchronize(int device_type, int device_id, TVMStreamHandle stream);
PORTCALL_API int TVMStreamStreamSynchronize(int device_type, int device_id, TVMStreamHandle src, TVMStreamHandle dst);
// alignment: a power of two, or 0 for what kernels need.
PORTCALL_API int TVMDeviceAllocDataSpace(DLDevice device, size_t nbytes, size_t alignment, DLDataType type_hint,
                                         void** out);
// mem_scope: NULL, "" or "global".
PORTCALL_API int TVMDeviceAllocDataSpaceWithScope(DLDevice device, int ndim, const int64_t* shape, DLDataType dtype,
                                                  const char* mem_scope, void** out);
PORTCALL_API int TVMDeviceFreeDataSpace(DLDevice device, void* ptr);
PORTCALL_API int TVMDeviceCopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle stream);

// ---- Objects ------------------------------------------------------------------------------------------------------

PORTCALL_API int TVMObjectGetTypeIndex(TVMObjectHandle obj, unsigned* out);
PORTCALL_API int TVMObjectTypeKey2Index(const char* type_key, unsigned* out);
PORTCALL_API int TVMObjectTypeIndex2Key(unsigned type_index, char** out);  // to be released with free()
PORTCALL_API int TVMObjectDerivedFrom(uint32_t child_type_index, uint32_t parent_type_index, int* is_derived);
PORTCALL_API int TVMObjectRetain(TVMObjectHandle obj);
PORTCALL_API int TVMObjectFree(TVMObjectHandle obj);
PORTCALL_API int TVMExtTypeFree(void* handle, int type_code);  // 0.6 only. An error: there are no extension types

#ifdef __cplusplus
}  // extern "C"
#endif
#endif  // PORTCALL_CLASSIC_API_H_
