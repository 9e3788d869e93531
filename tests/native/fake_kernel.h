// SPDX-License-Identifier: Apache-2.0
// What fake_nvrtc.cc makes of a kernel, and fake_cuda.cc runs: the object `fake_kernel_NAME` of a library of this machine.
// The text of this file is also in the source that fake_nvrtc.cc compiles, so it includes nothing.
struct FakeKernel {
  int arguments;
  const unsigned* sizes;  // bytes of each argument
  // Runs all blocks. `translate` turns an address of the device into one of the host, and throws where there is none.
  void (*run)(void** arguments, const unsigned* grid, const unsigned* block, char* shared,
              void* (*translate)(unsigned long long));
};
