// SPDX-License-Identifier: Apache-2.0
#include "vm/executable.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bytes/cursor.h"
#include "vm/order.h"

namespace portcall::vm {
namespace {

constexpr uint64_t kMagic1 = 0xD225DE2F4214151D;  // up to TVM 0.22
constexpr uint64_t kMagic2 = 0xD225DE2F4214151E;  // with memory scopes
constexpr uint64_t kTensorMagic = 0xDD5E40F096B4A13F;
constexpr const char* kVersion = "0.14";
constexpr int64_t kMostRegisters = 1 << 20;

[[noreturn]] void Fail(const char* what) { Throw("ModuleLoadError", {"the executable is damaged: ", what}); }
void Require(bool ok, const char* what) {
  if (!ok) Fail(what);
}

constexpr size_t kLittle = 1 << 14, kMuch = 1 << 20;

// Advises the kernel about the pages that begin and end within some memory.
void Advise(const void* data, size_t nbytes, int advice) {
  auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(data);
  auto first = (begin + page - 1) & -page, last = (begin + nbytes) & -page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, advice);
}

// Maps the pages of new memory that will be filled: a fault for each costs more than filling it. Little memory is often not new.
void MapAtOnce(void* data, size_t nbytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack and older systems refuse
  if (nbytes >= kLittle) Advise(data, nbytes, kPopulateWrite);
}

// Tells whether memory is that of a file, mapped for reading. Each line of the list is a mapping: where it begins and
// ends, in hexadecimal, what is allowed, and at last the path.
bool IsOfFile(const void* data) {
  auto at = reinterpret_cast<uintptr_t>(data);
  FILE* maps = std::fopen("/proc/self/maps", "re");
  bool found = false;
  char line[256];
  while (maps && !found && std::fgets(line, sizeof line, maps)) {
    char* rest = nullptr;
    auto begin = std::strtoull(line, &rest, 16), end = *rest == '-' ? std::strtoull(rest + 1, &rest, 16) : 0;
    found = begin <= at && at < end && std::strncmp(rest, " r-", 3) == 0 && std::strchr(rest, '/') != nullptr;
  }
  if (maps) std::fclose(maps);
  return found;
}

class Reader : public bytes::Cursor<Reader> {
 public:
  explicit Reader(std::string_view bytes) : Cursor(bytes), of_file_(bytes.size() >= kMuch && IsOfFile(bytes.data())) {}
  [[noreturn]] static void FailShort(const char*, uint64_t) { Fail("it ends too early"); }

  // A number of items of at least so many bytes each.
  size_t Count(size_t item_bytes) {
    auto n = Take<uint64_t>();
    Require(CanHold(n, item_bytes), "it ends too early");
    return n;
  }
  std::string_view Text() { return Bytes(Take<uint64_t>()); }
  std::vector<int64_t> Words() {
    std::vector<int64_t> words(Count(sizeof(int64_t)));
    for (int64_t& word : words) word = Take<int64_t>();
    return words;
  }

  Tensor TensorConstant() {
    Require(Take<uint64_t>() == kTensorMagic, "a tensor without its mark");
    Bytes(8 + 8);  // reserved; the device, which is the host
    auto ndim = Take<int32_t>();
    auto dtype = Take<DLDataType>();
    Require(ndim >= 0 && ndim <= kMostDimensions, "the number of dimensions of a tensor");
    std::vector<int64_t> shape;
    uint64_t bits = uint64_t{dtype.bits} * dtype.lanes;
    Require(bits > 0, "the data type of a tensor");
    for (int32_t i = 0; i < ndim; ++i) {
      shape.push_back(Take<int64_t>());
      Require(shape.back() >= 0 && !__builtin_mul_overflow(bits, static_cast<uint64_t>(shape.back()), &bits),
              "the shape of a tensor");
    }
    std::string_view data = Text();
    Require(data.size() == bits / 8 + (bits % 8 != 0), "the size of a tensor");
    Tensor tensor = Tensor::Empty(shape, dtype);
    MapAtOnce(tensor.raw_data(), data.size());
    if (!data.empty()) std::memcpy(tensor.raw_data(), data.data(), data.size());
    // Weights would be in memory twice, which their pages in the file's mapping give back.
    if (of_file_) Advise(data.data(), data.size(), MADV_DONTNEED);
    return tensor;
  }

  Any Constant() {
    switch (auto tag = Take<int32_t>()) {
      case kTVMFFIInt:
        return Take<int64_t>();
      case kTVMFFIFloat:
        return Take<double>();
      case kTVMFFIDataType:
        return Take<DLDataType>();
      case kTVMFFIStr:
        return String(Text());
      case kTVMFFIShape: {
        std::vector<int64_t> extents = Words();
        return NewShape(extents.data(), extents.size());
      }
      case kTVMFFITensor:
        return TensorConstant();
      default:
        Throw("ModuleLoadError", {"the executable is damaged: a constant of type ", tag});
    }
  }

  Function OneFunction() {
    Function f;
    f.kind = static_cast<FunctionKind>(Take<int32_t>());
    Require(f.kind == kPacked || f.kind == kBytecode || f.kind == kCompiled, "the kind of a function");
    f.name = Text();
    f.begin = Take<int64_t>();
    f.end = Take<int64_t>();
    f.num_args = Take<int64_t>();
    f.num_registers = Take<int64_t>();
    for (uint64_t n = Count(8); n > 0; --n) f.params.emplace_back(Text());
    return f;
  }

 private:
  bool of_file_;
};

// Checks the instructions of one function: then running them needs no checks. Jumps go forward only, as compilers
// write them, so a function ends.
class FunctionCheck {
 public:
  FunctionCheck(const Executable& executable, const Function& function)
      : executable_(executable), function_(function) {}

