// The CTC kernels must give the CPU's losses, probabilities and gradients, whatever the lengths of the
// samples, and write only what they may.
#include "tapestry/kernels/cuda/ctc.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

struct Batch {
  std::int64_t steps, classes, blank;
  std::vector<std::int64_t> input_lengths;
  std::vector<std::vector<std::int64_t>> labels;
  Tensor log_probs;  // (T, N, C)
};

Batch batch(std::int64_t steps, std::int64_t classes, std::int64_t blank, std::vector<std::int64_t> lengths,
            std::vector<std::vector<std::int64_t>> labels, double spread = 4) {
  Values values = numbers(steps * static_cast<std::int64_t>(lengths.size()) * classes, 7, spread);
  const auto n = static_cast<std::int64_t>(lengths.size());
  return {steps,
          classes,
          blank,
          std::move(lengths),
          std::move(labels),
          log_softmax(tensor(values, {steps, n, classes}), 2).to(kFloat32)};
}

struct Results {
  Tensor losses, alpha, dx;
};

/// Compares the kernels with the CPU's. `tolerance` is that of alpha, and of the gradient relative to 1.
void check_ctc(const Batch& b, float tolerance = 2e-5f) {
  const auto n = static_cast<std::int64_t>(b.labels.size());
  std::vector<std::int64_t> targets, starts, counts;
  std::int64_t longest = 0;
  for (const auto& labels : b.labels) {
    starts.push_back(static_cast<std::int64_t>(targets.size()));
    counts.push_back(static_cast<std::int64_t>(labels.size()));
    longest = std::max(longest, counts.back());
    targets.insert(targets.end(), labels.begin(), labels.end());
  }
  const Block<std::int64_t> target(targets), start(starts), in(b.input_lengths), out(counts);
  const std::int64_t states = 2 * longest + 1;
  const CtcArgs problem{.steps = b.steps,
                        .batch = n,
                        .classes = b.classes,
                        .blank = b.blank,
                        .states = states,
                        .log_probs = b.log_probs,
                        .targets = target.data(),
                        .target_starts = start.data(),
                        .input_lengths = in.data(),
                        .target_lengths = out.data()};
  const Tensor grad = tensor(numbers(n, 3, 2)).to(kFloat32);
  const auto empty_results = [&] {  // marks elements that nobody writes
    return Results{full({n}, -77.0), full({n, b.steps, states}, -77.0), full({b.steps, n, b.classes}, -77.0)};
  };
  for (const bool zero_infinity : {false, true}) {
    CAPTURE(b.steps, n, b.classes, states, b.blank, zero_infinity);
    Results want = empty_results();
    kernels::ctc_loss(kCPU, DType::f32, {.problem = problem, .losses = want.losses, .alpha = want.alpha});
    kernels::ctc_loss_backward(kCPU, DType::f32,
                               {.problem = problem,
                                .losses = want.losses,
                                .alpha = want.alpha,
                                .grad = grad,
                                .dx = want.dx,
                                .zero_infinity = zero_infinity});
    in_each_order([&] {
      Results got = empty_results();
      gpu::launch_ctc_loss({}, {.problem = problem, .losses = got.losses, .alpha = got.alpha});
      gpu::launch_ctc_loss_backward({}, {.problem = problem,
                                         .losses = got.losses,
                                         .alpha = got.alpha,
                                         .grad = grad,
                                         .dx = got.dx,
                                         .zero_infinity = zero_infinity});
      CHECK(allclose(got.losses, want.losses, 1e-6, tolerance, true));
      CHECK(allclose(got.alpha, want.alpha, 1e-6, tolerance, true));
      CHECK(allclose(got.dx, want.dx, tolerance, tolerance, true));
    });
  }
}

}  // namespace

TEST_CASE("ctc kernel: ragged lengths, empty and repeated labels, and impossible samples") {
  check_ctc(batch(9, 5, 0, {9, 7, 3, 0, 0, 9, 1, 4},
                  {{1, 2, 3}, {2, 2, 2}, {}, {}, {1}, {4, 1, 4, 1}, {3}, {2, 2, 2}}));
}

TEST_CASE("ctc kernel: the blank may be any class, and a label") {
  check_ctc(batch(8, 4, 3, {8, 8, 6}, {{0, 1, 2}, {2, 3, 2}, {3, 3}}));
  check_ctc(batch(8, 4, 1, {8, 5, 2}, {{0, 0, 3}, {1}, {2}}));
}

TEST_CASE("ctc kernel: one state and one class, and a batch without elements") {
  check_ctc(batch(3, 1, 0, {3, 1}, {{}, {}}));
  check_ctc(batch(0, 3, 0, {0, 0}, {{}, {1}}));
  check_ctc(batch(4, 3, 0, {}, {}));
}

TEST_CASE("ctc kernel: more states than threads, and states around the threads of a block") {
  for (const std::int64_t labels : {15, 16, 127, 128, 150}) {
    if (kOnlyRaces && labels != 16 && labels != 150) continue;
    std::vector<std::int64_t> longest, other;
    Random random(static_cast<unsigned>(labels));
    for (std::int64_t i = 0; i < labels; ++i) {
      longest.push_back(static_cast<std::int64_t>(random() >> 8) % 40);
      if (i % 3 == 0) other.push_back(5);
    }
    check_ctc(batch(labels + 30, 40, 39, {labels + 30, labels + 29}, {longest, other}), 2e-4f);
  }
}

TEST_CASE("ctc kernel: extreme and infinite log-probabilities, and NaN") {
  Batch b = batch(6, 4, 0, {6, 6, 6, 6}, {{1, 2}, {3}, {2, 2}, {1}}, 512);
  check_ctc(b, 1e-4f);
  const Tensor x = b.log_probs;
  x.select(0, 2).select(0, 1).fill_(-kInfinity);               // no path
  x.select(0, 1).select(0, 0).select(0, 3).fill_(-kInfinity);  // a class that the labels do not need
  x.select(0, 4).select(0, 2).select(0, 0).fill_(-kInfinity);  // a state of some paths
  x.select(0, 3).select(0, 3).select(0, 1).fill_(kNaN);
  check_ctc(b, 1e-4f);
}
