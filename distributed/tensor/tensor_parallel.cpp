#include "tapestry/distributed/tensor/tensor_parallel.h"

#include <algorithm>
#include <exception>
#include <functional>
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
#include "tapestry/distributed/common/internal/cut_parameter.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/distributed/tensor/internal/layers.h"
#include "tapestry/distributed/tensor/internal/stream.h"
#include "tapestry/distributed/tensor/internal/units.h"
#include "tapestry/distributed/tensor/vocabulary.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/layers/attention.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/recurrent.h"
#include "tapestry/nn/materialize.h"
#include "tapestry/nn/models/language_model.h"
#include "tapestry/nn/models/lora.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kTensorParallel = "tensor_parallel";
constexpr const char* kDividedAlready = "is divided already; call tensor_parallel() once";

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

// How the ranks divide a dimension of a parameter.
struct LayerDivision {
  int dim = nn::Cut::kCopied;
  int owners = 1;  // ranks with different parts; a divisor of the axis's size
  std::int64_t unit = 1;
  int blocks = 1;
  friend bool operator==(const LayerDivision&, const LayerDivision&) = default;
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
    return concat({"has ", size, " ", what, ", which are no units of ", unit, "; correct unit in the rule"});
  const std::int64_t units = size / unit;
  owners = ranks;
  if (unit > 1 && units > 0 && units < ranks) {
    if (ranks % units != 0)
      return concat({"has ", units, " units of ", unit, " ", what, ", which ", ranks,
                     " ranks cannot share; choose a number of ranks that is a multiple of the units, or no "
                     "more than them"});
    owners = static_cast<int>(units);
  } else if (!all_have_some(units, ranks)) {
    return concat({"has ", units, unit > 1 ? concat({" units of ", unit}) : std::string(), " ", what,
                   ", of which the last of ", ranks, " ranks would have none; use fewer ranks"});
  }
  return {};
}

