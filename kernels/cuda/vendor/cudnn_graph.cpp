#include "tapestry/kernels/cuda/vendor/cudnn_graph.h"

#include <algorithm>
#include <cstring>

#include "tapestry/core/error.h"

namespace tapestry::kernels::cuda::cudnn {
namespace {

Descriptor heuristic(const Target& target, const Descriptor& graph, Heuristic mode) {
  Descriptor list(Kind::engineheur);
  list.set<Attribute::engineheur_operation_graph>(graph).set<Attribute::engineheur_mode>(mode);
  if (target.device) list.set<Attribute::engineheur_deviceprop>(*target.device);
  list.finalize();
  return list;
}

/// The engine configurations of a list, from the one that cuDNN expects to be the fastest.
std::vector<Descriptor> configurations(const Descriptor& list) {
  std::vector<Descriptor> found;
  std::vector<void*> raw;
  const std::int64_t count = list.fill<Attribute::engineheur_results>({});
  for (std::int64_t i = 0; i < count; ++i) raw.push_back(found.emplace_back(Kind::enginecfg).raw());
  if (count > 0) found.erase(found.begin() + list.fill<Attribute::engineheur_results>(raw), found.end());
  return found;
}

Descriptor engine_of(const Descriptor& config) {
  Descriptor engine(Kind::engine);
  void* raw[] = {engine.raw()};
  config.fill<Attribute::enginecfg_engine>(raw);
  return engine;
}

/// Returns the name of a numerical note of this engine that the rules exclude (CUDNN_NUMERICAL_NOTE_...).
/// Empty if they allow the engine.
std::string excluded(const Descriptor& engine, const EngineRules& rules) {
  for (const NumericalNote note : engine.get_all<Attribute::engine_numerical_note, NumericalNote>(32)) {
    if (note == NumericalNote::down_convert_inputs) return "DOWN_CONVERT_INPUTS";
    if (note == NumericalNote::reduced_precision_reduction) return "REDUCED_PRECISION_REDUCTION";
    if (note == NumericalNote::nondeterministic && rules.deterministic) return "NONDETERMINISTIC";
    if (note == NumericalNote::tensor_core && !rules.tensor_cores) return "TENSOR_CORE";
  }
  return {};
}

Descriptor execution_plan(const Target& target, const Descriptor& config) {
  Descriptor plan(Kind::execution_plan);
  if (target.device) plan.set<Attribute::execution_plan_deviceprop>(*target.device);
  else plan.set<Attribute::execution_plan_handle>(target.handle);
  plan.set<Attribute::execution_plan_engine_config>(config);
  plan.finalize();
  return plan;
}

constexpr int kNotSupported = 3000;  // CUDNN_STATUS_NOT_SUPPORTED

}  // namespace

Sizes row_major(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (std::size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

DataType data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return DataType::float_;
    case DType::f16:
      return DataType::half;
    case DType::bf16:
      return DataType::bfloat16;
    default:
      fail<TypeError>("[cuDNN] it has no kernel for ", dtype, "; convert with .to() to f32, f16 or bf16");
  }
}

Descriptor& Graph::add_tensor(const Sizes& sizes, const Sizes& strides, DataType type) {
  const auto id = static_cast<std::int64_t>(tensors_.size()) + 1;
  Descriptor& t = tensors_.emplace_back(Kind::tensor);
  t.set<Attribute::tensor_unique_id>(id)
      .set<Attribute::tensor_data_type>(type)
      .set<Attribute::tensor_byte_alignment>(alignment_)
      .set_all<Attribute::tensor_dimensions>(std::span<const std::int64_t>(sizes))
      .set_all<Attribute::tensor_strides>(std::span<const std::int64_t>(strides));
  return t;
}

std::int64_t Graph::tensor(const Sizes& sizes, const Sizes& strides, DataType type) {
  add_tensor(sizes, strides, type).finalize();
  return stored_.emplace_back(static_cast<std::int64_t>(tensors_.size()));
}

std::int64_t Graph::intermediate(const Sizes& sizes, const Sizes& strides, DataType type) {
  add_tensor(sizes, strides, type).set<Attribute::tensor_is_virtual>(true).finalize();
  return static_cast<std::int64_t>(tensors_.size());
}

std::int64_t Graph::add_constant(const void* value, std::size_t bytes, DataType type) {
  const Sizes one(4, 1);
  add_tensor(one, one, type).set<Attribute::tensor_is_by_value>(true).finalize();
  Constant& constant = constants_.emplace_back(Constant{static_cast<std::int64_t>(tensors_.size()), {}});
  std::memcpy(constant.bytes, value, bytes);
  return constant.id;
}
std::int64_t Graph::constant(float value) { return add_constant(&value, sizeof(value), DataType::float_); }
std::int64_t Graph::constant(std::int32_t value) {
  return add_constant(&value, sizeof(value), DataType::int32);
}

void Graph::convolve(Direction direction, const Convolution& o, std::int64_t x, std::int64_t weight,
                     std::int64_t y) {
  using enum Attribute;
  const auto pair = [](const std::int64_t(&v)[2]) { return std::span<const std::int64_t>(v); };
  const Descriptor& how = parameters_.emplace_back(Kind::convolution)
                              .set<convolution_comp_type>(DataType::float_)
                              .set<convolution_conv_mode>(ConvolutionMode::cross_correlation)
                              .set<convolution_spatial_dims>(std::int64_t{2})
                              .set_all<convolution_pre_paddings>(pair(o.padding))
                              .set_all<convolution_post_paddings>(pair(o.padding))
                              .set_all<convolution_filter_strides>(pair(o.stride))
                              .set_all<convolution_dilations>(pair(o.dilation))
                              .finalize();
  // result = alpha (convolution) + beta (old result)
  const auto one = 1.0F, zero = 0.0F;
  switch (direction) {
    case Direction::forward:
      operations_.emplace_back(Kind::operation_convolution_forward)
          .set<operation_convolution_forward_conv_desc>(how)
          .set<operation_convolution_forward_x>(at(x))
          .set<operation_convolution_forward_w>(at(weight))
          .set<operation_convolution_forward_y>(at(y))
          .set<operation_convolution_forward_alpha>(one)
          .set<operation_convolution_forward_beta>(zero)
          .finalize();
      break;
    case Direction::backward_data:
      operations_.emplace_back(Kind::operation_convolution_backward_data)
          .set<operation_convolution_bwd_data_conv_desc>(how)
          .set<operation_convolution_bwd_data_dx>(at(x))
          .set<operation_convolution_bwd_data_w>(at(weight))
          .set<operation_convolution_bwd_data_dy>(at(y))
          .set<operation_convolution_bwd_data_alpha>(one)
          .set<operation_convolution_bwd_data_beta>(zero)
          .finalize();
      break;
    case Direction::backward_filter:
      operations_.emplace_back(Kind::operation_convolution_backward_filter)
          .set<operation_convolution_bwd_filter_conv_desc>(how)
          .set<operation_convolution_bwd_filter_x>(at(x))
          .set<operation_convolution_bwd_filter_dw>(at(weight))
          .set<operation_convolution_bwd_filter_dy>(at(y))
          .set<operation_convolution_bwd_filter_alpha>(one)
          .set<operation_convolution_bwd_filter_beta>(zero)
          .finalize();
      break;
  }
}

void Graph::pointwise(PointwiseMode mode, std::int64_t x, std::optional<std::int64_t> b, std::int64_t y,
                      DataType type, std::optional<std::int64_t> condition) {
  using enum Attribute;
  Descriptor& how = parameters_.emplace_back(Kind::pointwise);
  how.set<pointwise_mode>(mode).set<pointwise_math_prec>(type);
  if (mode == PointwiseMode::relu_fwd) how.set<pointwise_nan_propagation>(NanPropagation::propagate);
  how.finalize();
  Descriptor& operation = operations_.emplace_back(Kind::operation_pointwise);
  operation.set<operation_pointwise_pw_descriptor>(how).set<operation_pointwise_xdesc>(at(x));
  if (b) operation.set<operation_pointwise_bdesc>(at(*b));
  if (condition) operation.set<operation_pointwise_tdesc>(at(*condition));
  operation.set<operation_pointwise_ydesc>(at(y)).finalize();
}

void Graph::gen_index(std::int64_t x, std::int64_t axis, std::int64_t y) {
  using enum Attribute;
  const Descriptor& how = parameters_.emplace_back(Kind::pointwise)
                              .set<pointwise_mode>(PointwiseMode::gen_index)
                              .set<pointwise_math_prec>(DataType::int32)
                              .set<pointwise_axis>(axis)
                              .finalize();
  operations_.emplace_back(Kind::operation_pointwise)
      .set<operation_pointwise_pw_descriptor>(how)
      .set<operation_pointwise_xdesc>(at(x))
      .set<operation_pointwise_ydesc>(at(y))
      .finalize();
}

void Graph::matmul(std::int64_t a, std::int64_t b, std::int64_t c) {
  using enum Attribute;
  const Descriptor& how =
      parameters_.emplace_back(Kind::matmul).set<matmul_comp_type>(DataType::float_).finalize();
  operations_.emplace_back(Kind::operation_matmul)
      .set<operation_matmul_adesc>(at(a))
      .set<operation_matmul_bdesc>(at(b))
      .set<operation_matmul_cdesc>(at(c))
      .set<operation_matmul_desc>(how)
      .finalize();
}

void Graph::reduce(ReductionOperator op, std::int64_t x, std::int64_t y) {
  using enum Attribute;
  const Descriptor& how = parameters_.emplace_back(Kind::reduction)
                              .set<reduction_operator>(op)
                              .set<reduction_comp_type>(DataType::float_)
                              .finalize();
  operations_.emplace_back(Kind::operation_reduction)
      .set<operation_reduction_xdesc>(at(x))
      .set<operation_reduction_ydesc>(at(y))
      .set<operation_reduction_desc>(how)
      .finalize();
}

void Graph::reshape(std::int64_t x, std::int64_t y) {
  operations_.emplace_back(Kind::operation_reshape)
      .set<Attribute::operation_reshape_xdesc>(at(x))
      .set<Attribute::operation_reshape_ydesc>(at(y))
      .finalize();
}

Descriptor Graph::finalize(const Target& target) const {
  std::vector<void*> operations;
  for (const Descriptor& operation : operations_) operations.push_back(operation.raw());
  Descriptor graph(Kind::operationgraph);
  if (!target.device) graph.set<Attribute::operationgraph_handle>(target.handle);
  graph.set_descriptors<Attribute::operationgraph_ops>(operations).finalize();
  return graph;
}

Plan::Plan(const Target& target, Graph graph, const EngineRules& rules)
    : graph_(std::move(graph)), operations_(graph_.finalize(target)) {
  std::string why = "its heuristics know no engine";
  for (const Heuristic mode : {Heuristic::a, Heuristic::b, Heuristic::fallback}) {
    std::vector<Descriptor> configs;
    try {
      configs = configurations(heuristic(target, operations_, mode));
    } catch (const CudnnError& e) {  // the next mode may know an engine
      if (!e.refused()) throw;
      why = e.what();
    }
    for (Descriptor& config : configs) {
      const Descriptor engine = engine_of(config);
      if (const std::string note = excluded(engine, rules); !note.empty()) {
        why = "its engines have the note " + note;
        continue;
      }
      try {
        Descriptor plan = execution_plan(target, config);
        const auto bytes = plan.get_one<Attribute::execution_plan_workspace_size, std::int64_t>();
        if (bytes > rules.most_workspace) {
          why = concat({"its engines need ", bytes, " bytes of workspace"});
          continue;
        }
        engine_ = engine.get_one<Attribute::engine_global_index, std::int64_t>();
        workspace_ = bytes;
        config_.emplace(std::move(config));
        plan_.emplace(std::move(plan));
        return;
      } catch (const CudnnError& e) {  // the next engine may do it
        if (!e.refused()) throw;
        why = e.what();
      }
    }
  }
  throw CudnnError("[cuDNN] it has no engine for this operation: " + why, kNotSupported);
}

std::string Plan::str() const { return concat({"engine ", engine_}); }

void Plan::run(Handle handle, std::span<void* const> addresses, void* workspace) const {
  std::vector<std::int64_t> ids = graph_.stored();
  std::vector<void*> pointers(addresses.begin(), addresses.end());
  for (const Graph::Constant& constant : graph_.constants()) {
    ids.push_back(constant.id);
    pointers.push_back(const_cast<unsigned char*>(constant.bytes));  // cuDNN only reads it, but takes void*
  }
  Descriptor pack(Kind::variant_pack);
  pack.set_all<Attribute::variant_pack_unique_ids>(std::span<const std::int64_t>(ids))
      .set_all<Attribute::variant_pack_data_pointers>(std::span<void* const>(pointers))
      .set<Attribute::variant_pack_workspace>(workspace)
      .finalize();
  const Functions& f = functions();
  check_status(f, f.cudnnBackendExecute(handle.value, plan_->raw(), pack.raw()), "cudnnBackendExecute",
               str());
}

}  // namespace tapestry::kernels::cuda::cudnn
