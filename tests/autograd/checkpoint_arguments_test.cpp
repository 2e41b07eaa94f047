// checkpoint() must find the tensors inside structs and containers that are passed as arguments.
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

struct Batch {
  Tensor x;
  double scale = 1;
  std::map<std::string, std::pair<int, Tensor>> more = {};
};
using Rest = std::optional<std::vector<std::tuple<Tensor>>>;

Tensor block(const Batch& b, const Rest& rest) {
  const Tensor y = b.x.exp() * b.more.at("w").second.tanh() * b.scale;
  return rest ? y + std::get<0>(rest->at(0)).sigmoid() : y;
}

}  // namespace

TEST_CASE("structs, maps, tuples, vectors and optionals: gradients equal those of the plain call") {
  const Tensor x = linspace(-1, 1, 6).set_requires_grad(), w = linspace(0, 2, 6).set_requires_grad();
  const Batch batch{.x = x, .scale = 0.5, .more = {{"w", {7, w}}}};
  const auto gradients = [&](const Tensor& y) {
    x.zero_grad();
    w.zero_grad();
    y.sum().backward();
    return std::pair(x.grad(), w.grad());
  };
  for (const Rest& rest : {Rest(), Rest({std::tuple(x)})}) {
    const auto expected = gradients(block(batch, rest));
    const auto found = gradients(checkpoint(block, batch, rest));
    CHECK(equal(found.first, expected.first));
    CHECK(equal(found.second, expected.second));
  }
  // Here only checkpoint() holds the tensors in the arguments.
  const auto expected = gradients(block(batch, {}));
  CHECK(equal(gradients(checkpoint(block, Batch{x * 1, 0.5, {{"w", {7, w * 1}}}}, Rest())).first,
              expected.first));
}

TEST_CASE(
    "structs, maps, tuples, vectors and optionals: an in-place change of any tensor in them is refused") {
  const Tensor x = linspace(-1, 1, 6).set_requires_grad();
  const std::vector<Tensor> parts{x * 2, x * 3, x * 4};
  for (std::size_t changed = 0; changed <= parts.size(); ++changed) {
    const Tensor y =
        checkpoint(block, Batch{parts[0], 1, {{"w", {7, parts[1]}}}}, Rest({std::tuple(parts[2])}));
    if (changed == parts.size()) {
      CHECK_NOTHROW(y.sum().backward());
      continue;
    }
    parts[changed].detach().add_(1);
    CHECK_THROWS_WITH(y.sum().backward(),
                      ContainsSubstring("[checkpoint] input " + std::to_string(changed) + ",") &&
                          ContainsSubstring("in place"));
  }
}
