// Benchmarks of the kernels of docs/tutorials/from-naive-to-fast.md. tools/gpu/peer.py has PyTorch's
// operations under the same names.
#include "tapestry/tools/bench/gpu/tutorial.h"

#include "tapestry/tools/bench/gpu/work.h"

namespace tapestry::bench {

namespace {

Work launched(const std::string& name, const Spec& s, [[maybe_unused]] const Tensor& x,
              [[maybe_unused]] const Tensor& weight, [[maybe_unused]] const Tensor& bias,
              [[maybe_unused]] const Tensor& y) {
#ifdef TAPESTRY_HAS_TUTORIAL_KERNELS
  if (s.device.is_cuda())
    return {[=, sizes = s.sizes] {
      launch_tutorial_kernel(name, sizes, x, weight, bias, y);
      return y;
    }};
#endif
  throw MissingKernelError("[" + name + "] the tutorial's kernels run on GPUs only, not on " +
                           s.device.str());
}

Maker softmax(const std::string& name) {
  return [name](const Spec& s) {
    const Tensor x = random(s, {s[0], s[1]}, 1);
    check(name != "softmax_in_registers" || (s[1] % 4 == 0 && s[1] <= 1024), "[", name, "] ", s[1],
          " columns; use a multiple of 4, at most 1024");
    return launched(name, s, x, {}, {}, empty_like(x));
  };
}

Maker linear_relu(const std::string& name) {
  return [name](const Spec& s) {
    const bool bf16 = name == "linear_tensor_cores";
    check(s.dtype == (bf16 ? DType::bf16 : DType::f32), "[", name, "] the kernel is for ",
          bf16 ? "bf16" : "f32");
    check(!bf16 || s[2] % 8 == 0, "[", name, "] k is ", s[2], "; use a multiple of 8");
    return launched(name, s, random(s, {s[0], s[2]}, 1), random(s, {s[1], s[2]}, 2), random(s, {s[1]}, 3),
                    empty({s[0], s[1]}, {s.dtype, s.device}));
  };
}

Maker conv(const std::string& name) {
  return [name](const Spec& s) {
    check(s[6] == 1, "[", name, "] stride ", s[6], "; the kernel's stride is 1");
    check(name != "conv_hoisted" || s[1] % 16 == 0, "[", name, "] ", s[1], " channels; use a multiple of 16");
    const auto last = MemoryFormat::channels_last;
    const Tensor x = random(s, {s[0], s[1], s[2], s[3]}, 1, last);
    const Tensor weight = random(s, {s[4], s[1], s[5], s[5]}, 2).contiguous(last);
    const auto out = [&](std::int64_t size) { return size + 2 * s[7] - s[5] + 1; };
    return launched(name, s, x, weight, {},
                    empty({s[0], s[4], out(s[2]), out(s[3])}, {s.dtype, s.device}, last));
  };
}

}  // namespace

const std::map<std::string, Maker>& tutorial_kernels() {
  static const std::map<std::string, Maker> all = [] {
    std::map<std::string, Maker> found;
    for (const char* name :
         {"softmax_thread_per_row", "softmax_block_per_row", "softmax_online", "softmax_in_registers"})
      found[name] = softmax(name);
    for (const char* name :
         {"linear_thread_per_output", "linear_shared_tiles", "linear_register_tiles", "linear_tensor_cores"})
      found[name] = linear_relu(name);
    for (const char* name : {"conv_thread_per_output", "conv_implicit_gemm", "conv_hoisted"})
      found[name] = conv(name);
    return found;
  }();
  return all;
}

}  // namespace tapestry::bench
