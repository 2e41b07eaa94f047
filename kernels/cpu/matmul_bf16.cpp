// Products of bf16 matrices by oneDNN's primitives, which use the processor's bf16 instructions (AVX512_BF16,
// AMX) on operands of either layout. Creating a primitive takes a fraction of a millisecond, so each thread
// caches its primitives.
#include "tapestry/kernels/cpu/matmul.h"

#include <atomic>

#include "tapestry/kernels/cpu/bf16_dot.h"
#include "tapestry/kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

namespace tapestry::kernels::cpu {
namespace {

// Whether the processor multiplies tiles of bf16, even if the system or the environment forbids it.
bool processor_has_amx() {
#if defined(__x86_64__) && defined(__GNUC__)
  constexpr unsigned kAmxBf16 = 1u << 22;  // in EDX of CPUID's leaf 7
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0;
#else
  return false;
#endif
}

std::atomic<bool>& dot_pays() {
  static std::atomic<bool> pays{!processor_has_amx()};
  return pays;
}

}  // namespace

bool bf16_dot_pays() { return isa() >= Isa::avx512_bf16 && dot_pays().load(std::memory_order_relaxed); }
void set_bf16_dot_pays(bool pays) { dot_pays() = pays; }

}  // namespace tapestry::kernels::cpu

#ifdef TAPESTRY_HAS_ONEDNN
#include <memory>
#include <optional>
#include <unordered_map>

#include "tapestry/core/threads.h"
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

// The memory objects are made once, because that takes longer than a small product. Each call sets their
// addresses.
struct Plan {
  std::unordered_map<int, memory> arguments;
  dnnl::matmul product;
  std::string kernel;
  bool by_dot;

  void set(int argument, const void* data) {
    // oneDNN takes only pointers to non-const data. It does not write to the inputs.
    arguments.at(argument).set_data_handle(const_cast<void*>(data));
  }
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
  const memory::desc a({key.m, key.k}, bf16, memory::dims{key.a_row, key.a_col}),
      b({key.k, key.n}, bf16, memory::dims{key.b_row, key.b_col}),
      c({key.m, key.n}, key.f32_result ? memory::data_type::f32 : bf16, memory::dims{key.c_row, 1}),
      bias({1, key.n}, bf16, memory::dims{key.n, 1});
  dnnl::primitive_attr attributes;
  if (key.accumulate) {
    dnnl::post_ops after;
    after.append_sum(1.0f);
    attributes.set_post_ops(after);
  }
  const auto avoid = [&](std::string_view kernel) { return must_be_avoided(kernel, key.k); };
  const auto pd = key.bias ? describe<dnnl::matmul>(avoid, std::tuple(a, b, bias, c), attributes)
                           : describe<dnnl::matmul>(avoid, std::tuple(a, b, c), attributes);
  auto plan = std::make_unique<Plan>();
  plan->kernel = pd.impl_info_str();
  if (plan->kernel.starts_with("ref")) return nullptr;
  plan->by_dot = multiplies_by_bf16_dot(plan->kernel);
  plan->product = dnnl::matmul(pd);
  const auto add = [&](int argument, const memory::desc& desc) {
    plan->arguments.emplace(argument, memory(desc, engine(), DNNL_MEMORY_NONE));
  };
  add(DNNL_ARG_SRC, a), add(DNNL_ARG_WEIGHTS, b), add(DNNL_ARG_DST, c);
  if (key.bias) add(DNNL_ARG_BIAS, bias);
  return plan;
}

using Plans = std::unordered_map<Key, std::unique_ptr<Plan>, KeyHash>;
Plans& own_plans() {
  thread_local const auto own = std::make_unique<Plans>();  // a pointer, because static TLS is scarce
  return *own;
}

Plan* plan_for(const Key& key) {
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
Plan* plan_for(const GemmArgs& g, bool f32_result) {
  if (!has_bf16_instructions() || g.k == 0 || (g.k % 2 == 1 && !may_be_padded(g))) return nullptr;
  const bool a_plain = g.a_strides.row_major(g.k), b_plain = g.b_strides.row_major(g.n);
  Plan* const plan = plan_for(Key{g.m, g.n, g.k, a_plain ? g.a_strides.row : 1, a_plain ? 1 : g.a_strides.col,
                                  b_plain ? g.b_strides.row : 1, b_plain ? 1 : g.b_strides.col, g.c_row,
                                  f32_result, static_cast<bool>(g.bias), g.accumulate, compute_threads()});
  return plan && plan->by_dot && !bf16_dot_pays() ? nullptr : plan;
}

}  // namespace

std::string bf16_kernel(const GemmArgs& g, bool f32_result) {
  Plan* const plan = plan_for(g, f32_result);
  return plan ? plan->kernel : "";
}
void plant_tile_fault(std::string_view part) {
  planted_fault() = part;
  own_plans().clear();
}

bool multiply_bf16(const GemmArgs& g, bool f32_result) {
  // With fewer multiplications, starting other threads takes longer than they save: of two threads, products
  // of 32^3 and 64^3 took 3.4 and 5.0 us, and of one thread 0.9 and 3.2 us (Zen 4).
  constexpr double kWork = 1 << 19;
  std::optional<ThreadShare> one;
  if (static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k) < kWork) one.emplace(1);
  Plan* const plan = plan_for(g, f32_result);
  if (!plan) return false;
  plan->set(DNNL_ARG_SRC, g.a.as<BFloat16>());
  plan->set(DNNL_ARG_WEIGHTS, g.b.as<BFloat16>());
  plan->set(DNNL_ARG_DST, f32_result ? static_cast<const void*>(g.c.as<float>()) : g.c.as<BFloat16>());
  if (g.bias) plan->set(DNNL_ARG_BIAS, g.bias.as<BFloat16>());
  plan->product.execute(stream(), plan->arguments);
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
