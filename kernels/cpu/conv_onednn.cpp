// Convolution by oneDNN. Channels-last inputs and outputs are used in place. For row-major ones oneDNN
// chooses the layout, because its fast kernels do not support row-major. It also chooses the layout of the
// weight. An array is copied to or from a buffer only if oneDNN chooses another layout than the array's own.
// Creating a primitive takes milliseconds, so each thread caches its primitives.
#include "tapestry/kernels/cpu/conv.h"

#ifdef TAPESTRY_HAS_ONEDNN
#include <algorithm>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tapestry/kernels/cpu/bf16_dot.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/conv_few.h"
#include "tapestry/kernels/cpu/onednn.h"

namespace tapestry::kernels::cpu {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;
using Dims = memory::dims;

enum class Pass { forward, backward_input, backward_weight };

struct Key {
  Conv3dShape shape;
  bool volume;  // if false, the convolution is the 2-d one of shape.plane
  Pass pass;
  bool bias;
  bool bf16;
  int threads;  // a primitive divides its work among threads when it is created
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    const Conv3dShape& v = key.shape;
    const Conv2dShape& s = v.plane;
    std::size_t h = 14695981039346656037u;
    for (const std::int64_t number : {v.d,
                                      v.t,
                                      v.stride_d,
                                      v.padding_d,
                                      v.dilation_d,
                                      s.n,
                                      s.c,
                                      s.h,
                                      s.w,
                                      s.k,
                                      s.r,
                                      s.s,
                                      s.stride_h,
                                      s.stride_w,
                                      s.padding_h,
                                      s.padding_w,
                                      s.dilation_h,
                                      s.dilation_w,
                                      s.groups,
                                      std::int64_t{s.channels_last},
                                      std::int64_t{key.volume},
                                      static_cast<std::int64_t>(key.pass),
                                      std::int64_t{key.bias},
                                      std::int64_t{key.bf16},
                                      std::int64_t{key.threads}})
      h = (h ^ static_cast<std::size_t>(number)) * 1099511628211u;
    return h;
  }
};

// An argument of a oneDNN primitive: its layout in our tensor, the layout that the primitive prefers, and the
// reorder between the two.
struct Operand {
  int arg;
  bool output;
  memory::desc ours, theirs;
  dnnl::reorder reorder;  // empty if the layouts are the same

  Operand(int a, bool out, const memory::desc& held, const memory::desc& wanted)
      : arg(a), output(out), ours(held), theirs(wanted) {
    if (ours == theirs) return;
    const memory::desc &from = output ? theirs : ours, &to = output ? ours : theirs;
    reorder = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), from, engine(), to));
  }
};

struct Plan {
  dnnl::primitive primitive;
  std::vector<Operand> operands;
  std::string kernel = {};
  bool by_dot = false;

  // `data` has the addresses of the operands, in their order.
  void run(Device device, std::initializer_list<const void*> data) const {
    std::unordered_map<int, memory> args;
    std::vector<Scratch<char>> scratch;
    scratch.reserve(operands.size());
    // dnnl::memory takes only pointers to non-const data. oneDNN does not write to the inputs.
    const auto our_memory = [&](std::size_t i) {
      return memory(operands[i].ours, engine(), const_cast<void*>(data.begin()[i]));
    };
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Operand& o = operands[i];
      if (!o.reorder) {
        args.emplace(o.arg, our_memory(i));
        continue;
      }
      scratch.emplace_back(device, static_cast<std::int64_t>(o.theirs.get_size()));
      const memory theirs(o.theirs, engine(), scratch.back().data());
      args.emplace(o.arg, theirs);
      if (!o.output) o.reorder.execute(stream(), {{DNNL_ARG_FROM, our_memory(i)}, {DNNL_ARG_TO, theirs}});
    }
    primitive.execute(stream(), args);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Operand& o = operands[i];
      if (o.reorder && o.output)
        o.reorder.execute(stream(), {{DNNL_ARG_FROM, args.at(o.arg)}, {DNNL_ARG_TO, our_memory(i)}});
    }
    stream().wait();
  }
};

