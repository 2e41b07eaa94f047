// cases NAME: programs for command_test.cpp, which checks what is reported about them.
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstring>

__global__ void asserts(int n) { assert(static_cast<int>(threadIdx.x) < n); }
__global__ void lost_in_first(int* x) { *x += 1; }
__global__ void lost_in_second(int* x) {
  *x += 1;  // line 11
}

int main(int count, char** arguments) {
  const char* const name = count > 1 ? arguments[1] : "";
  int* x = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&x), 4);
  cudaMemset(x, 0, 4);
  if (std::strcmp(name, "assert") == 0) {
    asserts<<<1, 64>>>(60);
    std::printf("error %d\n", static_cast<int>(cudaDeviceSynchronize()));
  } else if (std::strcmp(name, "races") == 0) {
    for (int i = 0; i < 3; ++i) lost_in_first<<<1, 64>>>(x);
    lost_in_second<<<1, 64>>>(x);
    std::printf("error %d\n", static_cast<int>(cudaDeviceSynchronize()));
    cudaFree(x);
  }
  return 0;  // otherwise, x is not released
}
