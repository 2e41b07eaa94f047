#include "tapestry/distributed/tensor/tensor_parallel.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/distributed/tensor/internal/stream.h"
#include "tapestry/distributed/tensor/vocabulary.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/layers/attention.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/recurrent.h"
#include "tapestry/nn/materialize.h"
#include "tapestry/nn/models/language_model.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kTensorParallel = "tensor_parallel";

using Style = TensorStyle;
using StreamRef = std::shared_ptr<ResidualStream>;

const char* name_of(Style style) {
  constexpr const char* kNames[] = {"column",           "gathered_column", "row",       "vocabulary",
                                    "embedding_column", "input",           "attention", "inside",
                                    "residual",         "enter",           "head"};
  return kNames[static_cast<int>(style)];
}

// A name between dots, with `*` for any characters.
bool matches_name(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return matches_name(pattern.substr(1), name) || (!name.empty() && matches_name(pattern, name.substr(1)));
  return !name.empty() && pattern[0] == name[0] && matches_name(pattern.substr(1), name.substr(1));
}
bool matches(std::string_view pattern, std::string_view path) {
  const std::size_t end = pattern.find('.'), here = path.find('.');
  if (!matches_name(pattern.substr(0, end), path.substr(0, here)) ||
      (end == pattern.npos) != (here == path.npos))
    return false;
  return end == pattern.npos || matches(pattern.substr(end + 1), path.substr(here + 1));
}

class AxisRanks final : public nn::RankGroup {
 public:
  explicit AxisRanks(Axis axis) : axis_(std::move(axis)) {}
  int size() const override { return axis_.size(); }
  int rank(int) const override { return axis_.coordinate(); }
  const void* id(int) const override { return axis_.group().get(); }
  void sum(int, const Tensor& values) const override {
    axis_.group()->all_reduce(values, ReduceOp::sum, "tensor_parallel: sum over the ranks").wait();
  }

 private:
  const Axis axis_;
};

// How the ranks divide a dimension of a parameter.
struct Division {
  int dim = nn::Cut::kCopied;
  int owners = 1;  // ranks with different parts; a divisor of the axis's size
  friend bool operator==(const Division&, const Division&) = default;
};

struct Target {
  std::string path;
  nn::Module* module;
  const TensorRule* rule;
};

std::int64_t whole_size(const nn::Parameter& p, int dim) { return nn::whole_sizes(p)[dim]; }

// The ranks that have different parts of `size` elements in units. Returns what is wrong, or an empty text.
std::string divide(std::int64_t size, std::int64_t unit, int ranks, const char* what, int& owners) {
  if (unit < 1 || size % unit != 0)
    return concat({"has ", size, " ", what, ", which are no units of ", unit});
  const std::int64_t units = size / unit;
  owners = ranks;
  if (unit == 1) {
    if (const std::int64_t each = (units + ranks - 1) / ranks; each * (ranks - 1) >= units)
      return concat({"has ", size, " ", what, ", of which the last of ", ranks,
                     " ranks would have none; use fewer ranks"});
  } else if (units >= ranks ? units % ranks != 0 : ranks % units != 0) {
    return concat({"has ", units, " units of ", unit, " ", what, ", which ", ranks,
                   " ranks cannot divide equally; choose a number of ranks that divides them"});
  } else if (units < ranks) {
    owners = static_cast<int>(units);
  }
  return {};
}

// Axes of the ranks that share units, if there are fewer units than ranks.
struct SharedUnits {
  Axis owners, copies;
};

class Divider {
 public:
  Divider(nn::Module& module, const Axis& axis, const TensorPlan& plan, const TensorParallelOptions& options)
      : module_(module), axis_(axis), plan_(plan), options_(options) {
    for (const auto& [path, m] : module.named_modules())
      for (const TensorRule& rule : plan.rules)
        if (matches(rule.path, path)) {
          targets_.push_back({path, m, &rule});
          break;
        }
  }

