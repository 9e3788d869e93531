// SPDX-License-Identifier: Apache-2.0
// Writes executables of the Relax VM (docs/vm.md has the format), right ones and wrong ones.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

namespace vm_test {

using namespace portcall;

constexpr int64_t kNone = int64_t{1} << 54, kMachine = kNone + 1;
constexpr uint64_t kMagic1 = 0xD225DE2F4214151D, kMagic2 = 0xD225DE2F4214151E;

inline int64_t Reg(int64_t r) { return r; }
inline int64_t Imm(int64_t value) {
  return static_cast<int64_t>(uint64_t{1} << 56 | (static_cast<uint64_t>(value) & 0x00FFFFFFFFFFFFFF));
}
inline int64_t Const(int64_t i) { return static_cast<int64_t>(uint64_t{2} << 56) + i; }
inline int64_t Func(int64_t i) { return static_cast<int64_t>(uint64_t{3} << 56) + i; }

struct Payload : std::string {
  template <typename T> void Put(T value) { append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Text(const std::string& text) {
    Put<uint64_t>(text.size());
    append(text);
  }
  void Words(const std::vector<int64_t>& words) {
    Put<uint64_t>(words.size());
    for (int64_t word : words) Put(word);
  }
};

struct Assembler {
  struct Function {
    int32_t kind;
    std::string name;
    int64_t begin, end, args, registers;
    std::vector<std::string> params;
  };
  uint64_t magic = kMagic2;
  std::string version = "0.14";
  std::vector<Function> functions;
  std::vector<std::pair<int64_t, std::string>> scopes;
  std::vector<std::string> constants;  // as they are written
  std::vector<int64_t> offsets, code;
  std::map<std::string, int64_t> packed;

  // The index of a function that is called by name.
  int64_t Packed(const std::string& name) {
    auto [it, added] = packed.try_emplace(name, static_cast<int64_t>(functions.size()));
    if (added) functions.push_back({0, name, 0, 0, -2, 0, {}});
    return it->second;
  }
  int64_t Constant(int32_t tag, const Payload& value) {
    Payload bytes;
    bytes.Put(tag);
    bytes.append(value);
    constants.push_back(bytes);
    return Const(static_cast<int64_t>(constants.size()) - 1);
  }
  int64_t Text(const std::string& text) {
    Payload bytes;
    bytes.Text(text);
    return Constant(kTVMFFIStr, bytes);
  }
  int64_t ShapeOf(const std::vector<int64_t>& extents) {
    Payload bytes;
    bytes.Words(extents);
    return Constant(kTVMFFIShape, bytes);
  }
  int64_t DType(DLDataType dtype) {
    Payload bytes;
    bytes.Put(dtype);
    return Constant(kTVMFFIDataType, bytes);
  }
  int64_t Floats(const std::vector<float>& values) {
    Payload bytes;
    bytes.Put<uint64_t>(0xDD5E40F096B4A13F);
    bytes.Put<uint64_t>(0);
    bytes.Put<int32_t>(1);
    bytes.Put<int32_t>(0);
    bytes.Put<int32_t>(1);
    bytes.Put(DataTypeOf<float>());
    bytes.Put<int64_t>(static_cast<int64_t>(values.size()));
    bytes.Put<uint64_t>(values.size() * sizeof(float));
    for (float value : values) bytes.Put(value);
    return Constant(kTVMFFITensor, bytes);
  }

  // Begins a function of bytecode; its index.
  int64_t Begin(const std::string& name, const std::vector<std::string>& params, int64_t registers) {
    auto at = static_cast<int64_t>(offsets.size());
    functions.push_back({1, name, at, at, static_cast<int64_t>(params.size()), registers, params});
    return static_cast<int64_t>(functions.size()) - 1;
  }
  void Emit(const std::vector<int64_t>& words) {
    offsets.push_back(static_cast<int64_t>(code.size()));
    code.insert(code.end(), words.begin(), words.end());
    for (auto it = functions.rbegin(); it != functions.rend(); ++it) {
      if (it->kind != 1) continue;
      it->end = static_cast<int64_t>(offsets.size());
      break;
    }
  }
  void CallIndex(int64_t dst, int64_t function, const std::vector<int64_t>& operands) {
    std::vector<int64_t> words = {1, dst, function, static_cast<int64_t>(operands.size())};
    words.insert(words.end(), operands.begin(), operands.end());
    Emit(words);
  }
  void Call(int64_t dst, const std::string& name, const std::vector<int64_t>& operands) {
    CallIndex(dst, Packed(name), operands);
  }
  void Return(int64_t r) { Emit({2, r}); }
  void Goto(int64_t by) { Emit({3, by}); }
  void If(int64_t r, int64_t by) { Emit({4, r, by}); }

  Payload Write() const {
    Payload out;
    out.Put(magic);
    out.Text(version);
    out.Put<uint64_t>(functions.size());
    for (const Function& f : functions) {
      out.Put(f.kind);
      out.Text(f.name);
      for (int64_t n : {f.begin, f.end, f.args, f.registers}) out.Put(n);
      out.Put<uint64_t>(f.params.size());
      for (const std::string& name : f.params) out.Text(name);
    }
    if (magic == kMagic2) {
      out.Put<uint64_t>(scopes.size());
      for (const auto& [constant, scope] : scopes) {
        out.Put(constant);
        out.Text(scope);
      }
    }
    out.Put<uint64_t>(constants.size());
    for (const std::string& constant : constants) out.append(constant);
    out.Words(offsets);
    out.Words(code);
    return out;
  }
};

inline Module Load(const std::string& bytes) {
  return Registry::GetRequired("ffi.Module.load_from_bytes.relax.VMExecutable")(portcall::Bytes(bytes)).cast<Module>();
}
inline Module SetUp(const Module& executable) {
  auto machine = executable["vm_load_executable"]().cast<Module>();
  machine["vm_initialization"](1, 0, 2);
  return machine;
}
inline Module MachineOf(const Assembler& assembler) { return SetUp(Load(assembler.Write())); }

inline Tensor Floats(const std::vector<float>& values) {
  Tensor tensor = Tensor::Empty({static_cast<int64_t>(values.size())}, DataTypeOf<float>());
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}
inline std::vector<float> Values(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

}  // namespace vm_test
