// SPDX-License-Identifier: Apache-2.0
// Text, containers and objects of described types.
#include <string.h>

#include "binding.h"

// ---- Text and bytes -----------------------------------------------------------------------------------------------

bool Borrow(JNIEnv* env, jbyteArray array, TVMFFIByteArray* text) {
  text->data = (char*)(*env)->GetByteArrayElements(env, array, NULL);
  text->size = text->data == NULL ? 0 : (size_t)(*env)->GetArrayLength(env, array);
  return text->data != NULL;
}

void GiveBack(JNIEnv* env, jbyteArray array, const TVMFFIByteArray* text) {
  (*env)->ReleaseByteArrayElements(env, array, (jbyte*)text->data, JNI_ABORT);
}

jbyteArray MakeBytes(JNIEnv* env, TVMFFIByteArray bytes) {
  if (bytes.size > INT32_MAX) {
    TVMFFIErrorSetRaisedFromCStr("ValueError",
                                 "an array of Java holds at most 2^31 - 1 bytes: read the value in parts");
    ThrowRaised(env);
    return NULL;
  }
  jbyteArray made = (*env)->NewByteArray(env, (jsize)bytes.size);
  if (made != NULL) (*env)->SetByteArrayRegion(env, made, 0, (jsize)bytes.size, (const jbyte*)bytes.data);
  return made;
}

void Reach(TVMFFIAny* cell, char* stack, int64_t* end, int64_t limit) {
  const int32_t type = cell->type_index;
  TVMFFIByteArray text;
  if (type == kTVMFFIRawStr) {
    text = (TVMFFIByteArray){cell->v_c_str, strlen(cell->v_c_str)};
  } else if (type == kTVMFFIByteArrayPtr || type == kTVMFFIStr || type == kTVMFFIBytes) {
    text = *(const TVMFFIByteArray*)(type < kTVMFFIObject ? cell->v_ptr : (void*)(cell->v_obj + 1));
  } else {
    return;
  }
  if (text.size > INT32_MAX || *end + (int64_t)text.size > limit) return;
  memcpy(stack + *end, text.data, text.size);
  cell->type_index = type == kTVMFFIRawStr || type == kTVMFFIStr ? TEXT_HERE : BYTES_HERE;
  cell->small_str_len = (uint32_t)text.size;
  cell->v_int64 = *end;
  *end += (int64_t)text.size;
}

// Text, bytes or a wide integer of any size, into a cell, owned. Code of a kernel compiler takes text as a pointer alone, which
// text with a NUL in it cannot be: then the object is returned beside the cell.
EXPORT(jlong, text)(JNIEnv* env, jclass cls, jlong cell, jbyteArray array, jint type, jboolean plain) {
  UNUSED(cls);
  TVMFFIAny* made = (TVMFFIAny*)cell;
  TVMFFIByteArray from;
  if (!Borrow(env, array, &from)) return 0;
  const int status = type == kTVMFFIStr     ? core->string_from_byte_array(&from, made)
                     : type == kTVMFFIBytes ? core->bytes_from_byte_array(&from, made)
                                            : core->big_int_from_byte_array(&from, made);
  GiveBack(env, array, &from);
  if (status != 0) ThrowRaised(env);
  if (status != 0 || made->type_index < kTVMFFIObject) return 0;
  const jlong object = (jlong)made->v_obj;
  const TVMFFIByteArray* kept = BodyOf(object);
  if (plain && type == kTVMFFIStr && strlen(kept->data) == kept->size) {
    *made = (TVMFFIAny){.type_index = kTVMFFIRawStr, .v_c_str = kept->data};
  }
  return object;
}

EXPORT(jbyteArray, bytes)(JNIEnv* env, jclass cls, jlong object) {
  UNUSED(cls);
  return MakeBytes(env, *(const TVMFFIByteArray*)BodyOf(object));
}

EXPORT(jbyteArray, words)(JNIEnv* env, jclass cls, jlong object) {
  UNUSED(cls);
  const TVMFFIAny cell = {.type_index = kTVMFFIBigInt, .v_obj = (TVMFFIObject*)object};
  return MakeBytes(env, core->big_int_get_content(&cell));
}

EXPORT(jint, parseDType)(JNIEnv* env, jclass cls, jbyteArray name) {
  UNUSED(cls);
  TVMFFIByteArray text;
  DLDataType type = {0};
  if (!Borrow(env, name, &text)) return 0;
  const int status = core->data_type_from_string(&text, &type);
  GiveBack(env, name, &text);
  if (status != 0) ThrowRaised(env);
  return type.code | type.bits << 8 | type.lanes << 16;
}

EXPORT(jbyteArray, nameDType)(JNIEnv* env, jclass cls, jint bits) {
  UNUSED(cls);
  const DLDataType type = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint16_t)(bits >> 16)};
  TVMFFIAny text = {0};
  if (core->data_type_to_string(&type, &text) != 0) return ThrowRaised(env), NULL;
  if (text.type_index < kTVMFFIObject) {
    return MakeBytes(env, (TVMFFIByteArray){text.v_bytes, text.small_str_len});
  }
  jbyteArray made = MakeBytes(env, *(const TVMFFIByteArray*)BodyOf((jlong)text.v_obj));
  core->object_dec_ref(text.v_obj);
  return made;
}

