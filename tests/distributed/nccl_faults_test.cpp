// Tests failures of NCCL with the stand-in NCCL on fake GPUs. Every error must end in an exception on all
// ranks that names the call, and no communicator may stay behind.
#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tests/distributed/nccl_support.h"
#include "tests/support/catch.h"

using namespace nccl_test;
using namespace std::chrono_literals;

namespace {

using V = std::vector<double>;
const GroupOptions kQuick{.timeout = 20s, .warn_after = 19s};
const GroupOptions kShort{.timeout = 1s, .warn_after = 900ms};

/// The values of ncclResult_t for errors.
constexpr int kCudaError = 1, kSystemError = 2, kInternalError = 3, kInvalidArgument = 4, kInvalidUsage = 5,
              kRemoteError = 6;

/// The backends of two ranks without a ProcessGroup around them, each used by its own thread.
struct Pair {
  std::vector<std::shared_ptr<Backend>> backends{2};
  std::vector<std::string> errors{2};

  /// Connects, runs body(backend) on both ranks, and closes. The first rank that fails aborts both, as the
  /// watchdog of a group does.
  void run(const std::function<void(Backend&)>& body) {
    const auto store = memory_store();
    std::mutex mutex;
    bool failed = false;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const auto i = static_cast<std::size_t>(rank);
        try {
          const auto backend = nccl_backend(store, rank, 2, gpu(rank), 1s);
          {
            const std::lock_guard lock(mutex);
            backends[i] = backend;
            if (failed) backend->abort("the other rank failed to connect");
          }
          body(*backend);
        } catch (const std::exception& e) {
          errors[i] = e.what();
          const std::lock_guard lock(mutex);
          failed = true;
          for (const auto& backend : backends)
            if (backend) backend->abort("the test saw a failure");
        }
      });
    for (std::thread& thread : threads) thread.join();
    backends.assign(2, nullptr);
  }
};

/// Makes each call of the backend once, and waits for each to finish.
void call_everything(Backend& backend) {
  const Device device = backend.device();
  const int rank = backend.rank();
  const Tensor a = on_gpu(device, DType::f32, {1.0 + rank, 2}), b = on_gpu(device, DType::f32, {0, 0, 0, 0});
  const Deadline deadline = deadline_after(2s);
  const auto done = [&] {
    Event event;
    event.record(current_stream(device));
    while (!event.wait_for(1ms)) {
      backend.poll();
      if (Clock::now() > deadline) throw TimeoutError("the test's GPU does not finish");
    }
    backend.poll();
  };
  backend.all_reduce(a.raw_data(), 2, DType::f32, ReduceOp::sum, deadline), done();
  backend.reduce(a.raw_data(), 2, DType::f32, ReduceOp::sum, 1, deadline), done();
  backend.reduce_scatter(a.raw_data(), b.raw_data(), 1, DType::f32, ReduceOp::sum, deadline), done();
  backend.broadcast(a.raw_data(), 8, 0, deadline), done();
  backend.all_gather(a.raw_data(), b.raw_data(), 8, deadline), done();
  backend.all_to_all(a.raw_data(), b.raw_data(), 4, deadline), done();
  backend.gather(a.raw_data(), rank == 0 ? b.raw_data() : nullptr, 4, 0, deadline), done();
  backend.scatter(rank == 0 ? a.raw_data() : nullptr, b.raw_data(), 4, 0, deadline), done();
  backend.barrier(deadline);
  if (rank == 0) backend.send(a.raw_data(), 8, 1, 0, deadline);
  else backend.recv(a.raw_data(), 8, 0, 0, deadline);
  done();
  const Stream stream = current_stream(device);
  const MessagePart message{rank == 0, a.raw_data(), 8, 1 - rank, 0, &stream};
  backend.exchange(std::span(&message, 1), deadline), done();
}

}  // namespace

