// SPDX-License-Identifier: Apache-2.0
// Layouts of the ABI, reference counts and the table of types.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;

// ---- Layouts (docs/abi.md) ----------------------------------------------------------------------------------------

static_assert(sizeof(TVMFFIAny) == 16 && alignof(TVMFFIAny) == 8);
static_assert(offsetof(TVMFFIAny, type_index) == 0 && offsetof(TVMFFIAny, zero_padding) == 4);
static_assert(offsetof(TVMFFIAny, small_str_len) == 4 && offsetof(TVMFFIAny, v_int64) == 8);
static_assert(offsetof(TVMFFIAny, v_bytes) == 8 && offsetof(TVMFFIAny, v_dtype) == 8);

static_assert(sizeof(TVMFFIObject) == 24 && alignof(TVMFFIObject) == 8);
static_assert(offsetof(TVMFFIObject, combined_ref_count) == 0 && offsetof(TVMFFIObject, type_index) == 8);
static_assert(offsetof(TVMFFIObject, padding) == 12 && offsetof(TVMFFIObject, deleter) == 16);
static_assert(sizeof(Object) == sizeof(TVMFFIObject), "nodes start with the header and nothing else");

static_assert(sizeof(TVMFFIVersion) == 12 && sizeof(DLDataType) == 4 && sizeof(DLDevice) == 8);
#if UINTPTR_MAX > 0xFFFFFFFF
static_assert(sizeof(TVMFFIByteArray) == 16 && offsetof(TVMFFIByteArray, size) == 8);
static_assert(sizeof(TVMFFIShapeCell) == 16 && offsetof(TVMFFIShapeCell, size) == 8);
static_assert(sizeof(TVMFFISeqCell) == 32 && offsetof(TVMFFISeqCell, size) == 8);
static_assert(offsetof(TVMFFISeqCell, capacity) == 16 && offsetof(TVMFFISeqCell, data_deleter) == 24);
static_assert(sizeof(TVMFFIErrorCell) == 72 && offsetof(TVMFFIErrorCell, message) == 16);
static_assert(offsetof(TVMFFIErrorCell, backtrace) == 32 && offsetof(TVMFFIErrorCell, update_backtrace) == 48);
static_assert(offsetof(TVMFFIErrorCell, cause_chain) == 56 && offsetof(TVMFFIErrorCell, extra_context) == 64);
static_assert(sizeof(TVMFFIFunctionCell) == 16 && offsetof(TVMFFIFunctionCell, cpp_call) == 8);

static_assert(sizeof(TVMFFITypeInfo) == 72 && offsetof(TVMFFITypeInfo, type_depth) == 4);
static_assert(offsetof(TVMFFITypeInfo, type_key) == 8 && offsetof(TVMFFITypeInfo, type_ancestors) == 24);
static_assert(offsetof(TVMFFITypeInfo, type_key_hash) == 32 && offsetof(TVMFFITypeInfo, num_fields) == 40);
static_assert(offsetof(TVMFFITypeInfo, num_methods) == 44 && offsetof(TVMFFITypeInfo, fields) == 48);
static_assert(offsetof(TVMFFITypeInfo, methods) == 56 && offsetof(TVMFFITypeInfo, metadata) == 64);
static_assert(sizeof(TVMFFIMethodInfo) == 72 && offsetof(TVMFFIMethodInfo, doc) == 16);
static_assert(offsetof(TVMFFIMethodInfo, flags) == 48 && offsetof(TVMFFIMethodInfo, method) == 56);

static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16);
static_assert(offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, strides) == 32);
static_assert(offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, manager_ctx) == 48);
static_assert(offsetof(DLManagedTensor, deleter) == 56);
static_assert(sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, manager_ctx) == 8);
static_assert(offsetof(DLManagedTensorVersioned, deleter) == 16 && offsetof(DLManagedTensorVersioned, flags) == 24);
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
static_assert(sizeof(TVMParallelGroupEnv) == 16 && offsetof(TVMParallelGroupEnv, num_task) == 8);

