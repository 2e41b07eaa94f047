// Ranks as threads of this process.
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

void run_local_ranks(int size, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& fn,
                     const GroupOptions& options) {
  auto backends = local_backends(size);
  const std::shared_ptr<Store> store = memory_store();
  std::mutex mutex;
  std::exception_ptr first;

  const auto run = [&](int rank, const Context& context) {
    const ContextGuard guard(context);
    const ThreadShare share(1);
    std::shared_ptr<ProcessGroup> group;
    // Keeps only the first exception: the abort that follows causes the others.
    const auto keep = [&] {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    };
    try {
      group = make_process_group(std::exchange(backends[static_cast<std::size_t>(rank)], nullptr), store,
                                 options);
      fn(group);
    } catch (const std::exception& e) {
      keep();
      if (group) group->abort(concat({"it ended with an exception: ", e.what()}));
    } catch (...) {
      keep();
      if (group) group->abort("it ended with an exception");
    }
  };
  std::vector<std::thread> ranks;
  std::promise<bool> all_started;  // no rank begins if a later one cannot be started
  const std::shared_future<bool> go = all_started.get_future().share();
  try {
    for (int r = 0; r < size; ++r)
      ranks.push_back(detail::start_thread("run_local_ranks", [&run, r, context = current_context(), go] {
        if (go.get()) run(r, context);
      }));
    all_started.set_value(true);
  } catch (...) {
    first = std::current_exception();
    all_started.set_value(false);
  }
  for (std::thread& rank : ranks) rank.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tapestry::distributed
