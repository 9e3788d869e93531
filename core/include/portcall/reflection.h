// SPDX-License-Identifier: Apache-2.0
// Reflection: a type's fields, methods and documentation, described once and read by everybody: Python, printing,
// serialization, comparison.
//
//   struct AddObj : ExprObj {
//     Expr lhs, rhs;
//     String span;
//     PORTCALL_OBJECT(AddObj, ExprObj, "demo.Add")
//     static void Describe(Description<AddObj>* type) {
//       type->doc("The sum of two expressions.");
//       type->field("lhs", &AddObj::lhs, "what is added to");
//       type->field("rhs", &AddObj::rhs);
//       type->field("span", &AddObj::span, "where it stands in the source").set_default("").ignore();
//       type->method("depth", &AddObj::Depth);
//     }
//   };
//   PORTCALL_REGISTER_OBJECT(AddObj);
//   class Add : public Expr { PORTCALL_OBJECT_REF(Add, AddObj) };
//
// The type appears in Python with attributes, documentation and a constructor. Nodes need a default constructor for
// that; others can be read but not made there.
#ifndef PORTCALL_REFLECTION_H_
#define PORTCALL_REFLECTION_H_

#include <string>
#include <utility>
#include <vector>

#include "container.h"
#include "function.h"
#include "tensor.h"
#include "value.h"

