#include "tapestry/kernels/cuda/search.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool search_filled = [] {
  searchsorted.set(DeviceType::cuda, DType::f32, &launch_searchsorted<float>);
  searchsorted.set(DeviceType::cuda, DType::i64, &launch_searchsorted<std::int64_t>);
  bincount.set(DeviceType::cuda, DType::i64, &launch_bincount<>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
