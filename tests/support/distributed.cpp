#include "tests/support/distributed.h"

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tapestry/core/threads.h"

namespace distributed_test {

using namespace tapestry::distributed;

namespace {

std::vector<std::shared_ptr<Backend>> gloo_backends(int size, bool shared_memory) {
  const auto store = memory_store();
  std::vector<std::shared_ptr<Backend>> all(static_cast<std::size_t>(size));
  std::vector<std::exception_ptr> errors(all.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      try {
        all[i] = gloo_backend(store, r, size, 30s, shared_memory);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return all;
}

}  // namespace

bool has_gloo() {
  static const bool has = [] {
    try {
      gloo_backend(memory_store(), 0, 1, 1s);
      return true;
    } catch (const DistributedError& e) {
      std::fprintf(stderr, "Gloo is not tested: %s\n", e.what());
      return false;
    }
  }();
  return has;
}

const std::vector<Transport>& transports() {
  static const std::vector<Transport> all = [] {
    std::vector<Transport> rows = {{"local", local_backends}};
    if (has_gloo()) {
      rows.push_back({"gloo", [](int size) { return gloo_backends(size, true); }});
      rows.push_back({"gloo, messages only", [](int size) { return gloo_backends(size, false); }});
    }
    return rows;
  }();
  return all;
}

std::vector<Outcome> run_ranks(const Transport& transport, int size, const RankFunction& fn,
                               const GroupOptions& options) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  auto backends = transport.connect(size);
  const auto store = memory_store();
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      const tapestry::ThreadShare share(1);
      Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
      try {
        fn(make_process_group(std::exchange(backends[static_cast<std::size_t>(r)], nullptr), store, options));
      } catch (const TimeoutError& e) {
        outcome = {e.what(), true, true};
      } catch (const DistributedError& e) {
        outcome = {e.what(), false, true};
      } catch (const std::exception& e) {
        outcome = {e.what(), false, false};
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void run_ranks_well(const Transport& transport, int size, const RankFunction& fn,
                    const GroupOptions& options) {
  const auto outcomes = run_ranks(transport, size, fn, options);
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    if (!outcomes[r].error.empty())
      throw std::runtime_error(transport.name + ", rank " + std::to_string(r) + ": " + outcomes[r].error);
}

}  // namespace distributed_test
