// A CUDA device must draw the same samples as the CPU.
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace tapestry;

TEST_CASE("multinomial draws the same categories on a CUDA device and on the CPU") {
  if (no_gpu()) return;
  manual_seed(1);
  const Tensor weights = rand({7, 130});
  for (const bool replacement : {true, false}) {
    manual_seed(2);
    const Tensor want = multinomial(weights, 20, replacement);
    manual_seed(2);
    const Tensor got = multinomial(weights.to("cuda:0"), 20, replacement);
    CHECK(got.device() == Device("cuda:0"));
    CHECK(equal(got.cpu(), want));
  }
  CHECK_THROWS_WITH(multinomial(zeros({3}, Device("cuda:0")), 1),
                    ContainsSubstring("all probs of a row are 0"));
}
