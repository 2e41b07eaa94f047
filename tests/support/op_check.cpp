#include "tests/support/op_check.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/kernels/slot.h"

namespace tapestry::test {
namespace {

// Returns the tolerance in multiples of eps * scale. Kernels compute f16 and bf16 in f32, so only the
// rounding of the result remains. But gradients in f16 and bf16 may pass through a stored intermediate
// result, which is rounded too.
double units_of(DType dtype, bool gradient) {
  return is_floating(dtype) && epsilon(dtype) > 1e-4 && !gradient ? 2 : 16;
}

std::string text_of(double v) {
  std::ostringstream out;
  out.precision(17);
  out << v;
  return out.str();
}

std::string position(std::int64_t index, const Shape& sizes) {
  Shape at = sizes;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    at[d] = index % sizes[d];
    index /= sizes[d];
  }
  return at.str();
}

// The gradient that is present before an accumulating backward: multiples of 1/2 in [-1, 1].
Values earlier_gradient(const Values& like) {
  Values v = like;
  for (std::size_t i = 0; i < v.values.size(); ++i) v.values[i] = static_cast<double>(i % 5) / 2 - 1;
  return v;
}

// Returns "conv2d f64" if `text` is the error message for a missing kernel of this device type, and the
// kernel is indeed missing, or is one of NVIDIA's library, which is not there. Otherwise returns an empty
// string.
std::string kernel_that_lacks(Device device, const std::string& text) {
  for (const auto* slot = kernels::SlotBase::first(); slot; slot = slot->next())
    for (int d = 0; d < kNumDTypes; ++d) {
      const DType dtype = static_cast<DType>(d);
      // Some kernels only call a library of NVIDIA's, which tests without a GPU do not have.
      const bool needs_library = text.find("; cuBLASLt would compute it, but ") != std::string::npos ||
                                 text.find("cuDNN") != std::string::npos;
      if (slot->has(device.type, dtype) && !needs_library) continue;
      const std::string named = concat({"[", slot->name(), "] there is no ", device_type_name(device.type),
                                        " kernel for ", dtype_name(dtype)});
      if (text.rfind(named + ";", 0) == 0) return concat({slot->name(), " ", dtype_name(dtype)});
    }
  return {};
}

class CaseRun {
 public:
  CaseRun(std::shared_ptr<const Golden> golden, const OpInfo& info, const OpFunction& fn,
          Device device = kCPU)
      : golden_(std::move(golden)), info_(info), fn_(fn), device_(device) {}

  Failures failures;
  MissingRuns missing;

  void values(DType dtype, Layout layout) {
    guarded("values", dtype, layout, [&](const std::string& label) {
      const NoGradGuard no_grad;
      const std::vector<Tensor> inputs = make_inputs(dtype, layout);
      const Snapshot before(inputs);
      const std::vector<Tensor> outputs = outputs_of(label, inputs);
      unchanged(label, "input", before);
      compare_outputs(label, outputs, dtype);
    });
  }

