#include "tapestry/autograd/ops/multinomial.h"

#include <cmath>

#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/multinomial.h"
#include "tapestry/kernels/ops/scan.h"
#include "tapestry/kernels/ops/sort.h"

namespace tapestry {
namespace {

const autograd::Op kMultinomial("multinomial", autograd::Grad::none, kFloats);

// Reserves a 64-bit random number for each of n elements. A counter gives two.
PhiloxRange take_words(Device device, std::int64_t n) {
  return current_generator(device).take((static_cast<std::uint64_t>(n) + 1) / 2);
}

}  // namespace

Tensor multinomial(const Tensor& probs, std::int64_t num_samples, bool replacement) {
  detail::check_defined(kMultinomial.name, probs);
  kMultinomial.check_dtype(probs.dtype());
  check(probs.dim() == 1 || probs.dim() == 2, "[multinomial] probs have shape ", probs.sizes(),
        "; pass one row or a matrix of rows");
  const std::int64_t n = probs.size(-1), rows = probs.dim() == 2 ? probs.size(0) : 1;
  check(num_samples > 0, "[multinomial] num_samples is ", num_samples, "; give 1 or more");
  check(n > 0, "[multinomial] probs have shape ", probs.sizes(), "; there is no category to draw");
  check(replacement || num_samples <= n, "[multinomial] cannot draw ", num_samples, " of ", n,
        " categories without replacement; give at most ", n, ", or replacement = true");
  const NoGradGuard no_grad;
  const Device device = probs.device();
  const TensorOptions integers(DType::i64, device);
  const Shape sizes = probs.dim() == 2 ? Shape{rows, num_samples} : Shape{num_samples};
  if (rows == 0) return empty(sizes, integers);

  const DType dtype = autograd::accumulation_dtype(probs.dtype());
  const Tensor p = autograd::converted(probs.contiguous(), dtype).view({rows, n}), largest = amax(p, 1);
  if (!device.is_meta()) {
    tapestry::detail::check_host_reads("multinomial", p);
    const double lowest = amin(p).item(), highest = amax(largest).item(), least = amin(largest).item();
    check(lowest >= 0 && std::isfinite(highest), "[multinomial] probs range from ", lowest, " to ", highest,
          "; all must be finite and at least 0");
    check(least > 0, "[multinomial] all probs of a row are 0; give at least one positive weight");
  }

  const Tensor out = empty(sizes, integers);
  const std::int64_t count = rows * num_samples;
  if (replacement || num_samples == 1) {
    const Tensor weights = empty({rows, n}, integers), cumulative = empty({rows, n}, integers);
    kernels::multinomial_weights(device, dtype,
                                 {.rows = rows, .n = n, .p = p, .largest = largest, .y = weights});
    kernels::cumsum(device, DType::i64,
                    {.rows = rows, .n = n, .reverse = false, .x = weights, .y = cumulative});
    kernels::multinomial_draw(device, DType::i64,
                              {.rows = rows,
                               .n = n,
                               .k = num_samples,
                               .range = take_words(device, count),
                               .cumulative = cumulative,
                               .out = out});
    return out;
  }
  const auto positive = device.is_meta() ? n : amin(sum(gt(p, 0), 1)).item<std::int64_t>();
  check(positive >= num_samples, "[multinomial] a row has only ", positive, " positive probs, but ",
        num_samples, " categories are to be drawn without replacement; draw fewer");
  const Tensor scores = empty({rows, n}, integers);
  kernels::multinomial_scores(
      device, dtype, {.count = rows * n, .range = take_words(device, rows * n), .p = p, .y = scores});
  kernels::sort(device, DType::i64,
                {.rows = rows,
                 .n = n,
                 .k = num_samples,
                 .descending = false,
                 .x = scores,
                 .values = nullptr,
                 .indices = out});
  return out;
}
Tensor Tensor::multinomial(std::int64_t num_samples, bool replacement) const {
  return tapestry::multinomial(*this, num_samples, replacement);
}

}  // namespace tapestry
