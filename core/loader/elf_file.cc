// SPDX-License-Identifier: Apache-2.0
#include "loader/elf_file.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "bytes/this_machine.h"
#include "portcall/error.h"

namespace portcall::loader {
namespace {

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

// The end of a bundle.
struct Footer {
  uint64_t library_bytes;
  uint64_t index_offset;
  uint64_t index_bytes;  // they end where the footer begins
  char mark[8];
};
constexpr char kBundleMark[] = "PCBUNDLE";

// What follows the library in the files of models. The checksum is for tools: it would read all parameters.
struct Seal {
  char mark[8];
  uint64_t file_bytes;
  uint32_t crc32;
  uint32_t reserved;
};
constexpr char kSealMark[] = "PCSEALED";

constexpr size_t kMostVersions = 1024;

class ElfReader {
 public:
  ElfReader(const MappedFile& file, bool symbols) : file_(file), wants_symbols_(symbols) {}

  ElfFile Read() {
    const auto* header = file_.At<ElfW(Ehdr)>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) Fail("it is not an ELF shared library");
    constexpr bool k64 = sizeof(void*) == 8;
    if (header->e_ident[EI_CLASS] != (k64 ? ELFCLASS64 : ELFCLASS32)) {
      Fail(k64 ? "it is a 32-bit library; this process is 64-bit" : "it is a 64-bit library; this process is 32-bit");
    }
    if (header->e_ident[EI_DATA] != ELFDATA2LSB) Fail("it is a big-endian library");
    if (header->e_machine != kThisMachine) {
      Fail("it is a library for " + MachineName(header->e_machine) + "; this process runs on " +
           MachineName(kThisMachine));
    }
    if (header->e_type != ET_DYN) Fail("it is not a shared library (an object file or a program must be linked first)");
    const auto* sections = file_.At<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
    if (!sections || header->e_shnum == 0) Fail("its section headers are damaged or were stripped");
    bool dynamic = false, symbols = false;  // seen: there is one of each, and a damaged file may name one many times
    for (int i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_link >= header->e_shnum) continue;
      uint64_t strings = sections[sections[i].sh_link].sh_offset;
      if (sections[i].sh_type == SHT_DYNAMIC && !std::exchange(dynamic, true)) ReadDynamic(sections[i], strings);
      if (sections[i].sh_type == SHT_DYNSYM && wants_symbols_ && !std::exchange(symbols, true)) {
        ReadSymbols(sections, i, strings);
      }
    }
    ReadFooter(*header, sections);
    ReadSegments(*header);
    return std::move(out_);
  }

 private:
  [[noreturn]] void Fail(const std::string& why) {
    throw Error("ModuleLoadError", "cannot load '" + file_.path() + "': " + why);
  }

  std::string Name(uint64_t offset) {
    std::string name = file_.Text(offset);
    // Names share their ends, so that together they may be longer than the file, but not by much.
    name_bytes_ += name.size();
    if (name_bytes_ > 4 * file_.size() + 65536) Fail("its names are longer than the file: it is damaged");
    return name;
  }

  void ReadFooter(const ElfW(Ehdr) & header, const ElfW(Shdr) * sections) {
    out_.library_bytes = file_.size();
    if (file_.size() < sizeof(Footer)) return;
    Footer footer;
    uint64_t at = file_.size() - sizeof(Footer);
    std::memcpy(&footer, file_.At<char>(at, sizeof(Footer)), sizeof(Footer));
    if (std::memcmp(footer.mark, kBundleMark, sizeof(footer.mark)) != 0) return CheckSeal(header, sections);
    bool ordered = footer.library_bytes <= footer.index_offset && footer.index_offset < at;
    if (!ordered || footer.index_bytes != at - footer.index_offset)
      Fail("it is a bundle, and its last bytes are damaged");
    out_.library_bytes = footer.library_bytes;
    out_.index_offset = footer.index_offset;
    out_.index_bytes = footer.index_bytes;
  }

  // A bundle without its last bytes is a library, too; the seal after that says how large it was.
  void CheckSeal(const ElfW(Ehdr) & header, const ElfW(Shdr) * sections) {
    uint64_t end = header.e_shoff + header.e_shnum * sizeof(ElfW(Shdr));
    for (int i = 0; i < header.e_shnum; ++i) {
      if (sections[i].sh_type != SHT_NOBITS) end = std::max<uint64_t>(end, sections[i].sh_offset + sections[i].sh_size);
    }
    Seal seal;
    const char* written = file_.At<char>(end, sizeof(seal));
    if (!written) return;
    std::memcpy(&seal, written, sizeof(seal));
    if (std::memcmp(seal.mark, kSealMark, sizeof(seal.mark)) == 0 && seal.file_bytes > file_.size()) {
      Fail("it was not copied whole (" + std::to_string(file_.size()) + " of " + std::to_string(seal.file_bytes) +
           " bytes): copy it again");
    }
  }

  void ReadSegments(const ElfW(Ehdr) & header) {
    const auto* segments = file_.At<ElfW(Phdr)>(header.e_phoff, header.e_phnum);
    if (!segments) Fail("its program headers lie outside the file");
    out_.mapped.resize(header.e_phnum + size_t{2});
    out_.mapped[0] = {0, sizeof(header)};
    out_.mapped[1] = {header.e_phoff, header.e_phnum * sizeof(ElfW(Phdr))};
    for (size_t i = 0; i < header.e_phnum; ++i) {
      if (segments[i].p_type == PT_LOAD) out_.mapped[i + 2] = {segments[i].p_offset, segments[i].p_filesz};
      if (!file_.At<char>(out_.mapped[i + 2].first, out_.mapped[i + 2].second))
        Fail("a segment of it lies outside the file");
    }
  }

