// SPDX-License-Identifier: Apache-2.0
// An executable as text: for people, in TVM's form; and for programs, as JSON.
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "vm/executable.h"

namespace portcall::vm {
namespace {

std::string RegisterText(int64_t r) {
  return r == kNoRegister ? "%void" : r == kMachineRegister ? "%vm" : "%" + std::to_string(r);
}

std::string OperandText(const Executable& executable, const Operand& operand) {
  switch (operand.kind) {
    case Operand::kRegister:
      return RegisterText(operand.value);
    case Operand::kImmediate:
      return "i" + std::to_string(operand.value);
    case Operand::kConstant:
      return "c[" + std::to_string(operand.value) + "]";
    default:
      return "f[" + executable.FunctionAt(operand.value).name + "]";
  }
}

void WriteInstruction(const Executable& executable, const int64_t* word, std::ostream& out) {
  if (word[0] == kReturn) {
    out << "ret   " << RegisterText(word[1]);
  } else if (word[0] == kGoto) {
    out << "goto  " << word[1];
  } else if (word[0] == kIf) {
    out << "If    " << RegisterText(word[1]) << ", " << word[2];
  } else {
    CallWords call(word);
    std::string operands;
    for (int64_t i = 0; i < call.num_operands; ++i) {
      operands += (i ? ", " : "") + OperandText(executable, Operand(call.operands[i]));
    }
    out << "call  " << std::setw(16) << std::left << executable.FunctionAt(call.function).name
        << " in: " << std::setw(12) << operands << " dst: " << RegisterText(call.result);
  }
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      (quoted += '\\') += c;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string ExtentsText(const int64_t* extents, int64_t n) {
  std::string text = "[";
  for (int64_t i = 0; i < n; ++i) text += (i ? ", " : "") + std::to_string(extents[i]);
  return text + "]";
}

std::string ConstantText(const Any& constant) {
  const TVMFFIAny& cell = constant.cell();
  if (const DLTensor* tensor = TryDLTensor(cell)) {
    return "{\"type\": \"tensor\", \"dtype\": \"" + ToString(tensor->dtype) +
           "\", \"shape\": " + ExtentsText(tensor->shape, tensor->ndim) +
           ", \"nbytes\": " + std::to_string(NumBytes(*tensor)) + "}";
  }
  if (std::optional<std::string_view> text = TryString(cell)) {
    return R"({"type": "str", "value": )" + Quoted(*text) + "}";
  }
  if (cell.type_index == kTVMFFIShape) {
    auto shape = constant.cast<Shape>();
    std::vector<int64_t> extents(shape.begin(), shape.end());
    return R"({"type": "shape", "value": )" + ExtentsText(extents.data(), static_cast<int64_t>(extents.size())) + "}";
  }
  if (cell.type_index == kTVMFFIDataType) {
    return R"({"type": "dtype", "value": ")" + ToString(cell.v_dtype) + "\"}";
  }
  bool integer = cell.type_index == kTVMFFIInt;
  std::ostringstream number;
  number << std::setprecision(17) << cell.v_float64;
  // Not every float is a number in JSON.
  return integer ? R"({"type": "int", "value": )" + std::to_string(cell.v_int64) + "}"
                 : R"({"type": "float", "value": ")" + number.str() + "\"}";
}

std::string FunctionText(const Function& f) {
  static constexpr const char* kKinds[] = {"packed", "bytecode", "compiled"};
  std::string params;
  for (const std::string& name : f.params) params += (params.empty() ? "" : ", ") + Quoted(name);
  return "{\"name\": " + Quoted(f.name) + ", \"kind\": \"" + kKinds[f.kind] + "\", \"params\": [" + params +
         "], \"registers\": " + std::to_string(f.kind == kPacked ? 0 : f.num_registers) +
         ", \"instructions\": " + std::to_string(f.kind == kBytecode ? f.end - f.begin : 0) + "}";
}

}  // namespace

std::string Summary(const Executable& executable) {
  return std::to_string(executable.functions.size()) + " functions, " + std::to_string(executable.constants.size()) +
         " constants, " + std::to_string(executable.offsets.size()) + " instructions";
}

std::string Listing(const Executable& executable) {
  std::ostringstream out;
  for (const Function& f : executable.functions) {
    if (f.kind == kPacked) out << "@" << f.name << " packed_func;\n\n";
    if (f.kind == kCompiled) out << "@" << f.name << " num_inputs=" << f.num_args << " vm_tir_func;\n\n";
    if (f.kind != kBytecode) continue;
    out << "@" << f.name << ":\n";
    for (int64_t at = f.begin; at < f.end; ++at) {
      out << "  ";
      WriteInstruction(executable, executable.WordsAt(at), out);
      out << "\n";
    }
    out << "\n";
  }
  return out.str();
}

std::string Description(const Executable& executable) {
  std::string text = "{\"functions\": [";
  for (const Function& f : executable.functions) text += (text.back() == '[' ? "" : ", ") + FunctionText(f);
  text += "], \"constants\": [";
  for (const Any& constant : executable.constants) text += (text.back() == '[' ? "" : ", ") + ConstantText(constant);
  return text + "]}";
}

}  // namespace portcall::vm
