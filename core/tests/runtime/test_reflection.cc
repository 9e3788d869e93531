// SPDX-License-Identifier: Apache-2.0
#include "portcall/reflection.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

namespace {

struct ShapeyObj : Object {
  int64_t sides = 0;
  String label;
  ObjectRef inner;
  double area = 0;
  Any extra;
  bool closed = true;
  std::vector<int64_t> dims;
  PORTCALL_OBJECT(ShapeyObj, Object, "test.Shapey")
  static void Describe(Description<ShapeyObj>* type) {
    type->doc("Something with sides.");
    type->field("sides", &ShapeyObj::sides, "how many");
    type->field("label", &ShapeyObj::label).set_default("plain");
    type->field("inner", &ShapeyObj::inner).set_default(nullptr);
    type->field("area", &ShapeyObj::area).set_default(1.5).ignore();
    type->field("extra", &ShapeyObj::extra).set_default_factory([] { return Array<Any>{1, 2}; });
    type->field("closed", &ShapeyObj::closed).set_default(true);
    type->field("dims", &ShapeyObj::dims).set_default(Array<Any>(std::vector<Any>()));
    type->method("twice", &ShapeyObj::Twice, "twice the sides");
  }
  int64_t Twice(int64_t plus) const { return 2 * sides + plus; }
};
PORTCALL_REGISTER_OBJECT(ShapeyObj);
class Shapey : public ObjectRef {
  PORTCALL_OBJECT_REF(Shapey, ShapeyObj)
};

struct CubeObj : ShapeyObj {
  int64_t edge = 0;
  PORTCALL_OBJECT(CubeObj, ShapeyObj, "test.Cube")
  static void Describe(Description<CubeObj>* type) { type->field("edge", &CubeObj::edge); }
};
PORTCALL_REGISTER_OBJECT(CubeObj);

struct SecretObj : Object {
  int64_t secret = 42;
  PORTCALL_OBJECT(SecretObj, Object, "test.Secret")
  static void Describe(Description<SecretObj>*) {}
};
PORTCALL_REGISTER_OBJECT(SecretObj);
struct SilentObj : Object {
  static constexpr const char* kTypeKey = "test.Silent";
};
struct BareObj : Object {
  PORTCALL_OBJECT(BareObj, Object, "test.Bare")
  static void Describe(Description<BareObj>*) {}
};
PORTCALL_REGISTER_OBJECT(BareObj);
struct TakenObj : Object {
  int64_t a = 0;
  PORTCALL_OBJECT(TakenObj, Object, "test.run.Taken")
};

Any Unchanged() {
  TVMFFIAny cell{};
  cell.type_index = kTVMFFIUnchanged;
  return Any::Steal(cell);
}

PortcallFieldSpec Spec(const char* name, int32_t type_index, int64_t flags = 0, Any* value = nullptr) {
  PortcallFieldSpec spec{};
  spec.name = ToByteArray(name);
  spec.type_index = type_index;
  spec.flags = flags;
  if (value) {
    spec.default_value = value->cell();
    spec.flags |= kTVMFFIFieldFlagBitMaskHasDefault;
  }
  return spec;
}

int32_t Define(const char* key, int32_t parent, const std::vector<PortcallFieldSpec>& fields) {
  TVMFFIByteArray name = ToByteArray(key);
  TVMFFITypeMetadata metadata{};
  int32_t index = -1;
  Check(PortcallTypeDefine(&name, parent, &metadata, fields.data(), static_cast<int32_t>(fields.size()), &index));
  return index;
}

}  // namespace

TEST("a described type tells its fields, methods and documentation") {
  const TVMFFITypeInfo* type = TVMFFIGetTypeInfo(TypeIndexOf<ShapeyObj>());
  CHECK_EQ(type->num_fields, 7);
  CHECK_EQ(ToView(type->fields[0].name), "sides");
  CHECK_EQ(ToView(type->fields[0].doc), "how many");
  CHECK_EQ(type->fields[0].field_static_type_index, static_cast<int32_t>(kTVMFFIInt));
  CHECK_EQ(ToView(type->fields[1].metadata), "{\"type\": \"str\"}");
  CHECK_EQ(ToView(type->metadata->doc), "Something with sides.");
  CHECK_EQ(type->num_methods, 1);
  Shapey shape = Make<Shapey>();
  shape.node()->sides = 4;
  CHECK_EQ(Any(type->methods[0].method.v_obj ? ObjectRef::Borrow<PackedFunc>(type->methods[0].method.v_obj)(shape, 1)
                                             : Any(0))
               .cast<int64_t>(),
           9);
}