  StreamRef run() {
    check(!axis_.over_devices(), "[", kTensorParallel, "] the axis ", axis_.name(),
          " is over devices of one process; use one over ranks");
    std::string wrong;
    try {
      wrong = problem();
    } catch (const std::exception& e) {  // the other ranks wait in the comparison
      wrong = e.what();
    }
    check_same_model(*axis_.group(), kTensorParallel, wrong.empty() ? describe() : "error: " + wrong + "\n");
    check(wrong.empty(), "[", kTensorParallel, "] ", wrong);
    const auto stream = std::make_shared<ResidualStream>(axis_, options_);
    if (axis_.size() == 1) return stream;
    for (const int units : shared_) {
      Mesh mesh(axis_.group(), {{"owners", units}, {"copies", axis_.size() / units}}, {.host = "tensor"});
      shared_units_.emplace(units, SharedUnits{mesh["owners"], mesh["copies"]});
    }
    cut_all();
    if (stream->sequence)
      module_.register_forward_scope([stream](nn::Module&) { return stream->call(); });
    for (const Target& t : targets_) install(t, stream);
    return stream;
  }

 private:
  const TensorRule* rule_of(const nn::Module* m) const {
    for (const Target& t : targets_)
      if (t.module == m) return t.rule;
    return nullptr;
  }
  // The path of the nearest module around `path` with the style `input`, if any.
  bool is_in_region(const std::string& path) const {
    return std::any_of(targets_.begin(), targets_.end(), [&](const Target& t) {
      return (t.rule->style == Style::input || t.rule->style == Style::attention) &&
             path.starts_with(t.path.empty() ? "" : t.path + ".");
    });
  }
  void set(const nn::Parameter& p, int dim, int owners = 0) {
    if (!p.defined()) return;
    const Division how{dim, owners == 0 ? axis_.size() : owners};
    const auto [found, is_new] = divisions_.emplace(p.id(), how);
    if (!is_new && found->second != how) conflicts_ = true;
    if (dim >= 0 && how.owners < axis_.size()) shared_.insert(how.owners);
  }
  bool is_divided(const nn::Parameter& p) const {
    const auto found = divisions_.find(p.id());
    return found != divisions_.end() && found->second.dim >= 0;
  }

  // What is wrong on this rank. Notes how each parameter is divided.
  std::string problem() {
    for (const TensorRule& rule : plan_.rules)
      if (std::none_of(targets_.begin(), targets_.end(), [&](const Target& t) { return t.rule == &rule; }))
        return concat({"no module has the path \"", rule.path,
                       "\", or an earlier rule matches it; correct the rule for ", name_of(rule.style)});
    for (const Target& t : targets_)
      if (std::string why = problem_of(t); !why.empty()) return concat({place(t.path, *t.module), " ", why});
    if (conflicts_)
      return "modules that share a parameter would divide it in different ways; correct their rules";
    for (const auto& [path, m] : module_.named_modules()) {
      const TensorRule* const rule = rule_of(m);
      const bool divides = rule && rule->style <= Style::embedding_column;
      const auto* const language = dynamic_cast<const nn::LanguageModel*>(m);
      if (!divides)
        for (const auto& [name, slot] : m->named_parameters())
          if (name.find('.') == std::string::npos && is_divided(slot))
            return concat(
                {"'", name, "' of ", place(path, *m),
                 " is divided by another module, and it would compute with a part; add a rule for it"});
      if (language && !(rule && rule->style == Style::head) && language->output_weight().defined() &&
          is_divided(language->output_weight()))
        return concat({"the head of ", place(path, *m),
                       " would compute with a part of its weight; add a rule of TensorStyle::head for it"});
      if (!has_own_parameters(*m)) continue;
      const bool in_region = is_in_region(path);
      if (in_region && rule && !divides)
        return concat({place(path, *m),
                       " has parameters inside a divided region, where a rank's gradient of a copy covers its "
                       "own features alone, and ",
                       name_of(rule->style),
                       " divides none; choose a style that divides them, or keep the module outside"});
      if (rule) continue;
      if (in_region || options_.sequence)
        return concat({place(path, *m), " has parameters ",
                       in_region ? "inside a divided region" : "on a residual stream that ranks divide",
                       ", and no rule; add one for it"});
    }
    std::map<const Storage*, std::pair<std::string, const void*>> on_meta;
    for (const auto& [name, slot] : module_.named_parameters()) {
      if (slot.is_computed())
        return concat({"'", name, "' is computed from other parameters; divide a plain one"});
      if (slot.replicas() != 1)
        return concat({"'", name, "' has ", slot.replicas(), " replicas; divide the model before"});
      if (const auto& layout = slot.layout())
        for (const nn::Cut& cut : layout->cuts()) {
          if (cut.dim != nn::Cut::kHeld)
            return concat(
                {"'", name, "' is divided already; call tensor_parallel() once, and before fully_shard()"});
          if (options_.sequence)
            return concat({"'", name,
                           "' belongs to a stage of a pipeline, and stages do not pass on a stream that "
                           "ranks divide; leave out sequence"});
        }
      if (!slot.layout() && slot.tensor().device().is_meta()) {
        if (std::string why = autograd::why_not_materialized(slot.tensor()); !why.empty())
          return concat({"'", name, "' is on the meta device, and ", why});
        const auto& [first, id] =
            on_meta.try_emplace(slot.tensor().storage().get(), name, slot.id()).first->second;
        if (id != slot.id())
          return concat({"'", first, "' and '", name,
                         "' are on the meta device and share memory, which their parts cannot; tie weights "
                         "by assigning one slot to the other"});
      }
    }
    return {};
  }
  static std::string place(const std::string& path, const nn::Module& m) {
    return m.type_name() + (path.empty() ? "" : " " + path);
  }
  static bool has_own_parameters(const nn::Module& m) {
    for (const auto& [name, slot] : m.named_parameters())
      if (name.find('.') == std::string::npos) return true;
    return false;
  }

