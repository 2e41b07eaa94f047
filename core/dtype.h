#pragma once
// Element types of tensors.
#include <cstddef>
#include <cstdint>

#include "tapestry/core/half.h"

namespace tapestry {

/// Operations compute with the first eight. int16, int8 and uint16 hold images, tokens and audio as files
/// store them: they can be loaded, saved, copied, viewed, filled and converted with to(), but not computed
/// with.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i64, i32, u8, boolean, i16, i8, u16 };
inline constexpr int kNumDTypes = 11;

inline constexpr DType kFloat32 = DType::f32, kFloat64 = DType::f64, kFloat16 = DType::f16,
                       kBFloat16 = DType::bf16, kInt64 = DType::i64, kInt32 = DType::i32, kUInt8 = DType::u8,
                       kBool = DType::boolean, kInt16 = DType::i16, kInt8 = DType::i8, kUInt16 = DType::u16;

/// "float32", "bfloat16", "int64", "bool", ...
const char* dtype_name(DType dtype);

namespace detail {
// The table is at namespace scope because g++ copies an array inside the function to the stack at each call.
inline constexpr std::uint8_t kDTypeSizes[kNumDTypes] = {4, 8, 2, 2, 8, 4, 1, 1, 2, 1, 2};
}  // namespace detail
constexpr std::size_t dtype_size(DType dtype) { return detail::kDTypeSizes[static_cast<int>(dtype)]; }
constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }
constexpr bool is_integral(DType dtype) { return dtype > DType::bf16; }

/// The result dtype of two tensors, as torch.promote_types: the smallest type that holds both. A floating
/// type wins over an integral one, and f16 with bf16 gives f32. PyTorch refuses uint16 with another integer;
/// here the rule holds for it too.
DType promote(DType a, DType b);

/// A set of dtypes, one bit each.
using DTypeSet = std::uint16_t;
constexpr DTypeSet bit(DType dtype) { return static_cast<DTypeSet>(1u << static_cast<int>(dtype)); }
inline constexpr DTypeSet kFullFloats = bit(DType::f32) | bit(DType::f64);
inline constexpr DTypeSet kFloats = kFullFloats | bit(DType::f16) | bit(DType::bf16);
inline constexpr DTypeSet kIntegers = bit(DType::i64) | bit(DType::i32) | bit(DType::u8);
inline constexpr DTypeSet kNumbers = kFloats | kIntegers;
/// The dtypes that operations compute with.
inline constexpr DTypeSet kAllDTypes = kNumbers | bit(DType::boolean);
/// The dtypes that tensors can be loaded in and converted to.
inline constexpr DTypeSet kStoredDTypes = kAllDTypes | bit(DType::i16) | bit(DType::i8) | bit(DType::u16);
constexpr bool contains(DTypeSet set, DType dtype) { return (set & bit(dtype)) != 0; }

/// The DType of a C++ element type.
// clang-format off
template <class T> struct DTypeOf;
template <> struct DTypeOf<float> { static constexpr DType value = DType::f32; };
template <> struct DTypeOf<double> { static constexpr DType value = DType::f64; };
template <> struct DTypeOf<Half> { static constexpr DType value = DType::f16; };
template <> struct DTypeOf<BFloat16> { static constexpr DType value = DType::bf16; };
template <> struct DTypeOf<std::int64_t> { static constexpr DType value = DType::i64; };
template <> struct DTypeOf<std::int32_t> { static constexpr DType value = DType::i32; };
template <> struct DTypeOf<std::uint8_t> { static constexpr DType value = DType::u8; };
template <> struct DTypeOf<bool> { static constexpr DType value = DType::boolean; };
template <> struct DTypeOf<std::int16_t> { static constexpr DType value = DType::i16; };
template <> struct DTypeOf<std::int8_t> { static constexpr DType value = DType::i8; };
template <> struct DTypeOf<std::uint16_t> { static constexpr DType value = DType::u16; };
// clang-format on
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace tapestry