TEST("fields of ancestors come first, and are found in what derives from them") {
  std::vector<const TVMFFIFieldInfo*> fields = FieldsOf(TypeIndexOf<CubeObj>());
  CHECK_EQ(fields.size(), 8);
  CHECK_EQ(ToView(fields[7]->name), "edge");
  CHECK(FindField(TypeIndexOf<CubeObj>(), "label") == FindField(TypeIndexOf<ShapeyObj>(), "label"));
  CHECK(FindField(TypeIndexOf<CubeObj>(), "nothing") == nullptr);
}

TEST("an object is made from values, defaults and factories") {
  ObjectRef inner =
      CreateObject("test.Shapey", {1, Unchanged(), Unchanged(), Unchanged(), Unchanged(), Unchanged(), Unchanged()});
  ObjectRef cube = CreateObject("test.Cube", {6, "box", inner, 2, "anything", false, Array<Any>{7, 8}, 3});
  CHECK_EQ(GetField(cube, "sides").cast<int64_t>(), 6);
  CHECK_EQ(GetField(cube, "label").cast<std::string>(), "box");
  CHECK(GetField(cube, "inner").cast<ObjectRef>().same_as(inner));
  CHECK_EQ(GetField(cube, "area").cast<double>(), 2.0);
  CHECK_EQ(GetField(cube, "closed").cast<bool>(), false);
  CHECK_EQ(cube.as<CubeObj>()->dims.size(), 2);
  CHECK_EQ(GetField(cube, "edge").cast<int64_t>(), 3);
  CHECK_EQ(GetField(inner, "label").cast<std::string>(), "plain");
  CHECK_EQ(GetField(inner, "extra").cast<Array<int64_t>>().size(), 2);
  CHECK(!GetField(inner, "extra")
             .cast<ObjectRef>()
             .same_as(GetField(
                 CreateObject("test.Shapey", {1, "", nullptr, 1, Unchanged(), true, Array<Any>(std::vector<Any>())}),
                 "extra")));
}

TEST("the error for a value that does not fit names its field") {
  auto make = [](Any sides, Any label) {
    return CreateObject("test.Shapey", {sides, label, nullptr, 1, nullptr, true, Array<Any>(std::vector<Any>())});
  };
  CHECK_EQ(Thrown([&] { make("six", ""); }), "TypeError: test.Shapey.sides: expected int, got str");
  CHECK_EQ(Thrown([&] { make(Unchanged(), ""); }), "TypeError: test.Shapey needs a value for 'sides'");
  CHECK_EQ(Thrown([&] { CreateObject("test.Shapey", {1}); }), "TypeError: test.Shapey has more than 1 fields");
  CHECK_EQ(Thrown([&] { CreateObject("test.Nobody", {1}); }), "KeyError: no type has the key 'test.Nobody'");
}

