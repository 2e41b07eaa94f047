// With FsdpOptions::offload, copies between host and GPU run on streams of their own. The machine checks that
// all accesses of streams to the same bytes are ordered, and runs work as late as CUDA allows, so that the
// host reads old bytes if it forgets to wait. This needs a build with CUDA and with the shared CUDA runtime.
#if TAPESTRY_LIBRARY_HAS_CUDA
#include <atomic>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/tapestry.h"
#include "tests/cuda_runtime/gpus.h"

using namespace tapestry::distributed;

namespace {

constexpr int kRanks = 2;  // of each group

/// A transport between the GPUs, like NCCL: a call enqueues its work on the current stream and returns, and
/// the work runs when the streams of all ranks have reached it. run_local_ranks() cannot take its place,
/// because its transport makes the host wait for copies.
class StreamBackend final : public Backend {
 public:
  struct Room {
    struct Meeting {
      std::vector<std::vector<std::byte>> sent[kRanks];
      int arrived = 0;
    };
    std::map<int, Meeting> meetings;  // by the number of the call; used by the work of streams alone
    std::atomic<bool> aborted{false};
  };

  StreamBackend(std::shared_ptr<Room> room, int rank, int gpu)
      : room_(std::move(room)), rank_(rank), gpu_(gpu) {}

  const char* name() const override { return "streams"; }
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  Device device() const override { return {DeviceType::cuda, gpu_}; }
  void poll() override {
    if (room_->aborted) fail<DistributedError>("[streams] aborted");
  }
  void abort(const std::string&) noexcept override { room_->aborted = true; }

  using Backend::all_gather;
  using Backend::reduce_scatter;
  void all_gather(std::span<const GatherPart> parts, Deadline) override {
    const std::vector<GatherPart> own(parts.begin(), parts.end());
    enqueue(
        [own](Pieces& sent) {
          for (const GatherPart& part : own) sent.push_back(read(part.in, part.bytes));
        },
        [own](Room::Meeting& m, int) {
          for (std::size_t p = 0; p < own.size(); ++p)
            for (std::size_t from = 0; from < kRanks; ++from)
              write(static_cast<std::byte*>(own[p].out) + from * own[p].pitch, m.sent[from][p]);
        });
  }
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, Deadline) override {
    const std::vector<ScatterPart> own(parts.begin(), parts.end());
    const auto bytes = [](const ScatterPart& p) {
      return static_cast<std::size_t>(p.count) * dtype_size(p.dtype);
    };
    enqueue(
        [own, bytes](Pieces& sent) {
          for (const ScatterPart& part : own)
            for (std::size_t to = 0; to < kRanks; ++to)
              sent.push_back(read(static_cast<const std::byte*>(part.in) + to * part.pitch, bytes(part)));
        },
        [own, bytes, op](Room::Meeting& m, int rank) {
          for (std::size_t p = 0; p < own.size(); ++p) {
            const void* values[kRanks];
            for (std::size_t from = 0; from < kRanks; ++from)
              values[from] = m.sent[from][p * kRanks + static_cast<std::size_t>(rank)].data();
            std::vector<std::byte> sums(bytes(own[p]));
            reduce_in_order(sums.data(), values, kRanks, own[p].count, own[p].dtype, op);
            write(own[p].out, sums);
          }
        });
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline) override {
    enqueue([data, bytes](Pieces& sent) { sent.push_back(read(data, bytes)); },
            [data, root](Room::Meeting& m, int rank) {
              if (rank != root) write(data, m.sent[root][0]);
            });
  }

  void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline) override {
    const std::size_t bytes = static_cast<std::size_t>(count) * dtype_size(dtype);
    enqueue([=](Pieces& sent) { sent.push_back(read(data, bytes)); },
            [=](Room::Meeting& m, int) {
              const void* values[kRanks];
              for (std::size_t from = 0; from < kRanks; ++from) values[from] = m.sent[from][0].data();
              std::vector<std::byte> sums(bytes);
              reduce_in_order(sums.data(), values, kRanks, count, dtype, op);
              write(data, sums);
            });
  }
  void reduce(void*, std::int64_t, DType, ReduceOp, int, Deadline) override { refuse(); }
  void gather(const void*, void*, std::size_t, int, Deadline) override { refuse(); }
  void scatter(const void*, void*, std::size_t, int, Deadline) override { refuse(); }
  void all_to_all(std::span<const ExchangePart>, Deadline) override { refuse(); }
  void barrier(Deadline) override { refuse(); }
  void send(const void*, std::size_t, int, std::uint32_t, Deadline) override { refuse(); }
  void recv(void*, std::size_t, int, std::uint32_t, Deadline) override { refuse(); }
  std::shared_ptr<Backend> split(const std::vector<int>&, const std::shared_ptr<Store>&, Deadline) override {
    refuse();
  }

 private:
  using Pieces = std::vector<std::vector<std::byte>>;

  // Accesses of this rank's stream to GPU memory. The machine checks that streams order them.
  static std::vector<std::byte> read(const void* from, std::size_t bytes) {
    std::vector<std::byte> piece(bytes);
    if (bytes) std::memcpy(piece.data(), touch(from, bytes, false), bytes);
    return piece;
  }
  static void write(void* to, const std::vector<std::byte>& piece) {
    if (!piece.empty()) std::memcpy(touch(to, piece.size(), true), piece.data(), piece.size());
  }
  static std::byte* touch(const void* address, std::size_t bytes, bool written) {
    std::byte* const data = stand_in::touch(address, bytes, written);
    if (!data) throw std::logic_error("the transport was given memory that no GPU has");
    return data;
  }
  [[noreturn]] static void refuse() { throw std::logic_error("the test needs no such collective"); }

  // send(pieces) runs when this rank's stream reaches the call, and receive(meeting, rank) when those of all
  // ranks have.
  template <class Send, class Receive>
  void enqueue(Send send, Receive receive) {
    auto* const work = new std::function<bool()>(
        [room = room_, rank = rank_, call = calls_++, send, receive, arrived = false]() mutable {
          if (room->aborted) return true;
          Room::Meeting& m = room->meetings[call];
          if (!arrived) {
            arrived = true;
            ++m.arrived;
            send(m.sent[rank]);
          }
          if (m.arrived < kRanks) return false;
          receive(m, rank);
          return true;
        });
    stand_in::enqueue(
        current_stream(device()).native(),
        [](void* argument) {
          auto* const w = static_cast<std::function<bool()>*>(argument);
          if (!(*w)()) return 0;
          delete w;
          return 1;
        },
        work);
  }

  const std::shared_ptr<Room> room_;
  const int rank_, gpu_;
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
    for (int r = 0; r < slot.replicas(); ++r) slot.layout()->stored(r).detach().fill_(layer * w);
  }
}

