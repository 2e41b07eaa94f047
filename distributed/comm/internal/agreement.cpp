#include "tapestry/distributed/comm/internal/agreement.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/fake_group.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/descriptor.h"
#include "tapestry/distributed/comm/internal/parts.h"
#include "tapestry/distributed/comm/internal/post_order.h"

namespace tapestry::distributed {
namespace {

constexpr std::size_t kCallText = 32 << 10;  // the longest text of one rank's call that others receive
// In the store, summands are taken modulo 2^40: then sums fit into a signed integer.
constexpr std::uint64_t kStoredBits = (std::uint64_t{1} << 40) - 1;

// Ranks that do not exist make no calls to compare.
bool has_peers(const Backend& backend) { return std::string_view(backend.name()) != kFakeBackend; }

std::string call_key(std::uint64_t sequence) { return "call/" + std::to_string(sequence); }

}  // namespace

Agreement::Agreement(std::shared_ptr<Backend> backend, std::shared_ptr<Store> store, std::string group,
                     std::vector<int> ranks, std::function<std::string()> log)
    : backend_(std::move(backend)),
      store_(std::move(store)),
      group_(std::move(group)),
      ranks_(std::move(ranks)),
      log_(std::move(log)) {}

void Agreement::compare_calls(const CollectiveRecord& record, Deadline deadline) {
  if (!has_peers(*backend_)) return;
  if (on_gpu()) return compare_calls_in_store(record);
  const Descriptor mine(record);
  std::vector<Descriptor> all(ranks_.size());
  backend_->all_gather(&mine, all.data(), sizeof mine, deadline);
  std::uint64_t sum = 0, parts = 0;
  bool same = true;
  for (const Descriptor& d : all) {
    same = same && d.is_same_call(mine);
    sum += d.order;
    if (d.has_parts()) parts += d.list;
  }
  if (same && sum == 0 && parts == 0) return;
  if (same && sum == 0)
    throw Mismatch(parts_mismatch(group_, ranks_, gather_texts(record, parts_text(record), deadline)));
  if (same) fail_for_order(record, deadline);
  throw Mismatch(mismatch_text(op_name(record.op), group_, ranks_,
                               gather_texts(record, call_text(record, kCallText), deadline)));
}

// The first rank to arrive stores its call, and the others compare their calls with it.
void Agreement::compare_calls_in_store(const CollectiveRecord& record) {
  Descriptor mine(record);
  mine.order = 0;  // differs from rank to rank
  if (mine.has_parts()) {
    mine.list = 0;
    compare_parts_in_store(record);
  }
  const std::string_view bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
  const std::string text = call_text(record, kCallText);
  const std::string rank = std::to_string(backend_->rank()) + "/";
  const std::string first =
      store_->compare_set(call_key(record.sequence), std::nullopt, concat({bytes, rank, text}));
  if (first.substr(0, sizeof mine) == bytes) return;
  const std::size_t end = first.find('/', sizeof mine);
  const auto other = static_cast<std::size_t>(std::atoi(first.c_str() + sizeof mine));
  throw Mismatch(mismatch_text(op_name(record.op), group_,
                               {ranks_.at(other), ranks_[static_cast<std::size_t>(backend_->rank())]},
                               {first.substr(end + 1), text}));
}

// The last rank to arrive compares, so that no rank waits.
void Agreement::compare_parts_in_store(const CollectiveRecord& record) {
  const std::string key = concat({"parts/", record.sequence, "/"});
  const int size = backend_->size();
  store_->set(concat({key, backend_->rank()}), parts_text(record));
  store_->add(key + "sum", static_cast<std::int64_t>(record.parts & kStoredBits));
  if (store_->add(key + "ranks", 1) < size) return;
  if ((static_cast<std::uint64_t>(store_->add(key + "sum", 0)) & kStoredBits) != 0) {
    std::vector<std::string> texts;
    for (int r = 0; r < size; ++r) texts.push_back(store_->try_get(concat({key, r})).value_or(""));
    throw Mismatch(parts_mismatch(group_, ranks_, texts));
  }
  for (int r = 0; r < size; ++r) store_->erase(concat({key, r}));
  store_->erase(key + "sum");
  store_->erase(key + "ranks");
}

// A collective that needs the data of all ranks finishes only after all ranks have called it. So by then all
// ranks have compared this call and all earlier ones. An all_to_all of lists may need nothing of some ranks.
void Agreement::forget_calls(const CollectiveRecord& record) {
  const bool all_came = record.op == Op::all_reduce || record.op == Op::all_gather ||
                        record.op == Op::reduce_scatter ||
                        (record.op == Op::all_to_all && record.tensors == 1);
  if (backend_->rank() != 0 || !all_came || record.shape.numel() == 0) return;
  while (forgotten_ < record.sequence) store_->erase(call_key(++forgotten_));
}

void Agreement::compare_orders(const CollectiveRecord& record, Deadline deadline) {
  if (!has_peers(*backend_)) return;
  std::uint64_t sum = 0;
  if (on_gpu()) {
    sum = sum_in_store(record, deadline);
  } else {
    std::vector<std::uint64_t> all(ranks_.size());
    backend_->all_gather(&record.order, all.data(), sizeof record.order, deadline);
    for (const std::uint64_t summand : all) sum += summand;
  }
  if (sum != 0) fail_for_order(record, deadline);
}

// The last rank to arrive tells the others the sum.
std::uint64_t Agreement::sum_in_store(const CollectiveRecord& record, Deadline deadline) {
  const std::string key = concat({"order/", record.sequence, "/"});
  store_->add(key + "sum", static_cast<std::int64_t>(record.order & kStoredBits));
  if (store_->add(key + "ranks", 1) == backend_->size())
    store_->set(key + "result", std::to_string(store_->add(key + "sum", 0)));
  const std::string result = store_->get(key + "result", left_until(deadline));
  if (store_->add(key + "read", 1) == backend_->size())
    for (const char* const part : {"sum", "ranks", "result", "read"}) store_->erase(key + part);
  return std::strtoull(result.c_str(), nullptr, 10) & kStoredBits;
}

void Agreement::fail_for_order(const CollectiveRecord& record, Deadline deadline) {
  const std::string found = find_inversion(ranks_, gather_texts(record, log_(), deadline));
  throw Mismatch(concat(
      {"[", op_name(record.op), "] ",
       found.empty()
           ? "some ranks make the calls of the groups that they share in different orders; the first "
             "difference is older than the calls that they remember; call the collectives of all groups in "
             "one order on every rank"
           : found}));
}

std::vector<std::string> Agreement::gather_texts(const CollectiveRecord& record, std::string text,
                                                 Deadline deadline) {
  const std::size_t size = ranks_.size();
  std::vector<std::string> all;
  if (on_gpu()) {
    const auto key = [&](std::size_t r) { return concat({"order/", record.sequence, "/log/", r}); };
    store_->set(key(static_cast<std::size_t>(backend_->rank())), text);
    for (std::size_t r = 0; r < size; ++r) all.push_back(store_->get(key(r), left_until(deadline)));
    return all;
  }
  std::vector<std::size_t> lengths(size);
  const std::size_t length = text.size();
  backend_->all_gather(&length, lengths.data(), sizeof length, deadline);
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string texts(size * longest, '\0');
  text.resize(longest);
  backend_->all_gather(text.data(), texts.data(), longest, deadline);
  try {
    // A rank that throws may then leave the group and close its connections. So all ranks wait here until
    // each rank has received the texts of all others.
    backend_->barrier(deadline);
  } catch (const DistributedError&) {
  }
  for (std::size_t r = 0; r < size; ++r) all.push_back(texts.substr(r * longest, lengths[r]));
  return all;
}

}  // namespace tapestry::distributed
