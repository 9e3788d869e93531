// SPDX-License-Identifier: Apache-2.0
// Replays what the fuzzers found worth keeping (core/fuzz/corpus, one folder a target). `make fuzz` looks for more.
#include "tests/fuzz/replay.h"

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
TEST("a server that calls back keeps its promise for every kept client") { Replay("rpc_callbacks", FuzzRpcCallbacks); }
TEST("the server without Python keeps its promise for every kept hello") { Replay("board_hello", FuzzBoardHello); }
TEST("paths, JSON and graphs keep their promise for every kept input") { Replay("board_files", FuzzBoardFiles); }
TEST("the reader of JSON keeps its promise for every kept input") { Replay("ir_json", FuzzIrJson); }
TEST("the reader of the binary form keeps its promise for every kept input") { Replay("ir_binary", FuzzIrBinary); }
