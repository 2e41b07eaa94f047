#pragma once
// NVIDIA's libraries that CUDA devices can use: cuBLASLt, cuDNN and NCCL. They are opened by dlopen at run
// time, so one build of this library runs with and without them.
#include <string>
#include <vector>

namespace tapestry::cuda {

/// One library of NVIDIA's, as it was found on this machine.
struct Library {
  std::string name;     ///< "cuBLASLt", "cuDNN" or "NCCL"
  std::string version;  ///< "2.28.9"; empty if no file was opened
  std::string path;     ///< the file that was opened; empty if none was
  std::string error;    ///< why the library cannot be used; empty if it can

  bool available() const { return error.empty(); }
  /// "NCCL 2.28.9 (/usr/lib/libnccl.so.2)", or "NCCL: not available: ...".
  std::string str() const;
};

/// Opens cuBLASLt, cuDNN and NCCL if they are not open yet, and returns what was found, in this order. Each
/// library is searched for in these places, and the first file whose version is new enough is used:
///
///  1. the libraries that the process has loaded already;
///  2. the file that the variable TAPESTRY_CUBLASLT_LIBRARY, TAPESTRY_CUDNN_LIBRARY or TAPESTRY_NCCL_LIBRARY
///     names (if the variable is set, the places below are not searched);
///  3. the path of the dynamic loader (LD_LIBRARY_PATH, ld.so.conf);
///  4. lib64 and lib of the CUDA toolkits at CUDA_HOME, at CUDA_PATH and at /usr/local/cuda, and of the
///     toolkit that this library was built with;
///  5. the folder of this library;
///  6. nvidia/*/lib in Python's site-packages, where pip puts nvidia-nccl-cu13 and similar packages. The
///     site-packages are those of VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH, the python3 on PATH, and the user
///     (PYTHONUSERBASE or ~/.local). Python is not run.
///
/// The search happens once in a process; later calls return the same answer.
std::vector<Library> libraries();

}  // namespace tapestry::cuda