TEST("a type defined at run time behaves like one of C++") {
  Any fallback("none");
  int32_t base = Define("test.run.Base", kTVMFFIObject, {Spec("name", kTVMFFIStr)});
  int32_t derived = Define("test.run.Derived", base,
                           {Spec("left", base), Spec("right", base, kPortcallFieldFlagOptional),
                            Spec("weight", kTVMFFIFloat), Spec("note", kTVMFFIAny, 0, &fallback)});
  CHECK(IsInstance(derived, base));
  ObjectRef leaf = CreateObject(base, {"a name that is longer than eight"});
  ObjectRef tree = CreateObject(derived, {"top", leaf, nullptr, 3, Unchanged()});
  CHECK(GetField(tree, "left").cast<ObjectRef>().same_as(leaf));
  CHECK(GetField(tree, "right") == nullptr);
  CHECK_EQ(GetField(tree, "weight").type_index(), static_cast<int32_t>(kTVMFFIFloat));
  CHECK_EQ(GetField(tree, "note").cast<std::string>(), "none");
  CHECK_EQ(leaf.use_count(), 2);
  tree = nullptr;
  CHECK_EQ(leaf.use_count(), 1);

  CHECK_EQ(Thrown([&] { CreateObject(derived, {"top", 3, nullptr, 3, Unchanged()}); }),
           "TypeError: test.run.Derived.left: expected test.run.Base, got int 3");
  CHECK_EQ(Thrown([&] { CreateObject(derived, {"top", leaf, 3, 3, Unchanged()}); }),
           "TypeError: test.run.Derived.right: expected test.run.Base or None, got int 3");
  CHECK_EQ(Thrown([&] { CreateObject(derived, {"top"}); }), "TypeError: test.run.Derived has 5 fields, got 1 values");
  CHECK_EQ(Define("test.run.Base", kTVMFFIObject, {Spec("name", kTVMFFIStr)}), base);
  CHECK_EQ(
      Thrown([&] { Define("test.run.Base", kTVMFFIObject, {Spec("title", kTVMFFIStr)}); }),
      "ValueError: type 'test.run.Base' exists already, with other fields or another base; give this one another key");
  CHECK(Contains(Thrown([&] { Define("test.run.Cube", TypeIndexOf<ShapeyObj>(), {}); }), "cannot derive from"));
  CHECK(Contains(Thrown([&] { Define("test.run.Array", kTVMFFIArray, {}); }), "nothing can derive from Array"));
}

TEST("a type that is defined at run time has room for its cells, and each field once") {
  // Described by no field, but not empty: cells would lie over what compiled code keeps there.
  CHECK_EQ(Thrown([&] { Define("test.run.OnSecret", TypeIndexOf<SecretObj>(), {Spec("a", kTVMFFIAny)}); }),
           "TypeError: 'test.run.OnSecret' cannot derive from 'test.Secret', whose objects may have members that only "
           "compiled code knows; hold one in a field");
  CHECK(Contains(Thrown([&] { Define("test.run.OnSilent", TypeIndexOf<SilentObj>(), {}); }), "cannot derive from"));
  int32_t on_bare = Define("test.run.OnBare", TypeIndexOf<BareObj>(), {Spec("a", kTVMFFIAny)});
  CHECK(CreateObject(on_bare, {5}).as<BareObj>());
  CHECK_EQ(Thrown([&] { Define("test.run.Again", on_bare, {Spec("b", kTVMFFIAny), Spec("a", kTVMFFIInt)}); }),
           "TypeError: 'test.run.Again' has the field 'a' already; give this one another name");
  CHECK(Contains(Thrown([&] { Define("test.run.Again", kTVMFFIObject, {Spec("b", 1), Spec("b", 1)}); }),
                 "has the field 'b' already"));
  CHECK_EQ(Thrown([&] { CreateObject("test.run.Again", {}); }), "KeyError: no type has the key 'test.run.Again'");
}

TEST("a library that describes a type after it was defined at run time is refused") {
  int32_t index = Define("test.run.Taken", kTVMFFIObject, {Spec("a", kTVMFFIAny)});
  ObjectRef made = CreateObject(index, {5});
  const char* expected =
      "ValueError: type 'test.run.Taken' was defined at run time; load the library that describes it first";
  Description<TakenObj> type;
  CHECK_EQ(Thrown([&] { type.Register(); }), expected);
  TVMFFIFieldInfo field = *FindField(TypeIndexOf<TakenObj>(), "a");
  field.getter = detail::ReadField<int64_t>;
  CHECK_EQ(Thrown([&] { Check(TVMFFITypeRegisterField(index, &field)); }), expected);
  CHECK_EQ(GetField(made, "a").cast<int64_t>(), 5);
}

