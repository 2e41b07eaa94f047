// Tests of the optimizer kernels for bf16 and f16 parameters. The f32 kernels have tests of their formulas;
// here the same rules must read and write the right memory, and round as the CPU does.
#include "tapestry/kernels/cuda/optim_low.cuh"

#include <deque>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

enum class How { master, stochastic, nearest };

template <class T>
struct Param {
  Block<T> param, grad;
  Block<float> master;
  std::deque<Block<float>> state;
  Block<double> step{2};

  Param(std::size_t n, unsigned salt, std::size_t offset)
      : param(numbers(static_cast<std::int64_t>(n), 3 * salt, 2), offset),
        grad(numbers(static_cast<std::int64_t>(n), 3 * salt + 1, 0.5), offset),
        master(numbers(static_cast<std::int64_t>(n), 3 * salt, 2), offset) {
    for (int k = 0; k < 3; ++k) state.emplace_back(Values(n, 0.0), offset);
    step[0] = 0;
    step[1] = 1;
  }
  StepItem item() {
    return {.param = param.data(),
            .grad = grad.data(),
            .state = {state[0].data(), state[1].data(), state[2].data()},
            .step = step.data(),
            .numel = static_cast<std::int64_t>(param.size())};
  }
};

using Cases = std::vector<std::pair<std::size_t, std::size_t>>;  // elements, misalignment
const Cases kSizes = {{1, 0}, {3, 0}, {4, 0}, {0, 0}, {513, 0}, {4099, 0}, {4200, 1}, {70, 2}};

/// Runs two steps on both sides, and compares every array within `error`; bit for bit if it is 0.
template <class T = BFloat16, class Args, class Slot, class Launch>
void check_steps(Args args, How how, const Cases& cases, const Slot& slot, const Launch& launch,
                 float error) {
  CAPTURE(slot.name(), int(how));
  in_each_order([&] {
    std::deque<Param<T>> ours, cpus;
    for (const auto& [n, offset] : cases) {
      ours.emplace_back(n, unsigned(ours.size()), offset);
      cpus.emplace_back(n, unsigned(cpus.size()), offset);
    }
    StepScalars scalars{.lr = 0.0078125, .grad_scale = 0.5};
    for (int step = 0; step < 2; ++step) {
      const auto run = [&](std::deque<Param<T>>& params, const auto& call) {
        std::vector<StepItem> items;
        std::vector<LowPrecisionItem> low;
        for (Param<T>& p : params) {
          items.push_back(p.item());
          // The offsets place elements at every position of a group of random words.
          low.push_back({how == How::master ? p.master.data() : nullptr, low.size() + 7,
                         static_cast<std::int64_t>(5 * low.size())});
        }
        args.tensors = {items.data(), static_cast<std::int64_t>(items.size()), &scalars, low.data(),
                        how == How::stochastic};
        call();
      };
      run(ours, [&] { launch(args); });
      run(cpus, [&] { slot(kCPU, dtype_of<T>, args); });
      scalars.lr = 0.015625;
    }
    std::size_t bad = 0;
    const auto compare = [&](float a, float b) { bad += !(std::abs(a - b) <= error); };
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CHECK(ours[i].step[0] == cpus[i].step[0]);
      for (std::size_t j = 0; j < ours[i].param.size(); ++j) {
        const float own = static_cast<float>(ours[i].param[j]), want = static_cast<float>(cpus[i].param[j]);
        // A number below 4 may be rounded to the other neighbour if the f32 values differ.
        bad += !(std::abs(own - want) <= (error > 0 ? 0x1p-6f : 0));
        compare(ours[i].master[j], cpus[i].master[j]);
        for (std::size_t k = 0; k < 3; ++k) compare(ours[i].state[k][j], cpus[i].state[k][j]);
      }
    }
    CHECK(bad == 0);
  });
}

}  // namespace

TEST_CASE("low-precision SGD kernel: masters, stochastic and nearest rounding are the CPU's bit for bit") {
  // All products and sums of these numbers are exact in f32, so only the rounding to bf16 is tested.
  for (const How how : {How::master, How::stochastic, How::nearest}) {
    const auto check = [&](const SgdArgs& args) {
      check_steps(
          args, how, kSizes, sgd_step, [](const SgdArgs& a) { gpu::launch_low_sgd<BFloat16>({}, a); }, 0);
    };
    check({});
    check({.momentum = 0.5, .weight_decay = 0.25});
  }
  check_steps(
      SgdArgs{.momentum = 0.5, .nesterov = true}, How::stochastic, kSizes, sgd_step,
      [](const SgdArgs& a) { gpu::launch_low_sgd<BFloat16>({}, a); }, 0);
}

TEST_CASE("low-precision kernels of the other optimizers give the CPU's steps") {
  for (const How how : {How::master, How::stochastic, How::nearest}) {
    for (const bool amsgrad : {false, true})
      check_steps(
          AdamArgs{.weight_decay = 0.125, .decoupled = !amsgrad, .amsgrad = amsgrad}, how,
          {{70, 1}, {4099, 0}}, adam_step, [](const AdamArgs& a) { gpu::launch_low_adam<BFloat16>({}, a); },
          0x1p-16f);
    for_step_rules([&]<class Rule>(const Slot<Rule>& slot) {
      check_steps(
          Rule{}, how, {{70, 1}, {264, 0}}, slot,
          [](const Rule& a) { gpu::launch_low_rule<BFloat16>({}, a); }, 0x1p-14f);
    });
  }
}