namespace portcall {

// ---- Reading descriptions -----------------------------------------------------------------------------------------

// Calls fn(field) for the fields of a type, its ancestors' first.
template <typename F> void ForEachField(const TVMFFITypeInfo& type, F fn) {
  for (int32_t depth = 0; depth <= type.type_depth; ++depth) {
    const TVMFFITypeInfo& owner = depth < type.type_depth ? *type.type_ancestors[depth] : type;
    // The list grows by being replaced: the one that is read after its length is as long, at least.
    int32_t count = __atomic_load_n(&owner.num_fields, __ATOMIC_ACQUIRE);
    const TVMFFIFieldInfo* fields = __atomic_load_n(&owner.fields, __ATOMIC_ACQUIRE);
    for (int32_t i = 0; i < count; ++i) fn(fields[i]);
  }
}

inline std::vector<const TVMFFIFieldInfo*> FieldsOf(int32_t type_index) {
  std::vector<const TVMFFIFieldInfo*> fields;
  if (const TVMFFITypeInfo* type = TVMFFIGetTypeInfo(type_index)) {
    ForEachField(*type, [&](const TVMFFIFieldInfo& field) { fields.push_back(&field); });
  }
  return fields;
}

// What is said of a type beyond its fields and methods, such as a hook: borrowed, null when nothing was. `Column` is a
// column of attributes, whose address is worth keeping.
inline const TVMFFITypeAttrColumn* AttributeColumn(std::string_view name) {
  TVMFFIByteArray text = ToByteArray(name);
  return TVMFFIGetTypeAttrColumn(&text);
}
inline const TVMFFIAny* FindAttribute(int32_t type_index, const TVMFFITypeAttrColumn* column) {
  if (!column || type_index >= __atomic_load_n(&column->size, __ATOMIC_ACQUIRE)) return nullptr;
  const TVMFFIAny* value = __atomic_load_n(&column->data, __ATOMIC_ACQUIRE) + type_index;
  return value->type_index == kTVMFFINone ? nullptr : value;
}
// A function that decides for a type what is otherwise decided by its fields; not defined when there is none.
inline PackedFunc FindHook(int32_t type_index, const TVMFFITypeAttrColumn* column) {
  const TVMFFIAny* value = FindAttribute(type_index, column);
  return value && value->type_index == kTVMFFIFunction ? ObjectRef::Borrow<PackedFunc>(value->v_obj) : PackedFunc();
}

// Null when the type has no such field.
inline const TVMFFIFieldInfo* FindField(int32_t type_index, std::string_view name) {
  const TVMFFIFieldInfo* found = nullptr;
  for (const TVMFFIFieldInfo* field : FieldsOf(type_index)) {
    if (ToView(field->name) == name) found = field;
  }
  return found;
}

inline Any GetField(const TVMFFIObject* obj, const TVMFFIFieldInfo& field) {
  Any value;
  Check(field.getter(const_cast<char*>(reinterpret_cast<const char*>(obj)) + field.offset, value.out()));
  return value;
}

inline Any GetField(const ObjectRef& obj, std::string_view name) {
  const TVMFFIFieldInfo* field = obj.defined() ? FindField(obj.type_index(), name) : nullptr;
  PORTCALL_CHECK(field, AttributeError) << "an object of type '" << TypeKeyOf(obj.type_index()) << "' has no field '"
                                        << name << "'";
  return GetField(obj.get(), *field);
}

// The value of a field, borrowed: in place where the layout is known, else through `*space`, which then owns it.
inline const TVMFFIAny* ViewField(const TVMFFIObject* obj, const TVMFFIFieldInfo& field, Any* space) {
  const char* place = reinterpret_cast<const char*>(obj) + field.offset;
  if (field.flags & kPortcallFieldFlagCell) return reinterpret_cast<const TVMFFIAny*>(place);
  *space = GetField(obj, field);
  return &space->cell();
}

// A new object of a described type from the values of its fields, ancestors' first; kTVMFFIUnchanged asks for defaults.
inline ObjectRef CreateObject(int32_t type_index, const std::vector<Any>& values) {
  TVMFFIObjectHandle handle = nullptr;
  Check(PORTCALL_CALL(PortcallObjectCreate)(type_index, reinterpret_cast<const TVMFFIAny*>(values.data()),
                                            static_cast<int32_t>(values.size()), &handle));
  return ObjectRef::Steal(handle);
}
inline ObjectRef CreateObject(std::string_view type_key, const std::vector<Any>& values) {
  TVMFFIByteArray key = ToByteArray(type_key);
  int32_t type_index = -1;
  Check(TVMFFITypeKeyToIndex(&key, &type_index));
  return CreateObject(type_index, values);
}

// ---- References ---------------------------------------------------------------------------------------------------

// The same object as a more special reference; null stays null. TypeError when it is something else.
template <typename Ref> Ref Downcast(const ObjectRef& ref) {
  PORTCALL_CHECK(!ref.defined() || ref.as<typename Ref::NodeClass>(), TypeError)
      << "expected " << DescribeType(TypeIndexOf<typename Ref::NodeClass>()) << ", got "
      << DescribeType(ref.type_index());
  return ObjectRef::Borrow<Ref>(ref.get());
}

// The node, to be changed: *ref becomes a copy first when somebody else holds the object too.
template <typename Ref> typename Ref::NodeClass* CopyOnWrite(Ref* ref) {
  using Node = typename Ref::NodeClass;
  PORTCALL_CHECK(ref->defined(), TypeError) << "the object to change is None";
  PORTCALL_CHECK(ref->type_index() == TypeIndexOf<Node>(), TypeError)
      << "an object of type '" << ref->type_key() << "' cannot be copied as a '" << Node::kTypeKey << "'";
  if (!ref->unique()) *ref = ObjectRef::Steal<Ref>(NewNode<Node>(*ref->node()));
  return ref->node();
}

// ---- Writing them -------------------------------------------------------------------------------------------------

namespace detail {
template <typename T> constexpr int32_t DeclaredTypeIndex() {
  if constexpr (std::is_same_v<T, bool>) return kTVMFFIBool;
  else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) return kTVMFFIInt;
  else if constexpr (std::is_floating_point_v<T>) return kTVMFFIFloat;
  else if constexpr (std::is_same_v<T, String> || std::is_same_v<T, std::string>) return kTVMFFIStr;
  else if constexpr (std::is_same_v<T, Bytes>) return kTVMFFIBytes;
  else if constexpr (std::is_same_v<T, DLDataType>) return kTVMFFIDataType;
  else if constexpr (std::is_same_v<T, DLDevice>) return kTVMFFIDevice;
  else return kTVMFFIAny;
}

template <typename F> constexpr int64_t FieldLayout() {
  if constexpr (std::is_same_v<F, Any> || std::is_same_v<F, String> || std::is_same_v<F, Bytes>) {
    return kPortcallFieldFlagCell;
  } else if constexpr (std::is_base_of_v<ObjectRef, F> && sizeof(F) == sizeof(void*)) {
    return kPortcallFieldFlagReference | kPortcallFieldFlagOptional;
  } else {
    return 0;
  }
}

template <typename F> int ReadField(void* field, TVMFFIAny* result) {
  return Guard([&] { *result = Any(*static_cast<F*>(field)).release(); });
}
template <typename F> int WriteField(void* field, const TVMFFIAny* value) {
  return Guard([&] { *static_cast<F*>(field) = ArgValue(value, -1, "").cast<F>(); });
}

template <typename T> int CreateNode(TVMFFIObjectHandle* result) {
  return Guard([&] { *result = NewNode<T>(); });
}

inline std::string SchemaOf(const std::string& type) { return "{\"type\": \"" + type + "\"}"; }
}  // namespace detail

