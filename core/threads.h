#pragma once
// Control of compute threads.

namespace tapestry {

/// Threads that CPU kernels may use, all logical CPU devices together. Default: OMP_NUM_THREADS, else the
/// number of cores. Throws ValueError unless n is from 1 to 1024.
void set_num_threads(int n);
int get_num_threads();

/// Threads that kernels called from this thread use: this thread's share (ThreadShare), else for the first
/// thread that computes those of one logical device, and for any other one 1: a second thread that opens
/// OpenMP regions slows every later region 3-8 times. Inside a parallel_for it is 1. Also tells OpenMP, so
/// that a library with regions of its own (oneDNN, Eigen) keeps to it: call this before such a library.
int compute_threads();

/// Gives the calling thread `n` compute threads while it lives. Workers of logical devices hold one.
class ThreadShare {
 public:
  explicit ThreadShare(int n);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

 private:
  int saved_;
};

}  // namespace tapestry
