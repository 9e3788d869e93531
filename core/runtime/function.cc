// SPDX-License-Identifier: Apache-2.0
// Function objects, and the one table of global functions.
#include "portcall/function.h"

#include <pthread.h>
#if defined(__linux__) && !defined(__GLIBC__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "portcall/container.h"
#include "portcall/tensor.h"
#include "runtime/foreign.h"
#include "runtime/library_globals.h"
#include "runtime/node.h"

namespace portcall {
namespace {

// The part of a thread's stack that calls leave to what they call last.
constexpr size_t kReserve = 256 << 10;

// Where that part begins and ends; until it is known, every address lies before its end.
struct StackEnd {
  uintptr_t begin, end;
};
#ifdef __GLIBC__  // others have no room for it in a library that is loaded later
__attribute__((tls_model("initial-exec")))
#endif
thread_local StackEnd stack_end = {0, UINTPTR_MAX};

bool IsNearStackEnd(uintptr_t here) {
  if (stack_end.end == UINTPTR_MAX) {
    stack_end = {0, 0};
#if defined(__linux__) && !defined(__GLIBC__)
    // musl finds the main thread's stack by asking for page after page, under qemu without an end.
    if (getpid() == syscall(SYS_gettid)) {
      rlimit limit{};
      getrlimit(RLIMIT_STACK, &limit);
      const uintptr_t room = std::min<uintptr_t>(limit.rlim_cur, uintptr_t{8} << 20);
      if (here > room) stack_end = {here - room, here - room + kReserve};
      return false;
    }
#endif
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &begin, &size);
      pthread_attr_destroy(&attributes);
      auto address = reinterpret_cast<uintptr_t>(begin);
      stack_end = {address, address + std::min(size / 4, kReserve)};
    }
  }
  return here >= stack_end.begin && here < stack_end.end;  // another stack, of a coroutine say, may lie before it
}

// The first object in a value, perhaps inside of containers, that another runtime cannot read: its type is registered
// here, or it is a module. `seen`: containers that were entered; one may hold itself.
const TVMFFIObject* FindOwn(const TVMFFIAny& value, std::vector<const TVMFFIObject*>* seen) {
  if (!IsObject(value)) return nullptr;
  TVMFFIObject* obj = value.v_obj;
  if (obj->type_index >= kPortcallDynObjectBegin) return obj;
  if (obj->type_index == kTVMFFIModule) return PortcallModuleGetNode(obj) ? obj : nullptr;
  const bool pairs = obj->type_index == kTVMFFIMap || obj->type_index == kTVMFFIDict;
  if (!pairs && obj->type_index != kTVMFFIArray && obj->type_index != kTVMFFIList) return nullptr;
  if (std::find(seen->begin(), seen->end(), obj) != seen->end()) return nullptr;
  seen->push_back(obj);
  const TVMFFIObject* found = nullptr;
  if (pairs) {
    for (const TVMFFIAny* pair = PortcallMapNext(obj, nullptr); pair && !found; pair = PortcallMapNext(obj, pair)) {
      found = FindOwn(pair[0], seen);
      if (!found) found = FindOwn(pair[1], seen);
    }
    return found;
  }
  const TVMFFISeqCell& items = static_cast<ArrayObj*>(obj)->cell;
  for (int64_t i = 0; i < items.size && !found; ++i)
    found = FindOwn(static_cast<const TVMFFIAny*>(items.data)[i], seen);
  return found;
}

// A library on another runtime looks objects up in that runtime's table of types, which ends the process at one of ours.
int CheckForeign(const char* name, const TVMFFIAny* args, int32_t num_args) {
  return Guard([&] {
    std::vector<const TVMFFIObject*> seen;
    for (int32_t i = 0; i < num_args; ++i) {
      const TVMFFIObject* own = FindOwn(args[i], &seen);
      if (!own) continue;
      detail::ThrowArgumentError(
          name, i, "a value that libtvm_ffi.so knows, since the library was linked with it",
          DescribeType(own->type_index) + " of portcall; build the library without -ltvm_ffi to pass such objects");
    }
  });
}

