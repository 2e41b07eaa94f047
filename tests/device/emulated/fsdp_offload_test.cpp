// With FsdpOptions::offload, copies between host and GPU run on streams of their own. Here one stream at a
// time is slow: the streams of these copies, that of the computation, or that of the transport. A wait that
// is missing gives wrong values then.
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <stdexcept>
#include <thread>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/tapestry.h"
#include "tests/device/emulated/device.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using testing::emulated_gpus;

namespace {

constexpr int kRanks = 2;

// Until this time, a slow stream does nothing.
std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
}

// Work that is enqueued on this stream later begins after 20 ms, if the host polls or waits for it.
void delay(const Stream& stream) {
  emulated_gpus().launch_until(stream.native(),
                               [end = soon()] { return std::chrono::steady_clock::now() >= end; });
}

/// A transport between the emulated GPUs, like NCCL: a call enqueues its work on the current stream and
/// returns, and the work runs when the streams of all ranks have reached it. run_local_ranks() cannot take
/// its place, because its transport makes the host wait for copies.
class StreamBackend final : public Backend {
 public:
  struct Room {
    struct Meeting {
      std::vector<GatherPart> gathers[kRanks];
      std::vector<ScatterPart> scatters[kRanks];
      int arrived = 0;
    };
    std::map<int, Meeting> meetings;  // by the number of the call; used by the work of streams alone
    std::atomic<bool> aborted{false};
  };

  StreamBackend(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}

  /// Whether the calls from now on are slow.
  std::atomic<bool> slow{false};

  const char* name() const override { return "streams"; }
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  Device device() const override { return {DeviceType::cuda, rank_}; }
  void poll() override {
    if (room_->aborted) fail<DistributedError>("[streams] aborted");
  }
  void abort(const std::string&) noexcept override { room_->aborted = true; }

  using Backend::all_gather;
  using Backend::reduce_scatter;
  void all_gather(std::span<const GatherPart> parts, Deadline) override {
    enqueue([own = std::vector<GatherPart>(parts.begin(), parts.end())](Room::Meeting& m, int rank) {
      m.gathers[rank] = own;
      if (m.arrived < kRanks) return;
      for (std::size_t p = 0; p < own.size(); ++p)
        for (const std::vector<GatherPart>& to : m.gathers)
          for (int from = 0; from < kRanks; ++from)
            std::memmove(static_cast<std::byte*>(to[p].out) + static_cast<std::size_t>(from) * to[p].pitch,
                         m.gathers[from][p].in, to[p].bytes);
    });
  }
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, Deadline) override {
    enqueue([own = std::vector<ScatterPart>(parts.begin(), parts.end()), op](Room::Meeting& m, int rank) {
      m.scatters[rank] = own;
      if (m.arrived < kRanks) return;
      for (std::size_t p = 0; p < own.size(); ++p)
        for (int to = 0; to < kRanks; ++to) {
          const ScatterPart& part = m.scatters[to][p];
          const void* values[kRanks];
          for (int from = 0; from < kRanks; ++from)
            values[from] = static_cast<const std::byte*>(m.scatters[from][p].in) +
                           static_cast<std::size_t>(to) * m.scatters[from][p].pitch;
          reduce_in_order(part.out, values, kRanks, part.count, part.dtype, op);
        }
    });
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline) override {
    const GatherPart part{data, data, bytes, bytes};
    enqueue([part, root](Room::Meeting& m, int rank) {
      m.gathers[rank] = {part};
      if (m.arrived < kRanks) return;
      for (const std::vector<GatherPart>& to : m.gathers)
        std::memmove(to[0].out, m.gathers[root][0].in, to[0].bytes);
    });
  }

  void all_reduce(void*, std::int64_t, DType, ReduceOp, Deadline) override { refuse(); }
  void reduce(void*, std::int64_t, DType, ReduceOp, int, Deadline) override { refuse(); }
  void gather(const void*, void*, std::size_t, int, Deadline) override { refuse(); }
  void scatter(const void*, void*, std::size_t, int, Deadline) override { refuse(); }
  void all_to_all(const void*, void*, std::size_t, Deadline) override { refuse(); }
  void barrier(Deadline) override { refuse(); }
  void send(const void*, std::size_t, int, std::uint32_t, Deadline) override { refuse(); }
  void recv(void*, std::size_t, int, std::uint32_t, Deadline) override { refuse(); }
  std::shared_ptr<Backend> split(const std::vector<int>&, const std::shared_ptr<Store>&, Deadline) override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("the test needs no such collective"); }

  // join(meeting, rank) runs once on each rank's stream. The last rank to arrive does the work.
  template <class Join>
  void enqueue(Join join) {
    const auto begin = slow ? soon() : std::chrono::steady_clock::time_point();
    bool arrived = false;
    emulated_gpus().launch_until(
        current_stream(device()).native(),
        [room = room_, rank = rank_, call = calls_++, join = std::move(join), begin, arrived]() mutable {
          if (room->aborted) return true;
          if (std::chrono::steady_clock::now() < begin) return false;
          typename Room::Meeting& m = room->meetings[call];
          if (!arrived) {
            arrived = true;
            ++m.arrived;
            join(m, rank);
          }
          return m.arrived == kRanks;
        });
  }

  const std::shared_ptr<Room> room_;
  const int rank_;
  int calls_ = 0;
};

