// Tests properties of Pipeline other than its results: devices, batches, what stages exchange, random
// numbers, reports.
#include <dlfcn.h>

#include <set>

#include "tests/core/child.h"
#include "tests/pipeline/models.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr Schedule kSchedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble};

nn::Linear::Options linear(std::int64_t in, std::int64_t out) {
  return {.in_features = in, .out_features = out};
}

// Two layers, one per stage.
struct Two : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", linear(4, 6));
  nn::Linear& second = add<nn::Linear>("second", linear(6, 2));
  Two() {
    to(DType::f64);
    fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) override { return second(first(x).tanh()); }
  std::vector<Stage> stages(Device a = "cpu:0", Device b = "cpu:1") {
    return {{first, a}, {[this](const Tensor& h) { return second(h.tanh()); }, b, {second}}};
  }
};

Tensor mean_square(const Tensor& y, const Tensor& target) { return mse_loss(y, target); }

std::vector<std::vector<double>> gradients(const nn::Module& net) {
  std::vector<std::vector<double>> all;
  for (const nn::Parameter& p : net.parameters())
    all.push_back(p->grad().defined() ? to_vector(p->grad()) : std::vector<double>{});
  return all;
}

void check_close(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t p = 0; p < a.size(); ++p) {
    REQUIRE(a[p].size() == b[p].size());
    for (std::size_t i = 0; i < a[p].size(); ++i)
      CHECK(a[p][i] == Approx(b[p][i]).epsilon(1e-12).margin(1e-14));
  }
}

}  // namespace

// ---- devices ----

TEST_CASE("stages are on their devices, and a tied weight is on that of the first stage") {
  SharedParts net;
  const Pipeline pipeline({{net.first, "cpu:2"}, {net.second, "cpu:1"}, {net.frozen, "cpu:2"}});
  CHECK(net.first.weight->device() == Device("cpu:2"));
  CHECK(net.second.weight.is_same(net.first.weight));
  CHECK(net.frozen.weight->device() == Device("cpu:2"));
  CHECK(pipeline.parameters().size() == 4);
  CHECK(pipeline.stages().size() == 3);
  CHECK(pipeline.stages()[1].name() == "Linear");
  CHECK(pipeline.options().schedule == Schedule::one_f_one_b);
  CHECK(pipeline.report().stages.empty());
}

TEST_CASE("bad stages and options are refused") {
  Two net;
  CHECK_THROWS_WITH(Pipeline(std::vector<Stage>{}), ContainsSubstring("there are no stages"));
  CHECK_THROWS_WITH(Pipeline(net.stages(), {.micro_batches = 0}), ContainsSubstring("0 micro-batches"));
  CHECK_THROWS_WITH(Pipeline(net.stages(), {.timeout_s = 0}), ContainsSubstring("timeout_s is 0"));
  CHECK_THROWS_AS(Pipeline(net.stages("cpu:0", "cpu:9")), DeviceError);
  CHECK_THROWS_WITH(Pipeline(net.stages("cpu:0", "cpu:9")),
                    ContainsSubstring("[Pipeline] device cpu:9") && ContainsSubstring("(stage 1, Linear)"));
  CHECK_THROWS_WITH(Stage(Stage::Modules{}, "cpu:0"), ContainsSubstring("has no modules"));
  nn::BatchNorm1d norm({.num_features = 4});
  CHECK_THROWS_WITH(
      Pipeline({{norm, "cpu:0"}, {norm, "cpu:1"}}),
      ContainsSubstring("the buffer 'running_mean' belongs to stage 0 on cpu:0 and to stage 1 on cpu:1"));
  CHECK(norm.weight->device() == kCPU);
  const Pipeline same({{norm, "cpu:1"}, {norm, "cpu:1"}});
  CHECK(norm.weight->device() == Device("cpu:1"));
  Two replicated;
  const DataParallel dp(replicated, {0, 1});
  CHECK_THROWS_WITH(Pipeline(replicated.stages()),
                    ContainsSubstring("'first.weight' of stage 0 has 2 replicas"));
}

