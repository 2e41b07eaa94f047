// With FsdpOptions::offload, copies between host and GPU run on streams of their own. Here each stream of the
// pool is delayed in turn, so that a wait that is missing gives wrong values: the copies of that stream run
// only when somebody has waited for them for some time.
#include <chrono>

#include "tapestry/tapestry.h"
#include "tests/device/emulated/device.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using testing::emulated_gpus;

namespace {

constexpr int kStreams = 32;  // of the pool, see new_stream()

struct Two : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 8, .out_features = 8, .bias = false});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 8, .out_features = 8, .bias = false});
  Tensor forward(const Tensor& x) override { return b(a(x)); }
};

// Fills the shards of all replicas.
void fill(const Two& net, double value) {
  const NoGradGuard no_grad;
  for (const nn::Parameter& slot : net.parameters())
    for (int r = 0; r < slot.replicas(); ++r) slot.replica(r).fill_(value);
}

// Work that is enqueued on this stream later begins after 20 ms, if the host polls or waits for it.
void delay(const Stream& stream) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  emulated_gpus().launch_until(stream.native(), [end] { return std::chrono::steady_clock::now() >= end; });
}

// Catch2's assertions are for one thread, so this throws.
void check_all(const Tensor& t, double expected, const char* what, int stream) {
  const Tensor own = t.detach().cpu();
  for (std::int64_t i = 0; i < own.numel(); ++i)
    check(std::abs(own.data<float>()[i] - expected) <= 1e-4 * std::abs(expected), what, " is ",
          own.data<float>()[i], " instead of ", expected, " while stream ", stream, " is slow; wait for it");
}

}  // namespace

TEST_CASE("with offload, slow copies between host and GPU change no value") {
  emulated_gpus();
  Two nets[2];
  run_local_ranks(2,
                  [&](const std::shared_ptr<ProcessGroup>& group) {
                    const Device device(DeviceType::cuda, group->rank());
                    const DeviceGuard guard(device);
                    Two& net = nets[group->rank()];
                    net.to(device);
                    const FsdpOptions options{.group = group, .offload = true};
                    fully_shard(net.a, options);
                    fully_shard(net, options);
                    const Tensor x = ones({3, 8}, device);
                    net(x).sum().backward();  // chooses the streams
                    for (int i = 0; i < kStreams; ++i) {
                      const Stream slow = new_stream(device, true);
                      const double w = 0.01 * (i + 1);
                      fill(net, w);
                      delay(slow);
                      const Tensor y = [&] {
                        const NoGradGuard no_grad;
                        return net(x);
                      }();
                      fill(net, -1);  // the host may change shards at once
                      check_all(y, 64 * w * w, "the output", i);

                      fill(net, w);
                      for (const nn::Parameter& shard : net.parameters()) shard->set_grad({});
                      delay(slow);
                      net(x).sum().backward();
                      for (const nn::Parameter& shard : net.parameters())
                        check_all(shard->grad(), 24 * w, "a gradient", i);
                    }
                  },
                  {.timeout = std::chrono::seconds(60)});
}

TEST_CASE("with offload, slow copies of a ShardedDataParallel change no value") {
  emulated_gpus();
  const Device devices[] = {"cuda:0", "cuda:1"};
  Two net;
  ShardedDataParallel sharded(net, {devices[0], devices[1]},
                              {.units = {&net.a}, .backend = "local", .offload = true});
  const Tensor x = ones({6, 8}, kCPU);
  sharded(x).sum().backward();  // chooses the streams
  for (int i = 0; i < kStreams; ++i) {
    const Stream slow[] = {new_stream(devices[0], true), new_stream(devices[1], true)};
    const double w = 0.01 * (i + 1);
    fill(net, w);
    for (const Stream& s : slow) delay(s);
    const Tensor y = [&] {
      const NoGradGuard no_grad;
      return sharded(x);
    }();
    fill(net, -1);
    check_all(y, 64 * w * w, "the output", i);

    fill(net, w);
    for (const nn::Parameter& slot : net.parameters())
      for (int r = 0; r < 2; ++r) slot.replica(r).set_grad({});
    for (const Stream& s : slow) delay(s);
    sharded(x).sum().backward();
    for (const nn::Parameter& slot : net.parameters())
      for (int r = 0; r < 2; ++r) check_all(slot.replica(r).grad(), 48 * w, "a gradient", i);
  }
}