  void Run() const {
    if (function_.kind == kPacked) return;
    Require(function_.num_args >= 0 && function_.num_registers >= function_.num_args &&
                function_.num_registers <= kMostRegisters,
            "the number of registers of a function");
    if (function_.kind == kCompiled) {
      return Require(function_.num_registers > function_.num_args, "a function without a register for its result");
    }
    auto last = static_cast<int64_t>(executable_.offsets.size());
    Require(function_.begin >= 0 && function_.begin < function_.end && function_.end <= last,
            "where a function begins and ends");
    for (int64_t at = function_.begin; at < function_.end; ++at) CheckInstruction(at);
  }

 private:
  void CheckInstruction(int64_t at) const {
    int64_t offset = executable_.offsets[static_cast<size_t>(at)];
    auto size = static_cast<int64_t>(executable_.code.size());
    Require(offset >= 0 && offset < size, "the offset of an instruction");
    const int64_t* word = executable_.WordsAt(at);
    int64_t left = size - offset;
    switch (word[0]) {
      case kCall:
        Require(left >= 4 && word[3] >= 0 && word[3] <= left - 4, "the length of a call");
        return CheckCall(CallWords(word), at);
      case kReturn:
        return Require(left >= 2 && IsRegister(word[1]), "a return");
      case kGoto:
        return Require(left >= 2 && IsJump(at, word[1]), "a jump");
      case kIf:
        return Require(left >= 3 && IsRegister(word[1]) && IsJump(at, word[2]) && at + 1 < function_.end, "a branch");
      default:
        Fail("an instruction that does not exist");
    }
  }
  void CheckCall(const CallWords& call, int64_t at) const {
    Require(IsFunction(call.function), "the function of a call");
    Require(IsRegister(call.result), "the result of a call");
    Require(at + 1 < function_.end, "a function without a return");
    for (int64_t i = 0; i < call.num_operands; ++i) {
      Operand operand(call.operands[i]);
      bool ok = operand.kind == Operand::kRegister   ? IsRegister(operand.value)
                : operand.kind == Operand::kConstant ? IsConstant(operand.value)
                : operand.kind == Operand::kFunction ? IsFunction(operand.value)
                                                     : operand.kind == Operand::kImmediate;
      Require(ok, "an operand of a call");
    }
  }
  bool IsRegister(int64_t r) const {
    return r == kNoRegister || r == kMachineRegister || (r >= 0 && r < function_.num_registers);
  }
  bool IsFunction(int64_t i) const { return i >= 0 && i < static_cast<int64_t>(executable_.functions.size()); }
  bool IsConstant(int64_t i) const { return i >= 0 && i < static_cast<int64_t>(executable_.constants.size()); }
  bool IsJump(int64_t at, int64_t by) const { return by > 0 && by < function_.end - at; }

  const Executable& executable_;
  const Function& function_;
};

// Returns which of the two magic numbers it was.
uint64_t ReadHead(Reader* in) {
  auto magic = in->Take<uint64_t>();
  if (magic != kMagic1 && magic != kMagic2) {
    // TVM 0.20 and 0.21 put a length in front, and 0.20 numbers its constants in another way.
    bool old = in->left() > 0 && magic >= 16 && in->Take<uint64_t>() == kMagic1;
    Throw("ModuleLoadError",
          {old ? "TVM 0.20 or 0.21 compiled this executable; 0.22 and later can be run: compile the model again"
               : "these bytes are not an executable of a Relax VM"});
  }
  std::string_view version = in->Text();
  if (version != kVersion)
    Throw("ModuleLoadError",
          {"the executable has version '", version.substr(0, 40), "'; only ", kVersion, " is known"});
  return magic;
}

void ReadScopes(Reader* in) {
  for (uint64_t n = in->Count(16); n > 0; --n) {
    auto constant = in->Take<int64_t>();
    std::string_view scope = in->Text();
    if (scope != "global")
      Throw("ModuleLoadError", {"constant ", constant, " is to be in memory of scope '", scope.substr(0, 40),
                                "'; only the scope 'global' is supported"});
  }
}

}  // namespace

int64_t Executable::Find(std::string_view name) const {
  auto before = [&](int64_t i, std::string_view wanted) { return FunctionAt(i).name < wanted; };
  auto it = std::lower_bound(by_name.begin(), by_name.end(), name, before);
  return it != by_name.end() && FunctionAt(*it).name == name ? *it : -1;
}

std::shared_ptr<const Executable> ReadExecutable(std::string_view bytes) {
  Reader in(bytes);
  auto executable = std::make_shared<Executable>();
  auto name_of = [&](int64_t i) -> const std::string& { return executable->FunctionAt(i).name; };
  uint64_t magic = ReadHead(&in);
  for (uint64_t n = in.Count(44); n > 0; --n) {
    executable->by_name.push_back(static_cast<int64_t>(executable->functions.size()));
    executable->functions.push_back(in.OneFunction());
  }
  SortPlaces(&executable->by_name, [&](int64_t a, int64_t b) { return name_of(a).compare(name_of(b)); });
  for (size_t i = 1; i < executable->by_name.size(); ++i)
    Require(name_of(executable->by_name[i - 1]) != name_of(executable->by_name[i]), "two functions have the same name");
  if (magic == kMagic2) ReadScopes(&in);
  for (uint64_t n = in.Count(4); n > 0; --n) executable->constants.push_back(in.Constant());
  executable->offsets = in.Words();
  executable->code = in.Words();
  Require(in.left() == 0, "something follows its end");
  for (const Function& f : executable->functions) FunctionCheck(*executable, f).Run();
  return executable;
}

}  // namespace portcall::vm
