// Tests CUDA tensors in process groups, on fake GPUs that run all work as late as they may. Host transports
// stage the tensors through pinned memory, and device transports use the device's memory directly.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace std::chrono_literals;
using tapestry::detail::raw_view;
using tapestry::testing::FakeGpus;

namespace {

Device gpu(int i) { return {DeviceType::cuda, i}; }

Tensor host(const std::vector<float>& values) {
  Tensor t = empty({static_cast<std::int64_t>(values.size())});
  std::memcpy(t.raw_data(), values.data(), t.nbytes());
  return t;
}
Tensor on(Device device, const std::vector<float>& values) {
  const Tensor x = host(values), y = empty(x.sizes(), {DType::f32, device});
  cuda::copy_bytes(device, y.raw_data(), kCPU, x.raw_data(), x.nbytes());
  return y;
}
// The elements in storage order. Waits for the current stream only.
std::vector<float> values(const Tensor& t) {
  std::vector<float> v(t.storage()->bytes() / sizeof(float));
  if (t.device().is_cpu()) std::memcpy(v.data(), t.storage()->data(), t.storage()->bytes());
  else cuda::copy_bytes(kCPU, v.data(), t.device(), t.storage()->data(), t.storage()->bytes());
  return v;
}
using V = std::vector<float>;

// CHECK is not thread-safe, so ranks throw instead.
void expect(const V& got, const V& wanted) {
  if (got == wanted) return;
  std::string text = "got";
  for (const float x : got) text += " " + std::to_string(x);
  text += ", expected";
  for (const float x : wanted) text += " " + std::to_string(x);
  throw std::runtime_error(text);
}

const GroupOptions kQuick{.timeout = 5s, .warn_after = 4s};

/// A barrier for the ranks' threads.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(int size) : calls_(static_cast<std::size_t>(size)) {}
  void wait(int rank, const std::atomic<bool>& aborted) {
    const int mine = ++calls_[static_cast<std::size_t>(rank)];
    const auto here = [&](const std::atomic<int>& calls) { return calls >= mine; };
    while (!std::all_of(calls_.begin(), calls_.end(), here)) {
      if (aborted) throw DistributedError("the fake was aborted");
      std::this_thread::sleep_for(100us);
    }
  }

 private:
  std::vector<std::atomic<int>> calls_;
};

/// A device transport. It assumes that all ranks have equal data, so a sum is `size` times the rank's own
/// data. Counts the calls that it enqueued.
class FakeDeviceBackend final : public Backend {
 public:
  FakeDeviceBackend(FakeGpus& gpus, int rank, int size, ThreadBarrier* barrier = nullptr)
      : gpus_(gpus), rank_(rank), size_(size), barrier_(barrier) {}
  const char* name() const override { return "fake"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Device device() const override { return gpu(rank_); }
  void poll() override {
    if (aborted) throw DistributedError("the fake was aborted");
    if (broken) throw DistributedError("the fake's GPU is broken");
  }
  void all_reduce(void* data, std::int64_t count, DType, ReduceOp, Deadline) override {
    ++given;
    if (barrier_) barrier_->wait(rank_, aborted);
    gpus_.launch(current_stream(device()), [data, count, factor = static_cast<float>(size_)] {
      for (std::int64_t i = 0; i < count; ++i) static_cast<float*>(data)[i] *= factor;
    });
  }
  void reduce(void*, std::int64_t, DType, ReduceOp, int, Deadline) override {}
  void reduce_scatter(std::span<const ScatterPart>, ReduceOp, Deadline) override {}
  void broadcast(void*, std::size_t, int, Deadline) override { ++given; }
  void all_gather(std::span<const GatherPart>, Deadline) override {}
  void gather(const void*, void*, std::size_t, int, Deadline) override {}
  void scatter(const void*, void*, std::size_t, int, Deadline) override {}
  void all_to_all(std::span<const ExchangePart>, Deadline) override {}
  void barrier(Deadline) override { ++given; }
  // Messages carry no data here: send() only records the address of its tensor, and recv() fills its tensor
  // with zeros.
  void send(const void* data, std::size_t, int, std::uint32_t, Deadline) override { sent = data; }
  void recv(void* data, std::size_t bytes, int, std::uint32_t, Deadline) override {
    gpus_.launch(current_stream(device()), [data, bytes] { std::memset(data, 0, bytes); });
  }
  void abort(const std::string&) noexcept override { aborted = true; }
  std::shared_ptr<Backend> split(const std::vector<int>&, const std::shared_ptr<Store>&, Deadline) override {
    return nullptr;
  }

  std::atomic<int> given{0};
  std::atomic<bool> aborted{false}, broken{false};
  const void* sent = nullptr;

 private:
  FakeGpus& gpus_;
  const int rank_, size_;
  ThreadBarrier* const barrier_;
};

}  // namespace

