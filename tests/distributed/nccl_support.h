#pragma once
// Runs ranks as threads on fake GPUs. The NCCL backend connects them through a stand-in for the NCCL library.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/nccl/standin.h"

namespace nccl_test {

using namespace tapestry;
using namespace tapestry::distributed;

/// Returns true in a build without the NCCL backend, and then prints that the test is skipped.
bool no_nccl();

inline Device gpu(int i) { return {DeviceType::cuda, i}; }

/// Provides fake GPUs and the stand-in NCCL for the length of a scope. The destructor fails the test if
/// communicators are still alive or if the test has broken a rule of NCCL. Construct it only if no_nccl() is
/// false.
class NcclWorld {
 public:
  explicit NcclWorld(int gpus);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  const StandInNccl& nccl() const { return *controls_; }
  testing::FakeGpus& gpus() { return *gpus_; }
  /// Call it in a test that breaks a rule of NCCL on purpose. The destructor then fails the test unless the
  /// report of broken rules contains `words`.
  void expect_violation(const std::string& words) { expected_violation_ = words; }

 private:
  cuda::OpenLibrary library_;
  const StandInNccl* controls_;
  std::unique_ptr<testing::FakeGpus> gpus_;
  std::string expected_violation_;
};

/// A memory store that counts its requests. Requests of the watchdog are not counted, because their number
/// depends on the time.
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
/// Like run_nccl_ranks(), for ranks that must all succeed: throws the first rank's error otherwise.
void run_nccl_ranks_well(int size, const RankBody& body, const GroupOptions& options,
                         const std::shared_ptr<Store>& store = memory_store());

/// Copies `values` to a new tensor on a GPU.
Tensor on_gpu(Device device, DType dtype, const std::vector<double>& values);
/// Returns the elements of a contiguous tensor. Waits for the device's current stream.
std::vector<double> on_host(const Tensor& t);
/// Throws unless the values are equal. Ranks call it instead of CHECK, which is not thread-safe.
void expect(const std::string& what, const std::vector<double>& got, const std::vector<double>& wanted);

/// A rank's part of a test that needs no fake: groups of all ranks, of all in reverse, and of each two
/// neighbours sum and gather `length` elements at the same time. Throws if a value is wrong.
void overlap_groups(const std::shared_ptr<ProcessGroup>& world, Device device, std::size_t length);

}  // namespace nccl_test