std::string& planted_fault() {
  thread_local const auto part = std::make_unique<std::string>();  // a pointer, because static TLS is scarce
  return *part;
}

bool must_be_avoided(const std::string& kernel, const Conv2dShape& s) {
  const std::string& part = planted_fault();
  const bool planted =
      !part.empty() && kernel.find(part) != kernel.npos && has_stride_fault("brgconv:amx", s, {2, 6, 3});
  return planted || has_stride_fault(kernel, s, onednn_version());
}

Plan make_plan(const Key& key) {
  const Conv3dShape& v = key.shape;
  const Conv2dShape& s = v.plane;
  const auto type = key.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  // The sizes (first..., depth, height, width), without the depth for images.
  const auto dims = [&](Dims first, std::int64_t d, std::int64_t h, std::int64_t w) {
    if (key.volume) first.push_back(d);
    first.insert(first.end(), {h, w});
    return first;
  };
  const Dims x_dims = dims({s.n, s.c}, v.d, s.h, s.w), y_dims = dims({s.n, s.k}, v.o, s.p, s.q);
  const Dims channels = s.groups == 1 ? Dims{s.k, s.c} : Dims{s.groups, s.k / s.groups, s.c / s.groups};
  const Dims w_dims = dims(channels, v.t, s.r, s.s);
  const Tag rows = key.volume ? Tag::ncdhw : Tag::nchw;
  const Tag one_group = key.volume ? Tag::oidhw : Tag::oihw, grouped = key.volume ? Tag::goidhw : Tag::goihw;
  const Tag layout = s.channels_last ? Tag::nhwc : rows, wanted = s.channels_last ? Tag::nhwc : Tag::any;
  const memory::desc our_x(x_dims, type, layout), our_y(y_dims, type, layout);
  const memory::desc our_w(w_dims, type, s.groups == 1 ? one_group : grouped), our_b({s.k}, type, Tag::x);
  const memory::desc x(x_dims, type, wanted), y(y_dims, type, wanted), w(w_dims, type, Tag::any);
  const Dims strides = dims({}, v.stride_d, s.stride_h, s.stride_w),
             dilates = dims({}, v.dilation_d - 1, s.dilation_h - 1, s.dilation_w - 1),
             padding = dims({}, v.padding_d, s.padding_h, s.padding_w);
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto forward_kind = dnnl::prop_kind::forward_training;

  const auto faulty = [&](const std::string& kernel) { return key.bf16 && must_be_avoided(kernel, s); };
  const auto right = [](const std::string&) { return false; };
  const auto overruns = [&](const std::string& kernel) { return has_copy_fault(kernel, s); };
  const auto forward_desc = [&] {
    using Forward = dnnl::convolution_forward;
    return key.bias && key.pass == Pass::forward
               ? describe<Forward>(faulty, std::tuple(forward_kind, algorithm, x, w, our_b, y, strides,
                                                      dilates, padding, padding))
               : describe<Forward>(faulty, std::tuple(forward_kind, algorithm, x, w, y, strides, dilates,
                                                      padding, padding));
  };
  Plan plan;
  switch (key.pass) {
    case Pass::forward: {
      const auto pd = forward_desc();
      plan.kernel = pd.impl_info_str();
      plan.primitive = dnnl::convolution_forward(pd);
      plan.operands = {{DNNL_ARG_SRC, false, our_x, pd.src_desc()},
                       {DNNL_ARG_WEIGHTS, false, our_w, pd.weights_desc()},
                       {DNNL_ARG_DST, true, our_y, pd.dst_desc()}};
      break;
    }
    case Pass::backward_input: {
      const auto pd = describe<dnnl::convolution_backward_data>(
          right, std::tuple(algorithm, x, w, y, strides, dilates, padding, padding), forward_desc());
      plan.kernel = pd.impl_info_str();
      plan.primitive = dnnl::convolution_backward_data(pd);
      plan.operands = {{DNNL_ARG_DIFF_DST, false, our_y, pd.diff_dst_desc()},
                       {DNNL_ARG_WEIGHTS, false, our_w, pd.weights_desc()},
                       {DNNL_ARG_DIFF_SRC, true, our_x, pd.diff_src_desc()}};
      break;
    }
    case Pass::backward_weight: {
      using Backward = dnnl::convolution_backward_weights;
      const auto pd =
          key.bias ? describe<Backward>(
                         overruns, std::tuple(algorithm, x, w, our_b, y, strides, dilates, padding, padding),
                         forward_desc())
                   : describe<Backward>(overruns,
                                        std::tuple(algorithm, x, w, y, strides, dilates, padding, padding),
                                        forward_desc());
      plan.kernel = pd.impl_info_str();
      plan.primitive = dnnl::convolution_backward_weights(pd);
      plan.operands = {{DNNL_ARG_DIFF_DST, false, our_y, pd.diff_dst_desc()},
                       {DNNL_ARG_SRC, false, our_x, pd.src_desc()},
                       {DNNL_ARG_DIFF_WEIGHTS, true, our_w, pd.diff_weights_desc()}};
      break;
    }
  }
  if (key.bias)
    plan.operands.emplace_back(key.pass == Pass::forward ? DNNL_ARG_BIAS : DNNL_ARG_DIFF_BIAS,
                               key.pass != Pass::forward, our_b, our_b);
  plan.by_dot = key.bf16 && multiplies_by_bf16_dot(plan.kernel);
  return plan;
}

