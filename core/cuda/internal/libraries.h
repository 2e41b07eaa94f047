#pragma once
// Opens NVIDIA's libraries; core/cuda/libraries.h documents where they are searched for.
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/core/cuda/libraries.h"
#include "tapestry/core/error.h"

namespace tapestry::cuda {

struct LibraryVersion {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const LibraryVersion&) const = default;
  std::string str() const;
};

/// Describes a library to open_library(): how to find it, and the oldest version that can be used.
struct LibrarySpec {
  const char* name;      ///< "NCCL"
  std::string soname;    ///< "libnccl.so.2"
  const char* variable;  ///< environment variable that names its file
  const char* package;   ///< the pip package, for messages
  LibraryVersion minimum;
  const char* version_symbol;
  LibraryVersion (*version)(void* version_function);
  /// The name of a library function `size_t f()` that returns the CUDA version for which the library was
  /// built, as an integer whose thousands are the major version. Null if the library has no such function.
  const char* cuda_version_symbol;
};

const LibrarySpec& cublaslt_spec();
const LibrarySpec& cudnn_spec();
const LibrarySpec& nccl_spec();

/// The places where open_library() searches. core/cuda/libraries.h gives their order.
struct LibraryPlaces {
  bool loaded = true;  ///< search the libraries that the process has loaded already
  bool loader = true;  ///< search the dynamic loader's path
  std::vector<std::string> folders;
  std::vector<std::string> site_packages;
};
/// The places for this process, according to its environment.
LibraryPlaces library_places();
/// Returns the site-packages and dist-packages folders that have a subfolder `nvidia`. They are found by
/// environment variables and by the python3 on PATH.
std::vector<std::string> python_site_packages();

/// The result of open_library(): an open library, or the reason why there is none. An accepted library is
/// never closed, because its threads and handles may still be in use. open_library() closes the candidates
/// that it refuses.
class OpenLibrary {
 public:
  OpenLibrary() = default;
  OpenLibrary(Library about, void* handle) : about_(std::move(about)), handle_(handle) {}
  const Library& about() const { return about_; }
  /// Returns a function of the library. Throws DeviceError if the library is not available or lacks the
  /// function.
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  Library about_;
  void* handle_ = nullptr;
};

/// Searches for the library and opens it. A library that is missing or too old does not throw: see
/// OpenLibrary::about().
OpenLibrary open_library(const LibrarySpec& spec, const LibraryPlaces& places);

/// The libraries that this process uses. The first call opens the library.
const OpenLibrary& cublaslt_library();
const OpenLibrary& cudnn_library();
const OpenLibrary& nccl_library();

}  // namespace tapestry::cuda
