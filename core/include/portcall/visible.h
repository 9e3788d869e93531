// SPDX-License-Identifier: Apache-2.0
// Which devices of a kind this process may use: all of them, or those that PORTCALL_VISIBLE_DEVICES names, such as
// "cuda:1,opencl:0", in that order and numbered from 0. For plug-ins; `portcall serve --device` sets the variable.
#ifndef PORTCALL_VISIBLE_H_
#define PORTCALL_VISIBLE_H_

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace portcall {
namespace detail {

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

}  // namespace detail

// The driver's numbers of the devices that this process sees, of `count` of a kind: the first is device 0 here.
inline std::vector<size_t> VisibleDevices(std::string_view kind, size_t count) {
  std::vector<size_t> visible;
  const char* list = std::getenv("PORTCALL_VISIBLE_DEVICES");
  if (list) {
    for (const size_t number : detail::NumbersInList(list, kind)) {
      const bool again = std::find(visible.begin(), visible.end(), number) != visible.end();
      if (number < count && !again) visible.push_back(number);
    }
  } else {
    for (size_t number = 0; number < count; ++number) visible.push_back(number);
  }
  return visible;
}

}  // namespace portcall
#endif  // PORTCALL_VISIBLE_H_