// One field while it is described; registered when this goes out of scope.
class FieldDescription {
 public:
  FieldDescription(int32_t type_index, const TVMFFIFieldInfo& info, std::string name, std::string doc,
                   std::string schema)
      : type_index_(type_index),
        info_(info),
        name_(std::move(name)),
        doc_(std::move(doc)),
        schema_(std::move(schema)) {}
  FieldDescription(const FieldDescription&) = delete;
  FieldDescription& operator=(const FieldDescription&) = delete;
  ~FieldDescription() {
    info_.name = ToByteArray(name_);
    info_.doc = ToByteArray(doc_);
    info_.metadata = ToByteArray(schema_);
    info_.default_value_or_factory = default_.cell();
    if (TVMFFITypeRegisterField(type_index_, &info_) != 0) runtime::FailLoad();
  }

  FieldDescription& set_default(Any value) {
    default_ = std::move(value);
    return Add(kTVMFFIFieldFlagBitMaskHasDefault);
  }
  // Called for each object that is made without a value.
  template <typename F> FieldDescription& set_default_factory(F make) {
    default_ = PackedFunc([make](Args, RetValue* rv) { *rv = Any(make()); });
    return Add(kTVMFFIFieldFlagBitMaskHasDefault | kTVMFFIFieldFlagBitMaskDefaultFromFactory);
  }
  FieldDescription& writable() { return Add(kTVMFFIFieldFlagBitMaskWritable); }
  FieldDescription& keyword_only() { return Add(kTVMFFIFieldFlagBitMaskKwOnly); }
  FieldDescription& ignore() { return Add(kTVMFFIFieldFlagBitMaskSEqHashIgnore); }  // in structural comparison
  FieldDescription& by_identity() { return Add(kPortcallFieldFlagIdentity); }       // likewise
  FieldDescription& defines_variable() { return Add(kTVMFFIFieldFlagBitMaskSEqHashDefSimple); }
  FieldDescription& hide() { return Add(kTVMFFIFieldFlagBitMaskReprOff); }  // from what is printed

 private:
  FieldDescription& Add(int64_t flags) {
    info_.flags |= flags;
    return *this;
  }

  int32_t type_index_;
  TVMFFIFieldInfo info_;
  std::string name_, doc_, schema_;
  Any default_;
};

