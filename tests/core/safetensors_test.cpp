#include "tapestry/core/safetensors.h"

#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tapestry/core/allocator.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using tests::read_file;
using tests::TempDir;
using tests::write_file;

namespace {

const std::string kGolden = tests::source_path("tests/golden/core_safetensors.safetensors");

template <class T, class F>
Tensor filled(const Shape& sizes, F&& value) {
  Tensor t = empty(sizes, dtype_of<T>);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<T>()[i] = T(value(i));
  return t;
}

/// The tensors that tests/golden/core_safetensors.py writes.
NamedTensors golden_tensors() {
  auto times = [](auto factor) {
    return [=](std::int64_t i) { return static_cast<decltype(factor)>(i - 3) * factor; };
  };
  return {{"f32", filled<float>({2, 3}, times(0.25f))},
          {"f64", filled<double>({6}, times(0.125))},
          {"f16", filled<Half>({6}, times(0.5f))},
          {"bf16", filled<BFloat16>({3, 1, 2}, times(3.0f))},
          {"i64", filled<std::int64_t>({6}, times(std::int64_t{1000000000000}))},
          {"i32", filled<std::int32_t>({6}, times(std::int32_t{1000000}))},
          {"u8", filled<std::uint8_t>({6}, [](std::int64_t i) { return i + 247; })},
          {"bool", filled<bool>({6}, [](std::int64_t i) { return i > 3; })},
          {"zero.dim", filled<float>(Shape{}, [](std::int64_t) { return 2.5f; })},
          {"empty", empty({0, 4})},
          {"empty.i64", empty({2, 0}, DType::i64)},
          {"eight",
           filled<float>({1, 1, 1, 1, 1, 1, 1, 2}, [](std::int64_t i) { return static_cast<float>(i); })},
          {"odd \"name\"\t\u00e9\u4e2d/\\", filled<std::uint8_t>({1}, [](std::int64_t) { return 1; })}};
}
const StringMap kGoldenMetadata = {{"made by", "PyTorch \"quoted\" \\ \n \u00fc"}};

/// The bytes of a file with this header and this data.
std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

/// A header entry.
std::string entry(const std::string& name, const std::string& shape, std::uint64_t begin, std::uint64_t end,
                  const std::string& dtype = "U8") {
  return concat({"\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", shape, "],\"data_offsets\":[",
                 begin, ",", end, "]}"});
}

/// A header with these entries.
std::string header(std::initializer_list<std::string> entries) {
  std::string out;
  for (const std::string& entry : entries) {
    out += out.empty() ? '{' : ',';
    out += entry;
  }
  out += '}';
  return out;
}

}  // namespace

TEST_CASE("a file that PyTorch wrote is read, with tensors of every dtype") {
  const Safetensors read = load_safetensors(kGolden);
  const NamedTensors expected = golden_tensors();
  CHECK(read.metadata == kGoldenMetadata);
  CHECK(read.tensors.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(read.tensors.count(name) == 1);
    const Tensor& found = read.tensors.at(name);
    CHECK(found.dtype() == tensor.dtype());
    CHECK(found.sizes() == tensor.sizes());
    if (tensor.numel() > 0) CHECK(std::memcmp(found.raw_data(), tensor.raw_data(), tensor.nbytes()) == 0);
  }
  const SafetensorsFile file(kGolden);
  CHECK(file.entries().size() == expected.size());
  CHECK(file.entries().back().name == "bool");
  REQUIRE(file.find("i32"));
  CHECK(file.find("i32")->sizes == Shape{6});
  CHECK(file.find("absent") == nullptr);
  CHECK(file.read("i32").data<std::int32_t>()[0] == -3000000);
  CHECK_THROWS_WITH(file.read("absent"), ContainsSubstring("has no tensor \"absent\""));
}

