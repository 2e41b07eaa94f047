#include "tapestry/autograd/ops/pad.h"

#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {
PadMode mode_of(const std::string& name) {
  return name == "reflect"     ? PadMode::reflect
         : name == "replicate" ? PadMode::replicate
         : name == "circular"  ? PadMode::circular
                               : PadMode::constant;
}
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
}  // namespace

GOLDEN_OP("pad", "pad", [](const OpCase& c) {
  const Shape padding = c.dims("padding");
  return pad(c[0], {padding.begin(), padding.end()}, mode_of(c.text("mode")), c.scalar("value", Scalar(0)));
});

BAD_INPUT("pad", "give two for each dimension", [] { pad(zeros({2}), {1}); });
BAD_INPUT("pad", "give at most 2", [] { pad(zeros({2}), {1, 1, 1, 1}); });
BAD_INPUT("pad", "remove at most as many as there are", [] { pad(zeros({2}), {-3, 5}); });
BAD_INPUT("pad", "remove at most as many as there are", [] { pad(zeros({2}), {-2, -1}); });
BAD_INPUT("pad", "remove at most as many as there are", [] { pad(zeros({2}), {-kMost, -kMost}); });
BAD_INPUT("pad", "are more than 64 bits can count; pad less", [] { pad(zeros({2}), {kMost, kMost}); });
BAD_INPUT("pad", "are more than 64 bits can count; pad less", [] { pad(zeros({2}), {kMost, 0}); });
BAD_INPUT("pad", "at the ends of dimension 0", [] { pad(zeros({2}), {kMost, 1}); });
BAD_INPUT("pad", "64 bits can count", [] { pad(zeros({2, 2}), {kMost / 2, 0, kMost / 2, 0}); });
BAD_INPUT("pad", "this mode gives at most 2", [] { pad(zeros({2, 3}), {3, 0}, PadMode::reflect); });
BAD_INPUT("pad", "this mode gives at most 3", [] { pad(zeros({2, 3}), {0, 4}, PadMode::circular); });
BAD_INPUT("pad", "this mode gives at most 0", [] { pad(zeros({2, 0}), {1, 0}, PadMode::replicate); });

TEST_CASE("pad: every mode takes any number of dimensions") {
  const Tensor x = arange(1, 4);
  CHECK(equal(pad(x, {2, 1}, PadMode::reflect), tensor({3, 2, 1, 2, 3, 2})));
  CHECK(equal(pad(x, {2, 1}, PadMode::replicate), tensor({1, 1, 1, 2, 3, 3})));
  CHECK(equal(pad(x, {2, 1}, PadMode::circular), tensor({2, 3, 1, 2, 3, 1})));
  // Elements are removed before the border is filled.
  CHECK(equal(pad(x, {-1, 1}, PadMode::reflect), tensor({2, 3, 2})));
  CHECK(equal(pad(x, {2, -2}, PadMode::replicate), tensor({1, 1, 1})));
}

TEST_CASE("pad keeps channels-last, and is a copy without padding too") {
  const Tensor x = rand({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  for (const PadMode mode : {PadMode::constant, PadMode::reflect, PadMode::replicate, PadMode::circular}) {
    const Tensor y = pad(x, {1, 2, 0, 1}, mode);
    CHECK(y.memory_format() == MemoryFormat::channels_last);
    CHECK(equal(y, pad(x.contiguous(), {1, 2, 0, 1}, mode)));
    CHECK_FALSE(pad(x, {}, mode).storage() == x.storage());
  }
}

TEST_CASE("pad adds up the gradients of a replicated element in f32 for bf16") {
  // A sum in bf16 would stop at 256.
  const Tensor x = zeros({1, 2}, DType::bf16).set_requires_grad();
  pad(x, {300, 0}, PadMode::replicate).sum().backward();
  CHECK(x.grad()[0][0].item() == Approx(301).epsilon(0.004));
  CHECK(x.grad()[0][1].item() == 1);
}
