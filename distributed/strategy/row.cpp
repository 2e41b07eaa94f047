#include "tapestry/distributed/strategy/internal/row.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/error.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {
namespace {

// Linked, because rows register before anything that needs construction exists.
constinit const StrategyRow* first_row = nullptr;

const char* where(bool over_devices) { return over_devices ? "devices of one process" : "ranks"; }

// What a row reads of an option, "f16|bf16" or "" for any value. Null if it does not read the option.
std::optional<std::string> values_of(const StrategyRow& row, std::string_view option) {
  std::istringstream words(row.options);
  for (std::string word; words >> word;) {
    const std::size_t end = std::min(word.find('='), word.size());
    if (std::string_view(word).substr(0, end) == option)
      return end < word.size() ? word.substr(end + 1) : std::string();
  }
  return std::nullopt;
}

bool is_one_of(const std::string& value, const std::string& values) {
  std::istringstream list(values);
  for (std::string one; std::getline(list, one, '|');)
    if (one == value) return true;
  return values.empty();
}

// True if rows read all options of the axis, and, with `values`, take their values.
bool serves(const AxisSpec& axis, bool over_devices, bool values) {
  return !rows_of(axis, over_devices).empty() &&
         std::all_of(axis.options.begin(), axis.options.end(), [&](const auto& option) {
           for (const StrategyRow* row = first_row; row; row = row->next)
             if (row->axis == axis.name && row->over_devices == over_devices)
               if (const auto known = values_of(*row, option.first))
                 if (!values || is_one_of(option.second, *known)) return true;
           return false;
         });
}

// Replaces a mean over no targets, which is NaN, by the sum of no elements of the outputs. It is 0 and gives
// them gradients of 0, whereas the backward of the mean may multiply 0 by infinity.
Loss without_nan(Loss loss, const std::vector<Tensor>& outputs) {
  if (loss.kind == LossKind::sum || loss.count != 0) return loss;
  Tensor zero = zeros_like(loss.value.detach());
  const auto add_nothing_of = [&](const Tensor& t) {
    if (t.requires_grad()) zero = zero + t.flatten().narrow(0, 0, 0).sum().to(zero.device()).to(zero.dtype());
  };
  for (const Tensor& t : outputs) add_nothing_of(t);
  if (!zero.requires_grad()) add_nothing_of(loss.value);
  loss.value = zero;
  return loss;
}

void check_options(const std::string& text, const AxisSpec& axis, bool over_devices) {
  std::string known;
  for (const StrategyRow* row = first_row; row; row = row->next)
    if (row->axis == axis.name && row->over_devices == over_devices && *row->options)
      known += (known.empty() ? "" : ", ") + std::string(row->options);
  for (const auto& [option, value] : axis.options) {
    if (option == "devices") continue;
    std::optional<std::string> values;
    for (const StrategyRow* row = first_row; row && !values; row = row->next)
      if (row->axis == axis.name && row->over_devices == over_devices) values = values_of(*row, option);
    check(values.has_value(), "[strategy] ", text, ": ", axis.name, " over ", where(over_devices),
          " has no option ", option, "; it has ", known.empty() ? "none" : known);
    check(is_one_of(value, *values), "[strategy] ", text, ": ", option, " is ", value, "; choose one of ",
          *values);
  }
}

// The value of an option that another axis excludes.
bool is_off(const std::string& value) { return value == "none" || value == "0"; }

}  // namespace

RowRegistration::RowRegistration(StrategyRow row) : row_(row) {
  row_.next = first_row;
  first_row = &row_;
}
RowRegistration::~RowRegistration() {
  for (const StrategyRow** at = &first_row; *at; at = const_cast<const StrategyRow**>(&(*at)->next))
    if (*at == &row_) {
      *at = row_.next;
      return;
    }
}

std::vector<const StrategyRow*> rows_of(const AxisSpec& axis, bool over_devices) {
  std::vector<const StrategyRow*> rows;
  for (const StrategyRow* row = first_row; row; row = row->next)
    if (row->axis == axis.name && row->over_devices == over_devices &&
        (!row->option || axis.options.contains(row->option)))
      rows.push_back(row);
  std::sort(rows.begin(), rows.end(), [](const auto* a, const auto* b) { return a->order < b->order; });
  return rows;
}