TEST_CASE("save_safetensors writes the same bytes as the reference implementation") {
  const TempDir dir;
  save_safetensors(dir / "ours", golden_tensors(), kGoldenMetadata);
  CHECK(read_file(dir / "ours") == read_file(kGolden));
  save_safetensors(dir / "nothing", {});
  CHECK(read_file(dir / "nothing") == file_of("{}      ", ""));
  CHECK(load_safetensors(dir / "nothing").tensors.empty());
  save_safetensors(dir / "text", {}, {{"a", ""}, {"", "b"}});
  CHECK(load_safetensors(dir / "text").metadata == StringMap{{"a", ""}, {"", "b"}});
}

TEST_CASE("PyTorch reads the files of save_safetensors") {
  const TempDir dir;
  save_safetensors(dir / "ours", golden_tensors(), {{"a", "b"}});
  const char* const python = std::getenv("TAPESTRY_PYTHON");
  const std::string command = "timeout 120 " + std::string(python ? python : "python3") + " '" +
                              tests::source_path("tests/golden/open_with_torch.py") + "' '" + (dir / "ours") +
                              "' '" + kGolden + "' > '" + (dir / "log") + "' 2>&1";
  const int status = std::system(command.c_str());
  INFO(read_file(dir / "log"));
  if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127)) {
    WARN("skipped: no Python with PyTorch and safetensors; set TAPESTRY_PYTHON to one");
    return;
  }
  CHECK(status == 0);
}

TEST_CASE("strided tensors are written row-major") {
  const TempDir dir;
  const Tensor base = filled<float>({3, 4}, [](std::int64_t i) { return static_cast<float>(i); });
  const Tensor turned = detail::raw_view(base, {4, 3}, {1, 4}, 0),
               inner = detail::raw_view(base, {2, 2}, {4, 1}, 5),
               expanded = detail::raw_view(base, {2, 2}, {0, 0}, 7);
  save_safetensors(dir / "f", {{"turned", turned}, {"inner", inner}, {"expanded", expanded}});
  const Safetensors read = load_safetensors(dir / "f");
  for (std::int64_t i = 0; i < 12; ++i)
    CHECK(read.tensors.at("turned").data<float>()[i] == static_cast<float>(i / 3 + i % 3 * 4));
  const float expected[] = {5, 6, 9, 10};
  for (std::int64_t i = 0; i < 4; ++i) {
    CHECK(read.tensors.at("inner").data<float>()[i] == expected[i]);
    CHECK(read.tensors.at("expanded").data<float>()[i] == 7);
  }
}

TEST_CASE("save_safetensors refuses invalid input, and the old file stays") {
  const TempDir dir;
  const Tensor t = empty({2});
  std::memset(t.raw_data(), 0, t.nbytes());
  save_safetensors(dir / "f", {{"a", t}});
  const std::string old = read_file(dir / "f");
  CHECK_THROWS_WITH(save_safetensors(dir / "f", {{"a", t}, {"a", t}}), ContainsSubstring("occurs twice"));
  CHECK_THROWS_AS(save_safetensors(dir / "f", {{"__metadata__", t}}), ValueError);
  CHECK_THROWS_WITH(save_safetensors(dir / "f", {{"a\xff", t}}), ContainsSubstring("is not UTF-8"));
  CHECK_THROWS_AS(save_safetensors(dir / "f", {{"a", t}}, {{"k", "\xc3"}}), ValueError);
  CHECK_THROWS_AS(save_safetensors(dir / "f", {{"a", Tensor()}}), ValueError);
  CHECK_THROWS_AS(save_safetensors(dir / "absent/f", {{"a", t}}), IoError);
  CHECK(read_file(dir / "f") == old);
}

