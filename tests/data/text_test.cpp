#include "tapestry/data/formats/text.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tapestry/data/dataloader.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::data;
using tests::TempDir;
using tests::write_file;

namespace {

template <class T>
std::string ids(std::int64_t count, T first = 0) {
  std::string out;
  for (std::int64_t i = 0; i < count; ++i) {
    const T id = static_cast<T>(first + static_cast<T>(i));
    out.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  return out;
}

std::vector<std::int64_t> values(const Tensor& t) {
  return {t.data<std::int64_t>(), t.data<std::int64_t>() + t.numel()};
}

}  // namespace

TEST_CASE("TextDataset returns the lines of a file without their ends") {
  const TempDir dir;
  const auto lines = [&](const std::string& text, TextDataset::Options options = {}) {
    write_file(dir / "t", text);
    const TextDataset data(dir / "t", options);
    std::vector<std::string> out;
    for (std::int64_t i = 0; i < data.size(); ++i) out.push_back(data.get(i));
    return out;
  };
  using Lines = std::vector<std::string>;
  CHECK(lines("one\ntwo\r\n\nlast") == Lines{"one", "two", "", "last"});
  CHECK(lines("one\ntwo\r\n\nlast\n", {.skip_empty = true}) == Lines{"one", "two", "last"});
  CHECK(lines("").empty());
  CHECK(lines("\n") == Lines{""});
  CHECK(lines("\r") == Lines{""});
  CHECK(lines(std::string("a\0b\n", 4)) == Lines{std::string("a\0b", 3)});
  write_file(dir / "t", "a\nb\nc\n");
  const TextDataset data(dir / "t");
  CHECK_THROWS_AS(data.get(3), IndexError);
  CHECK_THROWS_AS(data.get(-1), IndexError);
  DataLoader loader(data, {.batch_size = 2, .num_workers = 2});
  std::vector<Lines> batches;
  for (auto& batch : loader) batches.push_back(batch);
  CHECK(batches == std::vector<Lines>{{"a", "b"}, {"c"}});
  CHECK_THROWS_WITH(TextDataset(dir / "absent"), ContainsSubstring("absent: cannot be opened: No such file"));
  CHECK_THROWS_WITH(TextDataset(dir.path().string()), ContainsSubstring("is not a regular file"));
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  alarm(20);  // ends the program if open() blocks
  CHECK_THROWS_WITH(TextDataset(dir / "pipe"), ContainsSubstring("is not a regular file"));
  alarm(0);
}

TEST_CASE("TokenDataset cuts windows and their targets from a file of ids") {
  const TempDir dir;
  write_file(dir / "u16", ids<std::uint16_t>(12, 65529));
  const TokenDataset plain(dir / "u16", {.length = 4});
  CHECK(plain.tokens() == 12);
  CHECK(plain.size() == 2);  // the third window has no target for its last id
  const Example second = plain.get(1);
  CHECK(values(second.input) == std::vector<std::int64_t>{65533, 65534, 65535, 0});
  CHECK(values(second.target) == std::vector<std::int64_t>{65534, 65535, 0, 1});
  const TokenDataset dense_windows(dir / "u16", {.length = 4, .stride = 1});
  CHECK(dense_windows.size() == 8);
  CHECK(values(dense_windows.get(7).target).back() == 4);
  CHECK(TokenDataset(dir / "u16", {.length = 11}).size() == 1);
  const std::int64_t indices[] = {3, 0};
  const Example batch = *dense_windows.get_batch(indices);
  REQUIRE(batch.input.sizes() == Shape{2, 4});
  CHECK(values(row(batch.input, 0)) == values(dense_windows.get(3).input));
  CHECK(values(row(batch.target, 1)) == values(dense_windows.get(0).target));
  CHECK_THROWS_AS(plain.get(2), IndexError);
  CHECK(TokenDataset(dir / "u16", {.length = 1, .stride = 5}).size() == 3);

  const auto check_type = [&](TokenType type, const std::string& bytes, std::int64_t first) {
    write_file(dir / "ids", bytes);
    CHECK(values(TokenDataset(dir / "ids", {.length = 2, .type = type}).get(0).target) ==
          std::vector<std::int64_t>{first + 1, first + 2});
  };
  check_type(TokenType::u8, ids<std::uint8_t>(3, 200), 200);
  check_type(TokenType::i32, ids<std::int32_t>(3, 100'000), 100'000);
  check_type(TokenType::i64, ids<std::int64_t>(3, -5), -5);

  for (const int workers : {0, 2}) {
    DataLoader loader(dense_windows, {.batch_size = 3, .shuffle = true, .num_workers = workers});
    std::int64_t windows = 0;
    for (auto& [input, target] : loader) windows += input.size(0);
    CHECK(windows == 8);
  }
}

TEST_CASE("TokenDataset refuses files of another type, and ids outside of the vocabulary") {
  const TempDir dir;
  write_file(dir / "odd", "12345");
  CHECK_THROWS_WITH(TokenDataset(dir / "odd", {.length = 1}),
                    ContainsSubstring("5 bytes, which is no multiple of 2"));
  write_file(dir / "short", ids<std::uint16_t>(4));
  CHECK_THROWS_WITH(TokenDataset(dir / "short", {.length = 4}),
                    ContainsSubstring("4 ids") && ContainsSubstring("need 5"));
  write_file(dir / "empty", "");
  CHECK_THROWS_AS(TokenDataset(dir / "empty", {.length = 1}), IoError);
  CHECK_THROWS_AS(TokenDataset(dir / "short", {.length = 0}), ValueError);
  CHECK_THROWS_AS(TokenDataset(dir / "short", {.length = 1, .stride = -1}), ValueError);
  write_file(dir / "ids", ids<std::uint16_t>(9));
  const TokenDataset data(dir / "ids", {.length = 4, .stride = 4, .vocab_size = 8});
  CHECK_NOTHROW(data.get(0));
  CHECK_THROWS_WITH(data.get(1), ContainsSubstring("id 8 at position 8 is not in [0, 8)"));
  DataLoader loader(data, {.batch_size = 2});
  CHECK_THROWS_WITH(loader.begin(), ContainsSubstring("sample 1") && ContainsSubstring("id 8 at position 8"));
}
