#include "tests/distributed/nccl_support.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/internal/nccl_library.h"
#include "tests/support/catch.h"
#include "tests/support/dtypes.h"

namespace nccl_test {
namespace {

testing::FakeGpus* world_gpus = nullptr;  // the GPUs of the NcclWorld that exists, or null

}  // namespace

bool no_nccl() {
  if (built_with_nccl()) return false;
  std::printf("skipped: nccl.h was not found when this library was built\n");
  return true;
}

#ifdef TAPESTRY_STANDIN_NCCL
NcclWorld::NcclWorld(int gpus) {
  setenv("TAPESTRY_NCCL_LIBRARY", TAPESTRY_STANDIN_NCCL, 1);
  library_ = cuda::open_library(cuda::nccl_spec(), {.loaded = false, .loader = false});
  unsetenv("TAPESTRY_NCCL_LIBRARY");
  controls_ = library_.function<const StandInNccl*()>("tapestry_standin_nccl")();
  controls_->reset();
  gpus_ = std::make_unique<testing::FakeGpus>(gpus);
  world_gpus = gpus_.get();
  controls_->set_device(
      [](void* stream, int (*work)(void*), void* argument) {
        world_gpus->launch_until(stream, [=] { return work(argument) != 0; });
      },
      [] { return testing::FakeGpus::chosen_gpu(); });
  use_nccl_library(&library_);
}
#else
NcclWorld::NcclWorld(int) { throw std::logic_error("NcclWorld in a build without NCCL"); }
#endif

NcclWorld::~NcclWorld() {
  gpus_.reset();  // runs the work that streams still have
  use_nccl_library(nullptr);
  const std::string violations = controls_->violations();
  if (expected_violation_.empty()) CHECK(violations == "");
  else CHECK_THAT(violations, ContainsSubstring(expected_violation_));
  CHECK(controls_->live() == 0);
}

std::vector<std::string> run_nccl_ranks(int size, const RankBody& body, const GroupOptions& options,
                                        const std::shared_ptr<Store>& store) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const ThreadShare share(1);
      try {
        const Milliseconds timeout = options.timeout.count() > 0 ? options.timeout : Milliseconds(20'000);
        auto backend = nccl_backend(prefix_store("nccl/", store), rank, size, gpu(rank), timeout);
        body(make_process_group(std::move(backend), prefix_store("group/", store), options), rank);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void run_nccl_ranks_well(int size, const RankBody& body, const GroupOptions& options,
                         const std::shared_ptr<Store>& store) {
  const auto errors = run_nccl_ranks(size, body, options, store);
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    if (!errors[rank].empty()) throw std::runtime_error("rank " + std::to_string(rank) + ": " + errors[rank]);
}

Tensor on_gpu(Device device, DType dtype, const std::vector<double>& values) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  const Tensor host = empty(shape, {dtype, kCPU}), t = empty(shape, {dtype, device});
  tests::for_dtype(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i)
      static_cast<T*>(host.raw_data())[i] = tests::from_double<T>(values[i]);
  });
  cuda::copy_bytes(device, t.raw_data(), kCPU, host.raw_data(), host.nbytes());
  return t;
}

std::vector<double> on_host(const Tensor& t) {
  const Tensor host = empty(t.sizes(), {t.dtype(), kCPU});
  cuda::copy_bytes(kCPU, host.raw_data(), t.device(), t.raw_data(), t.nbytes());
  std::vector<double> values(static_cast<std::size_t>(t.numel()));
  tests::for_dtype(t.dtype(), [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = tests::to_double(static_cast<const T*>(host.raw_data())[i]);
  });
  return values;
}

void expect(const std::string& what, const std::vector<double>& got, const std::vector<double>& wanted) {
  if (got == wanted) return;
  const auto [a, b] = std::mismatch(got.begin(), got.end(), wanted.begin(), wanted.end());
  if (a == got.end() || b == wanted.end())
    throw std::runtime_error(concat({what, ": got ", got.size(), " elements, expected ", wanted.size()}));
  throw std::runtime_error(
      concat({what, ": element ", a - got.begin(), " of ", got.size(), " is ", *a, ", expected ", *b}));
}

void overlap_groups(const std::shared_ptr<ProcessGroup>& world, Device device, std::size_t length) {
  using Ranks = std::vector<int>;
  Ranks all(static_cast<std::size_t>(world->size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<Ranks> lists{all, Ranks(all.rbegin(), all.rend())};
  for (std::size_t r = 0; r + 1 < all.size(); ++r) lists.push_back({all[r], all[r + 1]});
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (const Ranks& ranks : lists) groups.push_back(world->new_group(ranks));

  // Calls, ranks and neighbouring elements have different values, whose sums are exact.
  const auto values = [&](int rank, std::size_t call) {
    std::vector<double> row(length);
    for (std::size_t i = 0; i < length; ++i)
      row[i] = 1e6 * static_cast<double>(call) + 1e4 * rank + static_cast<double>(i % 9973);
    return row;
  };
  for (std::size_t round = 0; round < 4; ++round) {
    std::vector<Tensor> sums, rows, gathered;
    const auto call = [&](std::size_t group) { return round * lists.size() + group; };
    for (std::size_t g = 0; g < groups.size(); ++g) {
      sums.push_back(on_gpu(device, DType::f64, values(world->rank(), call(g))));
      rows.push_back(on_gpu(device, DType::f64, values(world->rank(), call(g))));
      gathered.push_back(on_gpu(device, DType::f64, std::vector<double>(lists[g].size() * length)));
    }
    std::vector<Work> works;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g]) continue;
      works.push_back(groups[g]->all_reduce(sums[g]));
      works.push_back(groups[g]->all_gather(gathered[g], rows[g]));
    }
    for (; !works.empty(); works.pop_back()) works.back().wait();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g]) continue;
      std::vector<double> sum(length), in_order;
      for (const int rank : lists[g]) {
        const std::vector<double> row = values(rank, call(g));
        std::transform(sum.begin(), sum.end(), row.begin(), sum.begin(), std::plus<>());
        in_order.insert(in_order.end(), row.begin(), row.end());
      }
      expect(concat({"the sum of group ", g, " in round ", round}), on_host(sums[g]), sum);
      expect(concat({"the rows of group ", g, " in round ", round}), on_host(gathered[g]), in_order);
    }
  }
  world->check_order();
}

}  // namespace nccl_test