StrategyPlan plan_strategy(std::string_view text, bool launched) {
  return plan_strategy(parse_strategy(text), launched);
}

StrategyPlan plan_strategy(std::vector<AxisSpec> axes, bool launched) {
  const std::string text = to_string(axes);
  // Axes combine over ranks alone.
  const auto divides = [](const AxisSpec& axis) { return axis.size != 1; };
  launched = launched || std::count_if(axes.begin(), axes.end(), divides) > 1;
  StrategyPlan plan;
  for (const AxisSpec& axis : axes) {
    const bool divides_nothing = axis.size == 1 && axes.size() > 1;
    bool over_devices = axis.options.contains("devices");
    if (!over_devices) {
      over_devices = !launched;
      for (const bool values : {false, true})
        if (!serves(axis, over_devices, values) && serves(axis, !over_devices, values))
          over_devices = !over_devices;
    }
    check(divides_nothing || plan.axes.empty() || over_devices == plan.over_devices, "[strategy] ", text,
          ": axes over ranks and over devices cannot be combined yet; choose one of them");
    const std::vector<const StrategyRow*> rows = rows_of(axis, over_devices);
    check(divides_nothing || !rows.empty(), "[strategy] ", text, ": this program has no axis ", axis.name,
          " over ", where(over_devices), rows_of(axis, !over_devices).empty() ? "" : "; it has one over ",
          rows_of(axis, !over_devices).empty() ? "" : where(!over_devices));
    check_options(text, axis, over_devices);
    if (divides_nothing) continue;
    plan.axes.push_back(axis);
    plan.over_devices = over_devices;
    for (const StrategyRow* const row : rows) {
      plan.splits_model = plan.splits_model || row->splits_model;
      plan.about += (plan.about.empty() ? "" : "; ") + std::string(row->about);
    }
    check(axis.size < 1 || plan.size <= std::numeric_limits<int>::max() / axis.size, "[strategy] ", text,
          ": the sizes are for more than ", std::numeric_limits<int>::max(), " ", where(over_devices),
          "; choose smaller ones");
    plan.size = axis.size < 0 ? 0 : plan.size * axis.size;
  }
  check(plan.axes.size() <= 1 || !plan.over_devices, "[strategy] ", text,
        ": axes over the devices of one process cannot be combined yet; start ranks with tapestry-run, and "
        "combine axes over them");
  for (const AxisSpec& axis : plan.axes)
    for (const StrategyRow* const row : rows_of(axis, plan.over_devices))
      for (const AxisSpec& other : plan.axes)
        check(other.name != row->excludes || (row->excluding && is_off(axis.option(row->excluding, "none"))),
              "[strategy] ", text, ": ", other.name, " and ", axis.name,
              row->excluding ? concat({":", row->excluding})
              : row->option  ? concat({":", row->option})
                             : std::string(),
              " cannot be combined; ", row->instead);
  if (plan.axes.empty()) plan.about = "one device, the whole batch";
  return plan;
}

std::vector<StepDivision> divisions_of(const StrategyPlan& plan, bool predictable) {
  std::vector<StepDivision> all;
  for (const AxisSpec& axis : plan.axes) {
    const std::vector<const StrategyRow*> rows = rows_of(axis, plan.over_devices);
    StepDivision& division = all.emplace_back();
    if (rows.empty()) return {};
    if (!plan.over_devices) {
      division.samples = rows[0]->computes == Computes::own_samples;
      division.copies = rows[0]->copies;
      division.parts = rows[0]->divides;
    }
    for (const StrategyRow* const row : rows)
      if ((!row->divide || !row->divide(axis, division)) && predictable) return {};
  }
  const bool stages =
      std::any_of(all.begin(), all.end(), [](const StepDivision& d) { return !d.schedule.empty(); });
  // Under sequence=1 stages send parts of sequences, but the predictors know only messages of whole ones.
  if (predictable && stages && std::any_of(all.begin(), all.end(), [](const auto& d) {
        return d.options.find("sequence=1") != std::string::npos;
      }))
    return {};
  for (std::size_t i = 0; i < all.size(); ++i) {
    // A step without stages has one part, so there reducing each part is the same as reducing the step.
    if (predictable && stages && plan.axes[i].option("reduce", "step") != "step") return {};
    // Only stages make fully_shard gather once in a step unless the text asks for it.
    all[i].keeps_whole = all[i].keeps_whole && (stages || plan.axes[i].options.contains("gather"));
  }
  return all;
}

