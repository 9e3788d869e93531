// SPDX-License-Identifier: Apache-2.0
// Runs a compiled model from a bundle (portcall.graph.export_bundle), without Python.
//
//   python -c 'from portcall import toolchain; toolchain.create_executable("examples/cpp/run_bundle.cc", "run_bundle")'
//   ./run_bundle model.so data 1 2 3 4
//
// It sets the input of that name to those numbers, float32 in the shape that the model wants, and prints every output.
#include <portcall/portcall.h>

#include <cstdlib>
#include <iostream>

using namespace portcall;

Shape ShapeOf(const Tensor& tensor) { return Shape(tensor.dl_tensor()->shape, static_cast<size_t>(tensor.ndim())); }

void Print(const Tensor& output) {
  std::cout << ToString(output.dtype()) << ToString(ShapeOf(output)) << ":";
  for (size_t i = 0; i < output.numel(); ++i) std::cout << ' ' << output.data<float>()[i];
  std::cout << '\n';
}

void Run(const std::string& path, const std::string& input, char** numbers, size_t count) {
  Module bundle = Module::LoadFromFile(path);
  // The executor uses the parameters where they lie in the file; others that are made of the bundle use them too.
  Module executor = bundle.GetFunction("default")(Cpu());

  Shape shape = ShapeOf(executor.GetFunction("get_input")(input).cast<Tensor>());
  Tensor data = Tensor::Empty({shape.begin(), shape.end()}, DataTypeOf<float>());
  PORTCALL_CHECK(data.numel() == count, ValueError) << "the input '" << input << "' has the shape " << ToString(shape)
                                                    << ", so it takes " << data.numel() << " numbers, not " << count;
  for (size_t i = 0; i < count; ++i) data.data<float>()[i] = std::strtof(numbers[i], nullptr);

  executor.GetFunction("set_input")(input, data);
  executor.GetFunction("run")();
  int outputs = executor.GetFunction("get_num_outputs")();
  PackedFunc get_output = executor.GetFunction("get_output");
  for (int i = 0; i < outputs; ++i) Print(get_output(i));
}

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: " << argv[0] << " BUNDLE INPUT NUMBER...\n";
    return 2;
  }
  try {
    Run(argv[1], argv[2], argv + 3, static_cast<size_t>(argc - 3));
  } catch (const Error& error) {
    std::cerr << error.kind() << ": " << error.message() << '\n';
    return 1;
  }
  return 0;
}
