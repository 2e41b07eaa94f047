#include "tapestry/apps/compare/watched_model.h"

#include "tapestry/core/stream.h"
#include "tapestry/nn/functional.h"

namespace apps::compare {

using namespace tapestry;

namespace {

std::vector<nn::Parameter> parameters_of(const std::vector<Block>& blocks) {
  std::vector<nn::Parameter> all;
  for (const Block& b : blocks)
    for (const nn::Parameter& p : b.module->parameters()) all.push_back(p);
  return all;
}

std::vector<Block> blocks_on(Device device, const Workload& w) {
  std::vector<Block> blocks = make_blocks(w);
  for (const Block& b : blocks) b.module->to(device);
  return blocks;
}

}  // namespace

void SpanWatcher::enter(Activity activity, std::size_t k) {
  const char* const name = activity == Activity::optimizer ? "update" : activity_name(activity);
  span_.reset();
  span_.emplace(device_, activity, name, static_cast<int>(k));
}

WatchedModel::WatchedModel(const Workload& w, Device device)
    : device_(device),
      blocks_(blocks_on(device, w)),
      optimizer_(parameters_of(blocks_), {.lr = w.lr}),
      batch_(make_batch(w)) {
  batch_ = {batch_.images.to(device), batch_.labels.to(device)};
}

std::vector<nn::Parameter> WatchedModel::parameters() const { return parameters_of(blocks_); }

std::int64_t WatchedModel::parameter_bytes() const {
  std::int64_t bytes = 0;
  for (const nn::Parameter& p : parameters()) bytes += static_cast<std::int64_t>(p->nbytes());
  return bytes;
}

void WatchedModel::forward(std::int64_t n, Watcher& watcher, bool keep_gradients) {
  watcher_ = &watcher;
  if (!keep_gradients) optimizer_.zero_grad();
  Tensor x = images(n);
  for (std::size_t k = 0; k < count(); ++k) {
    watcher.enter(Activity::forward, k);
    x = (*blocks_[k].module)(x);
    x.register_hook([&watcher, k](const Tensor&) {
      watcher.enter(Activity::backward, k);
      return Tensor();
    });
  }
  watcher.enter(Activity::forward, count());
  loss_ = cross_entropy(x, labels(n));
  watcher.leave();
  synchronize(device_);
}

void WatchedModel::backward() {
  watcher_->enter(Activity::backward, count());
  loss_.backward();
  watcher_->leave();
  loss_ = {};
  synchronize(device_);
}

void WatchedModel::update(Watcher& watcher) {
  watcher.enter(Activity::optimizer, 0);
  optimizer_.step();
  watcher.leave();
  synchronize(device_);
}

}  // namespace apps::compare
