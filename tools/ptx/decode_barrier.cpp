#include "tapestry/tools/ptx/decode_barrier.h"

#include <cstddef>

namespace tapestry::ptx {

BarrierName barrier_name(std::string_view op) {
  BarrierName name;
  if (!op.starts_with("bar.") && !op.starts_with("barrier.")) return name;
  for (std::size_t at = op.find('.'); at != op.npos;) {
    const std::size_t end = op.find('.', at + 1);
    const std::string_view part = op.substr(at + 1, end == op.npos ? end : end - at - 1);
    at = end;
    std::string_view* const to = part == "sync" || part == "arrive" || part == "red" ? &name.kind
                                 : part == "popc" || part == "and" || part == "or"   ? &name.operation
                                 : part == "u32" || part == "pred"                   ? &name.type
                                                                                     : nullptr;
    if (to ? !to->empty() : part != "cta" && part != "aligned") return {};
    if (to) *to = part;
  }
  const bool typed = name.operation == "popc" ? name.type == "u32" : name.type == "pred";
  name.is = name.kind == "red" ? !name.operation.empty() && typed
                               : !name.kind.empty() && name.operation.empty() && name.type.empty();
  return name;
}

}  // namespace tapestry::ptx
