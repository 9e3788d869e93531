// SPDX-License-Identifier: Apache-2.0
#include "session/linkage.h"

#include <dlfcn.h>
#include <elf.h>
#include <glob.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "session/descriptor.h"
#include "session/machine.h"

namespace portcall::session {
namespace {

constexpr size_t kMostFiles = 1024, kMostNames = 1 << 20;

// A shared library for this machine, mapped. Of any other file the constructor makes one without sections.
class Library {
 public:
  explicit Library(const std::string& path) {
    Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat facts{};
    if (!file || fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size <= 0) return;
    void* mapped = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapped == MAP_FAILED) return;
    data_ = static_cast<const char*>(mapped);
    size_ = static_cast<size_t>(facts.st_size);
    device_ = facts.st_dev;
    number_ = facts.st_ino;
    const auto* header = At<ElfW(Ehdr)>(0);
    constexpr uint8_t kClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != kClass) return;
    if (header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_machine != kThisMachine) return;
    sections_ = At<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
    count_ = sections_ ? header->e_shnum : 0;
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (data_) munmap(const_cast<char*>(data_), size_);
  }

  explicit operator bool() const { return count_ > 0; }
  uint64_t device() const { return device_; }
  uint64_t number() const { return number_; }

  // Texts of the dynamic section's entries with a tag: DT_NEEDED, DT_SONAME, DT_RUNPATH.
  Names Texts(int64_t tag) const {
    Names found;
    const ElfW(Shdr)* section = Section(SHT_DYNAMIC);
    const size_t count = section ? section->sh_size / sizeof(ElfW(Dyn)) : 0;
    const auto* entries = section ? At<ElfW(Dyn)>(section->sh_offset, count) : nullptr;
    for (size_t i = 0; entries && i < count && found.size() < kMostFiles; ++i) {
      if (entries[i].d_tag == DT_NULL) break;
      if (entries[i].d_tag == tag) found.push_back(Text(*section, entries[i].d_un.d_val));
    }
    return found;
  }

  // Takes the names that it defines out of `left`.
  void EraseDefined(std::set<std::string>* left) const {
    const ElfW(Shdr)* section = Section(SHT_DYNSYM);
    const size_t count = section ? std::min(section->sh_size / sizeof(ElfW(Sym)), kMostNames) : 0;
    const auto* symbols = section ? At<ElfW(Sym)>(section->sh_offset, count) : nullptr;
    for (size_t i = 1; symbols && i < count && !left->empty(); ++i) {
      if (symbols[i].st_shndx != SHN_UNDEF) left->erase(Text(*section, symbols[i].st_name));
    }
  }

  // Takes the versions that its symbols have out of `left`.
  void EraseVersions(std::set<std::string>* left) const {
    const ElfW(Shdr)* section = Section(SHT_GNU_verdef);
    uint64_t at = section ? section->sh_offset : 0;
    for (size_t i = 0; section && i < kMostFiles; ++i) {
      const auto* version = At<ElfW(Verdef)>(at);
      const auto* name = version ? At<ElfW(Verdaux)>(at + version->vd_aux) : nullptr;
      if (!name) return;
      left->erase(Text(*section, name->vda_name));
      if (!version->vd_next) return;
      at += version->vd_next;
    }
  }

 private:
  template <typename T> const T* At(uint64_t offset, uint64_t count = 1) const {
    const bool inside = offset % alignof(T) == 0 && offset <= size_ && count <= (size_ - offset) / sizeof(T);
    return inside ? reinterpret_cast<const T*>(data_ + offset) : nullptr;
  }

  const ElfW(Shdr) * Section(uint32_t type) const {
    const auto* found = std::find_if(sections_, sections_ + count_, [&](const auto& s) { return s.sh_type == type; });
    return found == sections_ + count_ || found->sh_link >= count_ ? nullptr : found;
  }

  std::string Text(const ElfW(Shdr) & section, uint64_t offset) const {
    const uint64_t at = sections_[section.sh_link].sh_offset + offset;
    if (at < offset || at >= size_) return {};
    return {data_ + at, strnlen(data_ + at, size_ - at)};
  }

  const char* data_ = nullptr;
  size_t size_ = 0, count_ = 0;
  uint64_t device_ = 0, number_ = 0;
  const ElfW(Shdr) * sections_ = nullptr;
};

// ---- Where the linker looks -----------------------------------------------------------------------------------------

