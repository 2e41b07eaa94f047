// Tapestry's side of tools/bench_fsdp: `bench_fsdp MODE MODEL` is one rank of a job. Rank 0 reads lines from
// standard input and answers each:
//   save PATH      writes the initial weights
//   losses STEPS   the losses of STEPS steps of SGD and of STEPS steps of AdamW after them, rank by rank
//   step REPEATS   the times of REPEATS training steps with AdamW, in milliseconds
//   waits REPEATS  per step, in milliseconds: the time of the transport, and the time that computation waited
//                  for it; medians
//   memory         the peak size of all tensors of each rank since the first step was timed, in MiB
// fsdp_overlap.cpp has `bench_fsdp overlap`.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/nn/checkpoint.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/fsdp_overlap.h"
#include "tapestry/tools/bench/models.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

constexpr double kLr = 1e-3;
constexpr std::int64_t kBatches = 4;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Numbers below `limit` that fsdp_torch.py computes by the same formula.
Tensor words(const Shape& shape, std::int64_t limit, std::int64_t seed) {
  const Tensor t = empty(shape, {DType::i64, kCPU});
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<std::int64_t>()[i] = ((i + 1) * (seed + 7919) * 1103515245 / 65536) % limit;
  return t;
}

template <class M>
class Trainer {
 public:
  Trainer(const std::string& mode, std::int64_t batch, std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)),
        stage_(mode == "zero1"   ? 1
               : mode == "zero2" ? 2
                                 : 0) {
    for (std::int64_t k = 0; k < kBatches; ++k) {
      const std::int64_t seed = 2 * (kBatches * group_->rank() + k);
      ids_.push_back(words({batch, M::kLength}, M::kWords, seed));
      next_.push_back(words({batch * M::kLength}, M::kWords, seed + 1));
    }
    if (mode == "fsdp" || mode == "fsdp-keep") {
      const FsdpOptions options{.group = group_, .reshard_after_forward = mode == "fsdp"};
      for (nn::Module* block : model_.blocks) fully_shard(*block, options);
      fsdp_.emplace(fully_shard(model_, {.group = group_}));
    } else {
      check(mode == "ddp" || stage_ > 0, "[bench_fsdp] unknown mode ", mode);
      ddp_.emplace(model_, DdpOptions{.process_group = group_});
    }
  }

  std::string answer(const std::string& command, std::istringstream& words) {
    std::string path;
    int repeats = 0;
    if (command == "save" && words >> path) {
      if (group_->rank() == 0) nn::save_model(path, model_);
      return "0";
    }
    if (command == "memory")
      return of_all_ranks(static_cast<double>(memory_stats(kCPU).peak_allocated) / (1 << 20));
    check(static_cast<bool>(words >> repeats), "[bench_fsdp] unknown command ", command);
    if (command == "losses") return losses(repeats);
    if (command == "step") return times(repeats);
    if (command == "waits") return waits(repeats);
    fail("[bench_fsdp] unknown command ", command);
  }

 private:
  template <class O>
  void optimize_with(const typename O::Options& options) {
    optimizer_.reset();
    if (stage_ > 0)
      optimizer_ = std::make_unique<ZeroRedundancyOptimizer<O>>(
          model_.parameters(), ZeroOptions{.process_group = group_, .stage = stage_}, options);
    else optimizer_ = std::make_unique<O>(model_.parameters(), options);
  }

  Tensor step(std::int64_t k) {
    const auto at = static_cast<std::size_t>(k % kBatches);
    optimizer_->zero_grad();
    const Tensor loss = cross_entropy(ddp_ ? (*ddp_)(ids_[at]) : model_(ids_[at]), next_[at]);
    loss.backward();
    optimizer_->step();
    return loss;
  }

  std::string of_all_ranks(double value) {
    std::ostringstream text;
    text.precision(9);
    text << value << ' ';
    std::string all;
    for (const std::string& rank : all_gather_text(*group_, text.str())) all += rank;
    return all;
  }

  // AdamW gives the same steps if all gradients are multiplied by a number. SGD does not.
  std::string losses(int steps) {
    std::string all;
    optimize_with<optim::SGD>({.lr = 0.1});
    for (int i = 0; i < steps; ++i) all += of_all_ranks(step(i).item());
    optimize_with<optim::AdamW>({.lr = kLr});
    for (int i = 0; i < steps; ++i) all += of_all_ranks(step(i).item());
    reset_peak_memory(kCPU);
    return all;
  }

  std::string times(int repeats) {
    std::string all;
    for (int i = 0; i < repeats; ++i) {
      const auto start = Clock::now();
      step(i);
      all += std::to_string(std::chrono::duration<double, std::milli>(Clock::now() - start).count()) + ' ';
    }
    return all;
  }

  std::string waits(int repeats) {
    std::vector<double> transport, exposed;
    for (int i = 0; i < repeats; ++i) {
      if (fsdp_) fsdp_->reset_report();
      step(i);
      double transport_s = 0, exposed_s = 0;
      if (fsdp_)
        for (const FsdpUnitReport& unit : fsdp_->report().units) {
          transport_s += unit.gather_s + unit.scatter_s;
          exposed_s += unit.exposed_s;
        }
      else {
        const DdpReport report = ddp_->report();
        transport_s = report.communication_s, exposed_s = report.exposed_s;
      }
      transport.push_back(transport_s * 1e3), exposed.push_back(exposed_s * 1e3);
    }
    return concat({median(transport), " ", median(exposed)});
  }

  M model_;
  std::shared_ptr<ProcessGroup> group_;
  int stage_;
  std::vector<Tensor> ids_, next_;
  std::optional<DistributedDataParallel<M>> ddp_;
  std::optional<FullyShard> fsdp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

template <class M>
void serve(const std::string& mode, std::int64_t batch) {
  // A rank waits in a broadcast while other jobs have their turns.
  const Milliseconds wait(3'600'000);
  const auto group = init_process_group({.group = {.timeout = wait, .warn_after = wait}});
  manual_seed(0);
  Trainer<M> trainer(mode, batch, group);
  for (;;) {
    std::string line;
    if (group->rank() == 0) std::getline(std::cin, line);
    line = broadcast_text(*group, line);
    std::istringstream words(line);
    std::string command;
    if (!(words >> command)) return;
    const std::string answer = trainer.answer(command, words);
    if (group->rank() == 0) std::cout << answer << std::endl;
  }
}

}  // namespace

int main(int count, char** args) try {
  const std::string mode = count > 1 ? args[1] : "", model = count > 2 ? args[2] : "";
  if (mode == "overlap") {
    bench::measure_overlap(count > 2 ? std::stoi(model) : 5);
    return 0;
  }
  check(count == 3 && (model == "gpt" || model == "deep"),
        "[bench_fsdp] usage: bench_fsdp MODE gpt|deep, or bench_fsdp overlap [ROUNDS]");
  if (model == "gpt") serve<bench::Gpt>(mode, 4);
  else serve<bench::DeepGpt>(mode, 2);
} catch (const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
