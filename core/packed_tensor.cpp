#include "tapestry/core/packed_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "tapestry/core/half.h"
#include "tapestry/core/parallel.h"
#include "tapestry/core/tensor.h"

namespace tapestry {
namespace {

static_assert(std::endian::native == std::endian::little, "blocks are read without conversion");

struct KnownType {
  BlockType type;
  BlockLayout layout;
};
constexpr KnownType kTypes[] = {
    {BlockType::f32, {"F32", 1, 4}},       {BlockType::f16, {"F16", 1, 2}},
    {BlockType::bf16, {"BF16", 1, 2}},     {BlockType::q4_0, {"Q4_0", 32, 18}},
    {BlockType::q4_1, {"Q4_1", 32, 20}},   {BlockType::q5_0, {"Q5_0", 32, 22}},
    {BlockType::q5_1, {"Q5_1", 32, 24}},   {BlockType::q8_0, {"Q8_0", 32, 34}},
    {BlockType::q2_k, {"Q2_K", 256, 84}},  {BlockType::q3_k, {"Q3_K", 256, 110}},
    {BlockType::q4_k, {"Q4_K", 256, 144}}, {BlockType::q5_k, {"Q5_K", 256, 176}},
    {BlockType::q6_k, {"Q6_K", 256, 210}},
};

float half_at(const std::uint8_t* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  return static_cast<float>(Half::from_bits(bits));
}

// Each unpack_* function writes the elements of one block. The results are those of ggml and of Python's
// gguf, bit for bit, also if the compiler contracts a product and a sum to one FMA: f16 has 11 significant
// bits, so each product to which something is added has at most 11 + 6 + 5 bits, and is exact in f32.

void unpack_q4_0(const std::uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

void unpack_q4_1(const std::uint8_t* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    const float low = d * static_cast<float>(block[4 + i] & 15);
    const float high = d * static_cast<float>(block[4 + i] >> 4);
    out[i] = low + m;
    out[i + 16] = high + m;
  }
}

void unpack_q8_0(const std::uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
}

// The scale and the minimum j of 8, of 6 bits each, in the 12 bytes of Q4_K and Q5_K.
std::pair<int, int> scales_of_k(const std::uint8_t* scales, int j) {
  if (j < 4) return {scales[j] & 63, scales[j + 4] & 63};
  return {(scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4, scales[j + 4] >> 4 | (scales[j] >> 6) << 4};
}

void unpack_q4_k(const std::uint8_t* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const std::uint8_t *const scales = block + 4, *const qs = block + 16;
  for (int j = 0; j < 8; ++j) {
    const auto [sc, mn] = scales_of_k(scales, j);
    const float scale = d * static_cast<float>(sc), minimum = m * static_cast<float>(mn);
    const std::uint8_t* const q = qs + j / 2 * 32;
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const float product = scale * static_cast<float>(q[i] >> shift & 15);
      out[j * 32 + i] = product - minimum;
    }
  }
}

void unpack_q6_k(const std::uint8_t* block, float* out) {
  const std::uint8_t *ql = block, *qh = block + 128, *scales = block + 192;
  const float d = half_at(block + 208);
  for (int part = 0; part < 2; ++part, ql += 64, qh += 32, scales += 8, out += 128) {
    for (int i = 0; i < 128; ++i) {
      const int low = ql[i % 64] >> (i < 64 ? 0 : 4) & 15, high = qh[i % 32] >> (i / 32 * 2) & 3;
      const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
      out[i] = scale * static_cast<float>((low | high << 4) - 32);
    }
  }
}

template <void (*unpack_block)(const std::uint8_t*, float*), int elements, int bytes>
void unpack_each(const std::uint8_t* from, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) unpack_block(from + i * bytes, out + i * elements);
}

std::uint16_t bits_at(const std::uint8_t* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  return bits;
}

// The elements of Q5_0 and Q5_1, minus `offset`.
void parts_of_5(const std::uint8_t* qh, int offset, detail::BlockParts& to) {
  std::uint32_t high;
  std::memcpy(&high, qh, 4);
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? qh[4 + i] & 15 : qh[4 + i - 16] >> 4;
    to.q[i] = static_cast<std::int8_t>((nibble | static_cast<int>(high >> i & 1) << 4) - offset);
  }
}

