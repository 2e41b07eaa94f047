// A fault in one stage must throw an error with the stage and its device, and training must go on afterwards.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/pipeline/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

enum class Fault {
  none,
  forward,
  backward,
  hook,
  memory,
  shape,
  count,
  nothing,
  undefined,
  unknown,
  second_micro_batch,
};

// A layer that fails in the way that `fault` tells.
struct Faulty : nn::Module {
  explicit Faulty(int features)
      : fc(add<nn::Linear>("fc", {.in_features = features, .out_features = features})) {}
  nn::Linear& fc;
  Fault fault = Fault::none;
  int calls = 0;
  std::vector<Tensor> forward(const std::vector<Tensor>& in) {
    Tensor h = fc(in[0]).tanh();
    ++calls;
    if (fault == Fault::forward || (fault == Fault::second_micro_batch && calls == 2))
      fail("[user] as planned");
    if (fault == Fault::backward) h = BadBackward::apply(h);
    if (fault == Fault::hook)
      h.register_hook([](const Tensor&) -> Tensor { throw std::out_of_range("planned in a hook"); });
    if (fault == Fault::memory) h = empty({std::int64_t{1} << 50});
    if (fault == Fault::shape) h = h.narrow(1, 0, 3);
    if (fault == Fault::count) return {h, h, h};
    if (fault == Fault::nothing) return {};
    if (fault == Fault::undefined) return {Tensor()};
    if (fault == Fault::unknown) throw 5;
    return {h};
  }
};

struct Net : nn::Module {
  std::vector<Faulty*> parts;
  Net() {
    for (int i = 0; i < 3; ++i) parts.push_back(&add<Faulty>(std::to_string(i), 4));
    to(DType::f64);
    fill_by_formula(*this);
  }
  std::vector<Stage> stages(const std::vector<Device>& on) {
    std::vector<Stage> made;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Faulty& part = *parts[i];
      // The first two stages are modules that take a vector. The last one is a function that takes one
      // tensor, as most stages do.
      if (i < 2) made.emplace_back(part, on[i]);
      else
        made.emplace_back([&part](const Tensor& x) { return nn::call(part, std::vector{x}); }, on[i],
                          Stage::Modules{part});
    }
    return made;
  }
};

void train(Net& net, optim::Optimizer& optimizer, Pipeline* pipeline, int number) {
  const Tensor x = wave({8, 4}, number), target = wave({8, 4}, 2 * number);
  optimizer.zero_grad();
  for (Faulty* part : net.parts) part->calls = 0;
  const auto loss = [](const Tensor& y, const Tensor& wanted) { return mse_loss(y, wanted); };
  if (pipeline) {
    pipeline->forward_backward(x, target, loss);
  } else {
    std::vector<Tensor> h{x};
    for (Faulty* part : net.parts) h = nn::call(*part, h);
    loss(h[0], target).backward();
  }
  optimizer.step();
}

}  // namespace

TEST_CASE("an error names the stage of the fault, and later training is not affected") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (const std::vector<Device>& on : {std::vector<Device>{"cpu:0", "cpu:1", "cpu:2"},
                                          {"cpu:3", "cpu:1", "cpu:3"},
                                          {"cpu:2", "cpu:2", "cpu:2"}})
      for (const std::size_t bad : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
        Net net, alone;
        Pipeline pipeline(net.stages(on), {.schedule = schedule, .micro_batches = 4});
        optim::SGD optimizer(net.parameters(), {.lr = 0.1}), reference(alone.parameters(), {.lr = 0.1});
        int number = 0;
        const auto go_on = [&] {
          for (int i = 0; i < 2; ++i, ++number) {
            train(net, optimizer, &pipeline, number);
            train(alone, reference, nullptr, number);
          }
          CHECK(distance(copy_state(net), copy_state(alone)) < 1e-10);
        };
        go_on();
        const auto place = [&](std::size_t s, const char* what, int micro_batch) {
          return concat(
              {" (stage ", s, ", Faulty, ", what, " of micro-batch ", micro_batch, ") (on ", on[s], ")"});
        };
        const auto fails_with = [&](Fault fault, const std::string& text, const std::string& where) {
          INFO(bad << " on " << on[bad].str() << ", " << schedule_name(schedule) << ", fault "
                   << static_cast<int>(fault));
          net.parts[bad]->fault = fault;
          CHECK_THROWS_WITH(train(net, optimizer, &pipeline, number),
                            ContainsSubstring(text) && ContainsSubstring(where));
          net.parts[bad]->fault = Fault::none;
          go_on();
        };
        // Under zero_bubble, the error of the first stage must name the action `weights`: no input requires a
        // gradient, so the first stage runs its whole backward in this action.
        const bool late = schedule == Schedule::zero_bubble && bad == 0;
        const std::string forward = place(bad, "forward", 0),
                          backward = place(bad, late ? "weights" : "backward", 0);
        fails_with(Fault::forward, "[user] as planned", forward);
        fails_with(Fault::second_micro_batch, "[user] as planned", place(bad, "forward", 1));
        fails_with(Fault::backward, "[bad_backward] as planned", backward);
        fails_with(Fault::hook, "planned in a hook", backward);
        fails_with(Fault::memory, "", forward);
        fails_with(Fault::nothing, "[Pipeline] Faulty returned no tensor", forward);
        fails_with(Fault::undefined, "[Pipeline] Faulty returned no tensor", forward);
        // A wrong output must be reported by the next stage, or by the loss if there is none.
        const std::string after = place(std::min(bad + 1, std::size_t{2}), "forward", 0);
        fails_with(Fault::shape, bad == 2 ? "mse_loss" : "Linear(in_features=4", after);
        if (bad > 0) fails_with(Fault::count, "3 tensors arrive, but the function takes 1", after);
        net.parts[bad]->fault = Fault::memory;
        CHECK_THROWS_AS(train(net, optimizer, &pipeline, number), OutOfMemoryError);
        CHECK_THROWS_AS(pipeline(wave({8, 4}, 0)), OutOfMemoryError);
        net.parts[bad]->fault = Fault::unknown;
        CHECK_THROWS_AS(train(net, optimizer, &pipeline, number), int);
        net.parts[bad]->fault = Fault::none;
        go_on();
      }
}

