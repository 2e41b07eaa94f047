#pragma once
// The rules of built-in operations. built_in_rules.cpp says which operations have them.
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/distributed/placement/rule.h"

namespace tapestry::distributed::rules {

Placement added(const PlacementCall& c);
Placement divided(const PlacementCall& c);
Placement dropped(const PlacementCall& c);
Placement copied(const PlacementCall& c);
Placement mixed(const PlacementCall& c);
Placement linearly_mixed(const PlacementCall& c);
Placement sum(const PlacementCall& c);
Placement nansum(const PlacementCall& c);
Placement picked(const PlacementCall& c);
Placement mean(const PlacementCall& c);
Placement permuted(const PlacementCall& c);
Placement removed(const PlacementCall& c);
Placement inserted(const PlacementCall& c);
Placement reshaped(const PlacementCall& c);
Placement expanded(const PlacementCall& c);
Placement joined(const PlacementCall& c);
Placement stacked(const PlacementCall& c);
Placement matmul(const PlacementCall& c);
Placement fully_connected(const PlacementCall& c);
Placement activated(const PlacementCall& c);
Placement feed_forward(const PlacementCall& c);
Placement grouped(const PlacementCall& c);
Placement convolved(const PlacementCall& c);
Placement convolved_relu(const PlacementCall& c);
Placement selected(const PlacementCall& c);
Placement looked_up(const PlacementCall& c);
Placement by_sample(const PlacementCall& c);
Placement batch_norm(const PlacementCall& c);
Placement attended(const PlacementCall& c);
Placement rotated(const PlacementCall& c);
Placement elementwise_loss(const PlacementCall& c);
Placement class_loss(const PlacementCall& c);
Placement linear_class_loss(const PlacementCall& c);

/// Throws for an operand whose mean over a divided dimension is asked for.
[[noreturn]] void fail_for_mean(const PlacementCall& c, std::size_t operand);

}  // namespace tapestry::distributed::rules