void Split(const std::string& text, const char* separators, Names* parts) {
  for (size_t at = 0; (at = text.find_first_not_of(separators, at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    parts->push_back(text.substr(at, end - at));
    at = end;
  }
}

std::string ContentOf(const char* path) {
  std::string text;
  Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  char piece[4096];
  for (ssize_t n; file && (n = read(file.get(), piece, sizeof(piece))) > 0;) text.append(piece, static_cast<size_t>(n));
  return text;
}

// The folders that a file like ld.so.conf lists; its "include" lines are followed one level deep.
void AddConfigured(const char* path, bool includes, Names* folders) {
  Names lines;
  Split(ContentOf(path), "\n", &lines);
  for (std::string& line : lines) {
    Names words;
    Split(line.substr(0, line.find('#')), " \t\r", &words);
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
  Names folders;
  const char* variable = std::getenv("LD_LIBRARY_PATH");
  Split(variable ? variable : "", ":", &folders);
#ifdef __GLIBC__
  AddConfigured("/etc/ld.so.conf", true, &folders);
  for (const char* parent : {"/lib/", "/usr/lib/"}) folders.push_back(parent + Target());
  Split("/lib64:/usr/lib64:/lib:/usr/lib", ":", &folders);
#elif defined(__ANDROID__)
  folders.push_back(sizeof(void*) == 8 ? "/system/lib64" : "/system/lib");
#else
  Split(ContentOf(("/etc/ld-musl-" + MachineName() + ".path").c_str()), ":\n", &folders);
  Split("/lib:/usr/local/lib:/usr/lib", ":", &folders);
#endif
  return folders;
}

Names FoldersOf(const std::string& folder, const Names& runpath, const Names& others) {
  Names folders;
  for (std::string path : runpath) {
    for (const char* origin : {"${ORIGIN}", "$ORIGIN"}) {
      for (size_t at; (at = path.find(origin)) != std::string::npos;) path.replace(at, std::strlen(origin), folder);
    }
    Split(path, ":", &folders);
  }
  folders.insert(folders.end(), others.begin(), others.end());
  return folders;
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

Linkage::Linkage(const std::string& folder, const Names& needed, const Names& runpath) : needed_(needed) {
  struct Asked {
    Names names, folders;
    std::string asker;
  };
  const Names others = DefaultFolders();
  std::deque<Asked> left = {{needed, FoldersOf(folder, runpath, others), "it"}};
  for (; !left.empty(); left.pop_front()) {  // in the order of the dynamic linker
    const Asked asked = std::move(left.front());
    for (const std::string& name : asked.names) {
      Place place{};
      const std::string path = Find(name, asked.folders, &place);
      const bool loaded(Loaded(name.c_str()));
      if (path.empty()) {
        if (!loaded) not_found_.emplace(name, asked.asker);
      } else if (opened_.size() < kMostFiles && opened_.emplace(place, path).second && !loaded) {
        const Library library(path);
        const std::string there = path.substr(0, path.rfind('/'));
        left.push_back({library.Texts(DT_NEEDED), FoldersOf(there, library.Texts(DT_RUNPATH), others), name});
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
  for (const std::string& path : places) {
    const Library library(path);
    if (!library) continue;
    *place = {library.device(), library.number()};
    return path;
  }
  return {};
}

std::set<std::string> Linkage::Without(const Names& symbols) const {
  std::set<std::string> left = WithoutProcess(symbols);
  for (const std::string& name : needed_) Loaded(name.c_str()).EraseDefined(&left);
  for (const auto& [place, path] : opened_) {
    if (!left.empty()) Library(path).EraseDefined(&left);
  }
  return left;
}

std::set<std::string> Linkage::VersionGap(const std::string& library, const Names& versions) const {
  for (const auto& [place, path] : opened_) {
    const Library file(path);
    Names soname = file.Texts(DT_SONAME);
    if (soname.empty()) soname.push_back(path.substr(path.rfind('/') + 1));
    if (soname[0] != library) continue;
    std::set<std::string> left(versions.begin(), versions.end());
    file.EraseVersions(&left);
    return left;
  }
  return {};
}

std::set<std::string> WithoutProcess(const Names& symbols) {
  std::set<std::string> left(symbols.begin(), symbols.end());
  Loaded(nullptr).EraseDefined(&left);
  return left;
}

}  // namespace portcall::session