  // Checks the gradients. `only` is the index of the single input that requires a gradient, or -1 for all
  // inputs. With `accumulate`, the inputs already have gradients, and the new ones must be added to them.
  void gradients(DType dtype, Layout layout, int only, bool accumulate) {
    std::string what = "gradients";
    if (only >= 0) what += " of input " + std::to_string(only) + " alone";
    if (accumulate) what += " added to earlier ones";
    guarded(what, dtype, layout, [&](const std::string& label) {
      const std::vector<Tensor> inputs = make_inputs(dtype, layout);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!wants_gradient(i)) continue;
        inputs[i].set_requires_grad(only < 0 || static_cast<int>(i) == only);
        if (accumulate)
          inputs[i].set_grad(moved(make(earlier_gradient(*golden_->inputs[i]), inputs[i].dtype()), device_));
      }
      const Snapshot before(inputs);
      const std::vector<Tensor> outputs = outputs_of(label, inputs);
      compare_outputs(label, outputs, dtype);
      std::vector<Tensor> roots, grads;
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        if (!outputs[k].requires_grad()) continue;
        roots.push_back(outputs[k]);
        const Values g = grad_output(static_cast<std::int64_t>(k), outputs[k].sizes(), outputs[k].dtype());
        grads.push_back(moved(make(g, outputs[k].dtype(), layout), device_));
      }
      if (!info_.differentiable) {
        if (!roots.empty())
          failures.push_back(label + ": an output requires a gradient; the operation says it has none");
        return;
      }
      if (roots.empty()) {
        if (only < 0) failures.push_back(label + ": no output requires a gradient");
        return;
      }
      const Snapshot grads_before(grads);
      const std::int64_t waits = waits_so_far();
      autograd::backward(roots, grads);
      if (waits_so_far() != waits && !info_.name.starts_with("linalg."))
        failures.push_back(label + ": backward makes the host wait");
      unchanged(label, "input", before);
      unchanged(label, "gradient of output", grads_before);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (wants_gradient(i)) compare_gradient(label, inputs[i], i, accumulate);
    });
  }

  void gradcheck() {
    guarded("gradcheck", DType::f64, Layout::dense, [&](const std::string&) {
      with_function(
          [](const auto& fn, const std::vector<Tensor>& leaves) { autograd::gradcheck(fn, leaves); });
    });
  }

  void gradgradcheck() {
    guarded("gradgradcheck", DType::f64, Layout::dense, [&](const std::string&) {
      with_function([](const auto& fn, const std::vector<Tensor>& leaves) {
        if (fn(leaves).empty()) return;  // a conversion to integers has no gradient
        autograd::gradgradcheck(fn, leaves, {}, {.fast_mode = true});
      });
    });
  }

  // An operation that is not Grad::twice must throw before backward computes anything, and name itself.
  void refuses_create_graph() {
    guarded("create_graph", DType::f64, Layout::dense, [&](const std::string& label) {
      with_function([&](const auto& fn, const std::vector<Tensor>& leaves) {
        const std::vector<Tensor> outputs = fn(leaves);
        std::vector<Tensor> gradients;
        for (const Tensor& y : outputs) gradients.push_back(ones_like(y.detach()));
        try {
          autograd::grad(outputs, leaves,
                         {.grad_outputs = gradients, .create_graph = true, .allow_unused = true});
          failures.push_back(label + ": is recorded, but the operation is not Grad::twice");
        } catch (const AutogradError& e) {
          if (std::string(e.what()).rfind("[" + info_.name + "] gradients of gradients", 0) != 0)
            failures.push_back(label + ": expected a refusal that names the operation, got: " + e.what());
        }
      });
    });
  }

  // Runs the operation on expanded inputs, which have stride 0 in one dimension. The results must equal those
  // for dense copies of the same values.
  void expanded(DType dtype = DType::f64) {
    guarded("expanded", dtype, Layout::dense, [&](const std::string& label) {
      std::vector<Tensor> dense, expanded;
      bool any = false;
      for (const auto& input : golden_->inputs) {
        if (!input) {
          dense.emplace_back(), expanded.emplace_back();
          continue;
        }
        auto [a, b] = expand(*input, golden_->actual(input->dtype, dtype));
        any = any || !(a.strides() == b.strides());
        dense.push_back(moved(a, device_)), expanded.push_back(moved(b, device_));
      }
      if (!any) return;
      const std::vector<Values> expected = outputs_and_gradients(dense);
      const std::vector<Values> got = outputs_and_gradients(expanded);
      if (got.size() != expected.size()) return failures.push_back(label + ": gradients appear or disappear");
      for (std::size_t i = 0; i < expected.size(); ++i)
        compare(label + ": result " + std::to_string(i), make(got[i], got[i].dtype), expected[i],
                expected[i].dtype, 1e4, failures);
    });
  }

  bool wants_gradient(std::size_t i) const {
    return golden_->inputs[i] && golden_->inputs[i]->dtype == DType::f64 && golden_->generic() &&
           !golden_->constant.count(i);
  }

 private:
  // Calls check(function, leaves) with the operation as a function of the inputs that want a gradient.
  template <class Check>
  void with_function(const Check& check) {
    std::vector<Tensor> inputs = make_inputs(DType::f64, Layout::dense), leaves;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (wants_gradient(i)) leaves.push_back(inputs[i].set_requires_grad());
    // differentiable[i] is false for outputs that take no part in autograd, such as running statistics.
    std::vector<bool> differentiable;
    for (const Tensor& y : fn_(OpCase(golden_, inputs)).tensors) differentiable.push_back(y.requires_grad());
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)> fn =
        [&](const std::vector<Tensor>& xs) {
          std::vector<Tensor> all = inputs;
          std::size_t next = 0;
          for (std::size_t i = 0; i < all.size(); ++i)
            if (wants_gradient(i)) all[i] = xs[next++];
          const std::vector<Tensor> outputs = fn_(OpCase(golden_, all)).tensors;
          std::vector<Tensor> checked;
          for (std::size_t k = 0; k < outputs.size(); ++k)
            if (differentiable[k]) checked.push_back(outputs[k]);
          return checked;
        };
    check(fn, leaves);
  }

  template <class F>
  void guarded(const std::string& what, DType dtype, Layout layout, F&& f) {
    std::string label = golden_->label + ", ";
    if (golden_->generic()) label += std::string(dtype_name(dtype)) + ", ";
    if (layout != Layout::dense) label += std::string(layout_name(layout)) + ", ";
    label += what;
    const DeviceGuard guard(device_);
    try {
      f(label);
    } catch (const MissingKernelError& e) {
      const std::string kernel = kernel_that_lacks(device_, e.what());
      if (kernel.empty()) failures.push_back(label + ": throws " + e.what());
      else ++missing[kernel];
    } catch (const std::exception& e) {
      failures.push_back(label + ": throws " + e.what());
    }
  }

  std::vector<Tensor> make_inputs(DType dtype, Layout layout) const {
    std::vector<Tensor> inputs;
    for (const auto& v : golden_->inputs)
      inputs.push_back(v ? moved(make(*v, golden_->actual(v->dtype, dtype), layout), device_) : Tensor());
    return inputs;
  }

  static std::int64_t waits_so_far() { return host_waits ? host_waits() : 0; }

  // Returns true if the host may wait for the device. It may if an output is on the host, if the size of the
  // output depends on the elements, if the operation checks elements on the host, or if the operation or the
  // case uploads a list (such as class weights).
  bool may_wait(const std::vector<Tensor>& outputs) const {
    static const std::set<std::string> waits = {
        "item",          "unique",         "bincount",           "searchsorted",
        "masked_select", "nonzero",        "repeat_interleave",  "tril_indices",
        "triu_indices",  "masked_scatter", "unique_consecutive", "nanquantile",
        "ctc_loss"};
    static const std::set<std::string> variants = {"index/mask", "index_put/mask", "one_hot/counted"};
    if (info_.name.starts_with("linalg.")) return true;  // these are computed on the host
    return waits.count(info_.name) || variants.count(golden_->op) ||
           std::any_of(outputs.begin(), outputs.end(),
                       [&](const Tensor& t) { return t.defined() && t.device() != device_; }) ||
           std::any_of(golden_->params.begin(), golden_->params.end(), [](const auto& param) {
             return std::holds_alternative<std::vector<double>>(param.second);
           });
  }

  std::vector<Tensor> outputs_of(const std::string& label, const std::vector<Tensor>& inputs) {
    const std::int64_t before = waits_so_far();
    std::vector<Tensor> outputs = fn_(OpCase(golden_, inputs)).tensors;
    if (waits_so_far() != before && !may_wait(outputs)) failures.push_back(label + ": the host waits");
    return outputs;
  }

  void unchanged(const std::string& label, const char* what, const Snapshot& before) {
    for (const std::string& change : before.changes()) failures.push_back(label + ": " + what + " " + change);
  }

  void compare_outputs(const std::string& label, const std::vector<Tensor>& outputs, DType dtype) {
    if (outputs.size() != golden_->outputs.size())
      return failures.push_back(label + ": " + std::to_string(outputs.size()) + " outputs, expected " +
                                std::to_string(golden_->outputs.size()));
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const DType expected = golden_->actual(golden_->outputs[k].dtype, dtype);
      check_result(label + ": output " + std::to_string(k), outputs[k], golden_->outputs[k], expected, false);
    }
  }

  void check_result(const std::string& what, const Tensor& got, const Values& expected, DType dtype,
                    bool gradient) {
    compare(what, moved(got, kCPU), expected, dtype, golden_->slack * units_of(dtype, gradient), failures);
  }

  void compare_gradient(const std::string& label, const Tensor& input, std::size_t i, bool accumulate) {
    const std::string what = label + ": gradient of input " + std::to_string(i);
    const Values zero{DType::f64, input.sizes(), std::vector<double>(static_cast<std::size_t>(input.numel())),
                      std::vector<double>(static_cast<std::size_t>(input.numel()))};
    Values expected = golden_->grads[i] ? *golden_->grads[i] : zero;
    if (!input.requires_grad()) {
      if (input.grad().defined() && !accumulate)
        failures.push_back(what + ": is there, and was not asked for");
      return;
    }
    if (accumulate) {
      const Values earlier = earlier_gradient(expected);
      for (std::size_t j = 0; j < earlier.values.size(); ++j) {
        expected.values[j] += earlier.values[j];
        expected.scale[j] += std::abs(earlier.values[j]);
      }
    }
    // An input that does not take part in the result may have no gradient.
    if (!input.grad().defined()) {
      if (std::any_of(expected.values.begin(), expected.values.end(), [](double v) { return v != 0; }))
        failures.push_back(what + ": is missing");
      return;
    }
    check_result(what, input.grad(), expected, input.dtype(), true);
  }

  // Returns a dense tensor and one with stride 0. Both repeat the values at index 0 of the first dimension
  // larger than 1.
  static std::pair<Tensor, Tensor> expand(const Values& input, DType dtype) {
    int dim = 0;
    while (dim < input.sizes.size() && input.sizes[dim] <= 1) ++dim;
    if (dim == input.sizes.size() || input.sizes.numel() == 0)
      return {make(input, dtype), make(input, dtype)};
    Shape row = input.sizes;
    row[dim] = 1;
    const Tensor whole = make(input, dtype);
    const Tensor first = detail::raw_view(whole, row, whole.strides(), 0);
    const Tensor copy = make({dtype, row, numbers(first), {}}, dtype);
    Shape strides = copy.strides();
    strides[dim] = 0;
    const Tensor expanded = detail::raw_view(copy, input.sizes, strides, 0);
    return {make({dtype, input.sizes, numbers(expanded), {}}, dtype), expanded};
  }

  std::vector<Values> outputs_and_gradients(const std::vector<Tensor>& inputs) {
    const bool differentiate = info_.differentiable && golden_->has_grads;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (differentiate && wants_gradient(i)) inputs[i].set_requires_grad();
    std::vector<Tensor> results = fn_(OpCase(golden_, inputs)).tensors, roots, grads;
    for (std::size_t k = 0; k < results.size(); ++k) {
      if (!results[k].requires_grad()) continue;
      roots.push_back(results[k]);
      const Values g = grad_output(static_cast<std::int64_t>(k), results[k].sizes(), results[k].dtype());
      grads.push_back(moved(make(g, g.dtype), device_));
    }
    if (!roots.empty()) autograd::backward(roots, grads);
    for (const Tensor& input : inputs)
      if (input.defined() && input.grad().defined()) results.push_back(input.grad());
    std::vector<Values> out;
    for (const Tensor& t : results) {
      Values v{t.dtype(), t.sizes(), numbers(t), {}};
      double scale = 1;
      for (double x : v.values)
        if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
      v.scale.assign(v.values.size(), scale);
      out.push_back(std::move(v));
    }
    return out;
  }

  std::shared_ptr<const Golden> golden_;
  const OpInfo& info_;
  const OpFunction& fn_;
  const Device device_;
};

}  // namespace

