#pragma once
// Views that an in-place change made stale. Not in tapestry.h: the tape and the engine ask it.
#include <cstddef>

#include "tapestry/autograd/node.h"
#include "tapestry/core/error.h"

namespace tapestry::autograd {

/// Throws AutogradError if `t`, which the tape knows, is a view made before a recorded in-place change of
/// what it views: it shows the new elements, and its history is that of the old ones.
inline void check_current_view(const char* op, const char* what, std::size_t number, const Tensor& t) {
  const Record& r = *record_of(t);
  if (r.is_view && r.version < t.storage()->recorded_change()) [[unlikely]]
    fail<AutogradError>("[", op, "] ", what, " ", number, " of shape ", t.sizes(),
                        " is a view that was made before the tensor it views was changed in place; make the "
                        "view again after the change");
}

}  // namespace tapestry::autograd
