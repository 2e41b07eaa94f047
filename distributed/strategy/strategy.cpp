#include "tapestry/distributed/strategy/strategy.h"

#include <algorithm>
#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/common/router_bias.h"
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/nn/clip.h"

namespace tapestry::distributed {
namespace {

// Part `index` of `count` parts of equal size; the first ones get one more if they do not divide the samples.
Samples chunk_of(Samples all, int count, int index) {
  const std::int64_t size = all.count / count, larger = all.count % count;
  return {all.first + index * size + std::min<std::int64_t>(index, larger), size + (index < larger ? 1 : 0)};
}

// The name of several axes as one, "replicate_context".
std::string joined_name(const std::vector<std::string>& axes) {
  std::string name = axes[0];
  for (std::size_t i = 1; i < axes.size(); ++i) name += '_' + axes[i];
  return name;
}

// The row of an axis without options. Null if there is none.
const StrategyRow* row_of(const std::string& axis, bool over_devices) {
  const std::vector<const StrategyRow*> rows = rows_of({axis, 1, {}}, over_devices);
  return rows.empty() ? nullptr : rows[0];
}

}  // namespace

void check_sums(std::size_t before, std::size_t now) {
  check(before == now, "[strategy] Loss::sums has ", now, " numbers, and had ", before,
        " before; return equally many for all samples");
}

void add_transfer(LayerReport& report, int from, int to, std::int64_t bytes, const char* what,
                  const char* phase) {
  if (bytes == 0 || from == to) return;
  report.bytes_sent += bytes;
  for (Transfer& t : report.transfers)
    if (t.from == from && t.to == to && std::string_view(t.what) == what &&
        std::string_view(t.phase) == phase) {
      t.bytes += bytes;
      return;
    }
  report.transfers.push_back({from, to, bytes, what, {}, phase});
}

Strategy::Strategy(std::string_view text, const StrategyOptions& options)
    : Strategy(plan_strategy(text, options.world && options.world->size() > 1), options) {}

Strategy::Strategy(const StrategyPlan& plan, const StrategyOptions& options)
    : plan_(plan), options_(options), devices_(options.devices) {
  check(!options.devices.empty(), "[strategy] there are no devices; name one or more");
  check(options.parts >= 1, "[strategy] a step has ", options.parts, " parts; give one or more");
  const std::string text = to_string(plan.axes);
  check(ranks() == 1 || (!plan.axes.empty() && !plan.over_devices), "[strategy] ", text,
        " trains in one process, and this is one of ", ranks(),
        ", which would all train the same model; name an axis over ranks, such as replicate=", ranks());
  std::vector<AxisSize> sizes;
  for (const AxisSpec& axis : plan.axes) sizes.push_back({axis.name, axis.size});
  if (plan.over_devices) {
    const auto there = options.devices.size(), needed = static_cast<std::size_t>(plan.size);
    check(needed <= there, "[strategy] ", text, " needs ", needed, " devices, and there are ", there);
    if (needed > 0) devices_.resize(needed);
    mesh_.emplace(nullptr, sizes, MeshOptions{.devices = devices_});
  } else {
    devices_.resize(1);
    check(sizes.empty() || options.world, "[strategy] ", text,
          " is over ranks, but world is null; pass what init_process_group() returned");
    if (!sizes.empty()) mesh_.emplace(options.world, sizes);
  }
  std::vector<std::pair<int, std::unique_ptr<StrategyLayer>>> layers;
  std::vector<Axis> axes;
  for (const AxisSpec& spec : plan.axes) axes.push_back((*mesh_)[spec.name]);
  std::vector<std::string> data;  // axes whose members have other samples, or other positions of them
  std::vector<Axis> dividing;
  std::vector<std::string> of_parts;
  for (const Axis& axis : axes) {
    const StrategyRow* const row = row_of(axis.name(), plan.over_devices);
    if (!row || plan.over_devices) continue;
    if (row->computes == Computes::own_elements && axis.coordinate() > 0) adds_ = false;
    if (row->computes == Computes::own_samples) {
      data_rank_ = data_rank_ * axis.size() + axis.coordinate();
      data_size_ *= axis.size();
    }
    if (row->computes == Computes::own_positions && axis.coordinate() > 0) adds_whole_ = false;
    if (row->computes == Computes::own_samples || row->computes == Computes::own_positions)
      data.push_back(axis.name());
    if (!row->copies || axis.size() == 1) continue;
    copies_.push_back(axis.name());
    if (row->divides) dividing.push_back(axis);
    else of_parts.push_back(axis.name());
  }
  const auto joined = [&](const std::vector<std::string>& names) -> std::optional<Axis> {
    if (names.empty()) return std::nullopt;
    return mesh_->view(joined_name(names), names);
  };
  const std::optional<Axis> copies = joined(copies_);
  const std::optional<Axis> copies_of_parts = dividing.empty() ? std::nullopt : joined(of_parts);
  const auto add_layers = [&](const AxisSpec& spec, const Axis& axis) {
    for (const StrategyRow* const row : rows_of(spec, plan.over_devices))
      layers.emplace_back(row->order, row->make({axis, spec, devices_, options.parts, axes, copies, dividing,
                                                 copies_of_parts}));
  };
  bool adds_gradients = false;
  for (const AxisSpec& spec : plan.axes) {
    adds_gradients = adds_gradients || spec.name == "replicate" || spec.name == "shard";
    add_layers(spec, spec.name == "replicate" && copies ? *copies : (*mesh_)[spec.name]);
  }
  if (copies && !adds_gradients) add_layers({"replicate", copies->size(), {}}, *copies);
  std::stable_sort(layers.begin(), layers.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [order, layer] : layers) layers_.push_back(std::move(layer));
  if (layers_.empty())
    layers_.push_back(
        std::make_unique<StrategyLayer>(LayerContext{std::nullopt, {}, devices_, options.parts}));
  if (!data.empty())
    if (const Axis all = mesh_->view("data", data); all.size() > 1) data_group_ = all.group();
  for (const auto& layer : layers_) {
    layer->all_.clear();
    for (const auto& other : layers_) layer->all_.push_back(other.get());
  }
}

Strategy::~Strategy() = default;

std::string Strategy::name() const {
  std::vector<AxisSpec> axes = plan_.axes;
  for (AxisSpec& axis : axes) axis.size = (*mesh_)[axis.name].size();
  return to_string(axes);
}

Samples Strategy::share(std::int64_t samples, const Part& part) const {
  return chunk_of(chunk_of({0, samples}, part.count, part.index), data_size_, data_rank_);
}

Batch Strategy::own_part(Batch batch) const {
  if (batch.whole) return batch;
  for (const auto& layer : layers_) batch = layer->own_part(std::move(batch));
  return batch;
}

bool Strategy::builds_in_parts() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const auto& l) { return l->builds_in_parts(); });
}
bool Strategy::calls_are_collective() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const auto& l) { return l->calls_are_collective(); });
}
bool Strategy::can_call_model() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& l) { return l->can_call_model(); });
}

