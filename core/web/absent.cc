// SPDX-License-Identifier: Apache-2.0
// What the core asks for and WebAssembly does not have: another runtime in the process, the number of processors.
#include <sched.h>

#include "runtime/foreign.h"

namespace portcall {

TVMFFIObjectHandle TakeForeignError() noexcept { return nullptr; }
bool GiveForeignError(TVMFFIObjectHandle) noexcept { return false; }
std::string ForeignTypeKey(int32_t) { return {}; }
bool IsForeignCode(const void*) noexcept { return false; }
bool IsForeignRuntimeGlobal() noexcept { return false; }

}  // namespace portcall

// One processor, and no way to ask for it.
extern "C" {
int sched_getaffinity(pid_t, size_t, cpu_set_t*) { return -1; }
int __sched_cpucount(size_t, const cpu_set_t*) { return 1; }
}
