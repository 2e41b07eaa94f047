#include "tapestry/kernels/cpu/conv.h"

#include "tapestry/kernels/cpu/compute.h"

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

template <class T>
void conv2d_kernel(const LaunchContext& context, const Conv2dArgs& a) {
  using C = Compute<T>;
  const Conv2dShape& s = a.shape;
  if constexpr (std::is_same_v<T, BFloat16>)
    if (OneDnnConv<T>::forward(context, s, a.x.as<T>(), a.weight.as<T>(), a.bias.as<T>(), a.y.as<T>())) {
      if (s.relu) clear_negatives(a.y.as<T>(), output_size(s));
      return;
    }
  const ComputeInput<T> input(context, a.x, input_size(s)), w(context, a.weight, weight_size(s)),
      b(context, a.bias, s.k);
  const ComputeOutput<T> out(context, a.y, output_size(s));
  bool done = false;
  if constexpr (std::is_same_v<C, float>)
    done = (Depthwise::fits(s) && Depthwise::forward(s, input.data(), w.data(), b.data(), out.data())) ||
           (!better_as_product(s) &&
            OneDnnConv<float>::forward(context, s, input.data(), w.data(), b.data(), out.data()));
  if (!done) Im2col<C>::forward(context, s, input.data(), w.data(), b.data(), out.data());
  if (s.relu) clear_negatives(out.data(), output_size(s));
  out.store();
}

template <class T>
void backward_input_kernel(const LaunchContext& context, const Conv2dBackwardInputArgs& a) {
  using C = Compute<T>;
  const Conv2dShape& s = a.shape;
  if constexpr (std::is_same_v<T, BFloat16>)
    if (!few_channels(s) &&
        OneDnnConv<T>::backward_input(context, s, a.dy.as<T>(), a.weight.as<T>(), a.dx.as<T>()))
      return;
  const ComputeInput<T> grad(context, a.dy, output_size(s)), w(context, a.weight, weight_size(s));
  const ComputeOutput<T> out(context, a.dx, input_size(s));
  if constexpr (std::is_same_v<C, float>)
    if ((Depthwise::fits(s) && Depthwise::backward_input(s, grad.data(), w.data(), out.data())) ||
        (!few_channels(s) && !better_as_product(s) &&
         OneDnnConv<float>::backward_input(context, s, grad.data(), w.data(), out.data())))
      return out.store();
  Im2col<C>::backward_input(context, s, grad.data(), w.data(), out.data());
  out.store();
}

template <class T>
void backward_weight_kernel(const LaunchContext& context, const Conv2dBackwardWeightArgs& a) {
  using C = Compute<T>;
  const Conv2dShape& s = a.shape;
  if constexpr (std::is_same_v<T, BFloat16>)
    if (a.dweight && OneDnnConv<T>::backward_weight(context, s, a.dy.as<T>(), a.x.as<T>(), a.dweight.as<T>(),
                                                    a.dbias.as<T>()))
      return;
  const ComputeInput<T> grad(context, a.dy, output_size(s)), input(context, a.x, input_size(s));
  const ComputeOutput<T> dw(context, a.dweight, weight_size(s)), db(context, a.dbias, s.k);
  bool done = false;
  if constexpr (std::is_same_v<C, float>) {
    const auto by = [&](auto&& way) { return way(grad.data(), input.data(), dw.data(), db.data()); };
    if (a.dweight && SmallImages::fits(s)) {
      SmallImages::backward_weight(context, s, grad.data(), input.data(), dw.data(), db.data());
      done = true;
    } else if (a.dweight) {
      done = (Depthwise::fits(s) && by([&](auto... p) { return Depthwise::backward_weight(s, p...); })) ||
             (!better_as_product(s) &&
              by([&](auto... p) { return OneDnnConv<float>::backward_weight(context, s, p...); }));
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
