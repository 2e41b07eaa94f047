#include "tapestry/autograd/ops/distance.h"

#include <cmath>
#include <limits>

#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("cdist", "distance", [](const OpCase& c) { return cdist(c[0], c[1], c.real("p")); });
GOLDEN_OP("pairwise_distance", "distance", [](const OpCase& c) {
  return pairwise_distance(c[0], c[1], c.real("p", 2), c.real("eps", 1e-6), c.flag("keepdim", false));
});
GOLDEN_OP("cosine_similarity", "distance", [](const OpCase& c) {
  return cosine_similarity(c[0], c[1], c.integer("dim", 1), c.real("eps", 1e-8));
});
GOLDEN_OP("normalize", "distance", [](const OpCase& c) {
  return normalize(c[0], c.real("p", 2), c.integer("dim", 1), c.real("eps", 1e-12));
});

BAD_INPUT("cdist", "expected (..., P, M) and (..., R, M)", [] { cdist(zeros({2, 3}), zeros({2, 4})); });
BAD_INPUT("cdist", "expected (..., P, M)", [] { cdist(zeros({3}), zeros({2, 3})); });
BAD_INPUT("cdist", "p is -1", [] { cdist(zeros({2, 3}), zeros({2, 3}), -1); });
BAD_INPUT("cdist", "p is nan", [] { cdist(zeros({2, 3}), zeros({2, 3}), std::nan("")); });
BAD_INPUT("cdist", "differ; convert one", [] { cdist(zeros({2, 3}), zeros({2, 3}, kFloat64)); });
BAD_INPUT("cdist", "[cdist]", [] { cdist(zeros({2, 2, 3}), zeros({3, 2, 3})); });
BAD_INPUT("pairwise_distance", "do not broadcast", [] { pairwise_distance(zeros({2, 3}), zeros({2, 4})); });
BAD_INPUT("cosine_similarity", "dimension 2", [] { cosine_similarity(zeros({2, 3}), zeros({2, 3}), 2); });
BAD_INPUT("cosine_similarity", "[cosine_similarity]", [] {
  cosine_similarity(zeros({2, 3}), zeros({2, 4}));
});
BAD_INPUT("normalize", "dimension 2", [] { normalize(zeros({2, 3}), 2, 2); });

TEST_CASE("cdist: distance 0 has gradient 0, also by products") {
  for (const std::int64_t rows : {3, 30}) {
    const Tensor x = randn({rows, 4}, DType::f64).set_requires_grad();
    const Tensor y = cdist(x, x);
    CHECK(allclose(y.diag(), zeros({rows}, DType::f64), 0, 1e-6));
    const Tensor z = x.detach().clone().set_requires_grad();
    cdist(z, tensor({{0.0, 0, 0, 0}}, DType::f64).add(z[0].detach())).sum().backward();
    CHECK(equal(z.grad()[0], zeros({4}, DType::f64)));
    CHECK(std::abs(z.grad()[1].norm().item() - 1) < 1e-12);
  }
}

TEST_CASE("cdist computes 16-bit inputs in f32") {
  // The squares are about 64, and bf16 has steps of 0.5 there; the distance is 0.25.
  const Tensor a = full({30, 1}, 8.0, DType::bf16), b = full({2, 1}, 8.25, DType::bf16);
  CHECK(equal(cdist(a, b), full({30, 2}, 0.25, DType::bf16)));
}