TEST_CASE("an error of any NCCL call reaches the caller and names the call") {
  if (no_nccl()) return;
  struct Site {
    const char* call;
    int nth;
  };
  const std::vector<Site> sites{{"ncclGetUniqueId", 0},
                                {"ncclCommInitRankConfig", 0},
                                {"ncclCommInitRankConfig", 2},
                                {"ncclCommGetAsyncError", 0},
                                {"ncclCommGetAsyncError", 9},
                                {"ncclAllReduce", 0},
                                {"ncclAllReduce", 1},
                                {"ncclReduce", 0},
                                {"ncclReduceScatter", 0},
                                {"ncclBroadcast", 0},
                                {"ncclAllGather", 0},
                                {"ncclGroupStart", 0},
                                {"ncclGroupEnd", 0},
                                {"ncclGroupEnd", 3},
                                {"ncclSend", 0},
                                {"ncclRecv", 1},
                                {"ncclSend", 7},
                                {"ncclSend", 9},
                                {"ncclGroupEnd", 7},
                                {"ncclCommFinalize", 0}};
  {
    NcclWorld world(2);
    Pair pair;
    pair.run(call_everything);
    CHECK(pair.errors == std::vector<std::string>{"", ""});
    for (const Site& site : sites) {
      INFO(site.call << " is called " << world.nccl().calls(site.call) << " times");
      CHECK(world.nccl().calls(site.call) > site.nth);
    }
  }
  for (const Site& site : sites)
    for (const bool asynchronous : {false, true}) {
      if (asynchronous &&
          (site.call == std::string("ncclGetUniqueId") || site.call == std::string("ncclGroupStart")))
        continue;  // these calls have no communicator that could fail later
      INFO(site.call << " number " << site.nth << (asynchronous ? ", asynchronously" : ""));
      NcclWorld world(2);
      world.nccl().fail(site.call, site.nth, kInternalError, asynchronous);
      Pair pair;
      pair.run(call_everything);
      const bool named = std::any_of(pair.errors.begin(), pair.errors.end(), [](const std::string& error) {
        return error.find("failed on rank") != std::string::npos &&
               error.find("internal error") != std::string::npos;
      });
      // An error of ncclCommFinalize must not be thrown, because the destructor calls it. The communicator
      // must be aborted instead.
      if (site.call == std::string("ncclCommFinalize")) {
        CHECK(pair.errors == std::vector<std::string>{"", ""});
        CHECK(world.nccl().calls("ncclCommAbort") == 1);
      } else {
        CHECK(named);
        CHECK_FALSE(pair.errors[0].empty());
        CHECK_FALSE(pair.errors[1].empty());
      }
    }
}

TEST_CASE("each class of NCCL errors is told apart, with advice") {
  if (no_nccl()) return;
  for (const auto& [code, words] :
       std::vector<std::pair<int, std::string>>{{kCudaError, "unhandled cuda error"},
                                                {kSystemError, "unhandled system error"},
                                                {kInternalError, "internal error"},
                                                {kInvalidArgument, "invalid argument"},
                                                {kInvalidUsage, "invalid usage"},
                                                {kRemoteError, "remote process exited"}})
    for (const bool asynchronous : {false, true}) {
      NcclWorld world(2);
      world.nccl().fail("ncclAllReduce", 0, code, asynchronous);
      Pair pair;
      pair.run(call_everything);
      const std::string& text =
          pair.errors[0].find(words) != std::string::npos ? pair.errors[0] : pair.errors[1];
      CHECK_THAT(text, ContainsSubstring("ncclAllReduce failed on rank ") && ContainsSubstring(words) &&
                           ContainsSubstring("the test asked ncclAllReduce to fail; "));
    }
}

TEST_CASE("an error of one rank's NCCL fails the group on all ranks, with the call") {
  if (no_nccl()) return;
  NcclWorld world(2);
  world.nccl().fail("ncclAllReduce", 6, kRemoteError, true);
  const auto errors = run_nccl_ranks(
      2,
      [](const std::shared_ptr<ProcessGroup>& group, int rank) {
        const Tensor x = on_gpu(gpu(rank), DType::f32, {1});
        for (int i = 0; i < 1000; ++i) {
          group->all_reduce(x, ReduceOp::max, "loss").wait();
          std::this_thread::sleep_for(1ms);
        }
      },
      kQuick);
  // The ranks do not wait for each other on the host, so the seventh call to NCCL is not always the same call
  // of the same rank. A call that was queued after the failed one reports the earlier failure.
  for (const std::string& error : errors)
    CHECK_THAT(error, ContainsSubstring(" all_reduce(loss) float32 [1] max at nccl_faults_test.cpp") &&
                          (ContainsSubstring("ncclAllReduce failed on rank") ||
                           ContainsSubstring("an earlier call failed on rank")));
}

TEST_CASE("a rank that does not come to connect is a timeout") {
  if (no_nccl()) return;
  NcclWorld world(2);
  const auto start = Clock::now();
  CHECK_THROWS_WITH(
      nccl_backend(memory_store(), 0, 2, gpu(0), 300ms),
      ContainsSubstring(
          "ncclCommInitRankConfig is not ready on rank 0 (cuda:0): some rank does not take part"));
  CHECK_THROWS_AS(nccl_backend(memory_store(), 1, 2, gpu(1), 300ms), TimeoutError);
  CHECK(Clock::now() - start < 10s);
}

TEST_CASE("a rank that does not come to a collective is a timeout with the table of ranks") {
  if (no_nccl()) return;
  NcclWorld world(3);
  const auto errors = run_nccl_ranks(
      3,
      [](const std::shared_ptr<ProcessGroup>& group, int rank) {
        const Tensor x = on_gpu(gpu(rank), DType::f32, {1});
        group->all_reduce(x).wait();
        std::string error;
        for (int i = 0; i < 5000 && error.empty(); ++i) {  // a later call must throw the failure
          try {
            if (rank != 1 && i == 0) group->all_reduce(x, ReduceOp::sum, "bucket 0");
            if (i > 0) group->enqueue([] {}).wait();
          } catch (const DistributedError& e) {
            error = e.what();
          }
          std::this_thread::sleep_for(1ms);
        }
        throw std::runtime_error(error);
      },
      kShort);
  for (const std::string& error : errors) {
    CHECK_THAT(error, ContainsSubstring("#2 all_reduce(bucket 0)") &&
                          ContainsSubstring("did not complete on rank") &&
                          ContainsSubstring("rank 1 is in no call") &&
                          ContainsSubstring("ranks 0, 2 wait in #2"));
    CHECK_THAT(error, ContainsSubstring("TAPESTRY_CHECK_COLLECTIVES=1"));
  }
}