static_assert(sizeof(Any) == 16 && sizeof(String) == 16 && sizeof(Bytes) == 16 && sizeof(ObjectRef) == 8);
static_assert(sizeof(PackedFunc) == 8 && sizeof(Array<int>) == 8 && sizeof(Module) == 8 && sizeof(WeakRef) == 8);
#else  // the same fields on 32 bits, where only the header and values keep their sizes
static_assert(sizeof(TVMFFIByteArray) == 8 && sizeof(TVMFFIShapeCell) == 8 && sizeof(TVMFFISeqCell) == 32);
static_assert(sizeof(DLTensor) == 40 && offsetof(DLTensor, device) == 4 && offsetof(DLTensor, byte_offset) == 32);
static_assert(sizeof(Any) == 16 && sizeof(String) == 16 && sizeof(ObjectRef) == 4 && sizeof(PackedFunc) == 4);
#endif

static_assert(kTVMFFIAny == -1 && kTVMFFINone == 0 && kTVMFFIInt == 1 && kTVMFFIBool == 2 && kTVMFFIFloat == 3);
static_assert(kTVMFFIOpaquePtr == 4 && kTVMFFIDataType == 5 && kTVMFFIDevice == 6 && kTVMFFIDLTensorPtr == 7);
static_assert(kTVMFFIRawStr == 8 && kTVMFFIByteArrayPtr == 9 && kTVMFFIObjectRValueRef == 10);
static_assert(kTVMFFISmallStr == 11 && kTVMFFISmallBytes == 12 && kTVMFFIUnchanged == 13);
static_assert(kTVMFFIObject == 64 && kTVMFFIStr == 65 && kTVMFFIBytes == 66 && kTVMFFIError == 67);
static_assert(kTVMFFIFunction == 68 && kTVMFFIShape == 69 && kTVMFFITensor == 70 && kTVMFFIArray == 71);
static_assert(kTVMFFIMap == 72 && kTVMFFIModule == 73 && kTVMFFIOpaquePyObject == 74 && kTVMFFIList == 75);
static_assert(kTVMFFIDict == 76 && kTVMFFIVisitInterrupt == 77 && kTVMFFIBigInt == 78);
static_assert(kTVMFFIStaticObjectEnd == 79 && kTVMFFIDynObjectBegin == 128);

namespace {

// Where the body of an object starts, for a reader that knows the ABI only.
template <typename T> const T* BodyOf(const ObjectRef& ref) { return reinterpret_cast<const T*>(ref.get() + 1); }

}  // namespace

TEST("the body of every object starts 24 bytes after its address") {
  Any text("long enough for the heap");
  CHECK_EQ(text.type_index(), kTVMFFIStr);
  const auto* bytes = reinterpret_cast<const TVMFFIByteArray*>(text.cell().v_obj + 1);
  CHECK_EQ(ToView(*bytes), "long enough for the heap");
  CHECK_EQ(bytes->data[bytes->size], '\0');

  Error error("ValueError", "no", "  File \"x\", line 1, in f\n");
  const auto* failure = BodyOf<TVMFFIErrorCell>(error.ref());
  CHECK_EQ(ToView(failure->kind), "ValueError");
  CHECK_EQ(ToView(failure->message), "no");
  CHECK_EQ(ToView(failure->backtrace), "  File \"x\", line 1, in f\n");

  Shape shape{2, 3};
  CHECK_EQ(BodyOf<TVMFFIShapeCell>(shape)->size, 2);
  CHECK_EQ(BodyOf<TVMFFIShapeCell>(shape)->data[1], 3);

  Array<int> array{1, 2, 3};
  const auto* sequence = BodyOf<TVMFFISeqCell>(array);
  CHECK_EQ(sequence->size, 3);
  CHECK(sequence->capacity >= 3);
  CHECK(sequence->data_deleter == nullptr);
  CHECK_EQ(static_cast<const TVMFFIAny*>(sequence->data)[2].v_int64, 3);

  Map<String, int> map{{"a", 1}, {"b", 2}};
  CHECK_EQ(BodyOf<uint64_t>(map)[1], 2);

  PackedFunc func([](Args, RetValue*) {});
  CHECK(BodyOf<TVMFFIFunctionCell>(func)->safe_call != nullptr);
  CHECK(BodyOf<TVMFFIFunctionCell>(func)->cpp_call == nullptr);

  Tensor tensor = Tensor::Empty({4}, DataTypeFromString("float32"));
  CHECK(BodyOf<DLTensor>(tensor) == tensor.dl_tensor());

  TVMFFIObjectHandle opaque = nullptr;
  int thing = 0;
  CHECK_EQ(TVMFFIObjectCreateOpaque(&thing, kTVMFFIOpaquePyObject, nullptr, &opaque), 0);
  ObjectRef owner = ObjectRef::Steal(opaque);
  CHECK(*BodyOf<void*>(owner) == &thing);
}