TEST_CASE("a moved module is an error until it is moved back") {
  Two net;
  Pipeline pipeline(net.stages());
  const auto step = [&] { pipeline.forward_backward(wave({4, 4}, 0), wave({4, 2}, 1), mean_square); };
  net.second.to("cpu:3");
  CHECK_THROWS_WITH(
      step(), ContainsSubstring("'second.weight' of stage 1 (Linear) is on cpu:3 with 1 replicas, not on "
                                "cpu:1 alone"));
  net.second.to("cpu:1");
  step();
}

// ---- batches ----

TEST_CASE("the micro-batches must divide the batch unless .uneven is set") {
  Two net;
  Pipeline strict(net.stages(), {.micro_batches = 4});
  CHECK_THROWS_WITH(strict.forward_backward(wave({6, 4}, 0), wave({6, 2}, 1), mean_square),
                    ContainsSubstring("a batch of 6 samples is not divisible into 4 micro-batches") &&
                        ContainsSubstring(".uneven") && ContainsSubstring("(before stage 0, ") &&
                        ContainsSubstring("on cpu:0)"));
  CHECK_THROWS_WITH(strict.forward_backward(wave({8, 4}, 0), wave({4, 2}, 1), mean_square),
                    ContainsSubstring("[Pipeline] the batch has tensors of 8 and 4 samples"));
  CHECK_THROWS_WITH(strict.forward_backward(3, 4, [](const Tensor& y, int) { return y.sum(); }),
                    ContainsSubstring("[Pipeline] the batch has no tensor to split"));
  strict.forward_backward(wave({8, 4}, 0), wave({8, 2}, 1), mean_square);
  CHECK(strict.report().micro_batches == 4);
  Pipeline uneven(net.stages(), {.micro_batches = 4, .uneven = true});
  for (const std::int64_t n : {1, 3, 6, 0}) {
    uneven.forward_backward(wave({n, 4}, 0), wave({n, 2}, 1), mean_square);
    CHECK(uneven.report().micro_batches == std::clamp<std::int64_t>(n, 1, 4));
  }
}

TEST_CASE("gradients are added to existing ones and reach the inputs") {
  for (const Schedule schedule : kSchedules) {
    Two net, alone;
    Pipeline pipeline(net.stages(), {.schedule = schedule, .micro_batches = 3, .uneven = true});
    const Tensor x = wave({7, 4}, 0).set_requires_grad(), again = x.detach().clone().set_requires_grad(),
                 target = wave({7, 2}, 1);
    for (int i = 0; i < 2; ++i) {  // the second time, gradients are not zero
      const Tensor loss = pipeline.forward_backward(x * 2, target, mean_square);
      const Tensor expected = mse_loss(alone(again * 2), target);
      expected.backward();
      CHECK(loss.item() == Approx(expected.item()).epsilon(1e-13));
      CHECK(loss.device() == Device("cpu:1"));
      CHECK(loss.dim() == 0);
      CHECK(allclose(x.grad(), again.grad(), 1e-12, 1e-14));
    }
    check_close(gradients(net), gradients(alone));
  }
  // An input that goes to every micro-batch must get the sum of their gradients.
  Two net;
  const Tensor shift = wave({4}, 3).set_requires_grad(), x = wave({6, 4}, 0);
  Pipeline pipeline(
      {{[&](const Tensor& a, const Tensor& b) { return net.first(a + b); }, "cpu:0", {net.first}},
       {net.second, "cpu:1"}},
      {.micro_batches = 3});
  pipeline.forward_backward(std::tuple(x, Whole{shift}), std::tuple(),
                            [](const Tensor& y) { return y.mean(); });
  const Tensor given = shift.grad().clone();
  shift.zero_grad();
  net.second.to("cpu:0");
  net.second(net.first(x + shift)).mean().backward();
  CHECK(allclose(given, shift.grad(), 1e-12, 1e-14));
  // Targets must not require gradients.
  net.second.to("cpu:1");
  CHECK_THROWS_WITH(
      pipeline.forward_backward(std::tuple(x, Whole{shift}), shift,
                                [](const Tensor& y, const Tensor& t) { return (y.sum() - t).sum(); }),
      ContainsSubstring("tensors of 6 and 4 samples"));
  CHECK_THROWS_WITH(
      pipeline.forward_backward(std::tuple(x, Whole{shift.detach()}), wave({6}, 1).set_requires_grad(),
                                [](const Tensor& y, const Tensor& t) { return y.mean() + t.mean(); }),
      ContainsSubstring("a target of shape [6] requires gradients"));
}