TEST_CASE("ranks in different calls over NCCL are shown by the table, or at once if calls are compared") {
  if (no_nccl()) return;
  for (const bool check : {false, true}) {
    NcclWorld world(2);
    if (!check) world.expect_violation("ncclBroadcast");
    GroupOptions options = check ? kQuick : kShort;
    options.check = check;
    const auto start = Clock::now();
    const auto errors = run_nccl_ranks(
        2,
        [](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const Tensor x = on_gpu(gpu(rank), DType::f32, {1, 2});
          if (rank == 0) group->all_reduce(x);
          else group->broadcast(x, 0);
          for (int i = 0; i < 10'000; ++i) {
            group->enqueue([] {}).wait();
            std::this_thread::sleep_for(1ms);
          }
        },
        options);
    if (check) CHECK(Clock::now() - start < kQuick.timeout);
    for (const std::string& error : errors) {
      CHECK_THAT(error, ContainsSubstring("#1 all_reduce") && ContainsSubstring("#1 broadcast"));
      if (check) CHECK_THAT(error, ContainsSubstring("are not in the same call"));
      else CHECK_THAT(error, ContainsSubstring("rank 0 waits") || ContainsSubstring("rank 1 waits"));
    }
  }
}

TEST_CASE("abort() ends collectives in flight, and no poll waits for ncclCommAbort") {
  if (no_nccl()) return;
  NcclWorld world(2);
  Pair pair;
  pair.run([&](Backend& backend) {
    if (backend.rank() == 1) {  // rank 1 does not take part in all_reduce
      backend.barrier(deadline_after(5s));
      return;
    }
    const Tensor x = on_gpu(backend.device(), DType::f32, {1});
    backend.barrier(deadline_after(5s));
    backend.all_reduce(x.raw_data(), 1, DType::f32, ReduceOp::sum, deadline_after(5s));
    Event event;
    event.record(current_stream(backend.device()));
    backend.poll();
    if (event.wait_for(50ms)) throw std::runtime_error("a collective without rank 1 is done");

    world.nccl().hold_aborts(1);
    std::thread aborting([&] { backend.abort("the test says so"); });
    for (int i = 0; i < 5000 && world.nccl().aborting() == 0; ++i) std::this_thread::sleep_for(1ms);
    std::string text;
    const auto start = Clock::now();
    try {
      backend.poll();
    } catch (const DistributedError& e) {
      text = e.what();
    }
    const auto took = Clock::now() - start;
    const bool inside = world.nccl().aborting() == 1;
    world.nccl().hold_aborts(0);
    aborting.join();
    if (!inside || took > 10s) throw std::runtime_error("poll() waited for ncclCommAbort");
    if (text.find("the test says so") == std::string::npos) throw std::runtime_error("poll() says " + text);
    if (!event.wait_for(10s)) throw std::runtime_error("the stream is still held by the aborted collective");
  });
  CHECK(pair.errors == std::vector<std::string>{"", ""});
}

TEST_CASE("abort() ends a rank that waits for its peer's first message") {
  if (no_nccl()) return;
  // Rank 0 waits as the sender. Rank 1 waits as the receiver, which first waits for the store.
  for (const int waiting : {0, 1}) {
    NcclWorld world(2);
    Pair pair;
    const auto start = Clock::now();
    pair.run([&](Backend& backend) {
      if (backend.rank() != waiting) return backend.barrier(deadline_after(60s));
      backend.barrier(deadline_after(60s));
      const Tensor x = on_gpu(backend.device(), DType::f32, {1});
      std::thread aborting([&] {
        std::this_thread::sleep_for(50ms);
        backend.abort("enough");
      });
      try {
        if (waiting == 0) backend.send(x.raw_data(), 4, 1, 0, deadline_after(60s));
        else backend.recv(x.raw_data(), 4, 0, 0, deadline_after(60s));
      } catch (...) {
        aborting.join();
        throw;
      }
      aborting.join();
    });
    CHECK_THAT(pair.errors[static_cast<std::size_t>(waiting)],
               ContainsSubstring("the communicator was aborted: enough"));
    CHECK(Clock::now() - start < 30s);
  }
}

TEST_CASE("two ranks on one GPU are refused with what to do") {
  if (no_nccl()) return;
  NcclWorld world(1);
  const auto store = memory_store();
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        nccl_backend(store, rank, 2, gpu(0), 500ms);
      } catch (const DistributedError& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& thread : ranks) thread.join();
  CHECK_THAT(errors[0] + errors[1], ContainsSubstring("Duplicate GPU detected") &&
                                        ContainsSubstring("give each its own, or use the backend gloo"));
}