  void ReadDynamic(const ElfW(Shdr) & section, uint64_t strings) {
    const auto* entries = file_.At<ElfW(Dyn)>(section.sh_offset, section.sh_size / sizeof(ElfW(Dyn)));
    if (!entries) Fail("its dynamic section lies outside the file");
    for (size_t i = 0; i < section.sh_size / sizeof(ElfW(Dyn)) && entries[i].d_tag != DT_NULL; ++i) {
      const ElfW(Dyn) & entry = entries[i];
      if (entry.d_tag == DT_NEEDED) out_.needed.push_back(Name(strings + entry.d_un.d_val));
      if (entry.d_tag == DT_BIND_NOW) out_.bind_now = true;
      if (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_BIND_NOW)) out_.bind_now = true;
      if (entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_NOW)) out_.bind_now = true;
    }
  }

  void ReadSymbols(const ElfW(Shdr) * sections, int number, uint64_t strings) {
    const ElfW(Shdr) & section = sections[number];
    const auto* symbols = file_.At<ElfW(Sym)>(section.sh_offset, section.sh_size / sizeof(ElfW(Sym)));
    if (!symbols) Fail("its symbol table lies outside the file");
    for (size_t i = 1; i < section.sh_size / sizeof(ElfW(Sym)); ++i) {
      const ElfW(Sym) & symbol = symbols[i];
      std::string name = Name(strings + symbol.st_name);
      if (name.empty()) continue;
      if (symbol.st_shndx == SHN_UNDEF) {
        if (ELF64_ST_BIND(symbol.st_info) != STB_WEAK) out_.undefined.push_back(std::move(name));
      } else if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC || ELF64_ST_TYPE(symbol.st_info) == STT_GNU_IFUNC) {
        out_.functions.push_back(std::move(name));
      } else {
        if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) NoteBlob(name, symbol, sections);
        out_.objects.push_back(std::move(name));
      }
    }
  }

  void NoteBlob(const std::string& name, const ElfW(Sym) & symbol, const ElfW(Shdr) * sections) {
    for (size_t k = 0; k < std::size(kBlobs); ++k) {
      if (name == kBlobs[k].first) out_.symbol_bytes[k] = symbol.st_size;
    }
    if (name != kBlobs[0].first || symbol.st_shndx >= file_.At<ElfW(Ehdr)>(0)->e_shnum) return;
    const ElfW(Shdr) & section = sections[symbol.st_shndx];
    uint64_t at = symbol.st_value - section.sh_addr;
    bool constant = section.sh_type == SHT_PROGBITS && section.sh_flags == SHF_ALLOC;
    bool inside = at < section.sh_size && symbol.st_size <= section.sh_size - at;
    if (!constant || !inside || !file_.At<char>(section.sh_offset, section.sh_size)) return;
    out_.blob_offset = section.sh_offset + at;
    out_.blob_bytes = symbol.st_size;
  }

  const MappedFile& file_;
  bool wants_symbols_;
  ElfFile out_;
  uint64_t name_bytes_ = 0;
};

bool Contains(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

bool ElfFile::Needs(const char* library) const { return Contains(needed, library); }
bool ElfFile::Imports(const char* symbol) const { return Contains(undefined, symbol); }
bool ElfFile::Defines(const char* symbol) const { return Contains(functions, symbol) || Contains(objects, symbol); }

ElfFile ReadElfFile(const MappedFile& file, bool symbols) { return ElfReader(file, symbols).Read(); }

LinkerFacts ReadLinkerFacts(const MappedFile& file) {
  LinkerFacts out;
  const auto* header = file.At<ElfW(Ehdr)>(0);
  const auto* sections = header ? file.At<ElfW(Shdr)>(header->e_shoff, header->e_shnum) : nullptr;
  bool dynamic = false, versions = false;  // seen
  for (int i = 0; sections && i < header->e_shnum; ++i) {
    const ElfW(Shdr) & section = sections[i];
    if (section.sh_link >= header->e_shnum) continue;
    const uint64_t strings = sections[section.sh_link].sh_offset;
    if (section.sh_type == SHT_DYNAMIC && !std::exchange(dynamic, true)) {
      const size_t count = section.sh_size / sizeof(ElfW(Dyn));
      const auto* entries = file.At<ElfW(Dyn)>(section.sh_offset, count);
      for (size_t k = 0; entries && k < count && entries[k].d_tag != DT_NULL; ++k) {
        if (entries[k].d_tag == DT_SONAME) out.soname = file.Text(strings + entries[k].d_un.d_val);
        if (entries[k].d_tag == DT_RUNPATH) out.runpath = file.Text(strings + entries[k].d_un.d_val);
      }
    }
    if (section.sh_type != SHT_GNU_verdef || std::exchange(versions, true)) continue;
    uint64_t at = section.sh_offset;
    for (size_t k = 0; k < kMostVersions; ++k) {
      const auto* version = file.At<ElfW(Verdef)>(at);
      const auto* name = version ? file.At<ElfW(Verdaux)>(at + version->vd_aux) : nullptr;
      if (name) out.versions.push_back(file.Text(strings + name->vda_name));
      if (!name || !version->vd_next) break;
      at += version->vd_next;
    }
  }
  return out;
}

}  // namespace portcall::loader
