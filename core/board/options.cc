// SPDX-License-Identifier: Apache-2.0
#include "board/options.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "facts/options.h"
#include "facts/server.h"
#include "facts/wire.h"
#include "portcall/error.h"
#include "session/descriptor.h"
#include "session/text.h"

namespace portcall::board {

using namespace facts;
namespace {

constexpr const char* kUsage = R"(Usage: portcall-server [OPTIONS]

  Let portcall and TVM clients upload, call and time code here, without Python.
  The first line on standard output is "listening on HOST:PORT".

Options:)";
constexpr const char* kExamples = R"(
Examples:
  portcall-server                                        this machine only, port 9090
  portcall-server --host 0.0.0.0 --token-file token      other machines, too
  portcall-server --farm lab:9190 --key rasp4            a place of a farm
  portcall-server --max-sessions 1 --session-timeout 10m one at a time
)";

struct Unit {
  const char* name;
  double factor;
};
constexpr Unit kSeconds[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
constexpr Unit kBytes[] = {{"B", 1},    {"kB", 1e3},   {"KB", 1e3},      {"MB", 1e6},
                           {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};

template <size_t kCount> double WithUnit(const std::string& text, const Unit (&units)[kCount], const char* example) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  while (*end == ' ') ++end;
  for (const Unit& unit : units) {
    if (!std::strcmp(end, unit.name) && end != text.c_str() && number >= 0 && number < 1e300) {
      return number * unit.factor;
    }
  }
  PORTCALL_THROW(ValueError) << "'" << text << "' is not a number with a unit, such as " << example;
}

int64_t ReadSize(const std::string& text) {
  const double size = WithUnit(text, kBytes, "64MiB, 10MB or 512B");
  PORTCALL_CHECK(size < 9e18 && size == static_cast<double>(static_cast<int64_t>(size)), ValueError)
      << "size '" << text << "' is not a whole number of bytes";
  return static_cast<int64_t>(size);
}

double ReadDuration(const std::string& text) {
  const double seconds = WithUnit(text, kSeconds, "500ms, 3s or 2m");
  PORTCALL_CHECK(seconds <= kMostSeconds, ValueError) << "invalid duration " << text << " (must be 0-1e+09 seconds)";
  return seconds;
}

int64_t ReadNumber(const std::string& text, int64_t most) {
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  PORTCALL_CHECK(!text.empty() && !*end && errno == 0 && number >= 0 && number <= most, ValueError)
      << "'" << text << "' is not in the range 0-" << most;
  return number;
}

std::string Absolute(std::string path) {
  char here[PATH_MAX] = "";
  if (path[0] != '/' && getcwd(here, sizeof(here))) path.insert(0, "/").insert(0, here);
  return path;
}

std::vector<std::string> Paths(const std::string& text) {
  std::vector<std::string> paths = session::Split(text, ":");
  for (std::string& path : paths) path = Absolute(path);
  return paths;
}

// HOST:PORT, several with commas between; a port may be left out.
std::vector<std::pair<std::string, std::string>> ReadAddresses(const std::string& all, const std::string& otherwise) {
  std::vector<std::pair<std::string, std::string>> addresses;
  for (size_t at = 0; at <= all.size();) {
    const size_t end = std::min(all.find(',', at), all.size());
    const std::string text = all.substr(at, end - at);
    const size_t colon = text.rfind(':');
    const bool six = !text.empty() && text.front() == '[';
    const bool has_port = colon != std::string::npos && (six ? text[colon - 1] == ']' : text.find(':') == colon);
    std::string host = has_port ? text.substr(0, colon) : text;
    if (six && host.back() == ']') host = host.substr(1, host.size() - 2);
    PORTCALL_CHECK(!host.empty(), ValueError)
        << "the address '" << text << "' is not of the form host:port or [v6]:port";
    const std::string port = has_port ? text.substr(colon + 1) : otherwise;
    PORTCALL_CHECK((!has_port && port.empty()) || ReadNumber(port, 65535) > 0, ValueError)
        << "invalid port " << port << " (must be 1-65535)";
    addresses.emplace_back(host, port);
    at = end + 1;
  }
  return addresses;
}

bool SetFlag(Options* to, const std::string& name) {
  if (name == "--insecure") return to->insecure = true;
  if (name == "--relay") return to->relay = true;
  if (name == "--json") return to->json = true;
  if (name == "--log-json") return to->log_json = true;
  if (name == "--silent") return to->silent = true;
  return false;
}

// Returns false where there is no option of that name.
bool SetValue(Options* to, const std::string& name, const std::string& value) {
  if (name == "--host") to->host = value;
  else if (name == "--port") to->port = ReadNumber(value, 65535);
  else if (name == "--port-end") to->port_end = ReadNumber(value, 65536);
  else if (name == "--unix") to->unix_path = value;
  else if (name == "--key") to->key = value;
  else if (name == "--load-library") to->libraries = Paths(value);
  else if (name == "--expose") to->expose.push_back(value);
  else if (name == "--token-file") to->token_file = value;
  else if (name == "--max-sessions") to->max_sessions = ReadNumber(value, 1'000'000);
  else if (name == "--max-handshakes") to->max_handshakes = ReadNumber(value, 1'000'000);
  else if (name == "--lost-client-grace") to->lost_client_grace = ReadDuration(value);
  else if (name == "--session-timeout") to->session_timeout = ReadDuration(value);
  else if (name == "--handshake-timeout") to->handshake_timeout = ReadDuration(value);
  else if (name == "--memory-limit") to->memory_limit = ReadSize(value);
  else if (name == "--disk-limit") to->disk_limit = ReadSize(value);
  else if (name == "--cpu-limit") to->cpu_limit = ReadDuration(value);
  else if (name == "--sandbox") to->sandbox = value;
  else if (name == "--sandbox-path") to->sandbox_paths.push_back(Absolute(value));
  else if (name == "--max-frame") to->max_frame = ReadSize(value);
  else if (name == "--farm") to->farm = ReadAddresses(value, std::to_string(kFarmPort));
  else if (name == "--place") to->place = value;
  else if (name == "--custom-addr") to->custom_addr = ReadAddresses(value, "").at(0);
  else if (name == "--tag") to->tags.push_back(value);
  else if (name == "--check") to->check = value;
  else if (name == "--prepare") to->prepare = value;
  else if (name == "--clean") to->clean = value;
  else if (name == "--hook-limit") to->hook_limit = ReadDuration(value);
  else if (name == "--work-dir") to->work_dir = value;
  else if (name == "--ready-file") to->ready_file = value;
  else return false;
  return true;
}

// Returns a name for a place that no other server of this machine has: `name`, or that and a number. A socket without a
// file, which stays open as long as this process, keeps it from them, so who was killed has its name again at its next
// start. `portcall serve` does the same.
std::string FreeName(const Options& options, const std::string& name) {
  constexpr size_t kMostLock = 90;
  const std::string farm = options.farm[0].first + ":" + options.farm[0].second + " ";
  for (int number = 1;; ++number) {
    const std::string tried = number == 1 ? name : name + "-" + std::to_string(number);
    const std::string whole = farm + tried;
    const std::string text = "portcall-place " + whole.substr(whole.size() - std::min(kMostLock, whole.size()));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    session::Descriptor lock(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(lock.get(), reinterpret_cast<sockaddr*>(&address), size) == 0) {
      lock.Release();
      return tried;
    }
    if (errno != EADDRINUSE) throw session::SystemError("cannot keep the name of the place " + tried);
  }
}

void SetDefaults(Options* options) {
  const bool joins = !options->farm.empty();
  if (options->port < 0) options->port = joins ? 0 : kPort;  // the farm tells the address
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  if (joins && options->place.empty()) options->place = FreeName(*options, std::string(name) + "-" + options->key);
}

void CheckOptions(const Options& options) {
  if (!options.farm.empty()) {
    PORTCALL_CHECK(!options.key.empty(), ValueError) << "a place of a farm needs a key, such as --key rasp4";
  }
  if (!options.custom_addr.first.empty()) {
    PORTCALL_CHECK(!options.farm.empty(), ValueError)
        << "--custom-addr is the address that a farm tells its clients: it needs --farm";
    PORTCALL_CHECK(!options.relay, ValueError) << "--custom-addr and --relay exclude each other";
  }
  PORTCALL_CHECK(options.key.find_first_of(facts::kBlanks) == std::string::npos, ValueError)
      << "the key '" << options.key << "' contains whitespace, which the protocol cannot carry";
  PORTCALL_CHECK(!options.port_end || options.port < options.port_end, ValueError)
      << "invalid --port-end " << options.port_end << " (must be above the port, " << options.port << ")";
  PORTCALL_CHECK(options.handshake_timeout > 0, ValueError) << "invalid --handshake-timeout (must be above 0)";
  PORTCALL_CHECK(options.max_handshakes > 0, ValueError) << "invalid --max-handshakes 0 (must be 1-1000000)";
  PORTCALL_CHECK(options.sandbox.empty() || options.sandbox == "best" || options.sandbox == "require", ValueError)
      << "invalid --sandbox '" << options.sandbox << "' (must be best or require)";
  PORTCALL_CHECK(options.sandbox_paths.empty() || !options.sandbox.empty(), ValueError)
      << "--sandbox-path is for sessions in a sandbox: it needs --sandbox";
  for (const std::string& path : options.sandbox_paths) {
    PORTCALL_CHECK(access(path.c_str(), F_OK) == 0, ValueError)
        << "invalid --sandbox-path: there is no '" << path << "'";
  }
  PORTCALL_CHECK(options.max_frame > 0, ValueError) << "invalid --max-frame (must be above 0)";
}

}  // namespace

