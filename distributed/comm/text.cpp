#include "tapestry/distributed/comm/text.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "tapestry/core/tensor.h"

namespace tapestry::distributed {
namespace {

Tensor bytes(std::int64_t count) { return empty({count}, {DType::u8, kCPU}); }

// The exception that a task threw, and its text, which is never empty. Both are empty if the task succeeded.
struct Thrown {
  std::exception_ptr exception;
  std::string text;
};
Thrown attempt(const std::function<void()>& task) {
  try {
    task();
    return {};
  } catch (const std::exception& e) {
    return {std::current_exception(), *e.what() ? e.what() : "an exception without text"};
  } catch (...) {
    return {std::current_exception(), "an exception of an unknown type"};
  }
}

}  // namespace

std::vector<std::string> all_gather_text(ProcessGroup& group, std::string_view text, std::string_view name) {
  const auto length = static_cast<std::int64_t>(text.size());
  const std::vector<std::int64_t> lengths = all_gather_numbers(group, {&length, 1}, name);
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const Tensor mine = bytes(longest), all = bytes(longest * group.size());
  if (longest > 0) std::memset(mine.raw_data(), 0, mine.nbytes());
  if (!text.empty()) std::memcpy(mine.raw_data(), text.data(), text.size());
  group.all_gather(all, mine, name).wait();
  std::vector<std::string> result;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    result.emplace_back(static_cast<const char*>(all.raw_data()) + static_cast<std::int64_t>(i) * longest,
                        static_cast<std::size_t>(lengths[i]));
  return result;
}

std::vector<std::int64_t> all_gather_numbers(ProcessGroup& group, std::span<const std::int64_t> numbers,
                                             std::string_view name) {
  std::vector<std::int64_t> own(numbers.begin(), numbers.end());
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(group.size()));
  const auto as_tensor = [](std::vector<std::int64_t>& v) {
    return from_blob(v.data(), {static_cast<std::int64_t>(v.size())}, DType::i64);
  };
  group.all_gather(as_tensor(all), as_tensor(own), name).wait();
  return all;
}

std::string broadcast_text(ProcessGroup& group, std::string_view text, int root, std::string_view name) {
  std::int64_t length = group.rank() == root ? static_cast<std::int64_t>(text.size()) : 0;
  group.broadcast(from_blob(&length, {1}, DType::i64), root, name).wait();
  const Tensor data = bytes(length);
  if (group.rank() == root && length > 0) std::memcpy(data.raw_data(), text.data(), text.size());
  group.broadcast(data, root, name).wait();
  return {static_cast<const char*>(data.raw_data()), static_cast<std::size_t>(length)};
}

void on_rank_0(ProcessGroup& group, const char* op, const std::function<void()>& task) {
  const Thrown own = group.rank() == 0 ? attempt(task) : Thrown();
  const std::string text = broadcast_text(group, own.text, 0, op);
  if (own.exception) std::rethrow_exception(own.exception);
  check<DistributedError>(text.empty(), "[", op, "] failed on rank 0: ", text);
}

void on_all_ranks(ProcessGroup& group, const char* op, const std::function<void()>& task) {
  const Thrown own = attempt(task);
  const std::vector<std::string> texts = all_gather_text(group, own.text, op);
  if (own.exception) std::rethrow_exception(own.exception);
  for (std::size_t r = 0; r < texts.size(); ++r)
    check<DistributedError>(texts[r].empty(), "[", op, "] failed on rank ", r, ": ", texts[r]);
}

}  // namespace tapestry::distributed
