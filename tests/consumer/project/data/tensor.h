#pragma once
// A name that the library has too, in another folder.
struct Tensor {
  int rows;
};
