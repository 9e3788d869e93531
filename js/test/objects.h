/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of test libraries that make objects: the same natively and in WebAssembly. */
#ifndef PORTCALL_JS_TEST_OBJECTS_H_
#define PORTCALL_JS_TEST_OBJECTS_H_

#include <portcall/c_api.h>

#define TEXT(literal) ((TVMFFIByteArray){literal, sizeof(literal) - 1})

/* Calls a function, which returns an int, and adds one. */
static int next(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self;
  if (TVMFFIFunctionCall(args[0].v_obj, args + 1, n - 1, result) != 0) return -1;
  if (result->type_index != kTVMFFIInt) {
    if (result->type_index >= kTVMFFIObject) TVMFFIObjectDecRef(result->v_obj);
    TVMFFIErrorSetRaisedFromCStr("TypeError", "next takes a function that returns an int");
    return -1;
  }
  ++result->v_int64;
  return 0;
}

/* Returns that: kernels as compilers make them take no functions. */
int __tvm_ffi_next(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n;
  TVMFFIObjectHandle made;
  if (PortcallFunctionCreate(NULL, next, NULL, 0, "next", &made) != 0) return -1;
  result->type_index = kTVMFFIFunction;
  result->v_obj = (TVMFFIObject*)made;
  return 0;
}

/* A list of one and two. */
int __tvm_ffi_list(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n;
  TVMFFIObjectHandle made;
  const TVMFFIAny items[2] = {{.type_index = kTVMFFIInt, .v_int64 = 1}, {.type_index = kTVMFFIInt, .v_int64 = 2}};
  if (PortcallListCreate(items, 2, &made) != 0) return -1;
  result->type_index = kTVMFFIList;
  result->v_obj = (TVMFFIObject*)made;
  return 0;
}

/* Objects of a compiled type: test.Counter, which counts. */
typedef struct {
  TVMFFIObject header;
  int64_t count;
} Counter;

static int get_count(void* field, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = *(int64_t*)field;
  return 0;
}

static int set_count(void* field, const TVMFFIAny* value) {
  if (value->type_index != kTVMFFIInt) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "a count is an int");
    return -1;
  }
  *(int64_t*)field = value->v_int64;
  return 0;
}

static int32_t type_of(const char* key, size_t size, int32_t parent) {
  const TVMFFIByteArray text = {key, size};
  return TVMFFITypeGetOrAllocIndex(&text, -1, 0, 0, 1, parent);
}

static int add(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self;
  if (n != 2 || args[1].type_index != kTVMFFIInt) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", "add takes an int");
    return -1;
  }
  Counter* counter = (Counter*)args[0].v_obj;
  counter->count += args[1].v_int64;
  result->type_index = kTVMFFIInt;
  result->v_int64 = counter->count;
  return 0;
}

static Counter only = {{1, 0, 0, NULL}, 0};

static int describe_counter(void) {
  const int32_t type = type_of("test.Counter", 12, kTVMFFIObject);
  TVMFFIFieldInfo field = {.name = TEXT("count"),
                           .doc = TEXT("how often"),
                           .metadata = TEXT("{\"type\": \"int\"}"),
                           .flags = kTVMFFIFieldFlagBitMaskWritable,
                           .size = 8,
                           .alignment = 8,
                           .offset = sizeof(TVMFFIObject),
                           .getter = get_count,
                           .setter = (void*)set_count,
                           .field_static_type_index = kTVMFFIInt};
  TVMFFIMethodInfo method = {.name = TEXT("add"), .doc = TEXT("Count on.")};
  TVMFFIObjectHandle function;
  if (PortcallFunctionCreate(NULL, add, NULL, 0, "test.Counter.add", &function) != 0) return -1;
  method.method.type_index = kTVMFFIFunction;
  method.method.v_obj = function;
  only.header.type_index = type;
  only.header.combined_ref_count = (UINT64_C(1) << 32) + 2; /* one reference that nobody gives back */
  if (TVMFFITypeRegisterField(type, &field) != 0) return -1;
  const int status = TVMFFITypeRegisterMethod(type, &method);
  method.name = TEXT("zero");
  method.flags = kTVMFFIFieldFlagBitMaskIsStaticMethod;
  return status != 0 ? status : TVMFFITypeRegisterMethod(type, &method);
}

/* Types that are defined by their fields: test.Shape, and test.Circle below it. */
static int describe_shapes(void) {
  int32_t shape, circle;
  const TVMFFIByteArray keys[2] = {TEXT("test.Shape"), TEXT("test.Circle")};
  const TVMFFITypeMetadata metadata = {.doc = TEXT("What has a name."), .structural_eq_hash_kind = 1};
  PortcallFieldSpec fields[2] = {
      {.name = TEXT("name"), .metadata = TEXT("{\"type\": \"str\"}"), .type_index = kTVMFFIStr},
      {.name = TEXT("tags"),
       .flags = kTVMFFIFieldFlagBitMaskWritable | kPortcallFieldFlagOptional | kTVMFFIFieldFlagBitMaskHasDefault,
       .type_index = kTVMFFIAny},
  };
  PortcallFieldSpec more[2] = {
      {.name = TEXT("radius"), .flags = kTVMFFIFieldFlagBitMaskWritable, .type_index = kTVMFFIFloat},
      {.name = TEXT("inner"),
       .flags = kPortcallFieldFlagOptional | kTVMFFIFieldFlagBitMaskHasDefault,
       .type_index = kPortcallTypeSelf},
  };
  if (PortcallTypeDefine(&keys[0], kTVMFFIObject, &metadata, fields, 2, &shape) != 0) return -1;
  return PortcallTypeDefine(&keys[1], shape, &metadata, more, 2, &circle);
}

/* Describes the types, and returns the one counter. */
int __tvm_ffi_counter(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)args, (void)n;
  if (only.header.type_index == 0 && (describe_counter() != 0 || describe_shapes() != 0)) return -1;
  TVMFFIObjectIncRef(&only);
  result->type_index = only.header.type_index;
  result->v_obj = &only.header;
  return 0;
}

#endif
