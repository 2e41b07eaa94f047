// fully_shard over two ranks with a CUDA device each, with shards on the devices and in host memory. Both
// must train as the CPU alone.
#include <algorithm>
#include <cmath>

#include "tapestry/core/pinned.h"
#include "tests/device/train.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 6, .out_features = 9});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 9, .out_features = 9});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 9, .out_features = 5});
  nn::Linear& fc4 = add<nn::Linear>("fc4", {.in_features = 5, .out_features = 4});
  Tensor forward(const Tensor& x) override { return fc4(fc3(fc2(fc1(x).relu()).tanh()).tanh()); }
};

std::unique_ptr<Net> make() {
  manual_seed(1);
  return std::make_unique<Net>();
}

constexpr int kSteps = 4;

// Trains on rows [3 rank, 3 rank + 3) of each batch; on all rows if the rank is -1.
template <class Optimizer>
void train(
    Net& net, int rank, Device device, const std::function<void(int)>& after_step = [](int) {}) {
  Optimizer optimizer(net.parameters(), {.lr = 0.05});
  for (int step = 0; step < kSteps; ++step) {
    Tensor x = empty({6, 6}, kCPU), target = empty({6, 4}, kCPU);
    for (int i = 0; i < 36; ++i) x.data<float>()[i] = std::sin(0.3f * static_cast<float>(i + step));
    for (int i = 0; i < 24; ++i) target.data<float>()[i] = std::cos(0.7f * static_cast<float>(i * step));
    if (rank >= 0) x = x.narrow(0, 3 * rank, 3), target = target.narrow(0, 3 * rank, 3);
    optimizer.zero_grad();
    mse_loss(net(x.to(device)), target.to(device)).backward();
    nn::clip_grad_norm_(net.parameters(), 0.2);
    optimizer.step();
    after_step(step);
  }
}

struct Sharded {
  std::unique_ptr<Net> net;
  std::optional<FullyShard> handle;
  Sharded(std::unique_ptr<Net> built, const std::shared_ptr<ProcessGroup>& group, FsdpOptions options)
      : net(std::move(built)) {
    net->to(Device(DeviceType::cuda, group->rank()));
    options.group = group;
    for (nn::Module* m : std::vector<nn::Module*>{&net->fc1, &net->fc2, &net->fc3, net.get()})
      handle = fully_shard(*m, options);
  }
};

nn::StateDict whole(const Sharded& sharded) {
  const auto full = sharded.handle->unshard(true);
  nn::StateDict state;
  for (const auto& [name, p] : sharded.net->named_parameters())
    state.emplace_back(name, p.tensor().detach().cpu().clone());
  return state;
}

// Runs f(sharded model, group) on two ranks. The models are built here, because construction draws random
// numbers from the generator of the process.
void on_two_ranks(const FsdpOptions& options,
                  const std::function<void(Sharded&, const std::shared_ptr<ProcessGroup>&)>& f) {
  std::unique_ptr<Net> nets[2] = {make(), make()};
  run_local_ranks(2,
                  [&](const std::shared_ptr<ProcessGroup>& group) {
                    const DeviceGuard guard(Device(DeviceType::cuda, group->rank()));
                    Sharded sharded(std::move(nets[group->rank()]), group, options);
                    f(sharded, group);
                  },
                  {.timeout = std::chrono::seconds(60)});
}

void check_same(const nn::StateDict& got, const nn::Module& expected) {
  const auto named = expected.named_parameters();
  REQUIRE(got.size() == named.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(got[i].first);
    CHECK(allclose(got[i].second, named[i].second.tensor().detach(), 1e-4, 1e-5));
  }
}

}  // namespace

TEST_CASE("fully_shard over CUDA devices trains as the CPU alone, with and without offload") {
  if (no_gpu(2)) return;
  const auto alone = make();
  train<optim::AdamW>(*alone, -1, kCPU);
  for (const FsdpOptions& options :
       {FsdpOptions{}, FsdpOptions{.offload = true},
        FsdpOptions{.reshard_after_forward = true, .max_full_units = 1, .offload = true}}) {
    CAPTURE(options.offload, options.max_full_units);
    nn::StateDict trained;
    on_two_ranks(options, [&](Sharded& sharded, const std::shared_ptr<ProcessGroup>& group) {
      const Device device(DeviceType::cuda, group->rank());
      train<optim::AdamW>(*sharded.net, group->rank(), device);
      const nn::StateDict state = whole(sharded);
      if (group->rank() == 0) trained = state;
    });
    check_same(trained, *alone);
  }
}

