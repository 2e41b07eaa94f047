// cuDNN's attention against the CPU kernels, with the stand-in cuDNN on a fake GPU.
#include <cmath>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/vendor/attention.h"
#include "tapestry/kernels/cuda/vendor/cudnn_attention.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tapestry/kernels/policy.h"
#include "tests/cudnn/world.h"
#include "tests/support/catch.h"
#include "tests/support/dtypes.h"

using namespace cudnn_test;
using namespace tapestry::kernels;
using kernels::cuda::AttentionBiasArgs, kernels::cuda::AttentionBiasKernels,
    kernels::cuda::AttentionBlindArgs, kernels::cuda::AttentionLogsArgs;
namespace cudnn = tapestry::kernels::cuda::cudnn;

namespace {

/// Along which dimensions a mask is not broadcast.
enum class Hides { nothing, keys_of_batches, keys_of_queries, keys_of_heads };

/// One attention: shapes, the layout in memory, and the mask.
struct Case {
  AttentionShape s;
  bool by_query = false;  // (batch, rows, heads, width) in memory instead of (batch, heads, rows, width)
  AttentionMask mask = {};
  Hides hides = Hides::nothing;
  bool adds = false;  // a mask of the arrays' dtype instead of bool
};
AttentionMask causal(std::int64_t offset) {
  AttentionMask mask;
  mask.causal = true;
  mask.offset = offset;
  return mask;
}
const Case kCases[] = {{{2, 2, 2, 5, 7, 8, 16}},
                       {{1, 4, 2, 4, 4, 16, 8}, true, causal(0)},
                       {{2, 6, 2, 3, 8, 8, 8}, false, causal(5)},
                       {{2, 3, 1, 1, 6, 24, 8}, true},
                       {{3, 2, 2, 5, 7, 8, 16}, false, {}, Hides::keys_of_batches},
                       {{2, 4, 2, 4, 9, 16, 8}, true, causal(2), Hides::keys_of_queries, true},
                       {{2, 2, 1, 4, 8, 8, 8}, false, causal(1), Hides::keys_of_heads},
                       {{1, 2, 1, 3, 17, 8, 8}, false, {}, Hides::keys_of_heads, true}};

AttentionStrides strides(const Case& c, std::int64_t heads, std::int64_t rows, std::int64_t width) {
  return c.by_query ? AttentionStrides{rows * heads * width, width, heads * width}
                    : AttentionStrides{heads * rows * width, rows * width, width};
}

/// All arrays of forward and backward on one device.
struct Arrays {
  Tensor q, k, v, y, dy, log_sum_exp, dq, dk, dv, mask;
  Arrays(const Case& c, DType dtype, Device device) {
    const AttentionShape& s = c.s;
    const std::int64_t q_count = s.batch * s.heads * s.queries * s.width, kv = s.batch * s.groups * s.keys;
    q = moved(numbers(q_count, dtype, 1), device), k = moved(numbers(kv * s.width, dtype, 2), device);
    v = moved(numbers(kv * s.value_width, dtype, 3), device);
    const std::int64_t y_count = s.batch * s.heads * s.queries * s.value_width;
    dy = moved(numbers(y_count, dtype, 4), device);
    const TensorOptions options{dtype, device};
    y = empty({y_count}, options), dq = empty({q_count}, options);
    dk = empty({kv * s.width}, options), dv = empty({kv * s.value_width}, options);
    log_sum_exp = empty({s.batch * s.heads * s.queries}, {DType::f32, device});
    if (c.hides == Hides::nothing) return;
    // Every fifth key is hidden, and all keys of the second row.
    const AttentionMask m = strides_of_mask(c);
    const std::int64_t rows = (m.batch ? s.batch : 1) * (m.head ? s.heads : 1) * (m.query ? s.queries : 1);
    const Tensor host = empty({rows * s.keys}, {c.adds ? dtype : DType::boolean, kCPU});
    for (std::int64_t i = 0; i < host.numel(); ++i) {
      const bool hidden = i % 5 == 2 || i / s.keys == 1;
      if (!c.adds) host.data<bool>()[i] = !hidden;
      else
        tests::for_dtype(dtype, [&]<class T>() {
          static_cast<T*>(host.raw_data())[i] =
              tests::from_double<T>(hidden ? -INFINITY : std::sin(2.0 * static_cast<double>(i)));
        });
    }
    mask = moved(host, device);
  }
  static AttentionMask strides_of_mask(const Case& c) {
    AttentionMask m = c.mask;
    if (c.hides == Hides::nothing) return m;
    m.key = 1;
    if (c.hides == Hides::keys_of_batches) m.batch = c.s.keys;
    else m.query = c.s.keys;
    if (c.hides == Hides::keys_of_heads)
      m.head = c.s.queries * c.s.keys, m.batch = c.s.heads * c.s.queries * c.s.keys;
    return m;
  }
  template <class Args>
  Args shared(const Case& c) const {
    const AttentionShape& s = c.s;
    Args a;
    a.shape = s, a.scale = 0.3, a.mask = strides_of_mask(c);
    if (mask.defined()) a.mask.mask = mask;
    a.q = q, a.k = k, a.v = v, a.y = y, a.log_sum_exp = log_sum_exp;
    a.q_strides = strides(c, s.heads, s.queries, s.width),
    a.k_strides = strides(c, s.groups, s.keys, s.width);
    a.v_strides = strides(c, s.groups, s.keys, s.value_width);
    a.y_strides = strides(c, s.heads, s.queries, s.value_width);
    return a;
  }
  AttentionArgs forward(const Case& c) const { return shared<AttentionArgs>(c); }
  AttentionBackwardArgs backward(const Case& c) const {
    auto a = shared<AttentionBackwardArgs>(c);
    a.dy = dy, a.dq = dq, a.dk = dk, a.dv = dv;
    a.dy_strides = a.y_strides, a.dq_strides = a.q_strides, a.dk_strides = a.k_strides,
    a.dv_strides = a.v_strides;
    return a;
  }
};

// The kernels of attention_bias.h by plain loops. They run when the fake GPU's stream does.
World* bias_world = nullptr;

template <class T>
void reference_bias(const LaunchContext& context, const AttentionBiasArgs& args) {
  bias_world->gpus().launch(context.stream, [a = args] {
    const kernels::cuda::AttentionBias& s = a.shape;
    T* const bias = a.bias.as<T>();
    for (std::int64_t row = 0; row < s.rows(); ++row) {
      const std::int64_t batch = row / s.queries / s.heads, head = row / s.queries % s.heads;
      a.first_seen[row] = s.keys;
      for (std::int64_t key = s.keys; key-- > 0;) {
        const std::int64_t at =
            batch * a.mask.batch + head * a.mask.head + row % s.queries * a.mask.query + key * a.mask.key;
        double value = 0;
        if (a.mask.mask.dtype() == DType::boolean) value = a.mask.mask.as<bool>()[at] ? 0 : -INFINITY;
        else value = tests::to_double(a.mask.mask.as<T>()[at]);
        if (value == -INFINITY) value = kernels::cuda::hidden_bias(dtype_of<T>);
        else a.first_seen[row] = key;
        bias[row * s.pitch + key] = tests::from_double<T>(value);
      }
    }
  });
}
template <class T>
void reference_blind(const LaunchContext& context, const AttentionBlindArgs& args) {
  bias_world->gpus().launch(context.stream, [a = args] {
    const AttentionShape& s = a.shape;
    for (std::int64_t batch = 0; batch < s.batch; ++batch)
      for (std::int64_t head = 0; head < s.heads; ++head)
        for (std::int64_t query = 0; query < s.queries; ++query) {
          const std::int64_t row =
              ((a.bias.batches > 1 ? batch : 0) * a.bias.heads + (a.bias.heads > 1 ? head : 0)) *
                  a.bias.queries +
              (a.bias.queries > 1 ? query : 0);
          const std::int64_t first = a.first_seen[row];
          if (first < s.keys && (!a.mask.causal || first <= query + a.mask.offset)) continue;
          for (std::int64_t c = 0; c < s.value_width; ++c)
            a.y.as<T>()[batch * a.y_strides.batch + head * a.y_strides.head + query * a.y_strides.row + c] =
                T(0.0F);
          a.log_sum_exp.as<float>()[(batch * s.heads + head) * s.queries + query] = -INFINITY;
        }
  });
}
void reference_logs(const LaunchContext& context, const AttentionLogsArgs& args) {
  bias_world->gpus().launch(context.stream, [a = args] {
    for (std::int64_t i = 0; i < a.count; ++i)
      a.finite[i] = a.log_sum_exp[i] == -INFINITY ? 0x1p101F : a.log_sum_exp[i];
  });
}
/// The kernels for a dtype, on the fake GPUs of `world`.
AttentionBiasKernels bias_kernels(World& world, DType dtype) {
  bias_world = &world;
  if (dtype == DType::f16) return {&reference_bias<Half>, &reference_blind<Half>, &reference_logs};
  return {&reference_bias<BFloat16>, &reference_blind<BFloat16>, &reference_logs};
}

void compare(const std::string& what, const Tensor& got, const Tensor& expected) {
  std::vector<double> a = values(got), b = values(expected);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)  // the logarithm of a query that sees no key
    if (a[i] == -INFINITY && b[i] == -INFINITY) a[i] = b[i] = 0;
  // dq and dk are sums of p (dp - d), whose terms are about this large and may cancel.
  double worst = 0, largest = 0.25;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) : INFINITY);
    largest = std::max(largest, std::abs(b[i]));
  }
  const double eps = expected.dtype() == DType::f32   ? 0x1p-20
                     : expected.dtype() == DType::f16 ? 0x1p-10
                                                      : 0x1p-7;
  INFO(what << ": the worst error is " << worst << ", the largest element is " << largest);
  CHECK(worst <= 2 * eps * largest);
}

}  // namespace

