#pragma once
// A small net in one process, and as one rank or device sees it in each mode that divides a model.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/distributed/models.h"
#include "tests/support/distributed.h"

namespace tapestry::test::divided {

using namespace tapestry::distributed;  // NOLINT: only in this namespace
using distributed_test::Group;
using Values = StateDictCopy;

enum class Mode { single, fully_shard, sharded_data_parallel, zero, data_parallel, stage };
constexpr const char* kModes[] = {"single", "fully_shard",  "ShardedDataParallel",
                                  "ZeRO",   "DataParallel", "stage"};

struct First : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 4, .out_features = 5});
  nn::Parameter& kernel = param("kernel", zeros({3, 2, 3}));
  Tensor forward(const Tensor& x) override { return fc(x).tanh() * kernel.tensor().mean(); }
};
struct Last : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 5, .out_features = 3});
  Tensor forward(const Tensor& x) override { return fc(x); }
};
struct Net : nn::Module {
  First& first = add<First>("first");
  Last& last = add<Last>("last");
  Net() {
    to(DType::f64);
    fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) override { return last(first(x)); }
};

/// The net in one mode, as one rank sees it.
class Case {
 public:
  Case(Mode mode, const Group& group, const std::function<void(nn::Module&)>& before)
      : mode_(mode), group_(group) {
    if (before) before(net_);
    const DeviceList devices({Device("cpu:0"), Device("cpu:1")});
    if (mode == Mode::fully_shard) fully_shard(net_, {.group = group});
    if (mode == Mode::sharded_data_parallel)
      sharded_ = std::make_unique<ShardedDataParallel<Net>>(net_, devices);
    if (mode == Mode::zero)
      ddp_ = std::make_unique<DistributedDataParallel<Net>>(net_, DdpOptions{.process_group = group});
    if (mode == Mode::data_parallel) dp_ = std::make_unique<DataParallel<Net>>(net_, devices);
    if (mode == Mode::stage)
      pipeline_ = group->rank() == 0 ? std::make_unique<Pipeline>(group, Stage(net_.first, kCPU))
                                     : std::make_unique<Pipeline>(group, Stage(net_.last, kCPU));
    const optim::SGD::Options options{.lr = 0.1, .momentum = 0.9};
    if (mode == Mode::zero)
      optimizer_ = std::make_unique<ZeroRedundancyOptimizer<optim::SGD>>(
          parameters(), ZeroOptions{.process_group = group, .stage = 2}, options);
    else optimizer_ = std::make_unique<optim::SGD>(parameters(), options);
  }

