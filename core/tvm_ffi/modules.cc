// SPDX-License-Identifier: Apache-2.0
// Modules of libraries on tvm-ffi's headers that are C++ classes of their own, and portcall's modules for such libraries.
// A module of theirs is driven through a stand-in, a module of portcall, which it keeps where tvm-ffi keeps its cache.
#include "tvm_ffi/modules.h"

#include <cxxabi.h>

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <utility>

#ifdef _LIBCPPABI_VERSION  // its header leaves out how the C++ ABI (Itanium, 2.9.5) describes classes
namespace __cxxabiv1 {

class __class_type_info : public std::type_info {
 public:
  ~__class_type_info() override;  // these three are in that library
};

// One public base at the beginning.
class __si_class_type_info : public __class_type_info {
 public:
  ~__si_class_type_info() override;
  const __class_type_info* __base_type;
};

struct __base_class_type_info {
  const __class_type_info* __base_type;
  long __offset_flags;
};

// All others with bases.
class __vmi_class_type_info : public __class_type_info {
 public:
  ~__vmi_class_type_info() override;
  unsigned int __flags;
  unsigned int __base_count;
  __base_class_type_info __base_info[1];
};

}  // namespace __cxxabiv1
#endif

namespace portcall::tvm_ffi {
namespace {

using tvm::ffi::ModuleObj;
using Text = tvm::ffi::String;

constexpr size_t kMethods = 12;

ModuleObj* ObjectOf(TVMFFIObject* module) {
  return static_cast<ModuleObj*>(reinterpret_cast<tvm::ffi::Object*>(module));
}

// The module that an object is, as a new reference.
Module ModuleOf(const ModuleObj* object) {
  return ObjectRef::Borrow<Module>(static_cast<tvm::ffi::Object*>(const_cast<ModuleObj*>(object)));
}

// Errors that leave the library are exceptions of its own class.
template <typename Body> auto Called(Body&& body) {
  try {
    return body();
  } catch (const tvm::ffi::Error& error) {
    throw Error(error);
  }
}

// Errors that go into a library are.
template <typename Body> auto Offered(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw tvm::ffi::Error(error.ref());
  }
}

// Whether its class derives from this library's ModuleObj, and not from one of another runtime.
bool IsDerived(const ModuleObj* object) {
  const std::type_info* type = &typeid(*object);
  while (type != &typeid(ModuleObj)) {
    if (const auto* single = dynamic_cast<const abi::__si_class_type_info*>(type)) {
      type = single->__base_type;
    } else if (const auto* several = dynamic_cast<const abi::__vmi_class_type_info*>(type)) {
      type = several->__base_info[0].__base_type;
    } else {
      return false;
    }
  }
  return true;
}

// One thread at a time reads or changes what such modules import: their class has no lock.
std::unique_lock<std::recursive_mutex> LockImports() {
  static auto* mutex = new std::recursive_mutex();
  return std::unique_lock<std::recursive_mutex>(*mutex);
}

class StandIn : public ModuleNode {
 public:
  explicit StandIn(ModuleObj* object) : object_(object), seen_(nullptr) {}  // it is a part of the object

  const char* kind() const override {
    return Called([&] { return object_->kind(); });
  }
  PackedFunc GetFunction(const std::string& name, const Module&) override {
    return Called([&] { return object_->GetFunction(Text(name)); });
  }
  std::string GetSource(const std::string& format) override {
    String source = Called([&] { return object_->InspectSource(Text(format)); });
    return source.empty() ? ModuleNode::GetSource(format) : source.str();
  }
  bool Import(const Module& other) override {
    if (reading_) return false;
    Called([&] {
      if (!other.defined()) return object_->ClearImports();
      object_->ImportModule(static_cast<const tvm::ffi::Module&>(static_cast<const ObjectRef&>(other)));
    });
    return true;
  }

  // The object's list of imports becomes the core's. It is held, so a list that changes is another one.
  void ReadImports() {
    if (seen_.same_as(object_->imports)) return;
    seen_ = object_->imports;
    const bool outer = std::exchange(reading_, true);
    try {
      const Module module = ModuleOf(object_);
      Registry::Get("ffi.ModuleClearImports")(module);
      for (const Any& other : seen_) module.Import(other.cast<Module>());
    } catch (...) {
      reading_ = outer;
      throw;
    }
    reading_ = outer;
  }