TEST_CASE("cuDNN's attention and its gradients equal those of the CPU") {
  World world;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool deterministic : {false, true}) {
        if (deterministic && dtype == DType::f16) continue;
        INFO(dtype_name(dtype) << ", heads " << c.s.heads << " groups " << c.s.groups << " queries "
                               << c.s.queries << ", by query " << c.by_query << ", causal " << c.mask.causal
                               << ", mask " << static_cast<int>(c.hides) << ", adds " << c.adds);
        const AttentionBiasKernels bias = bias_kernels(world, dtype);
        const Arrays host(c, dtype, kCPU), gpu(c, dtype, kGpu);
        attention(kCPU, dtype, host.forward(c));
        REQUIRE(cudnn::why_not(world.context(), dtype, gpu.forward(c), deterministic) == "");
        cudnn::run(world.context(), dtype, gpu.forward(c), deterministic, bias);
        compare("y", gpu.y, host.y);
        compare("log_sum_exp", gpu.log_sum_exp, host.log_sum_exp);
        attention_backward(kCPU, dtype, host.backward(c));
        REQUIRE(cudnn::why_not(world.context(), dtype, gpu.backward(c), deterministic) == "");
        cudnn::run(world.context(), dtype, gpu.backward(c), deterministic, bias);
        compare("dq", gpu.dq, host.dq);
        compare("dk", gpu.dk, host.dk);
        compare("dv", gpu.dv, host.dv);
      }
}

