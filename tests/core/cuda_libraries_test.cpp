// Tests the search for NVIDIA's libraries. Temporary folders stand for the installed ones; they contain
// copies of a fake library that has only the version functions.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::cuda;
namespace fs = std::filesystem;

namespace {

using Map = std::map<std::string, std::string>;

/// Sets environment variables until the end of the scope. "" unsets a variable.
class Variables {
 public:
  explicit Variables(const Map& variables) {
    for (const auto& [name, value] : variables) {
      const char* const before = std::getenv(name.c_str());
      saved_[name] = before ? before : "";
      put(name, value);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : saved_) put(name, value);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void put(const std::string& name, const std::string& value) {
    if (value.empty()) unsetenv(name.c_str());
    else setenv(name.c_str(), value.c_str(), 1);
  }
  Map saved_;
};

/// Copies the fake library to `file`. The dynamic loader treats each copy as a different library.
std::string plant(const fs::path& file) {
  fs::create_directories(file.parent_path());
  fs::copy_file(TAPESTRY_VERSIONS_LIBRARY, file);
  return fs::canonical(file).string();
}

/// Returns places that limit the search to these folders. Libraries that are already loaded and the loader's
/// path are not searched.
LibraryPlaces only(std::vector<std::string> folders, std::vector<std::string> site_packages = {}) {
  return {.loaded = false,
          .loader = false,
          .folders = std::move(folders),
          .site_packages = std::move(site_packages)};
}

const Map kNone{{"VIRTUAL_ENV", ""}, {"CONDA_PREFIX", ""},         {"PYTHONPATH", ""},
                {"HOME", ""},        {"PYTHONUSERBASE", ""},       {"PATH", "/none"},
                {"CUDA_HOME", ""},   {"TAPESTRY_NCCL_LIBRARY", ""}};

}  // namespace

TEST_CASE("pip's layouts are found in a virtual environment, and the version is read") {
  const tests::TempDir dir;
  const fs::path site = dir.path() / "venv/lib/python3.11/site-packages";
  const std::string nccl = plant(site / "nvidia/nccl/lib/libnccl.so.2");
  const std::string cudnn = plant(site / "nvidia/cudnn/lib/libcudnn.so.9");
  const std::string cublas = plant(site / ("nvidia/cu13/lib/" + cublaslt_spec().soname));
  const Variables none(kNone);
  const Variables variables(Map{{"VIRTUAL_ENV", dir / "venv"},
                                {"FAKE_NCCL_VERSION", "22809"},
                                {"FAKE_CUDNN_VERSION", "91301"},
                                {"FAKE_CUDNN_CUDA_VERSION", "13000"},
                                {"FAKE_CUBLASLT_VERSION", "130002"}});
  CHECK(python_site_packages() == std::vector<std::string>{site.string()});
  const LibraryPlaces places = only({}, python_site_packages());

  const Library found = open_library(nccl_spec(), places).about();
  CHECK(found.available());
  CHECK(found.name == "NCCL");
  CHECK(found.version == "2.28.9");
  CHECK(found.path == nccl);
  CHECK(found.str() == "NCCL 2.28.9 (" + nccl + ")");
  CHECK(open_library(cudnn_spec(), places).about().version == "9.13.1");
  CHECK(open_library(cudnn_spec(), places).about().path == cudnn);
  CHECK(open_library(cublaslt_spec(), places).about().version == "13.0.2");
  CHECK(open_library(cublaslt_spec(), places).about().path == cublas);
}

TEST_CASE("site-packages come from PYTHONPATH, the python3 on PATH and the user's folder, in this order") {
  const tests::TempDir dir;
  const auto make = [&](const std::string& site) {
    fs::create_directories(dir.path() / site / "nvidia");
    return dir / site;
  };
  const std::string given = make("given");
  const std::string linked = make("venv/lib/python3.12/site-packages");
  const std::string real = make("usr/lib/python3/dist-packages");
  const std::string user = make("home/.local/lib/python3.12/site-packages");
  fs::create_directories(dir.path() / "usr/lib/python3.12/site-packages");  // without nvidia packages
  fs::create_directories(dir.path() / "venv/bin");
  fs::create_directories(dir.path() / "usr/bin");
  std::ofstream(dir / "usr/bin/python3.12").put('x');
  fs::create_symlink(dir / "usr/bin/python3.12", dir / "venv/bin/python3");
  const Variables none(kNone);
  const Variables variables(
      Map{{"PYTHONPATH", "/none:" + given}, {"PATH", "/none:" + dir / "venv/bin"}, {"HOME", dir / "home"}});
  CHECK(python_site_packages() == std::vector<std::string>{given, linked, real, user});
}

TEST_CASE("folders come before Python's packages, and the variable before both") {
  const tests::TempDir dir;
  const std::string toolkit = plant(dir.path() / "toolkit/libnccl.so.2");
  const std::string site = plant(dir.path() / "site/nvidia/nccl/lib/libnccl.so.2");
  const std::string named = plant(dir.path() / "elsewhere/my-nccl.so");
  const Variables none(kNone);
  const Variables version(Map{{"FAKE_NCCL_VERSION", "22703"}});
  CHECK(open_library(nccl_spec(), only({dir / "none", dir / "toolkit"}, {dir / "site"})).about().path ==
        toolkit);
  CHECK(open_library(nccl_spec(), only({dir / "none"}, {dir / "site"})).about().path == site);
  const Variables variable(Map{{"TAPESTRY_NCCL_LIBRARY", named}});
  CHECK(open_library(nccl_spec(), only({dir / "toolkit"}, {dir / "site"})).about().path == named);
}

TEST_CASE("a library that is too old, foreign or broken is refused with the reason") {
  const tests::TempDir dir;
  const Variables none(kNone);
  plant(dir.path() / "old/libnccl.so.2");
  {
    const Variables version(Map{{"FAKE_NCCL_VERSION", "21703"}});
    const OpenLibrary old = open_library(nccl_spec(), only({dir / "old"}));
    CHECK_FALSE(old.about().available());
    CHECK(old.about().version == "2.17.3");
    CHECK_THAT(old.about().str(), ContainsSubstring("NCCL: not available: ") &&
                                      ContainsSubstring("has version 2.17.3, which is older than 2.18.0") &&
                                      ContainsSubstring("pip install --upgrade nvidia-nccl"));
    CHECK_THROWS_AS(old.function<int()>("ncclGetVersion"), DeviceError);
  }
  {
    const Variables version(Map{{"FAKE_NCCL_VERSION", "2804"}});  // the encoding before 2.9
    CHECK(open_library(nccl_spec(), only({dir / "old"})).about().version == "2.8.4");
  }
  {
    plant(dir.path() / "cudnn/libcudnn.so.9");
    const Variables version(Map{{"FAKE_CUDNN_VERSION", "91301"}, {"FAKE_CUDNN_CUDA_VERSION", "12080"}});
    CHECK_THAT(open_library(cudnn_spec(), only({dir / "cudnn"})).about().error,
               ContainsSubstring("was built for CUDA 12"));
  }
  fs::create_directories(dir.path() / "text");
  std::ofstream(dir / "text/libnccl.so.2") << "not a library";
  CHECK_THAT(open_library(nccl_spec(), only({dir / "text"})).about().error,
             ContainsSubstring("text/libnccl.so.2") && ContainsSubstring("TAPESTRY_NCCL_LIBRARY"));
  // The search must continue after a file that cannot be used.
  const Variables version(Map{{"FAKE_NCCL_VERSION", "22809"}});
  CHECK(open_library(nccl_spec(), only({dir / "text", dir / "old"})).about().available());
}

TEST_CASE("a missing library is named with the places that were searched") {
  const tests::TempDir dir;
  const Variables none(kNone);
  const Library missing = open_library(nccl_spec(), only({dir / "here"}, {dir / "there"})).about();
  CHECK_FALSE(missing.available());
  CHECK(missing.path.empty());
  CHECK_THAT(missing.error, ContainsSubstring("was not found: libnccl.so.2 is not on the loader's path, in " +
                                              dir / "here" + ", in " + dir / "there/nvidia") &&
                                ContainsSubstring("pip install nvidia-nccl") &&
                                ContainsSubstring("TAPESTRY_NCCL_LIBRARY"));
  const Variables variable(Map{{"TAPESTRY_NCCL_LIBRARY", dir / "none.so"}});
  CHECK_THAT(open_library(nccl_spec(), only({})).about().error, ContainsSubstring("none.so"));
}

TEST_CASE("prints the libraries", "[.]") {
  for (const Library& library : libraries()) std::printf("%s\n", library.str().c_str());
}

TEST_CASE("the process finds the libraries in Python's packages, and lists all three") {
  const tests::TempDir dir;
  const std::string nccl = plant(dir.path() / "lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2");
  const ChildResult child = run_child(
      "prints the libraries", "-u CUDA_HOME -u CUDA_PATH TAPESTRY_CUDNN_LIBRARY=" + dir / "none.so" +
                                  " TAPESTRY_CUBLASLT_LIBRARY=" + nccl + " TAPESTRY_NCCL_LIBRARY=" + nccl +
                                  " FAKE_NCCL_VERSION=22809 FAKE_CUBLASLT_VERSION=130002");
  CHECK(child.status == 0);
  CHECK_THAT(child.output, ContainsSubstring("NCCL 2.28.9 (" + nccl + ")") &&
                               ContainsSubstring("cuBLASLt 13.0.2 (" + nccl + ")") &&
                               ContainsSubstring("cuDNN: not available: "));
}
