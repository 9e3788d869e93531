// SPDX-License-Identifier: Apache-2.0
// The global functions that load modules.
#include <string>

#include "loader/library_module.h"

namespace portcall::loader {
namespace {

std::string SuffixOf(const std::string& path) {  // without its dot; ".profile" has none
  size_t name = path.rfind('/') + 1, dot = path.rfind('.');
  return dot == path.npos || dot <= name ? "" : path.substr(dot + 1);
}

Module LoadFromFile(const std::string& path) {
  PORTCALL_CHECK(path.find('\0') == std::string::npos, ModuleLoadError) << "a path cannot have a NUL in it";
  std::string suffix = SuffixOf(path);
  bool library = suffix == "so" || suffix == "dll" || suffix == "dylib" || suffix == "dso";
  if (!library && path.find(".so.") != std::string::npos) library = true;  // libfoo.so.1.2
  if (library) return LoadLibrary(path);
  PackedFunc load = Registry::Get("ffi.Module.load_from_file." + suffix);
  PORTCALL_CHECK(load.defined(), ModuleLoadError)
      << "cannot load '" << path << "': no loader for "
      << (suffix.empty() ? "a file without suffix" : "'." + suffix + "'") << "; a shared library ends in .so";
  return load(path).cast<Module>();
}

PORTCALL_REGISTER_GLOBAL("ffi.ModuleLoadFromFile").set_body_typed(LoadFromFile);
void GiveSystemLibrary(Args args, RetValue* rv) {
  *rv = SystemLibrary(args.size() > 0 ? args[0].cast<std::string>() : std::string());
}
PORTCALL_REGISTER_GLOBAL("ffi.SystemLib").set_body(GiveSystemLibrary);
PORTCALL_REGISTER_GLOBAL("runtime.SystemLib").set_body(GiveSystemLibrary);  // as TVM names it

}  // namespace
}  // namespace portcall::loader