// Element i of Q2_K and Q3_K has two bits of 64 bytes.
int two_bits(const std::uint8_t* qs, int i) { return qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3; }

void unpack_parts(BlockType type, const std::uint8_t* from, std::int64_t blocks, float* out) {
  const BlockLayout& layout = block_layout(type);
  for (std::int64_t b = 0; b < blocks; ++b, from += layout.bytes) {
    const detail::BlockParts p = detail::block_parts(type, from);
    const float d = static_cast<float>(Half::from_bits(p.d)), m = static_cast<float>(Half::from_bits(p.m));
    const bool k = layout.elements == 256, minima = type != BlockType::q5_0 && type != BlockType::q3_k;
    for (int g = 0; g < layout.elements / p.group; ++g) {
      const float scale = k ? d * static_cast<float>(p.scales[g]) : d;
      const float more = k ? -(m * static_cast<float>(p.minima[g])) : m;
      for (int i = g * p.group; i < (g + 1) * p.group; ++i) {
        const float product = scale * static_cast<float>(p.q[i]);
        *out++ = minima ? product + more : product;
      }
    }
  }
}

void unpack(BlockType type, const std::uint8_t* from, std::int64_t blocks, float* out) {
  switch (type) {
    case BlockType::f32:
      std::memcpy(out, from, static_cast<std::size_t>(blocks) * 4);
      return;
    case BlockType::f16:
      for (std::int64_t i = 0; i < blocks; ++i) out[i] = half_at(from + 2 * i);
      return;
    case BlockType::bf16:
      for (std::int64_t i = 0; i < blocks; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, from + 2 * i, 2);
        out[i] = static_cast<float>(BFloat16::from_bits(bits));
      }
      return;
    case BlockType::q4_0:
      return unpack_each<unpack_q4_0, 32, 18>(from, blocks, out);
    case BlockType::q4_1:
      return unpack_each<unpack_q4_1, 32, 20>(from, blocks, out);
    case BlockType::q8_0:
      return unpack_each<unpack_q8_0, 32, 34>(from, blocks, out);
    case BlockType::q4_k:
      return unpack_each<unpack_q4_k, 256, 144>(from, blocks, out);
    case BlockType::q6_k:
      return unpack_each<unpack_q6_k, 256, 210>(from, blocks, out);
    case BlockType::q5_0:
    case BlockType::q5_1:
    case BlockType::q2_k:
    case BlockType::q3_k:
    case BlockType::q5_k:
      return unpack_parts(type, from, blocks, out);
  }
}

/// The elements of one row as f32. `base` is the offset of its first element.
void load_row(const Tensor& x, std::int64_t base, std::int64_t count, std::int64_t stride, float* out) {
  const auto* const bytes = static_cast<const std::uint8_t*>(x.raw_data());
  const auto item = static_cast<std::int64_t>(dtype_size(x.dtype()));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint8_t* const at = bytes + (base + i * stride) * item;
    if (x.dtype() == DType::f32) std::memcpy(out + i, at, 4);
    else unpack(x.dtype() == DType::f16 ? BlockType::f16 : BlockType::bf16, at, 1, out + i);
  }
}

void put_half(float value, std::uint8_t* to) {
  const Half half(value);
  check(!std::isfinite(value) || std::isfinite(static_cast<float>(half)), "[pack] the number ",
        static_cast<double>(value), " does not fit in f16, whose largest number is 65504; use F32");
  std::memcpy(to, &half.bits, 2);
}

