#include "tapestry/core/threads.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "tapestry/core/device.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/omp_threads.h"
#include "tapestry/core/parallel.h"
#include "tapestry/core/tls_model.h"

#ifdef TAPESTRY_HAS_OPENMP
#include <dlfcn.h>
#include <omp.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

namespace tapestry {
namespace {

// A limit is needed because the OpenMP runtime ends the process if the system cannot create a thread.
constexpr int kMaxThreads = 1024;

int cores_of_process() {
#ifdef __linux__
  cpu_set_t cores;  // the CPU affinity of this process, which taskset and containers restrict
  if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 0) return CPU_COUNT(&cores);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n > 0 ? static_cast<int>(n) : 1;
}

// OpenMP runtimes ignore a value of OMP_NUM_THREADS that is no number of threads. This program does the same,
// and says what that means for it.
int threads_by_default() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  const std::optional<int> wanted = text ? detail::omp_threads(text) : std::nullopt;
  if (wanted) return std::min(*wanted, kMaxThreads);
  const int cores = cores_of_process();
  if (text && *text)
    std::fprintf(
        stderr,
        "tapestry: OMP_NUM_THREADS is \"%s\", which is not a number of threads from 1 to %d, so all %d "
        "cores of this process are used; set it to such a number, or unset it\n",
        text, kMaxThreads, cores);
  return cores;
}

std::atomic<int>& thread_count() {
  static std::atomic<int> count{threads_by_default()};
  return count;
}

constinit std::atomic<bool> main_taken{false};

// The threads of OpenMP do not exist in a child process that fork() made, but the OpenMP runtime of the child
// still waits for them in every parallel region of more than one thread. So the child computes with one
// thread. A child whose parent opened no such region may start threads of its own. The program may have
// opened regions of its own, which is not known here, so a parent with any other thread counts as well.
constinit std::atomic<bool> had_parallel_region{false};
constinit std::atomic<bool> lost_threads{false};
constinit bool other_threads = false;  // written and read by the thread that forks

void count_threads() {
#if defined(__linux__) && defined(_OPENMP)
  struct stat tasks {};
  // The folder has one link for itself, one in its parent, and one per thread.
  other_threads = ::stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink > 3;
#endif
}

[[maybe_unused]] const int fork_handler = pthread_atfork(count_threads, nullptr, [] {
  if (other_threads || had_parallel_region.load(std::memory_order_relaxed))
    lost_threads.store(true, std::memory_order_relaxed);
});

#ifdef TAPESTRY_HAS_OPENMP
// A library that is loaded later may bring an OpenMP runtime of its own, under another name, as PyTorch's wheel
// does. Two runtimes have two teams of threads, and each team spins on the cores that the other one needs. If
// this library was loaded by dlopen(), its runtime is visible to its own files only. Visible to all files, it also
// serves those that are loaded later, whatever they bring.
[[maybe_unused]] const bool one_runtime = [] {
  Dl_info runtime;
  return dladdr(reinterpret_cast<const void*>(&omp_get_max_threads), &runtime) != 0 &&
         dlopen(runtime.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr;
}();
#endif

struct ThreadState {
  int share = 0;        // the number of threads that a ThreadShare gives; 0 without one
  int applied = 0;      // the last argument of omp_set_num_threads
  bool main = false;    // the first thread of the process that computes
  bool inside = false;  // this thread is inside parallel_for
};
TAPESTRY_HOT_TLS thread_local constinit ThreadState state;

// Lets another thread become the main thread after this one has ended.
struct MainRelease {
  ~MainRelease() {
    if (state.main) main_taken.store(false);
    state.main = false;
  }
};

bool become_main() {
  if (main_taken.load(std::memory_order_relaxed) || main_taken.exchange(true)) return false;
  thread_local MainRelease release;
  static_cast<void>(release);
  return state.main = true;
}

// The main thread uses the threads of one device even if there are several devices. Otherwise its OpenMP team
// would compete with the device workers for cores, and spin on those cores between its own regions.
int threads_per_device() { return std::max(1, get_num_threads() / device_count(DeviceType::cpu)); }

}  // namespace

void set_num_threads(int n) {
  check(n >= 1 && n <= kMaxThreads, "[set_num_threads] ", n, " threads; ask for 1 to ", kMaxThreads);
  thread_count().store(n);
}

int get_num_threads() {
  return lost_threads.load(std::memory_order_relaxed) ? 1 : thread_count().load(std::memory_order_relaxed);
}

int compute_threads() {
  if (state.inside) return 1;
  int n = state.share > 0 ? state.share : state.main || become_main() ? threads_per_device() : 1;
  if (n > 1) {
    if (lost_threads.load(std::memory_order_relaxed)) n = 1;
    else if (!had_parallel_region.load(std::memory_order_relaxed))
      had_parallel_region.store(true, std::memory_order_relaxed);
  }
#ifdef TAPESTRY_HAS_OPENMP
  if (state.applied != n) omp_set_num_threads(n);
#endif
  return state.applied = n;
}

ThreadShare::ThreadShare(int n) : saved_(state.share) {
  check(n >= 1, "[ThreadShare] ", n, " threads; give at least 1");
  state.share = n;
}
ThreadShare::~ThreadShare() { state.share = saved_; }

void detail::run_chunks(int count, void (*chunk)(void* arg, int index), void* arg) {
  struct Inside {
    bool saved = std::exchange(state.inside, true);
    ~Inside() { state.inside = saved; }
  };
  std::mutex mutex;
  std::exception_ptr error;
  int failed = std::numeric_limits<int>::max();
  const auto run = [&](int i) {
    try {
      chunk(arg, i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (i < failed) error = std::current_exception(), failed = i;
    }
  };
#ifdef TAPESTRY_HAS_OPENMP
#pragma omp parallel num_threads(count)
  {
    const Inside inside;
    // The runtime may provide fewer threads than requested.
    for (int i = omp_get_thread_num(); i < count; i += omp_get_num_threads()) run(i);
  }
#else
  const Inside inside;
  for (int i = 0; i < count; ++i) run(i);
#endif
  if (error) std::rethrow_exception(error);
}

}  // namespace tapestry
