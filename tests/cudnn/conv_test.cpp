// cuDNN's convolutions against the CPU kernels, with the stand-in cuDNN on a fake GPU.
#include "tapestry/kernels/cuda/vendor/cudnn_conv.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tapestry/kernels/ops/conv.h"
#include "tests/cudnn/world.h"
#include "tests/support/catch.h"
#include "tests/support/dtypes.h"

using namespace cudnn_test;
using namespace tapestry::kernels;
namespace cudnn = tapestry::kernels::cuda::cudnn;
using cudnn::Direction;
using tapestry::kernels::conv2d;

namespace {

constexpr double kEps[] = {0x1p-23, 0x1p-10, 0x1p-7};
double eps_of(DType dtype) { return dtype == DType::f32 ? kEps[0] : dtype == DType::f16 ? kEps[1] : kEps[2]; }

Conv2dShape shape(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, std::int64_t k,
                  std::int64_t r, std::int64_t s) {
  Conv2dShape one;
  one.n = n, one.c = c, one.h = h, one.w = w, one.k = k, one.r = r, one.s = s;
  return one;
}
Conv2dShape finished(Conv2dShape s) {
  s.p = (s.h + 2 * s.padding_h - s.dilation_h * (s.r - 1) - 1) / s.stride_h + 1;
  s.q = (s.w + 2 * s.padding_w - s.dilation_w * (s.s - 1) - 1) / s.stride_w + 1;
  return s;
}

/// Shapes that differ in everything that the descriptors say.
std::vector<Conv2dShape> shapes() {
  std::vector<Conv2dShape> all;
  all.push_back(shape(2, 3, 5, 6, 4, 3, 2));
  all.push_back(shape(1, 4, 7, 5, 6, 3, 3));
  all.back().padding_h = 1, all.back().padding_w = 2, all.back().stride_h = 2, all.back().stride_w = 1;
  all.push_back(shape(2, 4, 9, 8, 6, 2, 3));
  all.back().groups = 2, all.back().dilation_h = 3, all.back().dilation_w = 2, all.back().padding_w = 1;
  all.push_back(shape(3, 4, 4, 5, 8, 3, 3));
  all.back().groups = 4, all.back().padding_h = all.back().padding_w = 1, all.back().stride_w = 3;
  all.push_back(shape(2, 5, 3, 4, 2, 1, 1));
  for (Conv2dShape& s : all) s = finished(s);
  return all;
}

struct Arrays {
  Tensor x, weight, bias, dy;
  explicit Arrays(const Conv2dShape& s, DType dtype)
      : x(numbers(s.n * s.c * s.h * s.w, dtype, 1)),
        weight(numbers(s.k * (s.c / s.groups) * s.r * s.s, dtype, 2)),
        bias(numbers(s.k, dtype, 3)),
        dy(numbers(s.n * s.k * s.p * s.q, dtype, 4)) {}
  Arrays on(Device device) const {
    Arrays a = *this;
    for (Tensor* t : {&a.x, &a.weight, &a.bias, &a.dy}) *t = moved(*t, device);
    return a;
  }
};

/// Runs cuDNN's convolution. It must be able to.
void convolve(const LaunchContext& context, const cudnn::ConvCall& call,
              const cudnn::EngineRules& rules = {}) {
  REQUIRE(cudnn::why_not(context, call, rules) == "");
  cudnn::run(context, call, rules);
}

void compare(const std::string& what, const Tensor& got, const Tensor& expected, double terms) {
  const std::vector<double> a = values(got), b = values(expected);
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / (1 + std::abs(b[i])));
  INFO(what << ": the worst relative error is " << worst);
  CHECK(worst <= 2 * eps_of(expected.dtype()) + terms * 0x1p-24);
}

}  // namespace