struct Three : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 8, .out_features = 8, .bias = false});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 8, .out_features = 8, .bias = false});
  nn::Linear& c = add<nn::Linear>("c", {.in_features = 8, .out_features = 8, .bias = false});
  Tensor forward(const Tensor& x) override { return c(b(a(x))); }
};

// Fills the shards of all replicas: the layers get w, 2 w and 3 w.
void fill(const Three& net, double w) {
  const NoGradGuard no_grad;
  double layer = 0;
  for (const nn::Parameter& slot : net.parameters()) {
    ++layer;
    for (int r = 0; r < slot.replicas(); ++r) slot.sharding()->shard(r).detach().fill_(layer * w);
  }
}

// Catch2's assertions are for one thread, so this throws.
void check_all(const Tensor& t, double expected, const char* what, std::size_t slow) {
  const Tensor own = t.detach().cpu();
  for (std::int64_t i = 0; i < own.numel(); ++i)
    check(std::abs(own.data<float>()[i] - expected) <= 1e-4 * std::abs(expected), what, " is ",
          own.data<float>()[i], " instead of ", expected, " while stream ", slow, " is slow; wait for it");
}

// The output for an input of ones, and the gradients of its sum, for `rows` rows.
void check_output(const Tensor& y, double w, std::size_t slow) {
  check_all(y, 3072 * w * w * w, "the output", slow);
}
void check_gradients(const Three& net, double w, double rows, std::size_t slow) {
  const double expected[] = {384, 192, 128};
  const std::vector<nn::Parameter> slots = net.parameters();
  for (std::size_t i = 0; i < 3; ++i)
    for (int r = 0; r < slots[i].replicas(); ++r)
      check_all(slots[i].replica(r).grad(), rows * expected[i] * w * w, "a gradient", slow);
}

// The streams of the device's pool that were handed out between two calls of new_stream().
std::vector<Stream> taken_between(Device device, const Stream& first, const Stream& last) {
  while (!(new_stream(device, true) == first)) {
  }
  std::vector<Stream> taken;
  for (Stream s = new_stream(device, true); !(s == last); s = new_stream(device, true)) taken.push_back(s);
  return taken;
}

using RankBody = std::function<void(const std::shared_ptr<ProcessGroup>&, StreamBackend* backend)>;

