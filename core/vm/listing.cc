// SPDX-License-Identifier: Apache-2.0
// An executable as text: for people, in TVM's form; and for programs, as JSON.
#include <cstdio>

#include "vm/builtin.h"
#include "vm/executable.h"

namespace portcall::vm {
namespace {

std::string RegisterText(int64_t r) {
  return r == kNoRegister ? "%void" : r == kMachineRegister ? "%vm" : Join({"%", r});
}

std::string OperandText(const Executable& executable, const Operand& operand) {
  switch (operand.kind) {
    case Operand::kRegister:
      return RegisterText(operand.value);
    case Operand::kImmediate:
      return Join({"i", operand.value});
    case Operand::kConstant:
      return Join({"c[", operand.value, "]"});
    default:
      return Join({"f[", executable.FunctionAt(operand.value).name, "]"});
  }
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string InstructionText(const Executable& executable, const int64_t* word) {
  if (word[0] == kReturn) return "ret   " + RegisterText(word[1]);
  if (word[0] == kGoto) return Join({"goto  ", word[1]});
  if (word[0] == kIf) return Join({"If    ", RegisterText(word[1]), ", ", word[2]});
  CallWords call(word);
  std::string operands;
  for (int64_t i = 0; i < call.num_operands; ++i) {
    operands += (i ? ", " : "") + OperandText(executable, Operand(call.operands[i]));
  }
  return Join({"call  ", Padded(executable.FunctionAt(call.function).name, 16), " in: ", Padded(operands, 12),
               " dst: ", RegisterText(call.result)});
}

std::string Formatted(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      quoted += c;
    } else {
      constexpr const char* kDigits = "0123456789abcdef";
      ((quoted += "\\u00") += kDigits[c >> 4]) += kDigits[c & 15];
    }
  }
  return quoted + '"';
}

std::string ConstantText(const Any& constant) {
  const TVMFFIAny& cell = constant.cell();
  auto described = [](const char* type, const std::string& value) {
    return Join({R"({"type": ")", type, R"(", "value": )", value, "}"});
  };
  if (const DLTensor* tensor = TryDLTensor(cell)) {
    return Join({R"({"type": "tensor", "dtype": ")", ToString(tensor->dtype), R"(", "shape": )",
                 ExtentsText({tensor->shape, tensor->ndim}), R"(, "nbytes": )", NumBytes(*tensor), "}"});
  }
  if (std::optional<std::string_view> text = TryString(cell)) return described("str", Quoted(*text));
  if (cell.type_index == kTVMFFIShape) return described("shape", ExtentsText(Arguments("", &cell, 1).ExtentsAt(0)));
  if (cell.type_index == kTVMFFIDataType) return described("dtype", Quoted(ToString(cell.v_dtype)));
  if (cell.type_index == kTVMFFIInt) return described("int", std::to_string(cell.v_int64));
  return described("float", Quoted(Formatted("%.17g", cell.v_float64)));  // not every float is a number in JSON
}

std::string FunctionText(const Function& f) {
  static constexpr const char* kKinds[] = {"packed", "bytecode", "compiled"};
  std::string params;
  for (const std::string& name : f.params) params += (params.empty() ? "" : ", ") + Quoted(name);
  return Join({R"({"name": )", Quoted(f.name), R"(, "kind": ")", kKinds[f.kind], R"(", "params": [)", params,
               R"(], "registers": )", f.kind == kPacked ? 0 : f.num_registers, R"(, "instructions": )",
               f.kind == kBytecode ? f.end - f.begin : 0, "}"});
}

}  // namespace

std::string Summary(const Executable& executable) {
  return Join({executable.functions.size(), " functions, ", executable.constants.size(), " constants, ",
               executable.offsets.size(), " instructions"});
}

std::string Listing(const Executable& executable) {
  std::string out;
  for (const Function& f : executable.functions) {
    out += '@' + f.name;
    if (f.kind == kPacked) out += " packed_func;\n";
    if (f.kind == kCompiled) out += Join({" num_inputs=", f.num_args, " vm_tir_func;\n"});
    if (f.kind == kBytecode) {
      out += ":\n";
      for (int64_t at = f.begin; at < f.end; ++at) {
        out += Join({"  ", InstructionText(executable, executable.WordsAt(at)), "\n"});
      }
    }
    out += '\n';
  }
  return out;
}

std::string Description(const Executable& executable) {
  std::string text = "{\"functions\": [";
  for (const Function& f : executable.functions) text += (text.back() == '[' ? "" : ", ") + FunctionText(f);
  text += "], \"constants\": [";
  for (const Any& constant : executable.constants) text += (text.back() == '[' ? "" : ", ") + ConstantText(constant);
  return text + "]}";
}

}  // namespace portcall::vm
