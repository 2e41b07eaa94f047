#pragma once
// The cuDNN that is installed on this machine, if there is one.
#include <optional>
#include <string>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/kernels/cuda/vendor/cudnn_descriptor.h"

namespace cudnn_test {

/// Makes the real cuDNN the one in use, for the length of a scope. If there is none, says that the test is
/// skipped.
class RealLibrary {
 public:
  RealLibrary();
  ~RealLibrary();
  RealLibrary(const RealLibrary&) = delete;
  RealLibrary& operator=(const RealLibrary&) = delete;

  bool found() const { return found_; }
  const std::string& path() const { return library_.about().path; }
  const std::string& version() const { return library_.about().version; }
  /// The properties of an H100 (SXM, 80 GB). Empty if this version of cuDNN does not take them as text.
  std::optional<tapestry::kernels::cuda::cudnn::Descriptor> h100() const;
  /// True if there is a libcuda.so.1 in the process: the driver's, or the toolkit's stub, which cuDNN needs
  /// to judge some graphs. If there is none, says that the test is skipped.
  bool has_driver() const;

 private:
  tapestry::cuda::OpenLibrary library_;
  bool found_ = false;
};

}  // namespace cudnn_test
