#pragma once
// The part of cuDNN's backend API that this library calls. The backend API is the C interface of the graph
// API (NVIDIA's documentation, "cuDNN Backend API"; since cuDNN 9 it is declared in cudnn_graph.h). The
// numbers below are cuDNN's own, so that no cuDNN header is needed to build.
// tests/cudnn/real_library_test.cpp compares them with cudnn_graph.h where that file is found.
#include <cstdint>
#include <string>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/cuda/internal/libraries.h"

namespace tapestry::kernels::cuda::cudnn {

/// The kinds of descriptors, cudnnBackendDescriptorType_t. X(name, number)
#define TAPESTRY_CUDNN_KINDS(X)                \
  X(pointwise, 0)                              \
  X(convolution, 1)                            \
  X(engine, 2)                                 \
  X(enginecfg, 3)                              \
  X(engineheur, 4)                             \
  X(execution_plan, 5)                         \
  X(operation_convolution_forward, 10)         \
  X(operation_convolution_backward_filter, 11) \
  X(operation_convolution_backward_data, 12)   \
  X(operation_pointwise, 13)                   \
  X(operationgraph, 15)                        \
  X(variant_pack, 16)                          \
  X(tensor, 17)                                \
  X(matmul, 18)                                \
  X(operation_matmul, 19)                      \
  X(reduction, 21)                             \
  X(operation_reduction, 22)                   \
  X(operation_reshape, 31)                     \
  X(deviceprop, 38)

/// The types of attributes, cudnnBackendAttributeType_t. X(name, number)
#define TAPESTRY_CUDNN_TYPES(X)  \
  X(handle, 0)                   \
  X(data_type, 1)                \
  X(boolean, 2)                  \
  X(int64, 3)                    \
  X(float_, 4)                   \
  X(void_ptr, 6)                 \
  X(convolution_mode, 7)         \
  X(heur_mode, 8)                \
  X(nan_propogation, 10)         \
  X(numerical_note, 11)          \
  X(pointwise_mode, 14)          \
  X(backend_descriptor, 15)      \
  X(reduction_operator_type, 18) \
  X(char_, 24)

/// The attributes, cudnnBackendAttributeName_t. X(name, number, type)
#define TAPESTRY_CUDNN_ATTRIBUTES(X)                                     \
  X(pointwise_mode, 0, pointwise_mode)                                   \
  X(pointwise_math_prec, 1, data_type)                                   \
  X(pointwise_nan_propagation, 2, nan_propogation)                       \
  X(pointwise_axis, 9, int64)                                            \
  X(convolution_comp_type, 100, data_type)                               \
  X(convolution_conv_mode, 101, convolution_mode)                        \
  X(convolution_dilations, 102, int64)                                   \
  X(convolution_filter_strides, 103, int64)                              \
  X(convolution_post_paddings, 104, int64)                               \
  X(convolution_pre_paddings, 105, int64)                                \
  X(convolution_spatial_dims, 106, int64)                                \
  X(engineheur_mode, 200, heur_mode)                                     \
  X(engineheur_operation_graph, 201, backend_descriptor)                 \
  X(engineheur_results, 202, backend_descriptor)                         \
  X(engineheur_deviceprop, 204, backend_descriptor)                      \
  X(enginecfg_engine, 300, backend_descriptor)                           \
  X(execution_plan_handle, 400, handle)                                  \
  X(execution_plan_engine_config, 401, backend_descriptor)               \
  X(execution_plan_workspace_size, 402, int64)                           \
  X(execution_plan_deviceprop, 407, backend_descriptor)                  \
  X(operation_convolution_forward_alpha, 700, float_)                    \
  X(operation_convolution_forward_beta, 701, float_)                     \
  X(operation_convolution_forward_conv_desc, 702, backend_descriptor)    \
  X(operation_convolution_forward_w, 703, backend_descriptor)            \
  X(operation_convolution_forward_x, 704, backend_descriptor)            \
  X(operation_convolution_forward_y, 705, backend_descriptor)            \
  X(operation_convolution_bwd_data_alpha, 706, float_)                   \
  X(operation_convolution_bwd_data_beta, 707, float_)                    \
  X(operation_convolution_bwd_data_conv_desc, 708, backend_descriptor)   \
  X(operation_convolution_bwd_data_w, 709, backend_descriptor)           \
  X(operation_convolution_bwd_data_dx, 710, backend_descriptor)          \
  X(operation_convolution_bwd_data_dy, 711, backend_descriptor)          \
  X(operation_convolution_bwd_filter_alpha, 712, float_)                 \
  X(operation_convolution_bwd_filter_beta, 713, float_)                  \
  X(operation_convolution_bwd_filter_conv_desc, 714, backend_descriptor) \
  X(operation_convolution_bwd_filter_dw, 715, backend_descriptor)        \
  X(operation_convolution_bwd_filter_x, 716, backend_descriptor)         \
  X(operation_convolution_bwd_filter_dy, 717, backend_descriptor)        \
  X(operation_pointwise_pw_descriptor, 750, backend_descriptor)          \
  X(operation_pointwise_xdesc, 751, backend_descriptor)                  \
  X(operation_pointwise_bdesc, 752, backend_descriptor)                  \
  X(operation_pointwise_ydesc, 753, backend_descriptor)                  \
  X(operation_pointwise_tdesc, 758, backend_descriptor)                  \
  X(operationgraph_handle, 800, handle)                                  \
  X(operationgraph_ops, 801, backend_descriptor)                         \
  X(tensor_byte_alignment, 900, int64)                                   \
  X(tensor_data_type, 901, data_type)                                    \
  X(tensor_dimensions, 902, int64)                                       \
  X(tensor_strides, 903, int64)                                          \
  X(tensor_unique_id, 906, int64)                                        \
  X(tensor_is_virtual, 907, boolean)                                     \
  X(tensor_is_by_value, 908, boolean)                                    \
  X(variant_pack_unique_ids, 1000, int64)                                \
  X(variant_pack_data_pointers, 1001, void_ptr)                          \
  X(variant_pack_workspace, 1003, void_ptr)                              \
  X(engine_global_index, 1301, int64)                                    \
  X(engine_numerical_note, 1303, numerical_note)                         \
  X(matmul_comp_type, 1500, data_type)                                   \
  X(operation_matmul_adesc, 1520, backend_descriptor)                    \
  X(operation_matmul_bdesc, 1521, backend_descriptor)                    \
  X(operation_matmul_cdesc, 1522, backend_descriptor)                    \
  X(operation_matmul_desc, 1523, backend_descriptor)                     \
  X(reduction_operator, 1600, reduction_operator_type)                   \
  X(reduction_comp_type, 1601, data_type)                                \
  X(operation_reduction_xdesc, 1610, backend_descriptor)                 \
  X(operation_reduction_ydesc, 1611, backend_descriptor)                 \
  X(operation_reduction_desc, 1612, backend_descriptor)                  \
  X(operation_reshape_xdesc, 2200, backend_descriptor)                   \
  X(operation_reshape_ydesc, 2201, backend_descriptor)                   \
  X(deviceprop_json_representation, 2702, char_)

/// cudnnDataType_t. X(name, number)
#define TAPESTRY_CUDNN_DATA_TYPES(X) X(float_, 0) X(half, 2) X(int32, 4) X(bfloat16, 9) X(boolean, 11)
/// cudnnPointwiseMode_t
#define TAPESTRY_CUDNN_POINTWISE_MODES(X) \
  X(add, 0)                               \
  X(mul, 1)                               \
  X(div, 6)                               \
  X(sub, 9)                               \
  X(exp, 13)                              \
  X(log, 15)                              \
  X(identity, 21)                         \
  X(relu_fwd, 100)                        \
  X(cmp_eq, 300)                          \
  X(cmp_ge, 303)                          \
  X(gen_index, 501)                       \
  X(binary_select, 601)
/// cudnnReduceTensorOp_t
#define TAPESTRY_CUDNN_REDUCTIONS(X) X(add, 0) X(max, 3)
/// cudnnBackendNumericalNote_t
#define TAPESTRY_CUDNN_NUMERICAL_NOTES(X) \
  X(tensor_core, 0)                       \
  X(down_convert_inputs, 1)               \
  X(reduced_precision_reduction, 2)       \
  X(nondeterministic, 4)
/// cudnnBackendHeurMode_t
#define TAPESTRY_CUDNN_HEURISTICS(X) X(b, 1) X(fallback, 2) X(a, 3)

#define TAPESTRY_CUDNN_ENUMERATOR(name, number, ...) name = number,
enum class Kind : int { TAPESTRY_CUDNN_KINDS(TAPESTRY_CUDNN_ENUMERATOR) };
enum class Type : int { TAPESTRY_CUDNN_TYPES(TAPESTRY_CUDNN_ENUMERATOR) };
enum class Attribute : int { TAPESTRY_CUDNN_ATTRIBUTES(TAPESTRY_CUDNN_ENUMERATOR) };
enum class DataType : int { TAPESTRY_CUDNN_DATA_TYPES(TAPESTRY_CUDNN_ENUMERATOR) };
enum class PointwiseMode : int { TAPESTRY_CUDNN_POINTWISE_MODES(TAPESTRY_CUDNN_ENUMERATOR) };
enum class ReductionOperator : int { TAPESTRY_CUDNN_REDUCTIONS(TAPESTRY_CUDNN_ENUMERATOR) };
enum class NumericalNote : int { TAPESTRY_CUDNN_NUMERICAL_NOTES(TAPESTRY_CUDNN_ENUMERATOR) };
enum class Heuristic : int { TAPESTRY_CUDNN_HEURISTICS(TAPESTRY_CUDNN_ENUMERATOR) };
#undef TAPESTRY_CUDNN_ENUMERATOR
enum class ConvolutionMode : int { cross_correlation = 1 };
enum class NanPropagation : int { propagate = 1 };

/// The type that cuDNN expects for an attribute.
constexpr Type type_of(Attribute attribute) {
  switch (attribute) {
#define TAPESTRY_CUDNN_CASE(name, number, type) \
  case Attribute::name:                         \
    return Type::type;
    TAPESTRY_CUDNN_ATTRIBUTES(TAPESTRY_CUDNN_CASE)
#undef TAPESTRY_CUDNN_CASE
  }
  return Type::int64;
}

/// cuDNN's names without the prefixes CUDNN_BACKEND_ and CUDNN_ATTR_: "OPERATIONGRAPH_DESCRIPTOR",
/// "TENSOR_DIMENSIONS".
std::string name_of(Kind kind);
std::string name_of(Attribute attribute);

/// cudnnHandle_t. A type of its own, so that no other pointer passes for a handle.
struct Handle {
  void* value = nullptr;
};

/// The functions that this library calls, under cuDNN's own names. A status is cudnnStatus_t; 0 is success.
struct Functions {
  explicit Functions(const ::tapestry::cuda::OpenLibrary& library);