TEST_CASE("host transports accept CUDA tensors, in order with the caller's work on the GPU") {
  FakeGpus gpus;
  run_local_ranks(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group) {
        const int r = group->rank();
        const float f = static_cast<float>(r);
        const Device device = gpu(r);
        const Tensor x = on(device, {0, 0, 0});
        float* const data = x.data<float>();
        gpus.launch(current_stream(device), [=] { data[0] = 1 + f, data[1] = 10, data[2] = -f; });
        group->all_reduce(x).wait();
        gpus.launch(current_stream(device), [=] { data[2] *= 2; });
        expect(values(x), V{3, 20, -2});

        group->broadcast(x, 1).wait();
        expect(values(x), V{3, 20, -2});
        const Tensor mine = on(device, {f, f + 10});
        const Tensor all = empty({4}, device);
        group->all_gather(all, mine).wait();
        expect(values(all), V{0, 10, 1, 11});
        const Tensor half = empty({2}, device);
        group->reduce_scatter(half, all, ReduceOp::mean).wait();
        expect(values(half), (r == 0 ? V{0, 10} : V{1, 11}));
        group->all_to_all(all, all).wait();
        expect(values(all), (r == 0 ? V{0, 10, 0, 10} : V{1, 11, 1, 11}));
        group->reduce(mine, 0).wait();
        expect(values(mine), (r == 0 ? V{1, 21} : V{1, 11}));
        group->gather(all, mine, 1).wait();
        if (r == 1) expect(values(all), V{1, 21, 1, 11});
        group->scatter(mine, all, 1).wait();
        expect(values(mine), (r == 0 ? V{1, 21} : V{1, 11}));
        group->all_reduce(empty({0}, device)).wait();

        // A message that is sent from a GPU tensor must arrive in a host tensor.
        if (r == 0) {
          group->send(on(device, {5, 6}), 1).wait();
        } else {
          const Tensor came = host({0, 0});
          group->recv(came, 0).wait();
          expect(values(came), V{5, 6});
        }
        // Lists may mix tensors of the GPU and of the host, and columns of a matrix.
        const Tensor matrix = on(device, V(8)), whole = host({0, 0});
        group
            ->all_gather(std::vector<Tensor>{raw_view(matrix, {2, 2}, {4, 1}, 1), whole},
                         std::vector<Tensor>{on(device, {f + 1, f + 2}), on(device, {f})})
            .wait();
        expect(values(matrix), V{0, 1, 2, 0, 0, 2, 3, 0});
        expect(values(whole), V{0, 1});
        const Tensor sum = on(device, {0, 0}), mean = host({0});
        group
            ->reduce_scatter(std::vector<Tensor>{sum, mean},
                             std::vector<Tensor>{raw_view(matrix, {2, 2}, {4, 1}, 1), on(device, {f, 3})},
                             ReduceOp::mean)
            .wait();
        expect(values(sum), (r == 0 ? V{1, 2} : V{2, 3}));
        expect(values(mean), (r == 0 ? V{0.5f} : V{3}));

        const Tensor there = r == 0 ? on(device, {1}) : host({2});
        group->all_reduce(there).wait();
        expect(values(there), V{3});
        std::string refused;
        try {
          group->all_gather(empty({2}, gpu(0)), empty({1}, gpu(1)));
        } catch (const DeviceError& e) {
          refused = e.what();
        }
        if (refused.find("[all_gather] a tensor is on cuda:0, but the other tensor is on cuda:1") ==
            refused.npos)
          throw std::runtime_error("tensors of two devices: " + refused);
      },
      kQuick);
}

