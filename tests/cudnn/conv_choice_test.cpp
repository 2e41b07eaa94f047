// The choice between own convolutions and cuDNN's, with the stand-in cuDNN. The CPU kernels on a fake GPU's
// memory stand for the own kernels.
#include "tapestry/kernels/cuda/vendor/conv.h"

#include <cmath>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tapestry/kernels/policy.h"
#include "tests/cudnn/world.h"
#include "tests/support/catch.h"

using namespace cudnn_test;
using namespace tapestry::kernels;
using tapestry::kernels::conv2d;
using tapestry::kernels::cuda::choose_conv;

namespace {

World* world = nullptr;
int own_calls = 0, calls_with_real_output = 0, calls_with_dweight = 0;
const void* real_output = nullptr;

template <class Args, auto& slot>
void own(const LaunchContext& context, const Args& args) {
  ++own_calls;
  if constexpr (requires { args.y; }) calls_with_real_output += args.y.address() == real_output;
  if constexpr (requires { args.dweight; }) calls_with_dweight += static_cast<bool>(args.dweight);
  world->gpus().launch(context.stream, [args] { slot(kCPU, DType::f32, args); });
}
constexpr auto own_forward = &own<Conv2dArgs, conv2d>;
constexpr auto own_weight = &own<Conv2dBackwardWeightArgs, conv2d_backward_weight>;

/// A fake GPU with cuDNN, the default policies, and no file of choices.
struct Fixture {
  World own_world;
  Conv2dShape s;
  Tensor x, weight, bias, dy, y, dweight, dbias;

  Fixture() {
    setenv("TAPESTRY_CACHE_DIR", "", 1);
    reset_policy();
    world = &own_world;
    own_calls = calls_with_real_output = calls_with_dweight = 0;
    s.n = 2, s.c = 3, s.h = 4, s.w = 5, s.k = 4, s.r = 2, s.s = 3, s.p = 3, s.q = 3;
    x = made(s.n * s.c * s.h * s.w, 1), weight = made(s.k * s.c * s.r * s.s, 2), bias = made(s.k, 3);
    dy = made(s.n * s.k * s.p * s.q, 4);
    const TensorOptions options{DType::f32, kGpu};
    y = empty(dy.sizes(), options), dweight = empty(weight.sizes(), options),
    dbias = empty(bias.sizes(), options);
  }
  ~Fixture() {
    x = weight = bias = dy = y = dweight = dbias = Tensor();
    world = nullptr;
    unsetenv("TAPESTRY_CACHE_DIR");
    reset_policy();
  }
  static Tensor made(std::int64_t count, double seed) {
    const Tensor t = empty({count}, {DType::f32, kCPU});
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<float*>(t.raw_data())[i] = static_cast<float>(std::cos(seed * static_cast<double>(i + 1)));
    return moved(t, kGpu);
  }
  Conv2dArgs forward() const { return {s, x, weight, bias, y}; }
  Conv2dBackwardWeightArgs backward(bool with_weight, bool with_bias) const {
    return {s, dy, x, with_weight ? dweight : Tensor(), with_bias ? dbias : Tensor()};
  }
  LaunchContext context() const { return own_world.context(); }
  int executions() const { return own_world.cudnn().calls("cudnnBackendExecute"); }
};

std::vector<float> floats(const Tensor& t) {
  const Tensor host = moved(t, kCPU);
  const auto* const data = static_cast<const float*>(host.raw_data());
  return {data, data + t.numel()};
}
bool near(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-5F * (1 + std::abs(b[i])))) return false;
  return a.size() == b.size();
}

}  // namespace

TEST_CASE("the policy of conv2d says whether cuDNN runs") {
  Fixture f;
  set_kernel_policy("conv2d", KernelPolicy::custom);
  choose_conv(f.context(), DType::f32, f.forward(), own_forward);
  CHECK(own_calls == 1);
  // Under the policy custom, cuDNN is not even started.
  CHECK(f.own_world.cudnn().calls("cudnnCreate") == 0);
  const std::vector<float> expected = floats(f.y);
  set_kernel_policy("conv2d", KernelPolicy::vendor);
  choose_conv(f.context(), DType::f32, f.forward(), own_forward);
  CHECK(own_calls == 1);
  CHECK(f.executions() == 1);
  CHECK(near(floats(f.y), expected));
}

TEST_CASE("the policy auto measures convolutions without writing to the real output") {
  Fixture f;
  real_output = f.y.raw_data();
  f.own_world.cudnn().clear_engines();
  f.own_world.cudnn().add_engine(3, 1, 0, 0, 1);
  choose_conv(f.context(), DType::f32, f.forward(), own_forward);
  CHECK(own_calls > 1);
  CHECK(f.executions() > 1);
  CHECK(calls_with_real_output <= 1);
  CHECK_THAT(kernel_choices(), ContainsSubstring("forward float32 n=2 c=3 h=4 w=5 k=4 r=2 s=3 stride=1x1"));
  CHECK_THAT(kernel_choices(), ContainsSubstring("bias"));
  const int before = own_calls + f.executions();
  choose_conv(f.context(), DType::f32, f.forward(), own_forward);
  CHECK(own_calls + f.executions() == before + 1);
}

TEST_CASE("cuDNN computes dweight and an own kernel dbias") {
  Fixture f;
  for (const bool last : {false, true}) {
    f.s.channels_last = last;
    set_kernel_policy(KernelPolicy::custom);
    choose_conv(f.context(), DType::f32, f.backward(true, true), own_weight);
    const std::vector<float> dweight = floats(f.dweight), dbias = floats(f.dbias);
    set_kernel_policy(KernelPolicy::vendor);
    f.dweight = Fixture::made(f.weight.numel(), 7), f.dbias = Fixture::made(f.s.k, 8);
    const int before = own_calls, with_dweight = calls_with_dweight;
    choose_conv(f.context(), DType::f32, f.backward(true, true), own_weight);
    CHECK(own_calls == before + 1);
    CHECK(calls_with_dweight == with_dweight);
    CHECK(near(floats(f.dweight), dweight));
    CHECK(near(floats(f.dbias), dbias));
    // Without dweight there is nothing for cuDNN to do.
    f.dbias = Fixture::made(f.s.k, 8);
    choose_conv(f.context(), DType::f32, f.backward(false, true), own_weight);
    CHECK(own_calls == before + 2);
    CHECK(near(floats(f.dbias), dbias));
  }
}

TEST_CASE("TF32 and deterministic algorithms limit cuDNN's engines") {
  Fixture f;
  const auto& c = f.own_world.cudnn();
  set_kernel_policy(KernelPolicy::vendor);
  c.clear_engines();
  c.add_engine(3, 5, 1 | 16, 0, 1);  // TENSOR_CORE, NONDETERMINISTIC
  c.add_engine(3, 6, 1, 0, 1);
  c.add_engine(3, 7, 0, 0, 1);
  const auto engine = [&] {
    choose_conv(f.context(), DType::f32, f.forward(), own_forward);
    return c.last_engine();
  };
  CHECK(engine() == 5);
  use_deterministic_algorithms(true);
  CHECK(engine() == 6);
  set_allow_tf32_convolution(false);
  CHECK(engine() == 7);
  use_deterministic_algorithms(false);
  CHECK(engine() == 7);
}

TEST_CASE("own convolutions run where cuDNN cannot") {
  Fixture f;
  set_kernel_policy(KernelPolicy::vendor);
  f.own_world.cudnn().clear_engines();
  choose_conv(f.context(), DType::f32, f.forward(), own_forward);
  CHECK(own_calls == 1);
}
