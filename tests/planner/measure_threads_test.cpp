// Tests measurements of a small model that the caller defines, and predictions from them.
#include "tapestry/distributed/planner/internal/measure_profile.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed::planner;

namespace {

// Three linear layers on 6 features, trained on mean squared error.
Model small_model(std::int64_t batch) {
  manual_seed(1);
  return {.make_blocks =
              [] {
                std::vector<Block> blocks;
                for (const char* name : {"first", "second", "third"})
                  blocks.push_back({name, std::make_shared<nn::Sequential>(
                                              nn::Linear::Options{.in_features = 6, .out_features = 6},
                                              nn::Tanh::Options{})});
                return blocks;
              },
          .inputs = randn({batch, 6}),
          .targets = randn({batch, 6}),
          .loss = [](const Tensor& output, const Tensor& targets) { return mse_loss(output, targets); }};
}

TrainingSetup small_setup(int devices) { return {.batch_size = 8, .devices = devices, .micro_batches = 4}; }

}  // namespace

TEST_CASE("a profile has times and bytes of every block at every batch size") {
  const TrainingSetup setup = small_setup(1);
  CHECK(profile_sizes(setup, {3}) == std::vector<std::int64_t>{2, 3, 8});
  const Profile profile =
      measure_profile(small_model(8), setup, {.warmup = 1, .passes = 2, .simulated_devices = {3}});
  REQUIRE(profile.blocks.size() == 3);
  CHECK(profile.blocks[0].name == "first");
  CHECK(profile.loss.name == "loss");
  double update_s = 0;
  for (std::size_t k = 0; k <= 3; ++k) {
    const BlockProfile& b = k < 3 ? profile.blocks[k] : profile.loss;
    INFO(b.name);
    for (const Curve* curve : {&b.forward_s, &b.backward_s}) {
      REQUIRE(curve->points().size() == 3);
      for (const auto& [samples, seconds] : curve->points()) CHECK(seconds > 0);
    }
    update_s += b.update_s;
    if (k == 3) continue;
    CHECK(b.parameter_bytes == std::vector<std::int64_t>{6 * 6 * 4, 6 * 4});
    CHECK(b.output_bytes.at(8) == 8 * 6 * 4);
    CHECK(b.output_bytes.at(2) == 2 * 6 * 4);
    CHECK(b.saved_bytes.at(8) >= b.output_bytes.at(8));
    CHECK(b.accumulate_s >= 0);  // a difference of two times, at least 0
    CHECK(b.bucket_copy_s > 0);
    // The first block needs no input gradients, so its backward is not split.
    CHECK((b.input_grad_s > 0) == (k > 0));
    CHECK((b.weight_grad_s > 0) == (k > 0));
    CHECK((b.weight_grad_accumulate_s > 0) == (k > 0));
    // The product adds to an existing gradient of the weight in place.
    REQUIRE(b.backward.size() == 3);
    CHECK(b.backward[0].parameter + b.backward[1].parameter == 1);
    CHECK(b.backward[2].parameter == -1);
    CHECK(b.weight_grad.peak - b.weight_grad_accumulate.peak == (k > 0 ? 6 * 6 * 4 : 0));
  }
  CHECK(update_s > 0);
  CHECK(profile.contention.forward == 1);  // one device has no contention
  CHECK(profile.stages.empty());
  CHECK(profile.zero_bubble_stages.empty());
  CHECK(profile.input_sample_bytes == 6 * 4);
  CHECK(profile.target_sample_bytes == 6 * 4);
}