TEST_CASE("cuDNN's convolution and its gradients equal those of the CPU") {
  World world;
  for (const Conv2dShape& base : shapes())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const bool last : {false, true}) {
        Conv2dShape s = base;
        s.channels_last = last;
        INFO(dtype_name(dtype) << ", channels last " << last << ", n " << s.n << " c " << s.c << " h " << s.h
                               << " k " << s.k << " groups " << s.groups);
        const Arrays host(s, dtype), gpu = host.on(kGpu);
        const auto terms = static_cast<double>(s.n * s.k * s.p * s.q + s.c * s.r * s.s);
        for (const bool with_bias : {false, true})
          for (const bool relu : {false, true}) {
            if (dtype != DType::f32 && !(with_bias && relu)) continue;
            s.relu = relu;
            const Tensor y = empty(host.dy.sizes(), {dtype, kCPU}),
                         gpu_y = empty(host.dy.sizes(), {dtype, kGpu});
            conv2d(kCPU, dtype, {s, host.x, host.weight, with_bias ? host.bias : Tensor(), y});
            convolve(world.context(),
                     cudnn::call_of(Conv2dArgs{s, gpu.x, gpu.weight, with_bias ? gpu.bias : Tensor(), gpu_y},
                                    dtype));
            compare("y", gpu_y, y, terms);
          }
        const Tensor dx = empty(host.x.sizes(), {dtype, kCPU}), gpu_dx = empty(host.x.sizes(), {dtype, kGpu});
        conv2d_backward_input(kCPU, dtype, {s, host.dy, host.weight, dx});
        convolve(world.context(),
                 cudnn::call_of(Conv2dBackwardInputArgs{s, gpu.dy, gpu.weight, gpu_dx}, dtype));
        compare("dx", gpu_dx, dx, terms);
        const Tensor dw = empty(host.weight.sizes(), {dtype, kCPU}),
                     gpu_dw = empty(host.weight.sizes(), {dtype, kGpu});
        conv2d_backward_weight(kCPU, dtype, {s, host.dy, host.x, dw, Tensor()});
        convolve(world.context(),
                 cudnn::call_of(Conv2dBackwardWeightArgs{s, gpu.dy, gpu.x, gpu_dw, Tensor()}, dtype));
        compare("dweight", gpu_dw, dw, terms);
      }
}

TEST_CASE("cuDNN's relu keeps NaN") {
  World world;
  Conv2dShape s = finished(shape(1, 1, 1, 3, 1, 1, 1));
  s.relu = true;
  const Tensor x = numbers(3, DType::f32, 0), weight = numbers(1, DType::f32, 0.5);
  auto* const at = static_cast<float*>(x.raw_data());
  at[0] = -2, at[1] = std::numeric_limits<float>::quiet_NaN(), at[2] = 3;
  const Tensor gpu_x = moved(x, kGpu), gpu_w = moved(weight, kGpu), y = empty({3}, {DType::f32, kGpu});
  convolve(world.context(), cudnn::call_of(Conv2dArgs{s, gpu_x, gpu_w, Tensor(), y}, DType::f32));
  const std::vector<double> v = values(y);
  CHECK(v[0] == 0);
  CHECK(std::isnan(v[1]));
  CHECK(v[2] > 0);
}

TEST_CASE("the graphs of convolutions have these descriptions") {
  World world;
  Conv2dShape s = shape(2, 8, 6, 5, 16, 3, 3);
  s.padding_h = 1, s.padding_w = 2, s.stride_h = 2, s.dilation_w = 2, s.groups = 2, s.channels_last = true,
  s.relu = true;
  s = finished(s);
  const Arrays gpu = Arrays(s, DType::bf16).on(kGpu);
  const Tensor y = empty(gpu.dy.sizes(), {DType::bf16, kGpu});
  convolve(world.context(), cudnn::call_of(Conv2dArgs{s, gpu.x, gpu.weight, gpu.bias, y}, DType::bf16));
  CHECK(std::string(world.cudnn().last_graph()) ==
        R"(tensor 1 bfloat16 (2,8,6,5) strides (240,1,40,8) align 16
tensor 2 bfloat16 (16,4,3,3) strides (36,9,3,1) align 16
tensor 3 bfloat16 (2,16,3,5) strides (240,1,80,16) align 16
tensor 4 float_ (2,16,3,5) strides (240,1,80,16) virtual align 16
tensor 5 bfloat16 (1,16,1,1) strides (16,1,16,16) align 16
tensor 6 float_ (2,16,3,5) strides (240,1,80,16) virtual align 16
convolution forward w=2 x=1 y=4 padding 1,2 stride 2,1 dilation 1,2
add b=5 x=4 y=6
relu_fwd x=6 y=3 keeps NaN
)");
  s.channels_last = false, s.relu = false;
  const Tensor dx = empty(gpu.x.sizes(), {DType::f32, kGpu}),
               dw = empty(gpu.weight.sizes(), {DType::f32, kGpu});
  const Arrays f32 = Arrays(s, DType::f32).on(kGpu);
  convolve(world.context(), cudnn::call_of(Conv2dBackwardInputArgs{s, f32.dy, f32.weight, dx}, DType::f32));
  CHECK(std::string(world.cudnn().last_graph()) ==
        R"(tensor 1 float_ (2,8,6,5) strides (240,30,5,1) align 16
tensor 2 float_ (16,4,3,3) strides (36,9,3,1) align 16
tensor 3 float_ (2,16,3,5) strides (240,15,5,1) align 16
convolution backward data w=2 x=1 y=3 padding 1,2 stride 2,1 dilation 1,2
)");
  convolve(world.context(),
           cudnn::call_of(Conv2dBackwardWeightArgs{s, f32.dy, f32.x, dw, Tensor()}, DType::f32));
  CHECK_THAT(std::string(world.cudnn().last_graph()),
             ContainsSubstring("convolution backward filter w=2 x=1 y=3"));
}