struct SharedUnits {
  Axis owners, copies;  // of the ranks that share units, if there are fewer units than ranks
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
    if (axis_.size() == 1) {
      nn::materialize(module_, device());
      return stream;
    }
    for (const int units : shared_) {
      Mesh mesh(axis_.group(), {{"owners", units}, {"copies", axis_.size() / units}}, {.host = "tensor"});
      shared_units_.emplace(units, SharedUnits{mesh["owners"], mesh["copies"]});
    }
    cut_all();
    if (stream->sequence) module_.register_forward_scope([stream](nn::Module&) { return stream->call(); });
    for (const Target& t : targets_) install(t, stream);
    if (checks_placement()) {
      place_parameters(module_, axis_);
      // fully_shard() and Module::to() replace tensors.
      module_.register_forward_scope([axis = axis_](nn::Module& m) -> std::shared_ptr<void> {
        place_parameters(m, axis);
        return nullptr;
      });
    }
    return stream;
  }

 private:
  const TensorRule* rule_of(const nn::Module* m) const {
    for (const Target& t : targets_)
      if (t.module == m) return t.rule;
    return nullptr;
  }
  // True if a module around `path` has the style `input` or `attention`.
  bool is_in_region(const std::string& path) const {
    return std::any_of(targets_.begin(), targets_.end(), [&](const Target& t) {
      return (t.rule->style == Style::input || t.rule->style == Style::attention) && is_inside(path, t.path);
    });
  }
  static bool is_inside(const std::string& path, const std::string& outer) {
    return path.starts_with(outer.empty() ? "" : outer + ".");
  }
  void set(const nn::Parameter& p, const LayerDivision& how) {
    if (!p.defined()) return;
    const auto [found, is_new] = divisions_.emplace(p.id(), how);
    if (!is_new && found->second != how) conflicts_ = true;
    if (how.dim >= 0 && how.owners < axis_.size()) shared_.insert(how.owners);
  }
  // Divides the weight, the bias and the adapter of a layer by outputs or by inputs.
  void set(const nn::Linear& layer, bool by_inputs, LayerDivision how) {
    const LayerDivision copied{};
    nn::LoraAdapter* const adapter = adapter_of(layer);
    set(layer.weight, how);
    set(layer.bias, by_inputs ? copied : how);
    if (!adapter) return;
    set(adapter->A, by_inputs ? how : copied);
    set(adapter->B, by_inputs ? copied : how);
  }
  // True for the adapter of a layer that has a rule, which counts for the adapter too.
  bool is_adapter_of_target(const std::string& path, const nn::Module& m) const {
    return dynamic_cast<const nn::LoraAdapter*>(&m) &&
           std::any_of(targets_.begin(), targets_.end(), [&](const Target& t) {
             return path == (t.path.empty() ? "" : t.path + ".") + "lora";
           });
  }
  bool is_divided(const nn::Parameter& p) const {
    const auto found = divisions_.find(p.id());
    return found != divisions_.end() && found->second.dim >= 0;
  }

  // What is wrong on this rank. Notes how each parameter is divided.
  std::string problem() {
    if (options_.chunks < 0 || (options_.chunks > 1 && !options_.sequence))
      return concat(
          {"chunks is ", options_.chunks,
           options_.chunks < 0
               ? ", which is no number of chunks; use 0 for whole products"
               : ", and chunks are parts of a divided sequence; set sequence, or leave out chunks"});
    for (const TensorRule& rule : plan_.rules)
      if (std::none_of(targets_.begin(), targets_.end(), [&](const Target& t) { return t.rule == &rule; }))
        return concat({"no module has the path \"", rule.path,
                       "\", or an earlier rule matches it; correct the rule for ", name_of(rule.style)});
    for (const Target& t : targets_)
      if (std::string why = problem_of(t); !why.empty()) return concat({place(t.path, *t.module), " ", why});
    if (conflicts_)
      return "modules that share a parameter would divide it in different ways; correct their rules";
    for (const auto& [path, m] : module_.named_modules()) {
      if (is_adapter_of_target(path, *m)) continue;
      const TensorRule* const rule = rule_of(m);
      const bool divides = rule && rule->style <= Style::embedding_column;
      const auto* const language = dynamic_cast<const nn::LanguageModel*>(m);
      if (!divides && !(rule && rule->style == Style::attention))
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
        return concat(
            {place(path, *m),
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
        for (const nn::Cut& cut : layout->cuts())
          if (cut.dim != nn::Cut::kHeld)
            return concat(
                {"'", name, "' is divided already; call tensor_parallel() once, and before fully_shard()"});
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
      return concat(
          {"has a unit or blocks in its rule, for which ", name_of(style), " has no use; leave them out"});
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
        if (!layer) return concat({"is no Linear, which ", name_of(style), " divides; choose another style"});
        if (!layer->weight.defined()) return "has a packed weight, which cannot be divided; unpack it";
        if (!layer->children().empty() && !adapter_of(*layer))
          return "has a child that is no LoRA adapter; remove it";
        if (layer->divided_forward) return kDividedAlready;
        const bool is_row = style == Style::row;
        const std::int64_t unit = t.rule->unit, size = whole_size(layer->weight, is_row);
        const int blocks = t.rule->blocks;
        if (blocks != 1 && style != Style::column)
          return "is no column layer, whose outputs can be blocks; leave out blocks in the rule";
        if (blocks < 1 || size % blocks != 0)
          return concat(
              {"has ", size, " outputs, which are no ", blocks, " blocks; correct blocks in the rule"});
        const char* const what = is_row ? "inputs" : blocks > 1 ? "outputs in a block" : "outputs";
        if (std::string why = divide(size / blocks, unit, axis_.size(), what, owners); !why.empty())
          return why;
        if (owners < axis_.size() && (style != Style::column || blocks > 1))
          return concat({"is a ", name_of(style), " layer", blocks > 1 ? " with blocks" : "",
                         ", whose units cannot be shared; use no more ranks than units"});
        if (style == Style::gathered_column && size / unit % axis_.size() != 0 && unit > 1)
          return concat({"has ", size / unit, " units of ", unit, " outputs, which ", axis_.size(),
                         " ranks cannot gather in equal parts; leave out the unit"});
        set(*layer, is_row, {is_row ? 1 : 0, owners, unit, blocks});
        return {};
      }
      case Style::vocabulary:
      case Style::embedding_column: {
        auto* const layer = dynamic_cast<nn::Embedding*>(t.module);
        if (!layer)
          return concat({"is no Embedding, which ", name_of(style), " divides; choose another style"});
        if (!layer->weight.defined()) return "has a packed weight, which cannot be divided; unpack it";
        if (layer->divided_forward) return kDividedAlready;
        if (std::string why = layer->why_not_divided(); !why.empty()) return "has " + why;
        if (layer->options.scale_grad_by_freq && style == Style::vocabulary)
          return "has scale_grad_by_freq, which counts the lookups of all words; divide it by columns";
        const bool by_words = style == Style::vocabulary;
        if (std::string why = divide(whole_size(layer->weight, !by_words), 1, axis_.size(),
                                     by_words ? "words" : "features", owners);
            !why.empty())
          return why;
        set(layer->weight, {by_words ? 0 : 1, owners});
        return {};
      }
      case Style::head: {
        auto* const model = dynamic_cast<nn::LanguageModel*>(t.module);
        if (!model) return "is no LanguageModel, whose head is divided; choose another style";
        if (!model->output_weight().defined()) return "has a packed head, which cannot be divided; unpack it";
        if (std::string why = divide(whole_size(model->output_weight(), 0), 1, axis_.size(), "words", owners);
            !why.empty())
          return why;
        set(model->output_weight(), {0, owners});
        return {};
      }
      case Style::attention: {
        auto* const layer = dynamic_cast<nn::MultiheadAttention*>(t.module);
        if (!layer) return "is no MultiheadAttention, whose heads are divided; choose another style";
        if (layer->divided_heads) return kDividedAlready;
        if (!layer->in_proj_weight.defined() || layer->options.add_bias_kv || layer->options.add_zero_attn)
          return "has keys or values of other widths, or added ones, for which there is no division; leave "
                 "it whole";
        const std::int64_t heads = layer->options.num_heads;
        if (!all_have_some(heads, axis_.size()))
          return concat({"has ", heads, " heads, of which the last of ", axis_.size(),
                         " ranks would have none; use fewer ranks"});
        for (const nn::Parameter& p : {layer->in_proj_weight, layer->in_proj_bias})
          set(p, {0, axis_.size(), layer->options.embed_dim / heads, 3});
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

  std::string describe() const {
    std::string text = concat(
        {"sequence ", options_.sequence, " ", options_.sequence_dim, " chunks ", options_.chunks, "\n"});
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
  void fill(const std::string& name, const nn::TensorSlot& slot) const {
    fill_from_first(name, slot, axis_, device(), kTensorParallel);
  }

  void cut_all() {
    const auto all = std::make_shared<AxisRanks>(axis_, kTensorParallel);
    std::map<int, std::pair<std::shared_ptr<AxisRanks>, std::shared_ptr<AxisRanks>>> shared;
    for (const auto& [units, axes] : shared_units_)
      shared[units] = {std::make_shared<AxisRanks>(axes.owners, kTensorParallel),
                       std::make_shared<AxisRanks>(axes.copies, kTensorParallel)};
    for (auto [name, slot] : module_.named_parameters()) {
      fill(name, slot);
      const auto found = divisions_.find(slot.id());
      const LayerDivision how = found == divisions_.end() ? LayerDivision{} : found->second;
      if (how.dim < 0) {
        cut_parameter(slot, {{all, nn::Cut::kCopied}});
      } else if (how.owners == axis_.size()) {
        cut_parameter(slot, {{.group = all, .dim = how.dim, .unit = how.unit, .blocks = how.blocks}});
      } else {
        const auto& [owners, copies] = shared.at(how.owners);
        cut_parameter(slot, {{.group = owners, .dim = how.dim, .unit = how.unit},
                             {.group = copies, .dim = nn::Cut::kCopied}});
      }
    }
    for (const auto& [name, slot] : module_.named_buffers()) fill(name, slot);
  }

  void install(const Target& t, const StreamRef& stream) {
    switch (t.rule->style) {
      case Style::column:
      case Style::gathered_column: {
        auto& layer = dynamic_cast<nn::Linear&>(*t.module);
        ColumnLayer column{&layer};
        if (const int owners = divisions_.at(layer.weight.id()).owners; owners < axis_.size())
          column.own = [stream, copies = shared_units_.at(owners).copies](const Tensor& p) {
            return sum_of_copies(p, *stream, copies);
          };
        const bool gathers = t.rule->style == Style::gathered_column;
        return divide_outputs(column, stream, region_of(t.path), gathers ? whole_size(layer.weight, 0) : 0);
      }
      case Style::row:
        return divide_inputs(dynamic_cast<nn::Linear&>(*t.module), stream, has_blocks());
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
                                                       words, {.traffic = stream->traffic});
          if (how.last) x = x.narrow(1, x.size(1) - 1, 1);
          return stream->gathered(linear(x, model.output_weight()), words);
        };
        return;
      }
      case Style::inside:
        return draw_own_numbers(*t.module, stream);
      case Style::attention: {
        auto& layer = dynamic_cast<nn::MultiheadAttention&>(*t.module);
        const nn::Region own =
            nn::Region::whole({layer.options.num_heads}).part(0, axis_.coordinate(), axis_.size());
        layer.divided_heads = {own.first[0], own.sizes[0]};
        return enter_region(t, stream);
      }
      case Style::input:
        return enter_region(t, stream);
      case Style::residual:
        if (has_own_parameters(*t.module)) {
          if (stream->sequence) convert_all_in_calls(*t.module, stream);
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

  void enter_region(const Target& t, const StreamRef& stream) {
    const auto region = std::make_shared<RegionOfLayers>(stream);
    regions_.emplace_back(t.path, region);
    RegionOfLayers::enter_in_calls(*t.module, region);
  }
  // The innermost region around a path, or null. Modules come after those that contain them.
  std::shared_ptr<RegionOfLayers> region_of(const std::string& path) const {
    for (auto region = regions_.rbegin(); region != regions_.rend(); ++region)
      if (is_inside(path, region->first)) return region->second;
    return nullptr;
  }

  bool has_blocks() const {
    return std::any_of(targets_.begin(), targets_.end(), [](const Target& t) {
      return t.rule->blocks > 1 || t.rule->style == Style::attention;
    });
  }
  // A parameter of units that ranks share. Ranks with copies of one unit use it for different heads, and so
  // their gradients are added. For the check along the whole axis, the parameter is a copy until then. After
  // that, its parts are those of a parameter that has each unit as often as it has copies.
  static Tensor sum_of_copies(const Tensor& p, const ResidualStream& stream, const Axis& copies) {
    const impl::CheckedConversion checked(p, stream.axis, Placement::invariant(), Placement::sharded(0));
    return checked.result(
        convert(p, copies, Placement::invariant(), Placement::replicated(), {.traffic = stream.traffic}));
  }

  nn::Module& module_;
  const Axis& axis_;
  const TensorPlan& plan_;
  const TensorParallelOptions& options_;
  std::vector<Target> targets_;
  std::map<const void*, LayerDivision> divisions_;  // by slot; others are copied
  bool conflicts_ = false;
  std::set<int> shared_;                     // numbers of units that are fewer than the ranks
  std::map<int, SharedUnits> shared_units_;  // the same, with their axes
  std::vector<std::pair<std::string, std::shared_ptr<RegionOfLayers>>> regions_;
};

}  // namespace

ConversionTraffic::Counts TensorParallel::sent() const { return stream_->traffic->counts(); }
void TensorParallel::reset_report() const { stream_->traffic->reset(); }

TensorParallel tensor_parallel(nn::Module& module, const Axis& axis, const TensorPlan& plan,
                               const TensorParallelOptions& options) {
  return TensorParallel(Divider(module, axis, plan, options).run());
}

}  // namespace tapestry::distributed