 private:
  ModuleObj* object_;
  Array<Any> seen_;
  static thread_local bool reading_;
};
thread_local bool StandIn::reading_ = false;

// See loader/module.cc.
TVMFFIObject* StandInOf(TVMFFIObject* module) {
  const auto lock = LockImports();
  ModuleObj* object = ObjectOf(module);
  if (!IsDerived(object)) return module;
  ObjectRef& kept = object->of_runtime;  // at first what tvm-ffi keeps there
  if (!PortcallModuleGetNode(kept.get())) kept = Module(std::make_unique<StandIn>(object));
  static_cast<StandIn*>(static_cast<ModuleNode*>(PortcallModuleGetNode(kept.get())))->ReadImports();
  return kept.get();
}

// What a module of portcall is to such a library. Only the table of its virtual functions is used; the rest of an object
// is the core's.
class OwnModule final : public ModuleObj {
 public:
  const char* kind() const override {
    return Offered([&] { return node()->kind(); });
  }
  int GetPropertyMask() const override { return kRunnable; }
  PackedFunc GetFunction(const Text& name) override {
    return Offered([&] { return node()->GetFunction(name.str(), ModuleOf(this)); });
  }
  String InspectSource(const Text& format) const override {
    return Offered([&] { return String(node()->GetSource(format.str())); });
  }
  void ImportModule(const tvm::ffi::Module& other) override {
    Offered([&] { ModuleOf(this).Import(ObjectRef::Borrow<Module>(other.get())); });
  }
  void ClearImports() override {
    Offered([&] { Registry::Get("ffi.ModuleClearImports")(ModuleOf(this)); });
  }

 private:
  static constexpr int kRunnable = 2;
  ModuleNode* node() const { return static_cast<ModuleNode*>(PortcallModuleGetNode(ModuleOf(this).get())); }
};

// The core's modules have a table of virtual functions, which is empty until now (loader/module.cc).
void FillMethods() {
  PackedFunc make = Registry::Get("portcall.ModuleOfFunctions");
  if (!make.defined()) return;  // another runtime has mapped this library
  Module any = make(Map<String, Any>());
  OwnModule own;
  void** from = *reinterpret_cast<void***>(static_cast<ModuleObj*>(&own));
  const auto header_at = reinterpret_cast<char*>(static_cast<tvm::ffi::Object*>(&own)) - reinterpret_cast<char*>(&own);
  void** to = *reinterpret_cast<void***>(reinterpret_cast<char*>(any.get()) - header_at);
  std::copy(from - 1, from + kMethods, to - 1);  // the class's description comes before them
  to[kMethods] = reinterpret_cast<void*>(&StandInOf);
}

const bool filled = [] {
  FillMethods();
  return true;
}();

}  // namespace
}  // namespace portcall::tvm_ffi

// ---- What such classes inherit ------------------------------------------------------------------------------------

namespace tvm::ffi {

using namespace portcall::tvm_ffi;
namespace own = portcall;

Module Module::LoadFromFile(const String& file) {
  return Offered([&] { return own::ObjectRef::Borrow<Module>(own::Module::LoadFromFile(file.str()).get()); });
}

int ModuleObj::GetPropertyMask() const { return 0; }
bool ModuleObj::ImplementsFunction(const String& name) { return GetFunction(name).defined(); }
own::Any ModuleObj::GetFunctionDoc(const String&) { return {}; }
own::Any ModuleObj::GetFunctionMetadata(const String&) { return {}; }
void ModuleObj::WriteToFile(const String&, const String&) const {
  Offered([&] { PORTCALL_THROW(RuntimeError) << "a module of type '" << kind() << "' does not write files"; });
}
own::Array<own::String> ModuleObj::GetWriteFormats() const { return {}; }
own::Bytes ModuleObj::SaveToBytes() const {
  Offered([&] { PORTCALL_THROW(RuntimeError) << "a module of type '" << kind() << "' does not give bytes"; });
  return {};
}
own::String ModuleObj::InspectSource(const String&) const { return {}; }

void ModuleObj::ImportModule(const Module& other) {
  Offered([&] {
    const auto lock = LockImports();
    const own::Array<own::Any> before = imports;
    imports.push_back(own::ObjectRef::Borrow<own::Module>(other.get()));
    try {
      StandInOf(ModuleOf(this).get());  // which refuses to import what imports it
    } catch (const own::Error&) {
      imports = before;
      throw;
    }
  });
}
void ModuleObj::ClearImports() {
  const auto lock = LockImports();
  imports = {};
}

// With the modules that this one imports, in depth.
own::PackedFunc ModuleObj::GetFunction(const String& name, bool query_imports) {
  return Offered([&] { return ModuleOf(this).GetFunction(name.str(), query_imports); });
}
bool ModuleObj::ImplementsFunction(const String& name, bool query_imports) {
  return ImplementsFunction(name) || (query_imports && GetFunction(name, true).defined());
}
own::Any ModuleObj::GetFunctionDoc(const String& name, bool) { return GetFunctionDoc(name); }
own::Any ModuleObj::GetFunctionMetadata(const String& name, bool) { return GetFunctionMetadata(name); }

}  // namespace tvm::ffi
