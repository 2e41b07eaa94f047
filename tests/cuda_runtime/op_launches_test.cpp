// How many kernels operations and training steps launch, which ones, and whether the host waits for them.
// Every additional launch makes every step slower. The tests need a build with CUDA that is linked with the
// shared CUDA runtime.
#if TAPESTRY_LIBRARY_HAS_CUDA
#include <algorithm>
#include <cmath>
#include <memory>

#include "tapestry/tapestry.h"
#include "tapestry/tools/ptx/runtime/settings.h"
#include "tests/cuda_runtime/gpus.h"
#include "tests/device/models.h"

using namespace device_tests;

namespace {

/// A GPU whose kernels run without the search for races, which tests/device does.
struct Running : Gpus {
  Running() : Gpus(1) {
    stand_in::Settings settings;
    settings.races = settings.shared = false;
    stand_in::execute(settings);
  }
};

/// Calls `run`. Returns the symbols of the kernels that were launched.
std::vector<std::string> launched_by(const std::function<void()>& run) {
  const std::size_t before = stand_in::launches().size();
  run();
  std::vector<std::string> names;
  const std::vector<stand_in::Launch> all = stand_in::launches();
  for (std::size_t i = before; i < all.size(); ++i) names.push_back(all[i].kernel.symbol);
  return names;
}

/// The constructor trains the task's model for two steps, so that the optimizer's state exists. step() trains
/// one more step.
class Training {
 public:
  explicit Training(const Task& task)
      : model_(task.make()), input_(task.input().to("cuda:0")), target_(task.target().to("cuda:0")) {
    model_->to("cuda:0");
    optimizer_ =
        std::make_unique<optim::SGD>(model_->parameters(), optim::SGD::Options{.lr = 0.01, .momentum = 0.9});
    step();
    step();
  }
  Tensor step() { return train_step(*model_, *optimizer_, input_, target_); }

 private:
  std::unique_ptr<nn::Module> model_;
  Tensor input_, target_;
  std::unique_ptr<optim::SGD> optimizer_;
};

}  // namespace

TEST_CASE("a training step never blocks the host") {
  const Running gpu;
  for (const Task& task : tasks()) {
    CAPTURE(task.name);
    Training training(task);
    synchronize("cuda:0");
    const std::int64_t before = stand_in::host_waits();
    const Tensor loss = training.step();
    CHECK(stand_in::host_waits() - before == 0);
    loss.item();
    CHECK(stand_in::host_waits() - before == 1);
  }
}

TEST_CASE("batch norm in training is three launches forward, and three backward") {
  const Running gpu;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      CAPTURE(dtype, static_cast<int>(format));
      const TensorOptions options(dtype, "cuda:0");
      const Tensor x = ones({2, 4, 3, 3}, options).contiguous(format).set_requires_grad();
      const Tensor weight = ones({4}, options).set_requires_grad();
      const Tensor bias = zeros({4}, options).set_requires_grad();
      const Tensor mean = zeros({4}, options), var = ones({4}, options);
      const Tensor grad = ones({2, 4, 3, 3}, options).contiguous(format);
      Tensor y;
      CHECK(launched_by([&] { y = batch_norm(x, mean, var, weight, bias, true); }).size() == 3);
      CHECK(launched_by([&] { y.backward(grad); }).size() == 3);
    }
}

TEST_CASE("a channels-last residual network is trained without copies of layouts") {
  const Running gpu;
  for (const Task& task : tasks()) {
    if (task.name.find("channels-last") != 0) continue;
    const auto is_copy = [](const std::string& name) {
      return name.find("4Same") != name.npos;
    };  // "Same" is the functor of the copy kernel
    Training training(task);
    const auto names = launched_by([&] { training.step(); });
    CHECK(names.size() > 50);
    CHECK(std::none_of(names.begin(), names.end(), is_copy));
    // The check itself is checked: images in another layout must cause a copy.
    Task other = task;
    other.input = [make = task.input] { return make().transpose(1, 2).contiguous().transpose(1, 2); };
    Training transposed(other);
    const auto more = launched_by([&] { transposed.step(); });
    CHECK(std::any_of(more.begin(), more.end(), is_copy));
  }
}

TEST_CASE(
    "ctc_loss of labels on the host does not make the host wait, and launches three kernels of its own") {
  const Running gpu;
  const Tensor x = log_softmax(randn({9, 3, 6}).to("cuda:0"), 2).detach().set_requires_grad();
  const Tensor labels = tensor({{1, 2, 3}, {2, 2, 5}, {4, 4, 1}}), in = tensor({9, 8, 9}),
               out = tensor({3, 2, 0});
  synchronize("cuda:0");
  const std::int64_t waits = stand_in::host_waits();
  const Tensor loss = ctc_loss(x, labels, in, out, {.zero_infinity = true});
  loss.backward();
  CHECK(stand_in::host_waits() == waits);
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
    const std::int64_t before = stand_in::host_waits();
    result.launches = launched_by([&] { result.total = clip(result); }).size();
    result.waits = stand_in::host_waits() - before;
  }
  for (const nn::Parameter& p : result.params) result.gradients.push_back(p->grad().cpu());
  return result;
}

}  // namespace