TEST("attributes of types form columns") {
  TVMFFIByteArray name = ToByteArray("test.color");
  CHECK(TVMFFIGetTypeAttrColumn(&name) == nullptr);
  Any red("red"), blue("a blue that is long enough for an object");
  Check(TVMFFITypeRegisterAttr(TypeIndexOf<CubeObj>(), &name, &red.cell()));
  const TVMFFITypeAttrColumn* column = TVMFFIGetTypeAttrColumn(&name);
  Check(TVMFFITypeRegisterAttr(TypeIndexOf<ShapeyObj>(), &name, &blue.cell()));
  CHECK(column == TVMFFIGetTypeAttrColumn(&name));
  auto at = [&](int32_t index) { return column->data[index - column->begin_index]; };
  CHECK_EQ(Any::Copy(at(TypeIndexOf<CubeObj>())).cast<std::string>(), "red");
  CHECK_EQ(Any::Copy(at(TypeIndexOf<ShapeyObj>())).cast<std::string>(), blue.cast<std::string>());
  CHECK_EQ(at(kTVMFFIArray).type_index, static_cast<int32_t>(kTVMFFINone));
  CHECK_EQ(TVMFFITypeRegisterAttr(30000, &name, &red.cell()), -1);
  CHECK(Contains(Raised(), "no type has the index 30000"));
}

TEST("a long chain is released without using up the stack, by any holder") {
  int32_t link = Define("test.run.Link", kTVMFFIObject, {Spec("next", kTVMFFIAny)});
  Any chain;
  for (int i = 0; i < 200000; ++i) {
    if (i % 3 == 0) chain = CreateObject(link, {chain});
    else if (i % 3 == 1) chain = Array<Any>{chain};
    else {
      Shapey shape = Make<Shapey>();
      shape.node()->extra = chain;
      chain = shape;
    }
  }
  WeakRef root(chain.cast<ObjectRef>());
  std::thread([chain = std::move(chain)]() mutable { chain.reset(); }).join();
  CHECK(!root.lock().defined());
}

TEST("types may be described while others read them") {
  TVMFFIByteArray key = ToByteArray("test.Growing");
  int32_t index = TVMFFITypeGetOrAllocIndex(&key, -1, 0, 0, 1, kTVMFFIObject);
  std::vector<std::thread> readers;
  std::atomic<bool> done{false};
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!done) {
        for (const TVMFFIFieldInfo* field : FieldsOf(index)) CHECK_EQ(ToView(field->name).substr(0, 1), "f");
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    std::string name = "f" + std::to_string(i);
    TVMFFIFieldInfo field{};
    field.name = ToByteArray(name);
    Check(TVMFFITypeRegisterField(index, &field));
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK_EQ(FieldsOf(index).size(), 50);
}

TEST("a type may be defined a second time while others make and read its objects") {
  Any low(1), high(2);
  auto define = [&](Any* value) {
    return Define("test.run.Twice", kTVMFFIObject, {Spec("a", kTVMFFIAny), Spec("b", kTVMFFIInt, 0, value)});
  };
  int32_t index = define(&low);
  const TVMFFIFieldInfo* before = FindField(index, "b");
  std::atomic<bool> done{false};
  std::vector<std::thread> makers;
  for (int t = 0; t < 3; ++t) {
    makers.emplace_back([&] {
      while (!done) {
        ObjectRef made = CreateObject(index, {CreateObject(index, {"inner", 5}), Unchanged()});
        auto b = GetField(made, "b").cast<int64_t>();
        CHECK(b == 1 || b == 2);
        CHECK_EQ(GetField(GetField(made, "a").cast<ObjectRef>(), "b").cast<int64_t>(), 5);
      }
    });
  }
  for (int i = 0; i < 50; ++i) CHECK_EQ(define(i % 2 ? &low : &high), index);
  CHECK_EQ(define(&high), index);
  done = true;
  for (std::thread& maker : makers) maker.join();
  CHECK_EQ(GetField(CreateObject(index, {0, Unchanged()}), "b").cast<int64_t>(), 2);
  CHECK_EQ(Any::Copy(before->default_value_or_factory).cast<int64_t>(), 1);  // what was read stays as it was
}
