#include "tapestry/core/hook_list.h"

#include <mutex>

#include "tapestry/core/internal/fork.h"

namespace tapestry::detail {
namespace {
// Never destroyed, because static modules may lock it while the program ends.
std::mutex& hook_mutex() {
  static std::mutex& mutex = lock_during_fork(*new std::mutex);
  return mutex;
}
}  // namespace

HookListLock::HookListLock() { hook_mutex().lock(); }
HookListLock::~HookListLock() { hook_mutex().unlock(); }

}  // namespace tapestry::detail
