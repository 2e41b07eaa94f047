#include "tapestry/core/packed_tensor.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tapestry/core/half.h"
#include "tapestry/core/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using namespace tapestry;

namespace {

std::map<std::string, Tensor> recorded() {
  return load_safetensors(tests::source_path("tests/golden/core_gguf.safetensors")).tensors;
}

PackedTensor packed(BlockType type, const Shape& sizes, const Tensor& blocks) {
  return PackedTensor(type, sizes, blocks.data<std::uint8_t>(), blocks.nbytes(),
                      std::make_shared<Tensor>(blocks));
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) == 0;
}

constexpr BlockType kTypes[] = {BlockType::f16,  BlockType::bf16, BlockType::q4_0, BlockType::q4_1,
                                BlockType::q8_0, BlockType::q4_k, BlockType::q6_k, BlockType::q5_0,
                                BlockType::q5_1, BlockType::q2_k, BlockType::q3_k, BlockType::q5_k};

}  // namespace

TEST_CASE("blocks of every type have the values of Python's gguf, bit for bit") {
  const auto golden = recorded();
  for (const BlockType type : kTypes) {
    const std::string name = block_layout(type).name;
    CAPTURE(name);
    const Tensor& values = golden.at(name + "/values");
    const PackedTensor tensor = packed(type, {3, 512}, golden.at(name + "/blocks"));
    CHECK(same_bits(tensor.unpack(), values));
    CHECK(tensor.numel() == 1536);
    CHECK(tensor.rows() == 3);
    CHECK(tensor.row_bytes() * 3 == static_cast<std::int64_t>(tensor.bytes()));
    // One row, and no element beside it.
    std::vector<float> row(514, -1.0f);
    tensor.unpack_rows(1, 1, row.data() + 1);
    CHECK(std::memcmp(row.data() + 1, values.data<float>() + 512, 512 * sizeof(float)) == 0);
    CHECK(row[0] == -1.0f);
    CHECK(row[513] == -1.0f);
    CHECK_THROWS_AS(tensor.unpack_rows(2, 2, row.data()), IndexError);
    CHECK_THROWS_AS(tensor.unpack_rows(-1, 1, row.data()), IndexError);
    CHECK_THROWS_AS(tensor.unpack_rows(INT64_MAX, 1, row.data()), IndexError);
  }
}

TEST_CASE("a large tensor is unpacked by several threads") {
  const auto golden = recorded();
  const Tensor &blocks = golden.at("Q4_K/blocks"), &values = golden.at("Q4_K/values");
  Tensor many = empty({700, static_cast<std::int64_t>(blocks.nbytes())}, DType::u8);
  for (int i = 0; i < 700; ++i)
    std::memcpy(many.data<std::uint8_t>() + i * static_cast<std::int64_t>(blocks.nbytes()), blocks.raw_data(),
                blocks.nbytes());
  const Tensor all = packed(BlockType::q4_k, {700, 3, 512}, many).unpack();
  int wrong = 0;
  for (int i = 0; i < 700; ++i)
    wrong += std::memcmp(all.data<float>() + i * 1536, values.raw_data(), values.nbytes()) != 0;
  CHECK(wrong == 0);
}

TEST_CASE("Q8_0 is packed as gguf packs it, and is within half a step") {
  const auto golden = recorded();
  const Tensor &in = golden.at("q8/in"), &blocks = golden.at("q8/blocks");
  const PackedTensor q8 = PackedTensor::pack(in, BlockType::q8_0);
  REQUIRE(q8.bytes() == blocks.nbytes());
  CHECK(std::memcmp(q8.data(), blocks.raw_data(), blocks.nbytes()) == 0);
  // The scale is rounded to f16, which moves a value by up to 127 * 2^-12 of a step (or 2^-25 for
  // subnormals).
  const Tensor back = q8.unpack();
  for (std::int64_t b = 0; b < 12; ++b) {
    float greatest = 0;
    for (std::int64_t i = 0; i < 32; ++i)
      greatest = std::max(greatest, std::fabs(in.data<float>()[b * 32 + i]));
    const float step = greatest / 127;
    for (std::int64_t i = 0; i < 32; ++i) {
      const float error = std::fabs(back.data<float>()[b * 32 + i] - in.data<float>()[b * 32 + i]);
      CHECK(error <= step * (0.501f + 127.0f / 4096) + 127 * 0x1p-25f);
    }
  }
}