// ---- Reference counts ---------------------------------------------------------------------------------------------

namespace {

std::atomic<int> live_boxes{0};

struct BoxObj : Object {
  static constexpr const char* kTypeKey = "test_object.Box";
  int64_t value;
  explicit BoxObj(int64_t v = 0) : value(v) { ++live_boxes; }
  ~BoxObj() { --live_boxes; }
};
class Box : public ObjectRef {
  PORTCALL_OBJECT_REF(Box, BoxObj)
};

struct LidBoxObj : BoxObj {
  static constexpr const char* kTypeKey = "test_object.LidBox";
  using ParentClass = BoxObj;
  LidBoxObj() : BoxObj(7) {}
};
class LidBox : public Box {
  PORTCALL_OBJECT_REF(LidBox, LidBoxObj)
};

struct ThrowingObj : Object {
  static constexpr const char* kTypeKey = "test_object.Throwing";
  ThrowingObj() { throw std::runtime_error("no such luck"); }
};

}  // namespace

TEST("a new node has one strong and one weak reference") {
  Box box = Make<Box>(5);
  CHECK_EQ(box.get()->combined_ref_count, (uint64_t{1} << 32) | 1);
  CHECK_EQ(box.get()->padding, 0);
  CHECK_EQ(box->value, 5);
  CHECK_EQ(box.use_count(), 1);
  CHECK(box.unique());
}

TEST("references share one object, which goes with the last of them") {
  Box a = Make<Box>(1);
  Box b = a;
  ObjectRef c = b;
  CHECK_EQ(a.use_count(), 3);
  CHECK(a.same_as(b) && b.same_as(c));
  a = nullptr;
  Box moved = std::move(b);
  CHECK(!b.defined() && moved.defined());
  CHECK_EQ(c.use_count(), 2);
  CHECK_EQ(live_boxes, 1);
  c = nullptr;
  moved = Box();
  CHECK_EQ(live_boxes, 0);
}

TEST("a reference may be assigned to itself") {
  Box box = Make<Box>(1);
  Box& same = box;
  box = same;
  CHECK_EQ(box.use_count(), 1);
  box = std::move(same);
  CHECK(box.defined());
  CHECK_EQ(box.use_count(), 1);
}

TEST("a node whose constructor throws leaves nothing behind") {
  CHECK_THROWS(NewNode<ThrowingObj>(), std::runtime_error);
}

TEST("a weak reference does not keep the object, and gives nothing once it is gone") {
  Box box = Make<Box>(9);
  WeakRef weak(box);
  WeakRef copy = weak;
  CHECK_EQ(box.use_count(), 1);
  CHECK(weak.lock().same_as(box));
  box = nullptr;
  CHECK_EQ(live_boxes, 0);
  CHECK(!weak.lock().defined());
  CHECK(!copy.lock().defined());
  CHECK(!WeakRef().lock().defined());
  CHECK(!WeakRef(ObjectRef()).lock().defined());
}

TEST("an object with weak references is not unique: they could share it again") {
  Box box = Make<Box>(1);
  CHECK(box.unique());
  {
    WeakRef weak(box);
    CHECK(!box.unique());
  }
  CHECK(box.unique());
  CHECK(!Box().unique());
}

namespace {

// An object of somebody else: storage and deleter of its own.
struct Foreign : TVMFFIObject {
  std::vector<int> calls;  // the flags of each call of the deleter
};

void NoteCall(void* self, int flags) {
  static_cast<Foreign*>(static_cast<TVMFFIObject*>(self))->calls.push_back(flags);
}

void InitForeign(Foreign* object, void (*deleter)(void*, int)) {
  object->combined_ref_count = kWeakOne | kStrongOne;
  object->type_index = kTVMFFIObject;
  object->padding = 0;
  object->deleter = deleter;
}

}  // namespace

