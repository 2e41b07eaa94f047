#include "tapestry/kernels/cpu/conv2d.h"

#include "tapestry/kernels/cpu/compute.h"

namespace tapestry::kernels::cpu {
namespace {

std::int64_t input_size(const Conv2d& s) { return s.n * s.c * s.h * s.w; }
std::int64_t output_size(const Conv2d& s) { return s.n * s.k * s.p * s.q; }
std::int64_t weight_size(const Conv2d& s) { return s.k * (s.c / s.groups) * s.r * s.s; }

// oneDNN's gradient with respect to an input of so few channels was measured 2 to 8 times slower than the
// lowering.
bool few_channels(const Conv2d& s) { return s.groups == 1 && s.c < 4; }

template <class C>
void clear_negatives(C* y, std::int64_t n) {
  parallel_for(n, kGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = y[i] < 0 ? 0 : y[i];
  });
}

template <class T>
void conv2d_kernel(const Conv2d& s, const void* x, const void* weight, const void* bias, void* y) {
  using C = Compute<T>;
  const ComputeInput<T> input(s.device, x, input_size(s)), w(s.device, weight, weight_size(s)),
      b(s.device, bias, s.k);
  const ComputeOutput<T> out(s.device, y, output_size(s));
  bool done = false;
  if constexpr (std::is_same_v<C, float>)
    done = OneDnnConv::forward(s, input.data(), w.data(), b.data(), out.data());
  if (!done) Im2col<C>::forward(s, input.data(), w.data(), b.data(), out.data());
  if (s.relu) clear_negatives(out.data(), output_size(s));
  out.store();
}

template <class T>
void backward_input_kernel(const Conv2d& s, const void* dy, const void* weight, void* dx) {
  using C = Compute<T>;
  const ComputeInput<T> grad(s.device, dy, output_size(s)), w(s.device, weight, weight_size(s));
  const ComputeOutput<T> out(s.device, dx, input_size(s));
  if constexpr (std::is_same_v<C, float>)
    if (!few_channels(s) && OneDnnConv::backward_input(s, grad.data(), w.data(), out.data()))
      return out.store();
  Im2col<C>::backward_input(s, grad.data(), w.data(), out.data());
  out.store();
}

template <class T>
void backward_weight_kernel(const Conv2d& s, const void* dy, const void* x, void* dweight, void* dbias) {
  using C = Compute<T>;
  const ComputeInput<T> grad(s.device, dy, output_size(s)), input(s.device, x, input_size(s));
  const ComputeOutput<T> dw(s.device, dweight, weight_size(s)), db(s.device, dbias, s.k);
  bool done = false;
  if constexpr (std::is_same_v<C, float>)
    done = dweight && OneDnnConv::backward_weight(s, grad.data(), input.data(), dw.data(), db.data());
  if (!done) Im2col<C>::backward_weight(s, grad.data(), input.data(), dw.data(), db.data());
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
