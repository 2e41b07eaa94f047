// Times collectives over Gloo between processes of this host, through shared memory and through messages in
// turns, and the check that compares descriptors. Prints medians in milliseconds.
//   bench_collectives [RANKS = 2] [ROUNDS = 51]
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

using Call = std::function<void()>;

// The median time of each call. The calls take turns, so that other load of the machine affects all of them.
std::vector<double> medians_ms(ProcessGroup& group, int rounds, const std::vector<Call>& calls) {
  std::vector<std::vector<double>> times(calls.size());
  for (int i = -3; i < rounds; ++i)
    for (std::size_t c = 0; c < calls.size(); ++c) {
      group.barrier().wait();
      const auto start = Clock::now();
      calls[c]();
      if (i >= 0) times[c].push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  std::vector<double> medians;
  for (auto& t : times) {
    std::nth_element(t.begin(), t.begin() + rounds / 2, t.end());
    medians.push_back(t[static_cast<std::size_t>(rounds) / 2]);
  }
  return medians;
}

struct Way {
  Way(const std::shared_ptr<Store>& base, const std::string& name, int rank, int ranks, bool shared_memory) {
    const auto store = prefix_store(name + "/", base);
    backend = gloo_backend(prefix_store("gloo/", store), rank, ranks, Milliseconds(30'000), shared_memory);
    checked = make_process_group(backend, prefix_store("checked/", store));
    plain = make_process_group(backend, prefix_store("plain/", store), {.check = false}, "plain");
  }
  std::shared_ptr<Backend> backend;
  std::shared_ptr<ProcessGroup> checked, plain;
};

void print_table(const Way (&ways)[2], int rounds, bool print) {
  if (print)
    std::printf(
        "| bytes | all_reduce: shared memory | messages | broadcast: shared memory | messages "
        "| all_gather: shared memory | messages |\n|---|---|---|---|---|---|---|\n");
  for (const std::int64_t bytes :
       {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20}) {
    const Tensor x = zeros({bytes / 4});
    const Tensor all = empty({bytes / 4 * ways[0].backend->size()});
    const int n = bytes > (4 << 20) ? std::max(rounds / 4, 5) : rounds;
    std::vector<Call> calls;
    for (const Way& way : ways) calls.push_back([&] { way.plain->all_reduce(x).wait(); });
    for (const Way& way : ways) calls.push_back([&] { way.plain->broadcast(x).wait(); });
    for (const Way& way : ways) calls.push_back([&] { way.plain->all_gather(all, x).wait(); });
    const auto ms = medians_ms(*ways[1].plain, n, calls);
    if (!print) continue;
    std::printf("| %lld |", static_cast<long long>(bytes));
    for (const double t : ms) std::printf(" %.3f |", t);
    std::printf("\n");
    std::fflush(stdout);
  }
}

// Times calls with and without the check in turns. The difference is the cost of comparing descriptors.
void print_check(const Way (&ways)[2], int rounds, bool print) {
  const Tensor x = zeros({1024});
  std::vector<Call> calls;
  for (const Way& way : ways) {
    calls.push_back([&] { way.plain->all_reduce(x).wait(); });
    calls.push_back([&] { way.checked->all_reduce(x).wait(); });
  }
  const auto ms = medians_ms(*ways[1].plain, 8 * rounds, calls);
  if (!print) return;
  std::printf(
      "\ncomparing descriptors adds %+.3f ms to an all_reduce of 4 KiB through shared memory "
      "(%.3f ms without), %+.3f ms by messages (%.3f ms without)\n",
      ms[1] - ms[0], ms[0], ms[3] - ms[2], ms[2]);
}

void run(const std::string& path, int rank, int ranks, int rounds) {
  const auto store = file_store(path);
  const Way ways[2] = {{store, "shared", rank, ranks, true}, {store, "messages", rank, ranks, false}};
  print_table(ways, rounds, rank == 0);
  print_check(ways, rounds, rank == 0);
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
  // fork() must come before any thread starts; run() starts the threads of the store and of the groups.
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
