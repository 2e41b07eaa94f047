// Conversions of whole arrays must give the bits of the constructors, whichever instructions they use.
#include <bit>
#include <cstdint>
#include <vector>

#include "tapestry/core/half.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("arrays are rounded to bf16 as single numbers are: every upper half with several lower halves") {
  // Ties, their neighbours, and the ends, for every sign, exponent and mantissa of bf16: also subnormal
  // numbers, infinities, and NaN with every payload.
  const std::uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  std::vector<float> x;
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t low : lower) x.push_back(std::bit_cast<float>(upper << 16 | low));
  std::vector<BFloat16> y(x.size());
  kernels::cpu::from_float(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += y[i].bits != BFloat16(x[i]).bits;
  CHECK(wrong == 0);
  for (const std::int64_t n : {0, 1, 15, 16, 17, 33}) {  // neither more nor fewer elements than asked for
    std::vector<BFloat16> part(40, BFloat16(9.0f));
    kernels::cpu::from_float(x.data() + 100000, part.data(), n);
    for (std::int64_t i = 0; i < 40; ++i)
      CHECK(part[static_cast<std::size_t>(i)].bits ==
            (i < n ? BFloat16(x[static_cast<std::size_t>(100000 + i)]) : BFloat16(9.0f)).bits);
  }
}