template <typename T> class Description {
 public:
  void doc(std::string text) { doc_ = std::move(text); }
  void compare_as(TVMFFISEqHashKind kind) { kind_ = kind; }

  template <typename C, typename F> FieldDescription field(std::string name, F C::* member, std::string doc = {}) {
    static_assert(std::is_base_of_v<C, T>, "a field of another type");
    alignas(T) static char space[sizeof(T)];
    char* place = reinterpret_cast<char*>(&(reinterpret_cast<T*>(space)->*member));
    TVMFFIFieldInfo info{};
    info.flags = detail::FieldLayout<F>();
    info.size = sizeof(F);
    info.alignment = alignof(F);
    info.offset = place - reinterpret_cast<char*>(static_cast<TVMFFIObject*>(reinterpret_cast<T*>(space)));
    info.getter = detail::ReadField<F>;
    info.setter = reinterpret_cast<void*>(detail::WriteField<F>);
    info.field_static_type_index = DeclaredType<F>();
    return {TypeIndexOf<T>(), info, std::move(name), std::move(doc), detail::SchemaOf(TypeTraits<F>::Name())};
  }

  // The object is the first argument.
  template <typename R, typename... A> void method(std::string name, R (T::*body)(A...) const, std::string doc = {}) {
    Method(name, doc, 0, [body](const ObjectRef& self, A... args) -> R { return (NodeOf(self)->*body)(args...); });
  }
  template <typename R, typename... A> void method(std::string name, R (T::*body)(A...), std::string doc = {}) {
    Method(name, doc, 0, [body](const ObjectRef& self, A... args) -> R { return (NodeOf(self)->*body)(args...); });
  }
  template <typename F> void static_method(std::string name, F body, std::string doc = {}) {
    Method(name, doc, kTVMFFIFieldFlagBitMaskIsStaticMethod, body);
  }

  void Register() const {
    TVMFFITypeMetadata metadata{ToByteArray(doc_), nullptr, sizeof(T), kind_};
    if constexpr (std::is_default_constructible_v<T>) metadata.creator = detail::CreateNode<T>;
    CheckAtLoad(TVMFFITypeRegisterMetadata(TypeIndexOf<T>(), &metadata));
  }

 private:
  template <typename F> static int32_t DeclaredType() {
    if constexpr (std::is_base_of_v<ObjectRef, F>) return TypeIndexOf<typename F::NodeClass>();
    else return detail::DeclaredTypeIndex<F>();
  }
  static T* NodeOf(const ObjectRef& self) {
    T* node = self.as<T>();
    PORTCALL_CHECK(node, TypeError) << "expected " << DescribeType(TypeIndexOf<T>()) << ", got "
                                    << DescribeType(self.type_index());
    return node;
  }
  template <typename F> void Method(const std::string& name, const std::string& doc, int64_t flags, F body) {
    PackedFunc func(detail::Unpack(std::move(body)), std::string(T::kTypeKey) + "." + name);
    TVMFFIMethodInfo info{ToByteArray(name), ToByteArray(doc), {nullptr, 0}, flags, Any(func).cell()};
    CheckAtLoad(TVMFFITypeRegisterMethod(TypeIndexOf<T>(), &info));
  }

  std::string doc_;
  TVMFFISEqHashKind kind_ = kTVMFFISEqHashKindTreeNode;
};

namespace detail {
template <typename T, typename = void> struct IsDescribed : std::false_type {};
template <typename T>
struct IsDescribed<T, std::void_t<decltype(T::Describe(std::declval<Description<T>*>()))>> : std::true_type {};

template <typename T> int32_t DescribeNode() {
  static_assert(IsDescribed<T>::value,
                "a node that is registered has, of its own, static void Describe(Description<Node>* type)");
  if constexpr (IsDescribed<T>::value) {
    Description<T> type;
    T::Describe(&type);
    type.Register();
  }
  return TypeIndexOf<T>();
}
}  // namespace detail

// In a node: its key and parent. Nodes that are described may form long chains.
#define PORTCALL_OBJECT(NodeType, ParentType, key) \
  static constexpr const char* kTypeKey = key;     \
  static constexpr bool kHoldsObjects = true;      \
  using ParentClass = ParentType;

// After it, in one source file: describes it to everybody when the library is loaded.
#define PORTCALL_REGISTER_OBJECT(NodeType)                                               \
  [[maybe_unused]] static const int32_t PORTCALL_CONCAT(portcall_object_, __COUNTER__) = \
      ::portcall::detail::DescribeNode<NodeType>()

}  // namespace portcall
#endif  // PORTCALL_REFLECTION_H_
