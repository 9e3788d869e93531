// SPDX-License-Identifier: Apache-2.0
// The C++ library names the type of an uncaught exception by this one. Its own would be a tenth of the program,
// for a line that says the mangled name without it.
extern "C" char* __cxa_demangle(const char*, char*, unsigned long*, int* status) {
  if (status) *status = -1;
  return nullptr;
}

#ifdef __arm__
// Part of the C++ library, which the program exports although nothing else of it is: cleanups of a library that is loaded
// would go on in the program's unwinder, which knows nothing of their exception. One hidden use hides it.
extern "C" __attribute__((visibility("hidden"))) void __cxa_end_cleanup();
__attribute__((used)) static void (*const hidden)() = __cxa_end_cleanup;
#endif
