#include "tapestry/distributed/comm/internal/parts.h"

#include <sstream>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/hash.h"

namespace tapestry::distributed {
namespace {

std::string line_of(const Tensor& t) { return concat({t.numel(), " ", t.dtype()}); }

// Identifies part (from, to) with its size, which `line` has.
std::uint64_t hash_of(std::size_t from, std::size_t to, const std::string& line) {
  return mix(fnv1a(concat({from, " ", to, " ", line})));
}

struct Ends {
  std::string call;
  std::vector<std::string> sent, expected;  // by the other rank
};

Ends parsed(const std::string& text, std::size_t ranks) {
  std::istringstream lines(text);
  Ends ends;
  std::getline(lines, ends.call);
  for (auto* list : {&ends.sent, &ends.expected}) {
    list->resize(ranks);
    for (std::string& line : *list) std::getline(lines, line);
  }
  return ends;
}

// "6 float32 elements"
std::string elements(const std::string& line) { return line + " elements"; }

}  // namespace

void describe_parts(int rank, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                    CollectiveRecord& record) {
  const auto me = static_cast<std::size_t>(rank);
  record.list.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string line = line_of(inputs[i]);
    record.parts += hash_of(me, i, line);
    record.list += (i == 0 ? "" : "\n") + line;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string line = line_of(outputs[i]);
    record.parts -= hash_of(i, me, line);
    record.list += "\n" + line;
  }
}

std::string parts_text(const CollectiveRecord& record) { return record.str() + "\n" + record.list; }

std::string parts_mismatch(const std::string& group, const std::vector<int>& ranks,
                           const std::vector<std::string>& texts) {
  std::vector<Ends> all;
  for (const std::string& text : texts) all.push_back(parsed(text, ranks.size()));
  std::string first, calls;
  int more = -1;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    calls += concat({"\n  rank ", ranks[i], "  ", all[i].call});
    for (std::size_t j = 0; j < ranks.size(); ++j) {
      const std::string &sent = all[i].sent[j], &expected = all[j].expected[i];
      if (sent == expected) continue;
      if (more++ < 0)
        first = concat({"rank ", ranks[i], " sends ", elements(sent), " to rank ", ranks[j],
                        ", which expects ", elements(expected)});
    }
  }
  return concat(
      {"[all_to_all] the parts that ranks of ", group, " send and expect differ: ", first,
       more > 0 ? concat({", and ", more, " more differ"}) : "", calls,
       "\ngive both ends of each part one dtype and one number of elements; if only the sender knows "
       "it, exchange the numbers first"});
}

}  // namespace tapestry::distributed
