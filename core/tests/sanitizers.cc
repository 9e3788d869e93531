// SPDX-License-Identifier: Apache-2.0
// What the sanitizers' run times ask the program. Nobody calls these in a plain build.

#define ASKED extern "C" __attribute__((visibility("default"))) const char*

// Huge requests for memory fail as they do without a sanitizer.
ASKED __asan_default_options() { return "allocator_may_return_null=1"; }
ASKED __tsan_default_options() { return "allocator_may_return_null=1"; }

// The dynamic linker has locks of its own, which the thread sanitizer does not see.
ASKED __tsan_default_suppressions() { return "race:_dl_close_worker\nrace:_dl_map_object_deps\n"; }