TEST_CASE("the graphs of attention have these descriptions") {
  World world;
  const Case c{{1, 2, 1, 3, 4, 8, 16}, false, causal(1)};
  const Arrays gpu(c, DType::bf16, kGpu);
  CHECK(cudnn::why_not(world.context(), DType::bf16, gpu.forward(c), false) == "");
  CHECK(std::string(world.cudnn().last_graph()) == R"(tensor 1 bfloat16 (1,2,3,8) strides (48,24,8,1) align 16
tensor 2 bfloat16 (1,1,8,4) strides (32,32,1,8) align 16
tensor 3 bfloat16 (1,1,4,16) strides (64,64,16,1) align 16
tensor 4 bfloat16 (1,2,3,16) strides (96,48,16,1) align 16
tensor 5 float_ (1,2,3,1) strides (6,3,1,1) align 16
tensor 6 float_ (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 7 float_ (1,1,1,1) strides (1,1,1,1) by value align 16
tensor 8 float_ (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 9 int32 (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 10 int32 (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 11 int32 (1,1,1,1) strides (1,1,1,1) by value align 16
tensor 12 int32 (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 13 boolean (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 14 float_ (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 15 float_ (1,1,1,1) strides (1,1,1,1) by value align 16
tensor 16 float_ (1,2,3,1) strides (6,3,1,1) virtual align 16
tensor 17 float_ (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 18 float_ (1,2,3,4) strides (24,12,4,1) virtual align 16
tensor 19 float_ (1,2,3,1) strides (6,3,1,1) virtual align 16
tensor 20 float_ (1,2,3,1) strides (6,3,1,1) virtual align 16
tensor 21 bfloat16 (1,2,3,4) strides (24,12,4,1) virtual align 16
matmul a=1 b=2 c=6
mul b=7 x=6 y=8
gen_index axis 2 x=8 y=9
add b=11 x=9 y=10
gen_index axis 3 x=8 y=12
cmp_ge b=12 x=10 y=13
binary_select b=15 t=13 x=8 y=14
reduce max x=14 y=16
sub b=16 x=14 y=17
exp x=17 y=18
reduce add x=18 y=19
log x=19 y=20
add b=20 x=16 y=5
div b=19 x=18 y=21
matmul a=21 b=3 c=4
)");
  CHECK(cudnn::why_not(world.context(), DType::bf16, gpu.backward(c), false) == "");
  const std::string backward = world.cudnn().last_graph();
  CHECK(backward.substr(backward.find("mul b=")) == R"(mul b=4 x=5 y=11
reduce add x=11 y=12
mul b=13 x=12 y=10
matmul a=1 b=2 c=15
mul b=14 x=15 y=16
sub b=6 x=16 y=17
gen_index axis 2 x=17 y=18
add b=20 x=18 y=19
gen_index axis 3 x=17 y=21
cmp_ge b=21 x=19 y=22
binary_select b=24 t=22 x=17 y=23
exp x=23 y=25
reshape x=25 y=26
matmul a=26 b=5 c=27
reduce add x=27 y=9
matmul a=5 b=3 c=28
sub b=10 x=28 y=29
mul b=25 x=29 y=30
mul b=14 x=30 y=31
reshape x=31 y=32
matmul a=32 b=1 c=33
reduce add x=33 y=8
reshape x=2 y=34
matmul a=31 b=34 c=35
identity x=35 y=7
)");
}

TEST_CASE("the graphs of attention with a mask have a bias, which is broadcast as the mask is") {
  World world;
  const auto description = [&](const Case& c, auto args) {
    const Arrays gpu(c, DType::bf16, kGpu);
    CHECK(cudnn::why_not(world.context(), DType::bf16, args(gpu, c), false) == "");
    return std::string(world.cudnn().last_graph());
  };
  const auto forward = [](const Arrays& a, const Case& c) { return a.forward(c); };
  const auto backward = [](const Arrays& a, const Case& c) { return a.backward(c); };
  const Case by_batch{{2, 2, 2, 3, 4, 8, 8}, false, {}, Hides::keys_of_batches};
  CHECK_THAT(description(by_batch, forward),
             ContainsSubstring("tensor 6 bfloat16 (2,1,1,4) strides (8,8,8,1) align 16\n") &&
                 ContainsSubstring("mul b=8 x=7 y=9\nadd b=6 x=9 y=10\nreduce max x=10 y=11\n"));
  const Case by_head{{2, 2, 2, 3, 9, 8, 8}, false, causal(1), Hides::keys_of_heads};
  CHECK_THAT(description(by_head, backward),
             ContainsSubstring("tensor 11 bfloat16 (2,2,3,9) strides (96,48,16,1) align 16\n") &&
                 ContainsSubstring("mul b=15 x=16 y=17\nadd b=11 x=17 y=18\nsub b=6 x=18 y=19\n"
                                   "gen_index axis 2 x=19 y=20\n"));
}

TEST_CASE("cuDNN says which attention it cannot compute") {
  World world;
  const Case c = kCases[0];
  const Arrays gpu(c, DType::bf16, kGpu);
  const auto forward = [&](auto change) {
    AttentionArgs a = gpu.forward(c);
    change(a);
    return cudnn::why_not(world.context(), DType::bf16, a, false);
  };
  CHECK(forward([](AttentionArgs&) {}) == "");
  CHECK_THAT(cudnn::why_not(world.context(), DType::f32, gpu.forward(c), false),
             ContainsSubstring("float32"));
  CHECK_THAT(forward([&](AttentionArgs& a) { a.dropout.threshold = 5; }), ContainsSubstring("dropout"));
  CHECK_THAT(forward([&](AttentionArgs& a) { a.shape.width = 12; }), ContainsSubstring("multiple of 8"));
  CHECK_THAT(forward([&](AttentionArgs& a) { a.shape.value_width = 136; }), ContainsSubstring("up to 128"));
  CHECK_THAT(forward([&](AttentionArgs& a) { a.shape.keys = 0; }), ContainsSubstring("empty"));
  AttentionBackwardArgs some = gpu.backward(c);
  some.dk = MutableArray();
  CHECK_THAT(cudnn::why_not(world.context(), DType::bf16, some, false), ContainsSubstring("all three"));
}

TEST_CASE("the policy of attention says whether cuDNN runs, and trials have scratch outputs") {
  setenv("TAPESTRY_CACHE_DIR", "", 1);
  reset_policy();
  {
    World world;
    static World* current;
    static int own_calls;
    static std::vector<const void*> outputs;
    current = &world, own_calls = 0, outputs.clear();
    const AttentionBiasKernels bias = bias_kernels(world, DType::bf16);
    const auto own = [](const LaunchContext& context, const AttentionBackwardArgs& a) {
      ++own_calls;
      outputs.push_back(a.dk.address());
      current->gpus().launch(context.stream, [a] { attention_backward(kCPU, DType::bf16, a); });
    };
    const Case c = kCases[1];
    const Arrays host(c, DType::bf16, kCPU), gpu(c, DType::bf16, kGpu);
    attention(kCPU, DType::bf16, host.forward(c));
    attention_backward(kCPU, DType::bf16, host.backward(c));
    kernels::cuda::choose_attention(world.context(), DType::bf16, gpu.forward(c), nullptr, bias);
    compare("y", gpu.y, host.y);
    kernels::cuda::choose_attention(world.context(), DType::bf16, gpu.backward(c), own, bias);
    CHECK(own_calls > 1);
    for (std::size_t i = 0; i + 1 < outputs.size(); ++i) CHECK(outputs[i] != gpu.dk.raw_data());
    CHECK_THAT(kernel_choices(),
               ContainsSubstring("backward bfloat16 batch=1 heads=4 groups=2 queries=4 keys=4"));
    compare("dk", gpu.dk, host.dk);
    own_calls = 0;
    set_kernel_policy("attention", KernelPolicy::vendor);
    kernels::cuda::choose_attention(world.context(), DType::bf16, gpu.backward(c), own, bias);
    CHECK(own_calls == 0);
    set_kernel_policy("attention", KernelPolicy::custom);
    kernels::cuda::choose_attention(world.context(), DType::bf16, gpu.backward(c), own, bias);
    CHECK(own_calls == 1);
    CHECK_THROWS_AS(kernels::cuda::choose_attention(world.context(), DType::f32, gpu.forward(c), nullptr, {}),
                    MissingKernelError);
  }
  unsetenv("TAPESTRY_CACHE_DIR");
  reset_policy();
}

TEST_CASE("an error of any cuDNN call during attention names the call and leaks nothing") {
  const Case c = kCases[2];
  const char* const functions[] = {"cudnnBackendCreateDescriptor", "cudnnBackendFinalize",
                                   "cudnnBackendSetAttribute", "cudnnBackendGetAttribute",
                                   "cudnnBackendExecute"};
  const auto attempt = [&](World& world) {
    const Arrays gpu(c, DType::bf16, kGpu);
    try {
      if (std::string reason = cudnn::why_not(world.context(), DType::bf16, gpu.backward(c), false);
          !reason.empty())
        return reason;
      cudnn::run(world.context(), DType::bf16, gpu.backward(c), false, bias_kernels(world, DType::bf16));
      current_stream(kGpu).synchronize();
      return std::string();
    } catch (const Error& e) {
      return concat({"threw ", e.what()});
    }
  };
  std::map<std::string, int> calls;
  {
    World world;
    CHECK(attempt(world) == "");
    for (const char* function : functions) calls[function] = world.cudnn().calls(function);
  }
  for (const auto& [function, count] : calls)
    for (int nth = 0; nth<count; nth += count> 100 ? 5 : 1) {
      INFO(function << " number " << nth << " of " << count);
      World world;
      world.cudnn().fail(function.c_str(), nth, 4000);
      CHECK_THAT(attempt(world),
                 ContainsSubstring("threw [cuDNN] " + function) && ContainsSubstring("INTERNAL_ERROR"));
      CHECK(attempt(world) == "");
    }
}
