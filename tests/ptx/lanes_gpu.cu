#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tests/ptx/lanes.cuh"

namespace ptx_test {

Words run_on_gpu(Instruction instruction, const Words& in) {
  using namespace tapestry;
  const Device gpu(DeviceType::cuda);
  const int cases = count_cases(instruction, in);
  Words out(static_cast<std::size_t>(cases * 32 * words_out(instruction)), 0xdeadbeef);
  const auto on_gpu = [&](const Words& words) {
    const Tensor t = empty({static_cast<std::int64_t>(words.size())}, {DType::i32, gpu});
    tapestry::cuda::copy_bytes(gpu, t.raw_data(), kCPU, words.data(), t.nbytes());
    return t;
  };
  const Tensor x = on_gpu(in), y = on_gpu(out);
  const Stream stream = current_stream(gpu);
  launch_lanes(instruction, cases,
               {static_cast<const std::uint32_t*>(x.raw_data()), static_cast<std::uint32_t*>(y.raw_data())},
               static_cast<cudaStream_t>(stream.native()));
  stream.synchronize();
  tapestry::cuda::copy_bytes(kCPU, out.data(), gpu, y.raw_data(), y.nbytes());
  return out;
}

}  // namespace ptx_test
