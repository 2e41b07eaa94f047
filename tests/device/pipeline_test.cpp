// A pipeline over two CUDA devices must train to the same weights as the CPU alone.
#include "tapestry/distributed/pipeline/internal/copy_between_stages.h"
#include "tests/device/train.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;
using device_tests::compare, device_tests::train, device_tests::Trained;

namespace {

// The first and the last layer share one weight.
struct Net : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 6, .out_features = 6});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 6, .out_features = 6});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 6, .out_features = 6});
  Net() { fc3.weight = fc1.weight; }
};

}  // namespace

TEST_CASE("a pipeline over two CUDA devices trains as the CPU alone") {
  if (no_gpu(2)) return;
  const auto make = [] {
    manual_seed(1);
    return std::make_unique<Net>();
  };
  const auto alone = make();
  const Trained expected = train(*alone, {6, 6}, {6, 6}, [&](const Tensor& x, const Tensor& target) {
    return mse_loss(alone->fc3(alone->fc2(alone->fc1(x).relu()).relu()), target);
  });
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b}) {
    CAPTURE(schedule_name(schedule));
    const auto net = make();
    // The result must also be right if the caller has selected a stream other than the default.
    std::optional<StreamGuard> guard;
    if (schedule == Schedule::one_f_one_b) guard.emplace(new_stream("cuda:0"));
    nn::ReLU relu;
    Pipeline pipeline({{{net->fc1, relu, net->fc2}, "cuda:0"},
                       {[&](const Tensor& h) { return net->fc3(h.relu()); }, "cuda:1", {net->fc3}}},
                      {.schedule = schedule, .micro_batches = 3});
    const Timeline timeline;
    const Trained trained = train(*net, {6, 6}, {6, 6}, [&](const Tensor& x, const Tensor& target) {
      return pipeline.forward_backward(x, target,
                                       [](const Tensor& y, const Tensor& t) { return mse_loss(y, t); });
    });
    compare(trained, expected);
    CHECK(net->fc3.weight->device() == Device("cuda:0"));
    CHECK(net->fc3.bias->device() == Device("cuda:1"));

    const PipelineReport report = pipeline.report();
    REQUIRE(report.stages.size() == 2);
    for (const StageReport& stage : report.stages) {
      CHECK(stage.forward_s > 0);
      CHECK(stage.backward_s > 0);
      CHECK(stage.idle_s > 0);
    }
    // Inputs and targets come from the host; activations and gradients come from the other device.
    CHECK(report.stages[0].bytes_received == 2 * 6 * 6 * 4);
    CHECK(report.stages[1].bytes_received == 2 * 6 * 6 * 4);
    CHECK(report.bubble > 0);
    CHECK(report.bubble < 1);
    int forwards = 0;
    for (const Span& span : timeline.spans()) forwards += span.activity == Activity::forward;
    CHECK(forwards == 4 * 2 * 3);

    const Tensor x = randn({4, 6}, kCPU), y = pipeline(x);
    CHECK(y.device() == Device("cuda:1"));
    net->to(kCPU);
    const NoGradGuard no_grad;
    CHECK(allclose(y.cpu(), net->fc3(net->fc2(net->fc1(x).relu()).relu()), 1e-4, 1e-5));
  }
}

TEST_CASE("a tensor that is not contiguous is copied between stages") {
  if (no_gpu(2)) return;
  const Device first("cuda:0"), second("cuda:1");
  const CopyStreams out(first), in(second);
  const Tensor host = randn({4, 6}, kCPU), x = host.to(first).narrow(1, 1, 3);
  const Stream consumer = new_stream(second);
  const Tensor y = copy_between_stages(x, record_ready(first, out).get(), consumer, in);
  const StreamGuard guard(consumer);
  CHECK(y.device() == second);
  CHECK(allclose(y.cpu(), host.narrow(1, 1, 3), 0, 0));
}
