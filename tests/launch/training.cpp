#include "tests/launch/training.h"

#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <sstream>
#include <thread>

#include "tapestry/tapestry.h"
#include "tests/launch/job.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace std::chrono_literals;

namespace tests {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name, const std::string& otherwise = "") {
  const char* const value = std::getenv(name);
  return value ? value : otherwise;
}

/// Returns the fault of the job's n-th start.
Fault fault_of_start(int n) {
  std::istringstream all(variable("JOB_FAULTS"));
  std::string one;
  for (int i = 0; i <= n; ++i)
    if (!std::getline(all, one, ';')) return {};
  Fault fault;
  std::istringstream(one) >> fault.what >> fault.where >> fault.step >> fault.rank;
  return fault;
}

void strike(const Fault& fault) {
  if (fault.what == "KILL") raise(SIGKILL);
  if (fault.what == "STOP") raise(SIGSTOP);
}

/// Triggers a fault from another thread as soon as `now` returns true.
class Ambush {
 public:
  template <class F>
  Ambush(const Fault& fault, F now)
      : thread_([this, fault, now] {
          while (!over_ && !now()) std::this_thread::sleep_for(20us);
          if (!over_) strike(fault);
        }) {}
  ~Ambush() {
    over_ = true;
    thread_.join();
  }
  Ambush(const Ambush&) = delete;
  Ambush& operator=(const Ambush&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

/// The model is large enough for several buckets and for a checkpoint whose write takes a measurable time.
struct Net : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 32, .out_features = 640});
  nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", {.num_features = 640});
  nn::Dropout& drop = add<nn::Dropout>("drop", {.p = 0.3});
  nn::Linear& wide = add<nn::Linear>("wide", {.in_features = 640, .out_features = 640});
  nn::Linear& last = add<nn::Linear>("last", {.in_features = 640, .out_features = 4});
  std::function<void()> in_forward = [] {}, in_backward = [] {};

  Tensor forward(const Tensor& x) override {
    const Tensor hidden = wide(drop(norm(first(x)).relu()));
    in_forward();
    if (hidden.requires_grad())
      hidden.register_hook([this](const Tensor& gradient) {
        in_backward();
        return gradient;
      });
    return last(hidden.relu());
  }
};

/// Returns 6 samples per rank and step. The pattern of a sample determines its class.
std::pair<Tensor, Tensor> batch(std::int64_t step, int rank) {
  const Tensor x = empty({6, 32}), labels = empty({6}, DType::i64);
  for (int n = 0; n < 6; ++n) {
    const int sample = static_cast<int>(step) * 64 + rank * 6 + n;
    labels.data<std::int64_t>()[n] = sample % 4;
    for (int i = 0; i < 32; ++i)
      x.data<float>()[n * 32 + i] =
          std::cos(0.37f * static_cast<float>(sample * (i + 1))) + (i % 4 == sample % 4 ? 0.5f : 0.0f);
  }
  return {x, labels};
}

std::shared_ptr<ProcessGroup> join() {
  const std::string store = variable("JOB_STORE");
  if (store.empty()) return init_process_group();
  const auto self = distributed_test::child_rank();
  return init_process_group(
      {.backend = "gloo", .init_method = store, .rank = self.rank, .world_size = self.size, .group = {}});
}

/// Kills this process as soon as a file grows beyond `bytes`.
void die_within_write(rlim_t bytes) {
  std::signal(SIGXFSZ, [](int) { raise(SIGKILL); });
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("setrlimit failed");
}

class Trainer {
 public:
  explicit Trainer(const Fault& fault) : fault_(fault), world_(join()) {
    net_.in_forward = [this] { at("forward"); };
    net_.in_backward = [this] { at("backward"); };
    progress_ = checkpoints_.resume(training_).value_or(nn::Progress{});
    if (progress_.step == 0) manual_seed_by_rank(*world_, 11);
  }

  void run(std::int64_t steps) {
    while (progress_.step < steps) {
      began_ = Clock::now();
      step();
    }
    began_ = Clock::now();
    world_->barrier("end").wait();
    nn::save_model(dir_ / ("weights." + std::to_string(world_->rank())), net_);
  }
  Clock::time_point step_began() const { return began_; }

 private:
  bool now(const char* where) const { return fault_.where == where && fault_.step == progress_.step; }
  bool here(const char* where) const { return now(where) && fault_.rank == world_->rank(); }
  void at(const char* where) {
    if (here(where)) strike(fault_);
  }

