// What nvcc made of kernels, run by the PTX machine, against what g++ made of them, run by the emulator, bit
// by bit. Neither compiler may contract here. Without nvcc, the tests say so and end.
#include "tests/uncontracted/kernels.cuh"

#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "tapestry/tools/ptx/machine.h"
#include "tests/support/catch.h"

using namespace tapestry::kernels;
using namespace tapestry::kernels::cuda;
using namespace uncontracted;

namespace {

/// Launches kernels on the emulator and on the machine. The two launches use the same memory, one after the
/// other.
class Both {
 public:
  /// False if there was no nvcc.
  bool load() {
#ifdef TAPESTRY_PTX_FILE
    std::ifstream file(TAPESTRY_PTX_FILE);
    std::stringstream text;
    text << file.rdbuf();
    REQUIRE(file);
    machine_.load(text.str());
    return true;
#else
    std::cout << "not tested: nvcc was not found when the tests were built\n";
    return false;
#endif
  }
  /// Memory of `n` elements. Numbers have full mantissas; `around` is their mean.
  template <class T>
  T* memory(std::size_t n, double around = 0) {
    blocks_.push_back(
        {std::make_unique<Line[]>((n * sizeof(T) + sizeof(Line) - 1) / sizeof(Line)), n * sizeof(T)});
    T* const p = reinterpret_cast<T*>(blocks_.back().lines.get());
    for (std::size_t i = 0; i < n; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      p[i] = static_cast<T>(around + static_cast<double>(state_ >> 11) * 0x1p-52 - 1);
    }
    machine_.memory().add(p, n * sizeof(T), true);
    return p;
  }
  template <class... P>
  void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::type_identity_t<P>... args) {
    const std::vector<std::string> before = contents();
    cuda_emulator::take_launches();
    cuda_emulator::launch(kernel, grid, block, 0, nullptr, args...);
    const std::string name = cuda_emulator::take_launches().back().kernel;
    const std::vector<std::string> emulated = contents();
    for (std::size_t b = 0; b < blocks_.size(); ++b)
      std::memcpy(blocks_[b].lines.get(), before[b].data(), before[b].size());
    machine_.launch(name, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, 0, args...);
    INFO(name);
    CHECK(emulated != before);
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const std::string& wanted = emulated[b];
      const char* const found = reinterpret_cast<const char*>(blocks_[b].lines.get());
      for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i] != found[i]) {
          FAIL_CHECK("memory " << b << " differs in byte " << i << " of " << wanted.size());
          break;
        }
    }
  }

 private:
  struct alignas(256) Line {
    char bytes[256];
  };
  struct Block {
    std::unique_ptr<Line[]> lines;
    std::size_t bytes;
  };
  std::vector<std::string> contents() const {
    std::vector<std::string> all;
    for (const Block& b : blocks_) all.emplace_back(reinterpret_cast<const char*>(b.lines.get()), b.bytes);
    return all;
  }
  std::vector<Block> blocks_;
  tapestry::ptx::Machine machine_;
  std::uint64_t state_ = 12345;
};

template <class T>
void formulas(Both& both) {
  const auto n = std::size_t{300};
  T* const x = both.memory<T>(2 * n, 0.3);
  T* const y = both.memory<T>(2 * n);
  both.launch(&axpy<T>, 5, 128, 600, static_cast<T>(1.7), x, y);
  both.launch(&complex_quotients<T>, 3, 128, 300, x, y, both.memory<T>(2 * n), both.memory<T>(n));
}

}  // namespace

TEST_CASE("without contraction, nvcc's and g++'s formulas give the same bits") {
  Both both;
  if (!both.load()) return;
  formulas<float>(both);
  formulas<double>(both);
  both.launch(&mixed<>, 4, 128, 500, both.memory<double>(500, 2), both.memory<float>(500, 2),
              both.memory<std::int64_t>(500));
  const Dot dot{both.memory<float>(5001), both.memory<float>(5001, 0.1), both.memory<double>(1)};
  float* const parts = both.memory<float>(3);
  both.launch(&add_elements<Dot>, 3, kSumThreads, 5001, true, dot, parts);
  both.launch(&add_parts<Dot>, 1, kSumThreads, 3, dot, parts);
}

