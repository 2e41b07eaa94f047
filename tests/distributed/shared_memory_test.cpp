// Tests shared memory segments between processes of one host.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tapestry/distributed/comm/internal/shared_memory.h"
#include "tapestry/distributed/comm/store.h"
#include "tests/distributed/store_support.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

constexpr std::size_t kBytes = 100'000;

std::string error_at(const SharedMemoryAddress& address) {
  return tests::message_of<DistributedError>([&] { SharedMemory opened(address); });
}

std::string path_of(const SharedMemoryAddress& address) {
  return "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
}

int mappings() {
  std::ifstream in("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(in, line);) count += line.find("memfd:tapestry") != std::string::npos;
  return count;
}

std::ptrdiff_t files_in_shm() {
  std::error_code none;
  return std::distance(std::filesystem::directory_iterator("/dev/shm", none), {});
}

}  // namespace

TEST_CASE("a segment begins with zeros, and all mappings see the same memory") {
  const auto before = files_in_shm();
  {
    SharedMemory memory(kBytes);
    CHECK(memory.bytes() == kBytes);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0);
    CHECK(std::all_of(memory.data(), memory.data() + kBytes, [](std::byte b) { return b == std::byte{0}; }));
    const SharedMemory again(memory.address());
    REQUIRE(again.bytes() == kBytes);
    REQUIRE(again.data() != memory.data());
    memory.data()[kBytes - 1] = std::byte{7};
    CHECK(again.data()[kBytes - 1] == std::byte{7});
    CHECK(mappings() == 2);
    CHECK(files_in_shm() == before);
  }
  CHECK(mappings() == 0);
}

TEST_CASE("another process can open a segment, which is freed after the last process") {
  auto memory = std::make_unique<SharedMemory>(kBytes);
  const SharedMemoryAddress address = memory->address();
  tests::Process other([&] {
    const SharedMemory opened(address);
    opened.data()[5] = std::byte{9};
    while (opened.data()[6] != std::byte{9}) usleep(1000);
    kill(getpid(), SIGKILL);
  });
  const auto limit = Clock::now() + tests::kSoon;
  auto* const said = reinterpret_cast<volatile unsigned char*>(memory->data() + 5);
  while (*said != 9 && Clock::now() < limit) usleep(1000);
  CHECK(*said == 9);
  memory->data()[6] = std::byte{9};
  CHECK(other.join() == -SIGKILL);
  memory.reset();
  CHECK(mappings() == 0);
}

TEST_CASE("a closed segment cannot be opened, and other files are refused") {
  SharedMemory memory(kBytes);
  const SharedMemoryAddress good = memory.address();
  CHECK(error_at(good) == "");
  SharedMemoryAddress bad = good;
  bad.token[3] ^= 1;
  CHECK_THAT(error_at(bad), ContainsSubstring(path_of(good) + " is a different segment"));
  bad = good;
  bad.bytes += 1;
  CHECK_THAT(error_at(bad), ContainsSubstring(path_of(good) + " is not a shared segment"));
  bad.bytes = 8;
  CHECK_THAT(error_at(bad), ContainsSubstring("is not a shared segment"));
  bad = good;
  std::strcpy(bad.process_namespace, "pid:[1]");
  CHECK_THAT(error_at(bad), ContainsSubstring("is in the PID namespace pid:[1]"));
  bad = good;
  bad.process = 1 << 22;
  CHECK_THAT(error_at(bad), ContainsSubstring("cannot open /proc/4194304/fd/"));
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  bad = good;
  bad.descriptor = null;
  CHECK_THAT(error_at(bad), ContainsSubstring("is not a shared segment"));
  close(null);

  memory.close();
  CHECK_THAT(error_at(good), ContainsSubstring("cannot open"));
  memory.data()[0] = std::byte{1};  // this mapping still works
}

TEST_CASE("a segment can be made under a profiler's signals") {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, &before);
  const itimerval every_millisecond{{0, 1000}, {0, 1000}}, never{};
  setitimer(ITIMER_REAL, &every_millisecond, nullptr);
  CHECK_NOTHROW(SharedMemory(64 << 20));  // large enough that the timer's signals interrupt fallocate;
                                          // Linux 6.18 restarts fallocate itself
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

TEST_CASE("a segment cannot be truncated while it is in use") {
  const SharedMemory memory(kBytes);
  const int fd = open(path_of(memory.address()).c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(fd >= 0);
  CHECK(ftruncate(fd, 10) != 0);
  CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) ==
        0);  // a hole may be punched: it reads as zeros and raises no SIGBUS
  CHECK(memory.data()[70] == std::byte{0});
  close(fd);
}

TEST_CASE("a segment beyond the limits of the process is an error at once") {
  tests::Process limited([] {
    rlimit files{};
    getrlimit(RLIMIT_FSIZE, &files);
    files.rlim_cur = 64 << 10;
    setrlimit(RLIMIT_FSIZE, &files);
    const std::string error = tests::message_of<DistributedError>([] { SharedMemory memory(kBytes); });
    if (error.find("limited to 65536 bytes (ulimit -f), and 100064 are needed") == std::string::npos)
      throw std::runtime_error("said: " + error);
  });
  CHECK(limited.join() == 0);
}
