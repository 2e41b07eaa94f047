// The stand-in cuDNN; standin.h describes it.
#include "tests/support/cudnn/standin.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

#include "tests/support/cudnn/tensors.h"

namespace {

using namespace standin_cudnn;

constexpr int kBadParam = 2000, kNotFinalized = 2004, kNotSupported = 3000;

struct Descriptor;
struct Value {
  Type type{};
  std::vector<std::int64_t> numbers;  // enums, booleans and integers
  double real = 0;
  std::vector<void*> pointers;  // also of descriptors and handles
};

struct Engine {
  int mode = 0;
  std::int64_t index = 0;
  unsigned notes = 0;
  std::int64_t workspace = 0;
  bool supported = true;
};

struct Descriptor {
  Kind kind{};
  std::map<Attribute, Value> values;
  bool finalized = false;
  // What a descriptor knows after it was finalized or filled:
  GraphInfo graph;
  TensorInfo tensor;
  Operation operation;
  std::map<std::int64_t, TensorInfo> tensors;
  Engine engine;

  bool has(Attribute a) const { return values.contains(a); }
  const Value& at(Attribute a) const { return values.at(a); }
  std::int64_t number(Attribute a, std::int64_t otherwise = 0) const {
    return has(a) ? at(a).numbers.at(0) : otherwise;
  }
};

struct Cudnn {
  std::recursive_mutex mutex;
  std::set<Descriptor*> live;
  std::map<void*, void*> streams;  // of the handles
  std::map<std::string, int> calls;
  std::multimap<std::string, std::pair<int, int>> faults;
  std::vector<Engine> engines;
  std::int64_t last_engine = -1;
  std::string violations, last_error, last_graph, copy;
  void (*launch)(void*, void (*)(void*), void*) = nullptr;
};
Cudnn& cudnn() {
  static auto& one = *new Cudnn;
  return one;
}

int violated(const std::string& text, int status = kBadParam) {
  cudnn().violations += text + "\n";
  cudnn().last_error = text;
  return status;
}

/// Counts the call. Returns the status that the test injects into it, or 0.
int counted(const char* call) {
  const int n = cudnn().calls[call]++;
  const auto [begin, end] = cudnn().faults.equal_range(call);
  for (auto it = begin; it != end; ++it)
    if (it->second.first == n) {
      cudnn().last_error = "the test asked " + std::string(call) + " to fail";
      return it->second.second;
    }
  return 0;
}

Descriptor* find(const void* raw) {
  const auto& live = cudnn().live;
  const auto found = live.find(static_cast<Descriptor*>(const_cast<void*>(raw)));
  return found == live.end() ? nullptr : *found;
}

/// The attributes of operations that are tensors, with the roles that Operation::tensors gives them.
constexpr std::pair<Attribute, const char*> kRoles[] = {{Attribute::operation_convolution_forward_x, "x"},
                                                        {Attribute::operation_convolution_forward_w, "w"},
                                                        {Attribute::operation_convolution_forward_y, "y"},
                                                        {Attribute::operation_convolution_bwd_data_dx, "x"},
                                                        {Attribute::operation_convolution_bwd_data_w, "w"},
                                                        {Attribute::operation_convolution_bwd_data_dy, "y"},
                                                        {Attribute::operation_convolution_bwd_filter_x, "x"},
                                                        {Attribute::operation_convolution_bwd_filter_dw, "w"},
                                                        {Attribute::operation_convolution_bwd_filter_dy, "y"},
                                                        {Attribute::operation_pointwise_xdesc, "x"},
                                                        {Attribute::operation_pointwise_bdesc, "b"},
                                                        {Attribute::operation_pointwise_ydesc, "y"},
                                                        {Attribute::operation_pointwise_tdesc, "t"},
                                                        {Attribute::operation_matmul_adesc, "a"},
                                                        {Attribute::operation_matmul_bdesc, "b"},
                                                        {Attribute::operation_matmul_cdesc, "c"},
                                                        {Attribute::operation_reduction_xdesc, "x"},
                                                        {Attribute::operation_reduction_ydesc, "y"},
                                                        {Attribute::operation_reshape_xdesc, "x"},
                                                        {Attribute::operation_reshape_ydesc, "y"}};

int finalize_tensor(Descriptor& d) {
  TensorInfo& t = d.tensor;
  t.id = d.number(Attribute::tensor_unique_id);
  t.type = static_cast<DataType>(d.number(Attribute::tensor_data_type));
  t.sizes = d.at(Attribute::tensor_dimensions).numbers;
  t.strides = d.at(Attribute::tensor_strides).numbers;
  t.alignment = d.number(Attribute::tensor_byte_alignment);
  t.is_virtual = d.number(Attribute::tensor_is_virtual) != 0;
  t.by_value = d.number(Attribute::tensor_is_by_value) != 0;
  if (t.sizes.size() != t.strides.size())
    return violated("a tensor's dimensions and strides have different counts");
  if (std::any_of(t.sizes.begin(), t.sizes.end(), [](std::int64_t n) { return n < 1; }))
    return violated("a tensor of size 0");
  if (t.alignment < 1 || (t.alignment & (t.alignment - 1)) != 0)
    return violated("an alignment that is no power of 2");
  return 0;
}

int check_convolution(const Descriptor& d) {
  const auto& t = d.operation.tensors;
  const auto &x = d.tensors.at(t.at("x")), &w = d.tensors.at(t.at("w")), &y = d.tensors.at(t.at("y"));
  if (x.sizes.size() != 4 || w.sizes.size() != 4 || y.sizes.size() != 4)
    return violated("a convolution needs 4 dims");
  if (x.sizes[1] % w.sizes[1] != 0 || w.sizes[0] % (x.sizes[1] / w.sizes[1]) != 0 ||
      x.sizes[0] != y.sizes[0] || y.sizes[1] != w.sizes[0])
    return violated("the channels of a convolution do not fit");
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& o = d.operation;
    const std::int64_t span = o.dilation[i] * (w.sizes[i + 2] - 1) + 1;
    if (y.sizes[i + 2] != (x.sizes[i + 2] + 2 * o.padding[i] - span) / o.stride[i] + 1) {
      cudnn().last_error = "the output's size is not that of the convolution";
      return kBadParam;  // no violation: transposed convolutions can have such shapes, and cuDNN refuses them
    }
  }
  return 0;
}

