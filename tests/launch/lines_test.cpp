#include "tapestry/distributed/launch/internal/lines.h"

#include <random>
#include <vector>

#include "tests/support/catch.h"

using namespace tapestry::distributed::launch;

namespace {

using Lines = std::vector<std::string>;

/// Feeds `bytes` in pieces of `step` bytes.
Lines split(const std::string& bytes, std::size_t step) {
  Lines lines;
  LineSplitter splitter;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  for (std::size_t at = 0; at < bytes.size(); at += step)
    splitter.feed(std::string_view(bytes).substr(at, step), sink);
  splitter.finish(sink);
  return lines;
}

constexpr std::size_t kMax = LineSplitter::kMaxLine;

/// Not inlined, because g++ 12 otherwise gives a false warning about overlapping copies.
[[gnu::noinline]] std::string many(std::size_t n) { return std::string(n, 'a'); }

}  // namespace

TEST_CASE("lines are whole for any division of the bytes") {
  const std::string bytes("one\n\ntwo\r\n\0\xff\x1b[0m\nrest", 21);
  const Lines expected = {"one", "", "two\r", std::string("\0\xff\x1b[0m", 6), "rest"};
  for (const std::size_t step : {1, 2, 3, 5, 100}) CHECK(split(bytes, step) == expected);
  CHECK(split("", 1).empty());
  CHECK(split("\n", 1) == Lines{""});
  CHECK(split("a\n", 1) == Lines{"a"});
}

TEST_CASE("a partial line is delivered when it ends") {
  Lines lines;
  LineSplitter splitter;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  splitter.feed("par", sink);
  CHECK(lines.empty());
  splitter.feed("tial\nnext", sink);
  CHECK(lines == Lines{"partial"});
  splitter.finish(sink);
  splitter.finish(sink);
  CHECK(lines == Lines{"partial", "next"});
}

TEST_CASE("an overlong line is delivered in pieces without losing a byte") {
  const std::string megabyte(1 << 20, 'x');
  for (const std::size_t step : {std::size_t{1000}, kMax - 1, kMax, kMax + 1, std::size_t{1} << 20}) {
    const Lines lines = split(megabyte + "\nafter\n", step);
    REQUIRE(lines.size() == (1 << 20) / kMax + 1);
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) CHECK(lines[i].size() == kMax);
    CHECK(lines.back() == "after");
  }
}

TEST_CASE("lines of about kMaxLine bytes are split correctly") {
  for (const std::size_t step : {std::size_t{777}, kMax, kMax + 2, 4 * kMax}) {
    CHECK(split(many(kMax - 1) + "\nb\n", step) == Lines{many(kMax - 1), "b"});
    CHECK(split(many(kMax) + "\nb\n", step) == Lines{many(kMax), "b"});
    CHECK(split(many(kMax + 1) + "\nb\n", step) == Lines{many(kMax), "a", "b"});
    CHECK(split(many(kMax) + "\n\nb", step) == Lines{many(kMax), "", "b"});
    CHECK(split(many(2 * kMax), step) == Lines{many(kMax), many(kMax)});
  }
}

TEST_CASE("random bytes in random pieces give lines that join to the same bytes") {
  std::mt19937 random(7);
  std::string bytes;
  for (int i = 0; i < 300'000; ++i) bytes += static_cast<char>(random() % 50 == 0 ? '\n' : random() % 256);
  bytes += '\n';
  std::string joined;
  LineSplitter splitter;
  const auto sink = [&](std::string_view line) { joined.append(line).append("\n"); };
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t step = 1 + random() % 5000;
    splitter.feed(std::string_view(bytes).substr(at, step), sink);
    at += step;
  }
  splitter.finish(sink);
  CHECK((joined == bytes));
}

TEST_CASE("Tail keeps the last lines and truncates each of them") {
  Tail tail;
  CHECK(tail.lines().empty());
  for (int i = 0; i < 100; ++i) tail.add(std::to_string(i));
  REQUIRE(tail.lines().size() == Tail::kLines);
  CHECK(tail.lines().front() == "80");
  CHECK(tail.lines().back() == "99");
  tail.add(std::string(5000, 'x'));
  CHECK(tail.lines().back().size() < Tail::kWidth + 50);
  CHECK_THAT(tail.lines().back(), ContainsSubstring("(5000 bytes)"));
}
