// For sm_90a.
#include "tapestry/tools/ptx/tests/laboratory/right/right.h"

__global__ void __cluster_dims__(2) in_cluster() {}
__global__ void __cluster_dims__(1) in_cluster_of_one(int* y) { y[threadIdx.x] = 1; }
__global__ void without_cluster(int* y) { y[threadIdx.x] += 1; }
// The machine lacks clusters of two blocks; the other kernels of the file run.
RIGHT(cluster_of_another_kernel) {
  const Buffer<int> y(32);
  in_cluster_of_one<<<1, 32>>>(y.data);
  without_cluster<<<1, 32>>>(y.data);
  FINISH();
  EXPECT(y.download()[31] == 2);
}