  void step() {
    const auto [x, labels] = batch(progress_.step, world_->rank());
    optimizer_.zero_grad();
    const Tensor loss = cross_entropy(ddp_(x), labels);
    if (here("barrier")) world_->barrier("evaluation").wait();
    if (here("backward") &&
        fault_.what == "SKIP") {  // simulates a program that skips a batch with a NaN loss
      fault_ = {};
      return;
    }
    {
      std::optional<Ambush> ambush;
      if (here("reduce"))
        ambush.emplace(fault_, [this] {
          const auto running = world_->recorder().running();
          return !running.empty() && running[0].op == Op::all_reduce;
        });
      else if (now("reduce"))
        std::this_thread::sleep_for(
            200ms);  // lets the faulty rank wait in its all_reduce, where the fault happens
      loss.backward();
      if (ambush) strike(fault_);  // the ambush did not trigger in time
    }
    optimizer_.step();
    const Tensor sum = full({here("shape") ? 2 : 1}, loss.item(), here("dtype") ? DType::f64 : DType::f32);
    world_->all_reduce(sum, ReduceOp::mean, "loss").wait();
    ++progress_.step;
    if (progress_.step % 2 == 0) save();
  }

  void save() {
    if (here("save")) die_within_write(1 << 21);  // the whole file has 5 MB
    checkpoints_.save(training_, progress_);
  }

  Fault fault_;
  const fs::path dir_ = variable("DIR");
  std::shared_ptr<ProcessGroup> world_;
  Net net_;
  DistributedDataParallel<Net> ddp_{net_, {.process_group = world_}};
  optim::AdamW optimizer_{net_.parameters(), {.lr = 0.003}};
  Checkpointer checkpoints_{dir_ / "checkpoints", world_, {.keep_last = 2}};
  const nn::Training training_{&net_, &optimizer_, nullptr};
  nn::Progress progress_;
  Clock::time_point began_ = Clock::now();
};

}  // namespace

TEST_CASE("a rank of a job that trains", "[.]") {
  const Environment e = read_environment();
  const int rank = variable("JOB_STORE").empty() ? e.rank : distributed_test::child_rank().rank;
  const Fault fault = fault_of_start(e.restart);
  if (fault.where == "start" && fault.rank == rank) strike(fault);
  if (const char* const secret = std::getenv("JOB_SECRET_OF_1"); secret && rank == 1)
    setenv("TAPESTRY_SECRET", secret, 1);
  manual_seed(7);
  const Clock::time_point began = Clock::now();
  std::optional<Trainer> trainer;
  try {
    trainer.emplace(fault);
    trainer->run(std::stoi(variable("JOB_STEPS")));
  } catch (const std::exception& error) {
    const Clock::time_point since = trainer ? trainer->step_began() : began;
    std::printf("told after %.1f s: %s\n", std::chrono::duration<double>(Clock::now() - since).count(),
                error.what());
    std::fflush(stdout);
    throw;
  }
}

std::string to_text(const std::vector<Fault>& faults) {
  std::ostringstream text;
  for (const Fault& f : faults) text << f.what << ' ' << f.where << ' ' << f.step << ' ' << f.rank << ';';
  return text.str();
}

std::vector<std::int64_t> check_checkpoints(const fs::path& dir) {
  const fs::path folder = dir / "checkpoints";
  const nn::Checkpointer checkpoints(folder);  // as in the next start of the job
  std::size_t files = 0;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().filename() == ".lock") continue;
    if (file.path().extension() != ".safetensors")
      throw std::runtime_error("left behind: " + file.path().string());
    Net net;
    optim::AdamW optimizer{net.parameters(), {.lr = 1}};
    nn::load_checkpoint(file.path(), {&net, &optimizer, nullptr});
    ++files;
  }
  std::vector<std::int64_t> steps = checkpoints.steps();
  if (files != steps.size()) throw std::runtime_error("files that are no checkpoints in " + folder.string());
  return steps;
}

const std::vector<std::string>& undisturbed_weights(int ranks, int steps) {
  static std::map<std::pair<int, int>, std::vector<std::string>> known;
  std::vector<std::string>& weights = known[{ranks, steps}];
  if (!weights.empty()) return weights;
  Job job({"--nproc-per-node", std::to_string(ranks), own_path(), kTrainingRank},
          {"JOB_STEPS=" + std::to_string(steps), "OMP_NUM_THREADS=1", "TAPESTRY_TIMEOUT_S=60"});
  if (job.wait(120) != 0) throw std::runtime_error("the undisturbed job failed: " + job.out() + job.err());
  for (int rank = 0; rank < ranks; ++rank) weights.push_back(job.file("weights." + std::to_string(rank)));
  return weights;
}

}  // namespace tests
