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

TEST_CASE("copy_ between the host and a device converts, packs and broadcasts, into any strides") {
  if (no_gpu()) return;
  const Tensor whole = arange(24).to(DType::f32).reshape({4, 6});
  for (const Device from : {kCPU, Device("cuda:0")}) {
    const Device to = from.is_cpu() ? Device("cuda:0") : kCPU;
    for (const DType dtype : {DType::f32, DType::f16}) {
      CAPTURE(from.str(), dtype);
      const auto every_other = [&](const Tensor& t) { return t.slice(1, 0, 12, 2); };
      const auto copied = [&](const Tensor& x) {  // into every other column of a tensor of 4 x 12
        const Tensor out = every_other(zeros({4, 12}, {dtype, to}));
        out.copy_(x);
        return out.cpu().to(DType::f32);
      };
      const Tensor moved = whole.to(from);
      CHECK(equal(copied(moved), whole));
      CHECK(equal(copied(moved.t().contiguous().t()), whole));                            // another order
      CHECK(equal(copied(moved.narrow(0, 1, 1)), whole.narrow(0, 1, 1).expand({4, 6})));  // broadcast
      CHECK(equal(copied(moved.narrow(1, 2, 1).expand({4, 6})), whole.narrow(1, 2, 1).expand({4, 6})));
      CHECK(equal(copied(moved.to(DType::f64)), whole));
    }
  }
}