void run_ranks(bool over_streams, const RankBody& body) {
  const auto room = std::make_shared<StreamBackend::Room>();
  const std::shared_ptr<Store> store = memory_store();
  const auto local = local_backends(kRanks);
  std::exception_ptr errors[kRanks];
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      try {
        const auto streams = std::make_shared<StreamBackend>(room, r);
        std::shared_ptr<Backend> backend = streams;
        if (!over_streams) backend = local[static_cast<std::size_t>(r)];
        const auto group =
            make_process_group(backend, store, {.timeout = std::chrono::seconds(60), .check = false});
        try {
          body(group, over_streams ? streams.get() : nullptr);
        } catch (const std::exception& e) {
          group->abort(e.what());
          throw;
        }
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace

TEST_CASE("with offload, a slow stream changes no value") {
  emulated_gpus();
  for (const bool over_streams : {false, true})
    for (const int limit : {1, 2}) {
      CAPTURE(over_streams, limit);
      Three nets[kRanks];
      run_ranks(over_streams, [&](const std::shared_ptr<ProcessGroup>& group, StreamBackend* backend) {
        const Device device(DeviceType::cuda, group->rank());
        const DeviceGuard guard(device);
        Three& net = nets[group->rank()];
        net.to(device);
        const FsdpOptions options{
            .group = group, .reshard_after_forward = true, .max_full_units = limit, .offload = true};
        for (nn::Module* m : std::vector<nn::Module*>{&net.a, &net.b, &net.c, &net}) fully_shard(*m, options);
        const Tensor x = ones({3, 8}, device);
        const Stream first = new_stream(device, true);
        net(x).sum().backward();  // chooses the streams
        std::vector<Stream> slow = taken_between(device, first, new_stream(device, true));
        check(slow.size() >= 3, "there are ", slow.size(), " streams of copies; find them all");
        slow.push_back(current_stream(device));
        for (std::size_t i = 0; i < slow.size() + (backend ? 1 : 0); ++i) {
          const auto make_slow = [&] {
            if (i < slow.size()) delay(slow[i]);
            else backend->slow = true;
          };
          const double w = 0.1 * static_cast<double>(i + 1);
          fill(net, w);
          make_slow();
          const Tensor y = [&] {
            const NoGradGuard no_grad;
            return net(x);
          }();
          fill(net, -1);  // the host may change shards at once
          check_output(y, w, i);

          fill(net, w);
          for (const nn::Parameter& shard : net.parameters()) shard->set_grad({});
          make_slow();
          net(x).sum().backward();
          check_gradients(net, w, 3, i);
          if (backend) backend->slow = false;
        }
      });
    }
}

TEST_CASE("with offload, a slow stream of a ShardedDataParallel changes no value") {
  emulated_gpus();
  const Device devices[] = {"cuda:0", "cuda:1"};
  Three net;
  ShardedDataParallel sharded(net, {devices[0], devices[1]},
                              {.units = {&net.a, &net.b}, .backend = "local", .offload = true});
  const Tensor x = ones({6, 8}, kCPU);
  const Stream first[] = {new_stream(devices[0], true), new_stream(devices[1], true)};
  sharded(x).sum().backward();  // chooses the streams
  std::vector<Stream> slow[2];
  for (int d = 0; d < 2; ++d) slow[d] = taken_between(devices[d], first[d], new_stream(devices[d], true));
  REQUIRE(slow[0].size() >= 3);
  REQUIRE(slow[0].size() == slow[1].size());
  for (std::size_t i = 0; i < slow[0].size(); ++i) {
    const double w = 0.1 * static_cast<double>(i + 1);
    fill(net, w);
    for (const auto& of_device : slow) delay(of_device[i]);
    const Tensor y = [&] {
      const NoGradGuard no_grad;
      return sharded(x);
    }();
    fill(net, -1);
    check_output(y, w, i);

    fill(net, w);
    for (const nn::Parameter& slot : net.parameters())
      for (int r = 0; r < 2; ++r) slot.replica(r).set_grad({});
    for (const auto& of_device : slow) delay(of_device[i]);
    sharded(x).sum().backward();
    check_gradients(net, w, 6, i);
  }
}
