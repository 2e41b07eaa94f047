// CPU kernels of the elementary functions of one tensor, and of their gradients.
#include "tapestry/kernels/ops/elementary.h"

#include <cmath>

#include "tapestry/kernels/cpu/table.h"

namespace tapestry::kernels::cpu {
namespace {

// sin, cos and tan of any angle. The angle is the last input of the row.
struct AnyAngle : Math {
  static bool fits(float x) { return std::abs(x) <= kLargestAngle; }
  static bool fits(float, float x) { return fits(x); }
  static float sin(float x) { return std::sin(x); }
  static float cos(float x) { return std::cos(x); }
  static float tan(float x) { return std::tan(x); }
};

template <class Row>
inline constexpr bool kTakesAngle =
    std::is_same_v<Row, Sin> || std::is_same_v<Row, Cos> || std::is_same_v<Row, Tan> ||
    std::is_same_v<Row, GradientOf<Sin>> || std::is_same_v<Row, GradientOf<Cos>>;

// Lgamma calls the standard library. The rows that are not elementary take as long as their memory accesses.
template <class Row>
inline constexpr bool kWide = Row::kElementary && !std::is_same_v<Row, Lgamma>;
template <class Row>
inline constexpr bool kWide<GradientOf<Row>> = true;

const bool rows = for_kernels_of(Elementary(), []<class Row>() {
  if constexpr (kTakesAngle<Row>) register_guarded<Row, AnyAngle>();
  else if constexpr (kWide<Row>) register_wide<Row>();
  else register_pointwise<Row>();
  if constexpr (kWide<Row> && !kTakesAngle<Row> && Row::kOperands == 2) register_tables<Row, false>();
});

}  // namespace
}  // namespace tapestry::kernels::cpu
