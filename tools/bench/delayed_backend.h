#pragma once
// A transport with a slower link: a gather, a reduce-scatter or an all-reduce also waits for the time that
// the link would need for the bytes that a rank sends in a ring. Other calls are not delayed.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/backend.h"

namespace tapestry::bench {

class DelayedBackend final : public distributed::Backend {
 public:
  using Deadline = distributed::Deadline;
  using ReduceOp = distributed::ReduceOp;
  DelayedBackend(std::shared_ptr<Backend> inner, double ms_per_mib)
      : inner_(std::move(inner)), ms_per_mib_(ms_per_mib) {}

  const char* name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) override {
    wait_for(2.0 * (size() - 1) / size() * static_cast<double>(count) *
             static_cast<double>(dtype_size(dtype)));
    inner_->all_reduce(data, count, dtype, op, deadline);
  }
  void reduce_scatter(std::span<const distributed::ScatterPart> parts, ReduceOp op,
                      Deadline deadline) override {
    std::size_t bytes = 0;
    for (const distributed::ScatterPart& part : parts) bytes += part.bytes();
    wait_for(static_cast<double>(bytes) * (size() - 1));
    inner_->reduce_scatter(parts, op, deadline);
  }
  void all_gather(std::span<const distributed::GatherPart> parts, Deadline deadline) override {
    std::size_t bytes = 0;
    for (const distributed::GatherPart& part : parts) bytes += part.bytes;
    wait_for(static_cast<double>(bytes) * (size() - 1));
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
  void all_to_all(const void* in, void* out, std::size_t bytes, Deadline deadline) override {
    inner_->all_to_all(in, out, bytes, deadline);
  }
  void barrier(Deadline deadline) override { inner_->barrier(deadline); }
  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    inner_->send(data, bytes, peer, tag, deadline);
  }
  void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    inner_->recv(data, bytes, peer, tag, deadline);
  }
  void abort(const std::string& why) noexcept override { inner_->abort(why); }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks,
                                 const std::shared_ptr<distributed::Store>& store,
                                 Deadline deadline) override {
    return std::make_shared<DelayedBackend>(inner_->split(ranks, store, deadline), ms_per_mib_);
  }

 private:
  void wait_for(double bytes) const {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms_per_mib_ * bytes / (1 << 20)));
  }
  const std::shared_ptr<Backend> inner_;
  const double ms_per_mib_;
};

}  // namespace tapestry::bench