TEST_CASE("low-precision kernels: f16 parameters get the CPU's steps") {
  for (const How how : {How::master, How::stochastic, How::nearest}) {
    check_steps<Half>(
        SgdArgs{.momentum = 0.5, .weight_decay = 0.25}, how, kSizes, sgd_step,
        [](const SgdArgs& a) { gpu::launch_low_sgd<Half>({}, a); }, 0);
    check_steps<Half>(
        AdamArgs{.weight_decay = 0.125}, how, {{70, 1}, {264, 0}}, adam_step,
        [](const AdamArgs& a) { gpu::launch_low_adam<Half>({}, a); }, 0x1p-16f);
  }
}

TEST_CASE("low-precision kernels: loss_scale divides the gradients, and found_inf changes nothing") {
  std::deque<Param<Half>> scaled, plain, skipped;
  const auto run = [](std::deque<Param<Half>>& params, StepScalars scalars, const float* scale,
                      const float* found) {
    std::vector<StepItem> items;
    std::vector<LowPrecisionItem> low;
    for (const std::size_t n : {std::size_t(4200), std::size_t(3)}) {
      items.push_back(params.emplace_back(n, unsigned(n), 0).item());
      low.push_back({n == 3 ? params.back().master.data() : nullptr, n, 0});
    }
    gpu::launch_low_sgd<Half>(
        {}, {.tensors = {items.data(), 2, &scalars, low.data(), true, scale, found}, .momentum = 0.5});
  };
  const float scale = 4, bad = 1, good = 0;
  run(scaled, {.lr = 0.5, .grad_scale = 1}, &scale, &good);
  run(plain, {.lr = 0.5, .grad_scale = 0.25}, nullptr, nullptr);
  run(skipped, {.lr = 0.5, .grad_scale = 1}, &scale, &bad);
  for (std::size_t i = 0; i < 2; ++i) {
    const Param<Half> before(scaled[i].param.size(), unsigned(scaled[i].param.size()), 0);
    CHECK(scaled[i].step[0] == 1);
    CHECK(skipped[i].step[0] == 0);
    std::size_t differ = 0, changed = 0;
    for (std::size_t j = 0; j < before.param.size(); ++j) {
      differ += scaled[i].param[j].bits != plain[i].param[j].bits ||
                scaled[i].master[j] != plain[i].master[j] || scaled[i].state[0][j] != plain[i].state[0][j];
      changed += skipped[i].param[j].bits != before.param[j].bits ||
                 skipped[i].master[j] != before.master[j] || skipped[i].state[0][j] != 0;
    }
    CHECK(differ == 0);
    CHECK(changed == 0);
  }
}

TEST_CASE("low-precision kernels: states that are not used may be null, and two batches share a launch") {
  const std::size_t count = gpu::kLowStepBatch + 3;
  std::deque<Param<BFloat16>> params, whole;
  std::vector<StepItem> items, with_all;
  const std::vector<LowPrecisionItem> low(count);
  for (std::size_t i = 0; i < count; ++i) {
    items.push_back(params.emplace_back(9, unsigned(i), i % 2).item());
    items.back().state[1] = items.back().state[2] = nullptr;
    with_all.push_back(whole.emplace_back(9, unsigned(i), i % 2).item());
  }
  const StepScalars scalars{.lr = 0.5};
  RmspropArgs rule;
  cuda_emulator::take_launches();
  rule.tensors = {items.data(), static_cast<std::int64_t>(count), &scalars, low.data(), true};
  gpu::launch_low_rule<BFloat16>({}, rule);
  CHECK(cuda_emulator::take_launches().size() == 3);
  rule.tensors.items = with_all.data();
  gpu::launch_low_rule<BFloat16>({}, rule);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < 9; ++j) CHECK(params[i].param[j].bits == whole[i].param[j].bits);
  // The same parameters with other numbers are rounded differently.
  CHECK(round_stochastically<BFloat16>(1 + 0x1p-9f, 0xbfff).bits !=
        round_stochastically<BFloat16>(1 + 0x1p-9f, 0xc000).bits);
}

TEST_CASE("low-precision kernels: NaN and infinities are those of the CPU") {
  for (const How how : {How::master, How::stochastic}) {
    Param<BFloat16> p(12, 1, 0), cpu(12, 1, 0);
    for (Param<BFloat16>* each : {&p, &cpu}) {
      each->grad[0] = BFloat16(static_cast<float>(kNaN));
      each->grad[1] = BFloat16(static_cast<float>(kInfinity));
      each->param[9] = BFloat16(static_cast<float>(-kInfinity));
      each->param[10] = BFloat16::from_bits(0x7f81);  // its mantissa would become zero
      each->param[11] = BFloat16::from_bits(0x7f7f);  // the largest
      each->grad[11] = BFloat16(-0x1p127f);
    }
    const StepScalars scalars{.lr = 1};
    const StepItem item = p.item(), other = cpu.item();
    const LowPrecisionItem low{how == How::master ? p.master.data() : nullptr, 3, 0},
        other_low{how == How::master ? cpu.master.data() : nullptr, 3, 0};
    gpu::launch_low_sgd<BFloat16>({}, {.tensors = {&item, 1, &scalars, &low, true}});
    sgd_step(kCPU, DType::bf16, {.tensors = {&other, 1, &scalars, &other_low, true}});
    for (std::size_t i = 0; i < 12; ++i) {
      CAPTURE(i, int(how));
      const auto got = static_cast<float>(p.param[i]), want = static_cast<float>(cpu.param[i]);
      CHECK(((std::isnan(got) && std::isnan(want)) || got == want));
    }
    CHECK(std::isnan(static_cast<float>(p.param[0])));
    if (how == How::stochastic) CHECK(std::isnan(static_cast<float>(p.param[10])));
    CHECK(static_cast<float>(p.param[1]) == -kInfinity);
  }
}