int finalize_operation(Descriptor& d) {
  Operation& o = d.operation;
  o.kind = d.kind;
  for (const auto& [attribute, role] : kRoles)
    if (d.has(attribute)) {
      const TensorInfo& t = find(d.at(attribute).pointers[0])->tensor;
      o.tensors[role] = t.id;
      d.tensors[t.id] = t;
    }
  const auto convolution = [&](Attribute how, Attribute alpha, Attribute beta) {
    const Descriptor& c = *find(d.at(how).pointers[0]);
    o.stride = c.at(Attribute::convolution_filter_strides).numbers;
    o.dilation = c.at(Attribute::convolution_dilations).numbers;
    o.padding = c.at(Attribute::convolution_pre_paddings).numbers;
    o.compute = static_cast<DataType>(c.number(Attribute::convolution_comp_type));
    if (o.padding != c.at(Attribute::convolution_post_paddings).numbers)
      return violated("the stand-in has the same padding on both sides");
    if (d.at(alpha).real != 1 || d.at(beta).real != 0) return violated("the stand-in has alpha 1 and beta 0");
    return check_convolution(d);
  };
  switch (d.kind) {
    case Kind::operation_convolution_forward:
      return convolution(Attribute::operation_convolution_forward_conv_desc,
                         Attribute::operation_convolution_forward_alpha,
                         Attribute::operation_convolution_forward_beta);
    case Kind::operation_convolution_backward_data:
      return convolution(Attribute::operation_convolution_bwd_data_conv_desc,
                         Attribute::operation_convolution_bwd_data_alpha,
                         Attribute::operation_convolution_bwd_data_beta);
    case Kind::operation_convolution_backward_filter:
      return convolution(Attribute::operation_convolution_bwd_filter_conv_desc,
                         Attribute::operation_convolution_bwd_filter_alpha,
                         Attribute::operation_convolution_bwd_filter_beta);
    case Kind::operation_pointwise: {
      const Descriptor& p = *find(d.at(Attribute::operation_pointwise_pw_descriptor).pointers[0]);
      o.pointwise = static_cast<PointwiseMode>(p.number(Attribute::pointwise_mode));
      o.compute = static_cast<DataType>(p.number(Attribute::pointwise_math_prec));
      o.axis = p.number(Attribute::pointwise_axis, -1);
      o.keeps_nan = p.number(Attribute::pointwise_nan_propagation) == 1;
      if (o.pointwise == PointwiseMode::gen_index && o.axis < 0) return violated("GEN_INDEX without an axis");
      if (o.pointwise == PointwiseMode::binary_select && !o.tensors.contains("t"))
        return violated("BINARY_SELECT without a predicate");
      return 0;
    }
    case Kind::operation_reduction:
      o.reduction = static_cast<ReductionOperator>(
          find(d.at(Attribute::operation_reduction_desc).pointers[0])->number(Attribute::reduction_operator));
      return 0;
    default:
      return 0;
  }
}

