#include "tests/support/op_fuzz.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "tapestry/autograd/engine.h"
#include "tapestry/core/error.h"
#include "tests/support/op_check.h"

namespace tapestry::test {
namespace {

constexpr std::int64_t kMostElements = 400;  // of one input
constexpr double kUnit = 1.0 / 64;           // values are multiples of it below 4, which are exact in bf16
constexpr double kGradientScale = 0.25;      // at least: gradients of outputs are up to 1.5, and may cancel
constexpr double kMostScale = 1e4;           // intermediate results may be larger, and f16 ends at 65504
constexpr double kStep = 1e-7;               // the relative change of inputs that estimates the scale

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }

  // Returns a case with other sizes, values and parameters. Equal sizes stay equal. Outputs are left out.
  std::shared_ptr<Golden> mutated(const Golden& from, int number) {
    auto g = std::make_shared<Golden>();
    g->op = from.op, g->slack = from.slack, g->constant = from.constant;
    for (const char* kept : {"no_strided", "no_grad"})
      if (from.tagged(kept)) g->tags.insert(kept);
    const std::map<std::int64_t, std::int64_t> sizes = new_sizes(from);
    const auto changed = [&](std::int64_t n) { return sizes.count(n) ? sizes.at(n) : n; };
    for (const auto& [name, value] : from.params) g->params[name] = param(value, changed);
    g->label = g->op + " random #" + std::to_string(number);
    for (const auto& input : from.inputs) {
      if (!input) {
        g->inputs.emplace_back();
        continue;
      }
      Values v{input->dtype, input->sizes, {}, {}};
      for (int d = 0; d < v.sizes.size(); ++d) v.sizes[d] = changed(v.sizes[d]);
      fill(v, *input, sizes);
      g->label += " " + v.sizes.str();
      g->inputs.push_back(std::move(v));
    }
    return g;
  }

  double sign() { return random_() & 1 ? 1 : -1; }

 private:
  std::map<std::int64_t, std::int64_t> new_sizes(const Golden& from) {
    constexpr std::int64_t choices[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 33, 64, 65};
    for (int attempt = 0; attempt < 50; ++attempt) {
      std::map<std::int64_t, std::int64_t> sizes;
      for (const auto& input : from.inputs)
        for (int d = 0; input && d < input->sizes.size(); ++d) {
          const std::int64_t n = input->sizes[d];
          if (!sizes.count(n)) sizes[n] = chance(0.7) ? choices[below(std::size(choices))] : n;
        }
      const bool fits = std::all_of(from.inputs.begin(), from.inputs.end(), [&](const auto& input) {
        std::int64_t count = 1;
        for (int d = 0; input && d < input->sizes.size(); ++d) count *= sizes.at(input->sizes[d]);
        return count <= kMostElements;
      });
      if (fits) return sizes;
    }
    return {};
  }

  template <class F>
  std::int64_t integer(std::int64_t value, const F& changed) {
    const std::size_t draw = below(20);
    return draw < 8 ? changed(value) : draw == 8 ? value + 1 : draw == 9 ? value - 1 : value;
  }

  template <class F>
  Param param(const Param& value, const F& changed) {
    if (std::holds_alternative<bool>(value)) return chance(0.5);
    if (const auto* i = std::get_if<std::int64_t>(&value)) return integer(*i, changed);
    if (const auto* r = std::get_if<double>(&value)) return chance(0.3) ? *r / 2 : *r;
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
      std::vector<std::int64_t> out;
      for (const std::int64_t i : *list) out.push_back(integer(i, changed));
      return out;
    }
    return value;
  }

  // Draws values from the range of the recorded ones, so that they stay in the domain of the function.
  // Floating values are distinct if there are enough of them, because the order of equal elements may depend
  // on the layout.
  void fill(Values& v, const Values& from, const std::map<std::int64_t, std::int64_t>& sizes) {
    double low = 4, high = -4;
    for (const double x : from.values)
      if (std::isfinite(x)) low = std::min(low, x), high = std::max(high, x);
    if (low > high) low = high = 0;
    const auto count = static_cast<std::size_t>(v.sizes.numel());
    if (!is_floating(v.dtype)) {
      for (const auto& [before, after] : sizes)  // indices reach up to a size minus 1, and follow that size
        if (static_cast<double>(before) - 1 == high && after > 0 && chance(0.7)) {
          high = static_cast<double>(after) - 1;
          break;
        }
      const auto range = static_cast<std::size_t>(std::min(std::max(high - low, 0.0), 1e6)) + 1;
      for (std::size_t i = 0; i < count; ++i) v.values.push_back(low + static_cast<double>(below(range)));
      return;
    }
    low = std::max(low, -4.0), high = std::min(high, 4.0);
    std::vector<double> grid;
    for (double x = std::ceil(low / kUnit) * kUnit; x <= high; x += kUnit) grid.push_back(x);
    if (grid.empty()) grid.push_back(low);
    std::shuffle(grid.begin(), grid.end(), random_);
    for (std::size_t i = 0; i < count; ++i)
      v.values.push_back(count <= grid.size() ? grid[i] : grid[below(grid.size())]);
  }

  std::mt19937_64 random_;
};

