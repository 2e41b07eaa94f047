#include "tapestry/core/cuda/libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "tapestry/core/cuda/internal/libraries.h"

#ifndef TAPESTRY_CUDA_MAJOR
#define TAPESTRY_CUDA_MAJOR 13
#endif

namespace tapestry::cuda {
namespace {

namespace fs = std::filesystem;

LibraryVersion decoded(std::size_t code) {
  const auto n = static_cast<int>(code);
  // NCCL before 2.9 and cuDNN before 9 multiply the major version by 1000, all others by 10000.
  if (n < 10000) return {n / 1000, n % 1000 / 100, n % 100};
  return {n / 10000, n % 10000 / 100, n % 100};
}
LibraryVersion version_by_value(void* function) {
  return decoded(reinterpret_cast<std::size_t (*)()>(function)());
}
LibraryVersion version_by_pointer(void* function) {
  int code = 0;
  const int failed = reinterpret_cast<int (*)(int*)>(function)(&code);
  return failed ? LibraryVersion{} : decoded(static_cast<std::size_t>(code));
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> entries;
  std::istringstream in(list);
  for (std::string entry; std::getline(in, entry, ':');)
    if (!entry.empty()) entries.push_back(entry);
  return entries;
}

/// Returns the entries of a folder whose names begin with `prefix`, in descending order of name. Returns none
/// if the folder cannot be read.
std::vector<fs::path> entries(const fs::path& folder, const std::string& prefix = {}) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Returns the path of the file from which dlopen() loaded `handle`.
std::string file_of(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map->l_name) return {};
  std::error_code error;
  const fs::path real = fs::canonical(map->l_name, error);
  return error ? map->l_name : real.string();
}

/// Returns the folder of the shared library (or program) that contains this function.
std::string own_folder() {
  static const char here = 0;
  Dl_info info;
  if (dladdr(&here, &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? std::string() : file.parent_path().string();
}

/// Tries files until one can be used. Remembers why the first unsuitable file was refused, for the error
/// message.
class Search {
 public:
  explicit Search(const LibrarySpec& spec) : spec_(spec) {}

  /// Calls dlopen(file, flags). Returns true if the file is a usable library. If `must` is set, a file that
  /// dlopen() cannot open counts as refused, with a reason.
  bool open(const std::string& file, bool must, int flags = 0) {
    void* const handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL | flags);
    if (!handle) {
      const char* const why = dlerror();
      if (must)
        refuse({}, concat({why ? why : file, "; repair the installation, or set ", spec_.variable,
                           " to another file"}));
      return false;
    }
    Library about{.name = spec_.name, .path = file_of(handle)};
    const std::string why = reason_to_refuse(handle, about);
    if (why.empty()) {
      found_.emplace(std::move(about), handle);
      return true;
    }
    refuse(std::move(about), why);
    dlclose(handle);
    return false;
  }

  OpenLibrary result(const std::string& where) {
    if (found_) return std::move(*found_);
    if (!refused_)
      refuse({}, concat({"was not found: ", spec_.soname, " is not ", where, "; install it (pip install ",
                         spec_.package, "), or set ", spec_.variable, " to its file"}));
    return {std::move(*refused_), nullptr};
  }

 private:
  std::string reason_to_refuse(void* handle, Library& about) const {
    void* const function = dlsym(handle, spec_.version_symbol);
    if (!function)
      return concat({about.path, " has no function ", spec_.version_symbol, ", so it is another library; ",
                     "remove it from the search path, or set ", spec_.variable, " to the right file"});
    const LibraryVersion version = spec_.version(function);
    about.version = version.str();
    if (version < spec_.minimum)
      return concat({about.path, " has version ", about.version, ", which is older than ",
                     spec_.minimum.str(), ", the oldest that can be used; upgrade it (pip install --upgrade ",
                     spec_.package, "), or set ", spec_.variable, " to a newer file"});
    void* const built_for = spec_.cuda_version_symbol ? dlsym(handle, spec_.cuda_version_symbol) : nullptr;
    if (built_for) {
      const std::size_t major = reinterpret_cast<std::size_t (*)()>(built_for)() / 1000;
      if (major != TAPESTRY_CUDA_MAJOR)
        return concat({about.path, " was built for CUDA ", major, ", and this library uses CUDA ",
                       TAPESTRY_CUDA_MAJOR, "; install the package for CUDA ", TAPESTRY_CUDA_MAJOR,
                       " (pip install ", spec_.package, ")"});
    }
    return {};
  }
  void refuse(Library about, const std::string& why) {
    if (refused_) return;
    about.name = spec_.name;
    about.error = why;
    refused_ = std::move(about);
  }

  const LibrarySpec& spec_;
  std::optional<OpenLibrary> found_;
  std::optional<Library> refused_;
};

}  // namespace

// ---- which libraries ----

std::string LibraryVersion::str() const { return concat({major, ".", minor, ".", patch}); }

const LibrarySpec& cublaslt_spec() {
  static const LibrarySpec spec{.name = "cuBLASLt",
                                .soname = concat({"libcublasLt.so.", TAPESTRY_CUDA_MAJOR}),
                                .variable = "TAPESTRY_CUBLASLT_LIBRARY",
                                .package = "nvidia-cublas",
                                .minimum = {TAPESTRY_CUDA_MAJOR, 0, 0},
                                .version_symbol = "cublasLtGetVersion",
                                .version = version_by_value,
                                .cuda_version_symbol = nullptr};
  return spec;
}

const LibrarySpec& cudnn_spec() {
  static const LibrarySpec spec{
      .name = "cuDNN",
      .soname = "libcudnn.so.9",
      .variable = "TAPESTRY_CUDNN_LIBRARY",
      .package = TAPESTRY_CUDA_MAJOR == 12 ? "nvidia-cudnn-cu12" : "nvidia-cudnn-cu13",
      .minimum = {9, 0, 0},
      .version_symbol = "cudnnGetVersion",
      .version = version_by_value,
      .cuda_version_symbol = "cudnnGetCudartVersion"};
  return spec;
}

// Version 2.18 is required. NCCL has non-blocking communicators since 2.14, but before 2.18 ncclCommFinalize
// could leave them in progress for ever.
const LibrarySpec& nccl_spec() {
  static const LibrarySpec spec{
      .name = "NCCL",
      .soname = "libnccl.so.2",
      .variable = "TAPESTRY_NCCL_LIBRARY",
      .package = TAPESTRY_CUDA_MAJOR == 12 ? "nvidia-nccl-cu12" : "nvidia-nccl-cu13",
      .minimum = {2, 18, 0},
      .version_symbol = "ncclGetVersion",
      .version = version_by_pointer,
      .cuda_version_symbol = nullptr};
  return spec;
}

// ---- where they are searched for ----

std::vector<std::string> python_site_packages() {
  std::vector<std::string> found;
  const auto add = [&](const fs::path& folder) {
    const std::string text = folder.string();
    if (is_there(folder / "nvidia") && std::find(found.begin(), found.end(), text) == found.end())
      found.push_back(text);
  };
  const auto add_prefix = [&](const fs::path& prefix) {
    if (prefix.empty()) return;
    for (const char* lib : {"lib", "lib64", "local/lib"})
      for (const fs::path& python : entries(prefix / lib, "python3"))
        for (const char* packages : {"site-packages", "dist-packages"}) add(python / packages);
  };
  add_prefix(variable("VIRTUAL_ENV"));
  add_prefix(variable("CONDA_PREFIX"));
  for (const std::string& folder : split(variable("PYTHONPATH"))) add(folder);
  for (const std::string& folder : split(variable("PATH"))) {
    const fs::path program = fs::path(folder) / "python3";
    std::error_code error;
    const fs::path real = fs::canonical(program, error);
    if (error) continue;
    // In a virtual environment python3 is a symlink. The environment and the real Python are both searched.
    add_prefix(fs::path(folder).parent_path());
    add_prefix(real.parent_path().parent_path());
    break;
  }
  const std::string base = variable("PYTHONUSERBASE"), home = variable("HOME");
  if (!base.empty()) add_prefix(base);
  else if (!home.empty()) add_prefix(fs::path(home) / ".local");
  return found;
}

LibraryPlaces library_places() {
  LibraryPlaces places;
  for (const std::string& toolkit :
       {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")})
    for (const char* lib : {"/lib64", "/lib"})
      if (!toolkit.empty()) places.folders.push_back(toolkit + lib);
#ifdef TAPESTRY_CUDA_LIBRARY_DIR
  places.folders.emplace_back(TAPESTRY_CUDA_LIBRARY_DIR);
#endif
  if (const std::string own = own_folder(); !own.empty()) places.folders.push_back(own);
  places.site_packages = python_site_packages();
  return places;
}

OpenLibrary open_library(const LibrarySpec& spec, const LibraryPlaces& places) {
  Search search(spec);
  if (places.loaded && search.open(spec.soname, false, RTLD_NOLOAD)) return search.result({});
  if (const std::string file = variable(spec.variable); !file.empty()) {
    search.open(file, true);
    return search.result({});
  }
  if (places.loader && search.open(spec.soname, false)) return search.result({});
  for (const fs::path folder : places.folders)
    if (is_there(folder / spec.soname) && search.open((folder / spec.soname).string(), true))
      return search.result({});
  for (const fs::path site : places.site_packages)
    for (const fs::path& package : entries(site / "nvidia"))
      if (const fs::path file = package / "lib" / spec.soname;
          is_there(file) && search.open(file.string(), true))
        return search.result({});
  std::string where = "on the loader's path";
  for (const std::string& folder : places.folders) where += ", in " + folder;
  for (const std::string& site : places.site_packages) where += ", in " + site + "/nvidia";
  if (places.site_packages.empty()) where += ", and Python has no nvidia packages";
  return search.result(where);
}

// ---- those of this process ----

void* OpenLibrary::symbol(const char* name) const {
  check<DeviceError>(handle_ != nullptr, "[", about_.name, "] ", about_.error);
  void* const found = dlsym(handle_, name);
  check<DeviceError>(found != nullptr, "[", about_.name, "] version ", about_.version, " at ", about_.path,
                     " has no function ", name, "; upgrade the library");
  return found;
}

const OpenLibrary& cublaslt_library() {
  static const auto& one = *new OpenLibrary(open_library(cublaslt_spec(), library_places()));
  return one;
}
const OpenLibrary& cudnn_library() {
  static const auto& one = *new OpenLibrary(open_library(cudnn_spec(), library_places()));
  return one;
}
const OpenLibrary& nccl_library() {
  static const auto& one = *new OpenLibrary(open_library(nccl_spec(), library_places()));
  return one;
}

std::string Library::str() const {
  if (!available()) return concat({name, ": not available: ", error});
  return concat({name, " ", version, " (", path, ")"});
}

std::vector<Library> libraries() {
  return {cublaslt_library().about(), cudnn_library().about(), nccl_library().about()};
}

}  // namespace tapestry::cuda
