// SPDX-License-Identifier: Apache-2.0
// A stand-in for TVM's C++ headers: the names and signatures that core/tvm_compat/tvm_compat.cc defines and uses, as they
// are in 0.19, and as little behind them as the test's program needs.
#pragma once
#include <tvm/runtime/c_runtime_api.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dmlc {
struct Stream;
}
namespace tvm {
using Device = DLDevice;
}
namespace tvm::runtime {

struct Error : std::runtime_error {
  using runtime_error::runtime_error;
};
std::string Backtrace();
std::string GetCustomTypeName(uint8_t code);
uint8_t ParseCustomDatatype(const std::string& text, const char** rest);
namespace detail {
struct LogFatal {
  struct Entry {
    std::ostringstream stream_;
  };
  static Entry& GetEntry();
  LogFatal() { GetEntry().stream_.str(""); }
  ~LogFatal() noexcept(false) { throw Error(GetEntry().stream_.str() + Backtrace()); }
};
struct LogMessage {
  static const char* level_strings_[];
};
}  // namespace detail
#define LOG(level) LOG_##level
#define LOG_INFO std::cerr << ::tvm::runtime::detail::LogMessage::level_strings_[1]
#define LOG_FATAL ::tvm::runtime::detail::LogFatal(), ::tvm::runtime::detail::LogFatal::GetEntry().stream_
#define ICHECK(x) \
  if (!(x)) throw ::tvm::runtime::Error("Check failed: " #x)
#define ICHECK_EQ(a, b) ICHECK((a) == (b))

// ---- Objects ------------------------------------------------------------------------------------------------------

struct TypeIndex {
  enum : uint32_t { kRuntimeModule = 1, kRuntimeNDArray, kRuntimeString, kRuntimeShapeTuple, kStaticIndexEnd };
  enum : uint32_t { kDynamic = kStaticIndexEnd };
};

class Object {
 public:
  using FDeleter = void (*)(Object*);
  static uint32_t RuntimeTypeIndex() { return 0; }
  template <typename T> bool IsInstance() const { return DerivedFrom(T::RuntimeTypeIndex()); }
  std::string GetTypeKey() const { return TypeIndex2Key(type_index_); }
  uint32_t type_index() const { return type_index_; }
  static std::string TypeIndex2Key(uint32_t index);
  void IncRef() { ++ref_counter_; }
  void DecRef() {
    if (--ref_counter_ == 0 && deleter_) deleter_(this);
  }

 protected:
  static uint32_t GetOrAllocRuntimeTypeIndex(const std::string& key, uint32_t fixed, uint32_t parent, uint32_t slots,
                                             bool overflow);
  bool DerivedFrom(uint32_t parent) const;
  uint32_t type_index_ = 0;
  std::atomic<int> ref_counter_{0};
  FDeleter deleter_ = nullptr;
  template <typename T, typename... A> friend auto make_object(A&&... args);
};

template <typename T> class ObjectPtr {
 public:
  ObjectPtr() = default;
  explicit ObjectPtr(T* object) : object_(object) {
    if (object_) object_->IncRef();
  }
  ObjectPtr(const ObjectPtr& other) : ObjectPtr(other.object_) {}
  template <typename U> ObjectPtr(const ObjectPtr<U>& other) : ObjectPtr(other.get()) {}
  ObjectPtr& operator=(ObjectPtr other) {
    std::swap(object_, other.object_);
    return *this;
  }
  ~ObjectPtr() {
    if (object_) object_->DecRef();
  }
  T* get() const { return object_; }

 private:
  T* object_ = nullptr;
};

template <typename T, typename U> ObjectPtr<T> GetObjectPtr(U* object) { return ObjectPtr<T>(object); }

template <typename T, typename... A> auto make_object(A&&... args) {
  auto* object = new T(std::forward<A>(args)...);
  object->type_index_ = T::RuntimeTypeIndex();
  object->deleter_ = [](Object* self) { delete static_cast<T*>(self); };
  return ObjectPtr<T>(object);
}

class ObjectRef {
 public:
  ObjectRef() = default;
  explicit ObjectRef(ObjectPtr<Object> data) : data_(std::move(data)) {}
  bool defined() const { return data_.get() != nullptr; }
  Object* get() const { return data_.get(); }

 protected:
  ObjectPtr<Object> data_;
};

#define STAND_IN_TYPE(fixed, key)                                                \
  static uint32_t RuntimeTypeIndex() {                                           \
    static uint32_t index = GetOrAllocRuntimeTypeIndex(key, fixed, 0, 0, false); \
    return index;                                                                \
  }

struct StringObj : Object {
  explicit StringObj(std::string given) : text(std::move(given)) {}
  STAND_IN_TYPE(TypeIndex::kRuntimeString, "runtime.String")
  std::string text;
};
class String : public ObjectRef {
 public:
  String(const char* text = "") : String(std::string(text)) {}
  String(std::string text) : ObjectRef(make_object<StringObj>(std::move(text))) {}
  operator std::string() const { return text(); }
  const char* c_str() const { return text().c_str(); }
  bool operator==(const char* other) const { return text() == other; }

 private:
  const std::string& text() const { return static_cast<StringObj*>(get())->text; }
};
template <typename T> using Optional = std::optional<T>;
inline constexpr std::nullopt_t NullOpt = std::nullopt;

struct ShapeTupleObj : Object {
  explicit ShapeTupleObj(std::vector<int64_t> given) : items(std::move(given)) {}
  STAND_IN_TYPE(TypeIndex::kRuntimeShapeTuple, "runtime.ShapeTuple")
  std::vector<int64_t> items;
};
class ShapeTuple : public ObjectRef {
 public:
  ShapeTuple(std::initializer_list<int64_t> items) : ShapeTuple(items.begin(), items.end()) {}
  template <typename I>
  ShapeTuple(I begin, I end) : ObjectRef(make_object<ShapeTupleObj>(std::vector<int64_t>(begin, end))) {}
  const int64_t* data() const { return static_cast<ShapeTupleObj*>(get())->items.data(); }
  size_t size() const { return static_cast<ShapeTupleObj*>(get())->items.size(); }
};

struct DataType {
  explicit DataType(DLDataType given) : dtype(given) {}
  int bits() const { return dtype.bits; }
  DLDataType dtype;
};

// ---- Arrays -------------------------------------------------------------------------------------------------------

inline bool IsContiguous(const DLTensor& array) {
  int64_t step = 1;
  for (int i = array.ndim; array.strides && i-- > 0; step *= array.shape[i]) {
    if (array.strides[i] != step) return false;
  }
  return true;
}

class NDArray : public ObjectRef {
 public:
  struct ContainerBase {
    DLTensor dl_tensor{};
    void* manager_ctx = nullptr;
    std::vector<int64_t> shape_;
  };
  struct Container : Object, ContainerBase {
    Container(void* data, const ShapeTuple& shape, DLDataType dtype, Device device) {
      type_index_ = TypeIndex::kRuntimeNDArray;
      shape_.assign(shape.data(), shape.data() + shape.size());
      dl_tensor = {data, device, static_cast<int32_t>(shape_.size()), dtype, shape_.data(), nullptr, 0};
    }
    void SetDeleter(FDeleter deleter) { deleter_ = deleter; }
  };
  using ObjectRef::ObjectRef;
  const DLTensor* operator->() const { return &get_mutable()->dl_tensor; }
  bool IsContiguous() const { return runtime::IsContiguous(*operator->()); }
  void CopyTo(const NDArray& other) const { CopyFromTo(operator->(), &other.get_mutable()->dl_tensor); }
  void CopyFromBytes(const void* data, size_t size);
  void CopyToBytes(void* data, size_t size) const;
  NDArray CopyTo(const Device& device, Optional<String> scope = NullOpt) const;
  DLManagedTensor* ToDLPack() const;
  static NDArray Empty(ShapeTuple shape, DLDataType dtype, Device device, Optional<String> scope = NullOpt);
  static NDArray FromDLPack(DLManagedTensor* tensor);
  static void CopyFromTo(const DLTensor* from, DLTensor* to, TVMStreamHandle stream = nullptr);
  ShapeTuple Shape() const;
  runtime::DataType DataType() const;
  Container* get_mutable() const { return static_cast<Container*>(get()); }
};

// ---- Modules and functions ----------------------------------------------------------------------------------------

class PackedFunc;
class ModuleNode;
class Module : public ObjectRef {
 public:
  using ObjectRef::ObjectRef;
  static Module LoadFromFile(const String& path, const String& format = "");
  PackedFunc GetFunction(const String& name, bool imports = false);
  void Import(Module other);
  ModuleNode* operator->() const;
};
class ModuleNode : public Object {
 public:
  virtual ~ModuleNode() = default;
  STAND_IN_TYPE(TypeIndex::kRuntimeModule, "runtime.Module")
  virtual const char* type_key() const = 0;
  virtual PackedFunc GetFunction(const String& name, const ObjectPtr<Object>& self) = 0;
  virtual void SaveToFile(const String& path, const String& format);
  virtual void SaveToBinary(dmlc::Stream* stream);
  virtual String GetSource(const String& format = "");
  virtual String GetFormat();
  virtual bool ImplementsFunction(const String& name, bool imports = false);
  PackedFunc GetFunction(const String& name, bool imports = false);
  void Import(Module other);

 protected:
  std::vector<Module> imports_;
};

struct TVMArgValue;
struct TVMArgs {
  TVMArgs(const TVMValue* given, const int* codes, int count) : values(given), type_codes(codes), num_args(count) {}
  TVMArgValue operator[](int i) const;
  const TVMValue* values;
  const int* type_codes;
  int num_args;
};
class TVMRetValue;
class PackedFunc {
 public:
  using FType = std::function<void(TVMArgs, TVMRetValue*)>;
  PackedFunc(std::nullptr_t = nullptr) {}
  explicit PackedFunc(FType body) : body_(std::move(body)) {}
  template <typename... A> TVMRetValue operator()(A&&... args) const;
  void CallPacked(TVMArgs args, TVMRetValue* result) const { body_(args, result); }
  bool operator==(std::nullptr_t) const { return body_ == nullptr; }
  bool operator!=(std::nullptr_t) const { return body_ != nullptr; }

 private:
  FType body_;
};

struct TVMArgValue {
  TVMArgValue(TVMValue given, int kind) : value(given), code(kind) {}
  int type_code() const { return code; }
  operator int() const { return static_cast<int>(value.v_int64); }
  operator PackedFunc() const { return *static_cast<PackedFunc*>(value.v_handle); }
  operator NDArray() const {
    auto* base = static_cast<NDArray::ContainerBase*>(value.v_handle);
    return NDArray(ObjectPtr<Object>(static_cast<NDArray::Container*>(base)));
  }
  operator std::string() const {
    if (code == kTVMObjectHandle) return static_cast<StringObj*>(static_cast<Object*>(value.v_handle))->text;
    return value.v_str;
  }
  TVMValue value;
  int code;
};
inline TVMArgValue TVMArgs::operator[](int i) const { return {values[i], type_codes[i]}; }

// What holds a result: a number as it is, all else in a field of its kind.
class TVMRetValue {
 public:
  int type_code() const { return code_; }
  void operator=(const TVMArgValue& other) {
    code_ = other.code;
    value_ = other.value;
    if (code_ == kTVMStr) text_ = value_.v_str;
    if (code_ == kTVMBytes) *this = *static_cast<TVMByteArray*>(value_.v_handle);
  }
  void operator=(int value) { code_ = kTVMArgInt, value_.v_int64 = value; }
  void operator=(std::string text) { code_ = kTVMStr, text_ = std::move(text); }
  void operator=(const TVMByteArray& bytes) { code_ = kTVMBytes, text_.assign(bytes.data, bytes.size); }
  void operator=(PackedFunc function) {
    code_ = function == nullptr ? kTVMNullptr : kTVMPackedFuncHandle;
    function_ = std::move(function);
  }
  void operator=(const NDArray& array) { code_ = kTVMNDArrayHandle, object_ = array; }
  void operator=(const Module& module) { code_ = kTVMModuleHandle, object_ = module; }
  operator int() const { return static_cast<int>(value_.v_int64); }
  operator bool() const { return value_.v_int64 != 0; }
  operator double() const { return value_.v_float64; }
  operator DLDevice() const { return value_.v_device; }
  operator std::string() const { return text_; }
  operator PackedFunc() const { return function_; }
  operator NDArray() const { return NDArray(ObjectPtr<Object>(object_.get())); }
  operator Module() const { return Module(ObjectPtr<Object>(object_.get())); }

 private:
  friend class TVMArgsSetter;
  int code_ = kTVMNullptr;
  TVMValue value_{};
  std::string text_;
  PackedFunc function_;
  ObjectRef object_;
};

class TVMArgsSetter {
 public:
  TVMArgsSetter(TVMValue* values, int* codes) : values_(values), codes_(codes) {}
  void operator()(size_t i, int value) const { Set(i, kTVMArgInt).v_int64 = value; }
  void operator()(size_t i, bool value) const { Set(i, kTVMArgBool).v_int64 = value; }
  void operator()(size_t i, double value) const { Set(i, kTVMArgFloat).v_float64 = value; }
  void operator()(size_t i, std::nullptr_t) const { Set(i, kTVMNullptr).v_handle = nullptr; }
  void operator()(size_t i, DLDevice value) const { Set(i, kDLDevice).v_device = value; }
  void operator()(size_t i, const char* text) const { Set(i, kTVMStr).v_str = text; }
  void operator()(size_t i, const PackedFunc& function) const {
    Set(i, kTVMPackedFuncHandle).v_handle = const_cast<PackedFunc*>(&function);
  }
  void operator()(size_t i, const NDArray& array) const {
    Set(i, kTVMNDArrayHandle).v_handle = static_cast<NDArray::ContainerBase*>(array.get_mutable());
  }
  void operator()(size_t i, const Module& module) const { Set(i, kTVMModuleHandle).v_handle = module.get(); }
  void operator()(size_t i, const String& text) const { Set(i, kTVMObjectHandle).v_handle = text.get(); }
  void operator()(size_t i, const ShapeTuple& shape) const { Set(i, kTVMObjectHandle).v_handle = shape.get(); }
  void operator()(size_t i, const TVMRetValue& value) const {
    Set(i, value.code_) = value.value_;
    if (value.code_ == kTVMStr) values_[i].v_str = value.text_.c_str();
    if (value.code_ == kTVMPackedFuncHandle) (*this)(i, value.function_);
    if (value.code_ == kTVMModuleHandle) values_[i].v_handle = value.object_.get();
    if (value.code_ == kTVMNDArrayHandle) (*this)(i, value.operator NDArray());
  }

 private:
  TVMValue& Set(size_t i, int code) const {
    codes_[i] = code;
    return values_[i];
  }
  TVMValue* values_;
  int* codes_;
};

template <typename... A> TVMRetValue PackedFunc::operator()(A&&... args) const {
  TVMValue values[sizeof...(A) + 1];
  int codes[sizeof...(A) + 1];
  TVMArgsSetter set(values, codes);
  size_t i = 0;
  (set(i++, args), ...);
  TVMRetValue result;
  body_(TVMArgs(values, codes, sizeof...(A)), &result);
  return result;
}

inline ModuleNode* Module::operator->() const { return static_cast<ModuleNode*>(get()); }
inline PackedFunc Module::GetFunction(const String& name, bool imports) { return (*this)->GetFunction(name, imports); }
inline void Module::Import(Module other) { (*this)->Import(std::move(other)); }

class Registry {
 public:
  Registry& set_body(PackedFunc function);
  Registry& set_body(PackedFunc::FType function) { return set_body(PackedFunc(std::move(function))); }
  static Registry& Register(const String& name, bool override = false);
  static bool Remove(const String& name);
  static const PackedFunc* Get(const String& name);
  static std::vector<String> ListNames();

 protected:
  String name_;
  PackedFunc func_;
};
#define STAND_IN_NAME(a, b) a##b
#define STAND_IN_UNIQUE(a, b) STAND_IN_NAME(a, b)
#define TVM_REGISTER_GLOBAL(name)                                                                  \
  static TVM_ATTRIBUTE_UNUSED ::tvm::runtime::Registry& STAND_IN_UNIQUE(registered, __COUNTER__) = \
      ::tvm::runtime::Registry::Register(name)

}  // namespace tvm::runtime
