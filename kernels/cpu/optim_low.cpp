// Stochastic rounding of blocks of elements.
#include <algorithm>

#include "tapestry/kernels/cpu/optim.h"
#include "tapestry/kernels/stochastic_rounding.h"

namespace tapestry::kernels::cpu {

// Both loops are vectorised: random words are generated group by group, and then used element by element.
template <class T>
void round_block(const float* x, T* y, std::int64_t n, const RoundingKey& key) {
  constexpr std::int64_t kGroups = kStepPiece / kRoundingGroup + 1;
  alignas(64) std::uint16_t random[kGroups * kRoundingGroup];
  const std::int64_t first = key.element / kRoundingGroup, lead = key.element % kRoundingGroup;
  const std::int64_t groups = (lead + n + kRoundingGroup - 1) / kRoundingGroup;
  for (std::int64_t g = 0; g < groups; ++g) {
    const Philox4 words = rounding_words(key.parameter, key.step, static_cast<std::uint64_t>(first + g));
    for (int k = 0; k < 4; ++k) {
      random[kRoundingGroup * g + 2 * k] = static_cast<std::uint16_t>(words.v[k]);
      random[kRoundingGroup * g + 2 * k + 1] = static_cast<std::uint16_t>(words.v[k] >> 16);
    }
  }
  for (std::int64_t i = 0; i < n; ++i) y[i] = round_stochastically<T>(x[i], random[lead + i]);
}
template void round_block(const float*, Half*, std::int64_t, const RoundingKey&);
template void round_block(const float*, BFloat16*, std::int64_t, const RoundingKey&);

}  // namespace tapestry::kernels::cpu
