// Ranks with CUDA devices must train to the same weights as the CPU alone.
#include "tests/device/train.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 6, .out_features = 8});
  nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 8});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 8, .out_features = 4});
  Tensor forward(const Tensor& x) override { return fc2(bn(fc1(x)).relu()); }
};

std::unique_ptr<Net> make() {
  manual_seed(1);
  return std::make_unique<Net>();
}

constexpr int kSteps = 3;

template <class Model>
void train(
    Model& model, nn::Module& net, const Tensor& x, const Tensor& target,
    const std::function<void()>& clip = [] {}) {
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    mse_loss(model(x), target).backward();
    clip();
    optimizer.step();
  }
}

void on_two_ranks(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& f) {
  run_local_ranks(2, f, {.timeout = std::chrono::seconds(60)});
}

void check_same(const nn::StateDict& got, const nn::StateDict& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(got[i].first);
    CHECK(got[i].first == expected[i].first);
    CHECK(allclose(got[i].second.cpu(), expected[i].second, 1e-4, 1e-5));
  }
}

}  // namespace

TEST_CASE("DDP with SyncBatchNorm over CUDA devices trains as the CPU alone") {
  if (no_gpu(2)) return;
  const Tensor x = randn({6, 6}, kCPU), target = randn({6, 4}, kCPU);
  const auto alone = make();
  train(*alone, *alone, x, target);

  std::vector<std::unique_ptr<Net>> nets;
  for (int rank = 0; rank < 2; ++rank) nets.push_back(make());
  on_two_ranks([&](const std::shared_ptr<ProcessGroup>& group) {
    const int rank = group->rank();
    const Device device(DeviceType::cuda, rank);
    Net& net = *nets[static_cast<std::size_t>(rank)];
    net.to(device);
    convert_sync_batchnorm(net, group);
    DistributedDataParallel<Net> ddp(net, {.process_group = group});
    train(ddp, net, x.narrow(0, 3 * rank, 3).to(device), target.narrow(0, 3 * rank, 3).to(device));
  });
  for (const auto& net : nets) check_same(net->state_dict(), alone->state_dict());
}

TEST_CASE("a pipeline over ranks with CUDA devices trains as the CPU alone") {
  if (no_gpu(2)) return;
  constexpr double kMaxNorm = 0.1;
  const Tensor x = randn({6, 6}, kCPU), target = randn({6, 4}, kCPU);
  const auto alone = make();
  alone->bn.eval();  // in training mode it would normalize over parts of the batch
  train(*alone, *alone, x, target, [&] { nn::clip_grad_norm_(alone->parameters(), kMaxNorm); });

  std::vector<std::unique_ptr<Net>> nets;
  for (int rank = 0; rank < 2; ++rank) nets.push_back(make());
  nn::StateDict trained;
  on_two_ranks([&](const std::shared_ptr<ProcessGroup>& group) {
    const int rank = group->rank();
    const Device device(DeviceType::cuda, rank);
    Net& net = *nets[static_cast<std::size_t>(rank)];
    net.bn.eval();
    nn::ReLU relu;
    const Stage::Modules first{net.fc1}, second{net.bn, relu, net.fc2};
    Pipeline pipeline(group, {rank == 0 ? first : second, device}, {.micro_batches = 3});
    optim::SGD optimizer(pipeline.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      pipeline.forward_backward(x, target, [](const Tensor& y, const Tensor& t) { return mse_loss(y, t); });
      pipeline.clip_grad_norm_(kMaxNorm);
      optimizer.step();
    }
    const nn::StateDict whole = pipeline.whole_state_dict();
    if (rank == 0) trained = whole;
  });
  check_same(trained, alone->state_dict());
}

