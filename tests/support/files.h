#pragma once
// Files for tests: a folder of one's own, bytes in and out, a disk that is full, and random mutations of
// bytes.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace tests {

/// A new empty folder, removed with all that is in it at the end of the scope.
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

/// No file of this process may grow beyond `bytes`: what a full disk looks like to write().
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
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// One to four changes: a byte set, a bit flipped, a piece removed, doubled or overwritten by 0xff, the end
/// cut off.
inline std::string mutate(std::string bytes, std::mt19937_64& random) {
  auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % (n ? n : 1)); };
  for (std::size_t changes = 1 + below(4); changes > 0 && !bytes.empty(); --changes) {
    // Headers are short and first: half of the changes go there.
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

/// Calls `parse(mutated)` for mutations of `bytes` until `limit` is over, and on a busy machine for up to half a
/// minute more until there were enough; returns the number of calls. `parse` may throw nothing but E.
template <class E, class F>
int for_mutations(const std::string& bytes, std::chrono::milliseconds limit, F&& parse) {
  std::mt19937_64 random(20240607);
  constexpr int kEnough = 150, kMost = 200'000;
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
