// How many kernels some operations launch, and whether the host waits for them.
#include "tests/device/emulated/device.h"
#include "tests/support/catch.h"

using namespace tapestry;
using testing::emulated_gpus;
using testing::launched_by;

TEST_CASE(
    "ctc_loss of labels on the host does not make the host wait, and launches three kernels of its own") {
  emulated_gpus();
  const Tensor x = log_softmax(randn({9, 3, 6}).to("cuda:0"), 2).detach().set_requires_grad();
  const Tensor labels = tensor({{1, 2, 3}, {2, 2, 5}, {4, 4, 1}}), in = tensor({9, 8, 9}),
               out = tensor({3, 2, 0});
  synchronize("cuda:0");
  const std::int64_t waits = emulated_gpus().host_waits();
  const Tensor loss = ctc_loss(x, labels, in, out, {.zero_infinity = true});
  loss.backward();
  CHECK(emulated_gpus().host_waits() == waits);
  const Tensor host = x.cpu().detach().set_requires_grad();
  const Tensor want = ctc_loss(host, labels, in, out, {.zero_infinity = true});
  want.backward();
  CHECK(allclose(loss.detach().cpu(), want.detach(), 1e-5, 1e-5));
  CHECK(allclose(x.grad().cpu(), host.grad(), 1e-5, 1e-5));
  // On CUDA tensors of labels, the host waits, and the result is the same.
  const Tensor same =
      ctc_loss(x.detach(), labels.to("cuda:0"), in.to("cuda:0"), out.to("cuda:0"), {.zero_infinity = true});
  CHECK(equal(same.cpu(), loss.detach().cpu()));
  const auto count = [](const std::vector<std::string>& names) {
    return std::count_if(names.begin(), names.end(),
                         [](const std::string& name) { return name.find("ctc_") != name.npos; });
  };
  Tensor again;
  CHECK(count(launched_by([&] { again = ctc_loss(x, labels, in, out, {.reduction = Reduction::none}); })) ==
        1);
  CHECK(count(launched_by([&] { again.sum().backward(); })) == 2);
}