  std::string problem_of(const Target& t) {
    const Style style = t.rule->style;
    int owners = 0;
    if (style > Style::row && (t.rule->unit != 1 || t.rule->blocks != 1))
      return concat({"has a unit or blocks in its rule, for which ", name_of(style),
                     " has no use; leave them out"});
    const bool is_recurrent =
        dynamic_cast<nn::RecurrentLayer*>(t.module) || dynamic_cast<nn::RecurrentCellLayer*>(t.module);
    if (is_recurrent && style != Style::residual && style != Style::enter)
      return concat(
          {"is recurrent: each step needs all features of the step before, so ranks would exchange them "
           "in every step; leave it whole, and divide other layers"});
    switch (style) {
      case Style::column:
      case Style::gathered_column:
      case Style::row: {
        auto* const layer = dynamic_cast<nn::Linear*>(t.module);
        if (!layer) return concat({"is no Linear, which ", name_of(style), " divides"});
        if (!layer->weight.defined()) return "has a packed weight, which cannot be divided; unpack it";
        if (!layer->children().empty()) return "has an adapter; merge it, or add it to other layers";
        if (layer->divided_forward) return "is divided already";
        const bool is_row = style == Style::row;
        if (t.rule->blocks != 1) return problem_of_blocks(*layer, *t.rule);
        if (std::string why = divide(whole_size(layer->weight, is_row), t.rule->unit, axis_.size(),
                                     is_row ? "inputs" : "outputs", owners);
            !why.empty())
          return why;
        if (style != Style::column && owners < axis_.size())
          return concat({"is a ", name_of(style), " layer, whose units cannot be shared"});
        set(layer->weight, is_row ? 1 : 0, owners);
        set(layer->bias, is_row ? nn::Cut::kCopied : 0, owners);
        return {};
      }
      case Style::vocabulary:
      case Style::embedding_column: {
        auto* const layer = dynamic_cast<nn::Embedding*>(t.module);
        if (!layer) return concat({"is no Embedding, which ", name_of(style), " divides"});
        if (!layer->weight.defined()) return "has a packed weight, which cannot be divided; unpack it";
        if (layer->divided_forward) return "is divided already";
        if (std::string why = layer->why_not_divided(); !why.empty()) return "has " + why;
        if (layer->options.scale_grad_by_freq && style == Style::vocabulary)
          return "has scale_grad_by_freq, which counts the lookups of all words; divide it by columns";
        const bool by_words = style == Style::vocabulary;
        if (std::string why = divide(whole_size(layer->weight, !by_words), 1, axis_.size(),
                                     by_words ? "words" : "features", owners);
            !why.empty())
          return why;
        set(layer->weight, by_words ? 0 : 1, owners);
        return {};
      }
      case Style::head: {
        auto* const model = dynamic_cast<nn::LanguageModel*>(t.module);
        if (!model) return "is no LanguageModel, whose head is divided";
        if (!model->output_weight().defined()) return "has a packed head, which cannot be divided; unpack it";
        if (std::string why = divide(whole_size(model->output_weight(), 0), 1, axis_.size(), "words", owners);
            !why.empty())
          return why;
        set(model->output_weight(), 0, owners);
        return {};
      }
      case Style::attention: {
        auto* const layer = dynamic_cast<nn::MultiheadAttention*>(t.module);
        if (!layer) return "is no MultiheadAttention, whose heads are divided";
        if (layer->divided_heads) return "is divided already";
        if (!layer->in_proj_weight.defined() || layer->options.add_bias_kv || layer->options.add_zero_attn)
          return "has keys or values of other widths, or added ones, for which there is no division";
        if (const std::int64_t heads = layer->options.num_heads; heads % axis_.size() != 0)
          return concat({"has ", heads, " heads, which ", axis_.size(), " ranks cannot divide"});
        return {};
      }
      case Style::inside:
        return has_own_parameters(*t.module) ? "has parameters, and `inside` is for modules without" : "";
      case Style::input:
      case Style::residual:
      case Style::enter:
        return {};
    }
    return {};
  }