TEST_CASE("evaluation accepts any batch size and records nothing") {
  Two net;
  Pipeline pipeline(net.stages(), {.micro_batches = 4});
  Two alone;
  for (const std::int64_t n : {1, 3, 8, 13}) {
    const Tensor x = wave({n, 4}, 0), y = pipeline(x);
    CHECK(y.sizes() == Shape{n, 2});
    CHECK(y.device() == Device("cpu:1"));
    CHECK_FALSE(y.requires_grad());
    CHECK(allclose(y.to(kCPU), alone(x), 1e-13, 1e-14));
  }
  CHECK(pipeline.report().stages[0].peak_micro_batches == 1);
  CHECK(pipeline.report().stages[0].backward_s == 0);
  {
    const InferenceMode inference;
    CHECK(pipeline(wave({4, 4}, 0)).sizes() == Shape{4, 2});
    CHECK_THROWS_AS(pipeline.forward_backward(wave({4, 4}, 0), wave({4, 2}, 0), mean_square), AutogradError);
  }
  pipeline.forward_backward(wave({4, 4}, 0), wave({4, 2}, 0), mean_square);

  Pipeline several({{net.first, "cpu:1"}, {[](const Tensor& h) { return std::pair(h, h.sum()); }, "cpu:2"}},
                   {.micro_batches = 3});
  CHECK_THROWS_WITH(several(wave({6, 4}, 0)), ContainsSubstring("returns 2 tensors; pipeline.outputs"));
  const std::vector<Tensor> all = several.outputs(wave({6, 4}, 0));
  CHECK(all[0].sizes() == Shape{6, 6});
  CHECK(all[1].sizes() == Shape{3});  // one element per micro-batch
}

TEST_CASE("targets that are references are not written") {
  Two net;
  Tensor x = wave({6, 4}, 0), y = wave({6, 2}, 1), w = wave({6, 1}, 2);
  const auto before = std::vector{to_vector(x), to_vector(y), to_vector(w)};
  const auto loss = [](const Tensor& scores, const Tensor& target, const Tensor& weight) {
    return ((scores - target).square() * weight).mean();
  };
  Pipeline pipeline(net.stages(), {.micro_batches = 3});
  const double by_value = pipeline.forward_backward(x, std::tuple(y, w), loss).item();
  CHECK(pipeline.forward_backward(std::tie(x), std::tie(y, w), loss).item() == by_value);
  const std::pair<Tensor&, Tensor&> pair(y, w);
  CHECK(pipeline
            .forward_backward(x, pair,
                              [&](const Tensor& scores, const std::pair<Tensor, Tensor>& p) {
                                return loss(scores, p.first, p.second);
                              })
            .item() == by_value);
  CHECK_THROWS_WITH(pipeline.forward_backward(x, std::vector<std::tuple<Tensor&>>{y, w},
                                              [&](const Tensor& scores, const auto& list) {
                                                return loss(scores, std::get<0>(list[0]),
                                                            std::get<0>(list[1]));
                                              }),
                    ContainsSubstring("[Pipeline] a batch has references"));
  CHECK(std::vector{to_vector(x), to_vector(y), to_vector(w)} == before);
}

