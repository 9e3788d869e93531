// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/targets.h"
#include "tests/check.h"

// Runs every kept input of a target, each shortened too: a promise must hold for a part of a file as for the whole.
inline void Replay(const char* target, void (*run)(const uint8_t*, size_t)) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PORTCALL_TEST_CORPUS) + "/" + target)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    for (size_t size = content.size(); size > 0; size = size * 3 / 4) {
      std::string part = content.substr(0, size);  // on the heap, so that a sanitizer sees its end
      run(reinterpret_cast<const uint8_t*>(part.data()), part.size());
    }
    ++files;
  }
  CHECK(files > 0);
}