  std::string problem_of_blocks(const nn::Linear& layer, const TensorRule& rule) {
    const std::int64_t outputs = whole_size(layer.weight, 0);
    if (rule.style != Style::column) return "is no column layer, whose outputs can be blocks";
    if (rule.blocks < 1 || outputs % rule.blocks != 0)
      return concat({"has ", outputs, " outputs, which are no ", rule.blocks, " blocks"});
    int owners = 0;
    if (std::string why =
            divide(outputs / rule.blocks, rule.unit, axis_.size(), "outputs in a block", owners);
        !why.empty())
      return why;
    if (owners < axis_.size()) return "has blocks, whose units cannot be shared";
    for (const nn::Parameter& p : {layer.weight, layer.bias})
      if (p.defined()) set(p, nn::Cut::kCopied);
    return {};
  }

  std::string describe() const {
    std::string text = concat({"sequence ", options_.sequence, " ", options_.sequence_dim, "\n"});
    for (const Target& t : targets_)
      text += concat(
          {"rule ", t.path, " ", name_of(t.rule->style), " ", t.rule->unit, " ", t.rule->blocks, "\n"});
    for (const auto& [name, slot] : module_.named_parameters())
      text += concat({"parameter ", name, " ", slot.dtype(), " ", nn::whole_sizes(slot),
                      slot.requires_grad() ? "" : " frozen", "\n"});
    for (const auto& [name, slot] : module_.named_buffers())
      text += concat({"buffer ", name, " ", slot.dtype(), " ", slot.sizes(), "\n"});
    return text;
  }

  Device device() const {
    const Context& context = current_context();
    return options_.device.value_or(context.device.is_meta() ? context.real_device : context.device);
  }
  // Gives the slot memory and the first rank's values.
  void fill(const std::string& name, const nn::TensorSlot& slot) const {
    nn::materialize(nn::NamedSlots{{name, slot}}, device());
    broadcast_values(*axis_.group(), {{name, slot.tensor()}}, "tensor_parallel: values");
  }

