#pragma once
// The messages of ProcessGroup::batch_isend_irecv().
#include <cstdint>

#include "tapestry/core/tensor.h"

namespace tapestry::distributed {

/// One message of a batch: `tensor` is sent to `peer`, or received from it, with `tag`.
struct P2POp {
  bool sends = false;
  Tensor tensor;
  int peer = -1;
  std::uint32_t tag = 0;

  static P2POp send(const Tensor& tensor, int peer, std::uint32_t tag = 0) {
    return {true, tensor, peer, tag};
  }
  static P2POp recv(const Tensor& tensor, int peer, std::uint32_t tag = 0) {
    return {false, tensor, peer, tag};
  }
};

}  // namespace tapestry::distributed