TEST_CASE("fully_shard over CUDA devices computes in bf16 over f32 shards, with and without offload") {
  if (no_gpu(2)) return;
  const auto alone = make();
  const auto before = make();
  train<optim::SGD>(*alone, -1, kCPU);
  CHECK_FALSE(allclose(before->fc3.bias->detach(), alone->fc3.bias->detach(), 0.005, 0.002));
  for (const bool offload : {false, true}) {
    CAPTURE(offload);
    const FsdpOptions options{.offload = offload,
                              .mixed_precision = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}};
    nn::StateDict trained;
    on_two_ranks(options, [&](Sharded& sharded, const std::shared_ptr<ProcessGroup>& group) {
      const Device device(DeviceType::cuda, group->rank());
      train<optim::SGD>(*sharded.net, group->rank(), device, [&](int) {
        for (const auto& [name, p] : sharded.net->named_parameters())
          if (p.dtype() != DType::f32 || p.grad().dtype() != DType::f32)
            throw std::runtime_error(name + " is not f32");
      });
      const nn::StateDict state = whole(sharded);
      if (group->rank() == 0) trained = state;
    });
    const auto named = alone->named_parameters();
    for (std::size_t i = 0; i < trained.size(); ++i) {
      CAPTURE(trained[i].first);
      CHECK(trained[i].second.dtype() == DType::bf16);
      // The weights are rounded to 8 bits here, and the gradients have errors of that size.
      CHECK(allclose(trained[i].second.to(DType::f32), named[i].second.tensor().detach(), 0.005, 0.002));
    }
  }
}

TEST_CASE("pairs of options with offload train as the CPU alone") {
  if (no_gpu(2)) return;
  struct Case {
    FsdpOptions options;
    bool accumulate, frozen, checkpointed, nested;
  };
  // Each pair of values of two options occurs, because the second half of the digits of i are sums of others.
  std::vector<Case> cases;
  for (int i = 0; i < 8; ++i) {
    const bool a = i & 1, b = i & 2, c = i & 4;
    cases.push_back({{.reshard_after_forward = a, .max_full_units = b ? 1 : 3, .offload = true},
                     c,
                     a != b,
                     a != c,
                     b != c});
  }
  for (const Case& c : cases) {
    CAPTURE(*c.options.reshard_after_forward, c.options.max_full_units, c.accumulate, c.frozen,
            c.checkpointed, c.nested);
    // Trains on rows [3 rank, 3 rank + 3), or, if the rank is -1, on all rows.
    const auto run = [&c](Net& net, int rank, Device device, const FullyShard* handle) {
      optim::AdamW optimizer(net.parameters(), {.lr = 0.05});
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        for (int part = 0; part < (c.accumulate ? 2 : 1); ++part) {
          Tensor x = empty({6, 6}, kCPU);
          for (int i = 0; i < 36; ++i)
            x.data<float>()[i] = std::sin(0.3f * static_cast<float>(i + 7 * step + 3 * part));
          if (rank >= 0) x = x.narrow(0, 3 * rank, 3);
          const auto forward = [&](const Tensor& in) { return net(in); };
          const auto pass = [&] {
            (c.checkpointed ? checkpoint(forward, x.to(device)) : net(x.to(device)))
                .square()
                .mean()
                .backward();
          };
          if (handle && c.accumulate && part == 0) {
            const auto guard = handle->no_sync();
            pass();
          } else {
            pass();
          }
        }
        nn::clip_grad_norm_(net.parameters(), 0.1);
        optimizer.step();
      }
    };
    const auto alone = make();
    alone->fc2.weight.requires_grad_(!c.frozen);
    run(*alone, -1, kCPU, nullptr);
    std::unique_ptr<Net> nets[2] = {make(), make()};
    nn::StateDict trained;
    run_local_ranks(2,
                    [&](const std::shared_ptr<ProcessGroup>& group) {
                      const Device device(DeviceType::cuda, group->rank());
                      const DeviceGuard guard(device);
                      Net& net = *nets[group->rank()];
                      net.to(device);
                      net.fc2.weight.requires_grad_(!c.frozen);
                      FsdpOptions options = c.options;
                      options.group = group;
                      if (c.nested) fully_shard(net.fc2, options);
                      fully_shard(net.fc3, options);
                      const FullyShard handle = fully_shard(net, options);
                      run(net, group->rank(), device, &handle);
                      const auto full = handle.unshard(true);
                      if (group->rank() > 0) return;
                      for (const auto& [name, p] : net.named_parameters())
                        trained.emplace_back(name, p.tensor().detach().cpu().clone());
                    },
                    {.timeout = std::chrono::seconds(60)});
    check_same(trained, *alone);
  }
}