TEST("without weak references the deleter is called once, for both phases") {
  Foreign object;
  InitForeign(&object, NoteCall);
  TVMFFIObject* handle = &object;
  CHECK_EQ(TVMFFIObjectIncRef(handle), 0);
  CHECK_EQ(TVMFFIObjectDecRef(handle), 0);
  CHECK(object.calls.empty());
  CHECK_EQ(TVMFFIObjectDecRef(handle), 0);
  CHECK(object.calls == std::vector<int>{3});
}

TEST("with weak references the object is destroyed first and its storage freed with the last of them") {
  Foreign object;
  InitForeign(&object, NoteCall);
  {
    ObjectRef ref = ObjectRef::Steal(static_cast<TVMFFIObject*>(&object));
    WeakRef first(ref);
    {
      WeakRef second(ref);
      ref = nullptr;
      CHECK(object.calls == std::vector<int>{1});
      CHECK(!first.lock().defined());
    }
    CHECK(object.calls == std::vector<int>{1});
  }
  CHECK(object.calls == (std::vector<int>{1, 2}));
}

TEST("an object without a deleter is never freed") {
  Foreign object;
  InitForeign(&object, nullptr);
  {
    Any holder = ObjectRef::Borrow(static_cast<TVMFFIObject*>(&object));
    CHECK_EQ(object.combined_ref_count & kStrongMask, 2);
  }
  {
    ObjectRef ref = ObjectRef::Steal(static_cast<TVMFFIObject*>(&object));
    WeakRef weak(ref);
    ref = nullptr;
    CHECK(!weak.lock().defined());
  }
  CHECK_EQ(object.combined_ref_count, 0);
  InitForeign(&object, nullptr);
  CHECK_EQ(TVMFFIObjectDecRef(static_cast<TVMFFIObject*>(&object)), 0);
}

TEST("a null handle is retained and released without effect") {
  CHECK_EQ(TVMFFIObjectIncRef(nullptr), 0);
  CHECK_EQ(TVMFFIObjectDecRef(nullptr), 0);
}

TEST("a foreign object travels through calls, containers and errors and is freed by its own deleter") {
  Foreign object;
  InitForeign(&object, NoteCall);
  {
    ObjectRef ref = ObjectRef::Steal(static_cast<TVMFFIObject*>(&object));
    ObjectRef back = Registry::Get("testing.echo")(ref);
    CHECK(back.same_as(ref));
    Array<ObjectRef> array{ref, ref};
    Error error("ValueError", "with a context", {}, nullptr, ref);
    CHECK_EQ(ref.use_count(), 5);
  }
  CHECK(object.calls == std::vector<int>{3});
}

TEST("an opaque object runs its deleter with the last reference") {
  static int released;
  released = 0;
  TVMFFIObjectHandle handle = nullptr;
  auto release = [](void* self) { ++*static_cast<int*>(self); };
  CHECK_EQ(TVMFFIObjectCreateOpaque(&released, kTVMFFIOpaquePyObject, release, &handle), 0);
  {
    ObjectRef ref = ObjectRef::Steal(handle);
    CHECK_EQ(ref.type_key(), "ffi.OpaquePyObject");
    Any copy = ref;
    CHECK_EQ(released, 0);
  }
  CHECK_EQ(released, 1);
}

TEST("an opaque object cannot pose as a value, or as an object with a body of its own") {
  TVMFFIObjectHandle handle = nullptr;
  for (int32_t index : {static_cast<int32_t>(kTVMFFIInt), static_cast<int32_t>(kTVMFFIStr),
                        static_cast<int32_t>(kTVMFFITensor), static_cast<int32_t>(kTVMFFIModule), -5}) {
    CHECK_EQ(TVMFFIObjectCreateOpaque(nullptr, index, nullptr, &handle), -1);
    CHECK(Contains(Raised(), "ValueError: type index "));
  }
  CHECK(handle == nullptr);
}

TEST("references may be taken, locked and dropped from many threads") {
  Box box = Make<Box>(1);
  WeakRef weak(box);
  std::atomic<int> locked{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([mine = box, weak, &locked]() mutable {
      for (int i = 0; i < 1000; ++i) {
        Box copy = mine;
        if (weak.lock().defined()) ++locked;
      }
      mine = nullptr;
      weak.lock();
    });
  }
  box = nullptr;
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(locked, 8000);
  CHECK_EQ(live_boxes, 0);
  CHECK(!weak.lock().defined());
}

// ---- Types --------------------------------------------------------------------------------------------------------