RandomPlace Strategy::random_place(int rank) const {
  RandomPlace place;
  if (!mesh_ || plan_.over_devices) return place;
  const std::vector<int> coordinates = mesh_->coordinates(rank);
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    const auto& [name, size] = mesh_->axes()[i];
    const StrategyRow* const row = row_of(name, false);
    if (!row || row->computes == Computes::own_elements) continue;
    const bool is_stage = row->computes == Computes::own_stage;
    int &at = is_stage ? place.stage : place.data, &of = is_stage ? place.stages : place.data_size;
    at = at * size + coordinates[i];
    of *= size;
  }
  return place;
}

StringMap Strategy::choices() const {
  return {
      {"strategy", name()}, {"parts", std::to_string(options_.parts)}, {"ranks", std::to_string(ranks())}};
}

void Strategy::wrap(nn::Module& model, ModelParts parts) {
  check(model_ == nullptr, "[strategy] wrap() was called before; one strategy trains one model");
  check(parts.forward_loss || (parts.forward && parts.loss),
        "[strategy] nothing computes the loss; set forward and loss of ModelParts, or forward_loss");
  check(!plan_.splits_model || (parts.stages && parts.loss), "[strategy] ", name(),
        " splits the model into stages, but ModelParts has no stages, or no loss of their outputs");
  parts_ = std::move(parts);
  LocalModules local{{&model}, parts_.units};
  for (const auto& layer : layers_) layer->wrap(model, parts_, local);
  model_ = &model;
  balances_ = has_router_bias(model);
  if (!balances_ || ranks() == 1) return;
  std::vector<std::string> same;
  for (const AxisSpec& axis : plan_.axes)
    if (row_of(axis.name, false)->computes != Computes::own_stage) same.push_back(axis.name);
  if (!same.empty()) stage_group_ = mesh_->view(joined_name(same), same).group();
}