TEST_CASE("after() orders the calls of two groups on a GPU, and tasks that read there") {
  FakeGpus gpus;
  run_local_ranks(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group) {
        const Device device = gpu(group->rank());
        const auto other = group->new_group({1, 0});
        const Tensor x = on(device, {1 + static_cast<float>(group->rank()), 10});
        const Work sum = group->all_reduce(x), twice = other->all_reduce(x, ReduceOp::sum, after(sum));
        twice.wait();
        expect(values(x), V{6, 40});
        V seen;
        const Work last = group->all_reduce(x);
        other->enqueue([&] { seen = values(x); }, after(last));
        expect(seen, V{12, 80});
      },
      kQuick);
}

TEST_CASE("CUDA tensors of any strides are reduced, and memory between their elements stays unchanged") {
  FakeGpus gpus;
  run_local_ranks(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group) {
        const Device device = gpu(group->rank());
        V numbers(60);
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
        struct Case {
          Shape sizes, strides;
          std::int64_t offset;
        };
        for (const Case& layout : {Case{{3, 4}, {20, 1}, 1}, Case{{4, 3}, {1, 20}, 1}, Case{{5}, {7}, 2},
                                   Case{{2, 3, 4}, {24, 8, 2}, 0}, Case{{2, 3, 4}, {1, 20, 2}, 3},
                                   Case{{1, 60}, {99, 1}, 0}, Case{{}, {}, 59}}) {
          const Tensor base = on(device, numbers);
          V expected = numbers;
          const Shape& sizes = layout.sizes;
          const auto each = [&](auto f) {
            std::int64_t index[kMaxDims] = {};
            for (std::int64_t n = 0; n < sizes.numel(); ++n) {
              std::int64_t at = layout.offset, rest = n;
              for (int d = sizes.size() - 1; d >= 0; --d) {
                index[d] = rest % sizes[d];
                rest /= sizes[d];
                at += index[d] * layout.strides[d];
              }
              f(static_cast<std::size_t>(at));
            }
          };
          each([&](std::size_t at) { expected[at] *= 2; });
          const Tensor view = raw_view(base, sizes, layout.strides, layout.offset);
          group->all_reduce(view).wait();
          expect(values(base), expected);
        }
      },
      kQuick);
}

