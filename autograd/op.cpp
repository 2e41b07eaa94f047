#include "tapestry/autograd/op.h"

#include "tapestry/core/error.h"

namespace tapestry::autograd {
namespace {
constinit const Op* head = nullptr;
}

Op::Op(const char* op_name, Grad grad, DTypeSet dtype_set, CastPolicy cast)
    : name(op_name),
      differentiable(grad != Grad::none),
      twice(grad == Grad::twice),
      dtypes(dtype_set),
      cast_on_gpus(cast),
      next_(head) {
  head = this;
}

const Op* Op::first() { return head; }

void Op::wrong_dtype(DType dtype) const {
  std::string takes;
  for (int i = 0; i < kNumDTypes; ++i)
    if (contains(dtypes, static_cast<DType>(i))) {
      if (!takes.empty()) takes += ", ";
      takes += dtype_name(static_cast<DType>(i));
    }
  fail<TypeError>("[", name, "] does not take ", dtype, " tensors; convert to one of ", takes, " with to()");
}

}  // namespace tapestry::autograd
