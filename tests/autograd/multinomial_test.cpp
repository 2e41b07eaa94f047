#include "tapestry/autograd/ops/multinomial.h"

#include <cmath>
#include <map>
#include <vector>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/search.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;

namespace {

// Pearson's chi-square statistic of observed counts.
double chi_square(const std::vector<double>& counts, const std::vector<double>& expected) {
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    sum += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
  return sum;
}

const std::vector<double> kWeights = {0.5, 3, 0, 1.5, 2, 1};  // sum to 8
constexpr std::int64_t kDraws = 40000;

// Checks kDraws categories that were drawn with kWeights.
void check_frequencies(const Tensor& drawn) {
  const Tensor counted = bincount(drawn, {}, 6);
  CHECK(counted[2].item() == 0);
  std::vector<double> counts, expected;
  for (const int i : {0, 1, 3, 4, 5}) {
    counts.push_back(counted[i].item());
    expected.push_back(static_cast<double>(kDraws) * kWeights[static_cast<std::size_t>(i)] / 8);
  }
  CHECK(chi_square(counts, expected) < 18.5);  // exceeded with probability 0.001 for 4 degrees of freedom
}

}  // namespace

OP_TEST("multinomial", golden, "draws each category in proportion to its weight") {
  manual_seed(1);
  const Tensor drawn = multinomial(tensor(kWeights), kDraws, true);
  CHECK(drawn.dtype() == kInt64);
  CHECK(drawn.sizes() == Shape{kDraws});
  check_frequencies(drawn);
}
OP_TEST("multinomial", dtypes, "draws in proportion in every dtype, and the same where weights are exact") {
  manual_seed(2);
  const Tensor want = multinomial(tensor(kWeights), kDraws, true);
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    manual_seed(2);
    CHECK(equal(multinomial(tensor(kWeights, dtype), kDraws, true), want));
  }
  check_frequencies(want);
}

TEST_CASE("multinomial: pairs drawn without replacement have the probabilities of successive draws") {
  manual_seed(2);
  const std::int64_t rows = 40000;
  const std::vector<double> w = {1, 2, 3, 4};
  const Tensor drawn = multinomial(tensor(w).expand({rows, 4}), 2);
  CHECK(drawn.sizes() == Shape{rows, 2});
  std::vector<double> counts(16), expected(16);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t* const pair = drawn.data<std::int64_t>() + 2 * i;
    ++counts[static_cast<std::size_t>(4 * pair[0] + pair[1])];
  }
  std::vector<double> seen, wanted;
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = 0; b < 4; ++b) {
      if (a == b) {
        CHECK(counts[4 * a + b] == 0);
      } else {
        seen.push_back(counts[4 * a + b]);
        wanted.push_back(static_cast<double>(rows) * w[a] / 10 * w[b] / (10 - w[a]));
      }
    }
  CHECK(chi_square(seen, wanted) < 31.3);  // exceeded with probability 0.001 for 11 degrees of freedom
}

TEST_CASE("multinomial: all positive weights can be drawn without replacement, and no others") {
  manual_seed(3);
  const Tensor drawn = multinomial(tensor(kWeights), 5);
  CHECK(equal(drawn.sort().first, tensor({0, 1, 3, 4, 5})));
}

TEST_CASE("multinomial: the seed determines the draws, and rows draw different numbers") {
  const Tensor weights = ones({300, 50});
  for (const bool replacement : {false, true}) {
    manual_seed(4);
    const Tensor once = multinomial(weights, 20, replacement);
    const Tensor later = multinomial(weights, 20, replacement);
    manual_seed(4);
    const int threads = get_num_threads();
    set_num_threads(3);
    CHECK(equal(multinomial(weights, 20, replacement), once));
    set_num_threads(threads);
    CHECK(!equal(once, later));
    CHECK(!equal(once[0], once[1]));
  }
}

OP_TEST("multinomial", strided, "expanded, transposed and sliced weights draw as dense ones") {
  const Tensor dense = rand({5, 8});
  const Tensor gaps = zeros({5, 16});
  gaps.slice(1, 0, {}, 2).copy_(dense);
  for (const Tensor& weights : {dense.t().contiguous().t(), gaps.slice(1, 0, {}, 2)}) {
    manual_seed(5);
    const Tensor a = multinomial(dense, 3);
    manual_seed(5);
    CHECK(equal(multinomial(weights, 3), a));
  }
}
OP_TEST("multinomial", empty, "no rows give no draws and use no numbers") {
  manual_seed(6);
  CHECK(multinomial(zeros({0, 3}), 2, true).sizes() == Shape{0, 2});
  const Tensor x = rand({1});
  manual_seed(6);
  CHECK(equal(x, rand({1})));
}
OP_TEST("multinomial", extreme, "weights of very different sizes") {
  manual_seed(7);
  const Tensor tiny = tensor({0.0, 1e-40, 0.0, 3e-40}, kFloat32),
               huge = tensor({0.0, 1e38, 0.0, 3e38}, kFloat32);
  for (const Tensor& weights : {tiny, huge}) {
    const Tensor counts = bincount(multinomial(weights, 4000, true), {}, 4);
    CHECK(counts[0].item() + counts[2].item() == 0);
    CHECK(std::abs(counts[1].item() - 1000) < 100);  // 3.6 standard deviations
  }
  CHECK(multinomial(tensor({1e-30, 1e30}), 1000, true).sum().item() == 1000);
}

BAD_INPUT("multinomial", "shape [2, 2, 2]", [] { multinomial(ones({2, 2, 2}), 1); });
BAD_INPUT("multinomial", "num_samples is 0", [] { multinomial(ones({2}), 0); });
BAD_INPUT("multinomial", "cannot draw 3 of 2 categories", [] { multinomial(ones({2}), 3); });
BAD_INPUT("multinomial", "range from -1", [] { multinomial(tensor({1.0, -1.0}), 1); });
BAD_INPUT("multinomial", "must be finite", [] { multinomial(tensor({1.0, INFINITY}), 1); });
BAD_INPUT("multinomial", "range from nan", [] { multinomial(tensor({1.0, NAN}), 1, true); });
BAD_INPUT("multinomial", "all probs of a row are 0", [] {
  multinomial(tensor({{1, 1}, {0, 0}}, kFloat32), 1);
});
BAD_INPUT("multinomial", "only 1 positive probs", [] { multinomial(tensor({0.0, 1.0, 0.0}), 2); });
BAD_INPUT("multinomial", "int64", [] { multinomial(ones({3}, kInt64), 1); });
BAD_INPUT("multinomial", "no category", [] { multinomial(ones({2, 0}), 1); });