int finalize_graph(Descriptor& d) {
  std::set<std::int64_t> written;
  for (void* raw : d.at(Attribute::operationgraph_ops).pointers) {
    const Descriptor* const operation = find(raw);
    if (!operation || !operation->finalized)
      return violated("an operation of the graph is not finalized", kNotFinalized);
    for (const auto& [id, tensor] : operation->tensors) {
      const auto [at, is_new] = d.graph.tensors.emplace(id, tensor);
      if (!is_new && at->second.strides != tensor.strides) return violated("two tensors have one unique id");
    }
    // Operations are listed in the order in which they can run.
    for (const auto& [role, id] : operation->operation.tensors) {
      const TensorInfo& t = d.graph.tensors.at(id);
      const bool is_result = role == (d.kind == Kind::operation_matmul ? "c" : "y") ||
                             (operation->kind == Kind::operation_matmul && role == "c");
      if (!is_result && t.is_virtual && !written.contains(id))
        return violated("a virtual tensor is read before it is written");
    }
    written.insert(operation->operation.tensors.contains("c") ? operation->operation.tensors.at("c")
                                                              : operation->operation.tensors.at("y"));
    d.graph.operations.push_back(operation->operation);
  }
  cudnn().last_graph = d.graph.str();
  return 0;
}

int finalize(Descriptor& d) {
  if (d.finalized) return violated("a descriptor was finalized twice");
  for (const Rule& rule : rules_of(d.kind))
    if (rule.required && !d.has(rule.attribute))
      return violated("finalized without the attribute " + std::to_string(static_cast<int>(rule.attribute)));
  int status = 0;
  switch (d.kind) {
    case Kind::tensor:
      status = finalize_tensor(d);
      break;
    case Kind::convolution:
      for (const Attribute a : {Attribute::convolution_dilations, Attribute::convolution_filter_strides,
                                Attribute::convolution_pre_paddings, Attribute::convolution_post_paddings})
        if (static_cast<std::int64_t>(d.at(a).numbers.size()) !=
            d.number(Attribute::convolution_spatial_dims))
          return violated("a convolution's options have another count than its spatial dimensions");
      break;
    case Kind::operationgraph:
      status = finalize_graph(d);
      break;
    case Kind::engineheur:
      d.graph = find(d.at(Attribute::engineheur_operation_graph).pointers[0])->graph;
      break;
    case Kind::execution_plan: {
      const Descriptor& config = *find(d.at(Attribute::execution_plan_engine_config).pointers[0]);
      d.graph = config.graph;
      d.engine = config.engine;
      if (!d.engine.supported) {
        cudnn().last_error = "the engine does not support the graph";
        return kNotSupported;
      }
      break;
    }
    case Kind::variant_pack:
      if (d.at(Attribute::variant_pack_unique_ids).numbers.size() !=
          d.at(Attribute::variant_pack_data_pointers).pointers.size())
        return violated("a variant pack has other counts of ids and of pointers");
      break;
    case Kind::engine:
    case Kind::enginecfg:
      return violated("heuristics give engines and configurations; they are not finalized");
    default:
      status = finalize_operation(d);
      break;
  }
  d.finalized = status == 0;
  return status;
}