nn::Module& Strategy::model() const {
  check(model_ != nullptr, "[strategy] there is no model; call wrap() first");
  return *model_;
}

StepLoss Strategy::gradients(const std::function<Batch(const Part&)>& read, double count,
                             optim::GradScaler* scaler) {
  model();
  check(count > 0, "[strategy] the loss of a step is divided by ", count,
        "; give the number of its targets over all ranks and parts");
  const int parts = layers_[0]->takes_whole_step() ? 1 : options_.parts;
  layers_[0]->take_counted();  // what a step has counted that ended with an exception
  StepLoss total;
  for (int i = 0; i < parts; ++i) {
    const Part part{i, parts, i + 1 == parts};
    Batch batch = read(part);
    check(!batch.whole,
          "[strategy] a batch of training is whole, and only evaluations with a cache are; leave whole out");
    StepLoss own = layers_[0]->gradients(part, own_part(std::move(batch)), count, scaler);
    if (i == 0) {
      total = std::move(own);
      continue;
    }
    const NoGradGuard no_grad;
    total.loss = total.loss + own.loss;
    check_sums(total.sums.size(), own.sums.size());
    for (std::size_t k = 0; k < own.sums.size(); ++k) total.sums[k] = total.sums[k] + own.sums[k];
  }
  if (!count_checked_) check_count(count);
  if (balances_ && stage_group_) update_router_bias(*model_, *stage_group_);
  else if (balances_) update_router_bias(*model_);
  if (!adds_) {
    total.loss = zeros_like(total.loss);
    for (Tensor& t : total.sums) t = zeros_like(t);
  }
  return total;
}

// A divisor of this rank alone, or of one part, would train with another learning rate, without a word.
void Strategy::check_count(double count) {
  // Applications may add counts in f32, in another order than the divisor. That is up to about 16 roundings
  // of 2^-24; sums in double, over parts and ranks, are far more exact.
  constexpr double kRounding = 16 * 0x1p-24;
  std::vector<double> all(2 * static_cast<std::size_t>(ranks()));  // of each rank: its targets, its divisor
  const std::size_t own = 2 * static_cast<std::size_t>(rank());
  const double mine = layers_[0]->take_counted();
  all[own] = adds_ ? mine : 0;
  all[own + 1] = count;
  all = sum(std::move(all));
  // All ranks have the same numbers now, and come to the same result.
  double counted = 0, least = all[1], most = all[1];
  for (std::size_t i = 0; i < all.size(); i += 2) {
    counted += all[i];
    least = std::min(least, all[i + 1]);
    most = std::max(most, all[i + 1]);
  }
  const bool same = most - least <= kRounding * most;
  check(same && (std::isnan(counted) || std::abs(counted - most) <= kRounding * most),
        "[strategy] the loss of a step is divided by ", count,
        ", but the losses of all ranks and parts count ", counted,
        " targets; divide by this number, the same on all ranks");
  count_checked_ = true;
}

Tensor Strategy::clip_grad_norm_(double max_norm, double norm_type) {
  return nn::clip_grad_norm_(model().parameters(), max_norm, norm_type);
}

OptimizerDivision Strategy::optimizer_division() const {
  for (const auto& layer : layers_)
    if (OptimizerDivision division = layer->optimizer_division(); division.group) return division;
  return {};
}

