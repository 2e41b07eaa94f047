#pragma once
// File helpers for tests: temporary folders, reading and writing bytes, a simulated full disk, and random
// mutations.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "tests/support/effort.h"

namespace tests {

/// A new empty folder. The destructor removes it with its contents.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tapestry-test-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed for " + pattern);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// While this object exists, no file of this process may grow beyond `bytes`. write() fails as on a full
/// disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &saved_);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = saved_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &saved_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit saved_{};
  void (*old_handler_)(int) = nullptr;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::ostringstream bytes;
  bytes << in.rdbuf();  // in blocks; an iterator over bytes takes seconds per file under a sanitizer
  return std::move(bytes).str();
}

/// Applies one to four random changes: set a byte, flip a bit, remove, duplicate or overwrite a piece, or
/// truncate.
inline std::string mutate(std::string bytes, std::mt19937_64& random) {
  auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % (n ? n : 1)); };
  for (std::size_t changes = 1 + below(4); changes > 0 && !bytes.empty(); --changes) {
    // Half of the changes go to the first 64 bytes, because headers are short and come first.
    const std::size_t at = below(2) ? below(bytes.size()) : below(std::min<std::size_t>(bytes.size(), 64));
    const std::size_t length = std::min(bytes.size() - at, 1 + below(9));
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4:
        bytes.replace(at, length, length, '\xff');
        break;
      case 5:
        bytes.resize(at);
        break;
    }
  }
  return bytes;
}

/// Calls `parse(mutated)` for mutations of `bytes` for some time: longer in builds with a sanitizer, which
/// find more. On a busy machine it continues for up to 30 more seconds until 150 calls are done. Returns the
/// number of calls. `parse` may throw only E.
template <class E, class F>
int for_mutations(const std::string& bytes, F&& parse) {
  std::mt19937_64 random(20240607);
  constexpr int kEnough = 150, kMost = 200'000;
  constexpr std::chrono::milliseconds limit(tapestry::kSanitized ? 1000 : 300);
  const auto end = std::chrono::steady_clock::now() + limit;
  int calls = 0;
  while (calls < kMost) {
    const auto now = std::chrono::steady_clock::now();
    if (now > (calls < kEnough ? end + std::chrono::seconds(30) : end)) break;
    ++calls;
    try {
      parse(mutate(bytes, random));
    } catch (const E&) {
    }
  }
  return calls;
}

}  // namespace tests