int set(Descriptor& d, Attribute attribute, Type type, std::int64_t count, const void* values) {
  const auto rules = rules_of(d.kind);
  const auto rule =
      std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return r.attribute == attribute; });
  const std::string name = "the attribute " + std::to_string(static_cast<int>(attribute));
  if (d.finalized) return violated(name + " was set after the descriptor was finalized");
  if (rule == rules.end())
    return violated(name + " does not belong to kind " + std::to_string(static_cast<int>(d.kind)));
  if (type != type_of(attribute)) return violated(name + " has another type");
  if (count < rule->least || count > rule->most || !values) return violated(name + " has a wrong count");
  Value value{.type = type, .numbers = {}, .real = 0, .pointers = {}};
  for (std::int64_t i = 0; i < count; ++i) switch (type) {
      case Type::int64:
        value.numbers.push_back(static_cast<const std::int64_t*>(values)[i]);
        break;
      case Type::boolean:
        value.numbers.push_back(static_cast<const bool*>(values)[i]);
        break;
      case Type::float_:
        value.real = static_cast<const float*>(values)[i];
        break;
      case Type::backend_descriptor: {
        void* const raw = static_cast<void* const*>(values)[i];
        const Descriptor* const other = find(raw);
        if (!other) return violated(name + " was given something that is no descriptor");
        if (rule->of != Kind{} && other->kind != rule->of)
          return violated(name + " was given another kind of descriptor");
        if (!other->finalized && other->kind != Kind::enginecfg)
          return violated(name + " was given a descriptor that is not finalized", kNotFinalized);
        value.pointers.push_back(raw);
        break;
      }
      case Type::handle: {
        void* const handle = static_cast<void* const*>(values)[i];
        if (!cudnn().streams.contains(handle))
          return violated(name + " was given something that is no handle");
        value.pointers.push_back(handle);
        break;
      }
      case Type::void_ptr:
        value.pointers.push_back(static_cast<void* const*>(values)[i]);
        break;
      default:  // enums
        value.numbers.push_back(static_cast<const int*>(values)[i]);
        break;
    }
  d.values[attribute] = std::move(value);
  return 0;
}

int get(const Descriptor& d, Attribute attribute, Type type, std::int64_t most, std::int64_t* count,
        void* values) {
  const std::string name = "the attribute " + std::to_string(static_cast<int>(attribute));
  if (type != type_of(attribute)) return violated(name + " was read with another type");
  if (!count) return violated(name + " was read without a place for the count");
  if (attribute == Attribute::engineheur_results && d.kind == Kind::engineheur && d.finalized) {
    std::vector<Engine> engines;
    for (const Engine& e : cudnn().engines)
      if (e.mode == d.number(Attribute::engineheur_mode)) engines.push_back(e);
    *count = static_cast<std::int64_t>(engines.size());
    for (std::int64_t i = 0; i < std::min(most, *count); ++i) {
      Descriptor* const config = find(static_cast<void* const*>(values)[i]);
      if (!config || config->kind != Kind::enginecfg)
        return violated(name + " needs descriptors to be filled");
      config->engine = engines[static_cast<std::size_t>(i)];
      config->graph = d.graph;
    }
    return 0;
  }
  *count = 1;
  if (attribute == Attribute::enginecfg_engine && d.kind == Kind::enginecfg) {
    Descriptor* const engine = most == 1 ? find(static_cast<void* const*>(values)[0]) : nullptr;
    if (!engine || engine->kind != Kind::engine) return violated(name + " needs an engine to be filled");
    engine->engine = d.engine;
    return 0;
  }
  if (attribute == Attribute::engine_global_index && d.kind == Kind::engine && most == 1) {
    *static_cast<std::int64_t*>(values) = d.engine.index;
    return 0;
  }
  if (attribute == Attribute::engine_numerical_note && d.kind == Kind::engine) {
    *count = 0;
    for (int note = 0; note < 10; ++note)
      if (d.engine.notes >> note & 1 && *count < most) static_cast<int*>(values)[(*count)++] = note;
    return 0;
  }
  if (attribute == Attribute::execution_plan_workspace_size && d.kind == Kind::execution_plan &&
      d.finalized && most == 1) {
    *static_cast<std::int64_t*>(values) = d.engine.workspace;
    return 0;
  }
  return violated(name + " cannot be read here");
}

