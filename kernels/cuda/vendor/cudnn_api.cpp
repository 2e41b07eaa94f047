#include "tapestry/kernels/cuda/vendor/cudnn_api.h"

#include <array>
#include <atomic>
#include <cctype>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"

namespace tapestry::kernels::cuda::cudnn {
namespace {

std::string upper(std::string_view name) {
  std::string text;
  for (const char c : name) text += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// The functions in use. Replaced ones are never freed, because descriptors that outlive the replacement point
// to them; only tests replace them.
constinit std::atomic<const Functions*> current{nullptr};
constinit std::atomic<const ::tapestry::cuda::OpenLibrary*> replaced{nullptr};

const ::tapestry::cuda::OpenLibrary& library() {
  const ::tapestry::cuda::OpenLibrary* const one = replaced.load();
  return one ? *one : ::tapestry::cuda::cudnn_library();
}

// What to do about a status, by the hundreds that classify it (cudnnStatus_t in cudnn_graph.h).
const char* advice(int status) {
  if (status == 1001 || status == 1007)
    return "check with nvidia-smi that the GPU works, and that the driver supports this cuDNN";
  if (status == 1002 || status == 1008) return "install all of cuDNN's files from one package";
  if (status == 4003 || status == 4004) return "free tensors, or use a smaller batch or model";
  if (status >= 2000 && status < 4000) return "set TAPESTRY_KERNELS=custom to run without cuDNN";
  if (status >= 5000)
    return "an earlier kernel may have caused this error; run again with CUDA_LAUNCH_BLOCKING=1";
  return "set TAPESTRY_KERNELS=custom to run without cuDNN, or install another version of it";
}

}  // namespace

std::string name_of(Kind kind) {
  switch (kind) {
#define TAPESTRY_CUDNN_CASE(name, number) \
  case Kind::name:                        \
    return upper(#name "_descriptor");
    TAPESTRY_CUDNN_KINDS(TAPESTRY_CUDNN_CASE)
#undef TAPESTRY_CUDNN_CASE
  }
  return std::to_string(static_cast<int>(kind));
}

std::string name_of(Attribute attribute) {
  switch (attribute) {
#define TAPESTRY_CUDNN_CASE(name, number, type) \
  case Attribute::name:                         \
    return upper(#name);
    TAPESTRY_CUDNN_ATTRIBUTES(TAPESTRY_CUDNN_CASE)
#undef TAPESTRY_CUDNN_CASE
  }
  return std::to_string(static_cast<int>(attribute));
}

Functions::Functions(const ::tapestry::cuda::OpenLibrary& from) {
  const auto find = [&]<class F>(F*& function, const char* name) { function = from.function<F>(name); };
#define TAPESTRY_CUDNN_FIND(name) find(name, #name)
  TAPESTRY_CUDNN_FIND(cudnnGetVersion);
  TAPESTRY_CUDNN_FIND(cudnnGetErrorString);
  TAPESTRY_CUDNN_FIND(cudnnGetLastErrorString);
  TAPESTRY_CUDNN_FIND(cudnnCreate);
  TAPESTRY_CUDNN_FIND(cudnnDestroy);
  TAPESTRY_CUDNN_FIND(cudnnSetStream);
  TAPESTRY_CUDNN_FIND(cudnnBackendCreateDescriptor);
  TAPESTRY_CUDNN_FIND(cudnnBackendDestroyDescriptor);
  TAPESTRY_CUDNN_FIND(cudnnBackendSetAttribute);
  TAPESTRY_CUDNN_FIND(cudnnBackendGetAttribute);
  TAPESTRY_CUDNN_FIND(cudnnBackendFinalize);
  TAPESTRY_CUDNN_FIND(cudnnBackendExecute);
#undef TAPESTRY_CUDNN_FIND
}

const Functions& functions() {
  if (const Functions* const found = current.load(std::memory_order_acquire)) return *found;
  static std::mutex mutex;
  static auto& made = *new std::vector<std::unique_ptr<Functions>>;
  const std::lock_guard lock(mutex);
  if (!current.load())
    current.store(made.emplace_back(std::make_unique<Functions>(library())).get(), std::memory_order_release);
  return *current.load();
}

const std::string& why_unavailable() { return library().about().error; }

const std::string& version() { return library().about().version; }

void use_library(const ::tapestry::cuda::OpenLibrary* next) {
  forget_sessions();
  replaced.store(next);
  current.store(nullptr);
}

bool is_library_replaced() { return replaced.load() != nullptr; }

void check_status(const Functions& f, int status, const char* function, const std::string& what) {
  if (status == 0) [[likely]]
    return;
  std::array<char, 2048> said{};
  f.cudnnGetLastErrorString(said.data(), said.size() - 1);
  throw CudnnError(concat({"[cuDNN] ", function, "(", what, ") failed: ", f.cudnnGetErrorString(status),
                           said[0] ? ": " : "", said.data(), "; ", advice(status)}),
                   status);
}

}  // namespace tapestry::kernels::cuda::cudnn
