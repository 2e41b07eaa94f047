#pragma once
// The check for stale views, which the tape and the engine use.
#include <cstddef>

#include "tapestry/autograd/node.h"
#include "tapestry/core/error.h"

namespace tapestry::autograd {

/// Throws AutogradError if `t` is a stale view: it was made before a recorded in-place change of its base, so
/// it shows the new elements but has the history of the old ones. `t` must have a record.
inline void check_current_view(const char* op, const char* what, std::size_t number, const Tensor& t) {
  const Record& r = *record_of(t);
  if (r.is_view && r.version < t.storage()->recorded_change()) [[unlikely]]
    fail<AutogradError>(
        "[", op, "] ", what, " ", number, " of shape ", t.sizes(),
        " is a view that was made before its base was changed in place; make the view again after "
        "the change");
}

}  // namespace tapestry::autograd
