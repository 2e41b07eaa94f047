#pragma once
// The f32 copies of f16 and bf16 parameters, which optimizers update.
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/core/tensor.h"

namespace tapestry::optim {

/// The name of a master in state_dict(): state.N.master_param.
inline constexpr const char* kMaster = "master_param";

inline bool is_low(DType t) { return t == DType::f16 || t == DType::bf16; }
/// The dtype of the states of a parameter.
inline DType state_dtype(DType param) { return is_low(param) ? DType::f32 : param; }

/// Elements of the parameter that are not the nearest values of their masters were written by someone else,
/// such as load_state_dict(). They replace their masters.
inline void follow_parameter(const Tensor& master, const Tensor& param) {
  const Tensor now = param.detach();
  master.copy_(where(eq(now, master.to(now.dtype())), master, now.to(DType::f32)));
}

}  // namespace tapestry::optim
