// SPDX-License-Identifier: Apache-2.0
// Runs a model that TVM compiled for its Relax VM, without Python: run_relax m.so FUNCTION EXTENT…
// The argument is a float32 tensor of ones with these extents. Compile it as examples/cpp/main.cc.
#include <portcall/portcall.h>

#include <cstdlib>
#include <iostream>

using namespace portcall;

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    Module machine = Module::LoadFromFile(argv[1])["vm_load_executable"]();
    machine["vm_initialization"](1, 0, 2);  // the CPU, memory from a pool
    std::vector<int64_t> shape;
    for (int i = 3; i < argc; ++i) shape.push_back(std::atoll(argv[i]));
    Tensor x = Tensor::Empty(shape, DataTypeOf<float>());
    std::fill_n(x.data<float>(), x.numel(), 1.0f);
    Tensor y = machine[argv[2]](x);
    std::cout << y.numel() << " elements, the first is " << y.data<float>()[0] << "\n";
    return 0;
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
