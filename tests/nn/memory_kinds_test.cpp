// Tests that the library says what a training step uses memory for.
#include <algorithm>

#include "tapestry/core/allocator.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

std::int64_t bytes_of(const MemorySample& sample, MemoryKind kind) {
  return sample.bytes[static_cast<std::size_t>(kind)];
}

}  // namespace

TEST_CASE("the memory of a training step is counted by kind") {
  MemoryRecord record;
  constexpr std::int64_t kWeights = 4 * (32 * 64 + 64) + 4 * 2 * 64;  // a linear layer and a batch norm
  nn::Sequential net(nn::Linear::Options{.in_features = 32, .out_features = 64},
                     nn::BatchNorm1d::Options{.num_features = 64}, nn::ReLU::Options{});
  optim::AdamW optimizer(net.parameters());
  const Tensor x = randn({16, 32});
  const auto step = [&] {
    optimizer.zero_grad();
    net(x).sum().backward();
    optimizer.step();
  };
  step();
  record.restart();
  reset_peak_memory(kCPU);
  step();
  const std::vector<MemorySample> samples = record.samples(kCPU);
  const MemorySample& last = samples.back();
  CHECK(bytes_of(last, MemoryKind::parameters) == kWeights);
  CHECK(bytes_of(last, MemoryKind::gradients) == kWeights);
  CHECK(bytes_of(last, MemoryKind::optimizer) == 2 * kWeights);
  CHECK(bytes_of(last, MemoryKind::buffers) >= 4 * 2 * 64);  // the running mean and variance
  CHECK(bytes_of(last, MemoryKind::activations) == static_cast<std::int64_t>(x.nbytes()));
  std::int64_t most = 0, activations = 0, gradients = kWeights;
  for (const MemorySample& s : samples) {
    most = std::max(most, s.total());
    activations = std::max(activations, bytes_of(s, MemoryKind::activations));
    gradients = std::min(gradients, bytes_of(s, MemoryKind::gradients));
  }
  CHECK(most == memory_stats(kCPU).peak_allocated);
  CHECK(activations >= 4 * (16 * 32 + 2 * 16 * 64));  // the inputs of the layers
  CHECK(gradients == 0);                              // zero_grad() freed them
}

TEST_CASE("a parameter that moves to another device or dtype stays a parameter") {
  MemoryRecord record;
  nn::Linear layer({.in_features = 10, .out_features = 10});
  layer.to(DType::f64);
  for (const nn::Parameter& p : layer.parameters()) p.requires_grad_(false);
  layer.to(DType::f32);
  const MemorySample last = record.samples(kCPU).back();
  CHECK(bytes_of(last, MemoryKind::parameters) == 4 * 110);
  CHECK(bytes_of(last, MemoryKind::buffers) == 0);
}