// ---- Objects ------------------------------------------------------------------------------------------------------

EXPORT(void, retain)(JNIEnv* env, jclass cls, jlong object) {
  (void)env, UNUSED(cls), core->object_inc_ref((void*)object);
}
EXPORT(void, release)(JNIEnv* env, jclass cls, jlong object) {
  (void)env, UNUSED(cls), core->object_dec_ref((void*)object);
}

// A view that Java wrote becomes an owned value.
EXPORT(void, own)(JNIEnv* env, jclass cls, jlong cell) {
  UNUSED(cls);
  TVMFFIAny owned;
  if (core->any_view_to_owned((TVMFFIAny*)cell, &owned) != 0) return ThrowRaised(env);
  *(TVMFFIAny*)cell = owned;
}

EXPORT(jbyteArray, typeKey)(JNIEnv* env, jclass cls, jint index) {
  UNUSED(cls);
  const TVMFFITypeInfo* type = core->get_type_info(index);
  return MakeBytes(env, type == NULL ? (TVMFFIByteArray){"", 0} : type->type_key);
}

EXPORT(jint, typeIndex)(JNIEnv* env, jclass cls, jbyteArray key) {
  UNUSED(cls);
  TVMFFIByteArray text;
  int32_t index = -1;
  if (!Borrow(env, key, &text)) return -1;
  const int status = core->type_key_to_index(&text, &index);
  GiveBack(env, key, &text);
  if (status != 0) ThrowRaised(env);
  return index;
}

