// SPDX-License-Identifier: Apache-2.0
// Binaries of devices on disk, in $XDG_CACHE_HOME/portcall/kernels (~/.cache/portcall/kernels), by all that they were made
// of. At most kMaxBytes are kept; what was used last stays. Files are written whole or not at all.
#ifndef PORTCALL_DEVICES_BINARY_CACHE_H_
#define PORTCALL_DEVICES_BINARY_CACHE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace portcall::devices {

constexpr uint64_t kMaxBytes = 256 << 20;

// One key of several texts; texts that are cut differently give another key.
std::string CacheKey(std::initializer_list<std::string_view> parts);

// The binary that was kept for the key; empty where there is none, where its file is damaged, or where other users could
// have put it.
std::string FindBinary(const std::string& key);

// Keeps a binary. What goes wrong is no error: the next process makes the binary again.
void KeepBinary(const std::string& key, const std::string& binary);

}  // namespace portcall::devices
#endif  // PORTCALL_DEVICES_BINARY_CACHE_H_
