// Module::summary registers hooks on every module, calls the model once, and prints what the hooks saw.
#include <algorithm>
#include <cstdio>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

namespace {

std::string with_commas(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string bytes_text(std::int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

// "[2, 10]", or "[2, 10] bfloat16". f32 goes without saying.
std::string shapes_text(const std::vector<Tensor>& tensors) {
  std::string out;
  for (const Tensor& t : tensors)
    if (t.defined())
      out += (out.empty() ? "" : ", ") + t.sizes().str() +
             (t.dtype() == DType::f32 ? "" : concat({" ", t.dtype()}));
  return out;
}

// ", bfloat16", or with the numbers of elements ", bfloat16 163, float32 32"; nothing for f32 alone.
std::string dtypes_text(const std::map<DType, std::int64_t>& elements) {
  if (elements.empty() || (elements.size() == 1 && elements.contains(DType::f32))) return {};
  std::map<std::string, std::int64_t> by_name;
  for (const auto& [dtype, count] : elements) by_name[dtype_name(dtype)] = count;
  std::string out;
  for (const auto& [name, count] : by_name)
    out += ", " + name + (by_name.size() > 1 ? " " + with_commas(count) : "");
  return out;
}

// Restores the modes that a summary changed, also after an exception.
struct Restore {
  std::vector<std::pair<Module*, bool>> training;
  std::vector<HookHandle> hooks;
  ~Restore() {
    for (HookHandle& h : hooks) h.remove();
    try {
      // Parents come first, because train() also sets the children's mode.
      for (auto& [module, on] : training)
        if (module->is_training() != on) module->train(on);
    } catch (const Error&) {  // modules are nested too deep for train(), and eval() has thrown the same error
    }
  }
};

struct Row {
  std::string name, output, parameters;
};

// Names are indented, so the table is quadratic in the depth. Deeper modules share one line, as in str().
constexpr std::size_t kMaxDepth = 1'000;

}  // namespace

std::string Module::summary(const std::function<void()>& run) {
  struct Place {
    Module* module;
    std::size_t depth;
    std::string name;  // without the path, which would make the list quadratic in the depth
  };
  std::vector<Place> all;
  {
    std::vector<Place> waiting{{this, 0, {}}};
    std::unordered_set<const Module*> seen{this};
    while (!waiting.empty()) {
      all.push_back(std::move(waiting.back()));
      waiting.pop_back();
      const Place& parent = all.back();
      const auto& children = parent.module->children_;
      for (auto c = children.rbegin(); c != children.rend(); ++c)
        waiting.push_back({c->module.get(), parent.depth + 1, c->name});
      // The last one is next. A shared module that was already listed is not listed again.
      while (!waiting.empty() && !seen.insert(waiting.back().module).second) waiting.pop_back();
    }
  }
  std::unordered_map<const Module*, std::string> shapes;
  std::int64_t activation_bytes = 0;
  if (run) {
    const NoGradGuard no_grad;
    Restore restore;
    for (const auto& [module, depth, name] : all) {
      restore.training.emplace_back(module, module->is_training());
      restore.hooks.push_back(module->register_forward_hook(
          [&](Module& m, const std::vector<Tensor>&, std::vector<Tensor>& outputs) {
            if (m.children_.empty())
              for (const Tensor& t : outputs)
                if (t.defined()) activation_bytes += static_cast<std::int64_t>(t.nbytes());
            shapes.emplace(&m, shapes_text(outputs));  // the shapes of the first call
          }));
    }
    eval();
    run();
  }

  std::unordered_set<const void*> counted;
  std::vector<Row> rows;
  for (const auto& [module, depth, name] : all) {
    std::int64_t own = 0;
    for (const ParamEntry& p : module->params_)
      if (p.slot.defined() && counted.insert(p.slot.id()).second) own += whole_sizes(p.slot).numel();
    if (depth > kMaxDepth) {
      if (rows.back().name.back() != '.') rows.push_back({std::string(2 * depth, ' ') + "...", "-", "-"});
      continue;
    }
    const auto shape = shapes.find(module);
    rows.push_back({std::string(2 * depth, ' ') + (name.empty() ? "" : name + ": ") + module->type_name(),
                    shape == shapes.end() ? "-" : shape->second, own > 0 ? with_commas(own) : "-"});
  }
  std::int64_t total = 0, trained = 0, parameter_bytes = 0, full_bytes = 0, buffer_bytes = 0;
  std::map<DType, std::int64_t> dtypes;
  for (const Parameter& p : parameters()) {
    const Tensor& stored = stored_tensor(p, current_context().replica);
    const std::int64_t numel = whole_sizes(p).numel();
    total += numel;
    dtypes[stored.dtype()] += numel;
    trained += stored.requires_grad() ? numel : 0;
    parameter_bytes += static_cast<std::int64_t>(stored.nbytes());
    full_bytes += numel * static_cast<std::int64_t>(dtype_size(stored.dtype()));
  }
  for (const Buffer& b : buffers()) buffer_bytes += static_cast<std::int64_t>(b->nbytes());

  const Row head{"Layer", "Output shape", "Parameters"};
  std::size_t first = head.name.size(), second = head.output.size(), third = head.parameters.size();
  for (const Row& r : rows) {
    first = std::max(first, r.name.size());
    second = std::max(second, r.output.size());
    third = std::max(third, r.parameters.size());
  }
  std::string out;
  const auto line = [&](const Row& r) {
    out += r.name + std::string(first - r.name.size() + 2, ' ') + r.output +
           std::string(second - r.output.size() + 2 + third - r.parameters.size(), ' ') + r.parameters + "\n";
  };
  const std::string rule(first + second + third + 4, '-');
  line(head);
  out += rule + "\n";
  for (const Row& r : rows) line(r);
  out += rule + "\n";
  out += "Parameters: " + with_commas(total) + " (" + with_commas(trained) + " trained)" +
         dtypes_text(dtypes) + "\n";
  out += "Memory: parameters " + bytes_text(parameter_bytes);
  if (parameter_bytes != full_bytes) out += " (this rank's shards of " + bytes_text(full_bytes) + ")";
  out += ", buffers " + bytes_text(buffer_bytes);
  if (run) out += ", outputs of layers " + bytes_text(activation_bytes);
  return out + "\n";
}

std::string Module::summary(const Tensor& input) {
  tapestry::detail::check_defined("summary", input);
  return summary([&] { (*this)(input); });
}

std::string Module::summary(const Shape& input_shape, DType dtype) {
  const auto slots = parameters();
  const Device device = slots.empty() ? current_context().device : slots[0]->device();
  return summary(zeros(input_shape, {dtype, device}));
}

std::string Module::summary() { return summary(std::function<void()>()); }

}  // namespace tapestry::nn