TEST_CASE("stages pass on unchanged inputs, integers, undefined tensors and parameters") {
  struct Odd : nn::Module {
    nn::Parameter& weight = param("weight", wave({4, 3}, 1));
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& labels) {
      return {x, labels, Tensor(), weight, x};
    }
  } odd;
  const auto last = [](const Tensor& x, const Tensor& labels, const Tensor& none, const Tensor& w,
                       const Tensor& y) {
    check<Error>(!none.defined() && labels.dtype() == DType::i64 && !labels.requires_grad(), "not as it was");
    return cross_entropy((x + y).matmul(w), labels);
  };
  const Tensor x = wave({6, 4}, 0).set_requires_grad(), labels = labels_of(6, 3, 1);
  for (const Schedule schedule : kSchedules) {
    Pipeline pipeline({{odd, "cpu:0"}, {last, "cpu:1"}}, {.schedule = schedule, .micro_batches = 2});
    pipeline.forward_backward(std::tie(x, labels), std::tuple(), [](const Tensor& loss) { return loss; });
    const Tensor of_weight = odd.weight->grad().clone(), of_x = x.grad().clone();
    odd.zero_grad();
    x.zero_grad();
    cross_entropy((x * 2).matmul(odd.weight), labels).backward();
    CHECK(allclose(of_weight, odd.weight->grad(), 1e-12, 1e-14));
    CHECK(allclose(of_x, x.grad(), 1e-12, 1e-14));
    odd.zero_grad();
    x.zero_grad();
  }
}

TEST_CASE("a stage that the loss does not use gets no gradients, and a stage without parameters is allowed") {
  Two net;
  const auto constant = [](const Tensor& h) {
    return std::pair(h, ones({h.size(0), 2}, {h.dtype(), h.device()}));
  };
  nn::Linear last(linear(2, 1));
  last.to(DType::f64);
  Pipeline pipeline({{net.first, "cpu:0"},
                     {constant, "cpu:1"},
                     {[&](const Tensor&, const Tensor& c) { return last(c); }, "cpu:2", {last}}},
                    {.micro_batches = 2});
  pipeline.forward_backward(wave({4, 4}, 0), std::tuple(), [](const Tensor& y) { return y.mean(); });
  CHECK_FALSE(net.first.weight->grad().defined());
  CHECK(last.weight->grad().defined());
  net.requires_grad_(false);
  pipeline.forward_backward(wave({4, 4}, 0), std::tuple(), [](const Tensor& y) { return y.mean(); });
  last.requires_grad_(false);
  CHECK_THROWS_WITH(
      pipeline.forward_backward(wave({4, 4}, 0), std::tuple(), [](const Tensor& y) { return y.mean(); }),
      ContainsSubstring("the loss does not require gradients"));
}

// ---- layers that compute over a batch ----

TEST_CASE(
    "batch norm uses the statistics of micro-batches and updates its running statistics once per "
    "micro-batch") {
  const auto make = [] {
    auto norm = std::make_unique<nn::BatchNorm1d>(nn::BatchNorm1d::Options{.num_features = 4});
    norm->to(DType::f64);
    return norm;
  };
  for (const Schedule schedule : kSchedules) {
    const auto norm = make(), alone = make();
    nn::Linear fc(linear(4, 2));
    fc.to(DType::f64);
    Pipeline pipeline({{*norm, "cpu:0"}, {fc, "cpu:1"}}, {.schedule = schedule, .micro_batches = 3});
    const Tensor x = wave({6, 4}, 0);
    pipeline.forward_backward(x, std::tuple(), [](const Tensor& y) { return (y * y).mean(); });
    for (int m = 0; m < 3; ++m) (*alone)(x.narrow(0, 2 * m, 2));
    CHECK(to_vector(norm->running_mean) == to_vector(alone->running_mean));
    CHECK(to_vector(norm->running_var) == to_vector(alone->running_var));
    CHECK(norm->num_batches_tracked->item() == 3);
    pipeline.eval();
    CHECK_FALSE(fc.is_training());
    alone->eval();
    const Tensor y = pipeline(x);
    fc.to("cpu:0");
    CHECK(allclose(y.to(kCPU), fc((*alone)(x)), 1e-12, 1e-14));  // evaluation uses the running statistics
    CHECK(norm->num_batches_tracked->item() == 3);
    pipeline.train();
    CHECK(norm->is_training());
  }
}

