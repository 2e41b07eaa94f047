#pragma once
// This header has the name of one of the library's headers, core/tensor.h. The two must not be confused.
struct Tensor {
  int rows;
};