  // The module that this rank has.
  nn::Module& model() { return part_of(net_); }
  /// The same part of another net.
  nn::Module& part_of(Net& other) const {
    if (mode_ != Mode::stage) return other;
    return group_->rank() == 0 ? static_cast<nn::Module&>(other.first) : other.last;
  }
  std::vector<nn::Parameter> parameters() { return model().parameters(); }
  // The linear layers that this rank has, with their names.
  std::vector<std::pair<std::string, nn::Linear*>> layers() {
    std::vector<std::pair<std::string, nn::Linear*>> found;
    for (const auto& [name, m] : model().named_modules())
      if (auto* const layer = dynamic_cast<nn::Linear*>(m)) found.emplace_back(m->path(), layer);
    return found;
  }
  bool has_kernel() const { return mode_ != Mode::stage || group_->rank() == 0; }
  Net& net() { return net_; }
  Mode mode() const { return mode_; }
  const Group& group() const { return group_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

  /// Computes the loss of four samples, of which each rank or device has two, and its gradients. Returns the
  /// loss, of a rank that has a part of the batch for this part.
  double backward(optim::GradScaler* scaler = nullptr) {
    if (scaler) scaler->scale(zeros({}, {DType::f64, kCPU}));
    const double scale = scaler ? scaler->get_scale() : 1;
    if (mode_ == Mode::stage)
      return pipeline_
          ->forward_backward(inputs_, targets_,
                             [&](const Tensor& y, const Tensor& t) { return mse_loss(y, t) * scale; })
          .item();
    const Tensor mean = loss();
    (mean * scale).backward();
    return mean.item();
  }
  Tensor loss() {
    const auto mine = [&](const Tensor& t) { return t.narrow(0, group_->rank() * 2, 2); };
    const auto of_part = [&](const Tensor& a, const Tensor& b) { return mse_loss(net_(a), b); };
    if (sharded_) return sharded_->loss(std::tie(inputs_, targets_), of_part);
    if (dp_) return dp_->loss(std::tie(inputs_, targets_), of_part);
    if (mode_ == Mode::single) return mse_loss(net_(inputs_), targets_);
    return mse_loss(ddp_ ? (*ddp_)(mine(inputs_)) : net_(mine(inputs_)), mine(targets_));
  }
  std::string full_name(const std::string& name) {
    return mode_ == Mode::stage ? model().path() + "." + name : name;
  }

  // The whole values of this rank's parameters, under their names in the net.
  Values values() {
    Values all;
    for (const auto& [name, slot] : net_.named_parameters()) {
      if (mode_ == Mode::stage && !name.starts_with(group_->rank() == 0 ? "first" : "last")) continue;
      std::vector<double> whole;
      const auto add = [&](const Tensor& t) {
        const std::vector<double> part = to_vector(t);
        whole.insert(whole.end(), part.begin(), part.end());
      };
      const auto of = [&](int r) { return slot.layout() ? slot.layout()->stored(r) : slot.replica(r); };
      if (slot.layout() && mode_ == Mode::fully_shard) {
        std::vector<Tensor> parts;
        const Tensor own = of(0).detach();
        const std::int64_t rows = slot.layout()->whole_sizes()[0];
        const std::int64_t each = (rows + 1) / 2;
        Shape padded = slot.layout()->whole_sizes();
        padded[0] = each;
        const Tensor mine = zeros(padded, {DType::f64, kCPU});
        mine.narrow(0, 0, own.size(0)).copy_(own);
        padded[0] = 2 * each;
        const Tensor joined = empty(padded, {DType::f64, kCPU});
        group_->all_gather(joined, mine).wait();
        add(joined.narrow(0, 0, rows));
      } else if (slot.layout()) {
        for (int r = 0; r < slot.replicas(); ++r) add(of(r));
      } else {
        add(of(0));
        for (int r = 1; r < slot.replicas(); ++r)
          if (to_vector(of(r)) != whole) all[name + " of the other replica"] = to_vector(of(r));
      }
      all[name] = whole;
    }
    return all;
  }

  static Tensor formula(const Shape& sizes, int k) {
    const Tensor t = empty(sizes, {DType::f64, kCPU});
    for (std::int64_t i = 0; i < t.numel(); ++i)
      t.data<double>()[i] = std::sin(0.9 * static_cast<double>(i) + k);
    return t;
  }

 private:
  const Tensor inputs_ = formula({4, 4}, 1), targets_ = formula({4, 3}, 2);
  const Mode mode_;
  const Group group_;
  Net net_;
  std::unique_ptr<ShardedDataParallel<Net>> sharded_;
  std::unique_ptr<DistributedDataParallel<Net>> ddp_;
  std::unique_ptr<DataParallel<Net>> dp_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

/// A public function, and what it does with a net in each mode.
struct Row {
  std::string function;
  /// For fully_shard, ShardedDataParallel, ZeRO, DataParallel and a stage of a pipeline over ranks:
  /// w works, r is refused, - does not apply, or has tests of its own.
  std::string verdicts;
  std::function<Values(Case&)> run;
  std::function<void(nn::Module&)> before = {};  ///< is called before the net is divided
};

/// The rows of all functions that read or write values of a model.
std::vector<Row> rows_of_functions();

}  // namespace tapestry::test::divided