bool IsLoopback(const std::string& host) {
  std::string name = host;
  if (!name.empty() && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  in_addr four{};
  in6_addr six{};
  if (name == "localhost") return true;
  if (inet_pton(AF_INET, name.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, name.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

bool Options::Local() const { return !unix_path.empty() || IsLoopback(host); }

Parsed ParseOptions(int argc, char** argv) {
  Parsed parsed;
  std::string name;
  try {
    for (int i = 1; i < argc; ++i) {
      name = argv[i];
      if (name == "--help" || name == "--version") {
        if (name == "--help") printf("%s%s%s", kUsage, kOptions, kExamples);
        else printf("portcall-server " PORTCALL_VERSION "\n");
        parsed.exit_code = 0;
        return parsed;
      }
      if (SetFlag(&parsed.options, name)) continue;
      const size_t equals = name.find('=');
      const bool apart = equals == std::string::npos && i + 1 < argc;
      const std::string value = apart ? argv[i + 1] : equals == std::string::npos ? "" : name.substr(equals + 1);
      name = name.substr(0, equals);
      PORTCALL_CHECK(SetValue(&parsed.options, name, value), ValueError) << "there is no such option; see --help";
      PORTCALL_CHECK(apart || equals != std::string::npos, ValueError) << "the option needs a value";
      i += apart;
    }
    name.clear();
    SetDefaults(&parsed.options);
    CheckOptions(parsed.options);
  } catch (const Error& error) {
    const std::string message(error.message());
    fprintf(stderr, "error: %s%s%s\n", name.c_str(), name.empty() ? "" : ": ", message.c_str());
    parsed.exit_code = 2;
  }
  return parsed;
}

}  // namespace portcall::board