Values grad_output(std::int64_t k, const Shape& sizes, DType dtype) {
  Values v{dtype, sizes, {}, {}};
  for (std::int64_t i = 0; i < sizes.numel(); ++i)
    v.values.push_back(static_cast<double>((7 * i + 3 * k + 4) % 13 - 6) / 4);
  return v;
}

std::vector<OpInfo> registered_ops() {
  std::vector<OpInfo> ops;
  for (const autograd::Op* op = autograd::Op::first(); op; op = op->next())
    ops.push_back({op->name, op->differentiable, op->dtypes, op->twice});
  std::sort(ops.begin(), ops.end(), [](const OpInfo& a, const OpInfo& b) { return a.name < b.name; });
  return ops;
}

std::string base_name(const std::string& op) { return op.substr(0, op.find('/')); }

void compare(const std::string& what, const Tensor& got, const Values& expected, DType dtype, double units,
             Failures& failures) {
  if (!got.defined()) return failures.push_back(what + ": is undefined");
  if (!(got.sizes() == expected.sizes))
    return failures.push_back(what + ": shape " + got.sizes().str() + ", expected " + expected.sizes.str());
  if (got.dtype() != dtype)
    return failures.push_back(what + ": dtype " + dtype_name(got.dtype()) + ", expected " +
                              dtype_name(dtype));
  const std::vector<double> values = numbers(got);
  std::size_t wrong = 0, first = 0;
  const auto tolerance = [&](std::size_t i) {
    return units * (epsilon(dtype) * expected.scale[i] + smallest(dtype));
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double a = values[i], b = expected.values[i];
    bool ok;
    if (std::isnan(b)) ok = std::isnan(a);
    else if (std::isinf(b) || !is_floating(dtype)) ok = a == b;
    else if (std::isinf(a))  // infinity is allowed if the expected value is out of the dtype's range
      ok = std::signbit(a) == std::signbit(b) && std::abs(b) + tolerance(i) > largest(dtype);
    else ok = std::abs(a - b) <= tolerance(i);
    if (!ok && wrong++ == 0) first = i;
  }
  if (wrong == 0) return;
  std::string text = what + " at " + position(static_cast<std::int64_t>(first), expected.sizes) + ": got " +
                     text_of(values[first]) + ", expected " + text_of(expected.values[first]);
  if (is_floating(dtype)) text += " within " + text_of(tolerance(first));
  if (wrong > 1) text += "; " + std::to_string(wrong) + " of " + std::to_string(values.size()) + " are wrong";
  failures.push_back(std::move(text));
}

