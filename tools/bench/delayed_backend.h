#pragma once
// A transport with slower links: a message, an all-to-all, a gather, a reduce-scatter or an all-reduce also
// waits for the time that the links would need for what a rank sends; the last three send it in a ring. Other
// calls are not delayed.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/backend.h"

namespace tapestry::bench {

/// The links of a job: ranks of one host have one each, and each pair of hosts has one in each direction,
/// which all groups of all ranks of both share.
class Network {
 public:
  struct Cost {
    double latency_s = 0, s_per_byte = 0;
  };
  Network(int ranks_per_host, Cost inner, Cost cross)
      : ranks_per_host_(ranks_per_host), inner_(inner), cross_(cross) {}
  /// Waits until `messages` messages with `bytes` in total have passed, one after another.
  void pass(int from, int to, double bytes, int messages) {
    using Seconds = std::chrono::duration<double>;
    const int a = from / ranks_per_host_, b = to / ranks_per_host_;
    const Cost& cost = a == b ? inner_ : cross_;
    const auto length = [](double s) { return std::chrono::duration_cast<Clock::duration>(Seconds(s)); };
    Clock::time_point end = Clock::now() + length(bytes * cost.s_per_byte);
    if (a != b) {
      const std::lock_guard lock(mutex_);
      Clock::time_point& free = free_[{a, b}];
      end = free = std::max(free, Clock::now()) + length(bytes * cost.s_per_byte);
    }
    std::this_thread::sleep_until(end + length(messages * cost.latency_s));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const int ranks_per_host_;
  const Cost inner_, cross_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, Clock::time_point> free_;  // by the hosts of sender and receiver
};

class DelayedBackend final : public distributed::Backend {
 public:
  using Deadline = distributed::Deadline;
  using ReduceOp = distributed::ReduceOp;
  /// `ranks` are the ranks of the job that are in the group, in its order.
  DelayedBackend(std::shared_ptr<Backend> inner, std::shared_ptr<Network> network, std::vector<int> ranks)
      : inner_(std::move(inner)), network_(std::move(network)), ranks_(std::move(ranks)) {}

  const char* name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) override {
    const auto bytes = static_cast<double>(count) * static_cast<double>(dtype_size(dtype));
    ring(2.0 * (size() - 1) / size() * bytes, 2);
    inner_->all_reduce(data, count, dtype, op, deadline);
  }
  void reduce_scatter(std::span<const distributed::ScatterPart> parts, ReduceOp op,
                      Deadline deadline) override {
    std::size_t bytes = 0;
    for (const distributed::ScatterPart& part : parts) bytes += part.bytes();
    ring(static_cast<double>(bytes) * (size() - 1), 1);
    inner_->reduce_scatter(parts, op, deadline);
  }
  void all_gather(std::span<const distributed::GatherPart> parts, Deadline deadline) override {
    std::size_t bytes = 0;
    for (const distributed::GatherPart& part : parts) bytes += part.bytes;
    ring(static_cast<double>(bytes) * (size() - 1), 1);
    inner_->all_gather(parts, deadline);
  }
  void reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
              Deadline deadline) override {
    inner_->reduce(data, count, dtype, op, root, deadline);
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override {
    inner_->broadcast(data, bytes, root, deadline);
  }
  void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    inner_->gather(in, out, bytes, root, deadline);
  }
  void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    inner_->scatter(in, out, bytes, root, deadline);
  }
  void all_to_all(std::span<const distributed::ExchangePart> parts, Deadline deadline) override {
    const auto me = static_cast<std::size_t>(rank());
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (i != me) network_->pass(ranks_[me], ranks_[i], static_cast<double>(parts[i].in_bytes), 1);
    inner_->all_to_all(parts, deadline);
  }
  void barrier(Deadline deadline) override { inner_->barrier(deadline); }
  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    network_->pass(ranks_[static_cast<std::size_t>(rank())], ranks_[static_cast<std::size_t>(peer)],
                   static_cast<double>(bytes), 1);
    inner_->send(data, bytes, peer, tag, deadline);
  }
  void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    inner_->recv(data, bytes, peer, tag, deadline);
  }
  void abort(const std::string& why) noexcept override { inner_->abort(why); }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks,
                                 const std::shared_ptr<distributed::Store>& store,
                                 Deadline deadline) override {
    std::vector<int> of_job;
    for (const int r : ranks) of_job.push_back(ranks_[static_cast<std::size_t>(r)]);
    return std::make_shared<DelayedBackend>(inner_->split(ranks, store, deadline), network_, of_job);
  }

 private:
  void ring(double bytes, int rounds) {
    const auto next = static_cast<std::size_t>((rank() + 1) % size());
    if (size() > 1)
      network_->pass(ranks_[static_cast<std::size_t>(rank())], ranks_[next], bytes, rounds * (size() - 1));
  }
  const std::shared_ptr<Backend> inner_;
  const std::shared_ptr<Network> network_;
  const std::vector<int> ranks_;
};

}  // namespace tapestry::bench
