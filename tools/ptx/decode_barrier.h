#pragma once
// The names of barriers.
#include <string_view>

namespace tapestry::ptx {

/// bar and barrier: what they do, without .cta and .aligned; red has an operation and a type.
struct BarrierName {
  bool is = false;
  std::string_view kind, operation, type;
};
/// Reads an opcode. `is` stays false if it is no barrier that the machine has.
BarrierName barrier_name(std::string_view op);

}  // namespace tapestry::ptx
