#include "tapestry/autograd/ops/norm.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
Tensor rows() { return zeros({2, 3}); }
}  // namespace

// The running statistics, which change in place, are results too.
GOLDEN_OP("batch_norm", "norm", [](const OpCase& c) {
  const Tensor mean = c[1].defined() ? clone(c[1]) : Tensor(), var = c[2].defined() ? clone(c[2]) : Tensor();
  std::vector<Tensor> results{batch_norm(c[0], mean, var, c[3], c[4], c.flag("training"),
                                         c.real("momentum", 0.1), c.real("eps", 1e-5))};
  if (mean.defined()) results.insert(results.end(), {mean, var});
  return results;
});
BAD_INPUT("batch_norm", "input has shape [3]", [] { return batch_norm(zeros({3}), {}, {}, {}, {}, true); });
BAD_INPUT("batch_norm", "one value per channel", [] {
  return batch_norm(zeros({1, 3}), {}, {}, {}, {}, true);
});
BAD_INPUT("batch_norm", "no values in training", [] {
  return batch_norm(zeros({0, 3}), {}, {}, {}, {}, true);
});
BAD_INPUT("batch_norm", "evaluation needs running_mean",
          [] { return batch_norm(rows(), {}, {}, {}, {}, false); });
BAD_INPUT("batch_norm", "give both or neither",
          [] { return batch_norm(rows(), zeros({3}), {}, {}, {}, true); });
BAD_INPUT("batch_norm", "expected [3]",
          [] { return batch_norm(rows(), zeros({2}), ones({2}), {}, {}, true); });
BAD_INPUT("batch_norm", "weight has shape [3, 1]", [] {
  return batch_norm(rows(), {}, {}, zeros({3, 1}), {}, true);
});
BAD_INPUT("batch_norm", "bias has dtype float64",
          [] { return batch_norm(rows(), {}, {}, {}, zeros({3}, kFloat64), true); });

GOLDEN_OP("layer_norm", "norm", [](const OpCase& c) {
  return layer_norm(c[0], c.dims("normalized_shape"), c[1], c[2], c.real("eps", 1e-5));
});
BAD_INPUT("layer_norm", "does not end in normalized_shape [2]", [] { return layer_norm(rows(), {2}); });
BAD_INPUT("layer_norm", "does not end in normalized_shape [4, 2, 3]", [] {
  return layer_norm(rows(), {4, 2, 3});
});
BAD_INPUT("layer_norm", "normalized_shape is empty", [] { return layer_norm(rows(), Shape{}); });
BAD_INPUT("layer_norm", "weight has shape [2], expected [3]",
          [] { return layer_norm(rows(), {3}, zeros({2})); });
BAD_INPUT("layer_norm", "bias has dtype float64",
          [] { return layer_norm(rows(), {3}, {}, zeros({3}, kFloat64)); });