TEST_CASE("invalid files throw IoError with the reason") {
  const TempDir dir;
  auto fails = [&](const std::string& bytes, const std::string& why) {
    write_file(dir / "bad", bytes);
    CHECK_THROWS_AS(load_safetensors(dir / "bad"), IoError);
    CHECK_THROWS_WITH(load_safetensors(dir / "bad"),
                      ContainsSubstring(why) && ContainsSubstring(dir / "bad"));
  };
  const std::string eight(8, 'x');
  SECTION("truncated or too long") {
    const std::string good = read_file(kGolden);
    for (std::size_t cut = 0; cut < good.size(); cut += cut < 16 || cut > good.size() - 16 ? 1 : 7)
      fails(good.substr(0, cut), "");
    fails(good + "x", "1 bytes after the last tensor");
    fails("", "has 0 bytes");
    CHECK_THROWS_WITH(load_safetensors(dir / "absent"), ContainsSubstring("No such file"));
    CHECK_THROWS_WITH(load_safetensors(dir.path().string()), ContainsSubstring("is not a file"));
  }
  SECTION("sizes that do not match the file") {
    fails(std::string(8, '\xff') + "{}", "claims a header of 18446744073709551615 bytes");
    fails(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}",
          "claims a header of 100000001 bytes; the limit is 100000000");
    fails(std::string("\x10\0\0\0\0\0\0\0", 8) + "{}",
          "claims a header of 16 bytes, but the file has only 10 bytes");
    fails(file_of("", ""), "does not begin with {");
    fails(file_of(header({entry("a", "1099511627776", 0, 1099511627776)}), eight),
          "are 0 to 1099511627776, but there are 8 bytes");
    fails(file_of(header({entry("a", "8", 0, 18446744073709551615u)}), eight), "but there are 8 bytes");
    fails(file_of(header({entry("a", "4294967296,4294967296,4294967296", 0, 8)}), eight),
          "whose size in bytes does not fit in 63 bits");
    fails(file_of(header({entry("a", "0,9223372036854775807,9223372036854775807", 0, 0)}), ""),
          "whose size in bytes does not fit in 63 bits");
    fails(file_of(header({entry("a", "9223372036854775808", 0, 8)}), eight),
          "has a size of 9223372036854775808");
    fails(file_of(header({entry("a", "7", 0, 8)}), eight), "has 7 bytes, but its data_offsets span 8");
    fails(file_of(header({entry("a", "8", 0, 8, "F32")}), eight),
          "has 32 bytes, but its data_offsets span 8");
    fails(file_of(header({entry("a", "2", 0, 8, "F32")}), eight + "x"), "1 bytes after the last tensor");
  }
  SECTION("offsets") {
    fails(file_of(header({entry("a", "8", 8, 0)}), eight), "are 8 to 0, but there are 8 bytes");
    fails(file_of(header({entry("a", "4", 0, 4), entry("b", "6", 2, 8)}), eight),
          "gaps and overlaps are not allowed");
    fails(file_of(header({entry("a", "8", 0, 8), entry("b", "8", 0, 8)}), eight),
          "gaps and overlaps are not allowed");
    fails(file_of(header({entry("a", "3", 0, 3), entry("b", "4", 4, 8)}), eight),
          "gaps and overlaps are not allowed");
    fails(file_of(header({entry("a", "4", 4, 8)}), eight), "gaps and overlaps are not allowed");
    fails(file_of(header({entry("a", "0", 4, 4), entry("b", "8", 0, 8)}), eight),
          "gaps and overlaps are not allowed");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[-8,0]}})", eight),
          "has a negative number");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})", eight),
          "more than two data_offsets");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})", eight), "lacks");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8e0]}})", eight), "not an integer");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,99999999999999999999]}})", eight),
          "not an integer");
  }
  SECTION("headers of a wrong form") {
    fails(file_of("[]", ""), "does not begin with {");
    fails(file_of(" {}", ""), "does not begin with {");
    fails(file_of("{} x", ""), "not valid JSON");
    fails(file_of("{\"a\":", ""), "not valid JSON");
    fails(file_of("{\"a\xff\":1}", ""), "not valid JSON");
    fails(file_of(R"({"a":1})", ""), "tensor \"a\" has a number where");
    fails(file_of(R"({"a":{}})", ""), "lacks dtype");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[8]}})", eight), "lacks");
    fails(file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", eight),
          "has dtype twice");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"more":1}})", eight),
          "unknown field \"more\"");
    fails(file_of(header({entry("a", "8", 0, 8, "F8_E4M3")}), eight),
          "is of dtype F8_E4M3, which is not supported");
    fails(file_of(header({entry("a", "4", 0, 4), entry("a", "4", 4, 8)}), eight), "\"a\" occurs twice");
    fails(file_of(header({entry("a", "1,1,1,1,1,1,1,1,8", 0, 8)}), eight), "more than 8 dimensions");
    fails(file_of(R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})", eight),
          "where the format does not allow it");
    fails(file_of(R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", eight),
          "where the format does not allow it");
    fails(file_of(R"({"a":{"dtype":"U8","shape":["8"],"data_offsets":[0,8]}})", eight),
          "where the format does not allow it");
    fails(file_of(R"({"a":{"dtype":null,"shape":[8],"data_offsets":[0,8]}})", eight),
          "where the format does not allow it");
    fails(file_of(R"({"__metadata__":{"a":1}})", ""), "metadata \"a\" is not a string");
    fails(file_of(R"({"__metadata__":{"a":{"b":"c"}}})", ""), "metadata \"a\" is not a string");
    fails(file_of(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "metadata key \"a\" occurs twice");
    fails(file_of(R"({"__metadata__":{},"__metadata__":{}})", ""), "occurs twice");
    fails(file_of(R"({"__metadata__":[]})", ""), "where the format does not allow it");
  }
  SECTION("deep nesting") {
    const std::size_t depth = 1 << 20;
    std::string lists = "{\"a\":", objects;
    lists.append(depth, '[');
    fails(file_of(lists, ""), "has a list where");
    for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    fails(file_of(objects, ""), "unknown field \"a\"");
  }
}