namespace {

int32_t TypeIndex(const char* key, int32_t static_index = -1, int32_t parent = kTVMFFIObject, int32_t depth = 1) {
  TVMFFIByteArray bytes = ToByteArray(key);
  return TVMFFITypeGetOrAllocIndex(&bytes, static_index, depth, 0, 1, parent);
}

}  // namespace

TEST("every type of the ABI has a readable key and knows that it is an object") {
  struct {
    int32_t index;
    const char* key;
  } expected[] = {{0, "None"},
                  {1, "int"},
                  {2, "bool"},
                  {3, "float"},
                  {4, "void*"},
                  {5, "DataType"},
                  {6, "Device"},
                  {7, "DLTensor*"},
                  {8, "const char*"},
                  {9, "TVMFFIByteArray*"},
                  {10, "ObjectRValueRef"},
                  {11, "ffi.SmallStr"},
                  {12, "ffi.SmallBytes"},
                  {13, "ffi.Unchanged"},
                  {64, "ffi.Object"},
                  {65, "ffi.String"},
                  {66, "ffi.Bytes"},
                  {67, "ffi.Error"},
                  {68, "ffi.Function"},
                  {69, "ffi.Shape"},
                  {70, "ffi.Tensor"},
                  {71, "ffi.Array"},
                  {72, "ffi.Map"},
                  {73, "ffi.Module"},
                  {74, "ffi.OpaquePyObject"},
                  {75, "ffi.List"},
                  {76, "ffi.Dict"},
                  {77, "ffi.VisitInterrupt"},
                  {78, "ffi.BigInt"}};
  for (const auto& [index, key] : expected) {
    const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(index);
    CHECK(info != nullptr);
    if (!info) continue;
    CHECK_EQ(ToView(info->type_key), key);
    CHECK_EQ(info->type_index, index);
    CHECK_EQ(info->type_depth, index > 64 ? 1 : 0);
    if (index > 64) CHECK_EQ(info->type_ancestors[0]->type_index, kTVMFFIObject);
    TVMFFIByteArray bytes = ToByteArray(key);
    int32_t found = -1;
    CHECK_EQ(TVMFFITypeKeyToIndex(&bytes, &found), 0);
    CHECK_EQ(found, index);
    CHECK_EQ(TypeIndex(key, -1, -2), index);
  }
}

TEST("an unknown type has no index, no facts and a key that says so") {
  CHECK_EQ(TypeIndex("test_object.Nobody", -1, -2), -2);
  TVMFFIByteArray bytes = ToByteArray("test_object.Nobody");
  int32_t index = 0;
  CHECK_EQ(TVMFFITypeKeyToIndex(&bytes, &index), -1);
  CHECK_EQ(Raised(), "KeyError: no type has the key 'test_object.Nobody'");
  for (int32_t unknown : {-1, -2, 50, 79, 30000, 1 << 30}) {
    CHECK(TVMFFIGetTypeInfo(unknown) == nullptr);
    CHECK_EQ(TypeKeyOf(unknown), "object(" + std::to_string(unknown) + ")");
  }
  CHECK_EQ(TypeIndex("test_object.Nobody", -1, -2), -2);  // asking registers nothing
}

TEST("a dynamic type gets an index of this runtime, and the same one whenever it is named again") {
  int32_t index = TypeIndex("test_object.Dynamic");
  CHECK(index >= kPortcallDynObjectBegin);
  CHECK_EQ(TypeIndex("test_object.Dynamic"), index);
  CHECK_EQ(TypeIndex("test_object.Dynamic", -1, -2), index);
  CHECK(TypeIndex("test_object.Dynamic2") != index);
  CHECK_EQ(TypeKeyOf(index), "test_object.Dynamic");
}

TEST("a static index is returned as given, and no second type can take it") {
  CHECK_EQ(TypeIndex("test_object.Static", 90), 90);
  CHECK_EQ(TypeIndex("test_object.Static", 90), 90);
  CHECK_EQ(TypeIndex("ffi.Function", kTVMFFIFunction), kTVMFFIFunction);
  CHECK_EQ(TypeIndex("test_object.Usurper", kTVMFFIFunction), -2);
  CHECK(Contains(Raised(), "type index 68 of 'test_object.Usurper' belongs to another type"));
  CHECK_EQ(TypeIndex("test_object.Huge", 1 << 20), -2);
  CHECK(Contains(Raised(), "RuntimeError"));
}