TEST_CASE("tensors of any layout and dtype are packed") {
  Tensor base = empty({2, 3, 4});
  for (int i = 0; i < 24; ++i) base.data<float>()[i] = static_cast<float>(i) * 0.25f;
  const Tensor turned = detail::raw_view(base, {4, 3, 2}, {1, 4, 12}, 0);
  for (const BlockType type : {BlockType::f32, BlockType::f16, BlockType::bf16}) {
    const Tensor out = PackedTensor::pack(turned, type).unpack();
    for (std::int64_t a = 0; a < 4; ++a)
      for (std::int64_t b = 0; b < 3; ++b)
        for (std::int64_t c = 0; c < 2; ++c)
          CHECK(out.data<float>()[(a * 3 + b) * 2 + c] == static_cast<float>(c * 12 + b * 4 + a) * 0.25f);
  }
  Tensor half = empty({2}, DType::f16);
  half.data<Half>()[0] = Half(0.5f);
  half.data<Half>()[1] = Half(-3.0f);
  CHECK(PackedTensor::pack(half, BlockType::f32).unpack().data<float>()[1] == -3.0f);
  const Tensor again = PackedTensor::pack(half, BlockType::f16).tensor();
  CHECK(again.dtype() == DType::f16);
  CHECK(same_bits(again, half));
  // tensor() shares the packed memory, which outlives the PackedTensor.
  const PackedTensor shared = PackedTensor::pack(base, BlockType::f32);
  CHECK(shared.tensor().raw_data() == static_cast<const void*>(shared.data()));
  CHECK(PackedTensor::pack(empty({0, 32}), BlockType::q8_0).unpack().sizes() == Shape{0, 32});
  CHECK(PackedTensor::pack(empty({3, 0}), BlockType::q8_0).unpack().sizes() == Shape{3, 0});
  Tensor scalar = empty(Shape{});
  scalar.data<float>()[0] = 5;
  CHECK(PackedTensor::pack(scalar, BlockType::f32).unpack().data<float>()[0] == 5);
}

TEST_CASE("what cannot be packed is refused") {
  Tensor x = empty({1, 32});
  for (int i = 0; i < 32; ++i) x.data<float>()[i] = 1;
  CHECK_THROWS_WITH(PackedTensor::pack(x, BlockType::q4_k), ContainsSubstring("cannot be converted to Q4_K"));
  CHECK_THROWS_WITH(PackedTensor::pack(empty({2, 33}), BlockType::q8_0),
                    ContainsSubstring("no multiple of the 32"));
  CHECK_THROWS_WITH(PackedTensor::pack(empty({32}, DType::i32), BlockType::f32),
                    ContainsSubstring("is of int32"));
  CHECK_THROWS_AS(PackedTensor::pack(Tensor(), BlockType::f32), ValueError);
  for (const int at : {0, 15, 31})
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 127 * 65520.0f}) {
      Tensor broken = empty({1, 32});
      std::memcpy(broken.raw_data(), x.raw_data(), x.nbytes());
      broken.data<float>()[at] = bad;
      CHECK_THROWS_AS(PackedTensor::pack(broken, BlockType::q8_0), ValueError);
    }
  x.data<float>()[3] = 70000;
  CHECK_THROWS_WITH(PackedTensor::pack(x, BlockType::f16), ContainsSubstring("does not fit in f16"));
  x.data<float>()[3] = 127 * 65504.0f;
  CHECK_NOTHROW(PackedTensor::pack(x, BlockType::q8_0));
  x.data<float>()[3] = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(PackedTensor::pack(x, BlockType::f16).unpack().data<float>()[3]));
  const std::uint8_t bytes[34] = {};
  CHECK_THROWS_WITH(PackedTensor(BlockType::q8_0, {32}, bytes, 33, nullptr),
                    ContainsSubstring("has 34 bytes, not 33"));
  CHECK_THROWS_AS(PackedTensor(BlockType::q8_0, {31}, bytes, 34, nullptr), ValueError);
  CHECK_THROWS_WITH(PackedTensor(BlockType::q8_0, {32}, bytes, 34, nullptr).tensor(),
                    ContainsSubstring("use unpack()"));
  CHECK_FALSE(detail::packed_bytes(BlockType::f32, {INT64_MAX, 2}).has_value());
  CHECK_FALSE(detail::packed_bytes(BlockType::f32, {0, INT64_MAX, INT64_MAX}).has_value());
  CHECK_FALSE(detail::packed_bytes(BlockType::q4_0, {INT64_MAX / 32 * 32, 32}).has_value());
  CHECK(detail::packed_bytes(BlockType::q4_0, {0, 64}) == 0u);
}
