#pragma once
// Ranks as threads on fake GPUs, joined by the NCCL backend over the stand-in NCCL.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/nccl/standin.h"

namespace nccl_test {

using namespace tapestry;
using namespace tapestry::distributed;

/// True in a build without the NCCL backend; says so.
bool no_nccl();

inline Device gpu(int i) { return {DeviceType::cuda, i}; }

/// Fake GPUs and the stand-in NCCL for the length of a scope. At its end, communicators that are still alive
/// and broken rules of NCCL fail the test. Make one only if no_nccl() is false.
class NcclWorld {
 public:
  explicit NcclWorld(int gpus);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  const StandInNccl& nccl() const { return *controls_; }
  testing::FakeGpus& gpus() { return *gpus_; }
  /// The test breaks NCCL's rules on purpose, and must break one.
  void expect_violation(const std::string& words) { expected_violation_ = words; }
  void expect_leaks() { leaks_ = true; }

 private:
  cuda::OpenLibrary library_;
  const StandInNccl* controls_;
  std::unique_ptr<testing::FakeGpus> gpus_;
  std::string expected_violation_;
  bool leaks_ = false;
};

/// Counts the requests of a memory store. Those of the watchdog are counted apart, since they depend on the
/// time.
class CountingStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override { count(key), base_->set(key, value); }
  std::string get(std::string_view key, Milliseconds timeout) override {
    return count(key), base_->get(key, timeout);
  }
  std::optional<std::string> try_get(std::string_view key) override {
    return count(key), base_->try_get(key);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return count(key), base_->add(key, amount);
  }
  std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                          std::string_view desired) override {
    return count(key), base_->compare_set(key, expected, desired);
  }
  bool erase(std::string_view key) override { return count(key), base_->erase(key); }
  std::string str() const override { return base_->str(); }

  int requests() const { return requests_; }

 private:
  void count(std::string_view key) {
    if (key.find("diagnosis/") == std::string_view::npos) ++requests_;
  }
  const std::shared_ptr<Store> base_ = memory_store();
  std::atomic<int> requests_{0};
};

using RankBody = std::function<void(const std::shared_ptr<ProcessGroup>&, int rank)>;
/// Runs `body` on `size` ranks, each on its own GPU, and returns the text of each rank's exception ("" for
/// none).
std::vector<std::string> run_nccl_ranks(int size, const RankBody& body, const GroupOptions& options,
                                        const std::shared_ptr<Store>& store = memory_store());
/// As above, for ranks that must all end well: throws the first error otherwise.
void run_nccl_ranks_well(int size, const RankBody& body, const GroupOptions& options,
                         const std::shared_ptr<Store>& store = memory_store());

/// A tensor on a GPU, by a copy.
Tensor on_gpu(Device device, DType dtype, const std::vector<double>& values);
/// The elements of a contiguous tensor, after waiting for the device's current stream.
std::vector<double> on_host(const Tensor& t);
/// Throws unless the values are equal. CHECK is not for several threads at once.
void expect(const std::string& what, const std::vector<double>& got, const std::vector<double>& wanted);

}  // namespace nccl_test
