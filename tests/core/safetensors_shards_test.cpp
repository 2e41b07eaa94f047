#include "tapestry/core/safetensors_shards.h"

#include <cstring>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using tests::read_file;
using tests::TempDir;
using tests::write_file;

namespace {

Tensor counted(const Shape& sizes, float first) {
  Tensor t = empty(sizes);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = first + static_cast<float>(i);
  return t;
}

TensorSource source(const std::string& name, const Tensor& t) {
  return {name, t.dtype(), t.sizes(), [t] { return t; }};
}

/// Five tensors of 24, 40, 4, 0 and 400 bytes.
std::vector<TensorSource> five() {
  return {source("b", counted({2, 3}, 0)), source("a", counted({10}, 100)), source("e", counted({1}, 200)),
          source("none", counted({0, 4}, 0)), source("long", counted({100}, 300))};
}

void check_five(const SafetensorsShards& shards) {
  REQUIRE(shards.entries().size() == 5);
  CHECK(shards.entries()[0].name == "a");
  for (const TensorSource& expected : five()) {
    CAPTURE(expected.name);
    REQUIRE(shards.find(expected.name));
    CHECK(shards.find(expected.name)->sizes == expected.sizes);
    const Tensor t = shards.read(expected.name), e = expected.read();
    REQUIRE(t.sizes() == e.sizes());
    if (e.numel() > 0) CHECK(std::memcmp(t.raw_data(), e.raw_data(), e.nbytes()) == 0);
  }
}

constexpr const char* kIndex = "model.safetensors.index.json";

}  // namespace

TEST_CASE("tensors are divided among files by their limit, and read by name") {
  const TempDir dir;
  save_safetensors_shards(dir / "one", five());
  CHECK(std::filesystem::exists(dir / "one/model.safetensors"));
  CHECK_FALSE(std::filesystem::exists(dir / ("one/" + std::string(kIndex))));
  check_five(SafetensorsShards(dir / "one"));
  check_five(SafetensorsShards(dir / "one/model.safetensors"));
  CHECK(SafetensorsFile(dir / "one/model.safetensors").metadata() == StringMap{{"format", "pt"}});

  save_safetensors_shards(dir / "many", five(), {.max_shard_bytes = 64});
  const SafetensorsShards many(dir / "many");
  check_five(many);
  CHECK(many.shards() == 3);  // b and a have 64 bytes together; e and none; long is larger than the limit
  CHECK(SafetensorsFile(dir / "many/model-00001-of-00003.safetensors").entries().size() == 2);
  CHECK(SafetensorsFile(dir / "many/model-00003-of-00003.safetensors").find("long"));
  check_five(SafetensorsShards(dir / ("many/" + std::string(kIndex))));
  CHECK(read_file(dir / ("many/" + std::string(kIndex))).find("\"total_size\": 468") != std::string::npos);
  save_safetensors_shards(dir / "each", five(), {.max_shard_bytes = 1});
  check_five(SafetensorsShards(dir / "each"));
}

TEST_CASE("tensors share the memory of their file, outlive it, and do not change it") {
  const TempDir dir;
  save_safetensors_shards(dir / "m", five());
  const std::string bytes = read_file(dir / "m/model.safetensors");
  Tensor t;
  {
    const SafetensorsShards file(dir / "m");
    t = file.read("long");
    CHECK(file.read("long").raw_data() == t.raw_data());
  }
  std::filesystem::rename(dir / "m/model.safetensors", dir / "moved");
  t.data<float>()[0] = -1;
  CHECK(t.data<float>()[99] == 399);
  CHECK(read_file(dir / "moved") == bytes);
  // Elements at an odd address are copied. The header has 8 bytes more or less, so the data begin anywhere.
  const std::string header = R"({"p":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("x":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                             R"("y":{"dtype":"BOOL","shape":[2],"data_offsets":[5,7]}})";
  const std::uint64_t size = header.size();
  const float value = 2.5f;
  write_file(dir / "odd", std::string(reinterpret_cast<const char*>(&size), 8) + header + "p" +
                              std::string(reinterpret_cast<const char*>(&value), 4) + "\x02" +
                              std::string(1, '\0'));
  const SafetensorsShards odd(dir / "odd");
  CHECK(odd.read("x").data<float>()[0] == 2.5f);
  const unsigned char booleans[] = {1, 0};
  CHECK(std::memcmp(odd.read("y").raw_data(), booleans, 2) == 0);
  CHECK_THROWS_WITH(odd.read("z"), ContainsSubstring("has no tensor \"z\""));
}

