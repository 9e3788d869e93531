// SPDX-License-Identifier: Apache-2.0
// Modules: shared libraries of several makers (tests/fixtures), embedded modules, imports, code linked into the program.
#include <link.h>
#include <unistd.h>
#include <algorithm>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bytes/this_machine.h"
#include "loader/elf_file.h"
#include "loader/embedded.h"
#include "portcall/portcall.h"
#include "tests/check.h"
#include "tests/helpers.h"

using namespace portcall;
using namespace portcall::loader;

namespace {

std::string Fixture(const std::string& name) { return std::string(PORTCALL_TEST_FIXTURES) + "/" + name + ".so"; }
Module Load(const std::string& name) { return Module::LoadFromFile(Fixture(name)); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file that is removed again.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& content)
      : path_(std::filesystem::temp_directory_path() / ("portcall-" + std::to_string(getpid()) + "-" + name)) {
    Write(content);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }

  void Write(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string LoadError(const std::string& path) {
  return Thrown([&] { Module::LoadFromFile(path); });
}

Tensor Floats(std::vector<float> values) {
  Tensor tensor = Tensor::Empty({static_cast<int64_t>(values.size())}, DataTypeOf<float>());
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

// A module in memory: it has the functions that it is given.
class TableNode : public ModuleNode {
 public:
  explicit TableNode(std::vector<std::pair<std::string, int>> table) : table_(std::move(table)) {}
  const char* kind() const override { return "table"; }
  PackedFunc GetFunction(const std::string& name, const Module& self) override {
    for (const auto& [key, value] : table_) {
      if (key == name) return PackedFunc([self, v = value](Args, RetValue* rv) { *rv = v; });
    }
    return nullptr;
  }

 private:
  std::vector<std::pair<std::string, int>> table_;
};

Module Table(std::vector<std::pair<std::string, int>> table) {
  return Module(std::make_unique<TableNode>(std::move(table)));
}

}  // namespace

// ---- Libraries ----------------------------------------------------------------------------------------------------

TEST("a generated library is loaded, called and fails with its own message") {
  Module lib = Load("generated");
  CHECK_EQ(lib.kind(), "library");
  Tensor x = Floats({1, 2, 3}), y = Floats({0, 0, 0});
  CHECK(lib.GetFunction("add_one")(x, y) == nullptr);
  CHECK_EQ(y.data<float>()[2], 4.0f);
  CHECK_EQ(lib.GetFunction("answer")().cast<int>(), 42);
  CHECK(Contains(Thrown([&] { lib.GetFunction("add_one")(x); }), "TypeError: Expected 2 arguments when calling:\n"));
  CHECK(Contains(Thrown([&] { lib.GetFunction("add_one")(x, 1); }), "TypeError: Mismatched type when calling:"));
  Tensor shorter = Floats({0});
  CHECK(Contains(Thrown([&] { lib.GetFunction("add_one")(x, shorter); }), "ValueError: Mismatched y.shape[0]"));
  CHECK_EQ(y.data<float>()[2], 4.0f);
}

TEST("the arguments of a generated library are checked before its code sees them") {
  PackedFunc add_one = Load("generated").GetFunction("add_one");
  Tensor x = Floats({1, 2, 3});
  CHECK(Contains(Thrown([&] { add_one(x, Shape{3}); }), "add_one(): argument #1: expected a number, a pointer or a"));
  DLTensor misaligned = *x.dl_tensor();
  misaligned.byte_offset = 4;
  CHECK(
      Contains(Thrown([&] { add_one(x, &misaligned); }), "add_one(): argument #1: expected tensor data aligned to 64"));
  PortcallFunctionInfo info{};
  PortcallFunctionGetInfo(add_one.get(), &info);
  CHECK_EQ(info.flags, kPortcallFunctionLibrary | kPortcallFunctionGenerated);
  CHECK_EQ(info.name, "add_one");
}

TEST("a function that a module must have is an error that names those that it has") {
  Module lib = Load("generated");
  CHECK_EQ(lib["answer"]().cast<int>(), 42);
  std::vector<std::string> names = lib.FunctionNames();
  CHECK(std::find(names.begin(), names.end(), "answer") != names.end());
  std::string error = Thrown([&] { lib["nobody"]; });
  CHECK(Contains(error, "FunctionNotFoundError: a module of type 'library' has no function 'nobody'; it has "));
  CHECK(Contains(error, "answer"));
  CHECK_EQ(Thrown([] { Module()["x"]; }), "ValueError: the module is None");
}

TEST("a library has the functions that it exports and no others") {
  Module lib = Load("generated");
  CHECK(lib.GetFunction("nobody") == nullptr);
  CHECK(lib.GetFunction("") == nullptr);
  CHECK(lib.GetFunction("table") == nullptr);             // a variable
  CHECK(lib.GetFunction("_metadata_answer") == nullptr);  // the compiler's own
  CHECK(lib.GetFunction("_library_ctx") == nullptr);
  CHECK(lib.GetFunction("add_one\0x") != nullptr);
  CHECK(lib.GetFunction(std::string("add_one\0x", 9)) == nullptr);
  CHECK_EQ(lib.GetFunction("main")().cast<int>(), 42);
  auto names = Registry::Get("portcall.ModuleFunctionNames")(lib).cast<std::vector<std::string>>();
  CHECK((names == std::vector<std::string>{"add_one", "answer", "call_back", "forgets_the_error", "look_up", "main",
                                           "scratch"}));
  CHECK(Registry::Get("ffi.ModuleImplementsFunction")(lib, "answer", false).cast<bool>());
  CHECK(!Registry::Get("ffi.ModuleImplementsFunction")(lib, "table", true).cast<bool>());
  CHECK_EQ(Registry::Get("portcall.ModuleEntryName")(lib).cast<String>(), "main");
}

TEST("a function keeps its library, and the same file is the same module while that lives") {
  int64_t before = LiveNodes("ffi.Module");
  PackedFunc answer;
  {
    Module lib = Load("generated");
    CHECK(Load("generated").same_as(lib));
    CHECK(Module::LoadFromFile(std::string(PORTCALL_TEST_FIXTURES) + "/../fixtures/generated.so").same_as(lib));
    answer = lib.GetFunction("answer");
  }
  CHECK_EQ(answer().cast<int>(), 42);
  CHECK_EQ(LiveNodes("ffi.Module"), before + 1);
  answer = nullptr;
  CHECK_EQ(LiveNodes("ffi.Module"), before);
}

TEST("compiled code calls functions that somebody registered, by way of the context of its library") {
  Registry::Set("test_module.callee", PackedFunc([](Args args, RetValue* rv) { *rv = args[0].cast<int>() * 2; }));
  Module lib = Load("generated");
  PackedFunc call_back = lib.GetFunction("call_back");
  CHECK_EQ(call_back(21).cast<int>(), 42);
  CHECK(Contains(Thrown([&] { call_back("x"); }), "argument #0: expected int32, got str"));
  CHECK(Registry::Remove("test_module.callee"));
  CHECK_EQ(call_back(4).cast<int>(), 8);  // found once and kept
}

TEST("compiled code that looks for a function nobody has gets an error that says what to do") {
  Module lib = Load("generated");
  CHECK(Contains(Thrown([&] { lib.GetFunction("look_up")("nobody"); }),
                 "RuntimeError: compiled code needs the function 'nobody', which no imported module has and which is "
                 "not registered; register it"));
}

TEST("compiled code looks into the imports of its module first, at any depth") {
  Module lib = Load("generated");
  Registry::Set("deep", PackedFunc([](Args, RetValue* rv) { *rv = -1; }));
  Module near = Table({{"near", 1}}), far = Table({{"deep", 2}});
  near.Import(far);
  lib.Import(near);
  CHECK_EQ(lib.GetFunction("look_up")("near").cast<int>(), 1);
  CHECK_EQ(lib.GetFunction("look_up")("deep").cast<int>(), 2);
  CHECK(Registry::Remove("deep"));
}

TEST("compiled code borrows memory for its work") { CHECK(Load("generated").GetFunction("scratch")().cast<bool>()); }

TEST("a library function that fails without an error is an error all the same") {
  CHECK(Contains(Thrown([] { Load("generated").GetFunction("forgets_the_error")(); }), "without setting an error"));
}

TEST("a context that was never filled is an error, not a crash") {
  TVMFFIObjectHandle out = nullptr;
  CHECK_EQ(TVMFFIEnvModLookupFromImports(nullptr, "f", &out), -1);
  CHECK(Contains(Raised(), "'f' before its library was loaded"));
}

TEST("a library of portcall's headers exports functions of any types, several from one file") {
  Module lib = Load("exported");
  CHECK_EQ(lib.GetFunction("add")(3, 4).cast<int>(), 7);
  CHECK(lib.GetFunction("nothing")() == nullptr);
  CHECK_EQ(lib.GetFunction("greet")("world").cast<String>(), "hello, world");
  auto sums = lib.GetFunction("sum")(Floats({1, 2, 4})).cast<std::vector<double>>();
  CHECK(sums == (std::vector<double>{7, 3}));
  CHECK_EQ(Thrown([&] { lib.GetFunction("fail")("because"); }), "KeyError: because");
  CHECK_EQ(Thrown([&] { lib.GetFunction("add")(1, "x"); }), "TypeError: add(): argument #1: expected int, got str");
  PackedFunc twice([](Args args, RetValue* rv) { *rv = args[0].cast<int>() * 2; });
  CHECK_EQ(lib.GetFunction("apply")(twice, 21).cast<int>(), 42);
  Error error("OddError", "round trip");
  PackedFunc fail([&](Args, RetValue*) { throw error; });
  try {
    lib.GetFunction("apply")(fail, 1);
    CHECK(false);
  } catch (const Error& caught) {
    CHECK(caught.ref().same_as(error.ref()));
  }
  PortcallFunctionInfo info{};
  PackedFunc add = lib.GetFunction("add");
  PortcallFunctionGetInfo(add.get(), &info);
  CHECK_EQ(info.flags, kPortcallFunctionLibrary | kPortcallFunctionSigned);
}

TEST("an object that a library made outlives the last reference to its module") {
  int64_t before = LiveNodes("ffi.Module");
  Any box = Load("exported").GetFunction("box")(7);
  CHECK_EQ(LiveNodes("ffi.Module"), before);
  CHECK_EQ(box.cast<ObjectRef>().type_key(), "test_module.Box");
  CHECK_EQ(Load("exported").GetFunction("unbox")(box).cast<int>(), 7);
  box.reset();  // by the library's own code
}

TEST("a library of TVM 0.21 has plain names and the calls of today") {
  Module lib = Load("modern21");
  CHECK_EQ(lib.GetFunction("answer")().cast<int>(), 21);
  CHECK_EQ(Registry::Get("portcall.ModuleEntryName")(lib).cast<String>(), "answer");
  for (const char* name : {"__tvm_ffi_library_ctx", "__tvm_main__", "__TVMFFIFunctionCall"}) {
    CHECK(lib.GetFunction(name) == nullptr);
  }
}

TEST("a library is loaded and called from many threads at once") {
  int64_t before = LiveNodes("ffi.Module");
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 20; ++i) {
        CHECK_EQ(Load("exported").GetFunction("add")(i, 1).cast<int>(), i + 1);
        CHECK_EQ(Load("generated").GetFunction("answer")().cast<int>(), 42);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(LiveNodes("ffi.Module"), before);
}

TEST("the copy of a library names no table of sections that it lacks") {
  Module module = Load("generated");  // which has a context, that no other module may fill
  size_t copies[2] = {0, 0};          // without and with such a table
  auto look = [](dl_phdr_info* info, size_t, void* out) {
    const bool table = reinterpret_cast<const ElfW(Ehdr)*>(info->dlpi_addr)->e_shoff != 0;
    if (Contains(info->dlpi_name, "/proc/self/task/")) ++static_cast<size_t*>(out)[table];
    return 0;
  };
  dl_iterate_phdr(look, copies);
  CHECK(copies[0] > 0 && copies[1] == 0);
}

TEST("a file that has changed since is another library") {
  TemporaryFile file("changing.so", ReadFile(Fixture("generated")));
  Module first = Module::LoadFromFile(file.path());
  std::string other = ReadFile(Fixture("modern21"));
  std::filesystem::remove(file.path());  // a mapped file is never written over
  file.Write(other);
  Module second = Module::LoadFromFile(file.path());
  CHECK(!second.same_as(first));
  CHECK_EQ(second.GetFunction("answer")().cast<int>(), 21);
  CHECK_EQ(first.GetFunction("answer")().cast<int>(), 42);
}

// ---- What cannot be loaded ----------------------------------------------------------------------------------------

TEST("Module::LoadFromFile refuses a file that is not a library of ours, with its path and the reason") {
  int64_t before = LiveNodes("ffi.Module");
  CHECK(Contains(LoadError("/no/such/file.so"), "ModuleLoadError: cannot open '/no/such/file.so': No such file"));
  CHECK(Contains(LoadError(Fixture("plain")), "it exports no function of TVM, tvm-ffi or portcall"));
  CHECK(Contains(LoadError(Fixture("needy")), "it needs the symbol 'nobody_provides_this', which no library provides"));
  CHECK(Contains(LoadError(Fixture("damaged")), "__tvm_ffi__library_bin is damaged: it is shorter than it says"));
  std::string folder =
      std::filesystem::temp_directory_path().string() + "/portcall-" + std::to_string(getpid()) + ".so";
  std::filesystem::create_directory(folder);
  CHECK(Contains(LoadError(folder), "is not a file"));
  std::filesystem::remove(folder);
  TemporaryFile empty("empty.so", ""), text("text.so", "#!/bin/sh\n");
  CHECK(Contains(LoadError(empty.path()), "it is not an ELF shared library"));
  CHECK(Contains(LoadError(text.path()), "it is not an ELF shared library"));
  CHECK(Contains(LoadError("kernels"), "ModuleLoadError: cannot load 'kernels': no loader for a file without suffix"));
  CHECK(Contains(LoadError("a.b/kernels"), "a file without suffix"));
  CHECK(Contains(LoadError("kernels.xyz"), "no loader for '.xyz'"));
  CHECK_EQ(LiveNodes("ffi.Module"), before);
  for (const char* again : {"plain", "needy", "damaged"}) {
    CHECK(Contains(LoadError(Fixture(again)), "ModuleLoadError"));
  }
}

TEST("a loader may be registered for another suffix") {
  Registry::Set("ffi.Module.load_from_file.table",
                PackedFunc([](Args args, RetValue* rv) { *rv = Table({{args[0].cast<std::string>(), 1}}); }));
  CHECK(Module::LoadFromFile("x.table").GetFunction("x.table") != nullptr);
  CHECK(Registry::Remove("ffi.Module.load_from_file.table"));
}

// ---- The reader of shared libraries -------------------------------------------------------------------------------

TEST("a library's functions and needs are read before it is mapped") {
  ElfFile elf = ReadElfFile(MappedFile(Fixture("generated")));
  CHECK(elf.Defines("__tvm_ffi_add_one") && elf.Defines("__tvm_ffi__library_ctx") && elf.Defines("__tvm_ffi_table"));
  CHECK(elf.Imports("TVMFFIErrorSetRaisedFromCStrParts"));
  CHECK(!elf.Imports("TVMFFIFunctionCall") && !elf.Defines("TVMFFIErrorSetRaisedFromCStrParts"));
  CHECK(!elf.Needs("libportcall.so"));
  CHECK(ReadElfFile(MappedFile(Fixture("needy"))).Imports("nobody_provides_this"));
}

namespace {

// The error for a file with other bytes at some places.
std::string ElfError(const std::string& content) {
  TemporaryFile file("patched.so", content);
  return Thrown([&] { ReadElfFile(MappedFile(file.path())); });
}
std::string Patched(std::string content, size_t at, const std::string& bytes) {
  return content.replace(at, bytes.size(), bytes);
}

}  // namespace

TEST("a library for another machine is refused by name") {
  std::string good = ReadFile(Fixture("plain"));
  CHECK_EQ(ElfError(good), "");
  if (sizeof(void*) == 8) {
    CHECK(Contains(ElfError(Patched(good, 4, "\1")), "it is a 32-bit library"));
  } else {
    CHECK(Contains(ElfError(Patched(good, 4, "\2")), "it is a 64-bit library"));
  }
  CHECK(Contains(ElfError(Patched(good, 5, "\2")), "it is a big-endian library"));
  const bool arm = kThisMachine == EM_ARM;
  CHECK(Contains(ElfError(Patched(good, 18, std::string(arm ? "\xF3\0" : "\x28\0", 2))),
                 arm ? "it is a library for RISC-V" : "it is a library for 32-bit Arm"));
  CHECK(Contains(ElfError(Patched(good, 18, std::string("\x08\0", 2))), "it is a library for machine 8"));
  CHECK(Contains(ElfError(Patched(good, 16, std::string("\1\0", 2))), "must be linked first"));
  const size_t sections = offsetof(ElfW(Ehdr), e_shnum);
  CHECK(Contains(ElfError(Patched(good, sections, std::string("\0\0", 2))),
                 "section headers are damaged or were stripped"));
}

TEST("a library that was cut short or altered gives an answer or ModuleLoadError, never a crash") {
  std::string good = ReadFile(Fixture("plain"));
  TemporaryFile file("altered.so", "");
  auto check = [&](const std::string& content) {
    file.Write(content);
    std::string error = Thrown([&] { ReadElfFile(MappedFile(file.path())); });
    CHECK(error.empty() || Contains(error, "ModuleLoadError: "));
  };
  for (size_t size = 0; size < good.size(); size += 1 + size / 20) check(good.substr(0, size));
  uint32_t seed = 1;
  for (int i = 0; i < 300; ++i) {
    std::string altered = good;
    for (int k = 0; k < 8; ++k) {
      seed = seed * 1664525 + 1013904223;
      // Half of them in the file header and the section headers, where it hurts.
      size_t at = k % 2 ? seed % good.size() : good.size() - 1 - (seed >> 8) % 2000;
      altered[at] = static_cast<char>(seed >> 24);
    }
    check(altered);
  }
}

// ---- Embedded modules ---------------------------------------------------------------------------------------------

namespace {

class BlobWriter {
 public:
  BlobWriter& U64(uint64_t value) {
    text_.append(reinterpret_cast<const char*>(&value), 8);
    return *this;
  }
  BlobWriter& Numbers(const std::vector<uint64_t>& values) {
    U64(values.size());
    for (uint64_t value : values) U64(value);
    return *this;
  }
  BlobWriter& Text(const std::string& text) {
    U64(text.size());
    text_ += text;
    return *this;
  }
  BlobWriter& Raw(const std::string& bytes) {
    text_ += bytes;
    return *this;
  }
  std::vector<EmbeddedModule> Modern() const { return DecodeEmbedded(text_.data(), text_.size(), false); }
  std::vector<EmbeddedModule> Classic() const { return DecodeEmbedded(text_.data(), text_.size(), true); }
  std::string ModernError() const {
    return Thrown([&] { Modern(); });
  }
  std::string ClassicError() const {
    return Thrown([&] { Classic(); });
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

constexpr const char* kCutShort =
    "ModuleLoadError: the modules embedded in the library are damaged: a length goes past the end";

}  // namespace

TEST("embedded modules are decoded with their payloads and imports") {
  BlobWriter blob;
  blob.Numbers({0, 2, 2, 2}).Numbers({1, 2}).Text("_lib").Text("cuda").Text("ptx").Text("x").Text("");
  auto modules = blob.Modern();
  CHECK_EQ(modules.size(), 3);
  CHECK(modules[0].kind == "_lib" && modules[0].imports == (std::vector<size_t>{1, 2}));
  CHECK(modules[1].kind == "cuda" && modules[1].payload == "ptx" && modules[1].imports.empty());
  CHECK(modules[2].kind == "x" && modules[2].payload.empty());
}

TEST("the root of embedded modules need not be the library") {
  auto modules = BlobWriter().Numbers({0, 1, 1}).Numbers({1}).Text("vm").Text("code").Text("_lib").Modern();
  CHECK(modules[0].kind == "vm" && modules[0].imports == std::vector<size_t>{1} && modules[1].kind == "_lib");
}

TEST("damaged embedded modules are refused") {
  CHECK_EQ(BlobWriter().ModernError(), kCutShort);
  CHECK_EQ(BlobWriter().U64(3).U64(0).ModernError(), kCutShort);
  CHECK_EQ(BlobWriter().U64(~uint64_t{0}).ModernError(), kCutShort);
  CHECK_EQ(BlobWriter().U64((uint64_t{1} << 61) + 1).U64(0).ModernError(), kCutShort);
  CHECK_EQ(BlobWriter().Numbers({}).Numbers({}).ModernError(), "ModuleLoadError: the library embeds no module");
  CHECK_EQ(BlobWriter().Numbers({0}).Numbers({}).ModernError(), "ModuleLoadError: the library embeds no module");
  CHECK_EQ(BlobWriter().Numbers({0, 0}).Numbers({}).ModernError(), kCutShort);
  CHECK_EQ(BlobWriter().Numbers({0, 0}).Numbers({}).U64(100).ModernError(), kCutShort);
  CHECK_EQ(BlobWriter().Numbers({0, 0}).Numbers({}).Text("cuda").ModernError(), kCutShort);
  auto tree = [](const std::vector<uint64_t>& rows, const std::vector<uint64_t>& children) {
    return BlobWriter().Numbers(rows).Numbers(children).Text("a").Text("").Text("b").Text("").ModernError();
  };
  CHECK_EQ(tree({0, 1, 1}, {1}), "");
  CHECK(Contains(tree({0, 2, 2}, {1}), "the import tree of the embedded modules is damaged"));
  CHECK(Contains(tree({1, 0, 0}, {1}), "is damaged"));
  CHECK(Contains(tree({0, 1, ~uint64_t{0}}, {1}), "is damaged"));
  CHECK(Contains(tree({0, 1, 1}, {2}), "names module 2 of 2"));
  CHECK(Contains(tree({0, 1, 1}, {0}), "has a cycle"));
  CHECK(Contains(tree({0, 1, 2}, {1, 0}), "has a cycle"));
  CHECK(Contains(BlobWriter().Numbers({0, 1, 1}).Numbers({1}).Text("_lib").Text("_lib").ModernError(),
                 "the library twice"));
}

TEST("a deep diamond of imports is decoded in no time") {
  // Each module imports the next one twice: 2^60 ways to the last.
  BlobWriter writer;
  std::vector<uint64_t> rows{0}, children;
  for (uint64_t i = 0; i < 60; ++i) {
    if (i < 59) children.insert(children.end(), {i + 1, i + 1});
    rows.push_back(children.size());
  }
  writer.Numbers(rows).Numbers(children);
  for (int i = 0; i < 60; ++i) writer.Text("x").Text("");
  CHECK_EQ(writer.Modern().size(), 60);
}

TEST("classic kernels end where their own numbers say, with tags and without") {
  for (bool tagged : {false, true}) {
    BlobWriter kernels;
    kernels.Text("cl").U64(2);
    for (const char* name : {"f", "g"}) {
      kernels.Text(name).Text(name).U64(2).Raw("typetype").U64(1).Text("blockIdx.x");
      if (tagged) kernels.U64(2).Raw(std::string(8, '\0'));
    }
    kernels.Text("the code");
    BlobWriter blob;
    blob.U64(4).Text("_lib").Text("opencl").Raw(kernels.text()).Text("cuda").Raw(kernels.text());
    blob.Text("_import_tree").Numbers({0, 1, 2, 2}).Numbers({1, 2});
    auto modules = blob.Classic();
    CHECK(modules.size() == 3 && modules[0].imports == std::vector<size_t>{1});
    CHECK(modules[1].kind == "opencl" && modules[1].imports == std::vector<size_t>{2});
    CHECK_EQ(modules[1].payload, kernels.text());
    CHECK_EQ(modules[2].payload, kernels.text());
    BlobWriter last;  // of TVM 0.6, without a tree
    last.U64(1).Text("cuda").Raw(kernels.text());
    CHECK_EQ(last.Classic()[1].payload, kernels.text());
  }
  BlobWriter damaged;
  damaged.U64(1).Text("cuda").Raw("all that follows");
  CHECK_EQ(damaged.Classic()[1].payload, "all that follows");
}

TEST("a classic graph ends where its own numbers say") {
  BlobWriter graph;  // json, two tensors, their names, mark, reserved and device; axes; type and extents; size and data
  graph.Text("{}").U64(2).U64(2).Text("w").Text("b");
  graph.Raw(std::string(24, 'h')).Raw(std::string("\1\0\0\0", 4)).Raw("typeextents_").Text("data");
  graph.Raw(std::string(24, 'h')).Raw(std::string("\0\0\0\0", 4)).Raw("type").Text("");
  graph.Text("default");
  BlobWriter blob;
  blob.U64(4).Text("GraphExecutorFactory").Raw(graph.text()).Text("_lib").Text("_import_tree");
  blob.Numbers({0, 1, 1}).Numbers({1});
  auto modules = blob.Classic();
  CHECK(modules.size() == 2 && modules[0].imports == std::vector<size_t>{1} && modules[1].kind == "_lib");
  CHECK_EQ(modules[0].payload, graph.text());
  BlobWriter old;
  old.U64(2).Text("GraphRuntimeFactory").Raw(graph.text()).Text("cuda").Raw("all that follows");
  modules = old.Classic();
  CHECK(modules.size() == 3 && modules[0].imports == std::vector<size_t>{1} && modules[1].kind == "_lib");
  CHECK(modules[1].imports == std::vector<size_t>{2} && modules[2].payload == "all that follows");
  for (size_t size = 0; size + 1 < graph.text().size(); ++size) {
    BlobWriter part;
    part.U64(1).Text("GraphExecutorFactory").Raw(graph.text().substr(0, size));
    CHECK_EQ(part.ClassicError(), kCutShort);
  }
}

TEST("classic embedded modules are decoded as far as their payloads allow") {
  auto modules = BlobWriter().U64(2).Text("_lib").Text("_import_tree").Numbers({0, 0}).Numbers({}).Classic();
  CHECK(modules.size() == 1 && modules[0].kind == "_lib");
  modules = BlobWriter().U64(3).Text("_lib").Text("cuda").Text("payload and all that follows").Classic();
  CHECK(modules.size() == 2 && modules[0].kind == "_lib" && modules[0].imports == std::vector<size_t>{1});
  CHECK_EQ(modules[1].payload.size(), 36);
  modules = BlobWriter().U64(1).Text("cuda").Classic();
  CHECK(modules.size() == 2 && modules[0].kind == "_lib" && modules[1].kind == "cuda");
  CHECK_EQ(BlobWriter().U64(0).Classic().size(), 1);
  CHECK_EQ(BlobWriter().U64(1).Text("_import_tree").Numbers({0}).Numbers({}).ClassicError(),
           "ModuleLoadError: the library embeds no module");
  CHECK(Contains(BlobWriter().U64(2).Text("_lib").Text("_import_tree").Numbers({0}).Numbers({}).ClassicError(),
                 "is damaged"));
  CHECK_EQ(BlobWriter().U64(1).U64(99).ClassicError(), kCutShort);
}

TEST("an embedded module of an unknown kind is kept, with its bytes, and reported") {
  Module root = Load("embedded");
  CHECK_EQ(root.kind(), "test_root");
  CHECK(!Registry::Get("portcall.ModuleIsRunnable")(root).cast<bool>());
  CHECK_EQ(Registry::Get("ffi.ModuleInspectSource")(root, "").cast<Bytes>().view(), "payload");
  CHECK(Contains(Thrown([&] { Registry::Get("ffi.ModuleInspectSource")(root, "ptx"); }), "no source as ptx"));
  auto imports = root.imports();
  CHECK_EQ(imports.size(), 1);
  CHECK_EQ(imports[0].kind(), "library");
  CHECK(Load("embedded").same_as(root));
  // The context of the library's code is the library's own module, not the root.
  void* context = root.GetFunction("has_context", true)();
  CHECK(context == imports[0].get());
  CHECK(root.GetFunction("has_context") == nullptr);
}

TEST("an embedded module is made by the loader of its kind") {
  int64_t before = LiveNodes("ffi.Module");
  Registry::Set("ffi.Module.load_from_bytes.test_root", PackedFunc([](Args args, RetValue* rv) {
                  *rv = Table({{args[0].cast<Bytes>().view() == "payload" ? "right" : "wrong", 5}});
                }));
  {
    Module root = Load("embedded");
    CHECK_EQ(root.kind(), "table");
    CHECK_EQ(root.GetFunction("right")().cast<int>(), 5);
    CHECK(root.GetFunction("has_context", true) != nullptr);
  }
  Registry::Set("ffi.Module.load_from_bytes.test_root",
                PackedFunc([](Args, RetValue*) { PORTCALL_THROW(ValueError) << "not this one"; }), true);
  CHECK(Contains(LoadError(Fixture("embedded")), "ValueError: not this one"));
  CHECK(Registry::Remove("ffi.Module.load_from_bytes.test_root"));
  CHECK_EQ(LiveNodes("ffi.Module"), before);
}

TEST("code that outlives its root module keeps its context when the library is loaded again") {
  PackedFunc context = Load("embedded").GetFunction("has_context", true);
  void* before = context();
  {
    Module again = Load("embedded");
  }
  CHECK(context().cast<void*>() == before);
}

// ---- Imports ------------------------------------------------------------------------------------------------------

TEST("functions of imports are found when they are asked for, depth first") {
  Module root = Table({{"own", 1}}), left = Table({{"both", 2}}), right = Table({{"both", 3}, {"right", 4}});
  Module below = Table({{"right", 5}, {"below", 6}});
  root.Import(left);
  root.Import(right);
  left.Import(below);
  CHECK_EQ(root.imports().size(), 2);
  CHECK_EQ(root.GetFunction("own")().cast<int>(), 1);
  CHECK(root.GetFunction("both") == nullptr);
  CHECK_EQ(root.GetFunction("both", true)().cast<int>(), 2);
  CHECK_EQ(root.GetFunction("right", true)().cast<int>(), 5);
  CHECK_EQ(root.GetFunction("below", true)().cast<int>(), 6);
  CHECK(root.GetFunction("nobody", true) == nullptr);
}

TEST("a module cannot import itself, not even through others") {
  Module a = Table({}), b = Table({}), c = Table({});
  a.Import(b);
  b.Import(c);
  for (const Module& end : {a, b, c}) {
    CHECK(Contains(Thrown([&, e = end] { c.Import(e); }), "ValueError: a module cannot import itself"));
  }
  a.Import(c);  // twice reached, but no cycle
  CHECK(Contains(Thrown([&] { a.Import(Module()); }), "TypeError: the module is None"));
  CHECK(Contains(Thrown([&] { Module().Import(a); }), "ValueError: the module is None"));
}

TEST("a name is looked for once in each module, however many ways lead there") {
  std::vector<Module> chain;
  for (int i = 0; i < 60; ++i) chain.push_back(Table({}));
  for (size_t i = chain.size() - 1; i > 0; --i) {
    chain[i - 1].Import(chain[i]);
    chain[i - 1].Import(chain[i]);
  }
  CHECK(chain[0].GetFunction("nobody", true) == nullptr);
}

TEST("the module of another runtime is refused") {
  TVMFFIObject foreign{kWeakOne | kStrongOne, kTVMFFIModule, 0, nullptr};
  ObjectRef ref = ObjectRef::Steal(&foreign);
  for (const char* name : {"ffi.ModuleGetKind", "ffi.ModuleImports", "portcall.ModuleEntryName"}) {
    CHECK_EQ(Thrown([&] { Registry::Get(name)(ref); }),
             "TypeError: this module belongs to another runtime of the process");
  }
}

#ifndef PORTCALL_TEST_STATIC_CXX  // an exception leaves no library that has a C++ runtime of its own
TEST("a module without source says so") {
  CHECK_EQ(Thrown([] { Registry::Get("ffi.ModuleInspectSource")(Table({}), "c"); }),
           "ValueError: a module of type 'table' has no source as c");
}
#endif

// ---- Code linked into the program ---------------------------------------------------------------------------------

namespace {

int SystemAnswer(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  *result = Any(42).release();
  return 0;
}
int SystemOther(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  *result = Any(43).release();
  return 0;
}
void* system_context;

void RegisterSystemLibrary() {
  static const bool once = [] {
    auto add = [](const char* name, void* address) { CHECK_EQ(TVMFFIEnvModRegisterSystemLibSymbol(name, address), 0); };
    add("__tvm_ffi_tm_answer", reinterpret_cast<void*>(SystemAnswer));
    add("__tvm_ffi_tm_again", reinterpret_cast<void*>(SystemOther));
    add("__tvm_ffi_tm_again", reinterpret_cast<void*>(SystemAnswer));  // replaced
    add("__tvm_ffi_tm_only", reinterpret_cast<void*>(SystemOther));
    add("tm___tvm_ffi__library_ctx", &system_context);
    return true;
  }();
  (void)once;
}

}  // namespace

TEST("functions linked into the program are found under their prefix, with and without it") {
  RegisterSystemLibrary();
  Module lib = Registry::Get("ffi.SystemLib")("tm_");
  CHECK_EQ(lib.kind(), "system_lib");
  CHECK_EQ(lib.GetFunction("answer")().cast<int>(), 42);
  CHECK_EQ(lib.GetFunction("tm_answer")().cast<int>(), 42);
  CHECK_EQ(lib.GetFunction("again")().cast<int>(), 42);
  CHECK(lib.GetFunction("nobody") == nullptr);
  CHECK(lib.GetFunction("__tvm_ffi__library_ctx") == nullptr);
  CHECK(Registry::Get("ffi.SystemLib")("tm_").cast<Module>().same_as(lib));
  CHECK(system_context == lib.get());
  auto names = Registry::Get("portcall.ModuleFunctionNames")(lib).cast<std::vector<std::string>>();
  CHECK((names == std::vector<std::string>{"tm_again", "tm_answer", "tm_only"}));
  PackedFunc answer = lib.GetFunction("answer");
  PortcallFunctionInfo info{};
  PortcallFunctionGetInfo(answer.get(), &info);
  CHECK_EQ(info.flags, kPortcallFunctionLibrary | kPortcallFunctionGenerated);
}

TEST("of many threads that ask first for a system library all get the one whose context is filled") {
  static void* context;
  CHECK_EQ(TVMFFIEnvModRegisterSystemLibSymbol("tmrace___tvm_ffi__library_ctx", &context), 0);
  std::vector<Module> modules(8);
  std::vector<std::thread> threads;
  for (Module& module : modules) {
    threads.emplace_back([&module] { module = Registry::Get("ffi.SystemLib")("tmrace_").cast<Module>(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Module& module : modules) CHECK(module.get() == context);
}
