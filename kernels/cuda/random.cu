#include "tapestry/kernels/cuda/random.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool random_filled = [] {
  for_types<float, Half, BFloat16>([]<class T>() {
    uniform.set(kDevice, dtype_of<T>, &launch_uniform<T>);
    normal.set(kDevice, dtype_of<T>, &launch_normal<T>);
    dropout.set(kDevice, dtype_of<T>, &launch_dropout<T>);
  });
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    randint.set(kDevice, dtype_of<T>, &launch_randint<T>);
    arange.set(kDevice, dtype_of<T>, &launch_arange<T>);
  });
  randperm.set(kDevice, DType::i64, &launch_randperm<>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
