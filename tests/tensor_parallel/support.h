#pragma once
// Models that tensor ranks divide, and comparisons with one process.
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tapestry/distributed/placement/check.h"
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

namespace tensor_test {

using namespace tapestry;
using namespace tapestry::distributed;
using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;

/// All tests of this folder also check placements. With TAPESTRY_CHECK_PLACEMENT=0 they only compare values.
inline const bool kChecks = [] {
  const char* const text = std::getenv("TAPESTRY_CHECK_PLACEMENT");
  set_placement_check(!text || std::string(text) != "0");
  return true;
}();

/// The ranks as a mesh, `tensor` innermost.
inline Mesh mesh_of(const Group& world, int tensors) { return {world, {{"shard", -1}, {"tensor", tensors}}}; }

/// Element i is sin(a i + b).
inline Tensor wave(const Shape& sizes, double a, double b = 0) {
  const Tensor t = empty(sizes, DType::f64);
  double* const x = t.data<double>();
  for (std::int64_t i = 0, count = t.numel(); i < count; ++i) x[i] = std::sin(a * static_cast<double>(i) + b);
  return t;
}

inline Tensor ints(const std::vector<std::int64_t>& values, const Shape& sizes) {
  return tapestry::tensor(values, sizes);
}

using Gradients = std::map<std::string, Tensor>;

inline Gradients gradients_of(const nn::Module& net) {
  Gradients all;
  for (const auto& [name, p] : net.named_parameters()) all[name] = p.grad().clone();
  return all;
}

/// The largest element of |a - b|, relative to the largest of |b|. Infinite for NaN.
inline double distance(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (a.numel() == 0) return 0;
  const double off = (a.detach() - b.detach()).abs().max().item(), size = b.detach().abs().max().item();
  return off <= 1e300 ? off / std::max(size, 1e-3) : INFINITY;
}

/// Throws unless this rank has its part of each gradient. Sums over ranks have another order: 1e-10 leaves
/// room for thousands of roundings.
inline void require_gradients(const nn::Module& net, const Gradients& expected, const std::string& what) {
  const auto named = net.named_parameters();
  require(named.size() == expected.size(), what, ": ", named.size(), " parameters");
  for (const auto& [name, p] : named) {
    const Tensor& whole = expected.at(name);
    Tensor mine = whole;
    if (p.layout()) mine = p.layout()->boxes(0).of(whole);
    if (mine.numel() == 0) continue;
    require(p.grad().defined(), what, ": ", name, " has no gradient");
    const double off = distance(p.grad().reshape(mine.sizes()), mine);
    require(off < 1e-10, what, ": the gradient of ", name, " differs by ", off);
  }
}

}  // namespace tensor_test
