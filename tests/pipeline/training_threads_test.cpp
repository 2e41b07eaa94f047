// A pipeline must train like the unsplit model on one device: losses and weights over 12 or 50 steps are
// compared, under every schedule, with one to four stages on one to four devices.
#include "tests/pipeline/models.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr int kFewSteps = kSanitized ? 5 : 12;
constexpr Schedule kSchedules[] = {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble};

struct Variant {
  std::string name;
  double clip = 0;
  int passes = 1;      // passes per step
  int freeze_at = -1;  // the step before which the first parameter is frozen
  bool checkpoint = false;
  DType dtype = DType::f64;
  int steps = kFewSteps;
};

// How to split the model into a pipeline. A run without a Piped trains the unsplit model.
struct Piped {
  std::size_t stages;
  int devices;
  Schedule schedule;
  int micro_batches;
};

template <class M>
TrainResult train(std::int64_t batch_size, const Variant& v, const std::optional<Piped>& piped = {}) {
  M net;
  net.to(v.dtype);
  fill_by_formula(net);
  const Parts parts = net.parts();
  std::optional<Pipeline> pipeline;
  if (piped)
    pipeline.emplace(cut(parts, piped->stages, piped->devices),
                     PipelineOptions{.schedule = piped->schedule,
                                     .micro_batches = piped->micro_batches,
                                     .uneven = true,
                                     .checkpoint = v.checkpoint});
  const bool precise = v.dtype == DType::f64;
  optim::SGD optimizer(net.parameters(),
                       precise ? optim::SGD::Options{.lr = 0.02, .momentum = 0.9, .weight_decay = 1e-3}
                               : optim::SGD::Options{.lr = 0.01});
  const auto loss_of = [](const auto& outputs, const auto& targets) { return M::loss(outputs, targets); };
  TrainResult result;
  for (int step = 0; step < v.steps; ++step) {
    if (step == v.freeze_at) net.parameters()[0]->set_requires_grad(false);
    optimizer.zero_grad();
    for (int pass = 0; pass < v.passes; ++pass) {
      typename M::Batch batch = M::batch(step * v.passes + pass, batch_size);
      visit_tensors(batch, [&](Tensor& t, bool) { t = is_floating(t.dtype()) ? t.to(v.dtype) : t; });
      if (pipeline) {
        const Tensor loss = pipeline->forward_backward(batch.inputs, batch.targets, M::loss);
        CHECK_FALSE(loss.requires_grad());
        result.losses.push_back(loss.item());
      } else {
        const std::vector<Tensor> outputs = run_all(parts, tensors_in(batch.inputs).tensors);
        Tensor loss;
        if constexpr (std::is_same_v<M, ManyParts>) loss = loss_of(outputs, batch.targets);
        else loss = loss_of(outputs[0], batch.targets);
        loss.backward();
        result.losses.push_back(loss.item());
      }
    }
    if (v.clip > 0) nn::clip_grad_norm_(net.parameters(), v.clip);
    optimizer.step();
  }
  result.weights = copy_state(net);
  return result;
}

// Numbers of stages and devices. In {3, 2}, two stages share a device.
const std::vector<std::pair<std::size_t, int>> kPlaces{{1, 1}, {2, 2}, {3, 2}, {3, 3}, {4, 4}};

template <class M>
void compare(const Variant& v, const std::vector<std::int64_t>& batches,
             const std::vector<std::pair<std::size_t, int>>& places = kPlaces) {
  for (const std::int64_t batch : batches) {
    const TrainResult expected = train<M>(batch, v);
    for (const auto& [stages, devices] : places)
      for (const Schedule schedule : kSchedules) {
        const int micro_batches = 2 + static_cast<int>(stages);
        INFO(v.name << ", batch " << batch << ", " << stages << " stages on " << devices << " devices, "
                    << schedule_name(schedule) << ", " << micro_batches << " micro-batches");
        const TrainResult result = train<M>(batch, v, Piped{stages, devices, schedule, micro_batches});
        const bool precise = v.dtype == DType::f64;
        CHECK(distance_of_losses(result, expected) < (precise ? 1e-10 : 1e-4));
        CHECK(distance(result.weights, expected.weights) < (precise ? 1e-10 : 1e-3));
      }
  }
}

}  // namespace

TEST_CASE("a module with plain members trains like the unsplit model") {
  compare<CnnParts>({.name = "defaults"}, {1, 3, 7, 64});
  compare<CnnParts>({.name = "many steps", .steps = kSteps}, {7}, {{3, 2}});
}
TEST_CASE("shared, unused and frozen parameters train like the unsplit model") {
  compare<SharedParts>({.name = "defaults"}, {1, 3, 7, 64});
}
TEST_CASE("stages with several inputs and outputs train like the unsplit model") {
  compare<ManyParts>({.name = "defaults"}, {1, 3, 7, 64});
}

TEST_CASE("float32 models train like the unsplit model") {
  const Variant v{.name = "float32", .dtype = DType::f32};
  compare<CnnParts>(v, {1, 64}, {{2, 2}, {4, 4}});
  compare<ManyParts>(v, {7}, {{3, 2}});
}

TEST_CASE("training equals the unsplit model with clipping, accumulation, freezing and checkpointing") {
  for (const Variant& v :
       {Variant{.name = "clipping", .clip = 0.05}, Variant{.name = "accumulation", .passes = 2},
        Variant{.name = "freezing", .freeze_at = 2 * kFewSteps / 5},
        Variant{.name = "checkpoints", .checkpoint = true}}) {
    compare<CnnParts>(v, {7}, {{1, 1}, {4, 4}});
    compare<SharedParts>(v, {3}, {{3, 3}, {4, 2}});
  }
}

TEST_CASE("all schedules give the same bits, also with checkpointing") {
  const Variant v{.name = "defaults"};
  const TrainResult first = train<ManyParts>(9, v, Piped{3, 3, kSchedules[0], 4});
  for (const Schedule schedule : kSchedules) {
    const TrainResult other = train<ManyParts>(9, v, Piped{3, 3, schedule, 4});
    CHECK(other.losses == first.losses);
    CHECK(other.weights == first.weights);
    const TrainResult again =
        train<ManyParts>(9, {.name = "checkpoints", .checkpoint = true}, Piped{3, 3, schedule, 4});
    CHECK(again.losses == first.losses);
    CHECK(again.weights == first.weights);
  }
}

TEST_CASE("the comparison detects a batch with one sample less") {
  const TrainResult seven = train<CnnParts>(7, {.name = "7"}), six = train<CnnParts>(6, {.name = "6"});
  CHECK(distance(six.weights, seven.weights) > 1e-6);
  CHECK(distance_of_losses(six, seven) > 1e-6);
}