std::optional<Evaluation> Strategy::evaluate(std::int64_t turns,
                                             const std::function<Batch(std::int64_t)>& read,
                                             const std::function<bool()>& stops, const Seen& seen) {
  model();
  for (const auto& layer : layers_) layer->before_evaluation();
  const NoGradGuard no_grad;
  std::vector<double> sums(2);  // of losses and counts, then Loss::sums
  model_->eval();
  bool stopped = false;
  // Ranks without a batch compute too: a call may be collective.
  for (std::int64_t turn = 0; turn < turns && !stopped; ++turn) {
    const Batch batch = own_part(read(turn));
    std::vector<Tensor> outputs;
    const Loss loss = layers_[0]->evaluate(batch, seen ? &outputs : nullptr);
    if (turn == 0) sums.resize(2 + loss.sums.size());
    check_sums(sums.size() - 2, loss.sums.size());
    if (batch.counts && adds_ && (adds_whole_ || !batch.whole)) {
      if (!outputs.empty()) seen(outputs, batch);
      // The mean over no targets is NaN.
      if (loss.kind == LossKind::sum) sums[0] += loss.value.item();
      else if (loss.count > 0) sums[0] += loss.value.item() * loss.count;
      sums[1] += loss.count;
      for (std::size_t k = 0; k < loss.sums.size(); ++k) sums[2 + k] += loss.sums[k].item();
    }
    stopped = stops && stops();
  }
  model_->train();
  if (stopped) return std::nullopt;
  sums = sum(std::move(sums));
  return Evaluation{sums[0], sums[1], {sums.begin() + 2, sums.end()}};
}

std::vector<double> Strategy::sum(std::vector<double> values) const {
  if (ranks() > 1)
    options_.world
        ->all_reduce(from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, DType::f64),
                     ReduceOp::sum, "sums of the strategy")
        .wait();
  return values;
}

nn::StateDict Strategy::whole_state() const {
  model();
  return layers_[0]->whole_state(logs());
}
std::shared_ptr<void> Strategy::unshard() const {
  model();
  std::vector<std::shared_ptr<void>> scopes;
  for (const auto& layer : layers_) scopes.push_back(layer->unshard());
  return std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(scopes));
}

std::vector<AxisReport> Strategy::report() const {
  model();
  std::vector<AxisReport> reports;
  for (const auto& layer : layers_)
    for (const LayerReport& own : layer->reports()) {
      if (own.axis.empty()) continue;
      const auto same = [&](const AxisReport& r) { return r.axis == own.axis; };
      auto at = std::find_if(reports.begin(), reports.end(), same);
      if (at == reports.end()) at = reports.insert(at, {own.axis});
      at->bytes_sent += own.bytes_sent;
      at->exposed_s += own.exposed_s;
      if (!own.choice.empty()) at->choice = own.choice;
    }
  return reports;
}

std::vector<Transfer> Strategy::transfers() const {
  model();
  std::vector<Transfer> all;
  for (const auto& layer : layers_)
    for (const LayerReport& report : layer->reports())
      for (const Transfer& t : report.transfers)
        all.push_back({member_at(report.axis, t.from), member_at(report.axis, t.to), t.bytes, t.what,
                       report.axis, t.phase});
  return all;
}

// The rank at a coordinate along an axis, or along several that joined_name() names, whose other coordinates
// are those of this rank. Axes over devices have the devices in their order.
int Strategy::member_at(const std::string& axis, int coordinate) const {
  if (!mesh_ || plan_.over_devices || !mesh_->has(axis)) return coordinate;
  std::vector<int> sought = mesh_->coordinates(rank());
  const std::string names = '_' + axis + '_';
  for (std::size_t i = sought.size(); i-- > 0;) {
    const AxisSize& own = mesh_->axes()[i];
    if (names.find('_' + own.name + '_') == std::string::npos) continue;
    sought[i] = coordinate % own.size;
    coordinate /= own.size;
  }
  for (int rank = 0; rank < mesh_->size(); ++rank)
    if (mesh_->coordinates(rank) == sought) return rank;
  return coordinate;
}

std::vector<MemorySample> Strategy::memory(const MemoryRecord* record) const {
  const auto holds_less = [](const MemorySample& a, const MemorySample& b) { return a.total() < b.total(); };
  std::vector<MemorySample> most;
  for (const Device device : devices_) {
    std::vector<MemorySample> samples(1);
    if (record) samples = record->samples(device);
    else samples[0].bytes[static_cast<std::size_t>(MemoryKind::other)] = memory_stats(device).peak_allocated;
    most.push_back(*std::max_element(samples.begin(), samples.end(), holds_less));
  }
  return most;
}

}  // namespace tapestry::distributed