TEST_CASE("without contraction, the library's kernels give the same bits by nvcc and by g++") {
  Both both;
  if (!both.load()) return;
  SECTION("products of matrices") {
    for (const bool along : {true, false}) {
      const std::int64_t m = 70, n = 68, k = 52;
      GemmArgs g;
      g.m = m, g.n = n, g.k = k;
      g.a = both.memory<float>(static_cast<std::size_t>(m * k));
      g.b = both.memory<float>(static_cast<std::size_t>(k * n));
      g.c = both.memory<float>(static_cast<std::size_t>(m * n));
      g.bias = both.memory<float>(static_cast<std::size_t>(n));
      g.row_sums = both.memory<float>(static_cast<std::size_t>(m));
      g.a_strides = along ? MatrixStrides{k, 1} : MatrixStrides{1, m};
      g.b_strides = along ? MatrixStrides{n, 1} : MatrixStrides{1, k};
      g.c_row = n;
      const auto plan = gemm_plan<SmallTileF32, float>(g, gemm_layout<float>(g), 1);
      both.launch(along ? &gemm_f32<SmallTileF32, 4, true, false> : &gemm_f32<SmallTileF32, 1, false, true>,
                  plan.m_tiles * plan.n_tiles, SmallTileF32::kThreads, plan);
    }
  }
  SECTION("layer normalisation") {
    const std::size_t rows = 11, n = 200;
    LayerNormRows<float> a{};
    a.rows = rows, a.n = n, a.eps = 1e-5f;
    a.x = both.memory<float>(rows * n, 0.5);
    a.weight = both.memory<float>(n, 1), a.bias = both.memory<float>(n);
    a.y = both.memory<float>(rows * n), a.mean = both.memory<float>(rows),
    a.inv_std = both.memory<float>(rows);
    both.launch(&layer_norm_rows<float, 32, 8, 4>, 3, {32, 4}, a);
    both.launch(&layer_norm_streamed<float, 1>, rows, kStreamThreads, a);
    LayerNormGrads<float> b{};
    b.rows = rows, b.chunk = 4, b.n = n;
    b.dy = both.memory<float>(rows * n), b.x = a.x, b.weight = a.weight, b.mean = a.mean,
    b.inv_std = a.inv_std;
    b.dx = both.memory<float>(rows * n), b.parts = both.memory<float>(3 * 2 * n);
    both.launch(&layer_norm_backward_rows<float, 32, 8, 4, 8>, 3, {32, 4}, b);
    both.launch(&add_row_parts<float>, (2 * n + 31) / 32, {32, 3}, b.parts, 3, b.n, both.memory<float>(n),
                both.memory<float>(n));
  }
  SECTION("the gradient of softmax") {
    const std::size_t rows = 11, n = 200;
    const RowInputs<float, 2> in{{both.memory<float>(rows * n), both.memory<float>(rows * n)}};
    both.launch(&row_in_registers<SoftmaxBackward<float, false>, float, 32, 8, 4>, 3, {32, 4}, in,
                both.memory<float>(rows * n), rows, n);
  }
  SECTION("optimizers") {
    const auto step = [&]<class Rule>(const typename Rule::Numbers& numbers) {
      using Entry = StepEntry<Rule>;
      const int numel = 1003;
      auto* const entry = reinterpret_cast<Entry*>(both.memory<std::uint8_t>(sizeof(Entry)));
      *entry = {};
      for (float*& array : entry->arrays) array = both.memory<float>(1003, 1.5);
      entry->numel = numel, entry->packs = true, entry->numbers = numbers;
      int* const owners = both.memory<int>(1);
      *owners = 0;
      both.launch(&step_chunks<Rule>, 1, kStepThreads, entry, owners);
    };
    step.operator()<SgdRule<true, true>>({0.7f, 0.01f, 0.1f, 0.9f, 1.0f, 0.9f});
    step.operator()<AdamRule<true>>({0.7f, 0.01f, 0.999f, 0.1f, 0.999f, 0.001f, 0.0123f, 0.321f, 1e-8f});
  }
}