TEST_CASE("a header that claims too much data is refused before any allocation") {
  const TempDir dir;
  write_file(dir / "bad", file_of(header({entry("a", "1099511627776", 0, 1099511627776)}), "x"));
  const std::int64_t before = memory_stats(kCPU).allocated;
  reset_peak_memory(kCPU);
  CHECK_THROWS_AS(load_safetensors(dir / "bad"), IoError);
  CHECK(memory_stats(kCPU).peak_allocated == before);
}

TEST_CASE("booleans that are neither 0 nor 1 become true") {
  const TempDir dir;
  write_file(dir / "f", file_of(header({entry("a", "3", 0, 3, "BOOL")}), std::string("\x02\x00\xff", 3)));
  const Tensor t = load_safetensors(dir / "f").tensors.at("a");
  const unsigned char expected[] = {1, 0, 1};
  CHECK(std::memcmp(t.raw_data(), expected, 3) == 0);
}

TEST_CASE("mutated safetensors files give tensors or an IoError") {
  const TempDir dir;
  const std::string small =
      file_of(header({entry("a", "4", 0, 4), entry("b", "1", 4, 8, "F32")}), "12345678");
  for (const std::string& bytes : {read_file(kGolden), small}) {
    const int calls = tests::for_mutations<IoError>(bytes, [&](const std::string& mutated) {
      write_file(dir / "f", mutated);
      std::size_t total = 0;
      for (const auto& [name, tensor] : load_safetensors(dir / "f").tensors) total += tensor.nbytes();
      if (total > mutated.size()) throw std::logic_error("more data than the file has");
    });
    CHECK(calls > 100);
  }
}