// The method of ggml's quantize_row_q8_0_ref: the scale is the greatest magnitude / 127, and elements round
// to the nearest, halves away from zero.
void pack_q8_0(const float* x, std::uint8_t* block) {
  float greatest = 0;
  for (int i = 0; i < 32; ++i) {
    check(std::isfinite(x[i]), "[pack] Q8_0 cannot represent NaN and infinity; use F32");
    greatest = std::max(greatest, std::fabs(x[i]));
  }
  const float d = greatest / 127;
  float inverse = d == 0 ? 0 : 1 / d;
  if (!std::isfinite(inverse)) inverse = 0;  // d is far below f16's numbers, and becomes 0
  put_half(d, block);
  for (int i = 0; i < 32; ++i) {
    const float scaled = x[i] * inverse;
    block[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::round(scaled)));
  }
}

}  // namespace

const BlockLayout& block_layout(BlockType type) {
  for (const KnownType& known : kTypes)
    if (known.type == type) return known.layout;
  fail("[block_layout] ", static_cast<std::uint32_t>(type), " is no type of blocks");
}

std::optional<BlockType> block_type_of(std::uint32_t number) {
  for (const KnownType& known : kTypes)
    if (static_cast<std::uint32_t>(known.type) == number) return known.type;
  return std::nullopt;
}

std::string ggml_type_name(std::uint32_t number) {
  if (const auto known = block_type_of(number)) return block_layout(*known).name;
  constexpr const char* kNames[] = {
      "",        "",      "",       "",      "Q4_2",  "Q4_3",   "Q5_0", "Q5_1",    "",
      "Q8_1",    "Q2_K",  "Q3_K",   "",      "Q5_K",  "",       "Q8_K", "IQ2_XXS", "IQ2_XS",
      "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",   "I16",     "I32",
      "I64",     "F64",   "IQ1_M",  "",      "",      "",       "",     "TQ1_0",   "TQ2_0"};
  if (number < std::size(kNames) && kNames[number][0] != 0) return kNames[number];
  return concat({"type ", number});
}

namespace detail {

std::optional<std::uint64_t> packed_bytes(BlockType type, const Shape& sizes) {
  const BlockLayout& layout = block_layout(type);
  const std::int64_t row = sizes.empty() ? 1 : sizes[sizes.size() - 1];
  if (row % layout.elements != 0) return std::nullopt;
  // `bound` is the product without zeros. It bounds each partial product, so that none overflows.
  std::uint64_t bytes = 1, bound = 1;
  const auto times = [&](std::uint64_t factor) {
    const std::uint64_t at_least = std::max<std::uint64_t>(factor, 1);
    if (bound > static_cast<std::uint64_t>(INT64_MAX) / at_least) return false;
    bound *= at_least;
    bytes *= factor;
    return true;
  };
  std::uint64_t numel = 1;  // may be larger than the bytes
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) return std::nullopt;
    const auto size = static_cast<std::uint64_t>(sizes[i]), at_least = std::max<std::uint64_t>(size, 1);
    if (numel > static_cast<std::uint64_t>(INT64_MAX) / at_least) return std::nullopt;
    numel *= at_least;
    if (!times(i + 1 == sizes.size() ? size / static_cast<std::uint64_t>(layout.elements) : size))
      return std::nullopt;
  }
  if (!times(static_cast<std::uint64_t>(layout.bytes))) return std::nullopt;
  return bytes;
}

Tensor share_memory(void* data, DType dtype, const Shape& sizes, std::shared_ptr<const void> owner) {
  const std::size_t bytes = static_cast<std::size_t>(sizes.numel()) * dtype_size(dtype);
  auto* const held = new std::shared_ptr<const void>(std::move(owner));
  StorageRef storage = Storage::wrap(
      kCPU, data, bytes, [](void* arg) { delete static_cast<std::shared_ptr<const void>*>(arg); }, held);
  return make_tensor(std::move(storage), dtype, sizes, contiguous_strides(sizes), 0);
}

}  // namespace detail

