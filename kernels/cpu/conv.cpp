#include "tapestry/kernels/cpu/conv.h"

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/isa.h"

namespace tapestry::kernels::cpu {
namespace {

std::int64_t input_size(const Conv2dShape& s) { return s.n * s.c * s.h * s.w; }
std::int64_t output_size(const Conv2dShape& s) { return s.n * s.k * s.p * s.q; }
std::int64_t weight_size(const Conv2dShape& s) { return s.k * (s.c / s.groups) * s.r * s.s; }

// True if the input has few channels. For these, oneDNN's gradient of the input was measured to be 2 to 8
// times slower than the im2col kernel.
bool few_channels(const Conv2dShape& s) { return s.groups == 1 && s.c < 4; }

// True if products of matrices are faster than oneDNN's kernels, which copy row-major images to another
// layout and back. Small images have too few columns for the products, and large weights leave the caches.
bool better_as_product(const Conv2dShape& s) {
  return is_product(s) && s.h * s.w >= 48 && s.c * s.k <= 65536 && s.n >= compute_threads();
}

template <class T>
void clear_negatives(T* y, std::int64_t n) {
  parallel_for(n, kGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = load(y[i]) < 0 ? T(0) : y[i];
  });
}

// True if the forward pass of a depthwise convolution of f16 or bf16 takes less time by oneDNN's f32 kernel,
// with copies of the images, than by DepthwiseLast: 0.65 to 0.97 of it. Large images with strides do not
// gain, nor do both gradients together in most runs (Zen 4, docs/benchmarks/ops.md).
bool better_in_f32([[maybe_unused]] const Conv2dShape& s) {
#ifdef TAPESTRY_HAS_ONEDNN
  return s.channels_last && s.groups == s.c && s.c % 16 == 0 && s.stride_h == 1 && s.stride_w == 1 &&
         s.r * s.s <= 9 && isa() >= Isa::avx512;
#else
  return false;
#endif
}

// Calls f.operator()<Way>() for the kernels of depthwise convolutions that take the shape. Returns false if
// there are none, or if f does. For f32 images, oneDNN's channels-last kernels are as fast or faster, except
// for the gradients of windows larger than 3 x 3: of 5 x 5 they were measured to take 3.7 times as long.
template <class T, class F>
bool by_depthwise(const Conv2dShape& s, bool weight_gradient, const F& f) {
  if constexpr (std::is_same_v<Compute<T>, float>) {
    if (Depthwise<T>::fits(s)) return f.template operator()<Depthwise<T>>();
    const bool slow_elsewhere = is_half<T> || (weight_gradient && s.r * s.s > 9);
    if (slow_elsewhere && DepthwiseLast<T>::fits(s)) return f.template operator()<DepthwiseLast<T>>();
  }
  return false;
}

template <class T>
void conv2d_kernel(const LaunchContext& context, const Conv2dArgs& a) {
  using C = Compute<T>;
  const Conv2dShape& s = a.shape;
  bool done = !(is_half<T> && better_in_f32(s)) && by_depthwise<T>(s, false, [&]<class Way> {
    const ComputeInput<T> w(context, a.weight, weight_size(s)), b(context, a.bias, s.k);
    return Way::forward(s, a.x.as<T>(), w.data(), b.data(), a.y.as<T>());
  });
  if constexpr (std::is_same_v<T, BFloat16>)
    done = done ||
           OneDnnConv<T>::forward(context, s, a.x.as<T>(), a.weight.as<T>(), a.bias.as<T>(), a.y.as<T>());
  if (done) {
    if (s.relu) clear_negatives(a.y.as<T>(), output_size(s));
    return;
  }
  const ComputeInput<T> input(context, a.x, input_size(s)), w(context, a.weight, weight_size(s)),
      b(context, a.bias, s.k);
  const ComputeOutput<T> out(context, a.y, output_size(s));
  if constexpr (std::is_same_v<C, float>)
    done = !better_as_product(s) &&
           OneDnnConv<float>::forward(context, s, input.data(), w.data(), b.data(), out.data());
  if (!done) Im2col<C>::forward(context, s, input.data(), w.data(), b.data(), out.data());
  if (s.relu) clear_negatives(out.data(), output_size(s));
  out.store();
}

template <class T>
void backward_input_kernel(const LaunchContext& context, const Conv2dBackwardInputArgs& a) {
  using C = Compute<T>;
  const Conv2dShape& s = a.shape;
  if (by_depthwise<T>(s, false, [&]<class Way> {
        const ComputeInput<T> w(context, a.weight, weight_size(s));
        return Way::backward_input(s, a.dy.as<T>(), w.data(), a.dx.as<T>());
      }))
    return;
  if constexpr (std::is_same_v<T, BFloat16>)
    if (!few_channels(s) &&
        OneDnnConv<T>::backward_input(context, s, a.dy.as<T>(), a.weight.as<T>(), a.dx.as<T>()))
      return;
  const ComputeInput<T> grad(context, a.dy, output_size(s)), w(context, a.weight, weight_size(s));
  const ComputeOutput<T> out(context, a.dx, input_size(s));
  if constexpr (std::is_same_v<C, float>)
    if (!few_channels(s) && !better_as_product(s) &&
        OneDnnConv<float>::backward_input(context, s, grad.data(), w.data(), out.data()))
      return out.store();
  Im2col<C>::backward_input(context, s, grad.data(), w.data(), out.data());
  out.store();
}

template <class T>
void backward_weight_kernel(const LaunchContext& context, const Conv2dBackwardWeightArgs& a) {
  using C = Compute<T>;
  const Conv2dShape& s = a.shape;
  const ComputeOutput<T> dw(context, a.dweight, weight_size(s)), db(context, a.dbias, s.k);
  bool done = a.dweight && by_depthwise<T>(s, true, [&]<class Way> {
                return Way::backward_weight(s, a.dy.as<T>(), a.x.as<T>(), dw.data(), db.data());
              });
  if (done) {
    dw.store();
    db.store();
    return;
  }
  if constexpr (std::is_same_v<T, BFloat16>)
    if (a.dweight && OneDnnConv<T>::backward_weight(context, s, a.dy.as<T>(), a.x.as<T>(), a.dweight.as<T>(),
                                                    a.dbias.as<T>()))
      return;
  const ComputeInput<T> grad(context, a.dy, output_size(s)), input(context, a.x, input_size(s));
  if constexpr (std::is_same_v<C, float>) {
    if (a.dweight && SmallImages::fits(s)) {
      SmallImages::backward_weight(context, s, grad.data(), input.data(), dw.data(), db.data());
      done = true;
    } else if (a.dweight && !better_as_product(s)) {
      done = OneDnnConv<float>::backward_weight(context, s, grad.data(), input.data(), dw.data(), db.data());
    }
  }
  if (!done) Im2col<C>::backward_weight(context, s, grad.data(), input.data(), dw.data(), db.data());
  dw.store();
  db.store();
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  conv2d.set(DeviceType::cpu, dtype_of<T>, &conv2d_kernel<T>);
  conv2d_backward_input.set(DeviceType::cpu, dtype_of<T>, &backward_input_kernel<T>);
  conv2d_backward_weight.set(DeviceType::cpu, dtype_of<T>, &backward_weight_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
