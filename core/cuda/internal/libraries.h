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

/// What has to be known of a library in order to open it.
struct LibrarySpec {
  const char* name;      ///< "NCCL"
  std::string soname;    ///< "libnccl.so.2"
  const char* variable;  ///< environment variable that names its file
  const char* package;   ///< the pip package, for messages
  LibraryVersion minimum;
  const char* version_symbol;
  LibraryVersion (*version)(void* version_function);
  /// A function `size_t f()` that returns the CUDA version for which the library was built, 1000 times the
  /// major version; null if the library has none.
  const char* cuda_version_symbol;
};

const LibrarySpec& cublaslt_spec();
const LibrarySpec& cudnn_spec();
const LibrarySpec& nccl_spec();

/// Where to look; see core/cuda/libraries.h for the order.
struct LibraryPlaces {
  bool loaded = true;  ///< among the libraries of the process
  bool loader = true;  ///< on the dynamic loader's path
  std::vector<std::string> folders;
  std::vector<std::string> site_packages;
};
/// Those of this process.
LibraryPlaces library_places();
/// The site-packages and dist-packages folders that hold a folder `nvidia`, by the environment variables and
/// the python3 on PATH.
std::vector<std::string> python_site_packages();

/// An open library, or why there is none. Libraries are never closed: their threads and their handles may
/// outlive whoever opened them.
class OpenLibrary {
 public:
  OpenLibrary() = default;
  OpenLibrary(Library about, void* handle) : about_(std::move(about)), handle_(handle) {}
  const Library& about() const { return about_; }
  /// A function of the library; throws DeviceError if the library is not available or lacks it.
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  Library about_;
  void* handle_ = nullptr;
};

/// Searches and opens. Does not throw for a library that is missing or too old: see OpenLibrary::about().
OpenLibrary open_library(const LibrarySpec& spec, const LibraryPlaces& places);

/// The libraries of this process: each is opened by the first call.
const OpenLibrary& cublaslt_library();
const OpenLibrary& cudnn_library();
const OpenLibrary& nccl_library();

}  // namespace tapestry::cuda