// A function that code on another runtime made.
int CallForeignObject(void* handle, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  if (CheckForeign("", args, num_args) != 0) return -1;
  return static_cast<FunctionObj*>(handle)->cell.safe_call(handle, args, num_args, result);
}

struct FunctionImpl final : Object {
  static constexpr int32_t kTypeIndex = kTVMFFIFunction;

  TVMFFIFunctionCell cell{Call, nullptr};
  void* self;
  TVMFFISafeCallType body;
  void (*release)(void*);
  int32_t flags;
  std::string name;

  FunctionImpl(void* s, TVMFFISafeCallType b, void (*r)(void*), int32_t f, const char* n)
      : self(s), body(b), release(r), flags(f), name(n ? n : "") {
    if (flags & kPortcallFunctionSigned) name.append(n + name.size(), std::strlen(n + name.size() + 1) + 1);
    if (flags & kPortcallFunctionForeign) cell.safe_call = CallForeign;
    if (flags & kPortcallFunctionGenerated) cell.safe_call = CallGenerated;
  }
  ~FunctionImpl() {
    if (release) release(self);
  }

  static FunctionImpl* Of(void* handle) { return static_cast<FunctionImpl*>(static_cast<TVMFFIObject*>(handle)); }
  static int Call(void* handle, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
    FunctionImpl* func = Of(handle);
    auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (__builtin_expect(here < stack_end.end, 0)) return CallNearStackEnd(func, here, args, num_args, result);
    return func->body(func->self, args, num_args, result);
  }
  __attribute__((noinline)) static int CallNearStackEnd(FunctionImpl* func, uintptr_t here, const TVMFFIAny* args,
                                                        int32_t num_args, TVMFFIAny* result) {
    return IsNearStackEnd(here) ? func->RaiseTooDeep() : func->body(func->self, args, num_args, result);
  }
  static int CallForeign(void* handle, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
    FunctionImpl* func = Of(handle);
    if (CheckForeign(func->name.c_str(), args, num_args) != 0) return -1;
    return func->body(func->self, args, num_args, result);
  }
  static int CallGenerated(void* handle, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
    FunctionImpl* func = Of(handle);
    if (func->CheckGenerated(args, num_args) != 0) return -1;
    return func->body(func->self, args, num_args, result);
  }

  // Generated code reads any object as a tensor and moves data with aligned instructions: both are checked here,
  // because it checks neither.
  int CheckGenerated(const TVMFFIAny* args, int32_t num_args) const {
    for (int32_t i = 0; i < num_args; ++i) {
      const TVMFFIAny& arg = args[i];
      if (const DLTensor* tensor = TryDLTensor(arg)) {
        auto address = reinterpret_cast<uintptr_t>(tensor->data) + tensor->byte_offset;
        if (address % kTensorAlignment != 0 && tensor->device.device_type == kDLCPU) return RaiseAlignment(i, address);
      } else if (IsObject(arg)) {
        return RaiseType(i, "a number, a pointer or a Tensor", DescribeType(arg.type_index));
      }
    }
    return 0;
  }
  int RaiseTooDeep() const {
    return Guard([&] {
      PORTCALL_THROW(RecursionError) << "calls are nested too deeply: " << name << "() would use up the stack";
    });
  }
  int RaiseType(int32_t position, const std::string& expected, const std::string& got) const {
    return Guard([&] { detail::ThrowArgumentError(name.c_str(), position, expected, got); });
  }
  int RaiseAlignment(int32_t position, uintptr_t address) const {
    return RaiseType(
        position, "tensor data aligned to " + std::to_string(kTensorAlignment) + " bytes, as compiled kernels assume",
        "data at " + std::to_string(address % kTensorAlignment) + " modulo " + std::to_string(kTensorAlignment));
  }
};

class GlobalTable {
 public:
  static GlobalTable& Get() {
    static auto* table = new GlobalTable();  // never destroyed: libraries call until the very end
    return *table;
  }