struct Results {
  std::vector<Values> outputs;
  std::vector<std::optional<Values>> grads;
  bool differentiated = false;
};

using Change = std::function<double(double)>;

// Changes the elements behind autograd's back, unless they are shared by several indices.
void change_elements(const Tensor& t, const Change& change) {
  if (!t.defined() || t.dtype() != DType::f64 || !t.is_contiguous()) return;
  double* const x = t.data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] = change(x[i]);
}

// Runs the case in f64. `change(v)` returns the value to use in place of an input or a gradient of an output.
// With `saved`, the inputs and outputs that forward saved are changed before backward reads them.
Results run(const std::shared_ptr<const Golden>& g, const OpInfo& info, const OpFunction& fn,
            const Change& change, bool saved = false) {
  const auto changed = [&](Values v) {
    if (v.dtype == DType::f64)
      for (double& x : v.values) x = change(x);
    return v;
  };
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < g->inputs.size(); ++i) {
    inputs.push_back(g->inputs[i] ? make(changed(*g->inputs[i]), g->inputs[i]->dtype) : Tensor());
    if (info.differentiable && !g->tagged("no_grad") && inputs[i].defined() &&
        inputs[i].dtype() == DType::f64 && !g->constant.count(i))
      inputs[i].set_requires_grad();
  }
  Results results;
  std::vector<Tensor> roots, grads;
  const std::vector<Tensor> outputs = fn(OpCase(g, inputs)).tensors;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    results.outputs.push_back({outputs[k].dtype(), outputs[k].sizes(), numbers(outputs[k]), {}});
    if (!outputs[k].requires_grad()) continue;
    roots.push_back(outputs[k]);
    grads.push_back(
        make(changed(grad_output(static_cast<std::int64_t>(k), outputs[k].sizes(), DType::f64)), DType::f64));
  }
  results.differentiated = !roots.empty();
  if (saved) {
    for (const Tensor& input : inputs) change_elements(input, change);
    for (const Tensor& output : roots) change_elements(output, change);
  }
  if (results.differentiated) autograd::backward(roots, grads);
  for (const Tensor& input : inputs) {
    results.grads.emplace_back();
    if (input.defined() && input.requires_grad() && input.grad().defined())
      results.grads.back() = {DType::f64, input.sizes(), numbers(input.grad()), {}};
  }
  return results;
}

// Adds to each scale the largest change between the results, unless it is above `most`.
void widen(Values& expected, const Values& other, double most) {
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double change = std::abs(other.values[i] - expected.values[i]) / kStep;
    if (change <= most)
      expected.scale[i] = std::max(expected.scale[i], std::abs(expected.values[i]) + change);
  }
}

void set_scales(Values& expected) {
  for (const double x : expected.values) expected.scale.push_back(std::isfinite(x) ? std::abs(x) : 0);
}

// Raises all scales of a tensor to the largest one, and to `least`. A difference such as x - log(sum(exp(x)))
// is known to a multiple of eps of its operands, which may be larger than each of the elements that the
// samples moved.
void level(Values& expected, double least) {
  for (const double s : expected.scale) least = std::max(least, s);
  expected.scale.assign(expected.values.size(), least);
}

// Changes what the estimated scales do not cover.
void adapt(Golden& g) {
  // The default eps is that of the dtype. All dtypes need the same one to give the results in f64.
  if ((g.op == "rms_norm" || g.op == "add_rms_norm") && !g.params.count("eps")) g.params["eps"] = 0x1p-23;
  // The eps of 1e-6 decides which of two equal differences is the largest, unless the dtype rounds it away.
  if (g.op == "pairwise_distance" && g.params.count("p") && g.params["p"] == Param(std::string("inf")))
    g.params["p"] = 3.0;
  // The logarithm of a probability after t of T steps is up to t L for log-probabilities of up to L. Each
  // step rounds it, so the roundings of both recursions add up to eps / 2 times T^2 L, which is the relative
  // error of a gradient. The changed inputs show sqrt(T) L of that, and the tolerance is 16 times as large.
  if (g.op == "ctc_loss") {
    const auto steps = static_cast<double>(g.inputs[0]->sizes[0]);
    g.slack = std::max(g.slack, steps * std::sqrt(steps) / 32);
  }
}