TEST_CASE("with offload, shards, gradients and the optimizer's state stay in host memory") {
  if (no_gpu(2)) return;
  const MemoryRecord record;
  on_two_ranks({.offload = true}, [&](Sharded& sharded, const std::shared_ptr<ProcessGroup>& group) {
    const Device device(DeviceType::cuda, group->rank());
    std::vector<bool> pinned, on_host;
    MemorySample left, in_host;
    train<optim::AdamW>(*sharded.net, group->rank(), device, [&](int) {
      for (const nn::Parameter& p : sharded.net->parameters()) {
        pinned.push_back(p->numel() == 0 || is_pinned(p));
        on_host.push_back(p->device() == kCPU && p->grad().device() == kCPU);
      }
      left = record.samples(device).back();
      in_host = record.samples(kCPU).back();
    });
    // Catch2's assertions are for one thread, so this throws.
    for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer}) {
      std::int64_t own = 0;  // the other rank has as much, or is not that far
      for (const nn::Parameter& p : sharded.net->parameters()) own += static_cast<std::int64_t>(p->nbytes());
      check(in_host.bytes[static_cast<std::size_t>(kind)] >= own, "the host has ",
            in_host.bytes[static_cast<std::size_t>(kind)], " bytes of ", memory_kind_name(kind), ", not ",
            own, "; count pinned memory");
    }
    check(std::count(pinned.begin(), pinned.end(), false) == 0, "a shard is not pinned; pin it");
    check(std::count(on_host.begin(), on_host.end(), false) == 0,
          "a shard is on the GPU; keep it in the host");
    for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer})
      check(left.bytes[static_cast<std::size_t>(kind)] == 0, "after a step the GPU has ",
            left.bytes[static_cast<std::size_t>(kind)], " bytes of ", memory_kind_name(kind), "; free them");
  });
}

TEST_CASE("with offload, changes of shards and of full parameters are seen, and moves keep it") {
  if (no_gpu(2)) return;
  on_two_ranks({.offload = true}, [](Sharded& sharded, const std::shared_ptr<ProcessGroup>& group) {
    const Device device(DeviceType::cuda, group->rank());
    Net& net = *sharded.net;
    const NoGradGuard no_grad;
    const auto equals = [](const Tensor& t, double v) { return (t.cpu() == v).all().item<bool>(); };
    net.fc2.weight->fill_(2);  // this rank's rows, in host memory
    net(ones({3, 6}, device));
    {
      const auto full = sharded.handle->unshard(true);
      check(net.fc2.weight->device() == device && equals(net.fc2.weight, 2),
            "the shards' values; gather them");
      net.fc2.weight->fill_(3);
    }
    check(net.fc2.weight->device() == kCPU && equals(net.fc2.weight, 3), "a change under unshard(); keep it");
    net.to(device);
    check(net.fc2.weight->device() == kCPU && equals(net.fc2.weight, 3), "a move to the same GPU; stay");
    const Tensor y = net(ones({3, 6}, device));
    check(y.device() == device, "the output is on ", y.device(), "; compute on the GPU");
  });
}

TEST_CASE("fully_shard on GPUs shares the choices of kernels at first and after 1, 2, 4, ... passes") {
  if (no_gpu(2)) return;
  std::vector<std::ptrdiff_t> shared[2];
  on_two_ranks({}, [&](Sharded& sharded, const std::shared_ptr<ProcessGroup>& group) {
    const auto count = [&] {
      const auto records = group->recorder().records();
      shared[group->rank()].push_back(
          std::count_if(records.begin(), records.end(), [](const CollectiveRecord& r) {
            return r.name.find("share kernel choices") != std::string::npos;
          }));
    };
    const auto backward = [&] {
      (*sharded.net)(ones({3, 6}, Device(DeviceType::cuda, group->rank()))).sum().backward();
      count();
    };
    count();
    {
      const auto no_sync = sharded.handle->no_sync();
      backward();
    }
    for (int pass = 1; pass <= 4; ++pass) backward();
  });
  for (const auto& counted : shared) {
    REQUIRE(counted.size() == 6);
    const std::ptrdiff_t each = counted[0] / 4;  // fully_shard was called on four modules
    CHECK(each > 0);
    for (const auto& [at, times] : {std::pair(0, 4), {1, 4}, {2, 5}, {3, 6}, {4, 6}, {5, 7}}) {
      CAPTURE(at);
      CHECK(counted[static_cast<std::size_t>(at)] == each * times);
    }
  }
}