TEST_CASE("after a stage has failed, the others start no more actions") {
  constexpr int kCount = 32;
  std::atomic<bool> failed = false;
  std::atomic<int> after = 0;
  const auto first = [&](const Tensor& x) {
    for (int i = 0; i < 1000 && !failed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++after;
    return x;
  };
  const auto second = [&](const Tensor&) -> Tensor {
    failed = true;
    fail("[user] as planned");
  };
  int calls = 0;
  const auto source = [&](const Tensor& x) { return calls++ == 0 ? x * 1.0 : first(x); };
  Pipeline pipeline({{source, "cpu:0"}, {second, "cpu:1"}},
                    {.schedule = Schedule::gpipe, .micro_batches = kCount});
  CHECK_THROWS_WITH(pipeline(wave({kCount, 4}, 0)), ContainsSubstring("as planned (stage 1, function"));
  CHECK(after < kCount / 2);  // the other stage stops early
}

TEST_CASE("a loss that is not one recorded floating-point number on the last device is refused") {
  Net net;
  Pipeline pipeline(net.stages({"cpu:0", "cpu:1", "cpu:2"}), {.micro_batches = 2});
  const auto with = [&](const auto& loss) {
    pipeline.forward_backward(wave({8, 4}, 0), wave({8, 4}, 1), loss);
  };
  CHECK_THROWS_WITH(with([](const Tensor& y, const Tensor&) { return y; }),
                    ContainsSubstring("the loss is float64 [4, 4]; return one floating-point number") &&
                        ContainsSubstring("(stage 2, Faulty, forward of micro-batch 0) (on cpu:2)"));
  CHECK_THROWS_WITH(with([](const Tensor& y, const Tensor&) { return y.sum().to(DType::i64); }),
                    ContainsSubstring("the loss is int64 []"));
  CHECK_THROWS_WITH(with([](const Tensor&, const Tensor&) { return Tensor(); }),
                    ContainsSubstring("the loss is undefined"));
  CHECK_THROWS_WITH(with([](const Tensor& y, const Tensor&) { return y.sum().to("cpu:0"); }),
                    ContainsSubstring("the loss is on cpu:0; compute it on cpu:2"));
  CHECK_THROWS_WITH(with([](const Tensor& y, const Tensor&) { return y.detach().sum(); }),
                    ContainsSubstring("the loss does not require gradients"));
  with([](const Tensor& y, const Tensor& target) { return mse_loss(y, target).reshape({1, 1}); });
}

TEST_CASE("a pipeline inside a stage is refused, and waiting for a slow stage ends with a timeout") {
  Net net;
  Pipeline pipeline(net.stages({"cpu:0", "cpu:1", "cpu:2"}), {.timeout_s = 1});
  const auto with = [&](const auto& loss) { pipeline.forward_backward(wave({8, 4}, 0), std::tuple(), loss); };
  CHECK_THROWS_WITH(with([&](const Tensor& y) {
                      return pipeline(wave({8, 4}, 0)).sum() + y.sum();
                    }),
                    ContainsSubstring("[Pipeline] called on the worker thread of cpu:2, which runs a stage"));
  CHECK_THROWS_WITH(with([&](const Tensor& y) {
                      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                      return y.sum();
                    }),
                    ContainsSubstring(" waited 1 s for the gradients of stage ") &&
                        ContainsSubstring(" for micro-batch 0; "));
  with([](const Tensor& y) { return y.sum(); });
}

TEST_CASE("after a fault a tied weight has no replicas") {
  SharedParts net;
  net.to(DType::f64);
  bool fails = true;
  Pipeline pipeline({{net.first, "cpu:0"},
                     {[&](const Tensor& x) {
                        check(!fails, "[user] as planned");
                        return net.second(x);
                      },
                      "cpu:1",
                      {net.second}}});
  const auto step = [&] {
    pipeline.forward_backward(wave({4, 5}, 0), std::tuple(), [](const Tensor& y) { return y.mean(); });
  };
  CHECK_THROWS_WITH(step(), ContainsSubstring("[user] as planned (stage 1, Linear"));
  CHECK(net.first.weight.replicas() == 1);
  fails = false;
  step();
  CHECK(net.first.weight.replicas() == 1);
  CHECK(net.first.weight->device() == kCPU);
  CHECK(net.first.weight->grad().defined());
}