  PackedFunc Find(std::string_view name) {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto it = functions_.find(name);
    return it == functions_.end() ? PackedFunc() : it->second.func;
  }
  void Set(std::string_view name, PackedFunc func, bool can_override) {
    PORTCALL_CHECK(!name.empty(), ValueError) << "a global function needs a name";
    PORTCALL_CHECK(func.defined(), TypeError) << "'" << name << "' cannot be registered: the function is None";
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const LibraryGlobals* owner = LibraryGlobals::current();
    auto [it, added] = functions_.try_emplace(std::string(name));
    Entry& entry = it->second;
    PORTCALL_CHECK(added || can_override || (owner && entry.GivesWayTo(*owner)), AlreadyRegisteredError)
        << "a global function '" << name << "' is already registered"
        << (entry.library.empty() ? "" : " by '" + entry.library + "'")
        << (owner ? "; for this library's in its place remove that one first: remove_global_func in Python, "
                    "Registry::Remove in C++"
                  : "; pass override to replace it");
    std::swap(entry.func, func);
    entry.library = owner ? owner->path() : std::string();
    entry.load = owner ? owner->load() : 0;
    LibraryGlobals::Note(name);
    lock.unlock();  // the old function may run code of its owner when it goes
  }
  bool Remove(std::string_view name) {
    PackedFunc gone;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto it = functions_.find(name);
    if (it == functions_.end()) return false;
    gone = std::move(it->second.func);
    functions_.erase(it);
    lock.unlock();
    return true;
  }
  void RemoveOlder(const LibraryGlobals& owner) {
    std::vector<PackedFunc> gone;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    for (auto it = functions_.begin(); it != functions_.end();) {
      bool old = it->second.library == owner.path() && it->second.load != owner.load();
      if (old) gone.push_back(std::move(it->second.func));
      it = old ? functions_.erase(it) : std::next(it);
    }
    lock.unlock();
  }
  std::vector<std::string> Names() {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    std::vector<std::string> names;
    names.reserve(functions_.size());
    for (const auto& [name, entry] : functions_) names.push_back(name);
    return names;
  }

 private:
  struct Entry {
    PackedFunc func;
    std::string library;  // that registered it when it was loaded; "" for all others
    uint64_t load = 0;

    bool GivesWayTo(const LibraryGlobals& owner) const {
      PortcallFunctionInfo info;
      PortcallFunctionGetInfo(func.get(), &info);
      return library == owner.path() || (info.flags & kFunctionGivesWay);
    }
  };

  std::shared_mutex mutex_;
  std::map<std::string, Entry, std::less<>> functions_;  // sorted: lists are stable
};

std::vector<std::string> ListNames() { return GlobalTable::Get().Names(); }

PORTCALL_REGISTER_GLOBAL("portcall.ListGlobalNames").set_body_typed(ListNames);
PORTCALL_REGISTER_GLOBAL("ffi.FunctionRemoveGlobal").set_body_typed([](std::string name) {
  return GlobalTable::Get().Remove(name);
});
// A function of an index: -1 gives the number of names. What tvm-ffi's headers expect.
PORTCALL_REGISTER_GLOBAL("ffi.FunctionListGlobalNamesFunctor").set_body_typed([]() {
  return PackedFunc([names = ListNames()](Args args, RetValue* rv) {
    int64_t i = args[0];
    if (i < 0) {
      *rv = static_cast<int64_t>(names.size());
    } else {
      *rv = names.at(static_cast<size_t>(i));
    }
  });
});

}  // namespace

thread_local const LibraryGlobals* LibraryGlobals::current_ = nullptr;

void LibraryGlobals::Note(std::string_view name) {
  if (!current_) return;
  std::vector<std::string>& names = current_->registered_;
  for (const std::string& known : names) {
    if (known == name) return;
  }
  names.emplace_back(name);
}

void LibraryGlobals::RemoveOlder() const { GlobalTable::Get().RemoveOlder(*this); }

}  // namespace portcall

using namespace portcall;

int TVMFFIFunctionCreate(void* self, TVMFFISafeCallType safe_call, void (*deleter)(void* self),
                         TVMFFIObjectHandle* out) {
  return PortcallFunctionCreate(self, safe_call, deleter, 0, nullptr, out);
}

