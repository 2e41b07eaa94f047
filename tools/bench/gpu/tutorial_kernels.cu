#include "tapestry/core/stream.h"
#include "tapestry/docs/tutorials/from-naive-to-fast/conv.cuh"
#include "tapestry/docs/tutorials/from-naive-to-fast/linear.cuh"
#include "tapestry/docs/tutorials/from-naive-to-fast/softmax.cuh"
#include "tapestry/tools/bench/gpu/tutorial.h"

namespace tapestry::bench {

using namespace naive_to_fast;

void launch_tutorial_kernel(const std::string& name, const std::vector<std::int64_t>& sizes, const Tensor& x,
                            const Tensor& weight, const Tensor& bias, const Tensor& y) {
  const auto stream = static_cast<cudaStream_t>(current_stream(y.device()).native());
  const auto size = [&](std::size_t i) { return static_cast<int>(sizes.at(i)); };
  const auto up = [](int n, int tile) { return static_cast<unsigned>((n + tile - 1) / tile); };
  if (name.starts_with("softmax")) {
    const int rows = size(0), columns = size(1);
    const auto* const from = static_cast<const float*>(x.raw_data());
    auto* const to = static_cast<float*>(y.raw_data());
    if (name == "softmax_thread_per_row")
      launch(&softmax_thread_per_row<>, up(rows, 128), 128, 0, stream, from, to, rows, columns);
    else if (name == "softmax_block_per_row")
      launch(&softmax_block_per_row<>, up(rows, 1), 256, 0, stream, from, to, columns);
    else if (name == "softmax_online")
      launch(&softmax_online<>, up(rows, 1), 256, 0, stream, from, to, columns);
    else launch(&softmax_in_registers<2>, up(rows, 1), 128, 0, stream, from, to, columns);
  } else if (name.starts_with("linear")) {
    const int m = size(0), n = size(1), k = size(2);
    const auto problem = [&]<class T>(T) {
      const auto at = [](const Tensor& t) { return static_cast<T*>(t.raw_data()); };
      return Linear<T>{at(x), at(weight), at(bias), at(y), m, n, k};
    };
    if (name == "linear_thread_per_output")
      launch(&linear_thread_per_output<>, dim3(up(n, 32), up(m, 8)), dim3(32, 8), 0, stream, problem(0.0f));
    else if (name == "linear_shared_tiles")
      launch(&linear_shared_tiles<>, dim3(up(n, 32), up(m, 32)), dim3(32, 32), 0, stream, problem(0.0f));
    else if (name == "linear_register_tiles")
      launch(&linear_register_tiles<>, dim3(up(n, 128), up(m, 64)), 128, 0, stream, problem(0.0f));
    else launch(&linear_tensor_cores<>, dim3(up(n, 64), up(m, 64)), 128, 0, stream, problem(BFloat16()));
  } else {
    const Conv p{static_cast<const float*>(x.raw_data()),
                 static_cast<const float*>(weight.raw_data()),
                 static_cast<float*>(y.raw_data()),
                 size(0),
                 size(2),
                 size(3),
                 size(1),
                 size(4),
                 size(5),
                 size(5),
                 size(7)};
    const dim3 tiles(up(p.k, 128), up(p.pixels(), 64));
    if (name == "conv_thread_per_output")
      launch(&conv_thread_per_output<>, up(p.pixels() * p.k, 128), 128, 0, stream, p);
    else if (name == "conv_implicit_gemm") launch(&conv_implicit_gemm<>, tiles, 128, 0, stream, p);
    else launch(&conv_hoisted<>, tiles, 128, 0, stream, p);
  }
}

}  // namespace tapestry::bench
