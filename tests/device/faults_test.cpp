// What a kernel finds wrong with its indices while the host goes on.
#include <cmath>
#include <cstdio>
#include <functional>

#include "tapestry/tapestry.h"
#include "tests/device/exceptions.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

const Device kDevice{DeviceType::cuda, 0};

Tensor indices(const std::vector<std::int64_t>& values) {
  return tensor(values, {static_cast<std::int64_t>(values.size())}, {DType::i64, kDevice});
}

struct Use {
  const char* text;  // of the error
  std::function<Tensor()> run;
};
std::vector<Use> bad_uses() {
  const Tensor x = ones({3, 4}, {DType::f32, kDevice});
  return {
      {"[cross_entropy] target 4 at position 1 is outside [0, 4)",
       [=] {
         return cross_entropy(x, indices({0, 4, -7}));
       }},
      {"[nll_loss] target -1 at position 2 is outside [0, 4)",
       [=] {
         return nll_loss(x, indices({0, 3, -1}));
       }},
      {"[index_select] index 3 at position 0 is outside [0, 3)",
       [=] { return index_select(x, 0, indices({3})).sum(); }},
      {"[embedding] index -1 at position 1 is outside [0, 3)",
       [=] {
         return embedding(x, indices({2, -1})).sum();
       }},
  };
}

/// Calls `check` with those whose kernels exist.
void for_uses(const std::function<void(const Use&)>& check) {
  for (const Use& use : bad_uses()) {
    CAPTURE(use.text);
    try {
      check(use);
    } catch (const MissingKernelError& e) {
      if (!device_tests::not_written_yet(e.what())) throw;
      std::printf("skipped: %s\n", e.what());
    }
  }
}

}  // namespace

TEST_CASE("an index out of range is told of when the host next waits for the device, once") {
  if (no_gpu()) return;
  for_uses([](const Use& use) {
    const Tensor y = use.run();
    CHECK_THROWS_WITH(y.item(), ContainsSubstring(use.text));
    CHECK_NOTHROW(y.item());

    use.run();
    CHECK_THROWS_AS(synchronize(kDevice), IndexError);
    CHECK_NOTHROW(synchronize(kDevice));
  });
}

TEST_CASE("an index out of range is told of by the next operation with indices, if it is known by then") {
  if (no_gpu()) return;
  for_uses([](const Use& use) {
    const Tensor x = ones({1, 4}, {DType::f32, kDevice}), good = indices({3});
    use.run();
    Event behind;
    behind.record(current_stream(kDevice));
    behind.synchronize();
    CHECK_THROWS_WITH(cross_entropy(x, good), ContainsSubstring(use.text));
    CHECK(cross_entropy(x, good).item() == Approx(std::log(4.0)));
  });
}