TEST_CASE("dropout draws one mask per micro-batch, which depends on neither schedule nor devices") {
  nn::Dropout first({.p = 0.5}), second({.p = 0.5});
  nn::Linear same(linear(1, 1)), fc(linear(1, 1));  // y = x, so the gradient contains the mask
  same.weight->detach().fill_(1);
  same.bias->detach().fill_(0);
  const auto masks = [&](Schedule schedule, Device a, Device b, Device c, bool checkpoint = false) {
    std::vector<double> seen;
    const auto note = [&](const Tensor& x) {
      if (autograd::recomputing()) return x;
      const auto values = to_vector(x);
      seen.insert(seen.end(), values.begin(), values.end());
      return x;
    };
    Pipeline pipeline(
        {{first, a},
         {[&](const Tensor& x) { return std::pair(x, same(second(ones_like(x)))); }, b, {second, same}},
         {[&](const Tensor& x, const Tensor& y) { return fc(note(x) + 4 * note(y)); }, c, {fc}}},
        {.schedule = schedule, .micro_batches = 2, .checkpoint = checkpoint});
    for (int i = 0; i < 2; ++i)
      pipeline.forward_backward(ones({60, 1}), std::tuple(), [](const Tensor& y) { return y.mean(); });
    seen.push_back(same.weight->grad().item());
    same.zero_grad();
    return seen;
  };
  manual_seed(5);
  const std::vector<double> all = masks(Schedule::gpipe, "cpu:0", "cpu:1", "cpu:2");
  REQUIRE(all.size() == 241);
  std::set<std::vector<double>> pieces;  // two stages, two micro-batches, two passes: all masks differ
  for (std::size_t i = 0; i < 8; ++i) pieces.emplace(all.begin() + 30 * i, all.begin() + 30 * (i + 1));
  CHECK(pieces.size() == 8);
  for (const Schedule schedule : kSchedules)
    for (const std::tuple<Device, Device, Device>& at :
         {std::tuple<Device, Device, Device>{"cpu:0", "cpu:1", "cpu:2"},
          {"cpu:0", "cpu:0", "cpu:0"},
          {"cpu:3", "cpu:0", "cpu:3"}}) {
      const auto [a, b, c] = at;
      manual_seed(5);
      CHECK(masks(schedule, a, b, c, a == c) == all);  // recomputation draws the same masks
    }
  // If the state of a generator is restored, the same masks must follow.
  const auto state = default_generator("cpu:1").state();
  const auto next = masks(Schedule::gpipe, "cpu:1", "cpu:0", "cpu:2");
  default_generator("cpu:1").set_state(state);
  CHECK(masks(Schedule::one_f_one_b, "cpu:1", "cpu:3", "cpu:1") == next);
  CHECK(next != masks(Schedule::gpipe, "cpu:1", "cpu:0", "cpu:2"));
}

// ---- time and memory ----

