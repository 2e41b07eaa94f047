#include "tapestry/tools/ptx/tensor_map.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "tapestry/tools/ptx/error.h"

namespace tapestry::ptx {
namespace {

constexpr std::uint64_t kMagic = 0x70616d726f736e74;  // "tnsormap"

struct Encoded {
  std::uint64_t magic, address, strides[4];
  std::uint32_t last[5];  // sizes - 1: 2^32 is a valid size
  std::uint16_t box[5];
  std::uint8_t element_strides[5], type, rank, swizzle, fill_nan;
  std::uint8_t unused[21];
  std::uint32_t checksum;
};
static_assert(sizeof(Encoded) == 112 && std::has_unique_object_representations_v<Encoded>);

std::uint32_t checksum(const Encoded& e) {
  Encoded copy = e;
  copy.checksum = 0;
  unsigned char bytes[sizeof copy];
  std::memcpy(bytes, &copy, sizeof copy);
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const unsigned char b : bytes) hash = (hash ^ b) * 16777619u;
  return hash;
}

}  // namespace

std::uint32_t TensorMap::element_bytes() const {
  static constexpr std::uint8_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return kBytes[static_cast<int>(type)];
}
std::uint64_t TensorMap::box_bytes() const {
  std::uint64_t bytes = element_bytes();
  for (std::uint32_t d = 0; d < rank; ++d) bytes *= count(d);
  return bytes;
}

void encode_tensor_map(const TensorMap& map, void* to) {
  const auto refuse = [](const std::string& what) { throw UsageError("[ptx] tensor map: " + what); };
  const auto n = [](std::uint64_t value) { return std::to_string(value); };
  if (map.type > TensorType::kTf32Ftz) refuse("its type is not supported");
  if (map.rank < 1 || map.rank > 5) refuse("a rank of " + n(map.rank) + "; it must be 1 to 5");
  if (map.interleave != 0) refuse("interleaved layouts are not supported");
  if (reinterpret_cast<std::uintptr_t>(to) % 64 != 0) refuse("its own address must be a multiple of 64");
  if (map.address == 0 || map.address % 16 != 0) refuse("the tensor's address must be a multiple of 16");
  const std::uint64_t bytes = map.element_bytes();
  for (std::uint32_t d = 0; d < map.rank; ++d) {
    const std::string name = " of dimension " + n(d);
    if (map.sizes[d] == 0 || map.sizes[d] > (std::uint64_t{1} << 32))
      refuse("the size" + name + " is " + n(map.sizes[d]) + "; it must be 1 to 2^32");
    if (map.box[d] == 0 || map.box[d] > 256)
      refuse("the box size" + name + " is " + n(map.box[d]) + "; it must be 1 to 256");
    if (map.element_strides[d] == 0 || map.element_strides[d] > 8)
      refuse("the element stride" + name + " is " + n(map.element_strides[d]) + "; it must be 1 to 8");
    if (d > 0 && (map.strides[d - 1] % 16 != 0 || map.strides[d - 1] >= (std::uint64_t{1} << 40)))
      refuse("the stride" + name + " is " + n(map.strides[d - 1]) +
             " bytes; it must be a multiple of 16 below 2^40");
  }
  const std::uint64_t row = bytes * map.box[0];
  if (row % 16 != 0) refuse("a row of the box has " + n(row) + " bytes; they must be a multiple of 16");
  if (map.swizzle > TensorSwizzle::k128) refuse("its swizzle mode is not supported");
  if (map.span() != 0 && row > map.span())
    refuse("a row of the box has " + n(row) + " bytes, more than the " + n(map.span()) + " of its swizzle");
  if (map.span() != 0 && row < map.span())
    refuse("a row of the box has " + n(row) + " bytes, fewer than the " + n(map.span()) +
           " of its swizzle; where such rows lie is not documented, so this machine refuses them");
  const bool is_float = map.type >= TensorType::kF16;
  if (map.fill_nan && !is_float) refuse("only tensors of floating-point numbers can be filled with NaN");

  Encoded e{};
  e.magic = kMagic;
  e.address = map.address;
  for (std::uint32_t d = 0; d < map.rank; ++d) {
    if (d > 0) e.strides[d - 1] = map.strides[d - 1];
    e.last[d] = static_cast<std::uint32_t>(map.sizes[d] - 1);
    e.box[d] = static_cast<std::uint16_t>(map.box[d]);
    e.element_strides[d] = static_cast<std::uint8_t>(map.element_strides[d]);
  }
  e.type = static_cast<std::uint8_t>(map.type);
  e.rank = static_cast<std::uint8_t>(map.rank);
  e.swizzle = static_cast<std::uint8_t>(map.swizzle);
  e.fill_nan = map.fill_nan ? 1 : 0;
  e.checksum = checksum(e);
  std::memset(to, 0, kTensorMapBytes);
  std::memcpy(to, &e, sizeof e);
}

bool decode_tensor_map(const void* from, TensorMap& map) {
  Encoded e;
  std::memcpy(&e, from, sizeof e);
  if (e.magic != kMagic || e.checksum != checksum(e)) return false;
  map = TensorMap{};
  map.type = static_cast<TensorType>(e.type);
  map.rank = e.rank;
  map.address = e.address;
  for (std::uint32_t d = 0; d < map.rank; ++d) {
    if (d > 0) map.strides[d - 1] = e.strides[d - 1];
    map.sizes[d] = std::uint64_t{e.last[d]} + 1;
    map.box[d] = e.box[d];
    map.element_strides[d] = e.element_strides[d];
  }
  map.swizzle = static_cast<TensorSwizzle>(e.swizzle);
  map.fill_nan = e.fill_nan != 0;
  return true;
}

}  // namespace tapestry::ptx