  void cut_all() {
    const auto all = std::make_shared<AxisRanks>(axis_);
    std::map<int, std::pair<std::shared_ptr<AxisRanks>, std::shared_ptr<AxisRanks>>> shared;
    for (const auto& [units, axes] : shared_units_)
      shared[units] = {std::make_shared<AxisRanks>(axes.owners), std::make_shared<AxisRanks>(axes.copies)};
    for (auto [name, slot] : module_.named_parameters()) {
      fill(name, slot);
      const auto found = divisions_.find(slot.id());
      const Division how = found == divisions_.end() ? Division{} : found->second;
      if (how.dim < 0) {
        cut(slot, {{all, nn::Cut::kCopied}});
      } else if (how.owners == axis_.size()) {
        cut(slot, {{all, how.dim}});
      } else {
        const auto& [owners, copies] = shared.at(how.owners);
        cut(slot, {{owners, how.dim}, {copies, nn::Cut::kCopied}});
      }
    }
    for (const auto& [name, slot] : module_.named_buffers()) fill(name, slot);
  }
  static void cut(nn::Parameter& slot, const std::vector<nn::Cut>& more) {
    const NoGradGuard no_grad;
    const Tensor now = slot.tensor();
    std::vector<nn::Cut> cuts = slot.layout() ? slot.layout()->cuts() : std::vector<nn::Cut>();
    nn::Region box = nn::Region::whole(now.sizes());
    bool divides = false;
    for (const nn::Cut& c : more) {
      if (c.dim >= 0) box = box.part(c.dim, c.group->rank(0), c.group->size()), divides = true;
      cuts.push_back(c);
    }
    Tensor stored = now.detach();
    // The old layout owns marks of its tensor's memory, and removes them when it is destroyed.
    if (divides) stored = box.of(stored).clone();
    else if (slot.layout()) stored = stored.clone();
    if (is_floating(now.dtype())) stored.set_requires_grad(now.requires_grad());
    const Shape whole = nn::whole_sizes(slot);
    slot.set_layout(std::make_shared<nn::Layout>(whole, std::move(cuts), std::vector{stored}));
  }

  void install(const Target& t, const StreamRef& stream) const {
    switch (t.rule->style) {
      case Style::column:
      case Style::gathered_column: {
        auto& layer = dynamic_cast<nn::Linear&>(*t.module);
        const std::int64_t outputs = whole_size(layer.weight, 0);
        const bool enters = !is_in_region(t.path), gathers = t.rule->style == Style::gathered_column;
        if (t.rule->blocks > 1) return install_blocks(layer, stream, enters, t.rule->blocks);
        const int owners = divisions_.at(layer.weight.id()).owners;
        std::optional<Axis> copies;
        if (owners < axis_.size()) copies = shared_units_.at(owners).copies;
        layer.divided_forward = [&layer, stream, enters, gathers, outputs, copies](const Tensor& x) {
          // Ranks with copies of one unit use it for different heads, and so their gradients are added.
          const auto own = [&](const nn::Parameter& p) {
            return copies && p.defined()
                       ? convert(p, *copies, Placement::invariant(), Placement::replicated())
                       : Tensor(p);
          };
          const Tensor y = linear(enters ? stream->into_region(x) : x, own(layer.weight), own(layer.bias));
          return gathers ? stream->gathered(y, outputs) : y;
        };
        return;
      }
      case Style::row: {
        auto& layer = dynamic_cast<nn::Linear&>(*t.module);
        layer.divided_forward = [&layer, stream](const Tensor& x) {
          check(x.dim() > 0 && x.size(-1) == layer.weight->size(1), "[linear] this rank has ",
                layer.weight->size(1), " inputs of a row layer, but got ", x.sizes(),
                "; put it behind a column layer with equal features");
          const Tensor y = stream->from_parts(linear(x, layer.weight));
          return layer.bias.defined() ? y + stream->on_stream(layer.bias) : y;
        };
        return;
      }
      case Style::vocabulary: {
        auto& layer = dynamic_cast<nn::Embedding&>(*t.module);
        const std::int64_t words = whole_size(layer.weight, 0);
        layer.divided_forward = [&layer, stream, words](const Tensor& indices) {
          return stream->from_parts(vocab_parallel_embedding(layer.weight, indices, stream->axis, words,
                                                             layer.options.padding_idx));
        };
        return;
      }
      case Style::embedding_column: {
        auto& layer = dynamic_cast<nn::Embedding&>(*t.module);
        const std::int64_t features = whole_size(layer.weight, 1);
        layer.divided_forward = [&layer, stream, features](const Tensor& indices) {
          const Tensor part =
              embedding(layer.weight, indices,
                        EmbeddingParams{.padding_idx = layer.options.padding_idx,
                                        .scale_grad_by_freq = layer.options.scale_grad_by_freq});
          return stream->from_invariant(stream->gathered(part, features));
        };
        return;
      }
      case Style::head: {
        auto& model = dynamic_cast<nn::LanguageModel&>(*t.module);
        const std::int64_t words = whole_size(model.output_weight(), 0);
        model.divided_head = [&model, stream, words](const Tensor& features, const nn::TokenContext& how) {
          Tensor x = stream->into_region(features);
          if (how.targets.defined())
            return vocab_parallel_linear_cross_entropy(x, model.output_weight(), how.targets, stream->axis,
                                                       words);
          if (how.last) x = x.narrow(1, x.size(1) - 1, 1);
          return stream->gathered(linear(x, model.output_weight()), words);
        };
        return;
      }
      case Style::inside:
        return draw_own_numbers(*t.module, stream);
      case Style::attention: {
        auto& layer = dynamic_cast<nn::MultiheadAttention&>(*t.module);
        const std::int64_t count = layer.options.num_heads / axis_.size();
        layer.divided_heads = {axis_.coordinate() * count, count,
                               [stream](const Tensor& fused) { return rows_of_blocks(fused, stream, 3); }};
        return enter_region(*t.module, stream);
      }
      case Style::input:
        return enter_region(*t.module, stream);
      case Style::residual:
        if (has_own_parameters(*t.module)) {
          if (stream->sequence) convert_parameters_in_calls(*t.module, stream);
        } else if (stream->sequence) {
          draw_own_numbers(*t.module, stream);
        } else {
          draw_common_numbers(*t.module);
        }
        return;
      case Style::enter:
        if (stream->sequence)
          t.module->register_forward_hook(
              [stream](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& outputs) {
                for (Tensor& y : outputs) y = stream->from_invariant(y);
              });
        return;
    }
  }

