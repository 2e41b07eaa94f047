// A stage made from a function lists the modules that the function uses. Backward that reaches a parameter of
// another module must throw, because the pipeline would never step, zero or clip that parameter.
#include <memory>

#include "tapestry/tapestry.h"
#include "tests/pipeline/models.h"
#include "tests/pipeline/rank_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

struct Net : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 4, .out_features = 4});
  nn::Linear& second = add<nn::Linear>("second", {.in_features = 4, .out_features = 4});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 4, .out_features = 2});
  Tensor both(const Tensor& x) { return second(first(x).tanh()); }
};

Tensor inputs() { return wave({8, 4}, 1).to(DType::f32); }
Tensor targets() { return wave({8, 2}, 2).to(DType::f32); }

Tensor loss(const Tensor& y, const Tensor& target) { return mse_loss(y, target); }

void check_no_gradients(const nn::Module& module) {
  for (const auto& [name, p] : module.named_parameters()) {
    INFO(name);
    CHECK_FALSE(p->grad().defined());
  }
}

}  // namespace

TEST_CASE("on one device or two, a module that a stage forgets is an error with the parameter's path") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (const bool checkpoint : {false, true})
      for (const int devices : {1, 2}) {
        INFO(schedule_name(schedule) << ", checkpoint " << checkpoint << ", " << devices << " devices");
        Net net;
        const Device last(DeviceType::cpu, devices - 1);
        const auto function = [&](const Tensor& x) { return net.both(x); };
        const PipelineOptions options{.schedule = schedule, .micro_batches = 2, .checkpoint = checkpoint};
        Pipeline forgetful({{function, kCPU, {net.first}}, {net.head, last}}, options);
        CHECK_THROWS_WITH(forgetful.forward_backward(inputs(), targets(), loss),
                          ContainsSubstring("[Pipeline] backward of [") &&
                              ContainsSubstring("would give a gradient to 'second.") &&
                              ContainsSubstring("add its module to the stage's list") &&
                              ContainsSubstring("stage 0, Linear"));
        check_no_gradients(net.first);
        check_no_gradients(net.second);

        net.zero_grad();
        Pipeline complete({{function, kCPU, {net.first, net.second}}, {net.head, last}}, options);
        complete.forward_backward(inputs(), targets(), loss);
        for (const auto& [name, p] : net.named_parameters()) CHECK(p->grad().defined());
      }
}

TEST_CASE("a forgotten parameter of an unknown model is described by its shape and operation") {
  nn::Linear part({.in_features = 4, .out_features = 2});
  const nn::Parameter scale("scale", ones({2}));
  Pipeline pipeline({{[&](const Tensor& x) { return part(x) * scale; }, kCPU, {part}}});
  CHECK_THROWS_WITH(
      pipeline.forward_backward(inputs(), targets(), loss),
      ContainsSubstring("backward of [mul] would give a gradient to a parameter of float32 [2] on cpu:0"));
  Pipeline empty_list({{[&](const Tensor& x) { return part(x); }, kCPU}});
  CHECK_THROWS_WITH(empty_list.forward_backward(inputs(), targets(), loss),
                    ContainsSubstring("would give a gradient to"));
}

TEST_CASE("a parameter that only the loss function uses is an error too") {
  nn::Linear part({.in_features = 4, .out_features = 2});
  const nn::Parameter temperature("temperature", ones({1}));
  Pipeline pipeline({{part, kCPU}});
  CHECK_THROWS_WITH(pipeline.forward_backward(
                        inputs(), targets(),
                        [&](const Tensor& y, const Tensor& t) { return mse_loss(y * temperature, t); }),
                    ContainsSubstring("would give a gradient to a parameter of float32 [1]"));
}

TEST_CASE(
    "frozen parameters, detached parameters and leaves that the stage creates need no entry in the list") {
  Net net;
  net.second.requires_grad_(false);
  const nn::Parameter scale("scale", ones({2}));
  Tensor own;
  Pipeline pipeline({{[&](const Tensor& x) { return net.both(x); }, kCPU, {net.first}},
                     {[&](const Tensor& x) {
                        own = zeros({4}).set_requires_grad();
                        return net.head(x + own) * scale->detach();
                      },
                      kCPU,
                      {net.head}}});
  pipeline.forward_backward(inputs(), targets(), loss);
  CHECK(net.first.weight->grad().defined());
  CHECK(own.grad().defined());
  check_no_gradients(net.second);
  const NoGradGuard evaluates;
  pipeline(inputs());
}

// A leaf that is newer than the pass may be an input that the stage's function made, so the pass accepts it.
TEST_CASE("a forgotten module that its stage builds in the first pass is an error in the second pass") {
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zero_bubble}) {
    CAPTURE(schedule_name(schedule));
    nn::Linear part({.in_features = 4, .out_features = 4});
    std::unique_ptr<nn::Linear> lazy;
    const auto function = [&](const Tensor& x) {
      if (!lazy)
        lazy = std::make_unique<nn::Linear>(nn::Linear::Options{.in_features = 4, .out_features = 2});
      return (*lazy)(part(x));
    };
    Pipeline forgetful({{function, kCPU, {part}}}, {.schedule = schedule, .micro_batches = 2});
    forgetful.forward_backward(inputs(), targets(), loss);
    CHECK(lazy->weight->grad().defined());
    lazy->zero_grad();
    part.zero_grad();
    CHECK_THROWS_WITH(forgetful.forward_backward(inputs(), targets(), loss),
                      ContainsSubstring("would give a gradient to a parameter of float32 [2"));
    check_no_gradients(*lazy);
    check_no_gradients(part);
    Pipeline complete({{function, kCPU, {part, *lazy}}}, {.schedule = schedule, .micro_batches = 2});
    complete.forward_backward(inputs(), targets(), loss);
    CHECK(lazy->weight->grad().defined());
  }
}

TEST_CASE("over ranks, a module that a stage forgets is an error on all ranks") {
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zero_bubble}) {
    const auto outcomes = distributed_test::run_ranks(
        distributed_test::transports()[0], 2,
        [&](const distributed_test::Group& group) {
          Chain chain = Chain::stage(group->rank(), 2);
          Stage::Modules listed = chain.modules();
          if (group->rank() == 1) listed.pop_back();
          const Stage stage([&](const Tensor& x) { return chain(x); }, kCPU, listed);
          Pipeline pipeline(group, stage, {.schedule = schedule, .micro_batches = 2});
          const auto [x, labels] = chain_batch(0, 8);
          try {
            pipeline.forward_backward(x, labels, chain_loss);
          } catch (const std::exception&) {
            for (const nn::Parameter& p : chain.parameters())
              check(group->rank() == 0 || !p->grad().defined(), "a parameter of the stage has a gradient");
            throw;
          }
          pipeline(x);  // a rank may finish before another one fails
        },
        {.timeout = std::chrono::milliseconds(60'000)});
    for (const auto& outcome : outcomes)
      CHECK_THAT(outcome.error, ContainsSubstring("which belongs to no module of this stage") &&
                                    ContainsSubstring("stage 1"));
  }
}