TEST_CASE("layers that two ranks divide are measured on the first one, and what they send is counted") {
  Model model = small_model(8);
  using Style = distributed::TensorStyle;
  model.tensor_plan = {{{"1.0", Style::column}, {"2.0", Style::row}}};
  const Profile profile =
      measure_profile(model, small_setup(1), {.warmup = 1, .passes = 1, .layers = {"tensor=2"}});
  REQUIRE(profile.divided.size() == 1);
  const DividedLayers& d = profile.divided[0];
  REQUIRE(d.blocks.size() == 3);
  CHECK(d.blocks[0].parameter_bytes == std::vector<std::int64_t>{6 * 6 * 4, 6 * 4});
  CHECK(d.blocks[1].parameter_bytes == std::vector<std::int64_t>{3 * 6 * 4, 3 * 4});
  CHECK(d.blocks[2].parameter_bytes == std::vector<std::int64_t>{6 * 3 * 4, 6 * 4});
  CHECK(d.blocks[1].output_bytes.at(8) == 8 * 3 * 4);
  CHECK(profile.blocks[1].output_bytes.at(8) == 8 * 6 * 4);
  // Forward adds the outputs of the row layer, backward the gradients of the inputs of the column layer: an
  // all-reduce over two ranks is two messages, with the bytes of the tensor in all.
  for (std::size_t k = 0; k <= 3; ++k) {
    const BlockProfile& b = k < 3 ? d.blocks[k] : d.loss;
    INFO(b.name);
    CHECK(b.forward_s.at(8) > 0);
    CHECK(b.backward_s.at(8) > 0);
    for (const double n : {2.0, 8.0}) {
      CHECK(b.layers_forward.at(0).bytes(n) == (k == 2 ? n * 6 * 4 : 0));
      CHECK(b.layers_backward.at(0).bytes(n) == (k == 1 ? n * 6 * 4 : 0));
    }
    CHECK(b.layers_forward.at(0).all_reduce.count == (k == 2 ? 2 : 0));
    CHECK(b.layers_backward.at(0).all_reduce.count == (k == 1 ? 2 : 0));
    CHECK(b.layers_forward.at(0).all_gather.count + b.layers_backward.at(0).reduce_scatter.count == 0);
  }
  CHECK(profile_from_text(to_text(profile)).divided[0].blocks.size() == 3);
  model.tensor_plan = {{{"1.0", Style::column}, {"1.1", Style::row}}};
  CHECK_THROWS_WITH(
      measure_profile(model, small_setup(1), {.warmup = 0, .passes = 1, .layers = {"tensor=2"}}),
      ContainsSubstring("tensor_parallel"));
  for (const auto& [layers, why] : {std::pair("tensor=-1", "2 devices or more of tensor"),
                                    {"shard=2", "the axis shard divides no layers"},
                                    {"none", "name an axis"}})
    CHECK_THROWS_WITH(measure_profile(model, small_setup(1), {.layers = {layers}}), ContainsSubstring(why));
}

TEST_CASE("a sequence that ranks divide unequally is measured with its own length") {
  using Style = distributed::TensorStyle;
  manual_seed(1);
  const Model model{
      .make_blocks =
          [] {
            const auto linear = [](std::int64_t in, std::int64_t out) {
              return nn::Linear::Options{.in_features = in, .out_features = out};
            };
            return std::vector<Block>{
                {"words", std::make_shared<nn::Sequential>(
                              nn::Embedding::Options{.num_embeddings = 8, .embedding_dim = 6})},
                {"mlp", std::make_shared<nn::Sequential>(linear(6, 4), nn::Tanh::Options{}, linear(4, 6))},
                {"head", std::make_shared<nn::Sequential>(linear(6, 8))}};
          },
      .inputs = randint(0, 8, {4, 3}),
      .targets = randint(0, 8, {4, 3}),
      .loss = [](const Tensor& x, const Tensor& y) { return cross_entropy(x.flatten(0, 1), y.flatten()); },
      .tensor_plan = {{{"0.0", Style::vocabulary},
                       {"1.0", Style::column},
                       {"1.2", Style::row},
                       {"2.0", Style::gathered_column}}}};
  const Profile profile = measure_profile(model, {.batch_size = 4, .devices = 1, .micro_batches = 4},
                                          {.warmup = 0, .passes = 1, .layers = {"tensor=2:sequence=1"}});
  REQUIRE(profile.divided.size() == 1);
  const DividedLayers& d = profile.divided[0];
  CHECK(d.axes == "tensor=2:sequence=1");
  // The first rank has two of three tokens between the divided layers, and sends as much as it has.
  for (const double n : {1.0, 4.0}) {
    CHECK(d.blocks[1].output_bytes.at(n) == n * 2 * 6 * 4);
    CHECK(d.blocks[2].output_bytes.at(n) == n * 3 * 8 * 4);
    CHECK(d.blocks[1].layers_forward.at(0).all_gather.bytes.at(n) == n * 2 * 6 * 4);
    CHECK(d.blocks[1].layers_forward.at(0).reduce_scatter.bytes.at(n) == n * 2 * 6 * 4);
  }
  CHECK(d.blocks[1].layers_forward.at(0).all_gather.count == 1);
  CHECK(d.blocks[1].layers_forward.at(0).all_reduce.count == 0);
}