struct Work {
  GraphInfo graph;
  std::map<std::int64_t, void*> addresses;
  std::map<std::int64_t, std::array<unsigned char, 8>> constants;
  void* workspace;
  std::int64_t bytes;
};

int execute(void* handle, const Descriptor& plan, const Descriptor& pack) {
  if (!plan.finalized || !pack.finalized)
    return violated("executed something that is not finalized", kNotFinalized);
  auto work = std::make_unique<Work>();
  work->graph = plan.graph;
  work->workspace = pack.at(Attribute::variant_pack_workspace).pointers[0];
  work->bytes = plan.engine.workspace;
  if (work->bytes > 0 && !work->workspace) return violated("executed without the workspace");
  const auto& ids = pack.at(Attribute::variant_pack_unique_ids).numbers;
  const auto& pointers = pack.at(Attribute::variant_pack_data_pointers).pointers;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto found = plan.graph.tensors.find(ids[i]);
    if (found == plan.graph.tensors.end() || found->second.is_virtual)
      return violated("a variant pack has an id too many");
    if (!pointers[i]) return violated("a variant pack has a null pointer");
    if (reinterpret_cast<std::uintptr_t>(pointers[i]) %
                static_cast<std::uintptr_t>(found->second.alignment) !=
            0 &&
        !found->second.by_value)
      return violated("a tensor has not the alignment that its descriptor says");
    work->addresses[ids[i]] = pointers[i];
    if (found->second.by_value) std::memcpy(work->constants[ids[i]].data(), pointers[i], 4);
  }
  for (const auto& [id, tensor] : plan.graph.tensors)
    if (!tensor.is_virtual && !work->addresses.contains(id))
      return violated("a variant pack lacks tensor " + std::to_string(id));
  cudnn().last_engine = plan.engine.index;
  cudnn().launch(
      cudnn().streams.at(handle),
      [](void* argument) {
        const std::unique_ptr<Work> own(static_cast<Work*>(argument));
        for (auto& [id, bytes] : own->constants) own->addresses[id] = bytes.data();
        if (own->bytes > 0) std::memset(own->workspace, 0xAB, static_cast<std::size_t>(own->bytes));
        compute(own->graph, own->addresses);
      },
      work.release());
  return 0;
}

void reset() {
  Cudnn& c = cudnn();
  c.calls.clear(), c.faults.clear();
  c.engines = {{3, 1, 1, 256, true}, {2, 0, 0, 0, true}};
  c.last_engine = -1;
  c.violations.clear(), c.last_error.clear(), c.last_graph.clear();
}

}  // namespace

