#include "tapestry/core/gguf.h"

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

std::map<std::string, Tensor> recorded() {
  return load_safetensors(tests::source_path("tests/golden/core_gguf.safetensors")).tensors;
}

std::string bytes_of(const Tensor& t) { return {static_cast<const char*>(t.raw_data()), t.nbytes()}; }

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string u32(std::uint32_t value) { return raw(value); }
std::string u64(std::uint64_t value) { return raw(value); }
std::string text(const std::string& value) { return u64(value.size()) + value; }
std::string head(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
  return "GGUF" + u32(version) + u64(tensors) + u64(keys);
}
/// The header entry of a tensor; sizes have the fastest first.
std::string info(const std::string& name, std::initializer_list<std::uint64_t> sizes, std::uint32_t type,
                 std::uint64_t offset) {
  std::string out = text(name) + u32(static_cast<std::uint32_t>(sizes.size()));
  for (const std::uint64_t size : sizes) out += u64(size);
  return out + u32(type) + u64(offset);
}
std::string padded(std::string bytes, std::size_t to = 32) {
  bytes.resize((bytes.size() + to - 1) / to * to);
  return bytes;
}

}  // namespace

TEST_CASE("a file that Python's gguf wrote is read") {
  const auto golden = recorded();
  const TempDir dir;
  write_file(dir / "f.gguf", bytes_of(golden.at("file")));
  const GgufFile file(dir / "f.gguf");
  const GgufMetadata& m = file.metadata();
  CHECK(file.version() == 3);
  CHECK(file.bytes() == golden.at("file").nbytes());
  CHECK(m.string("general.architecture") == "llama");
  CHECK(m.integer("u8") == 200);
  CHECK(m.integer("i8") == -100);
  CHECK(m.integer("u16") == 60000);
  CHECK(m.integer("i16") == -30000);
  CHECK(m.integer("u32") == 4000000000);
  CHECK(m.integer("i32") == -2000000000);
  CHECK(m.number("f32") == static_cast<double>(0.1f));
  CHECK(m.flag("yes", false));
  CHECK_FALSE(m.flag("no", true));
  CHECK(m.string("text") == "gr\u00fc\u00dfe");
  CHECK(m.integer("i64") == -(std::int64_t{1} << 62));
  CHECK(m.number("f64") == 0.1);
  CHECK(m.number("i16") == -30000);
  CHECK(m.strings("words") == std::vector<std::string>{"", "a", "\u4e2d"});
  CHECK(m.integers("ints") == std::vector<std::int64_t>{1, -2, 3});
  CHECK(m.integers("bytes") == std::vector<std::int64_t>{1, 255});
  CHECK(std::get<std::vector<float>>(std::get<GgufArray>(*m.find("floats"))) ==
        std::vector<float>{0.5f, 1.5f});
  CHECK(std::get<std::vector<bool>>(std::get<GgufArray>(*m.find("flags"))) ==
        std::vector<bool>{true, false, true});
  CHECK(m.integer("absent", 5) == 5);
  CHECK(m.number("absent", 0.5) == 0.5);
  CHECK(m.string("absent", "x") == "x");
  CHECK(m.flag("absent", true));
  CHECK_FALSE(m.has("absent"));
  CHECK_THROWS_WITH(m.integer("absent"), ContainsSubstring("f.gguf: has no metadata \"absent\""));
  CHECK_THROWS_WITH(m.integer("text"), ContainsSubstring("\"text\" is a string, but an integer is expected"));
  CHECK_THROWS_WITH(m.integer("f32"), ContainsSubstring("is a number, but an integer"));
  CHECK_THROWS_WITH(m.integer("yes"), ContainsSubstring("is a boolean, but an integer"));
  CHECK_THROWS_WITH(m.integer("u64"), ContainsSubstring("9223372036854775809, which is too large"));
  CHECK_THROWS_WITH(m.number("yes"), ContainsSubstring("a number is expected"));
  CHECK_THROWS_AS(m.string("u8"), IoError);
  CHECK_THROWS_AS(m.flag("u8", false), IoError);
  CHECK_THROWS_AS(m.strings("ints"), IoError);
  CHECK_THROWS_AS(m.strings("text"), IoError);
  CHECK_THROWS_AS(m.integers("floats"), IoError);
  CHECK_THROWS_AS(m.integers("flags"), IoError);

  REQUIRE(file.entries().size() == 4);
  const Tensor matrix = file.packed("matrix").unpack();
  CHECK(matrix.sizes() == Shape{2, 3});
  for (int i = 0; i < 6; ++i) CHECK(matrix.data<float>()[i] == static_cast<float>(i));
  CHECK(file.packed("half").type() == BlockType::f16);
  CHECK(file.packed("half").unpack().data<float>()[1] == -2);
  CHECK(file.packed("last").unpack().data<float>()[0] == 7);
  const PackedTensor& packed = file.packed("packed");
  CHECK(packed.sizes() == Shape{4, 96});
  CHECK(std::memcmp(packed.data(), golden.at("q8/blocks").raw_data(), packed.bytes()) == 0);
  CHECK(file.find("absent") == nullptr);
  CHECK_THROWS_WITH(file.packed("absent"), ContainsSubstring("has no tensor \"absent\""));
}

