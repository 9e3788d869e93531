// SPDX-License-Identifier: Apache-2.0
// Replays what the fuzzers found worth keeping (core/fuzz/corpus, one folder a target). `make fuzz` looks for more.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/targets.h"
#include "tests/check.h"

namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Runs every kept input, each shortened too: a promise must hold for a part of a file as for the whole.
void Replay(const char* target, void (*run)(const uint8_t*, size_t)) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PORTCALL_TEST_CORPUS) + "/" + target)) {
    std::string content = ReadFile(entry.path());
    for (size_t size = content.size(); size > 0; size = size * 3 / 4) {
      std::string part = content.substr(0, size);  // on the heap, so that a sanitizer sees its end
      run(reinterpret_cast<const uint8_t*>(part.data()), part.size());
    }
    ++files;
  }
  CHECK(files > 0);
}

}  // namespace

TEST("the reader of shared libraries keeps its promise for every kept input") { Replay("loader_elf", FuzzLoaderElf); }
TEST("the decoder of embedded modules keeps its promise for every kept input") {
  Replay("loader_embedded", FuzzLoaderEmbedded);
}
TEST("the reader of parameters keeps its promise for every kept input") { Replay("graph_params", FuzzGraphParams); }
TEST("the decoder of plans, and what runs them, keep their promises for every kept input") {
  Replay("graph_plan", FuzzGraphPlan);
}
TEST("the reader of frames and values keeps its promise for every kept input") { Replay("rpc_codec", FuzzRpcCodec); }
TEST("an endpoint keeps its promise for every kept input") { Replay("rpc_endpoint", FuzzRpcEndpoint); }
TEST("a session keeps its promise for every kept answer") { Replay("rpc_client", FuzzRpcClient); }
TEST("the reader of JSON keeps its promise for every kept input") { Replay("ir_json", FuzzIrJson); }
TEST("the reader of the binary form keeps its promise for every kept input") { Replay("ir_binary", FuzzIrBinary); }
