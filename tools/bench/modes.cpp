// Tapestry's side of tools/bench_modes: `bench_modes MODE MODEL` is one rank of a job. Only the mode ddp has
// more than one rank. Rank 0 reads lines from standard input and answers each:
//   step REPEATS     the times of REPEATS whole training steps, in milliseconds
//   overlap REPEATS  for the modes replicated and ddp: the time of the gradient exchange, and the part of
//                    it that the backward pass did not hide; medians in milliseconds
//   memory           the peak size of all tensors of each device or rank, in MiB
//   parts REPEATS    for the mode replicated: an empty call of the workers, scatter, gather, replicate and
//                    averaging; for each the median in microseconds, and the bytes moved
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tapestry/core/internal/worker.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/models.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

constexpr std::int64_t kBatch = 128;  // the batch size of both devices together

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class F>
double median_microseconds(int repeats, const F& f) {
  std::vector<double> times;
  for (int i = 0; i < repeats + 2; ++i) {
    const auto start = Clock::now();
    f();
    if (i >= 2) times.push_back(milliseconds_since(start) * 1e3);
  }
  return median(times);
}

template <class M>
class Trainer {
 public:
  Trainer(const std::string& mode, const Shape& sample, const std::shared_ptr<ProcessGroup>& group)
      : group_(group) {
    const std::int64_t batch = kBatch / group->size();
    Shape input = sample;
    input.insert(0, batch);
    x_ = randn(input);
    target_ = randint(0, 10, {batch});
    if (mode == "single") {
      loss_ = [this] { return cross_entropy(model_(x_), target_); };
    } else if (mode == "ddp") {
      ddp_.emplace(model_, DdpOptions{.process_group = group});
      loss_ = [this] { return cross_entropy((*ddp_)(x_), target_); };
    } else if (mode == "dp-master") {
      dp_.emplace(model_, DeviceList{0, 1}, DataParallelOptions{.mode = DataParallelMode::master});
      loss_ = [this] { return cross_entropy((*dp_)(x_), target_); };
    } else if (mode == "dp-replicated") {
      dp_.emplace(model_, DeviceList{0, 1});
      loss_ = [this] {
        return dp_->loss(std::tie(x_, target_),
                         [this](const Tensor& x, const Tensor& y) { return cross_entropy(model_(x), y); });
      };
    } else {
      fail("[bench_modes] unknown mode ", mode);
    }
    optimizer_.emplace(model_.parameters(), optim::SGD::Options{.lr = 0.01, .momentum = 0.9});
  }

  std::string answer(const std::string& command, int repeats) {
    if (command == "step") return step_times(repeats);
    if (command == "overlap") return overlap(repeats);
    if (command == "memory") return memory();
    if (command == "parts") return parts(repeats);
    fail("[bench_modes] unknown command ", command);
  }

 private:
  void step() {
    optimizer_->zero_grad();
    loss_().backward();
    optimizer_->step();
  }

  std::string step_times(int repeats) {
    std::string times;
    for (int i = 0; i < repeats; ++i) {
      const auto start = Clock::now();
      step();
      times += std::to_string(milliseconds_since(start)) + ' ';
    }
    return times;
  }

  std::string overlap(int repeats) {
    std::vector<double> exchanged, exposed;
    for (int i = 0; i < repeats; ++i) {
      step();
      const DdpReport report = ddp_ ? ddp_->report() : dp_->report();
      exchanged.push_back(report.communication_s * 1e3);
      exposed.push_back(report.exposed_s * 1e3);
    }
    return concat({median(exchanged), " ", median(exposed)});
  }

  std::string memory() {
    std::string peaks;
    for (const Device d : dp_ ? dp_->devices() : std::vector<Device>{"cpu:0"})
      peaks += concat({static_cast<double>(memory_stats(d).peak_allocated) / (1 << 20), " "});
    std::string all;
    for (const std::string& rank : all_gather_text(*group_, peaks)) all += rank;
    return all;
  }

  std::string parts(int repeats) {
    const std::vector<Device>& devices = dp_->devices();
    std::ostringstream out;
    out << median_microseconds(repeats, [&] { on_workers(devices, [](int) {}); }) << " 0 ";

    const TensorList batch = tensors_in(std::tie(x_, target_));
    out << median_microseconds(repeats, [&] { scatter_tensors(batch, devices); }) << ' '
        << (x_.nbytes() + target_.nbytes()) / 2 << ' ';

    std::vector<std::vector<Tensor>> outputs;
    for (const Device d : devices) outputs.push_back({randn({kBatch / 2, 10}, d)});
    out << median_microseconds(repeats, [&] { gather_tensors(outputs, devices[0]); }) << ' '
        << outputs[1][0].nbytes() << ' ';

    std::int64_t elements = 0;
    for (const nn::Parameter& p : model_.parameters()) elements += p->numel();
    const auto bytes = static_cast<std::size_t>(elements) * sizeof(float);
    out << median_microseconds(repeats, [&] { replicate(model_, devices); }) << ' ' << bytes << ' ';

    double averaging = 0;
    run_local_ranks(2,
                    [&](const std::shared_ptr<ProcessGroup>& group) {
                      const Tensor gradients = randn({elements});
                      const double took = median_microseconds(
                          repeats, [&] { group->all_reduce(gradients, ReduceOp::mean).wait(); });
                      if (group->rank() == 0) averaging = took;
                    },
                    {.check = false});
    out << averaging << ' ' << bytes;
    return out.str();
  }

  M model_;
  std::shared_ptr<ProcessGroup> group_;
  Tensor x_, target_;
  std::optional<DistributedDataParallel<M>> ddp_;
  std::optional<DataParallel<M>> dp_;
  std::optional<optim::SGD> optimizer_;
  std::function<Tensor()> loss_;
};

template <class M>
void serve(const std::string& mode, const Shape& sample) {
  const auto group = init_process_group();
  Trainer<M> trainer(mode, sample, group);
  for (;;) {
    std::string line;
    if (group->rank() == 0) std::getline(std::cin, line);
    line = broadcast_text(*group, line);
    std::istringstream words(line);
    std::string command;
    int repeats = 0;
    if (!(words >> command)) return;
    words >> repeats;
    const std::string answer = trainer.answer(command, repeats);
    if (group->rank() == 0) std::cout << answer << std::endl;
  }
}

}  // namespace

int main(int count, char** args) try {
  check(count == 3, "[bench_modes] usage: bench_modes MODE cnn|mlp");
  const std::string mode = args[1], model = args[2];
  if (model == "cnn") serve<bench::Cnn>(mode, {1, 28, 28});
  else serve<bench::WideMlp>(mode, {784});
} catch (const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
