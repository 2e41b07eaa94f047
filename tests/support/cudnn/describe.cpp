// What the stand-in cuDNN knows about descriptors, and the text that describes a graph.
#include <sstream>

#include "tests/support/cudnn/tensors.h"

namespace standin_cudnn {
namespace {

std::string text(const std::vector<std::int64_t>& numbers) {
  std::string list;
  for (const std::int64_t n : numbers) list += (list.empty() ? "" : ",") + std::to_string(n);
  return list;
}

}  // namespace

std::vector<Rule> rules_of(Kind kind) {
  using enum Attribute;
  switch (kind) {
    case Kind::tensor:
      return {{tensor_unique_id, 1, 1, true},      {tensor_data_type, 1, 1, true},
              {tensor_byte_alignment, 1, 1, true}, {tensor_dimensions, 1, 8, true},
              {tensor_strides, 1, 8, true},        {tensor_is_virtual, 1, 1, false},
              {tensor_is_by_value, 1, 1, false}};
    case Kind::convolution:
      return {{convolution_comp_type, 1, 1, true},      {convolution_conv_mode, 1, 1, true},
              {convolution_spatial_dims, 1, 1, true},   {convolution_dilations, 1, 8, true},
              {convolution_filter_strides, 1, 8, true}, {convolution_pre_paddings, 1, 8, true},
              {convolution_post_paddings, 1, 8, true}};
    case Kind::pointwise:
      return {{pointwise_mode, 1, 1, true},
              {pointwise_math_prec, 1, 1, true},
              {pointwise_nan_propagation, 1, 1, false},
              {pointwise_axis, 1, 1, false}};
    case Kind::matmul:
      return {{matmul_comp_type, 1, 1, true}};
    case Kind::reduction:
      return {{reduction_operator, 1, 1, true}, {reduction_comp_type, 1, 1, true}};
    case Kind::operation_convolution_forward:
      return {{operation_convolution_forward_alpha, 1, 1, true},
              {operation_convolution_forward_beta, 1, 1, true},
              {operation_convolution_forward_conv_desc, 1, 1, true, Kind::convolution},
              {operation_convolution_forward_w, 1, 1, true, Kind::tensor},
              {operation_convolution_forward_x, 1, 1, true, Kind::tensor},
              {operation_convolution_forward_y, 1, 1, true, Kind::tensor}};
    case Kind::operation_convolution_backward_data:
      return {{operation_convolution_bwd_data_alpha, 1, 1, true},
              {operation_convolution_bwd_data_beta, 1, 1, true},
              {operation_convolution_bwd_data_conv_desc, 1, 1, true, Kind::convolution},
              {operation_convolution_bwd_data_w, 1, 1, true, Kind::tensor},
              {operation_convolution_bwd_data_dx, 1, 1, true, Kind::tensor},
              {operation_convolution_bwd_data_dy, 1, 1, true, Kind::tensor}};
    case Kind::operation_convolution_backward_filter:
      return {{operation_convolution_bwd_filter_alpha, 1, 1, true},
              {operation_convolution_bwd_filter_beta, 1, 1, true},
              {operation_convolution_bwd_filter_conv_desc, 1, 1, true, Kind::convolution},
              {operation_convolution_bwd_filter_dw, 1, 1, true, Kind::tensor},
              {operation_convolution_bwd_filter_x, 1, 1, true, Kind::tensor},
              {operation_convolution_bwd_filter_dy, 1, 1, true, Kind::tensor}};
    case Kind::operation_pointwise:
      return {{operation_pointwise_pw_descriptor, 1, 1, true, Kind::pointwise},
              {operation_pointwise_xdesc, 1, 1, true, Kind::tensor},
              {operation_pointwise_bdesc, 1, 1, false, Kind::tensor},
              {operation_pointwise_ydesc, 1, 1, true, Kind::tensor},
              {operation_pointwise_tdesc, 1, 1, false, Kind::tensor}};
    case Kind::operation_matmul:
      return {{operation_matmul_adesc, 1, 1, true, Kind::tensor},
              {operation_matmul_bdesc, 1, 1, true, Kind::tensor},
              {operation_matmul_cdesc, 1, 1, true, Kind::tensor},
              {operation_matmul_desc, 1, 1, true, Kind::matmul}};
    case Kind::operation_reduction:
      return {{operation_reduction_xdesc, 1, 1, true, Kind::tensor},
              {operation_reduction_ydesc, 1, 1, true, Kind::tensor},
              {operation_reduction_desc, 1, 1, true, Kind::reduction}};
    case Kind::operation_reshape:
      return {{operation_reshape_xdesc, 1, 1, true, Kind::tensor},
              {operation_reshape_ydesc, 1, 1, true, Kind::tensor}};
    case Kind::operationgraph:
      return {{operationgraph_handle, 1, 1, true}, {operationgraph_ops, 1, 50, true}};
    case Kind::engineheur:
      return {{engineheur_operation_graph, 1, 1, true, Kind::operationgraph}, {engineheur_mode, 1, 1, true}};
    case Kind::execution_plan:
      return {{execution_plan_handle, 1, 1, true},
              {execution_plan_engine_config, 1, 1, true, Kind::enginecfg}};
    case Kind::variant_pack:
      return {{variant_pack_unique_ids, 1, 50, true},
              {variant_pack_data_pointers, 1, 50, true},
              {variant_pack_workspace, 1, 1, true}};
    case Kind::engine:
    case Kind::enginecfg:
    case Kind::deviceprop:
      break;
  }
  return {};
}

std::string GraphInfo::str() const {
  const auto type_name = [](DataType type) {
    switch (type) {
#define TAPESTRY_NAME(name, number) \
  case DataType::name:              \
    return #name;
      TAPESTRY_CUDNN_DATA_TYPES(TAPESTRY_NAME)
#undef TAPESTRY_NAME
    }
    return "?";
  };
  const auto mode_name = [](PointwiseMode mode) {
    switch (mode) {
#define TAPESTRY_NAME(name, number) \
  case PointwiseMode::name:         \
    return #name;
      TAPESTRY_CUDNN_POINTWISE_MODES(TAPESTRY_NAME)
#undef TAPESTRY_NAME
    }
    return "?";
  };
  std::ostringstream out;
  for (const auto& [id, t] : tensors)
    out << "tensor " << id << " " << type_name(t.type) << " (" << text(t.sizes) << ") strides ("
        << text(t.strides) << ")" << (t.is_virtual ? " virtual" : "") << (t.by_value ? " by value" : "")
        << " align " << t.alignment << "\n";
  for (const Operation& o : operations) {
    switch (o.kind) {
      case Kind::operation_convolution_forward:
        out << "convolution forward";
        break;
      case Kind::operation_convolution_backward_data:
        out << "convolution backward data";
        break;
      case Kind::operation_convolution_backward_filter:
        out << "convolution backward filter";
        break;
      case Kind::operation_pointwise:
        out << mode_name(o.pointwise);
        if (o.axis >= 0) out << " axis " << o.axis;
        break;
      case Kind::operation_matmul:
        out << "matmul";
        break;
      case Kind::operation_reduction:
        out << "reduce " << (o.reduction == ReductionOperator::add ? "add" : "max");
        break;
      case Kind::operation_reshape:
        out << "reshape";
        break;
      default:
        out << "?";
    }
    for (const auto& [role, id] : o.tensors) out << " " << role << "=" << id;
    if (!o.stride.empty())
      out << " padding " << text(o.padding) << " stride " << text(o.stride) << " dilation "
          << text(o.dilation);
    if (o.keeps_nan) out << " keeps NaN";
    out << "\n";
  }
  return out.str();
}

}  // namespace standin_cudnn
