#pragma once
// Which implementation of an operation runs on GPUs: this library's own kernels, or those of NVIDIA's
// libraries. The environment variable TAPESTRY_KERNELS sets the same policies when the program starts:
//
//   TAPESTRY_KERNELS=vendor                           every operation
//   TAPESTRY_KERNELS=auto,conv2d=vendor,gemm=custom   a default, and exceptions
//
//   set_kernel_policy(KernelPolicy::vendor);          // the same in a program
//   set_kernel_policy("gemm", KernelPolicy::custom);
//
// TAPESTRY_WGMMA=1 adds own kernels for compute capability 9.0 that multiply by wgmma. They are off otherwise,
// because no GPU has run them yet.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry {

enum class KernelPolicy : std::uint8_t {
  custom,  ///< this library's own kernels; NVIDIA's where there is no own kernel
  vendor,  ///< NVIDIA's library; own kernels, with one warning, where it is missing or does not support a
           ///< case
  /// The fastest. The first call with new shapes measures every implementation on the device, which blocks
  /// the host, and remembers the fastest, in this process and in a file. The file is in the folder that
  /// TAPESTRY_CACHE_DIR names, or in tapestry/ in XDG_CACHE_HOME or ~/.cache. It belongs to one model of GPU
  /// and one driver, and a choice to the versions of the libraries that were compared. An empty
  /// TAPESTRY_CACHE_DIR means no file. This is the default.
  automatic,
};
/// "custom", "vendor" or "auto"
const char* kernel_policy_name(KernelPolicy policy);

/// The names of the operations that have a policy, in alphabetical order.
std::vector<std::string> kernel_policy_ops();
/// Sets the policy of every operation, in all threads.
void set_kernel_policy(KernelPolicy policy);
/// Sets the policy of one operation. Throws ValueError if kernel_policy_ops() does not contain it.
void set_kernel_policy(std::string_view op, KernelPolicy policy);
/// Throws ValueError if kernel_policy_ops() does not contain `op`, or if TAPESTRY_KERNELS is malformed.
KernelPolicy kernel_policy(std::string_view op);

/// PyTorch's use_deterministic_algorithms(). All of this library's own kernels compute the same bits each
/// time. If `on`, implementations that do not are never chosen, and the policy `automatic` measures nothing:
/// it follows choices that were remembered or loaded, and otherwise takes own kernels, because measurements
/// differ from run to run. Off at first.
void use_deterministic_algorithms(bool on);
bool are_deterministic_algorithms_enabled();

/// Allows NVIDIA's libraries to round the f32 inputs of matrix products to TF32, which has 10 bits of
/// mantissa instead of 23. Own kernels never do. False at first, as torch.backends.cuda.matmul.allow_tf32.
void set_allow_tf32_matmul(bool on);
bool allow_tf32_matmul();
/// The same for convolutions. True at first, as torch.backends.cudnn.allow_tf32.
void set_allow_tf32_convolution(bool on);
bool allow_tf32_convolution();

/// What the policy `automatic` has chosen in this process, as text: one line for each operation and shape.
/// Checkpoints contain it, and `DistributedDataParallel` broadcasts it, because implementations round
/// differently.
std::string kernel_choices();
/// Replaces the choices of this process. They take precedence over the file. Choices of other GPU models have
/// no effect. Throws ValueError if `text` did not come from kernel_choices(); the choices are then unchanged.
void set_kernel_choices(const std::string& text);

}  // namespace tapestry
