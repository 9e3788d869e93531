// SPDX-License-Identifier: Apache-2.0
#include "session/files.h"

#include <sys/stat.h>

#include "portcall/module.h"
#include "portcall/tensor.h"
#include "session/needs.h"

namespace portcall::session {
namespace {

struct Memory {
  char* data;
  size_t size;
};

Memory MemoryOf(const Tensor& tensor) {
  PORTCALL_CHECK(tensor.device().device_type == kDLCPU && tensor.is_contiguous(), ValueError)
      << "expected a compact tensor on the host, got one on " << ToString(tensor.device());
  return {static_cast<char*>(tensor.raw_data()), tensor.nbytes()};
}

size_t SizeOf(const Descriptor& file) {
  struct stat facts{};
  if (fstat(file.get(), &facts) != 0) throw SystemError("cannot read the size of a file");
  return static_cast<size_t>(facts.st_size);
}

// Reads until `to` is full or the file ends; returns how many bytes.
size_t ReadInto(const Descriptor& file, size_t offset, Memory to) {
  size_t done = 0;
  while (done < to.size) {
    const ssize_t n = pread(file.get(), to.data + done, to.size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw SystemError("cannot read a file");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

Bytes ReadBytes(const Descriptor& file, size_t offset, size_t most) {
  const size_t size = SizeOf(file), wanted = std::min(most, size - std::min(offset, size));
  char* data = nullptr;
  TVMFFIAny made;
  Check(PortcallBytesCreate(wanted, &data, &made));
  const Any whole = Any::Steal(made);
  const size_t got = ReadInto(file, offset, {data, wanted});
  return got == wanted ? whole.cast<Bytes>() : Bytes({data, got});  // somebody may have made it shorter meanwhile
}

std::string_view ContentOf(const Any& data) {
  if (std::optional<std::string_view> bytes = TryBytes(data.cell())) return *bytes;
  if (std::optional<std::string_view> text = TryString(data.cell())) return *text;  // what some clients make of text
  std::optional<Tensor> tensor = data.try_cast<Tensor>();
  PORTCALL_CHECK(tensor && tensor->defined(), TypeError) << "the contents of a file are bytes";
  const Memory memory = MemoryOf(*tensor);
  return {memory.data, memory.size};
}

int64_t Write(const Folder& folder, const std::string& path, int64_t offset, const Any& data) {
  std::string_view rest = ContentOf(data);
  if (offset == 0) folder.CheckRoom(rest.size());
  Descriptor file = offset == 0 ? folder.Create(path) : folder.Open(path, O_WRONLY);
  const auto size = static_cast<int64_t>(SizeOf(file));
  PORTCALL_CHECK(offset == size, ValueError)
      << "'" << path << "' has " << size << " bytes; the next piece begins there, not at " << offset;
  if (offset) folder.CheckRoom(rest.size());
  while (!rest.empty()) {
    const ssize_t n = pwrite(file.get(), rest.data(), rest.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      (void)!ftruncate(file.get(), static_cast<off_t>(size));  // part of a piece is of no use, and takes room
      throw SystemError("cannot write '" + path + "'", error);
    }
    rest.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return offset;
}

Module Load(const Folder& folder, const std::string& path) {
  folder.Verify(path);
  const std::string suffix = path.substr(std::min(path.rfind('.'), path.size()));
  PORTCALL_CHECK(suffix == ".so", ValueError)
      << "cannot load '" << path << "': this server has no linker; link it to a .so first (portcall.toolchain, or "
      << "export_library() of TVM)";
  return Module::LoadFromFile(folder.Path(path));
}

std::string TextAt(const Args& args, int i) { return i < args.size() ? args[i].cast<std::string>() : std::string(); }

}  // namespace

void Register(const Functions& functions) {
  for (const auto& [name, function] : functions) Registry::Set(name, function, true);
}

Functions FilesOf(std::shared_ptr<const Folder> folder, const Beside& beside) {
  Functions functions;
  const auto offer = [&](const char* name, auto body) {
    functions.emplace_back(name, PackedFunc(detail::Unpack(std::move(body)), name));
  };
  const auto offer_packed = [&](const char* name, auto body) {
    functions.emplace_back(name, PackedFunc(std::move(body), name));
  };
  offer("tvm.rpc.server.upload", [folder](std::string path, Any data) { Write(*folder, path, 0, data); });
  offer("tvm.rpc.server.download",
        [folder](std::string path) { return ReadBytes(folder->Open(path, O_RDONLY), 0, SIZE_MAX); });
  offer("tvm.rpc.server.remove", [folder](std::string path) { folder->Remove(path); });
  offer_packed("tvm.rpc.server.listdir", [folder](Args args, RetValue* rv) {
    std::string names;
    for (const std::string& name : folder->List(TextAt(args, 0))) names += (names.empty() ? "" : ",") + name;
    *rv = names;
  });
  offer_packed("tvm.rpc.server.workpath", [folder](Args args, RetValue* rv) { *rv = folder->Path(TextAt(args, 0)); });
  offer("tvm.rpc.server.load_module", [folder](std::string path) { return Load(*folder, path); });
  offer("tvm.rpc.server.download_linked_module", [folder](std::string path) {
    Load(*folder, path);
    return ReadBytes(folder->Open(path, O_RDONLY), 0, SIZE_MAX);
  });
  offer("portcall.rpc.file_write",
        [folder](std::string path, int64_t offset, Any data) { return Write(*folder, path, offset, data); });
  offer("portcall.rpc.file_read", [folder](std::string path, int64_t offset, int64_t most) {
    PORTCALL_CHECK(offset >= 0 && most >= 0, ValueError) << "cannot read " << most << " bytes from offset " << offset;
    return ReadBytes(folder->Open(path, O_RDONLY), static_cast<size_t>(offset), static_cast<size_t>(most));
  });
  offer("portcall.rpc.file_fill", [folder](std::string path, int64_t offset, Tensor target) {
    PORTCALL_CHECK(offset >= 0, ValueError) << "cannot read from offset " << offset;
    PORTCALL_CHECK(!target.is_read_only(), ValueError) << "the tensor is read-only";
    return static_cast<int64_t>(ReadInto(folder->Open(path, O_RDONLY), static_cast<size_t>(offset), MemoryOf(target)));
  });
  offer("portcall.rpc.file_size",
        [folder](std::string path) { return static_cast<int64_t>(SizeOf(folder->Open(path, O_RDONLY))); });
  offer("portcall.rpc.file_digest",
        [folder](std::string path) { return folder->DigestOf(folder->Open(path, O_RDONLY)); });
  offer_packed("portcall.rpc.machine", [folder, beside](Args args, RetValue* rv) {
    const std::string path = folder->Path(TextAt(args, 0));
    *rv = DescribeMachine(path.substr(0, path.rfind('/')), TextAt(args, 1), beside);
  });
  return functions;
}

}  // namespace portcall::session
