// The memory that activation checkpointing uses, and when it is freed.
#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {
std::int64_t live_bytes() { return memory_stats(kCPU).allocated; }
}  // namespace

TEST_CASE("forward keeps only the inputs of the blocks, and backward recomputes one block at a time") {
  constexpr int kBlocks = 12, kOperations = 8;
  constexpr std::int64_t kElements = 1 << 13, kBytes = kElements * 4;
  const auto deep = [](const Tensor& t) {
    Tensor h = t;
    for (int i = 0; i < kOperations; ++i) h = h.tanh();  // tanh saves its output
    return h;
  };
  const Tensor x = full({kElements}, 0.5).set_requires_grad();
  const auto measure = [&](bool checkpointed, const auto& backward) {
    x.zero_grad();
    const std::int64_t before = live_bytes();
    Tensor h = x;
    for (int i = 0; i < kBlocks; ++i) h = checkpointed ? checkpoint(deep, h) : deep(h);
    const Tensor loss = h.sum();
    h = Tensor();
    const std::int64_t forward = live_bytes() - before;
    reset_peak_memory(kCPU);
    backward(loss);
    const std::int64_t peak = memory_stats(kCPU).peak_allocated - before;
    return std::pair((forward + kBytes / 2) / kBytes, (peak + kBytes / 2) / kBytes);
  };
  const auto [plain, plain_peak] = measure(false, [](const Tensor& loss) { loss.backward(); });
  CHECK(plain == kBlocks * kOperations);
  CHECK(plain_peak >= plain);

  // The peak occurs while a block is recomputed. These tensors then exist: the inputs of all blocks except
  // the first (it is x), the saved tensors of one block, and two gradients. The bound allows one more.
  const auto bounded = [](std::int64_t peak) { return peak <= kBlocks - 1 + kOperations + 3; };
  for (const bool retain : {false, true}) {
    CAPTURE(retain);
    const auto [kept, peak] = measure(true, [&](const Tensor& loss) {
      loss.backward({}, retain);
      if (retain) loss.backward();
    });
    CHECK(kept == kBlocks - 1);
    CAPTURE(peak);
    CHECK(bounded(peak));
  }
  const auto [kept, peak] = measure(true, [&](const Tensor& loss) { autograd::grad({loss}, {x}); });
  CAPTURE(kept, peak);
  CHECK(bounded(peak));
  const auto [split_kept, split_peak] = measure(true, [&](const Tensor& loss) {
    autograd::WeightGradients weights;
    autograd::backward_inputs({loss}, {x}, {}, weights);
    weights.accumulate();
  });
  CAPTURE(split_kept, split_peak);
  CHECK(bounded(split_peak));
}

TEST_CASE("recomputed tensors are freed at the end of the pass, and everything is freed with the graph") {
  const std::int64_t before = live_bytes();
  {
    const Tensor x = full({1000}, 0.5).set_requires_grad(), w = full({1000}, 0.25).set_requires_grad();
    const auto f = [&](const Tensor& t) { return std::pair(t.exp() * w, (t.sigmoid() * w).tanh()); };
    const auto [a, b] = checkpoint(f, x.tanh());
    const std::int64_t held = live_bytes();
    // This pass recomputes the saved tensors of a and of b. Both must be freed at its end.
    autograd::grad({a.sum()}, {x}, {}, /*retain_graph=*/true);
    CHECK(live_bytes() == held);
    a.sum().backward();
    CHECK(live_bytes() > before);
  }
  CHECK(live_bytes() == before);
}
