#include "tapestry/distributed/comm/text.h"

#include <algorithm>
#include <cstring>
#include <exception>

namespace tapestry::distributed {
namespace {

Tensor bytes(std::int64_t count) { return empty({count}, {DType::u8, kCPU}); }

}  // namespace

std::vector<std::string> all_gather_text(ProcessGroup& group, std::string_view text, std::string_view name) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::int64_t length = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(ranks);
  group
      .all_gather(from_blob(lengths.data(), {group.size()}, DType::i64), from_blob(&length, {1}, DType::i64),
                  name)
      .wait();
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const Tensor mine = bytes(longest), all = bytes(longest * group.size());
  if (longest > 0) std::memset(mine.raw_data(), 0, mine.nbytes());
  if (!text.empty()) std::memcpy(mine.raw_data(), text.data(), text.size());
  group.all_gather(all, mine, name).wait();
  std::vector<std::string> result;
  for (std::size_t i = 0; i < ranks; ++i)
    result.emplace_back(static_cast<const char*>(all.raw_data()) + static_cast<std::int64_t>(i) * longest,
                        static_cast<std::size_t>(lengths[i]));
  return result;
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
  std::exception_ptr thrown;
  std::string text;
  if (group.rank() == 0) {
    try {
      task();
    } catch (const std::exception& e) {
      thrown = std::current_exception();
      text = *e.what() ? e.what() : "an exception without a text";
    } catch (...) {
      thrown = std::current_exception();
      text = "an exception of an unknown type";
    }
  }
  text = broadcast_text(group, text, 0, op);
  if (thrown) std::rethrow_exception(thrown);
  check<DistributedError>(text.empty(), "[", op, "] it failed on rank 0: ", text);
}

}  // namespace tapestry::distributed
