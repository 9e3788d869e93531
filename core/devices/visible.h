// SPDX-License-Identifier: Apache-2.0
// Which devices of a kind this process may use: all of them, or those that PORTCALL_VISIBLE_DEVICES names, such as
// "cuda:1,opencl:0", in that order and numbered from 0.
#ifndef PORTCALL_DEVICES_VISIBLE_H_
#define PORTCALL_DEVICES_VISIBLE_H_

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

namespace portcall::devices {

// The numbers of the kind's devices in the list. Words that name none are left out.
inline std::vector<size_t> NumbersInList(std::string_view list, std::string_view kind) {
  std::vector<size_t> numbers;
  while (!list.empty()) {
    const std::string_view word = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), word.size() + 1));
    const size_t colon = word.find(':');
    if (word.substr(0, colon) != kind || colon == word.npos) continue;
    size_t number = 0;
    const char* end = word.data() + word.size();
    if (std::from_chars(word.data() + colon + 1, end, number).ptr == end) numbers.push_back(number);
  }
  return numbers;
}

template <typename T> std::vector<T> VisibleOf(std::string_view kind, std::vector<T> all) {
  const char* list = std::getenv("PORTCALL_VISIBLE_DEVICES");
  if (!list) return all;
  std::vector<T> visible;
  for (const size_t number : NumbersInList(list, kind)) {
    if (number < all.size() && all[number]) visible.push_back(std::move(all[number]));  // each once
  }
  return visible;
}

}  // namespace portcall::devices
#endif  // PORTCALL_DEVICES_VISIBLE_H_
