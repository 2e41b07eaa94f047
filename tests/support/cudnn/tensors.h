#pragma once
// What the stand-in cuDNN computes with: copies of descriptors, and the values of tensors.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/vendor/cudnn_api.h"

namespace standin_cudnn {

using namespace tapestry::kernels::cuda::cudnn;

struct TensorInfo {
  std::int64_t id = 0;
  DataType type{};
  std::vector<std::int64_t> sizes, strides;
  std::int64_t alignment = 0;
  bool is_virtual = false, by_value = false;

  std::int64_t numel() const;
};

/// An operation of a graph, with the unique ids of its tensors by role: "x", "w", "y", "b", "t", "a", "c".
struct Operation {
  Kind kind{};
  std::map<std::string, std::int64_t> tensors;
  std::vector<std::int64_t> padding, stride, dilation;  // of convolutions
  PointwiseMode pointwise{};
  ReductionOperator reduction{};
  DataType compute{};
  std::int64_t axis = -1;
  bool keeps_nan = false;
};

struct GraphInfo {
  std::map<std::int64_t, TensorInfo> tensors;
  std::vector<Operation> operations;

  /// One line for each tensor and operation, for comparisons with golden descriptions.
  std::string str() const;
};

/// An attribute that descriptors of one kind have.
struct Rule {
  Attribute attribute;
  std::int64_t least, most;  // how many values
  bool required;
  Kind of{};  // the kind of descriptors in the attribute
};
/// The attributes that can be set on a kind of descriptor.
std::vector<Rule> rules_of(Kind kind);

/// Computes the operations in order. `addresses` are those of the tensors that are neither virtual nor by
/// value, and of those by value.
void compute(const GraphInfo& graph, const std::map<std::int64_t, void*>& addresses);

}  // namespace standin_cudnn
