// SPDX-License-Identifier: Apache-2.0
#include "elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "portcall/error.h"

namespace portcall {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kThisMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr uint16_t kThisMachine = EM_RISCV;
#else
#error "the loader does not know this machine"
#endif

std::string MachineName(uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "AArch64";
    case EM_RISCV:
      return "RISC-V";
    case EM_ARM:
      return "32-bit Arm";
    case EM_386:
      return "32-bit x86";
    default:
      return "machine " + std::to_string(machine);
  }
}

// A file, mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    PORTCALL_CHECK(fd >= 0, ModuleLoadError) << "cannot open '" << path << "': " << std::strerror(errno);
    struct stat info{};
    bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    size_ = is_file ? static_cast<size_t>(info.st_size) : 0;
    if (size_) data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    PORTCALL_CHECK(is_file, ModuleLoadError) << "'" << path << "' is not a file";
    PORTCALL_CHECK(size_ == 0 || data_ != MAP_FAILED, ModuleLoadError) << "cannot read '" << path << "'";
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (size_) munmap(data_, size_);
  }

  // `count` entries of T at `offset`, or null when they are not aligned or not within the file.
  template <typename T> const T* At(uint64_t offset, uint64_t count = 1) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(T) || offset % alignof(T) != 0) return nullptr;
    return reinterpret_cast<const T*>(static_cast<const char*>(data_) + offset);
  }
  // Empty for what is longer than any name that matters: a damaged file may have names without end.
  std::string Text(uint64_t offset) const {
    constexpr size_t kLongest = 4096;
    const char* start = At<char>(offset);
    if (!start || offset >= size_) return {};
    size_t length = strnlen(start, std::min(size_ - offset, kLongest));
    return length < kLongest ? std::string(start, length) : std::string();
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  ElfFile Read() {
    const auto* header = file_.At<Elf64_Ehdr>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) Fail("it is not an ELF shared library");
    if (header->e_ident[EI_CLASS] != ELFCLASS64) Fail("it is a 32-bit library; this process is 64-bit");
    if (header->e_ident[EI_DATA] != ELFDATA2LSB) Fail("it is a big-endian library");
    if (header->e_machine != kThisMachine) {
      Fail("it is a library for " + MachineName(header->e_machine) + "; this process runs on " +
           MachineName(kThisMachine));
    }
    if (header->e_type != ET_DYN) Fail("it is not a shared library (an object file or a program must be linked first)");
    const auto* sections = file_.At<Elf64_Shdr>(header->e_shoff, header->e_shnum);
    if (!sections || header->e_shnum == 0) Fail("its section headers are damaged or were stripped");
    for (int i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_link >= header->e_shnum) continue;
      uint64_t strings = sections[sections[i].sh_link].sh_offset;
      if (sections[i].sh_type == SHT_DYNAMIC) ReadDynamic(sections[i], strings);
      if (sections[i].sh_type == SHT_DYNSYM) ReadSymbols(sections[i], strings);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void Fail(const std::string& why) {
    throw Error("ModuleLoadError", "cannot load '" + path_ + "': " + why);
  }

  void ReadDynamic(const Elf64_Shdr& section, uint64_t strings) {
    const auto* entries = file_.At<Elf64_Dyn>(section.sh_offset, section.sh_size / sizeof(Elf64_Dyn));
    if (!entries) Fail("its dynamic section lies outside the file");
    for (size_t i = 0; i < section.sh_size / sizeof(Elf64_Dyn) && entries[i].d_tag != DT_NULL; ++i) {
      const Elf64_Dyn& entry = entries[i];
      if (entry.d_tag == DT_NEEDED) out_.needed.push_back(file_.Text(strings + entry.d_un.d_val));
      if (entry.d_tag == DT_BIND_NOW) out_.bind_now = true;
      if (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_BIND_NOW)) out_.bind_now = true;
      if (entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_NOW)) out_.bind_now = true;
    }
  }

  void ReadSymbols(const Elf64_Shdr& section, uint64_t strings) {
    const auto* symbols = file_.At<Elf64_Sym>(section.sh_offset, section.sh_size / sizeof(Elf64_Sym));
    if (!symbols) Fail("its symbol table lies outside the file");
    for (size_t i = 1; i < section.sh_size / sizeof(Elf64_Sym); ++i) {
      const Elf64_Sym& symbol = symbols[i];
      std::string name = file_.Text(strings + symbol.st_name);
      if (name.empty()) continue;
      if (symbol.st_shndx == SHN_UNDEF) {
        if (ELF64_ST_BIND(symbol.st_info) != STB_WEAK) out_.undefined.push_back(std::move(name));
      } else if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) {
        out_.functions.push_back(std::move(name));
      } else if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) {
        out_.objects.push_back(std::move(name));
      }
    }
  }

  const std::string& path_;
  MappedFile file_;
  ElfFile out_;
};

bool Contains(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

bool ElfFile::Needs(const char* library) const { return Contains(needed, library); }
bool ElfFile::Imports(const char* symbol) const { return Contains(undefined, symbol); }
bool ElfFile::Defines(const char* symbol) const { return Contains(functions, symbol) || Contains(objects, symbol); }

ElfFile ReadElfFile(const std::string& path) { return Reader(path).Read(); }

}  // namespace portcall
