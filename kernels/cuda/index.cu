#include "tapestry/kernels/cuda/index.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

template <class T>
void index_select_kernel(const IndexRows& r, const void* x, void* y) {
  launch_index_select<T>(r, x, y, kernel_stream());
}
template <class T>
void index_add_kernel(const IndexRows& r, const void* dy, void* dx) {
  launch_index_add<T>(r, dy, dx, kernel_stream());
}
template <class T>
void scatter_kernel(const Scatter& s, const void* g, void* dx) {
  launch_scatter<T>(s, g, dx, kernel_stream());
}
template <class T>
void embedding_kernel(const View& out, const View& weight, const View& indices, std::int64_t* first_bad) {
  launch_embedding<T>(out, weight, indices, first_bad, kernel_stream());
}
template <class T>
void embedding_backward_kernel(const View& dweight, const View& grad, const View& indices,
                               std::int64_t padding) {
  launch_embedding_backward<T>(dweight, grad, indices, padding, kernel_stream());
}

const bool filled = [] {
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>(
      []<class T>() { index_select.set(kDevice, dtype_of<T>, &index_select_kernel<T>); });
  for_types<float, BFloat16>([]<class T>() {
    index_add.set(kDevice, dtype_of<T>, &index_add_kernel<T>);
    scatter.set(kDevice, dtype_of<T>, &scatter_kernel<T>);
    embedding.set(kDevice, dtype_of<T>, &embedding_kernel<T>);
    embedding_backward.set(kDevice, dtype_of<T>, &embedding_backward_kernel<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
