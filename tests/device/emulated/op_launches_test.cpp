// How many kernels some operations launch, and whether the host waits for them.
#include <algorithm>

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

namespace {

struct Clipped {
  std::vector<nn::Parameter> params;
  std::int64_t waits = 0;
  std::size_t launches = 0;
  Tensor total;
  std::vector<Tensor> gradients;
};

/// Clips `count` gradients on the device, which `clip` does, and counts launches and waits.
Clipped clipped(int count, Device device, DType dtype, const std::function<Tensor(Clipped&)>& clip) {
  Clipped result;
  manual_seed(4);
  for (int i = 0; i < count; ++i) {
    const Shape sizes = i % 3 == 0 ? Shape{2, 3, 2, 2} : Shape{1 + i % 7};
    const MemoryFormat format = i % 3 == 0 ? MemoryFormat::channels_last : MemoryFormat::contiguous;
    result.params.emplace_back("p" + std::to_string(i), randn(sizes).to(device, dtype).contiguous(format));
    result.params.back()->set_grad(randn(sizes).to(device, dtype).contiguous(format));
  }
  if (device.is_cpu()) {
    result.total = clip(result);
  } else {
    synchronize(device);
    const std::int64_t before = emulated_gpus().host_waits();
    cuda_emulator::take_launches();
    result.total = clip(result);
    result.waits = emulated_gpus().host_waits() - before;
    synchronize(device);
    result.launches = cuda_emulator::take_launches().size();
  }
  for (const nn::Parameter& p : result.params) result.gradients.push_back(p->grad().cpu());
  return result;
}

}  // namespace

TEST_CASE("clipping any number of gradients takes three launches and no wait, and clamping them takes one") {
  emulated_gpus();
  for (const int count : {1, 5, 128, 129, 300})
    for (const double type : {1.0, 2.0, 2.5, std::numeric_limits<double>::infinity()}) {
      if (count > 5 && type != 2) continue;
      CAPTURE(count, type);
      const auto clip = [type](Clipped& c) { return nn::clip_grad_norm_(c.params, 0.7, type); };
      const Clipped got = clipped(count, "cuda:0", DType::f32, clip),
                    want = clipped(count, kCPU, DType::f32, clip);
      CHECK(got.launches == 3);
      CHECK(got.waits == 0);
      CHECK(got.total.device() == Device("cuda:0"));
      CHECK(allclose(got.total.cpu(), want.total, 1e-5, 0));
      for (std::size_t i = 0; i < got.gradients.size(); ++i)
        CHECK(allclose(got.gradients[i], want.gradients[i], 1e-5, 1e-7));
    }
  const auto clamp = [](Clipped& c) {
    nn::clip_grad_value_(c.params, 0.25);
    return Tensor();
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Clipped got = clipped(150, "cuda:0", dtype, clamp), want = clipped(150, kCPU, dtype, clamp);
    CHECK(got.launches == 1);
    CHECK(got.waits == 0);
    for (std::size_t i = 0; i < got.gradients.size(); ++i) CHECK(equal(got.gradients[i], want.gradients[i]));
  }
}

TEST_CASE("error_if_nonfinite waits for the norm, and changes no gradient if it throws") {
  emulated_gpus();
  const auto clip = [](Clipped& c) { return nn::clip_grad_norm_(c.params, 1, 2, true); };
  const Clipped fine = clipped(3, "cuda:0", DType::f32, clip);
  CHECK(fine.waits >= 1);
  CHECK(fine.launches == 3);
  clipped(3, "cuda:0", DType::f32, [](Clipped& c) {
    c.params[1]->grad().fill_(std::numeric_limits<double>::infinity());
    const Tensor before = c.params[0]->grad().cpu().clone();
    CHECK_THROWS_WITH(nn::clip_grad_norm_(c.params, 1, 2, true),
                      ContainsSubstring("the norm of the gradients is inf"));
    CHECK(equal(c.params[0]->grad().cpu(), before));
    return Tensor();
  });
}

TEST_CASE("an operation in place after clipping is detected by the version of the gradient") {
  emulated_gpus();
  clipped(2, "cuda:0", DType::f32, [](Clipped& c) {
    const Tensor grad = c.params[0]->grad(),
                 leaf = ones(grad.sizes(), TensorOptions(grad.device())).set_requires_grad();
    const Tensor y = (leaf * grad).sum();  // saves the gradient
    nn::clip_grad_norm_(c.params, 0.1);
    CHECK_THROWS_WITH(y.backward(), ContainsSubstring("in place"));
    return Tensor();
  });
}

TEST_CASE("cat, transposed copies, and norms with a residual are one launch") {
  emulated_gpus();
  const auto names = [](const auto& run) {
    Tensor kept;
    return launched_by([&] { kept = run(); });
  };
  for (const int count : {2, 96, 97}) {
    std::vector<Tensor> parts, host;
    for (int i = 0; i < count; ++i) {
      host.push_back(full({3, 1 + i % 5}, i));
      parts.push_back(host.back().to("cuda:0"));
    }
    CAPTURE(count);
    CHECK(names([&] { return cat(parts, 1); }).size() == (count > 96 ? 2 : 1));
    CHECK(equal(cat(parts, 1).cpu(), cat(host, 1)));
  }
  const Tensor x = randn({40, 33}).to("cuda:0"), residual = randn({40, 33}).to("cuda:0"),
               weight = ones({33}, DType::f32).to("cuda:0");
  const auto transposed = names([&] { return x.t().contiguous(); });
  REQUIRE(transposed.size() == 1);
  CHECK_THAT(transposed[0], ContainsSubstring("copy_transposed"));
  CHECK(names([&] { return add_layer_norm(x, residual, {33}, weight, weight).second; }).size() == 1);
  CHECK(names([&] { return add_rms_norm(x, residual, {33}, weight).second; }).size() == 1);
}

TEST_CASE("the gradient of gather divides long runs of one index, whatever their order") {
  emulated_gpus();
  const Tensor index = zeros({200, 3}, DType::i64);
  for (std::int64_t i = 0; i < index.numel(); ++i) index.data<std::int64_t>()[i] = i % 7 == 0 ? 1 : 0;
  const Tensor grad = randn({200, 3}), host = randn({2, 3}).set_requires_grad(),
               x = host.detach().to("cuda:0").set_requires_grad(), there = grad.to("cuda:0");
  const Tensor y = gather(x, 0, index.to("cuda:0"));
  const auto launched = launched_by([&] { y.backward(there); });
  const auto is = [](const char* part) {
    return [part](const std::string& name) { return name.find(part) != name.npos; };
  };
  CHECK(std::any_of(launched.begin(), launched.end(), is("combine_runs")));
  CHECK(std::any_of(launched.begin(), launched.end(), is("combine_partials")));
  gather(host, 0, index).backward(grad);
  CHECK(allclose(x.grad().cpu(), host.grad(), 1e-5, 1e-5));
}
