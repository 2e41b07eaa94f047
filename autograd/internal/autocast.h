#pragma once
// How an operation takes part in autocast. It begins with
//
//   Tensor matmul(const Tensor& a, const Tensor& b) {
//     if (const Autocast cast(kMatmul, a, b); cast) return matmul(cast(a), cast(b));
//
// The list in autograd/autocast.cpp says what `cast` does. The object turns autocast off until it is
// destroyed, so that the second call computes, and the operations that it calls do not cast again.
#include <span>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/op.h"

namespace tapestry::autograd {

class Autocast {
 public:
  /// `operands` are all tensors of the operation; undefined ones are ignored. The device of the first defined
  /// one decides.
  template <class... T>
  explicit Autocast(const Op& op, const T&... operands) : Autocast(op.name, operands...) {}
  /// For functions that are made of operations, such as losses in nn.
  template <class... T>
  explicit Autocast(const char* name, const T&... operands) {
    if (current_context().autocast.active()) [[unlikely]] {
      const Tensor* const list[] = {&operands...};
      enter(name, list);
    }
  }
  Autocast(const Op& op, const std::vector<Tensor>& operands) {
    if (current_context().autocast.active()) [[unlikely]] {
      std::vector<const Tensor*> list;
      for (const Tensor& t : operands) list.push_back(&t);
      enter(op.name, list);
    }
  }
  ~Autocast() {
    if (casts_) [[unlikely]]
      current_context().autocast = saved_;
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  explicit operator bool() const { return casts_; }
  /// The operand as the operation shall get it.
  Tensor operator()(const Tensor& operand) const;
  std::vector<Tensor> operator()(const std::vector<Tensor>& operands) const;
  /// The result in the dtype that the rule asks for: CastPolicy::through gives that of the first operand.
  Tensor result(const Tensor& y) const;

 private:
  void enter(const char* op, std::span<const Tensor* const> operands);

  AutocastState saved_;
  bool casts_ = false;
  DType to_ = DType::f32, result_ = DType::f32;
  DeviceType device_ = DeviceType::cpu;
  CastPolicy policy_ = CastPolicy::none;
};

}  // namespace tapestry::autograd
