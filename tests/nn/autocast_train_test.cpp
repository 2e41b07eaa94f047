// Training in mixed precision: against PyTorch's losses, and with wrappers around the model.
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/threads.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using namespace tapestry;

namespace {

// The numbers of wave() in tests/golden/autocast.py.
Tensor wave(const Shape& sizes, double step, double scale) {
  return (sin(arange(1, sizes.numel() + 1, 1, DType::f64) * step) * scale).to(DType::f32).reshape(sizes);
}

// train(order) of tests/golden/autocast.py: the mean loss of the last 20 of 200 steps.
double train(int order) {
  std::vector<Tensor> params{wave({32, 16}, 0.7, 0.25), zeros({32}), ones({32}), zeros({32}),
                             wave({5, 32}, 1.3, 0.2),   zeros({5})};
  for (Tensor& p : params) p.set_requires_grad();
  const Tensor x = wave({80, 16}, 0.37, 1.0);
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < 80; ++i) classes.push_back(i * i / 3 % 5);
  const Tensor y = tensor(classes);
  double sum = 0;
  for (std::int64_t step = 0; step < 200; ++step) {
    std::vector<std::int64_t> rows;
    const std::int64_t factor = 3 + 2 * order;
    for (std::int64_t j = 0; j < 16; ++j)
      rows.push_back(factor % 5 ? (step * 16 + j) * factor % 80 : (step * 16 + j * 7 + order) % 80);
    const Tensor index = tensor(rows);
    Tensor loss;
    {
      const AutocastGuard guard(DType::bf16);
      const Tensor h = gelu(
          layer_norm(linear(index_select(x, 0, index), params[0], params[1]), {32}, params[2], params[3]));
      loss = cross_entropy(linear(h, params[4], params[5]), index_select(y, 0, index));
    }
    for (const Tensor& p : params) p.zero_grad();
    loss.backward();
    const NoGradGuard no_grad;
    for (const Tensor& p : params) p.sub_(p.grad() * 0.1);
    if (step >= 180) sum += loss.item();
  }
  return sum / 20;
}

}  // namespace

TEST_CASE("autocast: 200 steps in bf16 end within the spread of PyTorch's runs") {
  std::map<int, double> theirs;
  std::ifstream file(tests::source_path("tests/golden/autocast.txt"));
  double least = INFINITY, largest = -INFINITY;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    int order = 0;
    double mean = 0;
    words >> kind >> order >> mean;
    if (kind != "train") continue;
    theirs[order] = mean;
    least = std::min(least, mean), largest = std::max(largest, mean);
  }
  REQUIRE(theirs.size() == 8);
  for (const int order : {0, 3}) {
    const double loss = train(order);
    CHECK(loss >= least);
    CHECK(loss <= largest * 1.001);
    // The same order of batches differs by rounding alone, which is less than the spread over the orders.
    CHECK(std::abs(loss - theirs[order]) < (largest - least) / 4);
  }
}

namespace {

// Three steps of a CNN whose kernels all divide their work among threads. Returns the weights.
std::vector<Tensor> weights_after_steps(int threads) {
  const int before = get_num_threads();
  set_num_threads(threads);
  std::vector<Tensor> params{wave({16, 1, 5, 5}, 0.7, 0.2), wave({32, 16, 3, 3}, 1.1, 0.1), ones({32}),
                             zeros({32}), wave({10, 32 * 5 * 5}, 0.9, 0.05)};
  for (Tensor& p : params) p.set_requires_grad();
  for (int step = 0; step < 3; ++step) {
    const Tensor x = wave({24, 1, 28, 28}, 0.37 + step, 1.0);
    const Tensor y = arange(24) % 10;
    for (const Tensor& p : params) p.zero_grad();
    Tensor loss;
    {
      const AutocastGuard guard(DType::bf16);
      const Tensor h = max_pool2d(relu(conv2d(x, params[0])), {.kernel_size = 2});
      const Tensor k = conv2d(h, params[1]);
      loss = cross_entropy(
          linear(max_pool2d(relu(group_norm(k, 4, params[2], params[3])), {.kernel_size = 2}).flatten(1),
                 params[4]),
          y);
    }
    loss.backward();
    const NoGradGuard no_grad;
    for (const Tensor& p : params) p.sub_(p.grad() * 0.1);
  }
  set_num_threads(before);
  return params;
}

}  // namespace

TEST_CASE("autocast: runs on the same number of threads have the same bits") {
  for (const int threads : {1, 2, 3}) {
    const auto a = weights_after_steps(threads), b = weights_after_steps(threads);
    for (std::size_t i = 0; i < a.size(); ++i) {
      CAPTURE(threads, i);
      CHECK(equal(a[i], b[i]));
      CHECK(all(isfinite(a[i])).item() != 0);
    }
  }
}
