// SPDX-License-Identifier: Apache-2.0
#include "loader/embedded.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "bytes/cursor.h"
#include "portcall/c_api.h"
#include "portcall/error.h"

namespace portcall::loader {
namespace {

class EmbeddedReader : public bytes::Cursor<EmbeddedReader> {
 public:
  EmbeddedReader(const char* data, size_t size) : Cursor({data, size}) {}

  [[noreturn]] void FailShort(const char*, uint64_t) const {
    PORTCALL_THROW(ModuleLoadError) << "the modules embedded in the library are damaged: a length goes past the end";
  }
  std::string_view Text() { return Bytes(Take<uint64_t>()); }
  template <typename T = uint64_t> std::vector<T> Numbers() {
    auto count = Take<uint64_t>();
    if (!CanHold(count, sizeof(T))) FailShort("", count);
    std::vector<T> numbers;
    for (uint64_t i = 0; i < count; ++i) numbers.push_back(Take<T>());
    return numbers;
  }
  std::string_view Rest() { return Bytes(left()); }

  // Kernels of a device: portcall/payload.h has the layout. Those of TVM 0.21 alone have tags. Nothing is read where
  // nothing sensible follows either reading.
  std::optional<std::string_view> Kernels() {
    const size_t start = at_;
    for (bool tagged : {true, false}) {
      at_ = start;
      try {
        SkipKernels(tagged);
        const size_t end = at_;
        const std::string_view next = left() ? Text() : "end";
        at_ = end;
        const bool begins_as_a_kind = !next.empty() && next[0] >= 'A' && next[0] <= 'z';
        if (begins_as_a_kind && next.size() <= kLongestKind) return bytes_.substr(start, end - start);
      } catch (const Error&) {
      }
    }
    at_ = start;
    return std::nullopt;
  }

  // A graph with its parameters, as compilers embedded it: json, count, names, as many tensors, a name.
  std::string_view GraphFactory() {
    const size_t start = at_;
    Text();
    auto tensors = Take<uint64_t>();
    for (auto names = Take<uint64_t>(); names > 0; --names) Text();
    for (; tensors > 0; --tensors) {
      Bytes(8 + 8 + 4 + 4);  // mark, reserved, device
      uint64_t ndim = Take<uint32_t>();
      Bytes(4 + 8 * ndim);  // element type, extents
      Text();               // size and data
    }
    Text();
    return bytes_.substr(start, at_ - start);
  }

 private:
  static constexpr size_t kLongestKind = 64;

