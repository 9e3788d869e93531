// SPDX-License-Identifier: Apache-2.0
// Counts what a bundle's executor allocates: while it is made, and in runs. Usage: count_allocations BUNDLE
#include <portcall/portcall.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

using namespace portcall;

// glibc's own names for what this program puts in their place.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

static long allocations;

void* malloc(size_t size) { return ++allocations, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return ++allocations, __libc_calloc(count, size); }
void* realloc(void* block, size_t size) { return ++allocations, __libc_realloc(block, size); }
void* memalign(size_t alignment, size_t size) { return ++allocations, __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = memalign(alignment, size);
  return *block ? 0 : ENOMEM;
}
}

int main(int, char** argv) {
  long start = allocations;
  Module executor = Module::LoadFromFile(argv[1]).GetFunction("default")(Cpu());
  int inputs = executor.GetFunction("get_num_inputs")();
  for (int i = 0; i < inputs; ++i) executor.GetFunction("get_input")(i);  // counts as set
  PackedFunc run = executor.GetFunction("run");
  run();
  long made = allocations - start;
  for (int i = 0; i < 10; ++i) run();
  std::printf("%s, %ld in runs\n", made > 0 ? "some" : "none", allocations - start - made);
  return 0;
}