TEST_CASE("tensors of a file share its memory, outlive it, and do not change it") {
  const auto golden = recorded();
  const TempDir dir;
  const std::string bytes = bytes_of(golden.at("file"));
  write_file(dir / "f.gguf", bytes);
  Tensor matrix;
  PackedTensor packed;
  {
    const GgufFile file(dir / "f.gguf");
    matrix = file.packed("matrix").tensor();
    packed = file.packed("packed");
    CHECK(matrix.raw_data() == static_cast<const void*>(file.packed("matrix").data()));
  }
  std::filesystem::remove(dir / "f.gguf");
  write_file(dir / "g.gguf", bytes);
  CHECK(matrix.data<float>()[5] == 5);
  matrix.data<float>()[5] = 9;
  CHECK(packed.unpack().sizes() == Shape{4, 96});
  CHECK(read_file(dir / "g.gguf") == bytes);
}

TEST_CASE("written files are those of Python's gguf, and writing and reading is the identity") {
  const auto golden = recorded();
  const TempDir dir;
  const std::string bytes = bytes_of(golden.at("file"));
  write_file(dir / "theirs", bytes);
  const GgufFile theirs(dir / "theirs");
  std::vector<GgufWriter::Entry> entries;
  for (const auto& [name, tensor] : theirs.entries())
    entries.push_back({name, tensor.type(), tensor.sizes()});
  GgufWriter writer(dir / "ours", entries, theirs.metadata());
  for (const auto& [name, tensor] : theirs.entries()) writer.write(tensor);
  CHECK_FALSE(std::filesystem::exists(dir / "ours"));
  writer.commit();
  CHECK(read_file(dir / "ours") == bytes);
  // From the numbers.
  GgufWriter again(dir / "again", entries, theirs.metadata());
  again.write(theirs.packed("matrix").unpack());
  again.write(theirs.packed("half").unpack());
  again.write(golden.at("q8/in"));
  again.write(theirs.packed("last").unpack());
  again.commit();
  CHECK(read_file(dir / "again") == bytes);
}

TEST_CASE("alignment, and version 2") {
  const TempDir dir;
  GgufMetadata metadata;
  metadata.set("general.alignment", std::uint32_t{128});
  Tensor x = empty({3});
  for (int i = 0; i < 3; ++i) x.data<float>()[i] = static_cast<float>(i);
  GgufWriter writer(dir / "f", {{"a", BlockType::f32, {3}}, {"b", BlockType::f16, {3}}}, metadata);
  writer.write(x);
  writer.write(x);
  writer.commit();
  std::string bytes = read_file(dir / "f");
  CHECK(bytes.size() % 128 == 0);
  CHECK(GgufFile(dir / "f").packed("b").unpack().data<float>()[2] == 2);
  bytes[4] = 2;
  write_file(dir / "f", bytes);
  CHECK(GgufFile(dir / "f").version() == 2);
  CHECK(GgufFile(dir / "f").packed("b").unpack().data<float>()[2] == 2);
  write_file(dir / "f", head(0, 0));
  CHECK(GgufFile(dir / "f").entries().empty());
}