TEST_CASE("a plan is made once for each shape, dtype, layout, alignment and rule") {
  World world;
  const Conv2dShape s = finished(shape(1, 2, 4, 4, 3, 2, 2));
  const Arrays gpu = Arrays(s, DType::f32).on(kGpu);
  const Tensor y = empty({s.n * s.k * s.p * s.q + 1}, {DType::f32, kGpu});
  const auto plans = [&](const Conv2dShape& with, const void* bias, std::size_t bytes_off,
                         const cudnn::EngineRules& rules) {
    auto call = cudnn::call_of(Conv2dArgs{with, gpu.x, gpu.weight, Tensor(), y}, DType::f32);
    call.bias = bias;
    call.y = static_cast<const char*>(call.y) + bytes_off;
    const int before = world.cudnn().calls("cudnnBackendExecute");
    convolve(world.context(), call, rules);
    convolve(world.context(), call, rules);
    CHECK(world.cudnn().calls("cudnnBackendExecute") == before + 2);
    return world.cudnn().calls("cudnnBackendFinalize");
  };
  const auto made = [&](const auto&... arguments) {
    const int first = plans(arguments...), second = plans(arguments...);
    return std::pair(first, second);
  };
  // A run without a new plan finalizes one descriptor, the variant pack.
  int last = 0;
  const auto is_new = [&](std::pair<int, int> calls) {
    const bool is = calls.first > last + 2;
    CHECK(calls.second == calls.first + 2);
    last = calls.second;
    return is;
  };
  Conv2dShape channels_last = s, relu = s;
  channels_last.channels_last = true;
  relu.relu = true;
  CHECK(is_new(made(s, nullptr, 0, cudnn::EngineRules{})));
  CHECK(is_new(made(channels_last, nullptr, 0, cudnn::EngineRules{})));
  CHECK(is_new(made(relu, nullptr, 0, cudnn::EngineRules{})));
  CHECK(is_new(made(s, gpu.bias.raw_data(), 0, cudnn::EngineRules{})));
  CHECK(is_new(made(s, nullptr, 4, cudnn::EngineRules{})));
  CHECK(is_new(made(s, nullptr, 0, cudnn::EngineRules{.deterministic = true})));
  CHECK(is_new(made(s, nullptr, 0, cudnn::EngineRules{.tensor_cores = false})));
  CHECK_FALSE(is_new(made(s, nullptr, 0, cudnn::EngineRules{})));
  CHECK(world.cudnn().calls("cudnnCreate") == 1);
}

