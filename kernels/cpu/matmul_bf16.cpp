// Products of bf16 matrices by oneDNN's primitives, which use the processor's bf16 instructions (AVX512_BF16,
// AMX) on operands of either layout. Creating a primitive takes a fraction of a millisecond, so each thread
// caches its primitives.
#include "tapestry/kernels/cpu/matmul.h"

#ifdef TAPESTRY_HAS_ONEDNN
#include <memory>
#include <unordered_map>

#include "tapestry/kernels/cpu/bf16_dot.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/onednn.h"

namespace tapestry::kernels::cpu {
namespace {

using dnnl::memory;

struct Key {
  std::int64_t m, n, k;
  std::int64_t a_row, a_col, b_row, b_col, c_row;
  bool f32_result, bias, accumulate;
  int threads;  // a primitive divides its work among threads when it is created
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t h = 14695981039346656037u;
    for (const std::int64_t number : {key.m, key.n, key.k, key.a_row, key.a_col, key.b_row, key.b_col,
                                      key.c_row, std::int64_t{key.f32_result}, std::int64_t{key.bias},
                                      std::int64_t{key.accumulate}, std::int64_t{key.threads}})
      h = (h ^ static_cast<std::size_t>(number)) * 1099511628211u;
    return h;
  }
};

struct Plan {
  memory::desc a, b, c, bias;
  dnnl::matmul product;
  std::string kernel;
  bool by_dot;
};

std::string& planted_fault() {
  thread_local const auto part = std::make_unique<std::string>();  // a pointer, because static TLS is scarce
  return *part;
}

bool must_be_avoided(std::string_view kernel, std::int64_t k) {
  const std::string& part = planted_fault();
  const bool planted =
      !part.empty() && kernel.find(part) != kernel.npos && has_tile_fault("amx", k, {2, 6, 3});
  return planted || has_tile_fault(kernel, k, onednn_version());
}

/// Returns null if oneDNN has only its slow reference implementation.
std::unique_ptr<Plan> make_plan(const Key& key) {
  const auto bf16 = memory::data_type::bf16;
  auto plan = std::make_unique<Plan>();
  plan->a = memory::desc({key.m, key.k}, bf16, memory::dims{key.a_row, key.a_col});
  plan->b = memory::desc({key.k, key.n}, bf16, memory::dims{key.b_row, key.b_col});
  plan->c = memory::desc({key.m, key.n}, key.f32_result ? memory::data_type::f32 : bf16,
                         memory::dims{key.c_row, 1});
  if (key.bias) plan->bias = memory::desc({1, key.n}, bf16, memory::dims{key.n, 1});
  dnnl::primitive_attr attributes;
  if (key.accumulate) {
    dnnl::post_ops after;
    after.append_sum(1.0f);
    attributes.set_post_ops(after);
  }
  const auto avoid = [&](std::string_view kernel) { return must_be_avoided(kernel, key.k); };
  const auto pd =
      key.bias ? describe<dnnl::matmul>(avoid, std::tuple(plan->a, plan->b, plan->bias, plan->c), attributes)
               : describe<dnnl::matmul>(avoid, std::tuple(plan->a, plan->b, plan->c), attributes);
  plan->kernel = pd.impl_info_str();
  if (plan->kernel.starts_with("ref")) return nullptr;
  plan->by_dot = multiplies_by_bf16_dot(plan->kernel);
  plan->product = dnnl::matmul(pd);
  return plan;
}

using Plans = std::unordered_map<Key, std::unique_ptr<Plan>, KeyHash>;
Plans& own_plans() {
  thread_local const auto own = std::make_unique<Plans>();  // a pointer, because static TLS is scarce
  return *own;
}

const Plan* plan_for(const Key& key) {
  // Limits the cache, because a program may use new shapes forever, such as another batch size in each step.
  constexpr std::size_t kMostPlans = 512;
  Plans& plans = own_plans();
  if (const auto found = plans.find(key); found != plans.end()) return found->second.get();
  if (plans.size() >= kMostPlans) plans.clear();
  std::unique_ptr<Plan> plan;
  try {
    plan = make_plan(key);
  } catch (const dnnl::error&) {  // no implementation for these layouts
  }
  return plans.emplace(key, std::move(plan)).first->second.get();
}

bool is_finite(BFloat16 x) { return (x.bits & 0x7f80) != 0x7f80; }

/// The instructions multiply pairs along k. oneDNN fills up an odd k with zeros, and zero times infinity is
/// NaN. True if the last elements along k are finite, so that the zeros do no harm.
bool may_be_padded(const GemmArgs& g) {
  const BFloat16* const a = g.a.as<BFloat16>() + (g.k - 1) * g.a_strides.col;
  const BFloat16* const b = g.b.as<BFloat16>() + (g.k - 1) * g.b_strides.row;
  for (std::int64_t i = 0; i < g.m; ++i)
    if (!is_finite(a[i * g.a_strides.row])) return false;
  for (std::int64_t j = 0; j < g.n; ++j)
    if (!is_finite(b[j * g.b_strides.col])) return false;
  return true;
}

/// Returns null if oneDNN should not compute this product.
const Plan* plan_for(const GemmArgs& g, bool f32_result) {
  if (!has_bf16_instructions() || g.k == 0 || (g.k % 2 == 1 && !may_be_padded(g))) return nullptr;
  const bool a_plain = g.a_strides.row_major(g.k), b_plain = g.b_strides.row_major(g.n);
  const Plan* const plan =
      plan_for(Key{g.m, g.n, g.k, a_plain ? g.a_strides.row : 1, a_plain ? 1 : g.a_strides.col,
                   b_plain ? g.b_strides.row : 1, b_plain ? 1 : g.b_strides.col, g.c_row, f32_result,
                   static_cast<bool>(g.bias), g.accumulate, compute_threads()});
  return plan && plan->by_dot && !bf16_dot_pays() ? nullptr : plan;
}

}  // namespace

std::string bf16_kernel(const GemmArgs& g, bool f32_result) {
  const Plan* const plan = plan_for(g, f32_result);
  return plan ? plan->kernel : "";
}
void plant_tile_fault(std::string_view part) {
  planted_fault() = part;
  own_plans().clear();
}

bool multiply_bf16(const GemmArgs& g, bool f32_result) {
  const Plan* const plan = plan_for(g, f32_result);
  if (!plan) return false;
  // dnnl::memory takes only pointers to non-const data. oneDNN does not write to the inputs.
  const auto argument = [](const memory::desc& desc, const void* data) {
    return memory(desc, engine(), const_cast<void*>(data));
  };
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, argument(plan->a, g.a.as<BFloat16>())},
      {DNNL_ARG_WEIGHTS, argument(plan->b, g.b.as<BFloat16>())},
      {DNNL_ARG_DST,
       f32_result ? argument(plan->c, g.c.as<float>()) : argument(plan->c, g.c.as<BFloat16>())}};
  if (g.bias) arguments.emplace(DNNL_ARG_BIAS, argument(plan->bias, g.bias.as<BFloat16>()));
  plan->product.execute(stream(), arguments);
  stream().wait();
  return true;
}

}  // namespace tapestry::kernels::cpu

#else

namespace tapestry::kernels::cpu {
bool multiply_bf16(const GemmArgs&, bool) { return false; }
std::string bf16_kernel(const GemmArgs&, bool) { return ""; }
void plant_tile_fault(std::string_view) {}
}  // namespace tapestry::kernels::cpu

#endif