TEST_CASE("invalid input of GgufWriter is refused, and the old file stays") {
  const TempDir dir;
  write_file(dir / "f", "old");
  const GgufMetadata none;
  using Entries = std::vector<GgufWriter::Entry>;
  const auto refuse = [&](const Entries& entries, const GgufMetadata& metadata, const std::string& why) {
    CHECK_THROWS_WITH(GgufWriter(dir / "f", entries, metadata), ContainsSubstring(why));
    CHECK_THROWS_AS(GgufWriter(dir / "f", entries, metadata), ValueError);
  };
  refuse({{"a", BlockType::f32, {1}}, {"a", BlockType::f32, {1}}}, none, "occurs twice");
  refuse({{"a", BlockType::q8_0, {2, 33}}}, none, "whole blocks");
  refuse({{"a", BlockType::f32, Shape{}}}, none, "1 to 4 dimensions");
  refuse({{"a", BlockType::f32, {1, 1, 1, 1, 1}}}, none, "1 to 4 dimensions");
  refuse({{"a", BlockType::f32, {INT64_MAX, INT64_MAX}}}, none, "too large");
  refuse({{std::string(70000, 'x'), BlockType::f32, {1}}}, none, "70000 bytes");
  GgufMetadata metadata;
  metadata.set("general.alignment", std::uint32_t{24});
  refuse({}, metadata, "power of two");
  GgufMetadata no_key;
  no_key.set("", true);
  refuse({}, no_key, "key of the metadata has 0 bytes");
  GgufWriter writer(dir / "f", {{"a", BlockType::f32, {2}}}, none);
  CHECK_THROWS_WITH(writer.commit(), ContainsSubstring("a has not been written"));
  CHECK_THROWS_WITH(writer.write(empty({3})), ContainsSubstring("F32 [3] is written to a of F32 [2]"));
  CHECK_THROWS_AS(writer.write(Tensor()), ValueError);
  Tensor x = empty({2});
  std::memset(x.raw_data(), 0, x.nbytes());
  writer.write(x);
  CHECK_THROWS_WITH(writer.write(x), ContainsSubstring("after the last tensor"));
  CHECK(read_file(dir / "f") == "old");
  CHECK_THROWS_AS(GgufWriter(dir / "absent/f", {}, none), IoError);
}

