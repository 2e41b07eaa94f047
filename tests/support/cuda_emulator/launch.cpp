#include "tests/support/cuda_emulator/launch.h"

#include <cstring>
#include <memory>

namespace cuda_emulator {
namespace {

constexpr std::size_t kAlignment = 16;  // the alignment of every stored argument; sufficient for any type

struct alignas(kAlignment) Chunk {
  std::byte bytes[kAlignment];
};

/// A launch that owns a copy of its arguments.
class PendingLaunch {
 public:
  PendingLaunch(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes, KernelCall call,
                const std::vector<Argument>& arguments)
      : kernel_(kernel), grid_(grid), block_(block), shared_bytes_(shared_bytes), call_(call) {
    std::size_t chunks = 0;
    for (const Argument& a : arguments) chunks += (a.bytes + kAlignment - 1) / kAlignment;
    chunks_ = std::make_unique<Chunk[]>(chunks);
    Chunk* next = chunks_.get();
    for (const Argument& a : arguments) {
      std::memcpy(next, a.data, a.bytes);
      addresses_.push_back(next);
      next += (a.bytes + kAlignment - 1) / kAlignment;
    }
  }

  void run() const {
    run_grid(
        kernel_, grid_, block_, shared_bytes_,
        [](void* pending) {
          const PendingLaunch& self = *static_cast<const PendingLaunch*>(pending);
          self.call_(self.kernel_, self.addresses_.data());
        },
        const_cast<PendingLaunch*>(this));
  }
  const void* address(std::size_t argument) const { return addresses_[argument]; }

 private:
  void (*kernel_)();
  dim3 grid_, block_;
  std::size_t shared_bytes_;
  KernelCall call_;
  std::unique_ptr<Chunk[]> chunks_;
  std::vector<const void*> addresses_;
};

}  // namespace

void (*stream_queue)(cudaStream_t stream, const StreamLaunch& launch) = nullptr;

void launch(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
            KernelCall call, const std::vector<Argument>& arguments) {
  const auto pending =
      std::make_shared<const PendingLaunch>(kernel, grid, block, shared_bytes, call, arguments);
  if (!stream || !stream_queue) return pending->run();
  StreamLaunch later{kernel, arguments, [pending] { pending->run(); }};
  for (std::size_t i = 0; i < arguments.size(); ++i) later.arguments[i].data = pending->address(i);
  stream_queue(stream, later);
}

}  // namespace cuda_emulator