TEST_CASE("two measured devices give a prediction for every mode") {
  TrainingSetup setup = small_setup(2);
  const MeasureOptions quick{.warmup = 1, .passes = 2};
  const Model model = small_model(8);
  const Profile profile = measure_profile(model, setup, quick);
  REQUIRE(profile.stages.size() == 2);
  REQUIRE(profile.zero_bubble_stages.size() == 2);
  CHECK(profile.dispatch_s > 0);
  for (std::size_t s = 0; s < 2; ++s) {
    const ZeroBubbleStage& stage = profile.zero_bubble_stages[s];
    for (const StageContention& c : {profile.stages[s], stage.contention})
      for (const double factor : {c.forward, c.backward, c.weights}) CHECK(factor >= 1);
    CHECK((stage.input_grad_s > 0) == (s > 0));
    CHECK(stage.weight_grad_s > 0);
  }

  Link link = measure_link(model, setup, quick);
  const auto has_cost = [](const TransferCost& cost) { return cost.latency_s + cost.s_per_byte > 0; };
  CHECK(has_cost(link.copy));
  CHECK(has_cost(link.broadcast));
  CHECK(has_cost(link.add));
  CHECK(has_cost(link.local.message));
  CHECK_FALSE(has_cost(link.ranks.message));  // measured between processes only

  std::vector<AllReduce> ranks(2);
  distributed::run_local_ranks(2, [&](const std::shared_ptr<distributed::ProcessGroup>& group) {
    ranks[static_cast<std::size_t>(group->rank())] =
        measure_all_reduce(*group, model, setup, Device(DeviceType::cpu, group->rank()), quick);
  });
  link.ranks = ranks[0];
  CHECK(has_cost(link.ranks.message));
  CHECK(has_cost(link.ranks.gather_message));
  CHECK(has_cost(link.ranks.scatter_message));
  CHECK(link.ranks.overlap_slowdown >= 1);
  CHECK(link.ranks.compute_stall >= 0);
  CHECK(link.ranks.compute_stall <= 1);
  for (const Contention& c :
       {profile.contention, link.master_contention, link.local.contention, link.ranks.contention})
    for (const double factor : {c.forward, c.backward, c.update}) CHECK(factor >= 1);

  setup.split = balanced_split(profile, setup);
  for (const char* mode : {"single", "dp-master", "dp-replicated", "ddp", "model", "pipeline-gpipe",
                           "pipeline-1f1b", "pipeline-zero-bubble"}) {
    CAPTURE(mode);
    const auto p = predict(distributed::plan_strategy(mode, true), profile, link, setup);
    REQUIRE(p.has_value());
    CHECK(p->step_s > 0);
    CHECK(p->largest().total() > 0);
    CHECK(p->memory.size() == (std::string(mode) == "single" ? 1 : 2));
  }
}

TEST_CASE("models and setups that cannot be measured throw") {
  const Model model = small_model(8);
  const auto measure = [](const Model& m, const TrainingSetup& setup) { measure_profile(m, setup); };
  CHECK_THROWS_WITH(measure({}, small_setup(1)), ContainsSubstring("no make_blocks or no loss"));
  Model changed = model;
  changed.make_blocks = [] { return std::vector<Block>(); };
  CHECK_THROWS_WITH(measure(changed, small_setup(1)), ContainsSubstring("no blocks"));
  changed.make_blocks = [] {
    return std::vector<Block>{{"activation", std::make_shared<nn::Tanh>(nn::Tanh::Options{})}};
  };
  CHECK_THROWS_WITH(measure(changed, small_setup(1)),
                    ContainsSubstring("block activation has no parameters"));
  changed = model;
  changed.targets = {};
  CHECK_THROWS_WITH(measure(changed, small_setup(1)), ContainsSubstring("targets must have"));
  CHECK_THROWS_WITH(measure(small_model(7), small_setup(1)), ContainsSubstring("batch_size = 8"));
  CHECK_THROWS_WITH(measure(model, small_setup(0)), ContainsSubstring("0 devices"));
  CHECK_THROWS_WITH(measure_profile(model, small_setup(1), {.passes = 0}), ContainsSubstring("0 passes"));
  CHECK_THROWS_WITH(measure_profile(model, small_setup(1), {.simulated_devices = {0}}),
                    ContainsSubstring("0 simulated devices"));
  CHECK_THROWS_WITH(measure_link(model, small_setup(0)), ContainsSubstring("0 devices"));
  CHECK_THROWS_AS(measure(model, small_setup(5)), DeviceError);  // there are two
  distributed::run_local_ranks(1, [&](const std::shared_ptr<distributed::ProcessGroup>& group) {
    CHECK_THROWS_WITH(measure_all_reduce(*group, model, small_setup(2), kCPU),
                      ContainsSubstring("the group has 1 ranks, the setup has 2 devices"));
  });
}
