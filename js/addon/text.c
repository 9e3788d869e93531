// SPDX-License-Identifier: Apache-2.0
// Text, both ways.
#include "text.h"

#include <stdlib.h>
#include <string.h>

static bool IsAscii(const char* data, size_t size) {
  uint64_t word, all = 0;
  size_t i = 0;
  for (; i + sizeof word <= size; i += sizeof word) {
    memcpy(&word, data + i, sizeof word);
    all |= word;
  }
  for (; i < size; ++i) all |= (uint8_t)data[i];
  return (all & UINT64_C(0x8080808080808080)) == 0;
}

napi_value MakeText(napi_env env, const char* data, size_t size) {
  napi_value text = NULL;
  const napi_status status = IsAscii(data, size) ? napi_create_string_latin1(env, data, size, &text)
                                                 : napi_create_string_utf8(env, data, size, &text);
  if (status != napi_ok) ThrowError(env, "RangeError", "text of the core is too long for a string");
  return text;
}

bool ReadText(napi_env env, napi_value value, TVMFFIByteArray* out) {
  size_t size = 0;
  if (napi_get_value_string_utf8(env, value, NULL, 0, &size) != napi_ok) {
    ThrowError(env, "TypeError", "a string is needed");
    return false;
  }
  char* text = malloc(size + 1);
  if (text == NULL) {
    ThrowError(env, "RangeError", "there is no memory left for a string");
    return false;
  }
  napi_get_value_string_utf8(env, value, text, size + 1, &size);
  out->data = text;
  out->size = size;
  return true;
}