TEST_CASE("engines come from mode A, then B, then the fallback, and the rules exclude some") {
  World world;
  const auto& c = world.cudnn();
  constexpr int kA = 3, kB = 1, kFallback = 2;
  constexpr unsigned kTensorCore = 1, kDownConverts = 2, kReducedSums = 4, kNondeterministic = 16;
  const Conv2dShape s = finished(shape(1, 2, 4, 4, 3, 2, 2));
  const Arrays gpu = Arrays(s, DType::f32).on(kGpu);
  const Tensor y = empty({s.n * s.k * s.p * s.q}, {DType::f32, kGpu});
  const auto call = cudnn::call_of(Conv2dArgs{s, gpu.x, gpu.weight, Tensor(), y}, DType::f32);
  const auto engine = [&](const cudnn::EngineRules& rules) {
    world.forget();
    convolve(world.context(), call, rules);
    return c.last_engine();
  };
  c.clear_engines();
  c.add_engine(kA, 10, kDownConverts, 0, 1);
  c.add_engine(kA, 11, kReducedSums, 0, 1);
  c.add_engine(kA, 12, kTensorCore, 0, 0);
  c.add_engine(kA, 13, kTensorCore, 1 << 20, 1);
  c.add_engine(kA, 14, kNondeterministic, 64, 1);
  c.add_engine(kB, 15, kNondeterministic | kTensorCore, 0, 1);
  c.add_engine(kB, 16, 0, 5000, 1);
  c.add_engine(kFallback, 17, 0, 0, 1);
  CHECK(engine({}) == 13);
  CHECK(engine({.most_workspace = 1 << 10}) == 14);
  CHECK(engine({.tensor_cores = false}) == 14);
  CHECK(engine({.deterministic = true, .tensor_cores = false}) == 16);
  CHECK(engine({.deterministic = true, .tensor_cores = false, .most_workspace = 100}) == 17);
  c.clear_engines();
  c.add_engine(kFallback, 18, kTensorCore, 0, 1);
  world.forget();
  CHECK_THAT(cudnn::why_not(world.context(), call, {.tensor_cores = false}),
             ContainsSubstring("TENSOR_CORE"));
  CHECK_THAT(cudnn::why_not(world.context(), call, {.tensor_cores = false}), ContainsSubstring("no engine"));
  CHECK_THROWS_AS(cudnn::run(world.context(), call, {.tensor_cores = false}), MissingKernelError);
  c.clear_engines();
  world.forget();
  CHECK_THAT(cudnn::why_not(world.context(), call, {}), ContainsSubstring("know no engine"));
}

TEST_CASE("cuDNN says that it cannot compute empty tensors and outputs of another size") {
  World world;
  Conv2dShape s = finished(shape(1, 2, 4, 4, 3, 2, 2));
  const Arrays gpu = Arrays(s, DType::f32).on(kGpu);
  const Tensor dx = empty({1 * 2 * 8 * 4}, {DType::f32, kGpu});
  s.h = 8;  // as a transposed convolution with output_padding has it
  CHECK_THAT(
      cudnn::why_not(world.context(),
                     cudnn::call_of(Conv2dBackwardInputArgs{s, gpu.dy, gpu.weight, dx}, DType::f32), {}),
      ContainsSubstring("not that of the convolution"));
  s.n = 0;
  CHECK_THAT(
      cudnn::why_not(world.context(),
                     cudnn::call_of(Conv2dBackwardInputArgs{s, gpu.dy, gpu.weight, dx}, DType::f32), {}),
      ContainsSubstring("empty"));
}

TEST_CASE("work goes to the current stream, and each device has its own handle") {
  World world(2);
  const Conv2dShape s = finished(shape(1, 2, 4, 4, 3, 2, 2));
  for (const int i : {0, 1, 0}) {
    const Device device{DeviceType::cuda, i};
    const Arrays host(s, DType::f32), gpu = host.on(device);
    const Tensor y = empty({s.n * s.k * s.p * s.q}, {DType::f32, device}),
                 expected = empty(y.sizes(), {DType::f32, kCPU});
    conv2d(kCPU, DType::f32, {s, host.x, host.weight, Tensor(), expected});
    const Stream side = new_stream(device);
    {
      const StreamGuard guard(side);
      convolve(world.context(device),
               cudnn::call_of(Conv2dArgs{s, gpu.x, gpu.weight, Tensor(), y}, DType::f32));
      compare("on a side stream", y, expected, 8);
    }
    convolve(world.context(device),
             cudnn::call_of(Conv2dArgs{s, gpu.x, gpu.weight, Tensor(), y}, DType::f32));
    compare("on the default stream", y, expected, 8);
  }
  CHECK(world.cudnn().calls("cudnnCreate") == 2);
}
