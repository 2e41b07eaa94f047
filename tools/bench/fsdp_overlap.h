#pragma once

namespace tapestry::bench {

/// Measures the communication of fully_shard that backward and forward do not hide over a link of 1 ms per
/// MiB, and prints it beside the planner's prediction. Before that, the same of the all-reduces between two
/// copies of a sharded model, with such a link between the copies.
void measure_overlap(int rounds);

}  // namespace tapestry::bench