using Plans = std::unordered_map<Key, std::unique_ptr<Plan>, KeyHash>;
Plans& own_plans() {
  thread_local const auto own = std::make_unique<Plans>();  // a pointer, because static TLS is scarce
  return *own;
}

// Returns the plan from this thread's cache, or creates it. Returns null if oneDNN does not support the
// convolution.
const Plan* plan_for(const Conv3dShape& shape, bool volume, Pass pass, bool bias, bool bf16) {
  // Limits the cache, because a program may use new shapes forever, such as another batch size in each step.
  constexpr std::size_t kMostPlans = 512;
  Plans& plans = own_plans();
  Key key{shape, volume, pass, bias, bf16, compute_threads()};
  key.shape.plane.relu = false;  // the primitive does not apply relu, so the key ignores it
  if (const auto found = plans.find(key); found != plans.end()) return found->second.get();
  if (plans.size() >= kMostPlans) plans.clear();
  std::unique_ptr<Plan> plan;
  try {
    plan = std::make_unique<Plan>(make_plan(key));
  } catch (const dnnl::error&) {
  }
  return plans.emplace(key, std::move(plan)).first->second.get();
}

/// The shapes that oneDNN's bf16 kernels compute right. Of 3000 random shapes beyond these, oneDNN 2.6.3 gave
/// NaN for an infinite input beside an odd channel, wrong gradients of the weight where all but one column of
/// the window lay in the padding, and once overran a block of memory. Of 1500 random shapes like these, none
/// was wrong.
bool bf16_is_right(const Conv2dShape& s, Pass pass) {
  if (s.c / s.groups % 16 != 0 || s.k / s.groups % 16 != 0) return false;
  if (pass != Pass::backward_weight) return true;
  return s.p > 1 && s.q > 1 && s.h > s.dilation_h * (s.r - 1) && s.w > s.dilation_w * (s.s - 1);
}

template <class T>
bool run(const LaunchContext& context, const Conv2dShape& s, Pass pass, bool bias,
         std::initializer_list<const void*> data) {
  constexpr bool kBf16 = std::is_same_v<T, BFloat16>;
  if (kBf16 && !(has_bf16_instructions() && bf16_is_right(s, pass))) return false;
  const Plan* plan = plan_for({.plane = s}, false, pass, bias, kBf16);
  if (plan && plan->by_dot && !bf16_dot_pays()) return false;
  if (plan) plan->run(context.device, data);
  return plan != nullptr;
}
bool run(const LaunchContext& context, const Conv3dShape& s, Pass pass, bool bias,
         std::initializer_list<const void*> data) {
  const Plan* plan = plan_for(s, true, pass, bias, false);
  if (plan) plan->run(context.device, data);
  return plan != nullptr;
}

}  // namespace