TEST_CASE("hostile GGUF files throw IoError with the reason, and allocate nothing for what they claim") {
  const TempDir dir;
  auto fails = [&](const std::string& bytes, const std::string& why) {
    CAPTURE(why);
    write_file(dir / "bad", bytes);
    const std::int64_t before = memory_stats(kCPU).allocated;
    reset_peak_memory(kCPU);
    CHECK_THROWS_AS(GgufFile(dir / "bad"), IoError);
    CHECK_THROWS_WITH(GgufFile(dir / "bad"), ContainsSubstring(why) && ContainsSubstring(dir / "bad"));
    CHECK(memory_stats(kCPU).peak_allocated == before);
  };
  constexpr std::uint64_t kHuge = UINT64_MAX;
  const std::string data(64, 'x');
  SECTION("truncated") {
    const std::string good = bytes_of(recorded().at("file"));
    for (std::size_t cut = 0; cut + 32 < good.size(); cut += cut < 64 || cut + 200 > good.size() ? 1 : 13)
      fails(good.substr(0, cut), "");
    CHECK_THROWS_WITH(GgufFile(dir / "absent"), ContainsSubstring("No such file"));
    CHECK_THROWS_WITH(GgufFile(dir.path().string()), ContainsSubstring("is not a regular file"));
  }
  SECTION("the beginning") {
    fails("", "ends inside the magic number");
    fails("GGML" + head(0, 0).substr(4), "does not begin with GGUF");
    fails(head(0, 0, 1), "has version 1");
    fails(head(0, 0, 4), "has version 4");
    fails(head(0, 0, 0), "has version 0");
    fails(head(0, 0, 0x03000000), "is big-endian");
    fails(head(kHuge, 0), "claims 18446744073709551615 tensors, but only 0 bytes");
    fails(head(0, kHuge), "claims 18446744073709551615 metadata, but only 0 bytes");
    fails(head(0, 1000) + data, "claims 1000 metadata, but only 64 bytes");
  }
  SECTION("metadata") {
    const auto with = [&](const std::string& entry) { return head(0, 1) + entry + std::string(16, '\0'); };
    fails(with(u64(kHuge) + "abcd"), "ends inside a key, which needs 18446744073709551615 bytes");
    fails(with(text("k") + u32(8) + u64(kHuge)), "ends inside a string");
    fails(with(text("k") + u32(8) + u64(1u << 30)), "ends inside a string");
    fails(with(text("k") + u32(13)), "\"k\" has the type 13, which does not exist");
    fails(with(text("k\n\xff") + u32(UINT32_MAX)), "\"k??\" has the type 4294967295");
    fails(with(text("k") + u32(9) + u32(5) + u64(kHuge)), "claims 18446744073709551615 array elements");
    fails(with(text("k") + u32(9) + u32(0) + u64(1u << 30)), "claims 1073741824 array elements");
    fails(with(text("k") + u32(9) + u32(8) + u64(3)), "claims 3 array elements");
    fails(with(text("k") + u32(9) + u32(8) + u64(2) + u64(0) + u64(100)), "ends inside a string of an array");
    fails(with(text("k") + u32(9) + u32(13) + u64(0)), "array of the type 13");
    std::string nested = text("k") + u32(9);
    for (int i = 0; i < 100'000; ++i) nested += u32(9) + u64(1);
    fails(with(text("k") + u32(9) + u32(9) + u64(1)), "\"k\" is an array of arrays");
    fails(with(nested), "\"k\" is an array of arrays");
    fails(with(text("") + u32(0)), "a key of 0 bytes");
    fails(with(text(std::string(70000, 'k')) + u32(0)), "a key of 70000 bytes");
    const std::string one = text("k") + u32(0) + "x";
    fails(head(0, 2) + one + one, "\"k\" occurs twice");
    const auto align = [&](std::uint32_t n) {
      return head(0, 1) + text("general.alignment") + u32(4) + u32(n);
    };
    fails(align(0), "has the alignment 0");
    fails(align(24), "has the alignment 24");
    fails(align(UINT32_MAX), "has the alignment 4294967295");
    fails(head(0, 1) + text("general.alignment") + u32(8) + text("x"), "an integer is expected");
  }
  SECTION("tensors") {
    const auto with = [&](const std::string& infos, std::uint64_t count = 1) {
      return padded(head(count, 0) + infos) + data;
    };
    CHECK_NOTHROW(write_file(dir / "good", with(info("a", {16}, 0, 0))));
    CHECK_NOTHROW(GgufFile(dir / "good"));
    fails(with(info("a", {17}, 0, 0)), "has 68 bytes from byte 0 of the data, but there are 64");
    fails(with(info("a", {1}, 0, 64)), "has 4 bytes from byte 64");
    fails(with(info("a", {1}, 0, kHuge - 31)), "has 4 bytes from byte 18446744073709551584");
    fails(with(info("a", {1}, 0, 4)), "which is no multiple of the alignment 32");
    fails(with(info("a", {kHuge}, 0, 0)), "has a size of 18446744073709551615");
    fails(with(info("a", {1ull << 40, 1ull << 40}, 0, 0)), "must fit in 63 bits");
    fails(with(info("a", {0, 1ull << 62, 1ull << 62}, 0, 0)), "must fit in 63 bits");
    fails(with(info("a", {33}, 8, 0)), "whole blocks of 32");
    fails(with(info("a", {32, 2}, 12, 0)), "whole blocks of 256");
    fails(with(info("a", {1, 1, 1, 1, 1}, 0, 0)), "has 5 dimensions");
    fails(with(text("a") + u32(UINT32_MAX)), "has 4294967295 dimensions");
    fails(with(info("a", {1}, 16, 0)), "is of IQ2_XXS, which is not supported");
    fails(with(info("a", {1}, 4711, 0)), "is of type 4711, which is not supported");
    fails(with(info("a", {1}, 0, 0) + info("a", {1}, 0, 32), 2), "\"a\" occurs twice");
    fails(with(info("a", {9}, 0, 0) + info("b", {1}, 0, 32), 2), "\"a\" and \"b\" overlap");
    fails(with(info("a", {1}, 0, 0) + info("b", {1}, 0, 0), 2), "overlap");
    fails(with(info(std::string(70000, 'n'), {1}, 0, 0)), "whose name has 70000 bytes");
    fails(head(1000, 0) + data, "claims 1000 tensors");
  }
}

TEST_CASE("mutated GGUF files give tensors or an IoError") {
  const TempDir dir;
  const std::string small = padded(head(2, 2) + text("k") + u32(9) + u32(8) + u64(2) + text("a") +
                                   text("bc") + text("general.alignment") + u32(4) + u32(32) +
                                   info("a", {32, 1}, 8, 0) + info("b", {4}, 0, 64)) +
                            std::string(80, 'x');
  for (const std::string& bytes : {bytes_of(recorded().at("file")), small}) {
    const int calls = tests::for_mutations<IoError>(bytes, [&](const std::string& mutated) {
      write_file(dir / "f", mutated);
      const GgufFile file(dir / "f");
      std::uint64_t total = 0;
      for (const auto& [name, tensor] : file.entries()) {
        total += tensor.bytes();
        if (static_cast<std::uint64_t>(tensor.unpack().numel()) > 2 * mutated.size())
          throw std::logic_error("more elements than the file can have");
      }
      if (total > mutated.size()) throw std::logic_error("more data than the file has");
      for (const auto& [key, value] : file.metadata().entries()) static_cast<void>(file.metadata().has(key));
    });
    CHECK(calls > 100);
  }
}
