// SPDX-License-Identifier: Apache-2.0
#include "session/needs.h"

#include <dlfcn.h>
#include <sys/types.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "portcall/container.h"
#include "portcall/function.h"
#include "session/json.h"
#include "session/machine.h"
#include "session/text.h"

namespace portcall::session {
namespace {

// Limits of a question: libraries, names, bytes.
constexpr size_t kMostLibraries = 256, kMostNames = 100'000, kMostFacts = 1 << 24;
constexpr const char* kByteOrder = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "little" : "big";

Names NamesIn(const Json& facts, const char* name, size_t most) {
  Names names;
  for (const Json& item : facts.At(name, "the needs").List(name)) names.push_back(item.Text(name));
  PORTCALL_CHECK(names.size() <= most, ValueError)
      << "'" << name << "' has " << names.size() << " names (limit " << most << ")";
  return names;
}

template <typename List> std::string QuotedList(const List& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + Quoted(name);
  return "[" + text + "]";
}

bool IsForThis(const Json& needs) {
  const Json& build = needs.At("build", "the needs");
  return build.At("machine", "'build'").Text("'machine'") == MachineName() &&
         build.At("bits", "'build'").Integer("'bits'") == 8 * sizeof(void*) &&
         build.At("byte_order", "'build'").Text("'byte_order'") == kByteOrder;
}

// The variables of a library that the loader does not fill.
Names UnknownContexts(const Names& contexts) {
  Names unknown;
  const auto known = Registry::GetRequired("portcall.loader.ContextNames")().cast<std::vector<std::string>>();
  for (const std::string& name : contexts) {
    bool found = false;
    for (const std::string& other : known) found |= name == other;
    if (!found) unknown.push_back(name);
  }
  return unknown;
}

// What of a library's needs is not here; files are read, never loaded.
std::string Unmet(const std::string& folder, const Json& needs, const Beside& beside, bool places) {
  needs.At("abi", "the needs").Text("'abi'");
  const Names needed = NamesIn(needs, "needed", kMostLibraries), runpath = NamesIn(needs, "runpath", kMostLibraries);
  const Names contexts = NamesIn(needs, "contexts", kMostNames), symbols = NamesIn(needs, "symbols", kMostNames);
  const auto& versions = needs.At("versions", "the needs").Object("'versions'");
  PORTCALL_CHECK(versions.size() <= 2 * kMostLibraries, ValueError) << "'versions' has too many names";
  std::string libraries, gaps, lacking, found;
  if (IsForThis(needs)) {
    const Linkage linkage(folder, needed, runpath, beside);
    for (const auto& [name, path] : linkage.found()) {
      found += (found.empty() ? "" : ", ") + Quoted(name) + ": " + Quoted(path);
    }
    for (const auto& [name, asker] : linkage.not_found()) {
      libraries += (libraries.empty() ? "" : ", ") + Quoted(name) + ": " + Quoted(asker);
    }
    for (size_t i = 0; i < versions.size(); i += 2) {
      const std::string& library = versions[i].Text("a library");
      const std::set<std::string> gap =
          linkage.VersionGap(library, NamesIn(*needs.Find("versions", ""), library.c_str(), kMostNames));
      if (!gap.empty()) gaps += (gaps.empty() ? "" : ", ") + Quoted(library) + ": " + QuotedList(gap);
    }
    lacking = QuotedList(linkage.Without(symbols));
  } else {  // of the symbols only those count that the runtime should have
    Names calls;
    for (const std::string& name : symbols) {
      if (name.compare(0, 3, "TVM") == 0 || name.compare(0, 8, "Portcall") == 0) calls.push_back(name);
    }
    lacking = QuotedList(WithoutRuntime(calls, beside));
  }
  return "{\"libraries\": {" + libraries + "}, \"versions\": {" + gaps +
         "}, \"contexts\": " + QuotedList(UnknownContexts(contexts)) + ", \"symbols\": " + lacking +
         (places ? ", \"found\": {" + found + "}}" : "}");
}

}  // namespace

std::string DescribeMachine(const std::string& folder, std::string_view needs, const Beside& beside, bool places) {
  PORTCALL_CHECK(needs.size() <= kMostFacts, ValueError)
      << needs.size() << " bytes of facts are too many (limit " << kMostFacts << ")";
#ifdef __GLIBC__
  const char *libc = "glibc", *version = gnu_get_libc_version();
#elif defined(__ANDROID__)
  const char *libc = "bionic", *version = "";
#else
  const char *libc = "musl", *version = "";
#endif
  std::string text =
      "{\"machine\": {\"build\": {\"machine\": " + Quoted(MachineName()) +
      ", \"bits\": " + std::to_string(8 * sizeof(void*)) + ", \"byte_order\": " + Quoted(kByteOrder) +
      "}, \"system\": \"linux\", \"libc\": " + Quoted(libc) + ", \"libc_version\": " + Quoted(version) +
      ", \"target\": " + Quoted(Target()) + ", \"portcall\": " + Quoted(PORTCALL_VERSION) +
      ", \"abis\": " + (dlopen(nullptr, RTLD_LAZY) ? "[\"modern\", \"modern 0.21\", \"classic\"]" : "[]") + "}";
  if (!needs.empty()) text += ", \"unmet\": " + Unmet(folder, Json::Parse(needs), beside, places);
  return text + "}";
}

}  // namespace portcall::session