Failures run_case(const std::shared_ptr<const Golden>& golden, const OpInfo& info, const OpFunction& fn,
                  const std::set<Kind>& skip) {
  CaseRun run(golden, info, fn);
  const std::vector<DType> dtypes = golden->run_dtypes(info.dtypes);
  const bool gradients = golden->generic() && golden->has_grads;
  if (!skip.count(Kind::golden)) {
    for (DType dtype : dtypes) {
      run.values(dtype, Layout::dense);
      if (!gradients) continue;
      run.gradients(dtype, Layout::dense, -1, false);
      run.gradients(dtype, Layout::dense, -1, true);
    }
    for (std::size_t i = 0; gradients && i < golden->inputs.size(); ++i)
      if (run.wants_gradient(i) && golden->inputs.size() > 1)
        run.gradients(DType::f64, Layout::dense, static_cast<int>(i), false);
  }
  if (info.differentiable && golden->generic() && !golden->tagged("no_gradcheck") &&
      !skip.count(Kind::gradcheck)) {
    run.gradcheck();
    if (!info.twice) run.refuses_create_graph();
    else if (!skip.count(Kind::gradgradcheck) && !golden->tagged("no_gradgradcheck")) run.gradgradcheck();
  }
  if (!skip.count(Kind::strided) && !golden->tagged("no_strided") && !golden->inputs.empty()) {
    for (Layout layout : kLayouts) {
      if (layout == Layout::dense) continue;
      for (DType dtype : dtypes) {
        if (gradients) run.gradients(dtype, layout, -1, false);
        else run.values(dtype, layout);
      }
    }
    run.expanded();
  }
  return std::move(run.failures);
}