int PortcallFunctionCreate(void* self, TVMFFISafeCallType safe_call, void (*deleter)(void* self), int32_t flags,
                           const char* name, TVMFFIObjectHandle* out) {
  return Guard([&] {
    PORTCALL_CHECK(safe_call != nullptr, ValueError) << "a function needs something to call";
    *out = NewCountedNode<FunctionImpl>(0, self, safe_call, deleter, flags, name);
  });
}

void PortcallFunctionGetInfo(TVMFFIObjectHandle func, PortcallFunctionInfo* out) {
  auto* obj = static_cast<TVMFFIObject*>(func);
  if (obj->deleter == DeleteCountedNode<FunctionImpl>) {
    FunctionImpl* impl = FunctionImpl::Of(func);
    bool direct = impl->cell.safe_call == FunctionImpl::Call;
    *out = {direct ? impl->body : impl->cell.safe_call, direct ? impl->self : func, impl->name.c_str(), impl->flags};
  } else {
    TVMFFISafeCallType call = static_cast<FunctionObj*>(obj)->cell.safe_call;
    bool foreign = IsForeignCode(reinterpret_cast<void*>(call));
    *out = {foreign ? CallForeignObject : call, func, "", foreign ? kPortcallFunctionForeign : 0};
  }
}

int TVMFFIFunctionCall(TVMFFIObjectHandle func, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  if (!func || num_args < 0 || (num_args > 0 && !args) || !result) {
    return Guard([&] {
      PORTCALL_CHECK(func, TypeError) << "called a null function";
      PORTCALL_THROW(ValueError) << "a call needs a result cell, and arguments where num_args (" << num_args
                                 << ") says so";
    });
  }
  auto* obj = static_cast<TVMFFIObject*>(func);
  return static_cast<FunctionObj*>(obj)->cell.safe_call(func, args, num_args, result);
}

int TVMFFIFunctionGetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle* out) {
  return Guard([&] { *out = GlobalTable::Get().Find(ToView(*name)).release(); });
}

int TVMFFIFunctionSetGlobal(const TVMFFIByteArray* name, TVMFFIObjectHandle func, int allow_override) {
  return Guard([&] {
    auto* obj = static_cast<TVMFFIObject*>(func);
    PORTCALL_CHECK(!obj || obj->type_index == kTVMFFIFunction, TypeError)
        << "'" << ToView(*name) << "' cannot be registered: it is not a function but " << DescribeType(obj->type_index);
    GlobalTable::Get().Set(ToView(*name), ObjectRef::Borrow<PackedFunc>(func), allow_override != 0);
  });
}

// The same function, with the name and the signature that a library tells of it.
static PackedFunc Described(const PackedFunc& func, const TVMFFIMethodInfo& info) {
  PortcallFunctionInfo known;
  PortcallFunctionGetInfo(func.get(), &known);
  if (info.metadata.size == 0 || *known.name) return func;
  const std::string text = std::string(ToView(info.name)).append(1, '\0').append(ToView(info.metadata));
  TVMFFIObjectHandle handle = nullptr;
  auto release = [](void* self) { Release(static_cast<TVMFFIObject*>(self)); };
  const int32_t flags = known.flags | kPortcallFunctionSigned;
  auto* call = static_cast<FunctionObj*>(func.get())->cell.safe_call;
  Check(PortcallFunctionCreate(func.get(), call, release, flags, text.c_str(), &handle));
  Retain(func.get());
  return ObjectRef::Steal<PackedFunc>(handle);
}

int TVMFFIFunctionSetGlobalFromMethodInfo(const TVMFFIMethodInfo* info, int allow_override) {
  return Guard([&] {
    PORTCALL_CHECK(info->method.type_index == kTVMFFIFunction, TypeError)
        << "the method '" << ToView(info->name) << "' is not a function";
    auto func = ObjectRef::Borrow<PackedFunc>(info->method.v_obj);
    GlobalTable::Get().Set(ToView(info->name), Described(func, *info), allow_override != 0);
  });
}

int PortcallFunctionRemoveGlobal(const TVMFFIByteArray* name, int* removed) {
  return Guard([&] { *removed = GlobalTable::Get().Remove(ToView(*name)) ? 1 : 0; });
}