// Catch2's assertions are for one thread, so this throws.
void check_all(const Tensor& t, double expected, const char* what) {
  for (const float found : t.detach().cpu().to_vector<float>())
    check(std::abs(found - expected) <= 1e-4 * std::abs(expected), what, " is ", found, " instead of ",
          expected, "; wait for the stream that writes it");
}

// One pass without gradients and one with, whose output for an input of ones and gradients of its sum are
// known. The host changes shards as soon as a pass has returned.
void check_passes(Three& net, const std::function<Tensor()>& forward, double rows, double w) {
  fill(net, w);
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return forward();
  }();
  fill(net, -1);
  check_all(y, 3072 * w * w * w, "the output");

  fill(net, w);
  const std::vector<nn::Parameter> slots = net.parameters();
  for (const nn::Parameter& slot : slots)
    for (int r = 0; r < slot.replicas(); ++r) slot.replica(r).set_grad({});
  forward().sum().backward();
  const double expected[] = {384, 192, 128};
  for (std::size_t i = 0; i < 3; ++i)
    for (int r = 0; r < slots[i].replicas(); ++r)
      check_all(slots[i].replica(r).grad(), rows * expected[i] * w * w, "a gradient");
}

}  // namespace

TEST_CASE("with offload over the streams of a transport, every access is ordered") {
  struct Meetings {
    std::shared_ptr<StreamBackend::Room> room = std::make_shared<StreamBackend::Room>();
    std::shared_ptr<Store> store = memory_store();
    std::shared_ptr<ProcessGroup> group(int rank, int gpu) const {
      return make_process_group(std::make_shared<StreamBackend>(room, rank, gpu), store,
                                {.timeout = std::chrono::seconds(60), .check = false});
    }
  };
  for (const auto& [limit, copies, offload] :
       {std::tuple(1, 1, true), {2, 1, true}, {2, 2, true}, {2, 2, false}}) {
    CAPTURE(limit, copies, offload);
    const int ranks = copies * kRanks;
    const Gpus gpus(ranks);
    stand_in::execute();
    {
      Three nets[2 * kRanks];
      const Meetings rows[2], columns[kRanks];
      std::string errors[2 * kRanks];
      std::vector<std::thread> threads;
      for (int i = 0; i < ranks; ++i)
        threads.emplace_back([&, i, limit = limit, copies = copies, offload = offload] {
          std::shared_ptr<ProcessGroup> group, across;
          try {
            const int copy = i / kRanks, r = i % kRanks;
            group = rows[copy].group(r, i);
            if (copies > 1) across = columns[r].group(copy, i);
            const Device device(DeviceType::cuda, i);
            const DeviceGuard guard(device);
            Three& net = nets[i];
            net.to(device);
            const FsdpOptions options{.group = group,
                                      .replicate_group = across,
                                      .reshard_after_forward = true,
                                      .max_full_units = limit,
                                      .offload = offload,
                                      .reduce = ReduceOp::sum};
            for (nn::Module* m : std::vector<nn::Module*>{&net.a, &net.b, &net.c, &net})
              fully_shard(*m, options);
            const Tensor x = ones({3, 8}, device);
            for (const double w : {0.1, 0.2}) check_passes(net, [&] { return net(x); }, 3 * ranks, w);
          } catch (const std::exception& e) {
            errors[i] = e.what();
            for (const auto& g : {group, across})
              if (g) g->abort(e.what());
          }
        });
      for (std::thread& thread : threads) thread.join();
      for (const std::string& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("with offload of a ShardedDataParallel, every access is ordered") {
  const Gpus gpus(2);
  stand_in::execute();
  Three net;
  ShardedDataParallel sharded(net, {"cuda:0", "cuda:1"},
                              {.units = {&net.a, &net.b}, .backend = "local", .offload = true});
  const Tensor x = ones({6, 8}, kCPU);
  for (const double w : {0.1, 0.2}) check_passes(net, [&] { return sharded(x); }, 6, w);
}
#else
#include <cstdio>

#include "tests/support/catch.h"

TEST_CASE("without CUDA or with a static CUDA runtime, no copies of shards are checked") {
  std::printf("skipped: the library was not built with CUDA and the shared CUDA runtime\n");
}
#endif
