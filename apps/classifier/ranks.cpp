#include "tapestry/apps/classifier/ranks.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/ddp/sync_batchnorm.h"

namespace apps {

using namespace tapestry;
using distributed::ReduceOp;

Ranks::Ranks(const Options& options) : requests_(zeros({1}, DType::u8)) {
  const int processes = distributed::read_environment().world_size;
  if (processes > 1 && options.parallel != "ddp")
    fail<UsageError>("[classifier] this is one of ", processes,
                     " processes, which would all train the same model; add --parallel ddp");
  group_ = distributed::init_process_group();
}

void Ranks::wrap(nn::Module& model, const Options& options) {
  if (options.parallel == "none") return;
  if (options.parallel == "dp") {
    std::vector<Device> devices{options.device};  // outputs are gathered on the first device
    for (int i = 0; i < device_count(devices[0].type); ++i)
      if (i != devices[0].index) devices.emplace_back(devices[0].type, i);
    dp_.emplace(model, devices);
    return;
  }
  if (options.sync_batchnorm) distributed::convert_sync_batchnorm(model, group_);
  ddp_.emplace(model, distributed::DdpOptions{.process_group = group_});
  if (options.compress == "f16") ddp_->set_comm_hook(distributed::f16_compress);
  if (options.compress == "bf16") ddp_->set_comm_hook(distributed::bf16_compress);
}

Tensor Ranks::forward(nn::Module& model, const Tensor& x) {
  return ddp_ ? (*ddp_)(x) : dp_ ? (*dp_)(x) : model(x);
}

void Ranks::sync_buffers() {
  if (ddp_) ddp_->sync_buffers();
}

Tally Ranks::sum(const Tally& own) const {
  double parts[3] = {own.loss, static_cast<double>(own.right), static_cast<double>(own.count)};
  group_->all_reduce(from_blob(parts, {3}, DType::f64), ReduceOp::sum, "tally").wait();
  return {parts[0], static_cast<std::int64_t>(parts[1]), static_cast<std::int64_t>(parts[2])};
}

void Ranks::sum(std::vector<std::int64_t>& counts) const {
  group_
      ->all_reduce(from_blob(counts.data(), {static_cast<std::int64_t>(counts.size())}, DType::i64),
                   ReduceOp::sum, "confusion")
      .wait();
}

bool Ranks::stop(bool requested) {
  if (size() == 1) return requested;
  if (asking_) asked_.wait();
  const bool stops = requests_.item<int>() != 0;
  requests_.fill_(requested || stops);
  asked_ = group_->all_reduce(requests_, ReduceOp::max, "stop?");
  asking_ = true;
  return stops;
}

}  // namespace apps