// Fills in what the operation returns in f64. Returns false if it rejects the case.
bool complete(const std::shared_ptr<Golden>& g, const OpInfo& info, const OpFunction& fn, Mutator& mutator) {
  try {
    Results exact = run(g, info, fn, [](double x) { return x; });
    for (const Values& output : exact.outputs)
      if (is_floating(output.dtype) && output.dtype != DType::f64) return false;  // a cast to a fixed dtype
    g->outputs = exact.outputs, g->grads = exact.grads, g->has_grads = exact.differentiated;
    for (Values& output : g->outputs) set_scales(output);
    for (auto& grad : g->grads)
      if (grad) set_scales(*grad);
    // Forward rounds what it saves for backward. So the second half of the samples changes the inputs again
    // before backward, and the outputs, which shows what cancels in a gradient: that of a normalization
    // subtracts equal terms if there are two values per channel. A change above kMostScale is a jump: that of
    // the gradient of a maximum, which compares saved values that rounding does not change.
    constexpr double any = std::numeric_limits<double>::max();
    for (int sample = 0; sample < 4; ++sample) {
      const bool saved = sample >= 2;
      if (saved && !exact.differentiated) break;
      const Results moved = run(
          g, info, fn, [&](double x) { return x * (1 + kStep * mutator.sign()); }, saved);
      for (std::size_t k = 0; k < g->outputs.size() && !saved; ++k)
        if (moved.outputs[k].values.size() == g->outputs[k].values.size())
          widen(g->outputs[k], moved.outputs[k], any);
      for (std::size_t i = 0; i < g->grads.size(); ++i)
        if (g->grads[i] && moved.grads[i]) widen(*g->grads[i], *moved.grads[i], saved ? kMostScale : any);
    }
    for (Values& output : g->outputs) level(output, 0);
    for (auto& grad : g->grads)
      if (grad) level(*grad, kGradientScale);
    const auto fits = [](const Values& v) { return v.scale.empty() || v.scale[0] <= kMostScale; };
    return std::all_of(g->outputs.begin(), g->outputs.end(), fits) &&
           std::all_of(g->grads.begin(), g->grads.end(), [&](const auto& v) { return !v || fits(*v); });
  } catch (const Error&) {
    return false;
  } catch (const std::runtime_error&) {
    return false;  // a parameter that the test's own function does not know
  }
}

}  // namespace

FuzzResult fuzz_operation(const std::string& op, const std::string& family, const OpFunction& fn,
                          std::uint64_t seed, int count, Device device) {
  FuzzResult result;
  MissingRuns missing;
  const std::vector<OpInfo> ops = registered_ops();
  const auto found =
      std::find_if(ops.begin(), ops.end(), [&](const OpInfo& o) { return o.name == base_name(op); });
  std::vector<std::shared_ptr<const Golden>> seeds;
  for (const auto& g : golden_family(family))
    if (g->op == op && g->generic() && !g->tagged("extreme") && !g->tagged("empty")) seeds.push_back(g);
  if (found == ops.end() || seeds.empty()) return result;
  OpInfo info = *found;
  // Two of the orders are norms of singular values, which need f32 or f64.
  if (info.name == "linalg.matrix_norm") info.dtypes &= kFullFloats;
  // In f16, an eps of 1e-12 is 0, and a line of zeros gives NaN, as in PyTorch.
  if (info.name == "normalize" || info.name == "cosine_similarity")
    info.dtypes &= static_cast<DTypeSet>(~bit(DType::f16));
  Mutator mutator(seed ^ std::hash<std::string>()(op));
  for (int attempt = 0; attempt < 4 * count && result.cases < count; ++attempt) {
    const std::shared_ptr<Golden> g = mutator.mutated(*seeds[mutator.below(seeds.size())], attempt);
    adapt(*g);
    if (!complete(g, info, fn, mutator)) continue;
    ++result.cases;
    for (std::string& failure : device.is_cpu() ? run_case(g, info, fn, {Kind::gradcheck})
                                                : run_case_on(device, g, info, fn, {}, missing))
      result.failures.push_back(std::move(failure));
  }
  return result;
}

FuzzResult fuzz_operations(std::uint64_t seed, int count, Device device) {
  FuzzResult all;
  for (const GoldenOp* o : golden_ops()) {
    FuzzResult one = fuzz_operation(o->op, o->family, o->fn, seed, count, device);
    all.cases += one.cases;
    for (std::string& failure : one.failures) all.failures.push_back(std::move(failure));
  }
  return all;
}

}  // namespace tapestry::test
