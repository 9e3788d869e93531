// SPDX-License-Identifier: Apache-2.0
// Module: a named set of PackedFuncs that came from somewhere. A kind of module is a ModuleNode; everything outside
// sees the reference class Module, or an opaque handle that the ffi.Module… functions take.
#ifndef PORTCALL_MODULE_H_
#define PORTCALL_MODULE_H_

#include <memory>
#include <string>
#include <vector>

#include "function.h"

namespace portcall {

class Module;

// One kind of module. Methods may be called from any thread.
class ModuleNode {
 public:
  virtual ~ModuleNode() = default;
  virtual const char* kind() const = 0;  // "library", "graph", …: the type key that users see
  // The function, null when there is none. `self` keeps the module alive: a function must hold it.
  virtual PackedFunc GetFunction(const std::string& name, const Module& self) = 0;
  virtual std::string GetSource(const std::string& format) {
    PORTCALL_THROW(ValueError) << "a module of type '" << kind() << "' has no source" << (format.empty() ? "" : " as ")
                               << format;
    return {};
  }
  virtual std::string EntryName() { return "main"; }
  virtual std::vector<std::string> FunctionNames() { return {}; }  // empty: not known
  // A module whose code runs elsewhere imports and times there. False and null: the runtime does it here. A null module:
  // import nothing any more.
  virtual bool Import(const Module&) { return false; }
  virtual PackedFunc TimeEvaluator(const std::vector<Any>& /*arguments after the module*/) { return PackedFunc(); }
};

// The node's body belongs to the core, which makes every module of this runtime (PortcallModuleCreate).
struct ModuleObj final : Object {
  static constexpr const char* kTypeKey = "ffi.Module";
  static constexpr int32_t kTypeIndex = kTVMFFIModule;
};

class Module : public ObjectRef {
  PORTCALL_OBJECT_REF(Module, ModuleObj)

  explicit Module(std::unique_ptr<ModuleNode> impl) {
    TVMFFIObjectHandle handle = nullptr;
    Check(PORTCALL_CALL(PortcallModuleCreate)(impl.get(), &handle));
    (void)impl.release();
    ptr_ = static_cast<TVMFFIObject*>(handle);
  }

  static Module LoadFromFile(const std::string& path) { return Registry::Get("ffi.ModuleLoadFromFile")(path); }

  std::string kind() const { return CallMethod("ffi.ModuleGetKind"); }
  // Null when neither the module nor, if asked for, its imports have such a function.
  PackedFunc GetFunction(const std::string& name, bool query_imports = false) const {
    return CallMethod("ffi.ModuleGetFunction", name, query_imports);
  }
  // The function of that name; FunctionNotFoundError when the module itself has none.
  PackedFunc operator[](const std::string& name) const {
    PackedFunc func = GetFunction(name);
    PORTCALL_CHECK(func.defined(), FunctionNotFoundError)
        << "a module of type '" << kind() << "' has no function '" << name << "'" << DescribeNames();
    return func;
  }
  // Empty where the module does not know them.
  std::vector<std::string> FunctionNames() const { return CallMethod("portcall.ModuleFunctionNames"); }
  void Import(const Module& other) const { CallMethod("ffi.ModuleImportModule", other); }
  std::vector<Module> imports() const { return CallMethod("ffi.ModuleImports"); }

 private:
  std::string DescribeNames() const {
    constexpr size_t kFewNames = 10;
    std::string text;
    std::vector<std::string> names = FunctionNames();
    for (size_t i = 0; i < names.size() && i < kFewNames; ++i) text += (i ? ", " : "; it has ") + names[i];
    return text + (names.size() > kFewNames ? ", …" : "");
  }
  template <typename... A> Any CallMethod(const char* name, A&&... args) const {
    PORTCALL_CHECK(defined(), ValueError) << "the module is None";
    return Registry::Get(name)(*this, std::forward<A>(args)...);
  }
};

}  // namespace portcall
#endif  // PORTCALL_MODULE_H_
