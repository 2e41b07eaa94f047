// If parts of the forward and the backward pass run on different streams, the gradients must be those of a
// single stream.
#include <optional>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

/// Says which parts of the pass run on a side stream: the two halves of forward, and backward.
struct Aside {
  bool first = false, second = false, backward = false;
};

/// Returns the gradients of two leaves, accumulated over two passes, and a result that the hook of the first
/// leaf computed from its gradient.
std::vector<Tensor> gradients_on(Device device, Aside aside) {
  manual_seed(5);
  const auto leaf = [&] { return randn({5, 7}, kCPU).to(device).set_requires_grad(); };
  const Tensor a = leaf(), b = leaf();
  Tensor seen;
  a.register_post_accumulate_grad_hook([&](const Tensor& t) { seen = t.grad() * 2; });

  const Stream here = current_stream(device), side = new_stream(device);
  // Runs f on the side stream, as stream.h shows: one event orders it after the inputs, and another orders
  // later work after it.
  const auto on = [&](bool is_aside, const auto& f) {
    if (!is_aside) return f();
    Event before, behind;
    before.record(here);
    side.wait(before);
    const Tensor y = [&] {
      const StreamGuard guard(side);
      return f();
    }();
    behind.record(side);
    here.wait(behind);
    for (const Stream& stream : {here, side}) record_stream(y, stream);
    return y;
  };
  for (int pass = 0; pass < 2; ++pass) {
    const Tensor h = on(aside.first, [&] { return (a * b).tanh(); });
    const Tensor loss = on(aside.second, [&] { return (h * a + b).sum(); });
    on(aside.backward, [&] {
      loss.backward();
      return loss;
    });
  }
  return {a.grad().cpu(), b.grad().cpu(), seen.cpu()};
}

}  // namespace

TEST_CASE("backward is ordered with the streams of the forward pass and with the current stream") {
  if (no_gpu()) return;
  const std::vector<Tensor> expected = gradients_on(kCPU, {});
  for (int which = 0; which < 8; ++which) {
    const Aside aside{(which & 1) != 0, (which & 2) != 0, (which & 4) != 0};
    CAPTURE(aside.first, aside.second, aside.backward);
    const std::vector<Tensor> got = gradients_on("cuda:0", aside);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(allclose(got[i], expected[i], 1e-5, 1e-6));
  }
}
