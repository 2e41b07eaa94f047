#pragma once
// The number of compute threads.

namespace tapestry {

/// Sets the number of threads that CPU kernels may use, in total for all logical CPU devices. The default is
/// OMP_NUM_THREADS or, if that variable is not set, the number of cores that the process may use (its CPU
/// affinity). Throws ValueError unless n is from 1 to 1024.
void set_num_threads(int n);
int get_num_threads();

/// The number of threads that kernels called from this thread use. In the scope of a ThreadShare it is the
/// share. Otherwise it is get_num_threads() / device_count(cpu) for the first thread of the process that
/// computes, and 1 for every other thread, because a second thread that opens OpenMP regions slows every
/// later region 3-8 times. Inside a parallel_for it is 1. Also calls omp_set_num_threads(), so that libraries
/// with their own OpenMP regions (oneDNN, Eigen) use the same number: call this function before such a
/// library.
int compute_threads();

/// Gives the calling thread `n` compute threads until the guard is destroyed. The worker of each logical
/// device has a ThreadShare.
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