TEST_CASE("axes that combine train on CUDA devices as the CPU alone") {
  if (no_gpu(4)) return;
  using Tensors = std::vector<Tensor>;
  const Tensor x = randn({8, 6}, kCPU), target = randn({8, 4}, kCPU);
  const auto train = [&](const char* text, const std::shared_ptr<ProcessGroup>& world, Net& net) {
    const int rank = world ? world->rank() : 0;
    const Device device = world ? Device(DeviceType::cuda, rank) : kCPU;
    net.bn.eval();  // in training mode it would normalize over parts of the batch
    Strategy strategy(text, {.world = world, .devices = {device}, .parts = 2});
    strategy.wrap(
        net,
        {.units = {&net.fc2},
         .forward = [&](const Tensors& in) { return Tensors{net(in[0])}; },
         .loss = [](const Tensors& out, const Tensors& targets) -> Loss {
           return {mse_loss(out[0], targets[0]), static_cast<double>(targets[0].size(0))};
         },
         .stages =
             [&](const std::vector<Device>& on) {
               const auto first = [&net](const Tensor& t) { return net.fc1(t); };
               const auto last = [&net](const Tensor& t) { return net.fc2(net.bn(t).relu()); };
               return std::vector<Stage>{{first, on.at(0), {net.fc1}}, {last, on.at(1), {net.bn, net.fc2}}};
             }});
    const auto optimizer =
        make_optimizer<optim::SGD>(strategy, net.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      const auto read = [&](const Part& part) {
        const Samples mine = strategy.share(8, part);
        return Batch{{x.narrow(0, mine.first, mine.count).to(device)},
                     {target.narrow(0, mine.first, mine.count).to(device)}};
      };
      strategy.gradients(read, 8);
      strategy.clip_grad_norm_(0.1);
      optimizer->step();
    }
    return strategy.whole_state();
  };
  const nn::StateDict alone = train("none", nullptr, *make());
  for (const char* text : {"replicate=2,shard=2", "pipeline=2,replicate=2", "pipeline=2,shard=2:offload=host",
                           "pipeline=2:schedule=zero-bubble,replicate=2:zero=1"}) {
    CAPTURE(text);
    std::vector<std::unique_ptr<Net>> nets;
    for (int rank = 0; rank < 4; ++rank) nets.push_back(make());
    nn::StateDict trained;
    run_local_ranks(4,
                    [&](const std::shared_ptr<ProcessGroup>& world) {
                      nn::StateDict whole =
                          train(text, world, *nets[static_cast<std::size_t>(world->rank())]);
                      if (world->rank() == 0) trained = std::move(whole);
                    },
                    {.timeout = std::chrono::seconds(60)});
    check_same(trained, alone);
  }
}

TEST_CASE("layers, sequences and experts that ranks divide train on CUDA devices as the CPU alone") {
  if (no_gpu(2)) return;
  const auto make_model = [](bool has_experts) -> std::unique_ptr<nn::LanguageModel> {
    const auto sized = [](auto config) {
      config.vocab_size = 11, config.hidden_size = 16, config.intermediate_size = 12;
      config.num_hidden_layers = 1, config.num_attention_heads = 2, config.num_key_value_heads = 2;
      config.max_position_embeddings = 8;
      return config;
    };
    manual_seed(1);
    if (!has_experts) return std::make_unique<nn::Llama>(sized(nn::LlamaConfig{}));
    nn::OlmoeConfig config = sized(nn::OlmoeConfig{});
    config.num_experts = 3, config.num_experts_per_tok = 2;
    return std::make_unique<nn::Olmoe>(config);
  };
  manual_seed(2);
  const Tensor words = randint(0, 11, {2, 9}).to(kCPU);
  const auto train = [&](const char* text, const std::shared_ptr<ProcessGroup>& world,
                         nn::LanguageModel& net) {
    const Device device = world ? Device(DeviceType::cuda, world->rank()) : kCPU;
    Strategy strategy(text, {.world = world, .devices = {device}});
    strategy.wrap(
        net, {.forward_loss = [&](const std::vector<Tensor>& in, const std::vector<Tensor>& targets) -> Loss {
                return {net(in[0], {.targets = targets[0]}), static_cast<double>(targets[0].numel())};
              },
              .sequence_dim = 1});
    const auto optimizer = make_optimizer<optim::SGD>(strategy, net.parameters(), {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      optimizer->zero_grad();
      const auto read = [&](const Part& part) {
        const Samples mine = strategy.share(2, part);
        const Tensor own = words.narrow(0, mine.first, mine.count).to(device);
        return Batch{{own.narrow(1, 0, 8)}, {own.narrow(1, 1, 8)}};
      };
      strategy.gradients(read, 16);
      strategy.clip_grad_norm_(0.1);
      optimizer->step();
    }
    return strategy.whole_state();
  };
  for (const char* text : {"tensor=2", "tensor=2:sequence=1", "context=2:attention=ring",
                           "context=2:attention=all-to-all", "expert=2"}) {
    CAPTURE(text);
    const bool has_experts = std::string_view(text).starts_with("expert");
    const nn::StateDict alone = train("none", nullptr, *make_model(has_experts));
    std::vector<std::unique_ptr<nn::LanguageModel>> nets;
    for (int rank = 0; rank < 2; ++rank) nets.push_back(make_model(has_experts));
    nn::StateDict trained;
    on_two_ranks([&](const std::shared_ptr<ProcessGroup>& world) {
      nn::StateDict whole = train(text, world, *nets[static_cast<std::size_t>(world->rank())]);
      if (world->rank() == 0) trained = std::move(whole);
    });
    check_same(trained, alone);
  }
}
