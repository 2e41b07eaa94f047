#pragma once
// A matrix product as vendor libraries describe it. They store matrices column by column, so our C (m, n),
// whose rows are contiguous, is their matrix of n rows and m columns: the product of our B and our A.
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/kernels/ops/matmul.h"

namespace tapestry::kernels::cuda {

/// A batch dimension: its size, and its strides in elements.
struct GemmBatch {
  std::int64_t size = 1, a = 0, b = 0, c = 0;
};

struct GemmProblem {
  DType dtype = DType::f32;
  std::int64_t m = 0, n = 0, k = 0;
  bool a_along_k = true, b_along_k = false;  // the dimension along which each operand is contiguous
  std::int64_t lda = 0, ldb = 0, ldc = 0;    // distance of contiguous lines in elements
  GemmBatch batch;                           // the largest dimension, which one call computes
  std::vector<GemmBatch> calls;              // the other dimensions: one call for each of their indices
  bool accumulate = false, bias = false, aux = false, row_sums = false, tf32 = false;
  Epilogue epilogue = Epilogue::none;
  int a_align = 1, b_align = 1, c_align = 1, bias_align = 1, aux_align = 1,
      row_sums_align = 1;  // bytes, at most 256

  std::int64_t call_count() const;
};

/// The product must have elements. Dimensions of the batch are merged where strides allow it.
GemmProblem gemm_problem(DType dtype, const GemmArgs& g);
/// A text that equals another problem's text only if the problems are equal.
std::string exact_key(const GemmProblem& p);
/// The text for the table of choices. Products of less than 2^26 multiplications share the choice of the
/// first product in their size class, whose sizes have the same three leading bits and the same divisibility
/// by 8. Otherwise each step of text generation, whose sequence is one token longer, would be measured.
std::string choice_key(const GemmProblem& p);
/// True if choice_key() stands for this problem alone.
bool has_exact_choice(const GemmProblem& p);

}  // namespace tapestry::kernels::cuda