TEST_CASE("a report has the times, bytes and peak of each stage") {
  Two net;
  for (const Schedule schedule : kSchedules) {
    Pipeline pipeline(net.stages("cpu:0", "cpu:2"), {.schedule = schedule, .micro_batches = 4});
    pipeline.forward_backward(wave({8, 4}, 0), wave({8, 2}, 1), mean_square);
    const PipelineReport r = pipeline.report();
    REQUIRE(r.stages.size() == 2);
    const std::vector<int> peaks = peak_activations(schedule_actions(schedule, 2, 4));
    double busy = 0;
    for (std::size_t s = 0; s < 2; ++s) {
      const StageReport& stage = r.stages[s];
      CHECK(stage.name == "Linear");
      CHECK(stage.device == Device(DeviceType::cpu, s == 0 ? 0 : 2));
      CHECK(stage.forward_s > 0);
      CHECK(stage.backward_s > stage.weights_s);
      CHECK((stage.weights_s > 0) == (schedule == Schedule::zero_bubble));
      CHECK(stage.receive_s > 0);
      CHECK(stage.idle_s > 0);
      CHECK(stage.peak_micro_batches == peaks[s]);
      busy += stage.forward_s + stage.backward_s + stage.receive_s;
    }
    // 8 samples of 6 values go forward and back. The 2 targets are copied because the last stage is on
    // another device.
    CHECK(r.stages[1].bytes_received == 8 * 6 * 8 + 8 * 2 * 8);
    CHECK(r.stages[0].bytes_received == 8 * 6 * 8);
    const double span =
        r.stages[0].idle_s + r.stages[0].forward_s + r.stages[0].backward_s + r.stages[0].receive_s;
    CHECK(r.bubble == Approx(1 - busy / (2 * span)).epsilon(1e-6));
    CHECK(r.wall_s >= span);
    CHECK_THAT(r.str(), ContainsSubstring("cpu:2") && ContainsSubstring("4 micro-batches in"));
  }
  // With one micro-batch, only one of two devices works at a time, so the bubble is at least half of the
  // time. If both stages share a device, nothing is copied and both have the idle time of this device.
  Pipeline one(net.stages());
  one.forward_backward(wave({8, 4}, 0), wave({8, 2}, 1), mean_square);
  CHECK(one.report().bubble >= 0.5);
  Pipeline together(net.stages("cpu:1", "cpu:1"), {.micro_batches = 4});
  together.forward_backward(wave({8, 4}, 0).to("cpu:1"), wave({8, 2}, 1).to("cpu:1"), mean_square);
  CHECK(together.report().stages[1].bytes_received == 0);
  CHECK(together.report().stages[0].idle_s == together.report().stages[1].idle_s);
}

TEST_CASE("a timeline has every action in its device's row") {
  Two net;
  Pipeline pipeline(net.stages(), {.micro_batches = 3});
  const Timeline timeline;
  pipeline.forward_backward(wave({6, 4}, 0), wave({6, 2}, 1), mean_square);
  std::map<std::pair<std::string, Activity>, int> count;
  double end = 0;
  std::string row;
  for (const Span& span : timeline.spans()) {
    ++count[{span.row, span.activity}];
    if (span.row == row) CHECK(span.begin >= end);  // spans of a device do not overlap
    row = span.row;
    end = span.end;
  }
  for (const char* device : {"cpu:0", "cpu:1"})
    for (const Activity activity : {Activity::forward, Activity::backward})
      CHECK(count[{device, activity}] == 3);
  CHECK(count[{"cpu:0", Activity::communication}] == 3);  // gradients
  CHECK(count[{"cpu:1", Activity::communication}] == 6);  // activations, targets
}

TEST_CASE("1F1B and checkpointing keep fewer activations, and a pass frees its memory") {
  nn::Sequential first(linear(64, 256), nn::Tanh::Options{}, linear(256, 64)), second(linear(64, 64));
  const auto peak = [&](Schedule schedule, bool checkpoint = false) {
    Pipeline pipeline({{first, "cpu:1"}, {second, "cpu:2"}},
                      {.schedule = schedule, .micro_batches = 8, .checkpoint = checkpoint});
    const auto step = [&] {
      pipeline.forward_backward(ones({512, 64}), std::tuple(), [](const Tensor& y) { return y.mean(); });
    };
    step();  // allocates the gradients
    const std::int64_t before = memory_stats("cpu:1").allocated;
    reset_peak_memory("cpu:1");
    step();
    CHECK(memory_stats("cpu:1").allocated == before);
    return memory_stats("cpu:1").peak_allocated - before;
  };
  // `gpipe` is the peak memory with all micro-batches alive. Activations of a micro-batch have at least 256 +
  // 64 floats per sample.
  const std::int64_t micro_batch = 64 * (256 + 64) * 4, gpipe = peak(Schedule::gpipe),
                     one = peak(Schedule::one_f_one_b);
  CHECK(gpipe >= 8 * micro_batch);
  CHECK(one >= 2 * micro_batch);
  CHECK(one < gpipe / 2);
  // With checkpointing, only the inputs of micro-batches are kept, and one micro-batch at a time is
  // recomputed together with its gradients.
  CHECK(peak(Schedule::gpipe, true) < gpipe - 4 * micro_batch);
  CHECK(peak(Schedule::one_f_one_b, true) < one);
}