static bool Same(const TVMFFIByteArray* a, const TVMFFIByteArray* b) {
  return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

// The type itself, then its ancestors, the nearest first; NULL beyond them.
static const TVMFFITypeInfo* TypeAt(const TVMFFITypeInfo* type, int32_t up) {
  if (up == 0 || type == NULL) return type;
  return up <= type->type_depth ? type->type_ancestors[type->type_depth - up] : NULL;
}

static const TVMFFIFieldInfo* FindField(int32_t index, const TVMFFIByteArray* name) {
  const TVMFFITypeInfo *type = core->get_type_info(index), *each;
  for (int32_t up = 0; (each = TypeAt(type, up)) != NULL; ++up) {
    for (int32_t i = 0; i < each->num_fields; ++i) {
      if (Same(&each->fields[i].name, name)) return &each->fields[i];
    }
  }
  return NULL;
}

static const TVMFFIMethodInfo* FindMethod(int32_t index, const TVMFFIByteArray* name) {
  const TVMFFITypeInfo *type = core->get_type_info(index), *each;
  for (int32_t up = 0; (each = TypeAt(type, up)) != NULL; ++up) {
    for (int32_t i = 0; i < each->num_methods; ++i) {
      if (Same(&each->methods[i].name, name)) return &each->methods[i];
    }
  }
  return NULL;
}

// What Java asks of a member of an object: its value into a cell, owned; to be written from a cell; a method into a cell.
enum { kGet, kSet, kMethod };

// False when there is none of that name that may be used so.
EXPORT(jboolean, member)(JNIEnv* env, jclass cls, jlong object, jbyteArray name, jint what, jlong cell) {
  UNUSED(cls);
  TVMFFIByteArray text;
  TVMFFIAny* value = (TVMFFIAny*)cell;
  const int32_t type = ((TVMFFIObject*)object)->type_index;
  if (!Borrow(env, name, &text)) return false;
  const TVMFFIFieldInfo* field = what == kMethod ? NULL : FindField(type, &text);
  const TVMFFIMethodInfo* method = what == kMethod ? FindMethod(type, &text) : NULL;
  GiveBack(env, name, &text);
  int status = 0;
  if (what == kSet && field != NULL && !(field->flags & kTVMFFIFieldFlagBitMaskWritable)) field = NULL;
  if (method != NULL) {
    status = core->any_view_to_owned(&method->method, value);
  } else if (field != NULL && what == kGet) {
    status = field->getter((char*)object + field->offset, value);
  } else if (field != NULL) {
    status = core->object_set_field((void*)object, field, value);
  }
  if (status != 0) ThrowRaised(env);
  return method != NULL || field != NULL;
}

// The names of all fields of a type, those of its ancestors first, each with a NUL behind it.
EXPORT(jbyteArray, fieldNames)(JNIEnv* env, jclass cls, jint index) {
  UNUSED(cls);
  const TVMFFITypeInfo* type = core->get_type_info(index);
  size_t size = 0;
  for (int32_t up = 0; TypeAt(type, up) != NULL; ++up) {
    const TVMFFITypeInfo* each = TypeAt(type, up);
    for (int32_t i = 0; i < each->num_fields; ++i) size += each->fields[i].name.size + 1;
  }
  jbyteArray made = (*env)->NewByteArray(env, (jsize)size);
  jsize at = 0;
  for (int32_t up = type == NULL ? 0 : type->type_depth; made != NULL && up >= 0; --up) {
    const TVMFFITypeInfo* each = TypeAt(type, up);
    for (int32_t i = 0; each != NULL && i < each->num_fields; ++i) {
      const TVMFFIByteArray* name = &each->fields[i].name;  // of C, with a NUL behind it, as all that is copied there
      (*env)->SetByteArrayRegion(env, made, at, (jsize)name->size, (const jbyte*)name->data);
      at += (jsize)name->size + 1;
    }
  }
  return made;
}

// ---- Containers ---------------------------------------------------------------------------------------------------

static bool IsMap(jint type) { return type == kTVMFFIMap || type == kTVMFFIDict; }

// A container, or an object by the values of its fields, of cells that Java wrote. Those of a map come in pairs.
EXPORT(jlong, make)(JNIEnv* env, jclass cls, jint type, jlong cells, jint n) {
  UNUSED(cls);
  TVMFFIObjectHandle made = NULL;
  TVMFFIAny* items = (TVMFFIAny*)cells;
  int status;
  switch (type) {
    case kTVMFFIArray:
      status = core->array_create(items, n, &made);
      break;
    case kTVMFFIList:
      status = core->list_create(items, n, &made);
      break;
    case kTVMFFIMap:
      status = core->map_create(items, n / 2, &made);
      break;
    case kTVMFFIDict:
      status = core->dict_create(items, n / 2, &made);
      break;
    default:
      status = core->object_create(type, items, n, &made);
  }
  return Checked(env, status, &made);
}

// Puts n items in the place of `count` others; of a map, pairs. The container, or another that took its place.
EXPORT(jlong, splice)(JNIEnv* env, jclass cls, jlong object, jlong start, jlong count, jlong cells, jint n) {
  UNUSED(cls);
  TVMFFIObjectHandle container = (void*)object;
  const TVMFFIAny* items = (TVMFFIAny*)cells;
  int status = 0;
  if (!IsMap(((TVMFFIObject*)object)->type_index)) {
    status = core->array_splice(&container, start, count, items, n);
  } else {
    for (int i = 0; i < n && status == 0; i += 2) status = core->map_set(&container, items + i, items + i + 1);
  }
  if (status != 0) ThrowRaised(env);
  return (jlong)container;
}

EXPORT(jlong, size)(JNIEnv* env, jclass cls, jlong object) {
  (void)env, UNUSED(cls);
  if (IsMap(((TVMFFIObject*)object)->type_index)) return core->map_size((void*)object);
  return ((const TVMFFISeqCell*)BodyOf(object))->size;
}

// Item i of a sequence into a cell, owned.
EXPORT(jboolean, item)(JNIEnv* env, jclass cls, jlong object, jlong i, jlong cell) {
  UNUSED(cls);
  const TVMFFISeqCell* items = BodyOf(object);
  if (i < 0 || i >= items->size) return false;
  if (core->any_view_to_owned((const TVMFFIAny*)items->data + i, (TVMFFIAny*)cell) != 0) ThrowRaised(env);
  return true;
}

// The pair after another one into two cells, owned; its place, or 0 at the end.
EXPORT(jlong, pair)(JNIEnv* env, jclass cls, jlong map, jlong after, jlong cells) {
  UNUSED(cls);
  const TVMFFIAny* pair = core->map_next((void*)map, (const TVMFFIAny*)after);
  for (int i = 0; pair != NULL && i < 2; ++i) {
    if (core->any_view_to_owned(pair + i, (TVMFFIAny*)cells + i) != 0) return ThrowRaised(env), 0;
  }
  return (jlong)pair;
}

// The value of the key in a cell, into that cell, owned; or its removal.
EXPORT(jboolean, lookUp)(JNIEnv* env, jclass cls, jlong map, jlong cell, jboolean erase) {
  UNUSED(cls);
  TVMFFIObjectHandle container = (void*)map;
  TVMFFIAny* key = (TVMFFIAny*)cell;
  const TVMFFIAny* value = NULL;
  int erased = 0;
  int status = erase ? core->map_erase(&container, key, &erased) : core->map_find(container, key, &value);
  if (status == 0 && value != NULL) status = core->any_view_to_owned(value, key);
  if (status != 0) ThrowRaised(env);
  return erased != 0 || value != NULL;
}

EXPORT(jlong, makeShape)(JNIEnv* env, jclass cls, jlongArray extents) {
  UNUSED(cls);
  TVMFFIObjectHandle made = NULL;
  jlong* numbers = (*env)->GetLongArrayElements(env, extents, NULL);
  if (numbers == NULL) return 0;
  const int status = core->shape_create((int64_t*)numbers, (size_t)(*env)->GetArrayLength(env, extents), &made);
  (*env)->ReleaseLongArrayElements(env, extents, numbers, JNI_ABORT);
  return Checked(env, status, &made);
}

EXPORT(jlongArray, shape)(JNIEnv* env, jclass cls, jlong object) {
  UNUSED(cls);
  const TVMFFIShapeCell* shape = BodyOf(object);
  jlongArray made = (*env)->NewLongArray(env, (jsize)shape->size);
  if (made != NULL) (*env)->SetLongArrayRegion(env, made, 0, (jsize)shape->size, (const jlong*)shape->data);
  return made;
}
