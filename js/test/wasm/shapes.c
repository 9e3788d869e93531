/* SPDX-License-Identifier: Apache-2.0 */
/* The library of docs/javascript.md that describes types: demo.Shape, and demo.Circle below it. */
#include <portcall/c_api.h>

#define TEXT(literal) ((TVMFFIByteArray){literal, sizeof(literal) - 1})

static int area(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n;
  const TVMFFIAny* fields = (const TVMFFIAny*)(args[0].v_obj + 1);
  result->type_index = kTVMFFIFloat;
  result->v_float64 = 3 * fields[1].v_float64 * fields[1].v_float64;
  return 0;
}

static int describe(int32_t* circle) {
  int32_t shape;
  const TVMFFIByteArray keys[2] = {TEXT("demo.Shape"), TEXT("demo.Circle")};
  const TVMFFITypeMetadata metadata = {.doc = TEXT("What has a name.")};
  const PortcallFieldSpec name = {.name = TEXT("name"), .type_index = kTVMFFIStr};
  const PortcallFieldSpec radius = {
      .name = TEXT("radius"), .flags = kTVMFFIFieldFlagBitMaskWritable, .type_index = kTVMFFIFloat};
  TVMFFIMethodInfo method = {.name = TEXT("area")};
  TVMFFIObjectHandle function;
  if (PortcallTypeDefine(&keys[0], kTVMFFIObject, &metadata, &name, 1, &shape) != 0) return -1;
  if (PortcallTypeDefine(&keys[1], shape, &metadata, &radius, 1, circle) != 0) return -1;
  if (PortcallFunctionCreate(NULL, area, NULL, 0, "area", &function) != 0) return -1;
  method.method.type_index = kTVMFFIFunction;
  method.method.v_obj = function;
  return TVMFFITypeRegisterMethod(*circle, &method);
}

int __tvm_ffi_make_circle(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self, (void)n;
  int32_t circle;
  TVMFFIObjectHandle made;
  const TVMFFIAny fields[2] = {{.type_index = kTVMFFIRawStr, .v_c_str = "of C"}, args[0]};
  if (describe(&circle) != 0 || PortcallObjectCreate(circle, fields, 2, &made) != 0) return -1;
  result->type_index = circle;
  result->v_obj = made;
  return 0;
}
