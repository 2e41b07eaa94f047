#pragma once
// The tensors in a value: a batch, the arguments of a forward, what it returned. Known are a Tensor; vectors,
// arrays, optionals, pairs, tuples and maps of what is known; plain structs of up to eight members. Of
// anything else visit_tensors sees nothing, and every replica gets it as it is.
#include <type_traits>

#include "tapestry/core/structure.h"

namespace tapestry::distributed {

/// A tensor that is not part of the batch: each replica gets the whole of it, as a Tensor.
///   dp(images, Whole{mask})
struct Whole {
  Tensor tensor;
  operator const Tensor&() const { return tensor; }  // NOLINT: forward takes a Tensor
};

namespace structure {
using namespace tapestry::structure;
}

/// f(tensor, whole) for every tensor in `value`, in a fixed order; it may replace them. `whole`: it is not
/// part of the batch.
template <class T, class F>
void visit_tensors(T& value, const F& f) {
  structure::for_each<Tensor, Whole>(value, [&f]<class Part>(Part& part) {
    if constexpr (std::is_same_v<std::remove_const_t<Part>, Whole>) f(part.tensor, true);
    else f(part, false);
  });
}

}  // namespace tapestry::distributed
