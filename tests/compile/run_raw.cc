// SPDX-License-Identifier: Apache-2.0
// Runs a bundle on files of raw elements: run_raw BUNDLE FOLDER; inputs are FOLDER/NAME.in, results FOLDER/NUMBER.out.
#include <portcall/portcall.h>

#include <fstream>
#include <iostream>

using namespace portcall;

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    std::string folder = std::string(argv[2]) + "/";
    Module executor = Module::LoadFromFile(argv[1]).GetFunction("default")(Cpu());
    for (int i = 3; i < argc; ++i) {
      Tensor like = executor.GetFunction("get_input")(std::string(argv[i])).cast<Tensor>();
      const int64_t* extents = like.dl_tensor()->shape;
      Tensor data = Tensor::Empty({extents, extents + like.ndim()}, like.dtype());
      std::ifstream file(folder + argv[i] + ".in", std::ios::binary);
      file.read(static_cast<char*>(data.raw_data()), static_cast<std::streamsize>(data.nbytes()));
      PORTCALL_CHECK(file.good(), ValueError) << "the input '" << argv[i] << "' is too short";
      executor.GetFunction("set_input")(std::string(argv[i]), data);
    }
    executor.GetFunction("run")();
    int outputs = executor.GetFunction("get_num_outputs")();
    for (int i = 0; i < outputs; ++i) {
      Tensor made = executor.GetFunction("get_output")(i).cast<Tensor>();
      std::ofstream file(folder + std::to_string(i) + ".out", std::ios::binary);
      file.write(static_cast<const char*>(made.raw_data()), static_cast<std::streamsize>(made.nbytes()));
    }
  } catch (const Error& error) {
    std::cerr << error.kind() << ": " << error.message() << '\n';
    return 1;
  }
  return 0;
}
