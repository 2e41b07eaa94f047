// Checks the rules of the source tree (source_tree.h) on the whole repository. Each test also plants a fault
// in a small tree, and checks that the rule finds the fault.
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "tapestry/core/version.h"
#include "tapestry/distributed/mesh/strategy_text.h"
#include "tests/structure/source_tree.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using namespace structure;

namespace {

const fs::path kRoot = tests::source_path("");

/// A temporary source tree with the files that a test plants. The destructor deletes it.
class PlantedTree {
 public:
  PlantedTree() {
    static std::atomic<int> count{0};
    root_ = fs::temp_directory_path() /
            ("tapestry-structure-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    fs::create_directories(root_);
  }
  ~PlantedTree() { fs::remove_all(root_); }
  void plant(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  const fs::path& root() const { return root_; }
  std::vector<SourceFile> read() const { return read_tree(root_); }

 private:
  fs::path root_;
};

std::string including(const std::string& file) { return "#include \"" + file + "\"\n"; }

}  // namespace

TEST_CASE("read_tree finds the sources and their includes") {
  const auto tree = read_tree(kRoot);
  CHECK(tree.size() > 20);
  const PlantedTree planted;
  planted.plant(
      "core/a.h",
      "#pragma once\n  #  include <vector>\n// #include <no>\n#include \"tapestry/core/b.h\"  // why\n");
  planted.plant("build/core/c.h", including("tapestry/nn/module.h"));
  const auto files = planted.read();
  REQUIRE(files.size() == 1);
  CHECK(files[0].lines == 4);
  REQUIRE(files[0].includes.size() == 2);
  CHECK(files[0].includes[0].file == "vector");
  CHECK_FALSE(files[0].includes[0].quoted);
  CHECK(files[0].includes[1].line == 4);
}

TEST_CASE("folders include lower layers only") {
  CHECK(wrong_direction(read_tree(kRoot)) == Findings{});

  const auto allowed = [](const std::string& file, const std::string& included) {
    const PlantedTree planted;
    planted.plant(file, including(included));
    return wrong_direction(planted.read()).empty();
  };
  CHECK(allowed("core/tensor.h", "tapestry/core/shape.h"));
  CHECK_FALSE(allowed("core/tensor.cpp", "tapestry/kernels/slot.h"));
  CHECK(allowed("kernels/cpu/relu.cpp", "tapestry/core/tensor.h"));
  CHECK_FALSE(allowed("kernels/cpu/relu.cpp", "tapestry/autograd/tape.h"));
  CHECK(allowed("autograd/ops/relu.cpp", "tapestry/kernels/ops/relu.h"));
  CHECK_FALSE(allowed("autograd/tape.h", "tapestry/nn/module.h"));
  CHECK(allowed("nn/module.h", "tapestry/autograd/tape.h"));
  CHECK_FALSE(allowed("nn/module.h", "tapestry/data/dataset.h"));
  CHECK_FALSE(allowed("nn/module.h", "tapestry/distributed/comm/store.h"));
  CHECK(allowed("data/dataset.h", "tapestry/core/tensor.h"));
  CHECK_FALSE(allowed("data/dataset.h", "tapestry/kernels/slot.h"));
  CHECK(allowed("distributed/comm/store.cpp", "tapestry/core/tensor.h"));
  CHECK_FALSE(allowed("distributed/comm/store.cpp", "tapestry/autograd/engine.h"));
  CHECK_FALSE(allowed("distributed/comm/store.cpp", "tapestry/distributed/ddp/ddp.h"));
  CHECK(allowed("distributed/ddp/ddp.h", "tapestry/distributed/comm/store.h"));
  CHECK(allowed("distributed/ddp/ddp.h", "tapestry/nn/module.h"));
  CHECK(allowed("distributed/ddp/ddp.h", "tapestry/distributed/common/internal/reducer.h"));
  CHECK(allowed("distributed/mesh/mesh.h", "tapestry/distributed/comm/store.h"));
  CHECK_FALSE(allowed("distributed/mesh/mesh.h", "tapestry/nn/module.h"));
  CHECK_FALSE(allowed("distributed/mesh/mesh.h", "tapestry/distributed/common/seeds.h"));
  CHECK(allowed("distributed/fsdp/fsdp.h", "tapestry/distributed/mesh/mesh.h"));
  CHECK(allowed("distributed/common/batch.h", "tapestry/nn/module.h"));
  CHECK_FALSE(allowed("distributed/common/batch.h", "tapestry/distributed/ddp/ddp.h"));
  CHECK_FALSE(allowed("distributed/pipeline/stage.h", "tapestry/distributed/data_parallel/steps.h"));
  CHECK_FALSE(allowed("distributed/comm/store.cpp", "tapestry/distributed/common/seeds.h"));
  CHECK_FALSE(allowed("distributed/ddp/ddp.h", "tapestry/apps/common/progress.h"));
  CHECK(allowed("distributed/ddp/row.cpp", "tapestry/distributed/strategy/internal/row.h"));
  CHECK_FALSE(allowed("distributed/strategy/strategy.cpp", "tapestry/distributed/ddp/ddp.h"));
  CHECK_FALSE(allowed("distributed/ddp/ddp.h", "tapestry/distributed/launch/internal/launch.h"));
  CHECK(allowed("distributed/planner/predict.cpp", "tapestry/distributed/pipeline/schedule.h"));
  CHECK_FALSE(allowed("distributed/planner/predict.cpp", "tapestry/apps/compare/workload.h"));
  CHECK_FALSE(allowed("distributed/planner/predict.cpp", "tapestry/distributed/launch/internal/launch.h"));
  CHECK_FALSE(allowed("distributed/pipeline/schedule.cpp", "tapestry/distributed/planner/planner.h"));
  CHECK_FALSE(allowed("nn/module.h", "tapestry/distributed/planner/planner.h"));
  CHECK(allowed("apps/compare/run.cpp", "tapestry/distributed/planner/planner.h"));
  CHECK(allowed("apps/classifier/main.cpp", "tapestry/tapestry.h"));
  CHECK_FALSE(allowed("nn/module.cpp", "tapestry/tapestry.h"));
  CHECK_FALSE(allowed("tapestry.h", "tapestry/apps/common/progress.h"));
  CHECK_FALSE(allowed("apps/classifier/main.cpp", "tests/support/catch.h"));
  CHECK_FALSE(allowed("kernels/cuda/portable.cuh", "tapestry/tests/support/gpu.h"));
  CHECK(allowed("tests/core/shape_test.cpp", "tests/support/catch.h"));
}

TEST_CASE("apps and the planner do not know the names of modes") {
  // These names are words of other options too, so only comparisons with them count.
  const std::set<std::string> words = {"none", "single", "model", "pipeline"};
  const auto knows = [&](const SourceFile& file, const std::string& name) {
    std::istringstream lines(file.text);
    for (std::string line; std::getline(lines, line);) {
      const std::string code = line.substr(0, line.find("//")), quoted = '"' + name + '"';
      if (words.count(name) == 0 ? code.find(quoted) != std::string::npos
                                 : name != "none" && (code.find("== " + quoted) != std::string::npos ||
                                                      code.find("!= " + quoted) != std::string::npos))
        return true;
    }
    return false;
  };
  const auto found = [&](const std::vector<SourceFile>& tree) {
    Findings findings;
    for (const SourceFile& file : tree)
      for (const auto& alias : tapestry::distributed::strategy_aliases())
        if ((file.path.starts_with("apps/") || file.path.starts_with("distributed/planner/")) &&
            knows(file, alias.name))
          findings.push_back(file.path + ": " + alias.name);
    return findings;
  };
  CHECK(found(read_tree(kRoot)) == Findings{});
  const PlantedTree planted;
  planted.plant("apps/a/main.cpp", "if (parallel == \"single\") {}\nsay(\"with ddp\");  // not \"fsdp\"\n");
  planted.plant("distributed/planner/predict.cpp",
                "table = {{\"zero1\", predict_zero}, {\"model\", nullptr}};\n");
  CHECK(found(planted.read()).size() == 2);
}

TEST_CASE("includes are written from the root") {
  CHECK(wrong_form(read_tree(kRoot)) == Findings{});

  const PlantedTree planted;
  planted.plant("core/a.h", including("shape.h") + including("../core/shape.h") + including("core/shape.h") +
                                "#include <tapestry/core/shape.h>\n" + including("tapestry/core/shape.h") +
                                "#include <vector>\n");
  CHECK(wrong_form(planted.read()).size() == 4);
}

TEST_CASE("public headers include only the standard library and the project") {
  CHECK(foreign_headers(read_tree(kRoot)) == Findings{});

  const PlantedTree planted;
  for (const char* header : {"Eigen/Core", "oneapi/dnnl/dnnl.hpp", "nlohmann/json.hpp", "zlib.h",
                             "cuda_runtime.h", "nccl.h", "gloo/context.h", "omp.h", "immintrin.h"}) {
    planted.plant("nn/linear.h", "#include <vector>\n#include <" + std::string(header) + ">\n");
    CHECK(foreign_headers(planted.read()).size() == 1);
  }
  planted.plant("nn/linear.h", "#include <vector>\n" + including("tapestry/core/tensor.h"));
  planted.plant("nn/linear.cpp", "#include <zlib.h>\n");
  planted.plant("kernels/cpu/matmul.h", "#include <Eigen/Core>\n");
  planted.plant("nn/internal/json.h", "#include <nlohmann/json.hpp>\n");
  CHECK(foreign_headers(planted.read()) == Findings{});
}

TEST_CASE("public headers and apps include no private headers") {
  CHECK(private_includes(read_tree(kRoot)) == Findings{});

  const auto allowed = [](const std::string& file, const std::string& included) {
    const PlantedTree planted;
    planted.plant(file, including(included));
    return private_includes(planted.read()).empty();
  };
  CHECK_FALSE(allowed("core/tensor.h", "tapestry/core/internal/worker.h"));
  CHECK_FALSE(allowed("distributed/ddp/ddp.h", "tapestry/distributed/ddp/internal/reducer.h"));
  CHECK_FALSE(allowed("nn/optim/optimizer.h", "tapestry/kernels/ops/optim.h"));
  CHECK_FALSE(allowed("kernels/cuda/portable.cuh", "tapestry/kernels/cuda/dims.cuh"));
  CHECK_FALSE(allowed("tapestry.h", "tapestry/core/internal/worker.h"));
  CHECK_FALSE(allowed("apps/classifier/main.cpp", "tapestry/core/internal/worker.h"));
  CHECK_FALSE(allowed("apps/classifier/main.cpp", "tapestry/kernels/slot.h"));
  CHECK(allowed("apps/classifier/main.cpp", "tapestry/kernels/cuda/portable.cuh"));
  CHECK(allowed("kernels/cuda/portable.cuh", "tapestry/core/half.h"));
  CHECK(allowed("core/tensor.cpp", "tapestry/core/internal/worker.h"));
  CHECK(allowed("nn/optim/optimizer.cpp", "tapestry/kernels/ops/optim.h"));
  CHECK(allowed("core/internal/worker.h", "tapestry/core/internal/cpu_allocator.h"));
  CHECK(allowed("tests/core/worker_test.cpp", "tapestry/core/internal/worker.h"));
}

TEST_CASE("removed phrases do not come back") {
  CHECK(removed_phrases(read_tree(kRoot)) == Findings{});

  const auto found = [](const std::string& file, const std::string& text) {
    const PlantedTree planted;
    planted.plant(file, text);
    return removed_phrases(planted.read()).size();
  };
  CHECK(found("core/a.h", "#pragma once\n// Loops. Not in tapestry.h: for kernels.\n") == 1);
  CHECK(found("core/a.h", "#pragma once\n// Loops. Not in\n// tapestry.h: for kernels.\n") == 1);
  CHECK(found("tests/core/a_test.cpp", "  /// Not\n  /// in tapestry.h\n") == 1);
  CHECK(found("tests/structure/a_test.cpp", "// Not in tapestry.h\n") == 0);
  CHECK(found("kernels/slot.h", "extern thread_local Device kernel_device;\n") == 1);
  CHECK(found("autograd/ops/norm.cpp", "void* p = const_cast<void*>(q);\n") == 1);
  CHECK(found("kernels/cpu/conv_onednn.cpp", "void* p = const_cast<void*>(q);\n") == 0);
  CHECK(found("core/a.h", "// Not in the list.\nint x;  // tapestry.h\n") == 0);
}

TEST_CASE("files have at most 600 lines") {
  CHECK(too_long(read_tree(kRoot), 600) == Findings{});

  const PlantedTree planted;
  planted.plant("core/long.cpp", std::string(601, '\n'));
  planted.plant("core/short.cpp", std::string(600, '\n'));
  CHECK(too_long(planted.read(), 600) == Findings{"core/long.cpp: 601 lines"});
}

TEST_CASE("each top-level folder has a README") {
  CHECK(without_readme(kRoot, read_tree(kRoot)) == Findings{});

  const PlantedTree planted;
  planted.plant("core/a.h", "");
  planted.plant("nn/a.h", "");
  planted.plant("nn/README.md", "# nn\n");
  planted.plant("data/a.h", "");
  planted.plant("data/README.md", "");
  CHECK(without_readme(planted.root(), planted.read()).size() == 2);
}

TEST_CASE("a family of operations has one basename in every layer") {
  CHECK(mismatched_families(read_tree(kRoot)) == Findings{});

  const PlantedTree planted;
  planted.plant("kernels/ops/trig.h", including("tapestry/kernels/ops/pointwise.h"));
  CHECK(mismatched_families(planted.read()) == Findings{});  // no public functions, so no family
  planted.plant("autograd/ops/trig.h", "");
  planted.plant("autograd/ops/trig.cpp", "");
  planted.plant("kernels/cpu/trig.cpp", "");
  planted.plant("kernels/cuda/trig.cuh", "");
  planted.plant("kernels/cuda/trig.cu", "");
  planted.plant("tests/golden/trigonometry.py", "");
  planted.plant("tests/autograd/trig_test.cpp", "");
  CHECK(mismatched_families(planted.read()) ==
        Findings{"kernels/ops/trig.h: tests/golden/trig.py is missing"});

  const PlantedTree sources;
  sources.plant("kernels/ops/pool.h", "");
  sources.plant("kernels/cpu/pool_max.cpp", "");
  sources.plant("kernels/cuda/max_pool.cu", "");
  sources.plant("autograd/ops/pool.cpp", "");
  CHECK(mismatched_families(sources.read()) ==
        Findings{"autograd/ops/pool.cpp: no family in autograd/ops/ has this name",
                 "kernels/cuda/max_pool.cu: no family in kernels/ops/ has this name"});
}

TEST_CASE("links and paths in Markdown pages exist") {
  CHECK(dead_references(kRoot) == Findings{});

  const PlantedTree planted;
  planted.plant("README.md",
                "[a](docs/a.md), [b](docs/b.md#part), [web](https://example.org/x)\n`core/tensor.h`, "
                "`list[\"a\"](x)`\n");
  planted.plant("docs/a.md", "# a\n`core/tensor.h`, `core/gone.h`, `core/softsign.h`, [up](../core)\n");
  planted.plant("core/tensor.h", "");
  planted.plant("build/docs/a.md", "[gone](gone.md)\n");
  CHECK(dead_references(planted.root()) == Findings{"README.md:1: docs/b.md", "docs/a.md:2: core/gone.h"});
}

TEST_CASE("tapestry.h includes all public headers") {
  CHECK(outside_umbrella(read_tree(kRoot)) == Findings{});

  const PlantedTree planted;
  planted.plant("tapestry.h", including("tapestry/core/a.h"));
  planted.plant("core/a.h", including("tapestry/core/b.h"));
  planted.plant("core/b.h", "");
  planted.plant("kernels/slot.h", "");
  planted.plant("core/internal/c.h", "");
  CHECK(outside_umbrella(planted.read()) == Findings{});
  planted.plant("core/cuda/d.h", "");
  CHECK(outside_umbrella(planted.read()) ==
        Findings{"core/cuda/d.h: include it in tapestry.h, or move it below internal/"});
}

TEST_CASE("a namespace of the library has each type once") {
  CHECK(repeated_types(read_tree(kRoot)) == Findings{});

  const auto repeated = [](const std::string& code) {
    const PlantedTree planted;
    planted.plant("core/a.h",
                  "namespace t {\nnamespace u {\nstruct A final : B<int> { int i = 0; };\n}\n}\n");
    planted.plant("core/b.cpp", code);
    return repeated_types(planted.read());
  };
  CHECK(repeated("namespace t::u {\nclass [[nodiscard]] alignas(8) A {};\n}\n") ==
        Findings{"core/b.cpp: t::u::A is a type of core/a.h too; rename one of them"});
  CHECK(repeated("#define OPEN {\nconst char* s = \"{\"; char c = '{';  // {\nauto r = R\"x({)x\";\n"
                 "namespace t { void f() { struct A {}; }\nnamespace u {\nenum class A : int { a };\n} }\n")
            .size() == 1);
  for (const char* other :
       {"namespace t { struct A {}; }", "namespace t::u { namespace { struct A {}; } }",
        "namespace t::u { class A; template <class A> struct B { struct A {}; }; void f(struct A a) {} }",
        "namespace t::u { template <> struct A<int> {}; void f() { struct A {}; } enum class A : int; }",
        "namespace v = t::u;\nstruct A {};"})
    CHECK(repeated(other) == Findings{});
}

// The order in which a call evaluates its arguments is unspecified. g++ evaluates the last one first, so
// check(open(...) >= 0, strerror(errno)) shows the error of an earlier call.
TEST_CASE("errno is read after the call that sets it, not among the arguments of check()") {
  const auto early = [](const std::vector<SourceFile>& tree) {
    const std::string reads = "strerror(errno)";
    Findings findings;
    for (const SourceFile& file : tree) {
      for (auto at = file.text.find(reads); at != std::string::npos; at = file.text.find(reads, at + 1)) {
        const auto begin = file.text.find_last_of(";{}", at);
        const std::string statement = file.text.substr(begin + 1, at - begin);
        if (!file.path.starts_with("tests/") && statement.find("check") != std::string::npos)
          findings.push_back(file.path);
      }
    }
    return findings;
  };
  CHECK(early(read_tree(kRoot)) == Findings{});

  const PlantedTree planted;
  planted.plant("core/a.cpp",
                "void f() {\n  check<Error>(open(p) >= 0, \"[f] \", std::strerror(errno));\n}\n");
  planted.plant("core/b.cpp",
                "void f() {\n  if (open(p) < 0) fail<Error>(\"[f] \", std::strerror(errno));\n}\n");
  CHECK(early(planted.read()) == Findings{"core/a.cpp"});
}

TEST_CASE("pages that name a version name that of the library") {
  const std::string version = tapestry::version();
  // The version that stands in `text` behind the first `before`.
  const auto behind = [](const std::string& text, const std::string& before) {
    const std::size_t at = text.find(before);
    if (at == std::string::npos) return "nothing behind " + before;
    const std::size_t begin = at + before.size();
    return text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin);
  };
  CHECK(behind("## 0.2.0, unreleased\n## 0.1.0\n", "\n## ") == "0.1.0");
  CHECK(behind("## 0.2.0", "## ") == "0.2.0");
  for (const auto& [file, before] : {std::pair("CHANGELOG.md", "\n## "),
                                     {"README.md", "pip install tapestry-"},
                                     {"docs/reference/installing.md", "pip install tapestry-"},
                                     {"docs/reference/installing.md", "tapestry-run (Tapestry) "},
                                     {"tools/ptx/CMakeLists.txt", "tapestry_ptx VERSION "}}) {
    std::ifstream in(kRoot / file);
    INFO(file);
    CHECK(behind({std::istreambuf_iterator<char>(in), {}}, before) == version);
  }
}
