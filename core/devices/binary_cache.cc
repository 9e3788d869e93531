// SPDX-License-Identifier: Apache-2.0
#include "devices/binary_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

namespace portcall::devices {
namespace {

namespace fs = std::filesystem;

// A file: this header, the key, the binary. The key is compared, so names may collide.
struct Header {
  char magic[16];
  uint64_t key_size, binary_size, checksum;
};
constexpr char kMagic[16] = "portcall kernel";

// FNV-1a.
uint64_t Hash(std::string_view bytes, uint64_t hash = 0xcbf29ce484222325) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

// Whether only this user can put files there. A shared folder may be like /tmp, where each user has files.
bool IsPrivate(const fs::path& folder, bool shared) {
  struct stat link, target;
  if (lstat(folder.c_str(), &link) != 0 || stat(folder.c_str(), &target) != 0) return false;
  const auto ours = [shared](uid_t owner) { return owner == geteuid() || (shared && owner == 0); };
  const bool open = (target.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !(shared && (target.st_mode & S_ISVTX) != 0);
  return ours(link.st_uid) && ours(target.st_uid) && !open;
}

// Made if need be; empty where there is no home, and where others could put kernels (as src/portcall/_folders.py says).
// A relative path in the variable is to be ignored, the rules of XDG say.
fs::path Folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  fs::path folder;
  if (cache && cache[0] == '/') {
    folder = cache;
  } else if (home && *home) {
    folder = fs::path(home) / ".cache";
  } else {
    return {};
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (!IsPrivate(folder, true)) return {};
  for (const char* part : {"portcall", "kernels"}) {
    folder /= part;
    mkdir(folder.c_str(), S_IRWXU);  // it may exist
    if (!IsPrivate(folder, false)) return {};
  }
  return folder;
}

fs::path FileOf(const fs::path& folder, const std::string& key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (uint64_t hash = Hash(key), i = 0; i < 16; ++i, hash >>= 4) name += kDigits[hash & 15];
  return folder / name;
}

Header HeaderOf(const std::string& key, std::string_view binary) {
  Header header{{}, key.size(), binary.size(), Hash(binary, Hash(key))};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  return header;
}

// Removes what was used longest ago, until the rest fits.
void Shrink(const fs::path& folder) {
  struct File {
    fs::file_time_type used;
    uint64_t size;
    fs::path path;
  };
  std::vector<File> files;
  uint64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // another process removed it
    const uint64_t size = it->file_size(gone);
    if (gone) continue;
    files.push_back({it->last_write_time(gone), size, it->path()});
    total += size;
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (size_t i = 0; i < files.size() && total > kMaxBytes; ++i) {
    fs::remove(files[i].path, error);
    total -= files[i].size;
  }
}

}  // namespace

std::string CacheKey(std::initializer_list<std::string_view> parts) {
  std::string key;
  for (std::string_view part : parts) {
    key += std::to_string(part.size());
    key += ' ';
    key += part;
  }
  return key;
}

std::string FindBinary(const std::string& key) {
  const fs::path folder = Folder();
  if (folder.empty()) return {};
  const fs::path path = FileOf(folder, key);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = sizeof(Header) + key.size();
  if (bytes.size() <= begin || bytes.compare(sizeof(Header), key.size(), key) != 0) return {};
  const std::string_view binary = std::string_view(bytes).substr(begin);
  const Header expected = HeaderOf(key, binary);
  if (std::memcmp(bytes.data(), &expected, sizeof(expected)) != 0) return {};
  std::error_code error;
  fs::last_write_time(path, fs::file_time_type::clock::now(), error);
  return std::string(binary);
}

void KeepBinary(const std::string& key, const std::string& binary) {
  static std::atomic<int> number{0};
  const fs::path folder = Folder();
  if (folder.empty() || binary.empty() || binary.size() > kMaxBytes) return;
  std::error_code error;
  const fs::path path = FileOf(folder, key);
  fs::path part = path;
  part += "." + std::to_string(getpid()) + "." + std::to_string(number++);
  const Header header = HeaderOf(key, binary);
  std::ofstream file(part, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header)) << key << binary;
  file.close();
  if (file) fs::rename(part, path, error);
  if (!file || error) fs::remove(part, error);
  Shrink(folder);
}

}  // namespace portcall::devices