  // The inputs enter the region once for all layers inside. Equal inputs of an attention stay one tensor.
  static void enter_region(nn::Module& module, const StreamRef& stream) {
    module.register_forward_pre_hook([stream](nn::Module&, std::vector<Tensor>& inputs) {
      const std::vector<Tensor> before = inputs;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!before[i].defined() || !is_floating(before[i].dtype())) continue;
        std::size_t first = 0;
        while (!before[first].is_same(before[i])) ++first;
        inputs[i] = first < i ? inputs[first] : stream->into_region(before[i]);
      }
    });
    draw_own_numbers(module, stream);
  }
  // This rank's rows of each of the blocks of a parameter that each rank has whole.
  static Tensor rows_of_blocks(const Tensor& p, const StreamRef& stream, int blocks) {
    const Tensor all = stream->replicated(p);
    const std::int64_t rows = all.size(0) / blocks;
    const nn::Region part = nn::Region::whole({rows}).part(0, stream->axis.coordinate(), stream->axis.size());
    return all.unflatten(0, {blocks, rows}).narrow(1, part.first[0], part.sizes[0]).flatten(0, 1);
  }
  static void install_blocks(nn::Linear& layer, const StreamRef& stream, bool enters, int blocks) {
    layer.divided_forward = [&layer, stream, enters, blocks](const Tensor& x) {
      const auto own = [&](const nn::Parameter& p) {
        return p.defined() ? rows_of_blocks(p, stream, blocks) : Tensor();
      };
      return linear(enters ? stream->into_region(x) : x, own(layer.weight), own(layer.bias));
    };
  }

  nn::Module& module_;
  const Axis& axis_;
  const TensorPlan& plan_;
  const TensorParallelOptions& options_;
  std::vector<Target> targets_;
  std::map<const void*, Division> divisions_;  // by slot; others are copied
  bool conflicts_ = false;
  std::set<int> shared_;                     // numbers of units that are fewer than the ranks
  std::map<int, SharedUnits> shared_units_;  // the same, with their axes
};

}  // namespace

std::int64_t TensorParallel::bytes_sent() const { return stream_->bytes_sent; }
void TensorParallel::reset_report() const { stream_->bytes_sent = 0; }

TensorParallel tensor_parallel(nn::Module& module, const Axis& axis, const TensorPlan& plan,
                               const TensorParallelOptions& options) {
  return TensorParallel(Divider(module, axis, plan, options).run());
}

}  // namespace tapestry::distributed
