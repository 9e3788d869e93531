// SPDX-License-Identifier: Apache-2.0
#include "tests/check.h"

#include <atomic>
#include <cstdio>
#include <exception>
#include <vector>

namespace check {
namespace {

struct Test {
  const char* file;
  int line;
  const char* sentence;
  void (*body)();
};

// A function's static, because tests register before main and in no order between files.
std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

std::atomic<int> failures_in_test{0};  // a failing CHECK may be in any thread

bool Run(const Test& test) {
  failures_in_test = 0;
  try {
    test.body();
  } catch (const std::exception& error) {
    Report(test.file, test.line, std::string("uncaught: ") + error.what());
  } catch (...) {
    Report(test.file, test.line, "uncaught, and not a std::exception");
  }
  if (failures_in_test != 0) std::fprintf(stderr, "FAILED: %s\n", test.sentence);
  return failures_in_test == 0;
}

}  // namespace

Registrar::Registrar(const char* file, int line, const char* sentence, void (*body)()) {
  Tests().push_back({file, line, sentence, body});
}

void ReportText(const char* file, int line, const char* what) { Report(file, line, what); }

void ReportUnequal(const char* file, int line, const char* text, const std::string& left, const std::string& right) {
  Report(file, line, std::string(text) + ": " + left + " is not " + right);
}

void Report(const char* file, int line, const std::string& what) {
  ++failures_in_test;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

}  // namespace check

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  int passed = 0, failed = 0;
  for (const auto& test : check::Tests()) {
    if (std::string_view(test.sentence).find(word) == std::string_view::npos) continue;
    ++(check::Run(test) ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || passed == 0;
}
