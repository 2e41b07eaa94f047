// Medians of collectives over gloo between processes of this host, in milliseconds, and of the descriptor
// check: `bench_collectives [ranks = 2] [rounds = 51]`.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/tapestry.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

double median_ms(ProcessGroup& group, int rounds, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = -3; i < rounds; ++i) {
    group.barrier().wait();
    const auto start = Clock::now();
    call();
    if (i >= 0) times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds) / 2];
}

void run(const std::string& path, int rank, int ranks, int rounds) {
  const auto store = file_store(path);
  const auto backend = gloo_backend(prefix_store("gloo/", store), rank, ranks, Milliseconds(30'000));
  const auto checked = make_process_group(backend, prefix_store("checked/", store));
  const auto plain = make_process_group(backend, prefix_store("plain/", store), {.check = false}, "plain");
  for (const std::int64_t bytes : {4 << 10, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20}) {
    const Tensor x = zeros({bytes / 4});
    const Tensor all = empty({bytes / 4 * ranks});
    const int n = bytes > (4 << 20) ? std::max(rounds / 4, 5) : rounds;
    const double raw = median_ms(*plain, n, [&] {
      backend->all_reduce(x.data<float>(), x.numel(), DType::f32, ReduceOp::sum,
                          Clock::now() + std::chrono::seconds(60));
    });
    const double without = median_ms(*plain, n, [&] { plain->all_reduce(x).wait(); });
    const double with = median_ms(*plain, n, [&] { checked->all_reduce(x).wait(); });
    const double broadcast = median_ms(*plain, n, [&] { plain->broadcast(x).wait(); });
    const double gather = median_ms(*plain, n, [&] { plain->all_gather(all, x).wait(); });
    if (rank == 0)
      std::printf(
          "%9lld bytes: all_reduce %.3f (transport alone %.3f; with the check %+.3f), broadcast %.3f, "
          "all_gather %.3f\n",
          static_cast<long long>(bytes), without, raw, with - without, broadcast, gather);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2, rounds = argc > 2 ? std::atoi(argv[2]) : 51;
  if (ranks < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: bench_collectives [ranks] [rounds]\n");
    return 2;
  }
  std::string path = (std::filesystem::temp_directory_path() / "bench_collectives_XXXXXX").string();
  close(mkstemp(path.data()));
  std::remove(path.c_str());
  // Before any thread: the store and the groups start theirs in run().
  int rank = 0;
  while (rank + 1 < ranks && fork() != 0) ++rank;
  const bool parent = rank + 1 == ranks;
  int status = 0;
  try {
    run(path, ranks - 1 - rank, ranks, rounds);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    status = 1;
  }
  if (!parent) _exit(status);
  while (wait(nullptr) > 0) {
  }
  std::filesystem::remove(path);
  return status;
}
