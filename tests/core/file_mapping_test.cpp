#include "tapestry/core/internal/file_mapping.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;

namespace {

// The number of pages from `data` on that are in this process's memory (Linux's pagemap, bit 63).
std::int64_t present(const std::uint8_t* data, std::int64_t pages) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < pages; ++i) {
    std::uint64_t entry = 0;
    const auto at = static_cast<off_t>(
        (reinterpret_cast<std::uintptr_t>(data) / page + static_cast<std::uintptr_t>(i)) * sizeof entry);
    REQUIRE(pread(file, &entry, sizeof entry, at) == static_cast<ssize_t>(sizeof entry));
    count += static_cast<std::int64_t>(entry >> 63);
  }
  close(file);
  return count;
}

}  // namespace

TEST_CASE("released pages of a file leave the process's memory and come back unchanged") {
  const tests::TempDir folder;
  const std::int64_t page = sysconf(_SC_PAGESIZE), pages = 64;
  std::string bytes;
  for (std::int64_t i = 0; i < pages * page; ++i) bytes += static_cast<char>(i * 7 + i / 251);
  tests::write_file(folder / "file", bytes);
  const auto mapping = detail::FileMapping::open("test", folder / "file");
  std::uint8_t* const data = mapping->data();
  const auto expect = [&](std::int64_t i) {
    return static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(i)]);
  };
  for (std::int64_t i = 0; i < pages; ++i) CHECK(data[i * page] == expect(i * page));
  REQUIRE(present(data, pages) == pages);

  // Pages 1 to 60 are in the range as a whole; the changed bytes are on the pages at its ends.
  data[page / 2 - 1] = 1;
  data[61 * page + 5] = 2;
  detail::release_pages(data + page / 2, static_cast<std::uint64_t>(60 * page + page / 2 + 5));
  CHECK(present(data, pages) == pages - 60);
  CHECK(data[page / 2 - 1] == 1);
  CHECK(data[61 * page + 5] == 2);
  std::int64_t wrong = 0;
  for (std::int64_t i = page; i < 61 * page; ++i) wrong += data[i] != expect(i);
  CHECK(wrong == 0);

  // Memory that is no file, and ranges beyond the file, are left alone.
  std::vector<std::uint8_t> heap(static_cast<std::size_t>(8 * page), 9);
  detail::release_pages(heap.data(), heap.size());
  CHECK(heap == std::vector<std::uint8_t>(heap.size(), 9));
  detail::release_pages(data + page, static_cast<std::uint64_t>(pages * page));
  CHECK(present(data, pages) == pages);
  detail::release_pages(data + 5, 100);
  CHECK(present(data, pages) == pages);
}
