// Tests the formulas of all rows with the GPU's elementary functions, at extremes. A formula touches no
// memory, so it is called without a kernel. tests/device checks the values that kernels compute, but does not
// run under the sanitizers.
#include <cmath>
#include <limits>

#include "tapestry/kernels/cpu/math.h"
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/compare.h"
#include "tapestry/kernels/ops/composite.h"
#include "tapestry/kernels/ops/functions.h"
#include "tests/emulated/memory.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kExtremes[] = {0.0f,    -0.0f,  1.0f,    -1.0f, 0.5f,   -3.0f, 10.0f, -10.0f, 200.0f,
                               -200.0f, 1e-40f, -1e-40f, 3e38f, -3e38f, kInf,  -kInf, kNan};

/// Calls f with every choice of kInputs extremes.
template <int kInputs, class F, class... In>
void for_extremes(const F& f, In... in) {
  if constexpr (sizeof...(In) == kInputs) f(in...);
  else
    for (const float x : kExtremes) for_extremes<kInputs>(f, in..., x);
}

/// Parameters, if the row has some, are 2, 20 and 0.5.
template <class Row, class M, class... In>
auto value(In... in) {
  if constexpr (Row::kParams == 0) return Row::template value<M>(in...);
  else if constexpr (Row::kParams == 1) return Row::template value<M>(in..., 2.0f);
  else if constexpr (Row::kParams == 2) return Row::template value<M>(in..., 2.0f, 20.0f);
  else return Row::template value<M>(in..., 2.0f, 20.0f, 0.5f);
}

template <class Row, class T>
void check_row() {
  CAPTURE(Row::kSlotName.text, dtype_name(dtype_of<T>));
  int bad = 0;
  for_extremes<Row::kOperands - 1>([&](auto... in) {
    const auto want = static_cast<float>(value<Row, kernels::cpu::Math>(in...));
    const auto got = static_cast<float>(value<Row, gpu::Math<T>>(in...));
    if (std::isnan(got) == std::isnan(want) || ++bad > 3) return;
    CAPTURE(std::vector<float>{in...}, got, want);
    CHECK(std::isnan(got) == std::isnan(want));
  });
  CHECK(bad == 0);
}

}  // namespace

TEST_CASE("formulas: at extremes, the GPU's functions give NaN exactly where the CPU's do") {
  const auto check = []<class Row>() { for_types<float, BFloat16>([]<class T>() { check_row<Row, T>(); }); };
  for_kernels_of(Functions(), check);
  for_kernels_of(Arithmetic(), check);
  for_kernels_of(Comparisons(), check);
  for_kernels_of(Composites(), check);
}
