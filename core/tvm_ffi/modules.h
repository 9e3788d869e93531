// SPDX-License-Identifier: Apache-2.0
// tvm-ffi's class of modules, as all of its releases since 0.1.9 have it in their binary interface: names, layout, and the
// order of the virtual methods. Libraries on its headers derive classes from it, and call modules through it. Its text of
// a result that may be missing is any value here, and its function that may be missing a reference that may be null.
#ifndef PORTCALL_TVM_FFI_MODULES_H_
#define PORTCALL_TVM_FFI_MODULES_H_

#include <exception>

#include "portcall/module.h"

namespace tvm::ffi {

class String : public portcall::String {
 public:
  using portcall::String::String;
};

class Module : public portcall::ObjectRef {
 public:
  using ObjectRef::ObjectRef;
  __attribute__((visibility("default"))) static Module LoadFromFile(const String& file);
};

class Error : public portcall::ObjectRef, public std::exception {
 public:
  explicit Error(const portcall::ObjectRef& error) : ObjectRef(error) {}
  const char* what() const noexcept override { return "tvm::ffi::Error"; }
};

class Object {  // without virtual functions: its header follows the table of them of what derives from it
  TVMFFIObject header_;
};

class __attribute__((visibility("default"))) ModuleObj : public Object {
 public:
  virtual const char* kind() const = 0;
  virtual int GetPropertyMask() const;
  virtual portcall::PackedFunc GetFunction(const String& name) = 0;
  virtual bool ImplementsFunction(const String& name);
  virtual portcall::Any GetFunctionDoc(const String& name);
  virtual portcall::Any GetFunctionMetadata(const String& name);
  virtual void WriteToFile(const String& file, const String& format) const;
  virtual portcall::Array<portcall::String> GetWriteFormats() const;
  virtual portcall::Bytes SaveToBytes() const;
  virtual portcall::String InspectSource(const String& format) const;
  virtual void ImportModule(const Module& other);
  virtual void ClearImports();

  portcall::PackedFunc GetFunction(const String& name, bool query_imports);
  bool ImplementsFunction(const String& name, bool query_imports);
  portcall::Any GetFunctionDoc(const String& name, bool query_imports);
  portcall::Any GetFunctionMetadata(const String& name, bool query_imports);

  portcall::Array<portcall::Any> imports;
  portcall::ObjectRef of_runtime;  // what the runtime keeps with the module, which frees it
};

}  // namespace tvm::ffi
#endif  // PORTCALL_TVM_FFI_MODULES_H_