TEST("a dynamic index steps over one that was taken by number") {
  int32_t next = TypeIndex("test_object.BeforeGap") + 1;
  CHECK_EQ(TypeIndex("test_object.Gap", next), next);
  CHECK(TypeIndex("test_object.AfterGap") > next);
  CHECK_EQ(Raised(), "");
}

TEST("a type keeps slots for those that derive from it, and no other type gets an index of them") {
  auto with_slots = [](const char* name, int32_t slots, int32_t parent) {
    TVMFFIByteArray key = ToByteArray(name);
    return TVMFFITypeGetOrAllocIndex(&key, -1, 0, slots, 1, parent);
  };
  int32_t base = with_slots("test_object.Base", 3, kTVMFFIObject);
  int32_t other = with_slots("test_object.Other", 0, kTVMFFIObject);
  CHECK_EQ(other, base + 4);
  int32_t middle = with_slots("test_object.Middle", 1, base);
  CHECK_EQ(middle, base + 1);
  CHECK_EQ(with_slots("test_object.Leaf", 0, middle), base + 2);
  CHECK_EQ(with_slots("test_object.Last", 0, base), base + 3);
  CHECK(with_slots("test_object.Overflow", 0, base) > other);  // found by its ancestors
  CHECK_EQ(Raised(), "");
}

TEST("a type whose parent nobody knows is refused") {
  CHECK_EQ(TypeIndex("test_object.Orphan", -1, 31000, 2), -2);
  CHECK(Contains(Raised(), "ValueError"));
  CHECK_EQ(TypeIndex("test_object.Orphan", -1, -2), -2);
}

TEST("ancestors are listed from the root, and decide what an object is") {
  int32_t box = TypeIndexOf<BoxObj>(), lid = TypeIndexOf<LidBoxObj>();
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(lid);
  CHECK_EQ(info->type_depth, 2);
  CHECK_EQ(info->type_ancestors[0]->type_index, kTVMFFIObject);
  CHECK_EQ(info->type_ancestors[1]->type_index, box);
  CHECK_EQ(TypeDepthOf<LidBoxObj>(), 2);
  CHECK(IsInstance(lid, box) && IsInstance(lid, kTVMFFIObject) && IsInstance(lid, lid));
  CHECK(!IsInstance(box, lid) && !IsInstance(kTVMFFIInt, kTVMFFIObject) && !IsInstance(lid, kTVMFFIStr));
  CHECK(!IsInstance(31000, box));

  ObjectRef ref = Make<LidBox>();
  CHECK(ref.as<BoxObj>() != nullptr && ref.as<LidBoxObj>() != nullptr && ref.as<Object>() != nullptr);
  CHECK(ref.as<ShapeObj>() == nullptr);
  CHECK(ObjectRef().as<BoxObj>() == nullptr);
  Any any = ref;
  CHECK_EQ(any.cast<Box>()->value, 7);
  CHECK(!Any(Make<Box>()).try_cast<LidBox>().has_value());
  CHECK_EQ(Thrown([] { Any(Make<Box>()).cast<LidBox>(); }),
           "TypeError: expected test_object.LidBox, got test_object.Box");
}

TEST("types registered from many threads agree on their indices") {
  constexpr int kThreads = 8, kTypes = 50;
  std::vector<std::vector<int32_t>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&seen, t] {
      for (int i = 0; i < kTypes; ++i) {
        std::string key = "test_object.Race" + std::to_string(i);
        int32_t index = TypeIndex(key.c_str());
        seen[static_cast<size_t>(t)].push_back(index);
        CHECK_EQ(TypeKeyOf(index), key);
        CHECK(IsInstance(index, kTVMFFIObject));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& indices : seen) CHECK(indices == seen[0]);
  std::sort(seen[0].begin(), seen[0].end());
  CHECK(std::adjacent_find(seen[0].begin(), seen[0].end()) == seen[0].end());
}

TEST("live nodes are counted by type") {
  int64_t before = LiveNodes("ffi.Shape");
  {
    Shape one{1}, two{2};
    CHECK_EQ(LiveNodes("ffi.Shape"), before + 2);
  }
  CHECK_EQ(LiveNodes("ffi.Shape"), before);
}
