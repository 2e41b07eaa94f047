#include "tapestry/distributed/comm/internal/post_order.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/hash.h"

namespace tapestry::distributed {
namespace {

constexpr std::size_t kShown = 3;  // the calls of a rank in an error text

bool has_rank(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// A call in a log. The group is CollectiveRecord::group_key.
struct LoggedCall {
  std::uint64_t group, sequence;
  std::string text;
};

// The calls that one rank shares with another. Numbers count from 1.
struct SharedCalls {
  std::vector<LoggedCall> calls;
  std::uint64_t end;  // 1 + the number of the last call
  std::uint64_t begin() const { return end - calls.size(); }
  const LoggedCall& at(std::uint64_t number) const { return calls[number - begin()]; }
  // The calls from this number on.
  std::string from(std::uint64_t number) const {
    std::string text;
    for (std::uint64_t n = number; n < std::min<std::uint64_t>(number + kShown, end); ++n)
      text += (text.empty() ? "" : "; then ") + at(n).text;
    return text;
  }
};

// A parsed PostOrder::log().
struct CallLog {
  std::map<int, std::uint64_t> counts;  // how many calls were shared with each rank
  std::map<std::uint64_t, std::vector<int>> groups;
  std::vector<LoggedCall> calls;

  explicit CallLog(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string kind;
      words >> kind;
      if (kind == "counts") {
        std::uint64_t count = 0;
        for (int rank = 0; words >> rank >> count;) counts[rank] = count;
      } else if (kind == "group") {
        std::uint64_t group = 0;
        words >> group;
        for (int rank = 0; words >> rank;) groups[group].push_back(rank);
      } else {
        LoggedCall call{};
        words >> call.group >> call.sequence >> std::ws;
        std::getline(words, call.text);
        calls.push_back(std::move(call));
      }
    }
  }

  // The calls of groups that contain `rank`, oldest first.
  SharedCalls shared_with(int rank) const {
    SharedCalls shared{{}, 1};
    if (const auto count = counts.find(rank); count != counts.end()) shared.end += count->second;
    for (const LoggedCall& call : calls)
      if (const auto group = groups.find(call.group); group != groups.end() && has_rank(group->second, rank))
        shared.calls.push_back(call);
    return shared;
  }
};

}  // namespace

PostOrder::PostOrder(int rank, int size, std::shared_ptr<Recorder> recorder)
    : rank_(rank), recorder_(std::move(recorder)), peers_(static_cast<std::size_t>(size)) {
  // Each pair of ranks begins with another hash, so that the differences of two pairs do not cancel in a sum.
  for (int r = 0; r < size; ++r)
    peers_[static_cast<std::size_t>(r)].hash = mix(static_cast<std::uint64_t>(std::min(r, rank)) << 32 |
                                                   static_cast<std::uint64_t>(std::max(r, rank)));
}

void PostOrder::add_group(std::uint64_t key, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  groups_[key] = ranks;
}

std::uint64_t PostOrder::post(CollectiveRecord& record, std::uint64_t call, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  record.order = 0;
  for (const int r : ranks) {
    if (r == rank_) continue;
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    peer.hash = mix(peer.hash ^ call);
    ++peer.calls;
    record.order += r > rank_ ? peer.hash : -peer.hash;  // the other rank of the pair uses the other sign
  }
  return recorder_->enqueued(record);
}

std::string PostOrder::log(const std::vector<int>& ranks, std::size_t most) const {
  const std::lock_guard lock(mutex_);
  std::string text = "counts";
  for (const int r : ranks) text += concat({" ", r, " ", peers_[static_cast<std::size_t>(r)].calls});
  std::vector<CollectiveRecord> records = recorder_->records();
  std::erase_if(records, [](const auto& r) { return r.op == Op::send || r.op == Op::recv; });
  if (records.size() > most)
    records.erase(records.begin(), records.end() - static_cast<std::ptrdiff_t>(most));
  std::set<std::uint64_t> described;
  for (const CollectiveRecord& record : records) {
    if (described.insert(record.group_key).second) {
      text += concat({"\ngroup ", record.group_key});
      if (const auto group = groups_.find(record.group_key); group != groups_.end())
        for (const int r : group->second) text += concat({" ", r});
    }
    std::string what = record.str();
    std::replace(what.begin(), what.end(), '\n', ' ');
    text += concat({"\ncall ", record.group_key, " ", record.sequence, " ", what});
  }
  return text;
}

std::uint64_t call_hash(std::uint64_t group, std::uint64_t sequence) { return mix(group ^ mix(sequence)); }

std::string find_inversion(const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  std::vector<CallLog> logs;
  for (const std::string& text : texts) logs.emplace_back(text);
  for (std::size_t a = 0; a < logs.size(); ++a)
    for (std::size_t b = a + 1; b < logs.size(); ++b) {
      const SharedCalls first = logs[a].shared_with(ranks[b]), second = logs[b].shared_with(ranks[a]);
      const std::uint64_t begin = std::max(first.begin(), second.begin());
      for (std::uint64_t n = begin; n < std::min(first.end, second.end); ++n) {
        const LoggedCall &x = first.at(n), &y = second.at(n);
        if (x.group == y.group && x.sequence == y.sequence) continue;
        return concat({"ranks ",
                       ranks[a],
                       " and ",
                       ranks[b],
                       " make the calls of the groups that they share in different orders",
                       n == begin && begin > 1 ? " since a call that they no longer remember" : "",
                       ": call ",
                       n,
                       " of these is ",
                       x.text,
                       " on rank ",
                       ranks[a],
                       " and ",
                       y.text,
                       " on rank ",
                       ranks[b],
                       "\n  rank ",
                       ranks[a],
                       "  ",
                       first.from(n),
                       "\n  rank ",
                       ranks[b],
                       "  ",
                       second.from(n),
                       "\ncall the collectives of all groups in one order on every rank, also if the groups "
                       "differ"});
      }
    }
  return {};
}

}  // namespace tapestry::distributed