  std::size_t (*cudnnGetVersion)();
  const char* (*cudnnGetErrorString)(int status);
  void (*cudnnGetLastErrorString)(char* message, std::size_t max_size);
  int (*cudnnCreate)(void** handle);
  int (*cudnnDestroy)(void* handle);
  int (*cudnnSetStream)(void* handle, void* stream);
  int (*cudnnBackendCreateDescriptor)(int kind, void** descriptor);
  int (*cudnnBackendDestroyDescriptor)(void* descriptor);
  int (*cudnnBackendSetAttribute)(void* descriptor, int attribute, int type, std::int64_t count,
                                  const void* values);
  int (*cudnnBackendGetAttribute)(const void* descriptor, int attribute, int type, std::int64_t requested,
                                  std::int64_t* count, void* values);
  int (*cudnnBackendFinalize)(void* descriptor);
  int (*cudnnBackendExecute)(void* handle, void* plan, void* variant_pack);
};

/// The functions of this process's cuDNN. Throws DeviceError if there is none, saying where it was searched
/// for.
const Functions& functions();
/// Empty if there is a cuDNN that this process can use. Otherwise says why there is none.
const std::string& why_unavailable();
/// "9.26.0"
const std::string& version();
/// For tests: everything from now on uses this library; null restores ::tapestry::cuda::cudnn_library().
/// Destroys the handles and plans of the previous library (session.h), so no other thread may use cuDNN at
/// the time.
void use_library(const ::tapestry::cuda::OpenLibrary* library);
bool is_library_replaced();

/// A call to cuDNN failed. The message has the function, what it was called for, cuDNN's name of the status,
/// and what cuDNN said about the cause.
class CudnnError : public CudaError {
 public:
  CudnnError(const std::string& message, int status) : CudaError(message), status_(status) {}
  int status() const { return status_; }
  /// True if cuDNN refused what it was asked for (CUDNN_STATUS_BAD_PARAM_... or
  /// CUDNN_STATUS_NOT_SUPPORTED_...). Another kernel may be able to do it. Other failures concern the
  /// library, the driver or the GPU.
  bool refused() const { return status_ >= 2000 && status_ < 4000; }

 private:
  int status_;
};

/// Throws CudnnError unless `status` is 0. `what` says what the call was for, and may be empty.
void check_status(const Functions& functions, int status, const char* function, const std::string& what);

}  // namespace tapestry::kernels::cuda::cudnn