#define ENTER(name)                          \
  const std::lock_guard lock(cudnn().mutex); \
  if (const int status = counted(#name); status != 0) return status

extern "C" {

std::size_t cudnnGetVersion() { return 92600; }
#ifndef STANDIN_CUDA_MAJOR
#define STANDIN_CUDA_MAJOR 13
#endif
std::size_t cudnnGetCudartVersion() { return STANDIN_CUDA_MAJOR * 1000; }
const char* cudnnGetErrorString(int status) {
  return status == 0               ? "CUDNN_STATUS_SUCCESS"
         : status == kBadParam     ? "CUDNN_STATUS_BAD_PARAM"
         : status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == 4000          ? "CUDNN_STATUS_INTERNAL_ERROR"
         : status == 5000          ? "CUDNN_STATUS_EXECUTION_FAILED"
                                   : "CUDNN_STATUS_OTHER";
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  const std::lock_guard lock(cudnn().mutex);
  std::snprintf(message, size, "%s", cudnn().last_error.c_str());
}
int cudnnCreate(void** handle) {
  ENTER(cudnnCreate);
  *handle = new char;
  cudnn().streams[*handle] = nullptr;
  return 0;
}
int cudnnDestroy(void* handle) {
  ENTER(cudnnDestroy);
  if (cudnn().streams.erase(handle) == 0) return violated("destroyed something that is no handle");
  delete static_cast<char*>(handle);
  return 0;
}
int cudnnSetStream(void* handle, void* stream) {
  ENTER(cudnnSetStream);
  if (!cudnn().streams.contains(handle)) return violated("cudnnSetStream of something that is no handle");
  cudnn().streams[handle] = stream;
  return 0;
}
int cudnnBackendCreateDescriptor(int kind, void** descriptor) {
  ENTER(cudnnBackendCreateDescriptor);
  auto* const d = new Descriptor;
  d->kind = static_cast<Kind>(kind);
  cudnn().live.insert(d);
  *descriptor = d;
  return 0;
}
int cudnnBackendDestroyDescriptor(void* descriptor) {
  ENTER(cudnnBackendDestroyDescriptor);
  Descriptor* const d = find(descriptor);
  if (!d) return violated("destroyed something that is no descriptor");
  cudnn().live.erase(d);
  delete d;
  return 0;
}
int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, std::int64_t count,
                             const void* values) {
  ENTER(cudnnBackendSetAttribute);
  Descriptor* const d = find(descriptor);
  return d ? set(*d, static_cast<Attribute>(attribute), static_cast<Type>(type), count, values)
           : violated("cudnnBackendSetAttribute of something that is no descriptor");
}
int cudnnBackendGetAttribute(const void* descriptor, int attribute, int type, std::int64_t requested,
                             std::int64_t* count, void* values) {
  ENTER(cudnnBackendGetAttribute);
  const Descriptor* const d = find(descriptor);
  return d ? get(*d, static_cast<Attribute>(attribute), static_cast<Type>(type), requested, count, values)
           : violated("cudnnBackendGetAttribute of something that is no descriptor");
}
int cudnnBackendFinalize(void* descriptor) {
  ENTER(cudnnBackendFinalize);
  Descriptor* const d = find(descriptor);
  return d ? finalize(*d) : violated("cudnnBackendFinalize of something that is no descriptor");
}
int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  ENTER(cudnnBackendExecute);
  const Descriptor *const p = find(plan), *const v = find(pack);
  if (!p || !v || !cudnn().streams.contains(handle))
    return violated("cudnnBackendExecute of something that is gone");
  return execute(handle, *p, *v);
}

const StandInCudnn* tapestry_standin_cudnn() {
  static const StandInCudnn controls{
      .set_device = [](void (*launch)(void*, void (*)(void*), void*)) { cudnn().launch = launch; },
      .fail = [](const char* call, int nth,
                 int status) { cudnn().faults.emplace(call, std::pair(nth, status)); },
      .add_engine =
          [](int mode, std::int64_t engine, unsigned notes, std::int64_t workspace, int supported) {
            cudnn().engines.push_back({mode, engine, notes, workspace, supported != 0});
          },
      .clear_engines = [] { cudnn().engines.clear(); },
      .last_engine = [] { return cudnn().last_engine; },
      .calls = [](const char* name) { return cudnn().calls[name]; },
      .live_descriptors = [] { return static_cast<int>(cudnn().live.size()); },
      .live_handles = [] { return static_cast<int>(cudnn().streams.size()); },
      .violations = [] { return (cudnn().copy = cudnn().violations).c_str(); },
      .last_graph = [] { return (cudnn().copy = cudnn().last_graph).c_str(); },
      .reset = [] { reset(); },
  };
  return &controls;
}
}