TEST_CASE("an index that is broken or does not fit to its files is refused") {
  const TempDir dir;
  save_safetensors_shards(dir / "m", {source("a", counted({2}, 0)), source("b", counted({2}, 0))},
                          {.max_shard_bytes = 8});
  write_file(dir / "secret.safetensors", read_file(dir / "m/model-00001-of-00002.safetensors"));
  const auto refused = [&](const std::string& json, const std::string& why) {
    CAPTURE(why);
    write_file(dir / ("m/" + std::string(kIndex)), json);
    CHECK_THROWS_AS(SafetensorsShards(dir / "m"), IoError);
    CHECK_THROWS_WITH(SafetensorsShards(dir / "m"), ContainsSubstring(why));
  };
  const auto map = [](const std::string& name, const std::string& file) {
    return R"({"weight_map":{")" + name + R"(":)" + file + "}}";
  };
  refused("", "is not a JSON object");
  refused("[]", "is not a JSON object");
  refused(std::string(100'000, '['), "is not a JSON object");
  refused("{}", "has no object weight_map");
  refused(R"({"weight_map":[]})", "has no object weight_map");
  refused(map("a", "1"), "must be the name of a file");
  refused(map("a", R"("../secret.safetensors")"), "must be the name of a file");
  refused(map("a", R"("/etc/passwd")"), "must be the name of a file");
  refused(map("a", R"("..")"), "must be the name of a file");
  refused(map("a", R"("")"), "must be the name of a file");
  refused(map("a", R"("x\u0000y")"), "must be the name of a file");
  refused(map("a", R"("absent.safetensors")"), "absent.safetensors: cannot be opened");
  refused(map("c", R"("model-00001-of-00002.safetensors")"), "does not have it");
  write_file(dir / ("m/" + std::string(kIndex)), map("a", R"("model-00001-of-00002.safetensors")"));
  CHECK(SafetensorsShards(dir / "m").entries().size() == 1);
  write_file(dir / "m/model-00001-of-00002.safetensors", "broken");
  CHECK_THROWS_AS(SafetensorsShards(dir / "m"), IoError);
  std::filesystem::create_directory(dir / "empty");
  CHECK_THROWS_WITH(SafetensorsShards(dir / "empty"), ContainsSubstring("has neither model.safetensors nor"));
  CHECK_THROWS_AS(SafetensorsShards(dir / "absent"), IoError);
}

TEST_CASE("save_safetensors_shards refuses what would destroy or mix models") {
  const TempDir dir;
  const std::vector<TensorSource> two = {source("a", counted({2}, 0)), source("b", counted({2}, 0))};
  save_safetensors_shards(dir / "many", two, {.max_shard_bytes = 8});
  CHECK_THROWS_WITH(save_safetensors_shards(dir / "many", two), ContainsSubstring("choose another folder"));
  CHECK_THROWS_AS(save_safetensors_shards(dir / "many", two, {.max_shard_bytes = 8}), IoError);
  save_safetensors_shards(dir / "one", two);
  CHECK_THROWS_WITH(save_safetensors_shards(dir / "one", two, {.max_shard_bytes = 8}),
                    ContainsSubstring("choose another folder"));
  CHECK_NOTHROW(save_safetensors_shards(dir / "one", two));
  CHECK_THROWS_WITH(save_safetensors_shards(dir / "x", {two[0], two[0]}), ContainsSubstring("occurs twice"));
  CHECK_THROWS_AS(save_safetensors_shards(dir / "x", two, {.max_shard_bytes = 0}), ValueError);
  TensorSource lies = two[0];
  lies.sizes = {3};
  CHECK_THROWS_WITH(save_safetensors_shards(dir / "x", {lies}), ContainsSubstring("instead of float32 [3]"));
  CHECK_FALSE(std::filesystem::exists(dir / "x/model.safetensors"));
}

TEST_CASE("mutated indices give tensors or an IoError") {
  const TempDir dir;
  save_safetensors_shards(dir / "m", five(), {.max_shard_bytes = 64});
  const std::string index = dir / ("m/" + std::string(kIndex)), bytes = read_file(index);
  const int calls = tests::for_mutations<IoError>(bytes, [&](const std::string& mutated) {
    write_file(index, mutated);
    const SafetensorsShards shards(dir / "m");
    for (const SafetensorsShards::Entry& entry : shards.entries()) static_cast<void>(shards.read(entry.name));
  });
  CHECK(calls > 100);
}
