// SPDX-License-Identifier: Apache-2.0
#include "session/linkage.h"

#include <dlfcn.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "loader/elf_file.h"
#include "portcall/error.h"
#include "session/descriptor.h"
#include "session/machine.h"
#include "session/text.h"

namespace portcall::session {
namespace {

using loader::ElfFile;
using loader::MappedFile;

constexpr size_t kMostFiles = 1024;

// Calls use(file, what it says of itself) for a library for this machine; false for any other file.
template <typename Use> bool Read(const std::string& path, bool symbols, Use use) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  try {
    const MappedFile file(path);
    use(file, loader::ReadElfFile(file, symbols));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// ---- Where the linker looks -----------------------------------------------------------------------------------------

std::string ContentOf(const char* path) {
  std::string text;
  Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  char piece[4096];
  for (ssize_t n; file && (n = read(file.get(), piece, sizeof(piece))) > 0;) text.append(piece, static_cast<size_t>(n));
  return text;
}

// The folders that a file like ld.so.conf lists; its "include" lines are followed one level deep.
void AddConfigured(const char* path, bool includes, Names* folders) {
  for (const std::string& line : Split(ContentOf(path), "\n")) {
    const Names words = Split(line.substr(0, line.find('#')), " \t\r");
    if (words.empty()) continue;
    if (words[0] != "include") {
      folders->push_back(words[0]);
    } else if (includes && words.size() > 1) {
      const std::string pattern = words[1][0] == '/' ? words[1] : "/etc/" + words[1];
      glob_t found{};
      if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; ++i) AddConfigured(found.gl_pathv[i], false, folders);
      }
      globfree(&found);
    }
  }
}

Names DefaultFolders() {
  const char* variable = std::getenv("LD_LIBRARY_PATH");
  Names folders = Split(variable ? variable : "", ":");
#ifdef __GLIBC__
  AddConfigured("/etc/ld.so.conf", true, &folders);
  for (const char* parent : {"/lib/", "/usr/lib/"}) folders.push_back(parent + Target());
  folders.insert(folders.end(), {"/lib64", "/usr/lib64", "/lib", "/usr/lib"});
#elif defined(__ANDROID__)
  folders.push_back(sizeof(void*) == 8 ? "/system/lib64" : "/system/lib");
#else
  for (std::string& folder : Split(ContentOf(("/etc/ld-musl-" + MachineName() + ".path").c_str()), ":\n")) {
    folders.push_back(std::move(folder));
  }
  folders.insert(folders.end(), {"/lib", "/usr/local/lib", "/usr/lib"});
#endif
  return folders;
}

Names FoldersOf(const std::string& folder, const Names& runpath, const Names& others) {
  Names folders;
  for (std::string path : runpath) {
    for (const char* origin : {"${ORIGIN}", "$ORIGIN"}) {
      for (size_t at; (at = path.find(origin)) != std::string::npos;) path.replace(at, std::strlen(origin), folder);
    }
    for (std::string& one : Split(path, ":")) folders.push_back(std::move(one));
  }
  folders.insert(folders.end(), others.begin(), others.end());
  return folders;
}

void EraseDefined(const std::string& path, std::set<std::string>* left) {
  Read(path, true, [&](const MappedFile&, const ElfFile& elf) {
    for (const auto* defined : {&elf.functions, &elf.objects}) {
      for (const std::string& name : *defined) left->erase(name);
    }
  });
}

// Keeps what this process has loaded under a library's name, while it is looked at.
class Loaded {
 public:
  explicit Loaded(const char* name)
      : handle_(name && (!*name || std::strchr(name, '/')) ? nullptr : dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {}
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  ~Loaded() {
    if (handle_) dlclose(handle_);
  }
  explicit operator bool() const { return handle_; }
  void EraseDefined(std::set<std::string>* left) const {
    for (auto at = left->begin(); handle_ && at != left->end();) {
      at = dlsym(handle_, at->c_str()) ? left->erase(at) : std::next(at);
    }
  }

 private:
  void* handle_;
};

}  // namespace

Linkage::Linkage(const std::string& folder, const Names& needed, const Names& runpath, const Beside& beside)
    : beside_(beside), needed_(needed) {
  struct Asked {
    Names names, folders;
    std::string asker;
  };
  const Names others = DefaultFolders();
  for (const std::string& name : needed) found_.emplace(name, "");
  std::deque<Asked> left = {{needed, FoldersOf(folder, runpath, others), "it"}};
  for (; !left.empty(); left.pop_front()) {  // in the order of the dynamic linker
    const Asked asked = std::move(left.front());
    for (const std::string& name : asked.names) {
      Place place{};
      const std::string path = Find(name, asked.folders, &place);
      const bool loaded(Loaded(name.c_str()));
      if (const auto own = found_.find(name); own != found_.end() && own->second.empty()) own->second = path;
      if (path.empty()) {
        if (!loaded) not_found_.emplace(name, asked.asker);
      } else if (opened_.size() < kMostFiles && opened_.emplace(place, path).second && !loaded) {
        Read(path, false, [&](const MappedFile& file, const ElfFile& elf) {
          const Names runpath = {loader::ReadLinkerFacts(file).runpath};
          left.push_back({elf.needed, FoldersOf(path.substr(0, path.rfind('/')), runpath, others), name});
        });
      }
    }
  }
}

// Returns the first file of that name that is for this machine, as the linker passes over others; empty for none.
std::string Linkage::Find(const std::string& name, const Names& folders, Place* place) const {
  Names places;
  if (name.find('/') != std::string::npos) places.push_back(name);
  else if (!name.empty())
    for (const std::string& folder : folders) places.push_back(std::string(folder).append("/").append(name));
  if (beside_.place_of.defined()) places.push_back("");  // asked last: looking for packages takes long
  for (std::string& path : places) {
    if (path.empty()) path = beside_.place_of(name).cast<std::string>();
    const auto note = [&](const MappedFile& file, const ElfFile&) {
      *place = {file.info().st_dev, file.info().st_ino};
    };
    if (Read(path, false, note)) return path;
  }
  return {};
}

std::set<std::string> Linkage::Without(const Names& symbols) const {
  std::set<std::string> left = WithoutRuntime(symbols, beside_);
  for (const std::string& name : needed_) Loaded(name.c_str()).EraseDefined(&left);
  for (const auto& [place, path] : opened_) {
    if (left.empty()) break;
    EraseDefined(path, &left);
  }
  return left;
}

std::set<std::string> Linkage::VersionGap(const std::string& library, const Names& versions) const {
  std::set<std::string> left(versions.begin(), versions.end());
  for (const auto& [place, path] : opened_) {
    loader::LinkerFacts facts;
    Read(path, false, [&](const MappedFile& file, const ElfFile&) { facts = loader::ReadLinkerFacts(file); });
    if (facts.soname.empty()) facts.soname = path.substr(path.rfind('/') + 1);
    if (facts.soname != library) continue;
    for (const std::string& version : facts.versions) left.erase(version);
    return left;
  }
  return {};
}

std::set<std::string> WithoutRuntime(const Names& symbols, const Beside& beside) {
  std::set<std::string> left(symbols.begin(), symbols.end());
  for (const char* name : {static_cast<const char*>(nullptr), "libportcall.so"}) Loaded(name).EraseDefined(&left);
  const auto objects = left.lower_bound("Portcall");
  if (objects != left.end() && objects->compare(0, 8, "Portcall") == 0) EraseDefined(beside.objects_library, &left);
  return left;
}

}  // namespace portcall::session