namespace detail {
BlockParts block_parts(BlockType type, const std::uint8_t* block) {
  BlockParts p;
  switch (type) {
    case BlockType::q5_0:
      p.d = bits_at(block);
      parts_of_5(block + 2, 16, p);
      break;
    case BlockType::q5_1:
      p.d = bits_at(block), p.m = bits_at(block + 2);
      parts_of_5(block + 4, 0, p);
      break;
    case BlockType::q2_k:
      p.group = 16, p.d = bits_at(block + 80), p.m = bits_at(block + 82);
      for (int g = 0; g < 16; ++g)
        p.scales[g] = static_cast<std::int8_t>(block[g] & 15), p.minima[g] = block[g] >> 4;
      for (int i = 0; i < 256; ++i) p.q[i] = static_cast<std::int8_t>(two_bits(block + 16, i));
      break;
    case BlockType::q3_k:
      p.group = 16, p.d = bits_at(block + 108);
      for (int g = 0; g < 16; ++g) {
        const std::uint8_t* const scales = block + 96;
        const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4,
                  high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
        p.scales[g] = static_cast<std::int8_t>((low | high << 4) - 32);
      }
      for (int i = 0; i < 256; ++i)
        p.q[i] =
            static_cast<std::int8_t>((two_bits(block + 32, i) | (block[i % 32] >> (i / 32) & 1) << 2) - 4);
      break;
    case BlockType::q5_k:
      p.d = bits_at(block), p.m = bits_at(block + 2);
      for (int g = 0; g < 8; ++g) {
        const auto [sc, mn] = scales_of_k(block + 4, g);
        p.scales[g] = static_cast<std::int8_t>(sc), p.minima[g] = static_cast<std::uint8_t>(mn);
        for (int i = 0; i < 32; ++i)
          p.q[32 * g + i] = static_cast<std::int8_t>((block[48 + g / 2 * 32 + i] >> (g % 2 * 4) & 15) |
                                                     (block[16 + i] >> g & 1) << 4);
      }
      break;
    default:
      fail("[block_parts] ", block_layout(type).name, " has a decoder of its own");
  }
  return p;
}

void unpack_blocks(BlockType type, const std::uint8_t* from, std::int64_t blocks, float* out) {
  tapestry::unpack(type, from, blocks, out);
}
}  // namespace detail

struct PackedTensor::Derived {
  std::once_flag once;
  std::shared_ptr<const void> object;
};

const std::shared_ptr<const void>& PackedTensor::derived(
    const std::function<std::shared_ptr<const void>()>& make) const {
  check(defined(), "[PackedTensor::derived] the tensor is not defined");
  std::call_once(derived_->once, [&] { derived_->object = make(); });
  return derived_->object;
}

PackedTensor::PackedTensor(BlockType type, const Shape& sizes, const std::uint8_t* data, std::uint64_t bytes,
                           std::shared_ptr<const void> owner)
    : type_(type),
      sizes_(sizes),
      data_(data),
      bytes_(bytes),
      owner_(std::move(owner)),
      derived_(std::make_shared<Derived>()) {
  const std::optional<std::uint64_t> expected = detail::packed_bytes(type, sizes);
  check(expected.has_value(), "[PackedTensor] a tensor of shape ", sizes, " cannot have the type ",
        block_layout(type).name, ": its rows are no multiple of ", block_layout(type).elements,
        " elements, or it is too large");
  check(*expected == bytes, "[PackedTensor] a tensor of ", block_layout(type).name, " ", sizes, " has ",
        *expected, " bytes, not ", bytes);
  row_elements_ = sizes.empty() ? 1 : sizes[sizes.size() - 1];
  row_bytes_ = row_elements_ / block_layout(type).elements * block_layout(type).bytes;
  rows_ = 1;
  for (int i = 0; i + 1 < sizes.size(); ++i) rows_ *= sizes[i];
}

