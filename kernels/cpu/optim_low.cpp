// Stochastic rounding of blocks of elements.
#include "tapestry/kernels/cpu/optim.h"
#include "tapestry/kernels/cpu/philox_block.h"
#include "tapestry/kernels/stochastic_rounding.h"

namespace tapestry::kernels::cpu {

// All loops are vectorised: random words are generated for blocks of groups, and then used element by
// element.
template <class T>
void round_block(const float* __restrict x, T* __restrict y, std::int64_t n, const RoundingKey& key) {
  constexpr std::int64_t kGroups =
      (kStepPiece / kRoundingGroup + 1 + kPhiloxLanes - 1) / kPhiloxLanes * kPhiloxLanes;
  alignas(64) std::uint32_t words[4 * kGroups];
  alignas(64) std::uint16_t random[kRoundingGroup * kGroups];
  const std::int64_t first = key.element / kRoundingGroup, lead = key.element % kRoundingGroup;
  const std::int64_t groups = (lead + n + kRoundingGroup - 1) / kRoundingGroup;
  for (std::int64_t g = 0; g < groups; g += kPhiloxLanes)
    philox_block(rounding_seed(key.parameter), static_cast<std::uint64_t>(first + g), words + 4 * g,
                 key.step);
  for (std::int64_t i = 0; i < 4 * groups; ++i) {
    random[2 * i] = static_cast<std::uint16_t>(words[i]);
    random[2 * i + 1] = static_cast<std::uint16_t>(words[i] >> 16);
  }
  const std::uint16_t* const own = random + lead;
  for (std::int64_t i = 0; i < n; ++i) y[i] = round_stochastically<T>(x[i], own[i]);
}
template void round_block(const float*, Half*, std::int64_t, const RoundingKey&);
template void round_block(const float*, BFloat16*, std::int64_t, const RoundingKey&);

}  // namespace tapestry::kernels::cpu
