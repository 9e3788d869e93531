// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dirent.h>

#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/targets.h"
#include "tests/check.h"

// Runs every kept input of a target, each shortened too: a promise must hold for a part of a file as for the whole.
inline void Replay(const char* target, void (*run)(const uint8_t*, size_t)) {
  int files = 0;
  const std::string folder = std::string(PORTCALL_TEST_CORPUS) + "/" + target;
  DIR* entries =
      opendir(folder.c_str());  // C++'s own fails for large inode numbers where a library was built for small ones
  CHECK(entries != nullptr);
  while (const dirent* entry = entries ? readdir(entries) : nullptr) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(folder + "/" + entry->d_name, std::ios::binary);
    std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    for (size_t size = content.size(); size > 0; size = size * 3 / 4) {
      std::string part = content.substr(0, size);  // on the heap, so that a sanitizer sees its end
      run(reinterpret_cast<const uint8_t*>(part.data()), part.size());
    }
    ++files;
  }
  if (entries) closedir(entries);
  CHECK(files > 0);
}