PackedTensor PackedTensor::pack(const Tensor& x, BlockType type) {
  detail::check_defined("pack", x, "the tensor");
  check<DeviceError>(x.device().is_cpu(), "[pack] the tensor is on ", x.device(), "; move it to the CPU");
  check(x.dtype() == DType::f32 || x.dtype() == DType::f16 || x.dtype() == DType::bf16,
        "[pack] the tensor is of ", x.dtype(), "; f32, f16 and bf16 can be packed");
  check(
      type == BlockType::f32 || type == BlockType::f16 || type == BlockType::bf16 || type == BlockType::q8_0,
      "[pack] tensors cannot be converted to ", block_layout(type).name,
      "; to F32, F16, BF16 and Q8_0 they can");
  const std::optional<std::uint64_t> bytes = detail::packed_bytes(type, x.sizes());
  check(bytes.has_value(), "[pack] the rows of a tensor of shape ", x.sizes(), " are no multiple of the ",
        block_layout(type).elements, " elements of a block of ", block_layout(type).name);
  auto blocks = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(*bytes));
  PackedTensor out(type, x.sizes(), blocks->data(), *bytes, blocks);
  const Shape sizes = x.sizes(), strides = x.strides();
  const int dims = sizes.size();
  const std::int64_t row = out.row_elements_, stride = dims == 0 ? 1 : strides[dims - 1];
  if (row == 0) return out;
  parallel_for(out.rows_, std::max<std::int64_t>(1, 65536 / row), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(row));
    for (std::int64_t r = begin; r < end; ++r) {
      std::int64_t base = 0, rest = r;
      for (int d = dims < 2 ? 0 : dims - 1; d-- > 0;) {
        base += rest % sizes[d] * strides[d];
        rest /= sizes[d];
      }
      load_row(x, base, row, stride, values.data());
      std::uint8_t* const to = blocks->data() + r * out.row_bytes_;
      if (type == BlockType::f32) std::memcpy(to, values.data(), values.size() * 4);
      else if (type == BlockType::q8_0)
        for (std::int64_t i = 0; i < row / 32; ++i) pack_q8_0(values.data() + 32 * i, to + 34 * i);
      else if (type == BlockType::f16)
        for (std::int64_t i = 0; i < row; ++i) put_half(values[static_cast<std::size_t>(i)], to + 2 * i);
      else
        for (std::int64_t i = 0; i < row; ++i) {
          const BFloat16 value(values[static_cast<std::size_t>(i)]);
          std::memcpy(to + 2 * i, &value.bits, 2);
        }
    }
  });
  return out;
}

void PackedTensor::unpack_rows(std::int64_t first, std::int64_t rows, float* out) const {
  check<IndexError>(first >= 0 && rows >= 0 && first <= rows_ && rows <= rows_ - first,
                    "[PackedTensor::unpack_rows] rows ", first, " to ", first, " + ", rows,
                    " were requested, but there are ", rows_);
  if (rows == 0 || row_elements_ == 0) return;
  tapestry::unpack(type_, data_ + first * row_bytes_, rows * (row_elements_ / block_layout(type_).elements),
                   out);
}

Tensor PackedTensor::unpack() const {
  Tensor out = empty(sizes_, {DType::f32, kCPU});
  if (out.numel() == 0) return out;
  float* const to = out.data<float>();
  const BlockLayout& layout = block_layout(type_);
  const std::int64_t blocks = numel() / layout.elements;
  parallel_for(
      blocks, std::max<std::int64_t>(1, 65536 / layout.elements), [&](std::int64_t begin, std::int64_t end) {
        tapestry::unpack(type_, data_ + begin * layout.bytes, end - begin, to + begin * layout.elements);
      });
  return out;
}

Tensor PackedTensor::tensor() const {
  check(type_ == BlockType::f32 || type_ == BlockType::f16 || type_ == BlockType::bf16,
        "[PackedTensor::tensor] the tensor is of ", block_layout(type_).name,
        ", which is no dtype; use unpack()");
  const DType dtype = type_ == BlockType::f32   ? DType::f32
                      : type_ == BlockType::f16 ? DType::f16
                                                : DType::bf16;
  if (reinterpret_cast<std::uintptr_t>(data_) % dtype_size(dtype) == 0 && bytes_ > 0 && owner_)
    return detail::share_memory(const_cast<std::uint8_t*>(data_), dtype, sizes_, owner_);
  Tensor out = empty(sizes_, {dtype, kCPU});
  if (bytes_ > 0) std::memcpy(out.raw_data(), data_, static_cast<std::size_t>(bytes_));
  return out;
}

}  // namespace tapestry
