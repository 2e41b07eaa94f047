#include "tapestry/core/dtype.h"

#include <limits>
#include <string>

#include "tapestry/core/scalar.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("dtypes have names and sizes") {
  CHECK(std::string(dtype_name(kFloat32)) == "float32");
  CHECK(std::string(dtype_name(kFloat64)) == "float64");
  CHECK(std::string(dtype_name(kFloat16)) == "float16");
  CHECK(std::string(dtype_name(kBFloat16)) == "bfloat16");
  CHECK(std::string(dtype_name(kInt64)) == "int64");
  CHECK(std::string(dtype_name(kInt32)) == "int32");
  CHECK(std::string(dtype_name(kUInt8)) == "uint8");
  CHECK(std::string(dtype_name(kBool)) == "bool");
  CHECK(std::string(dtype_name(kInt16)) == "int16");
  CHECK(std::string(dtype_name(kInt8)) == "int8");
  CHECK(std::string(dtype_name(kUInt16)) == "uint16");
  CHECK(dtype_size(dtype_of<std::int16_t>) == sizeof(std::int16_t));
  CHECK(dtype_size(dtype_of<std::int8_t>) == sizeof(std::int8_t));
  CHECK(dtype_size(dtype_of<std::uint16_t>) == sizeof(std::uint16_t));
  CHECK(dtype_size(dtype_of<float>) == sizeof(float));
  CHECK(dtype_size(dtype_of<double>) == sizeof(double));
  CHECK(dtype_size(dtype_of<Half>) == sizeof(Half));
  CHECK(dtype_size(dtype_of<BFloat16>) == sizeof(BFloat16));
  CHECK(dtype_size(dtype_of<std::int64_t>) == sizeof(std::int64_t));
  CHECK(dtype_size(dtype_of<std::int32_t>) == sizeof(std::int32_t));
  CHECK(dtype_size(dtype_of<std::uint8_t>) == sizeof(std::uint8_t));
  CHECK(dtype_size(dtype_of<bool>) == sizeof(bool));
}

TEST_CASE("dtype sets agree with is_floating and is_integral") {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto t = static_cast<DType>(i);
    const bool stored_only = t == kInt16 || t == kInt8 || t == kUInt16;
    CHECK(contains(kAllDTypes, t) != stored_only);
    CHECK(contains(kStoredDTypes, t));
    CHECK(contains(kFloats, t) == is_floating(t));
    CHECK(contains(kFloats, t) != is_integral(t));
    CHECK(contains(kNumbers, t) == (t != kBool && !stored_only));
  }
  CHECK(contains(kFullFloats, kFloat64));
  CHECK_FALSE(contains(kFullFloats, kFloat16));
  CHECK_FALSE(contains(kIntegers, kBool));
}

// The results of torch.promote_types for all pairs, from PyTorch 2.15, except that PyTorch refuses uint16
// with other integers.
TEST_CASE("promote gives PyTorch's dtype for all pairs") {
  constexpr DType f32 = kFloat32, f64 = kFloat64, f16 = kFloat16, b16 = kBFloat16, i64 = kInt64, i32 = kInt32,
                  u8 = kUInt8, boo = kBool, i16 = kInt16, i_8 = kInt8, u16 = kUInt16;
  constexpr DType table[kNumDTypes][kNumDTypes] = {
      {f32, f64, f32, f32, f32, f32, f32, f32, f32, f32, f32},
      {f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64},
      {f32, f64, f16, f32, f16, f16, f16, f16, f16, f16, f16},
      {f32, f64, f32, b16, b16, b16, b16, b16, b16, b16, b16},
      {f32, f64, f16, b16, i64, i64, i64, i64, i64, i64, i64},
      {f32, f64, f16, b16, i64, i32, i32, i32, i32, i32, i32},
      {f32, f64, f16, b16, i64, i32, u8, u8, i16, i16, u16},
      {f32, f64, f16, b16, i64, i32, u8, boo, i16, i_8, u16},
      {f32, f64, f16, b16, i64, i32, i16, i16, i16, i16, i32},
      {f32, f64, f16, b16, i64, i32, i16, i_8, i16, i_8, i32},
      {f32, f64, f16, b16, i64, i32, u16, u16, i32, i32, u16},
  };
  for (int a = 0; a < kNumDTypes; ++a)
    for (int b = 0; b < kNumDTypes; ++b) {
      INFO(dtype_name(static_cast<DType>(a)) << " with " << dtype_name(static_cast<DType>(b)));
      CHECK(promote(static_cast<DType>(a), static_cast<DType>(b)) == table[a][b]);
    }
}

TEST_CASE("a scalar widens a tensor's dtype only across categories") {
  CHECK(Scalar(2.0).promote_with(kFloat16) == kFloat16);
  CHECK(Scalar(2.0).promote_with(kInt64) == kFloat32);
  CHECK(Scalar(2.0).promote_with(kBool) == kFloat32);
  CHECK(Scalar(2).promote_with(kUInt8) == kUInt8);
  CHECK(Scalar(2).promote_with(kBool) == kInt64);
  CHECK(Scalar(2).promote_with(kFloat64) == kFloat64);
  CHECK(Scalar(true).promote_with(kBool) == kBool);
  CHECK(Scalar(true).promote_with(kInt32) == kInt32);
  CHECK(Scalar(std::int64_t{1} << 60).to_int() == std::int64_t{1} << 60);
  CHECK(Scalar(-2.75).to_int() == -2);
  CHECK(Scalar(7).to_double() == 7.0);
}

TEST_CASE("to_int of a scalar outside the int64 range gives the nearest int64") {
  using Limits = std::numeric_limits<std::int64_t>;
  CHECK(Scalar(0x1.fffffffffffffp62).to_int() == 0x7ffffffffffffc00);
  CHECK(Scalar(-0x1p63).to_int() == Limits::min());
  CHECK(Scalar(0x1p63).to_int() == Limits::max());
  CHECK(Scalar(-1e300).to_int() == Limits::min());
  CHECK(Scalar(std::numeric_limits<double>::infinity()).to_int() == Limits::max());
  CHECK(Scalar(std::numeric_limits<double>::quiet_NaN()).to_int() == 0);
}
