// Tests that each phase of a step is compared with itself: a device that is slow in one phase slows that
// phase alone.
#include "tapestry/distributed/planner/internal/contention.h"

#include <chrono>
#include <thread>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed::planner;

namespace {

enum class Phase { forward, backward };

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// A linear layer that takes 2 ms in each phase, but 80 ms in one phase on every device after the first. The
// pauses are far longer than the layer's own time, so that other load on the machine cannot hide them.
class SlowElsewhere : public nn::Module {
 public:
  explicit SlowElsewhere(Phase slow) : slow_(slow) {}
  Tensor forward(const Tensor& x) {
    const int long_pause = x.device().index == 0 ? 2 : 80;
    const int backward_pause = slow_ == Phase::backward ? long_pause : 2;
    const Tensor y = linear_(x);
    pause(slow_ == Phase::forward ? long_pause : 2);
    y.register_hook([backward_pause](const Tensor& gradient) {
      pause(backward_pause);
      return gradient;
    });
    return y;
  }

 private:
  Phase slow_;
  nn::Linear& linear_ = add<nn::Linear>("linear", 4, 4);
};

Models two_devices(Phase phase) {
  const Model model{
      .make_blocks =
          [phase] {
            return std::vector<Block>{{"only", std::make_shared<SlowElsewhere>(phase)}};
          },
      .inputs = zeros({2, 4}),
      .targets = zeros({2, 4}),
      .loss = [](const Tensor& output, const Tensor& targets) { return mse_loss(output, targets); }};
  const TrainingSetup setup{.batch_size = 2, .devices = 2};
  Models models;
  for (int i = 0; i < 2; ++i)
    models.push_back(std::make_unique<ProfiledModel>(model, setup, Device(DeviceType::cpu, i)));
  return models;
}

}  // namespace

TEST_CASE("contention is measured for each phase") {
  const Phase slow = GENERATE(Phase::forward, Phase::backward);
  const Models models = two_devices(slow);
  int sent = 0, added = 0;
  const bool master = GENERATE(false, true);
  INFO((slow == Phase::forward ? "forward" : "backward") << (master ? ", master" : ""));
  const Contention factors = master ? measure_contention(
                                          models, 2, 1, [&] { ++sent; }, [&] { ++added; })
                                    : measure_contention(models, 2, 1);
  // The slow device takes 40 times as long in its phase.
  const double slowed = slow == Phase::forward ? factors.forward : factors.backward;
  const double other = slow == Phase::forward ? factors.backward : factors.forward;
  CHECK(slowed > 4);
  CHECK(other < slowed);
  CHECK((sent > 0) == master);
  CHECK(sent == added);
}