TEST_CASE("stages run with the modes and hooks of the caller") {
  Two net;
  Pipeline pipeline(net.stages(), {.micro_batches = 2});
  int calls = 0;
  HookHandle hook = net.second.register_forward_hook(
      [&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>&) { ++calls; });
  int complete = 0;
  HookHandle leaf = net.first.weight->register_post_accumulate_grad_hook([&](const Tensor&) { ++complete; });
  pipeline.forward_backward(wave({4, 4}, 0), wave({4, 2}, 1), mean_square);
  CHECK(calls == 2);
  CHECK(complete == 2);
  const autograd::DetectAnomaly detect;
  CHECK_THROWS_WITH(
      pipeline.forward_backward(wave({4, 4}, 0), wave({4, 2}, 1),
                                [](const Tensor& y, const Tensor&) { return (y - y).log().mean() * 0; }),
      ContainsSubstring("[mul] output 0") && ContainsSubstring("(on cpu:1)"));
  {
    const DeviceGuard guard("cpu:3");  // stages create tensors on their own device
    Pipeline inside(
        {{[&](const Tensor& x) { return net.first(x) + zeros({6}, DType::f64); }, "cpu:0", {net.first}},
         {net.second, "cpu:1"}});
    CHECK(inside(wave({4, 4}, 0)).device() == Device("cpu:1"));
  }
  Pipeline moved = std::move(pipeline);
  CHECK(moved(wave({4, 4}, 0)).sizes() == Shape{4, 2});
}

// ---- threads ----

TEST_CASE("child: threads that open OpenMP regions", "[.]") {
  const int share = get_num_threads() / 2;
  nn::Sequential first(linear(256, 256), nn::ReLU::Options{}, nn::BatchNorm1d::Options{.num_features = 256}),
      second(linear(256, 256), nn::ReLU::Options{});
  Pipeline pipeline({{first, "cpu:0"}, {second, "cpu:1"}}, {.micro_batches = 2});
  optim::SGD optimizer(pipeline.parameters(), {.lr = 0.1, .momentum = 0.9});
  const Tensor x = ones({2048, 256});
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    pipeline.forward_backward(x, std::tuple(), [](const Tensor& y) { return y.mean(); });
    nn::clip_grad_norm_(pipeline.parameters(), 1);
    optimizer.step();
  }
  pipeline(
      x);  // The last operations must be wide, because OpenMP releases threads that a region does not need.
  std::printf("share %d: %d %d\n", share, threads_named("compute cpu:0"), threads_named("compute cpu:1"));
}

TEST_CASE("each device's worker opens OpenMP regions with its part of the threads") {
  const auto threads = [](const char* environment) {
    return run_child("child: threads that open OpenMP regions", environment).output;
  };
  CHECK_THAT(threads("TAPESTRY_LOGICAL_DEVICES=2 OMP_NUM_THREADS=2"), ContainsSubstring("share 1: 1 1"));
  if (!dlsym(RTLD_DEFAULT, "omp_get_num_threads")) return;  // built without OpenMP
  CHECK_THAT(threads("TAPESTRY_LOGICAL_DEVICES=2 OMP_NUM_THREADS=6"), ContainsSubstring("share 3: 3 3"));
}
