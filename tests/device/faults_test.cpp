// Indices out of range must throw at the host's next wait, because the kernel finds them while the host
// continues.
#include <functional>

#include "tapestry/tapestry.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

const Device kDevice{DeviceType::cuda, 0};

Tensor indices(const std::vector<std::int64_t>& values) {
  return tensor(values, {static_cast<std::int64_t>(values.size())}, {DType::i64, kDevice});
}

struct Use {
  const char* text;  // the expected error message
  std::function<Tensor()> run;
};
std::vector<Use> bad_uses() {
  const Tensor x = ones({3, 4}, {DType::f32, kDevice});
  return {
      {"[cross_entropy] target at position 1 is outside [0, 4)",
       [=] {
         return cross_entropy(x, indices({0, 4, -7}));
       }},
      {"[nll_loss] target at position 2 is outside [0, 4)",
       [=] {
         return nll_loss(x, indices({0, 3, -1}));
       }},
      {"[index_select] index at position 0 is outside [0, 3)",
       [=] { return index_select(x, 0, indices({3})).sum(); }},
      {"[gather] index at position 2 is outside [0, 3)",
       [=] {
         return x.gather(0, indices({0, 1, 3}).unsqueeze(1)).sum();
       }},
      {"[index] index at position 1 is outside [-3, 3)",
       [=] {
         return x.index({indices({-3, -4})}).sum();
       }},
      {"[index] an index at position 0 is outside its dimension of a tensor of shape [3, 4]",
       [=] {
         return x.index({indices({0}), indices({4})}).sum();
       }},
      {"[scatter_add] index at position 1 is outside [0, 4)",
       [=] {
         return x.scatter_add(1, indices({3, -1}).unsqueeze(0), ones({1, 2}, {DType::f32, kDevice})).sum();
       }},
      {"[embedding] index at position 1 is outside [0, 3)",
       [=] {
         return embedding(x, indices({2, -1})).sum();
       }},
  };
}

}  // namespace

TEST_CASE("an index out of range throws once, when the host next waits for the device") {
  if (no_gpu()) return;
  for (const Use& use : bad_uses()) {
    CAPTURE(use.text);
    const Tensor y = use.run();
    CHECK_THROWS_WITH(y.item(), ContainsSubstring(use.text));
    CHECK_NOTHROW(y.item());

    use.run();
    CHECK_THROWS_AS(synchronize(kDevice), IndexError);
    CHECK_NOTHROW(synchronize(kDevice));
  }
}
