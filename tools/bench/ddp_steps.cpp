// Tapestry's side of tools/bench_ddp: one rank of a job. Rank 0 reads lines from standard input and answers
// each:
//   step REPEATS [bf16]           the times of REPEATS whole training steps of the CNN, in milliseconds;
//                                 bf16: under autocast
//   overlap BUCKET_MB MS_PER_MB   for the MLP: backward, communication, its hidden and its exposed part in
//                                 milliseconds, and the number of buckets; medians of 11 passes. A simulated
//                                 slow link adds MS_PER_MB to each MB.
//   memory                        the peak resident size of each rank, in MiB
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>

#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/models.h"

using namespace tapestry;
using namespace tapestry::distributed;
using bench::Cnn;

namespace {

// 26 million parameters in layers of 1 MiB, so there are 100 MiB of gradients.
struct Mlp : nn::Module {
  nn::ModuleList& layers = add<nn::ModuleList>("layers");
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 512, .out_features = 10});
  Mlp() {
    for (int i = 0; i < 100; ++i) layers.append<nn::Linear>({.in_features = 512, .out_features = 512});
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (nn::Module* layer : layers.children()) h = (*layer)(h).relu();
    return head(h);
  }
};

using Group = std::shared_ptr<ProcessGroup>;

template <class M>
class Trainer {
 public:
  Trainer(const Group& group, const Shape& input, double bucket_mb)
      : ddp_(model_, {.process_group = group,
                      .bucket_cap_mb = bucket_mb,
                      .first_bucket_mb = std::min(bucket_mb, 1.0)}),
        x_(randn(input)),
        target_(randint(0, 10, {input[0]})) {}

  void step(bool low = false) {
    optimizer_.zero_grad();
    loss(low).backward();
    optimizer_.step();
  }
  DistributedDataParallel<M>& ddp() { return ddp_; }

 private:
  Tensor loss(bool low) {
    const AutocastGuard autocast(DType::bf16, {.enabled = low});
    return cross_entropy(ddp_(x_), target_);
  }

  M model_;
  DistributedDataParallel<M> ddp_;
  optim::SGD optimizer_{model_.parameters(), {.lr = 0.01, .momentum = 0.9}};
  Tensor x_, target_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::string times_of_steps(Trainer<Cnn>& work, int repeats, bool low) {
  std::string times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    work.step(low);
    times += std::to_string(std::chrono::duration<double, std::milli>(Clock::now() - start).count()) + ' ';
  }
  return times;
}

std::string overlap(const Group& group, double bucket_mb, double ms_per_mb) {
  Trainer<Mlp> work(group, {64, 512}, bucket_mb);
  if (ms_per_mb > 0)
    work.ddp().set_comm_hook([=](ProcessGroup& g, GradBucket& bucket) {
      const double ms = ms_per_mb * static_cast<double>(bucket.gradients.nbytes()) / (1 << 20);
      const Work link = g.enqueue(
          [ms] { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }, "slow link");
      return InFlight{g.all_reduce(bucket.gradients, ReduceOp::mean, bucket.name)};
    });
  std::vector<double> backward, communication, hidden, exposed;
  for (int i = 0; i < 13; ++i) {
    work.step();
    if (i < 2) continue;  // skip the first passes, in which DDP learns the order of the buckets
    const DdpReport r = work.ddp().report();
    double bytes = 0;
    for (const BucketReport& b : r.buckets) bytes += static_cast<double>(b.bytes);
    // The report does not include the delay of the simulated link.
    const double ms = r.communication_s * 1e3 + ms_per_mb * bytes / (1 << 20);
    backward.push_back(r.backward_s * 1e3), communication.push_back(ms);
    exposed.push_back(r.exposed_s * 1e3), hidden.push_back(std::max(0.0, ms - exposed.back()));
  }
  std::ostringstream out;
  out << median(backward) << ' ' << median(communication) << ' ' << median(hidden) << ' ' << median(exposed)
      << ' ' << work.ddp().buckets().size();
  return out.str();
}

std::string memory(ProcessGroup& group) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::string all;
  for (const std::string& mib : all_gather_text(group, std::to_string(usage.ru_maxrss / 1024)))
    all += mib + ' ';
  return all;
}

}  // namespace

int main() try {
  const Group group = init_process_group();
  Trainer<Cnn> cnn(group, {64, 1, 28, 28}, 25);
  for (;;) {
    std::string line;
    if (group->rank() == 0) std::getline(std::cin, line);
    line = broadcast_text(*group, line);
    std::istringstream words(line);
    std::string command;
    if (!(words >> command)) return 0;
    std::string answer, precision;
    int repeats = 0;
    double bucket_mb = 0, ms_per_mb = 0;
    if (command == "step" && words >> repeats)
      answer = times_of_steps(cnn, repeats, words >> precision && precision == "bf16");
    else if (command == "overlap" && words >> bucket_mb >> ms_per_mb)
      answer = overlap(group, bucket_mb, ms_per_mb);
    else if (command == "memory") answer = memory(*group);
    else fail("[bench_ddp_steps] unknown command ", line);
    if (group->rank() == 0) std::cout << answer << std::endl;
  }
} catch (const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