template <class T>
bool OneDnnConv<T>::forward(const LaunchContext& context, const Conv2dShape& s, const T* x, const T* weight,
                            const T* bias, T* y) {
  if constexpr (std::is_same_v<T, BFloat16>)
    if (FewChannels::forward(context, s, x, weight, bias, y)) return true;
  return run<T>(context, s, Pass::forward, bias != nullptr, {x, weight, y, bias});
}
template <class T>
bool OneDnnConv<T>::backward_input(const LaunchContext& context, const Conv2dShape& s, const T* dy,
                                   const T* weight, T* dx) {
  return run<T>(context, s, Pass::backward_input, false, {dy, weight, dx});
}
template <class T>
bool OneDnnConv<T>::backward_weight(const LaunchContext& context, const Conv2dShape& s, const T* dy,
                                    const T* x, T* dweight, T* dbias) {
  if constexpr (std::is_same_v<T, BFloat16>)
    if (FewChannels::backward_weight(context, s, dy, x, dweight, dbias)) return true;
  if (!run<T>(context, s, Pass::backward_weight, dbias != nullptr, {dy, x, dweight, dbias})) return false;
  // The bf16 instruction multiplies pairs. oneDNN fills up odd rows with zeros, and zero times infinity is
  // NaN.
  if constexpr (std::is_same_v<T, BFloat16>)
    return std::all_of(dweight, dweight + s.k * (s.c / s.groups) * s.r * s.s,
                       [](BFloat16 v) { return (v.bits & 0x7f80) != 0x7f80; });
  return true;
}

std::string bf16_conv_kernel(const Conv2dShape& s) {
  if (!has_bf16_instructions() || !bf16_is_right(s, Pass::forward)) return "";
  const Plan* const plan = plan_for({.plane = s}, false, Pass::forward, false, true);
  return plan ? plan->kernel : "";
}
void plant_stride_fault(std::string_view part) {
  planted_fault() = part;
  own_plans().clear();
}

bool OneDnnConv3d::forward(const LaunchContext& context, const Conv3dShape& s, const float* x,
                           const float* weight, const float* bias, float* y) {
  return run(context, s, Pass::forward, bias != nullptr, {x, weight, y, bias});
}
bool OneDnnConv3d::backward_input(const LaunchContext& context, const Conv3dShape& s, const float* dy,
                                  const float* weight, float* dx) {
  return run(context, s, Pass::backward_input, false, {dy, weight, dx});
}
bool OneDnnConv3d::backward_weight(const LaunchContext& context, const Conv3dShape& s, const float* dy,
                                   const float* x, float* dweight, float* dbias) {
  return run(context, s, Pass::backward_weight, dbias != nullptr, {dy, x, dweight, dbias});
}

}  // namespace tapestry::kernels::cpu

#else

namespace tapestry::kernels::cpu {
template <class T>
bool OneDnnConv<T>::forward(const LaunchContext&, const Conv2dShape&, const T*, const T*, const T*, T*) {
  return false;
}
template <class T>
bool OneDnnConv<T>::backward_input(const LaunchContext&, const Conv2dShape&, const T*, const T*, T*) {
  return false;
}
template <class T>
bool OneDnnConv<T>::backward_weight(const LaunchContext&, const Conv2dShape&, const T*, const T*, T*, T*) {
  return false;
}
std::string bf16_conv_kernel(const Conv2dShape&) { return ""; }
void plant_stride_fault(std::string_view) {}
bool OneDnnConv3d::forward(const LaunchContext&, const Conv3dShape&, const float*, const float*, const float*,
                           float*) {
  return false;
}
bool OneDnnConv3d::backward_input(const LaunchContext&, const Conv3dShape&, const float*, const float*,
                                  float*) {
  return false;
}
bool OneDnnConv3d::backward_weight(const LaunchContext&, const Conv3dShape&, const float*, const float*,
                                   float*, float*) {
  return false;
}
}  // namespace tapestry::kernels::cpu

#endif

namespace tapestry::kernels::cpu {
template struct OneDnnConv<float>;
template struct OneDnnConv<BFloat16>;
}  // namespace tapestry::kernels::cpu