TEST_CASE("a device transport gets its work in order, and the host does not wait for the GPU") {
  FakeGpus gpus;
  {
    const auto backend = std::make_shared<FakeDeviceBackend>(gpus, 0, 3);
    GroupOptions options = kQuick;
    options.check = false;
    const auto group = make_process_group(backend, memory_store(), options);
    const Tensor x = on(gpu(0), {0, 0}), elsewhere = on(gpu(1), {1});
    gpus.freeze(true);
    float* const data = x.data<float>();
    for (int i = 0; i < 100; ++i) gpus.launch(current_stream(gpu(0)), [] {});  // earlier work of the caller
    gpus.launch(current_stream(gpu(0)), [=] { data[0] = 1, data[1] = 2; });
    const Work first = group->all_reduce(x), second = group->all_reduce(x);
    first.wait();
    second.wait();  // returns although the GPU has done nothing yet
    CHECK(backend->given == 2);
    CHECK_FALSE(second.done());
    CHECK_THROWS_WITH(group->all_reduce(elsewhere),
                      ContainsSubstring("a tensor is on cuda:1, but this group uses cuda:0"));
    gpus.launch(current_stream(gpu(0)), [=] {
      data[1] += 0.5f;
    });  // ordered after both collectives, because this thread called wait()
    gpus.freeze(false);
    for (int i = 0; i < 10'000 && !second.done(); ++i) std::this_thread::sleep_for(1ms);
    CHECK(values(x) == V{9, 18.5f});

    // Strided tensors and host tensors must be copied to contiguous memory on the device before the transport
    // gets them.
    const Tensor gaps = on(gpu(0), {1, 2, 3, 4});
    group->all_reduce(raw_view(gaps, {2}, {2}, 0)).wait();
    CHECK(values(gaps) == V{3, 2, 9, 4});
    const Tensor plain = host({1, 2, 3, 4});
    group->all_reduce(raw_view(plain, {2}, {2}, 1)).wait();
    CHECK(values(plain) == V{1, 6, 3, 12});
    group->barrier().wait();
    CHECK(backend->given == 5);

    const Work late = group->all_reduce(x);
    for (int i = 0; i < 1000 && !late.done(); ++i) std::this_thread::sleep_for(1ms);
    CHECK(late.done());
    CHECK(group->recorder().records().size() >= 5);
  }
}

TEST_CASE("a GPU that does not finish is a timeout, and the transport is aborted") {
  FakeGpus gpus;
  const auto backend = std::make_shared<FakeDeviceBackend>(gpus, 0, 1);
  const auto group = make_process_group(backend, memory_store(), {.timeout = 200ms, .check = false});
  const Tensor x = on(gpu(0), {1});
  gpus.freeze(true);
  const Work work = group->all_reduce(x);
  work.wait();
  for (int i = 0; i < 10'000 && !backend->aborted; ++i) std::this_thread::sleep_for(1ms);
  CHECK(backend->aborted);
  std::string text;
  for (int i = 0; i < 10'000 && text.empty(); ++i) {
    std::this_thread::sleep_for(1ms);
    try {
      work.wait();
    } catch (const TimeoutError& e) {
      text = e.what();
    }
  }
  CHECK_THAT(text, ContainsSubstring("all_reduce") && ContainsSubstring("cuda:0 has not finished its part"));
  CHECK_THROWS_AS(group->all_reduce(x), TimeoutError);
  gpus.freeze(false);
}

TEST_CASE("a failure on the GPU is reported while the host waits for the work") {
  FakeGpus gpus;
  const auto backend = std::make_shared<FakeDeviceBackend>(gpus, 0, 1);
  const auto group = make_process_group(backend, memory_store(), {.timeout = 60s, .check = false});
  gpus.freeze(true);
  const Work work = group->all_reduce(empty({1}, gpu(0)));
  backend->broken = true;
  bool thrown = false;
  for (int i = 0; i < 10'000 && !thrown; ++i) {
    std::this_thread::sleep_for(1ms);
    try {
      work.wait();
    } catch (const DistributedError& e) {
      thrown = true;
      CHECK_THAT(e.what(), ContainsSubstring("the fake's GPU is broken"));
    }
  }
  CHECK(thrown);
  gpus.freeze(false);
}

TEST_CASE("ranks of a device transport compare their calls in the store if check is set") {
  FakeGpus gpus;
  const auto store = memory_store();
  std::vector<std::string> errors(2);
  std::vector<std::shared_ptr<FakeDeviceBackend>> backends;
  ThreadBarrier barrier(2);
  for (int r = 0; r < 2; ++r) backends.push_back(std::make_shared<FakeDeviceBackend>(gpus, r, 2, &barrier));
  std::vector<std::thread> ranks;
  GroupOptions options = kQuick;
  options.check = true;
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      const auto group = make_process_group(backends[static_cast<std::size_t>(r)], store, options);
      const Tensor x = on(gpu(r), {1, 2});
      for (int i = 0; i < 20; ++i) group->all_reduce(x).wait();
      group->barrier().wait();
      for (int i = 0; r == 0 && i < 5000 && store->try_get("call/10"); ++i) std::this_thread::sleep_for(1ms);
      try {
        if (r == 0) group->all_reduce(x, ReduceOp::sum, "gradients").wait();
        else group->broadcast(x, 0).wait();
        // Only the second rank to call sees the mismatch at once. The first one must learn of it in a later
        // call.
        for (int i = 0; i < 5000; ++i) {
          std::this_thread::sleep_for(1ms);
          group->all_reduce(x).wait();
        }
      } catch (const DistributedError& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (std::thread& t : ranks) t.join();
  for (const std::string& error : errors) {
    CHECK_THAT(error, ContainsSubstring("not in the same call") && ContainsSubstring("gradients") &&
                          ContainsSubstring("broadcast"));
  }
  // The calls before the last collective that needed all ranks must have been erased from the store.
  CHECK_FALSE(store->try_get("call/10").has_value());
}