TEST_CASE("rows of a tensor are read, and no others") {
  const TempDir dir;
  const auto count = [](std::int64_t i) { return i; };
  save_safetensors(dir / "f", {{"a", filled<float>({5, 3}, count)},
                               {"b", filled<bool>({4}, [](std::int64_t i) { return i % 2; })},
                               {"n", filled<float>(Shape{}, [](std::int64_t) { return 7; })},
                               {"e", empty({0, 4})},
                               {"w", empty({6, 0})}});
  const SafetensorsFile file(dir / "f");
  CHECK(file.bytes() == read_file(dir / "f").size());
  for (std::int64_t first = 0; first <= 5; ++first) {
    for (std::int64_t rows = 0; first + rows <= 5; ++rows) {
      const Tensor part = file.read_rows("a", first, rows);
      REQUIRE(part.sizes() == Shape{rows, 3});
      for (std::int64_t i = 0; i < part.numel(); ++i)
        CHECK(part.data<float>()[i] == static_cast<float>(first * 3 + i));
    }
  }
  CHECK(file.read_rows("b", 1, 1).data<bool>()[0]);
  CHECK_FALSE(file.read_rows("b", 2, 2).data<bool>()[0]);
  CHECK(file.read_rows("n", 0, 1).sizes() == Shape{});
  CHECK(file.read_rows("n", 0, 1).data<float>()[0] == 7);
  CHECK(file.read_rows("n", 1, 0).numel() == 0);
  CHECK(file.read_rows("e", 0, 0).sizes() == Shape{0, 4});
  CHECK(file.read_rows("w", 2, 3).sizes() == Shape{3, 0});
  constexpr std::int64_t kMost = INT64_MAX;
  const std::pair<std::int64_t, std::int64_t> wrong[] = {
      {-1, 1},    {0, -1},        {0, 6}, {5, 1},         {6, 0},        {kMost, 1},
      {1, kMost}, {kMost, kMost}, {3, 3}, {INT64_MIN, 0}, {0, INT64_MIN}};
  for (const auto& [first, rows] : wrong)
    CHECK_THROWS_WITH(file.read_rows("a", first, rows), ContainsSubstring("tensor \"a\" were requested"));
  CHECK_THROWS_AS(file.read_rows("n", 0, 2), IndexError);
  CHECK_THROWS_AS(file.read_rows("e", 0, 1), IndexError);
  CHECK_THROWS_WITH(file.read_rows("absent", 0, 0), ContainsSubstring("has no tensor"));
  write_file(dir / "f", read_file(dir / "f").substr(0, file.bytes() - 40));  // truncated while it is open
  CHECK_THROWS_AS(file.read_rows("a", 4, 1), IoError);
}

TEST_CASE("a file that is written piece by piece has the same bytes") {
  const TempDir dir;
  const NamedTensors tensors = golden_tensors();
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, t] : tensors) entries.push_back({name, t.dtype(), t.sizes()});
  SafetensorsWriter writer(dir / "pieces", entries, kGoldenMetadata);
  for (const SafetensorsWriter::Entry& entry : writer.entries()) {
    for (const auto& [name, t] : tensors) {
      if (name != entry.name) continue;
      if (t.dim() == 0) writer.write(t);
      else
        for (std::int64_t i = 0; i < t.size(0); ++i) writer.write(t.narrow(0, i, 1));
    }
  }
  CHECK_FALSE(std::filesystem::exists(dir / "pieces"));
  writer.commit();
  CHECK(read_file(dir / "pieces") == read_file(kGolden));

  SafetensorsWriter wrong(dir / "wrong", {{"a", DType::f32, {2, 2}}});
  CHECK_THROWS_WITH(wrong.write(empty({3, 2})), ContainsSubstring("16 bytes are left"));
  CHECK_THROWS_WITH(wrong.write(empty({2, 2}, DType::i32)), ContainsSubstring("is written to a of float32"));
  wrong.write(empty({1, 2}));
  CHECK_THROWS_WITH(wrong.commit(), ContainsSubstring("a has not been written completely"));
  wrong.write(empty({1, 2}));
  CHECK_THROWS_WITH(wrong.write(empty({1})), ContainsSubstring("after the last tensor"));
  CHECK_THROWS_WITH(SafetensorsWriter(dir / "x", {{"a", DType::f32, {-1}}}), ContainsSubstring("negative"));
  CHECK_THROWS_WITH(SafetensorsWriter(dir / "x", {{"a", DType::f32, {INT64_MAX, 2}}}),
                    ContainsSubstring("too large"));
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}), ValueError);
  CHECK_FALSE(std::filesystem::exists(dir / "wrong"));
}