bool StrategyPlan::reads(std::string_view option) const {
  for (const AxisSpec& axis : axes)
    for (const StrategyRow* row = first_row; row; row = row->next)
      if (row->axis == axis.name && row->over_devices == over_devices && values_of(*row, option)) return true;
  return false;
}

bool LayerContext::is_part(const nn::TensorSlot& slot) const {
  return std::any_of(dividing.begin(), dividing.end(),
                     [&](const Axis& divided) { return is_divided_along(slot, divided); });
}

// ---- what a layer does unless its row says otherwise ----

Tensor StrategyLayer::part_of_mean(const Loss& loss, double count) {
  counted_ += loss.count;
  const double own = loss.kind == LossKind::sum ? 1 : loss.count;
  return own == count ? loss.value : loss.value * (own / count);
}

void StrategyLayer::wrap(nn::Module& model, const ModelParts& parts, LocalModules&) {
  attach(model, parts);
  if (!is_first()) return;  // an earlier layer has placed what this process has of the model
  const std::vector<nn::Parameter> all = model.parameters();
  if (std::none_of(all.begin(), all.end(), [](const auto& p) { return p->device().is_meta(); }))
    model.to(device());
}

void StrategyLayer::forward_begins(const Part& part) {
  for (StrategyLayer* const layer : all_) layer->before_forward(part);
}

std::vector<std::shared_ptr<void>> StrategyLayer::backward_begins(const Part& part) {
  std::vector<std::shared_ptr<void>> scopes;
  for (StrategyLayer* const layer : all_) scopes.push_back(layer->before_backward(part));
  return scopes;
}

void StrategyLayer::backward_ended(const Part& part) {
  for (StrategyLayer* const layer : all_) layer->after_backward(part);
}

std::vector<std::shared_ptr<void>> StrategyLayer::stage_begins() {
  std::vector<std::shared_ptr<void>> scopes;
  for (StrategyLayer* const layer : all_) scopes.push_back(layer->around_stage());
  return scopes;
}

Loss StrategyLayer::compute(const Batch& batch, std::vector<Tensor>* outputs) const {
  if (!outputs && parts_->forward_loss)
    return without_nan(parts_->forward_loss(batch.inputs, batch.targets), {});
  check(parts_->forward && parts_->loss, "[strategy] outputs are wanted; set forward and loss of ModelParts");
  std::vector<Tensor> results = parts_->forward(batch.inputs);
  Loss loss = loss_of(results, batch.targets);
  if (outputs) *outputs = std::move(results);
  return loss;
}

Loss StrategyLayer::loss_of(const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets) const {
  return without_nan(parts_->loss(outputs, targets), outputs);
}

StepLoss StrategyLayer::gradients(const Part& part, const Batch& batch, double count,
                                  optim::GradScaler* scaler) {
  forward_begins(part);
  Loss loss = StrategyLayer::evaluate(batch, nullptr);
  const Tensor mean = part_of_mean(loss, count);
  loss.value = {};
  {
    const auto scopes = backward_begins(part);
    const SpanScope span(device(), Activity::backward, "backward");
    (scaler ? scaler->scale(mean) : mean).backward();
  }
  backward_ended(part);
  return {mean.detach(), std::move(loss.sums)};
}

Loss StrategyLayer::evaluate(const Batch& batch, std::vector<Tensor>* outputs) {
  const SpanScope span(device(), Activity::forward, "forward");
  return compute(batch, outputs);
}

nn::StateDict StrategyLayer::whole_state(bool keep) const {
  nn::StateDict all;
  for (const auto& [name, slot] : model_->named_state()) {
    const auto& layout = slot.layout();
    // Replicas that have all parts between them need no communication.
    const bool gathers = layout && !nn::has_whole(slot);
    Tensor whole = gathers ? empty(layout->whole_sizes(), {slot.dtype(), slot.device()}) : Tensor();
    if (gathers) layout->gather(0, whole);
    else if (keep) whole = nn::whole_tensor(slot, 0);
    if (keep) all.emplace_back(name, whole.detach().to(kCPU).contiguous());
  }
  return all;
}

}  // namespace tapestry::distributed