TEST_CASE("clipping any number of gradients takes three launches and no wait, and clamping them takes one") {
  const Running gpu;
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
  const Running gpu;
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
  const Running gpu;
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
  const Running gpu;
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
  const Running gpu;
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

namespace {

struct Mlp : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 784, .out_features = 256});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 256, .out_features = 128});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 128, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    return feed_forward(linear_relu(x, fc1.weight, fc1.bias), fc2.weight, fc2.bias, fc3.weight, fc3.bias);
  }
};

template <class Optimizer>
std::int64_t nodes_of_step() {
  Mlp net;
  net.to(kFirst);
  const Tensor x = zeros({128, 784}, kFirst), target = zeros({128}, {DType::i64, kFirst});
  typename Optimizer::Options options{.lr = 0.01};
  if constexpr (requires { options.momentum; }) options.momentum = 0.9;
  Optimizer optimizer(net.parameters(), options);
  Tensor loss;
  const auto step = [&] {
    optimizer.zero_grad();
    loss = cross_entropy_(net(x), target);
    loss.backward();
    optimizer.step();
  };
  step();
  synchronize(kFirst);
  std::string kernels;
  std::optional<cuda::CapturedStep> captured;
  for (const std::string& name : launched_by([&] { captured.emplace(cuda::capture(step, {.warm_up = 0})); }))
    kernels += name + "\n";
  INFO(kernels);
  CHECK(captured->nodes() <= 14);
  CHECK(captured->nodes() == 12);
  return captured->nodes();
}

}  // namespace

// Three products forward and five backward, the loss and its gradient, and the optimizer's two launches.
// Biases, their gradients, activations, their derivatives, the loss's mean and sums of split products are
// parts of these.
TEST_CASE("a training step of an MLP has 12 nodes") {
  const Gpus gpus(1);  // launches are recorded only
  CHECK(nodes_of_step<optim::SGD>() == nodes_of_step<optim::AdamW>());
}

TEST_CASE("what two nodes of a backward pass leave out changes no gradient, and hooks see all of it") {
  const Running gpu;
  manual_seed(4);
  const Tensor x = randn({5, 7}, kCPU), w1 = randn({6, 7}, kCPU), b1 = randn({6}, kCPU),
               w2 = randn({4, 6}, kCPU), b2 = randn({4}, kCPU), target = arange(5) % 4;
  struct Pass {
    std::vector<Tensor> gradients;
    Tensor hidden, of_hidden, of_loss;
  };
  enum class Sees { nothing, hidden, loss };
  const auto run = [&](Device device, Sees sees, bool twice) {
    Pass pass;
    std::vector<Tensor> leaves;
    for (const Tensor& t : {x, w1, b1, w2, b2}) leaves.push_back(t.to(device).clone().requires_grad_());
    const Tensor h = linear_relu(leaves[0], leaves[1], leaves[2]);
    Tensor y = linear(h, leaves[3], leaves[4]);
    if (twice) y = y + linear_relu(h, leaves[3]);
    const Tensor loss = cross_entropy(y, target.to(device));
    const auto keep = [](Tensor& to) {
      return [&to](const Tensor& g) {
        to = g.clone();
        return Tensor();
      };
    };
    if (sees == Sees::hidden) h.register_hook(keep(pass.of_hidden));
    if (sees == Sees::loss) loss.register_hook(keep(pass.of_loss));
    loss.backward();
    for (const Tensor& t : leaves) pass.gradients.push_back(t.grad().cpu());
    pass.hidden = h.detach().cpu();
    return pass;
  };
  const auto same_bits = [](const Pass& a, const Pass& b) {
    for (std::size_t i = 0; i < a.gradients.size(); ++i) CHECK(equal(a.gradients[i], b.gradients[i]));
  };
  for (const bool twice : {false, true}) {
    CAPTURE(twice);
    const Pass plain = run(kFirst, Sees::nothing, twice), hidden = run(kFirst, Sees::hidden, twice),
               loss = run(kFirst, Sees::loss, twice), cpu = run(kCPU, Sees::nothing, twice);
    same_bits(plain, hidden);
    same_bits(plain, loss);
    for (std::size_t i = 0; i < cpu.gradients.size(); ++i)
      CHECK(allclose(plain.gradients[i], cpu.gradients[i], 1e-5, 1e-6));
    CHECK(loss.of_loss.cpu().item() == 1);
    // A hook sees the gradient of relu's result, which is not 0 where the result is.
    const Tensor at_zeros = where(hidden.hidden == 0, hidden.of_hidden.cpu(), zeros({}));
    CHECK(at_zeros.abs().sum().item() > 0);
  }
}
#else
#include <cstdio>

#include "tests/support/catch.h"

TEST_CASE("without CUDA or with a static CUDA runtime, launches of operations are not counted") {
  std::printf("skipped: the library was not built with CUDA and the shared CUDA runtime\n");
}
#endif
