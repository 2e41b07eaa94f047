// Tests pairs of options of fully_shard for models of convolutions, batch norm over the ranks, attention and
// tied embeddings, against DistributedDataParallel and one process; and fully_shard together with Pipeline.
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using Train = Trained (*)(Parallel, const Group&, int, const Training&);

std::vector<Trained> on_3(Train train, Parallel how, const Training& t) {
  return on_ranks<Trained>(3, [&](const Group& g) { return train(how, g, 3, t); });
}

std::string name_of(const Training& t) {
  return concat({"reshard ", t.options.reshard_after_forward.value_or(false), ", limit ",
                 t.options.max_full_units, ", AdamW ", t.adamw, ", accumulate ", t.accumulate,
                 ", checkpointed ", t.checkpointed, ", nested ", t.nested, ", frozen ", t.frozen, ", clip ",
                 t.clip});
}

}  // namespace

TEST_CASE("pairs of options with convolutions and batch norm over the ranks give DDP's bits") {
  for (const bool adamw : {true, false})
    for (const int accumulate : {1, 2}) {
      if (kSanitized && adamw == (accumulate == 2)) continue;
      const Training base{.adamw = adamw, .accumulate = accumulate, .steps = 3};
      const auto expected = on_3(train_cnn, Parallel::ddp, base);
      for (const std::optional<bool> reshard : {std::optional<bool>(), std::optional(true)})
        for (const int limit : {1, 8}) {
          if (kSanitized && reshard.has_value() == (limit == 8)) continue;
          Training t = base;
          t.options = {.reshard_after_forward = reshard, .max_full_units = limit};
          const auto sharded = on_3(train_cnn, Parallel::fsdp, t);
          INFO(name_of(t));
          for (std::size_t r = 0; r < 3; ++r) {
            CHECK(sharded[r].losses == expected[r].losses);
            CHECK(sharded[r].weights == expected[r].weights);
          }
        }
    }
}

TEST_CASE("clipping by the global norm, with each other option, is close to DDP's") {
  // The gradients are larger than this norm, so every step is clipped. One case has AdamW: its first steps do
  // not depend on the size of gradients, and it enlarges the gradients of biases before batch norm, which
  // are rounding errors.
  const Training base{.adamw = false, .clip = 0.05, .steps = 4};
  std::vector<Training> list(8, base);
  list[1].options.reshard_after_forward = true;
  list[2].options.max_full_units = 1;
  list[3].checkpointed = true;
  list[4].nested = true;
  list[5].accumulate = 2;
  list[6].frozen = 3;
  list[7].adamw = true;
  if (kSanitized) list = {list[4], list[5]};
  std::vector<Trained> expected;  // the settings of the first cases change nothing in DDP
  for (const Training& t : list) {
    INFO(name_of(t));
    if (expected.empty() || t.accumulate > 1 || t.frozen > 0 || t.adamw) {
      expected = on_3(train_gpt, Parallel::ddp, t);
      Training free = t;
      free.clip = 0;
      if (!kSanitized && !t.adamw)
        CHECK(distance(on_3(train_gpt, Parallel::ddp, free)[0].weights, expected[0].weights) > 1e-3);
    }
    const auto sharded = on_3(train_gpt, Parallel::fsdp, t);
    for (std::size_t r = 0; r < 3; ++r) CHECK(distance(sharded[r].weights, expected[r].weights) < 1e-4);
  }
  if (kSanitized) return;
  expected = on_3(train_cnn, Parallel::ddp, base);
  const auto sharded = on_3(train_cnn, Parallel::fsdp, base);
  for (std::size_t r = 0; r < 3; ++r) CHECK(distance(sharded[r].weights, expected[r].weights) < 1e-4);
}

TEST_CASE("each option trains as one process with the whole batch") {
  const Training base{.adamw = false, .steps = 4};
  std::vector<Training> list(8, base);
  list[1].options.reshard_after_forward = true;
  list[2].options.max_full_units = 1;
  list[3].options.max_full_units = 4;
  list[4].checkpointed = true;
  list[5].nested = true;
  list[6].frozen = 1;
  list[7].frozen = 2;
  if (kSanitized) list.resize(1);  // fsdp_test.cpp has the others
  // The settings of the first cases change nothing in one process.
  Trained expected = train_gpt(Parallel::single, nullptr, 3, base);
  CHECK(distance(train_gpt(Parallel::single, nullptr, 3, {.adamw = false, .steps = 3}).weights,
                 expected.weights) > 1e-3);
  for (const Training& t : list) {
    INFO(name_of(t));
    if (t.frozen > 0) expected = train_gpt(Parallel::single, nullptr, 3, t);
    for (const Trained& s : on_3(train_gpt, Parallel::fsdp, t))
      CHECK(distance(s.weights, expected.weights) < 1e-4);
  }
  expected = train_cnn(Parallel::single, nullptr, 3, base);
  for (const Trained& s : on_3(train_cnn, Parallel::fsdp, base))
    CHECK(distance(s.weights, expected.weights) < 1e-4);
}

TEST_CASE("a sharded module is refused as a stage of a pipeline, by parameter") {
  on_ranks<int>(2, [](const Group& group) {
    nn::Linear a({.in_features = 3, .out_features = 4}), b({.in_features = 4, .out_features = 2});
    const std::vector<Stage> stages{{a, kCPU}, {b, kCPU}};
    const auto error = [&](const std::function<void()>& fn) -> std::string {
      try {
        fn();
      } catch (const Error& e) {
        return e.what();
      }
      return "";
    };
    const auto train = [](Pipeline& pipeline) {
      pipeline.forward_backward(ones({4, 3}), ones({4, 2}),
                                [](const Tensor& y, const Tensor& target) { return mse_loss(y, target); });
    };
    Pipeline before(stages, {.micro_batches = 2});
    train(before);
    fully_shard(b, {.group = group});
    const std::string after = error([&] { train(before); });
    const std::string at_once = error([&] { Pipeline(stages, {.micro_batches = 2}); });
    const std::string over_ranks =
        error([&] { Pipeline(group, group->rank() == 0 ? stages[0] : stages[1], {.micro_batches = 2}); });
    for (const std::string& text : {after, at_once}) {
      distributed_test::require(text.find("[Pipeline] 'weight' of stage 1") != std::string::npos, text);
      distributed_test::require(text.find("is sharded by fully_shard()") != std::string::npos, text);
    }
    if (group->rank() == 1)
      distributed_test::require(over_ranks.find("is sharded by fully_shard()") != std::string::npos,
                                over_ranks);
    return 0;
  });
}