  void SkipKernels(bool tagged) {
    Text();  // what the code is
    for (auto kernels = Take<uint64_t>(); kernels > 0; --kernels) {
      Text();
      Text();  // the name, twice
      const auto arguments = Take<uint64_t>();
      PORTCALL_CHECK(CanHold(arguments, sizeof(DLDataType)), ModuleLoadError) << "too many arguments";
      Bytes(arguments * sizeof(DLDataType));
      for (auto parameters = Take<uint64_t>(); parameters > 0; --parameters) Text();
      if (tagged && Numbers<uint32_t>().size() != arguments) FailShort("", 0);
    }
    Text();  // the code
  }
};

// Imports by compressed rows: those of module i are children[rows[i] .. rows[i + 1]].
void Connect(std::vector<EmbeddedModule>* modules, const std::vector<uint64_t>& rows,
             const std::vector<uint64_t>& children) {
  size_t n = modules->size();
  PORTCALL_CHECK(n > 0, ModuleLoadError) << "the library embeds no module";
  PORTCALL_CHECK(rows.size() == n + 1, ModuleLoadError) << "the import tree of the embedded modules is damaged";
  for (size_t i = 0; i < n; ++i) {
    PORTCALL_CHECK(rows[i] <= rows[i + 1] && rows[i + 1] <= children.size(), ModuleLoadError)
        << "the import tree of the embedded modules is damaged";
    for (uint64_t k = rows[i]; k < rows[i + 1]; ++k) {
      PORTCALL_CHECK(children[k] < n, ModuleLoadError)
          << "the import tree of the embedded modules names module " << children[k] << " of " << n;
      (*modules)[i].imports.push_back(children[k]);
    }
  }
}

// Modules that are not imported go first, then those that only they import, and so on: a cycle never gets its turn.
void CheckNoCycle(const std::vector<EmbeddedModule>& modules) {
  std::vector<size_t> importers(modules.size(), 0), ready;
  for (const EmbeddedModule& module : modules) {
    for (size_t import : module.imports) ++importers[import];
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    if (importers[i] == 0) ready.push_back(i);
  }
  size_t done = 0;
  for (; done < ready.size(); ++done) {
    for (size_t import : modules[ready[done]].imports) {
      if (--importers[import] == 0) ready.push_back(import);
    }
  }
  PORTCALL_CHECK(done == modules.size(), ModuleLoadError) << "the import tree of the embedded modules has a cycle";
}

std::vector<EmbeddedModule> DecodeModern(EmbeddedReader reader) {
  std::vector<uint64_t> rows = reader.Numbers();
  std::vector<uint64_t> children = reader.Numbers();
  std::vector<EmbeddedModule> modules;
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    EmbeddedModule module{std::string(reader.Text()), {}, {}};
    if (module.kind != kLibraryKind) module.payload = reader.Text();
    modules.push_back(std::move(module));
  }
  Connect(&modules, rows, children);
  return modules;
}

bool IsGraphFactory(const std::string& kind) { return kind == "GraphExecutorFactory" || kind == "GraphRuntimeFactory"; }

bool HoldsKernels(const std::string& kind) {
  return kind == "opencl" || kind == "cuda" || kind == "hip" || kind == "hsaco";
}

// Payloads have no length. Those of graphs and of kernels end by themselves; any other takes all that follows, and is kept
// as an import.
std::vector<EmbeddedModule> DecodeClassic(EmbeddedReader reader) {
  std::vector<EmbeddedModule> modules;
  uint64_t count = reader.Take<uint64_t>();
  for (uint64_t i = 0; i < count && reader.left(); ++i) {
    std::string key(reader.Text());
    if (key == "_import_tree") {
      std::vector<uint64_t> rows = reader.Numbers();
      Connect(&modules, rows, reader.Numbers());
      return modules;
    }
    std::string_view payload;
    if (IsGraphFactory(key)) {
      payload = reader.GraphFactory();
    } else if (key != kLibraryKind) {
      auto kernels = HoldsKernels(key) ? reader.Kernels() : std::nullopt;
      payload = kernels ? *kernels : reader.Rest();
    }
    modules.push_back({std::move(key), payload, {}});
  }
  // No tree was reached: the library imports whatever there is, and a graph, which comes first, the library.
  std::vector<EmbeddedModule> flat;
  size_t graphs = !modules.empty() && IsGraphFactory(modules[0].kind);
  if (graphs) flat.push_back({modules[0].kind, modules[0].payload, {1}});
  flat.push_back({kLibraryKind, {}, {}});
  for (size_t i = graphs; i < modules.size(); ++i) {
    if (modules[i].kind == kLibraryKind) continue;
    flat[graphs].imports.push_back(flat.size());
    flat.push_back(std::move(modules[i]));
  }
  return flat;
}

}  // namespace

std::vector<EmbeddedModule> DecodeEmbedded(const char* data, size_t nbytes, bool classic) {
  EmbeddedReader reader(data, nbytes);
  std::vector<EmbeddedModule> modules = classic ? DecodeClassic(reader) : DecodeModern(reader);
  auto is_library = [](const EmbeddedModule& module) { return module.kind == kLibraryKind; };
  PORTCALL_CHECK(std::count_if(modules.begin(), modules.end(), is_library) <= 1, ModuleLoadError)
      << "the import tree of the embedded modules has the library twice";
  CheckNoCycle(modules);
  return modules;
}

}  // namespace portcall::loader
