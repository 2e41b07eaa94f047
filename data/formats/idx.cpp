#include "tapestry/data/formats/idx.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "tapestry/data/formats/internal/input_file.h"

namespace tapestry::data {
namespace {

/// Converts big-endian elements to the machine's byte order, in place.
template <class Bits>
void swap_elements(void* data, std::int64_t count) {
  if constexpr (std::endian::native == std::endian::big) return;
  unsigned char* bytes = static_cast<unsigned char*>(data);
  for (std::int64_t i = 0; i < count; ++i, bytes += sizeof(Bits)) {
    Bits value = 0;
    for (std::size_t b = 0; b < sizeof(Bits); ++b) value = static_cast<Bits>(value << 8 | bytes[b]);
    std::memcpy(bytes, &value, sizeof(Bits));
  }
}

struct IdxType {
  DType dtype;
  std::size_t stored;  // bytes per element in the file
};

IdxType kind_of(const InputFile& file, unsigned char code) {
  switch (code) {
    case 0x08:
      return {DType::u8, 1};
    case 0x09:
      return {DType::i32, 1};
    case 0x0B:
      return {DType::i32, 2};
    case 0x0C:
      return {DType::i32, 4};
    case 0x0D:
      return {DType::f32, 4};
    case 0x0E:
      return {DType::f64, 8};
  }
  file.broken(concat(
      {"has element type ", static_cast<int>(code), ", which IDX does not know; it is not an IDX file"}));
}

}  // namespace

Tensor read_idx(const std::string& path) {
  InputFile file("read_idx", path);
  unsigned char magic[4];
  file.read(magic, 4, "header");
  if (magic[0] != 0 || magic[1] != 0)
    file.broken("does not begin with two zero bytes; it is not an IDX file");
  const IdxType kind = kind_of(file, magic[2]);
  const int dims = magic[3];
  if (dims < 1 || dims > kMaxDims)
    file.broken(concat({"has ", dims, " dimensions; 1 to ", kMaxDims, " are supported"}));
  Shape sizes;
  std::uint64_t bytes = kind.stored, bound = kind.stored;
  for (int i = 0; i < dims; ++i) {
    unsigned char size[4];
    file.read(size, 4, "header");
    const std::uint64_t n =
        std::uint64_t{size[0]} << 24 | std::uint64_t{size[1]} << 16 | std::uint64_t{size[2]} << 8 | size[3];
    sizes.push_back(static_cast<std::int64_t>(n));
    // Dimensions of size 0 are left out of the product, because they would hide an overflow of the other
    // sizes.
    const std::uint64_t factor = std::max<std::uint64_t>(n, 1);
    if (bound > (std::uint64_t{1} << 62) / factor)
      file.broken(
          concat({"its header claims a shape that begins with ", sizes, ", which is beyond any memory"}));
    bound *= factor;
    bytes *= n;
  }
  file.expect_room(bytes, "data");
  Tensor out = empty(sizes, {kind.dtype, kCPU});
  const std::int64_t count = out.numel();
  if (kind.stored == dtype_size(kind.dtype)) {
    file.read(out.raw_data(), static_cast<std::size_t>(bytes), "data");
    if (kind.stored == 4) swap_elements<std::uint32_t>(out.raw_data(), count);
    if (kind.stored == 8) swap_elements<std::uint64_t>(out.raw_data(), count);
  } else {
    std::vector<unsigned char> raw(static_cast<std::size_t>(bytes));
    file.read(raw.data(), raw.size(), "data");
    std::int32_t* to = out.data<std::int32_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      const unsigned char* p = raw.data() + static_cast<std::size_t>(i) * kind.stored;
      to[i] = kind.stored == 1 ? static_cast<std::int8_t>(p[0]) : static_cast<std::int16_t>(p[0] << 8 | p[1]);
    }
  }
  file.expect_end();
  return out;
}

}  // namespace tapestry::data