Failures run_case_on(Device device, const std::shared_ptr<const Golden>& golden, const OpInfo& info,
                     const OpFunction& fn, const std::set<Kind>& skip, MissingRuns& missing) {
  CaseRun run(golden, info, fn, device);
  const bool gradients = golden->generic() && golden->has_grads;
  const bool strided = !skip.count(Kind::strided) && !golden->tagged("no_strided") && !golden->inputs.empty();
  for (DType dtype : golden->run_dtypes(info.dtypes)) {
    run.values(dtype, Layout::dense);
    if (golden->generic() && dtype != DType::f32 && dtype != DType::bf16) {
      if (gradients && dtype == DType::f16) run.gradients(dtype, Layout::dense, -1, false);
      continue;
    }
    for (Layout layout : kLayouts) {
      if (layout != Layout::dense && !strided) continue;
      if (gradients) run.gradients(dtype, layout, -1, false);
      else if (layout != Layout::dense) run.values(dtype, layout);
    }
    if (gradients) run.gradients(dtype, Layout::dense, -1, true);
    if (strided && (!golden->generic() || dtype == DType::f32)) run.expanded(dtype);
  }
  for (const auto& [kernel, runs] : run.missing) missing[kernel] += runs;
  return std::move(run.failures);
}

Failures run_refusals(const GoldenCases& cases, const OpInfo& info, const OpFunction& fn) {
  const auto usable = std::find_if(cases.begin(), cases.end(), [](const auto& g) {
    return g->generic() && !g->tagged("empty") && !g->tagged("extreme");
  });
  Failures failures;
  if (usable == cases.end()) return failures;
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    if (contains(info.dtypes, dtype) || !contains(kAllDTypes, dtype)) continue;
    std::vector<Tensor> inputs;
    for (const auto& input : (*usable)->inputs) {
      if (!input) {
        inputs.emplace_back();
        continue;
      }
      Values v = *input;
      // u8 and bool can hold only nonnegative integers.
      for (double& x : v.values) x = std::floor(std::abs(x));
      inputs.push_back(make(v, v.dtype == DType::f64 ? dtype : v.dtype));
    }
    const std::string label =
        (*usable)->op + " with " + dtype_name(dtype) + ", which it says it does not take";
    try {
      fn(OpCase(*usable, inputs));
      failures.push_back(label + ": was accepted");
    } catch (const TypeError&) {
    } catch (const std::exception& e) {
      failures.push_back(label + ": expected a TypeError, got: " + e.what());
    }
  }
  return failures;
}

}  // namespace tapestry::test
