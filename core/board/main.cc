// SPDX-License-Identifier: Apache-2.0
// portcall-server: `portcall serve` for machines without Python.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "board/secrets.h"
#include "board/supervisor.h"
#include "portcall/sha256.h"

namespace portcall::board {

using namespace sha256;
namespace {

struct Token {
  char data[kLongestToken] = "";
  size_t size = 0;
  ~Token() { Wipe(data, sizeof(data)); }

  std::string_view Trimmed() const {
    std::string_view text(data, size);
    while (!text.empty() && strchr(" \t\r\n\v\f", text.back())) text.remove_suffix(1);
    while (!text.empty() && strchr(" \t\r\n\v\f", text.front())) text.remove_prefix(1);
    return text;
  }
};

// Forgets a variable: sessions see the same memory.
void WipeVariable(const char* name) {
  if (char* value = std::getenv(name)) Wipe(value, std::strlen(value));
  unsetenv(name);
}

// Reads the token of the file or of the variable: of clients, or of the farm.
void ReadToken(const Options& options, Token* token) {
  const char* variable = std::getenv(options.farm.empty() ? "PORTCALL_TOKEN" : "PORTCALL_FARM_TOKEN");
  if (!options.token_file.empty()) {
    const bool standard_input = options.token_file == "-";
    Descriptor file(standard_input ? dup(STDIN_FILENO) : open(options.token_file.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat facts{};
    if (!file || fstat(file.get(), &facts) != 0) throw SystemError("cannot read '" + options.token_file + "'");
    for (ssize_t n = 1; n > 0 && token->size < kLongestToken;
         token->size += static_cast<size_t>(std::max<ssize_t>(n, 0))) {
      n = read(file.get(), token->data + token->size, kLongestToken - token->size);
    }
    PORTCALL_CHECK(!token->Trimmed().empty(), ValueError)
        << "the token file '" << options.token_file << "' is empty: openssl rand -hex 32 > " << options.token_file;
    if (!standard_input && (facts.st_mode & 077)) {
      fprintf(stderr, "warning: others on this machine can read the token file '%s': chmod 600 it\n",
              options.token_file.c_str());
    }
  } else if (variable) {
    token->size = std::min(std::strlen(variable), kLongestToken);
    std::memcpy(token->data, variable, token->size);
    PORTCALL_CHECK(token->size == 0 || !token->Trimmed().empty(), ValueError)
        << "the token is blank; one that nobody guesses is made by: openssl rand -hex 32";
  }
  for (const char* name : {"PORTCALL_TOKEN", "PORTCALL_FARM_TOKEN"}) WipeVariable(name);
}

int Main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // of the sessions, too: before anything is printed
  Parsed parsed = ParseOptions(argc, argv);
  if (parsed.exit_code >= 0) return parsed.exit_code;
  const Options& options = parsed.options;
  const LogStyle style = options.silent ? LogStyle::kNone : options.log_json ? LogStyle::kJson : LogStyle::kText;
  try {
    const bool joins = !options.farm.empty();
    if (joins) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // programs that an earlier session has left may look for the token
    auto token = std::make_unique<Token>();
    ReadToken(options, token.get());
    const std::string_view text =
        options.token_file.empty() ? std::string_view(token->data, token->size) : token->Trimmed();
    const size_t length = joins ? 0 : text.size();
    Secrets secrets(joins ? "" : text, joins ? text : "", joins);
    token.reset();
    if (length && length < kShortToken) {
      Log(style).Write(Event::kWeakToken,
                       "the token has " + std::to_string(length) +
                           " characters, and may be guessed; openssl rand -hex 32 makes a better one");
    }
    const int ended_by = Supervisor(options, &secrets, style).Run();
    return ended_by == SIGINT ? 128 + SIGINT : 0;
  } catch (const Error& error) {
    const std::string message(error.message());
    fprintf(stderr, "error: %s\n", message.c_str());
  } catch (const std::exception& error) {
    fprintf(stderr, "error: %s\n", error.what());
  }
  return 1;
}

}  // namespace
}  // namespace portcall::board

int main(int argc, char** argv) { return portcall::board::Main(argc, argv); }
