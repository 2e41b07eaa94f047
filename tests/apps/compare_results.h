#pragma once
// Results of modes for the tests of tapestry-compare, as if measured.
#include <string>
#include <utility>
#include <vector>

#include "tapestry/apps/compare/result.h"

namespace tests {

/// A mode whose step had these spans in these rows.
inline apps::compare::Result result_of(const std::string& name, double step_s, std::vector<std::string> rows,
                                       std::vector<tapestry::Span> spans) {
  apps::compare::Result r;
  r.name = name;
  r.step_s = step_s;
  r.rows = std::move(rows);
  r.spans = std::move(spans);
  r.breakdown = apps::compare::breakdown_of(r.spans, r.rows, step_s);
  return r;
}

/// The memory of a row whose samples hold these bytes of parameters, gradients, optimizer and activations.
struct HeldBytes {
  double seconds;
  std::int64_t parameters, gradients, optimizer, activations, other = 0;
};
inline apps::compare::MemoryHistory memory_of(const std::string& row, const std::vector<HeldBytes>& held,
                                              std::vector<double> phases_s = {}) {
  apps::compare::MemoryHistory h{row, {}, std::move(phases_s)};
  for (const HeldBytes& b : held)
    h.samples.push_back({b.seconds, {b.parameters, b.gradients, b.optimizer, b.activations, 0, b.other}});
  return h;
}

}  // namespace tests
