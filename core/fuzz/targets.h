// SPDX-License-Identifier: Apache-2.0
// What is fuzzed. Each function returns for any bytes, or traps because a promise was broken.
#pragma once

#include <cstddef>
#include <cstdint>

void FuzzLoaderElf(const uint8_t* data, size_t size);  // a file that is to be loaded
// Modules embedded in a library; the first byte chooses the era.
void FuzzLoaderEmbedded(const uint8_t* data, size_t size);
// A blob of parameters; if it does not begin like one, a bundle: the first two bytes are the size of its index.
void FuzzGraphParams(const uint8_t* data, size_t size);
void FuzzGraphPlan(const uint8_t* data, size_t size);  // a plan; the first byte says whether a header is added
// The first byte of these chooses how the bytes are split.
void FuzzRpcCodec(const uint8_t* data, size_t size);     // a stream of frames
void FuzzRpcEndpoint(const uint8_t* data, size_t size);  // what a client sends
void FuzzRpcClient(const uint8_t* data, size_t size);    // what a server answers
// What a client sends whose functions are called back.
void FuzzRpcCallbacks(const uint8_t* data, size_t size);
void FuzzBoardHello(const uint8_t* data, size_t size);  // a client's hello to the server without Python
// The first byte chooses: a path, JSON, a graph as JSON.
void FuzzBoardFiles(const uint8_t* data, size_t size);
// What is read of a saved graph is saved again, and read again to the same.
void FuzzIrJson(const uint8_t* data, size_t size);        // JSON
void FuzzIrBinary(const uint8_t* data, size_t size);      // the binary form, without the checksum: that is added here
void FuzzVmExecutable(const uint8_t* data, size_t size);  // an executable of the Relax VM: loaded, set up and run
