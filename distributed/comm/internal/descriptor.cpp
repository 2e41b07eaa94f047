#include "tapestry/distributed/comm/internal/descriptor.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/hash.h"

namespace tapestry::distributed {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Replaces the list of tensors in each call_text() by the first of its tensors that not all calls have.
std::vector<std::string> without_lists(const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string>> calls;  // the call, then its tensors
  std::size_t longest = 0;
  for (const std::string& text : texts) {
    calls.push_back(lines_of(text));
    longest = std::max(longest, calls.back().size());
  }
  const auto line = [&](std::size_t call, std::size_t i) {
    return i < calls[call].size() ? calls[call][i] : std::string();
  };
  std::size_t differs = 1;
  const auto equal = [&](std::size_t i) {
    for (std::size_t call = 1; call < calls.size(); ++call)
      if (line(call, i) != line(0, i)) return false;
    return true;
  };
  while (differs < longest && equal(differs)) ++differs;
  std::vector<std::string> heads;
  for (std::size_t call = 0; call < calls.size(); ++call) {
    std::string head = calls[call][0];
    if (differs < calls[call].size())
      head.insert(std::min(head.rfind(" at "), head.size()),
                  concat({", of which tensors[", differs - 1, "] is ", calls[call][differs]}));
    heads.push_back(std::move(head));
  }
  return heads;
}

std::uint64_t hash(const Shape& shape) {
  return fnv1a({reinterpret_cast<const char*>(shape.begin()),
                static_cast<std::size_t>(shape.size()) * sizeof(std::int64_t)});
}

}  // namespace

Descriptor::Descriptor(const CollectiveRecord& record)
    : op(static_cast<std::uint8_t>(record.op)),
      reduce(static_cast<std::uint8_t>(record.reduce)),
      dtype(static_cast<std::uint8_t>(record.dtype)),
      ndim(static_cast<std::uint8_t>(record.shape.size())),
      sequence(record.sequence),
      group(fnv1a(record.group)),
      peer(record.peer),
      shape(hash(record.shape)),
      name(fnv1a(record.name)),
      list(record.tensors == 1 ? 0 : fnv1a(concat({record.tensors, "\n", record.list}))),
      order(record.order) {
  if (record.dim > 0) list = fnv1a(concat({"dim ", record.dim}));
  if (record.op != Op::all_to_all || record.tensors == 1) return;
  dtype = 0;
  ndim = kParts;
  shape = 0;
  list = record.parts;
}

MessageDescriptor::MessageDescriptor(const CollectiveRecord& record)
    : dtype(static_cast<std::uint8_t>(record.dtype)),
      ndim(static_cast<std::uint8_t>(record.shape.size())),
      name_length(static_cast<std::uint16_t>(std::min(record.name.size(), sizeof name))),
      sequence(record.sequence) {
  std::copy(record.shape.begin(), record.shape.end(), sizes);
  std::memcpy(name, record.name.data(), name_length);
}

bool MessageDescriptor::fits(const MessageDescriptor& o) const {
  return magic == o.magic && dtype == o.dtype && ndim == o.ndim && sequence == o.sequence &&
         std::equal(sizes, sizes + kMaxDims, o.sizes);
}

std::string MessageDescriptor::str() const {
  if (magic != MessageDescriptor().magic || dtype >= kNumDTypes || ndim > kMaxDims ||
      name_length > sizeof name)
    return "bytes that are not a message header";
  std::string text = concat({"message ", sequence, ", ", static_cast<DType>(dtype), " ", Shape(sizes, ndim)});
  if (name_length > 0) text += concat({" (", std::string_view(name, name_length), ")"});
  return text;
}

std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i == 2) text += ", " + std::to_string(ranks[end - 1]);
    else if (end - i > 2) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string join(const std::vector<int>& numbers) {
  std::string text;
  for (const int n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

std::string seconds(Clock::duration d) {
  const auto tenths = std::chrono::duration_cast<Milliseconds>(d).count() / 100;
  return concat({tenths / 10, ".", tenths % 10, " s"});
}

std::string call_text(const CollectiveRecord& record, std::size_t most) {
  std::string text = record.str();
  if (!record.list.empty() && record.op != Op::all_to_all) text += "\n" + record.list;
  return text.substr(0, most);
}

std::string mismatch_text(const std::string& op, const std::string& group, const std::vector<int>& ranks,
                          const std::vector<std::string>& texts) {
  const std::vector<std::string> calls = without_lists(texts);
  // Returns a call without its source line. Ranks are in the same call if these texts are equal.
  const auto what = [](const std::string& call) { return call.substr(0, call.rfind(" at ")); };
  std::vector<std::vector<std::size_t>> parties;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const auto same = std::find_if(parties.begin(), parties.end(), [&](const auto& party) {
      return what(calls[party[0]]) == what(calls[r]);
    });
    if (same == parties.end()) parties.push_back({r});
    else same->push_back(r);
  }
  std::stable_sort(parties.begin(), parties.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::string text = concat({"[", op, "] the ranks of ", group, " are not in the same call: "});
  for (std::size_t i = 0; i < parties.size(); ++i) {
    std::vector<int> members;
    for (const std::size_t r : parties[i]) members.push_back(ranks[r]);
    text += concat({i > 0 ? "; " : "", rank_list(members), " called ", what(calls[parties[i][0]])});
  }
  for (std::size_t r = 0; r < calls.size(); ++r) text += concat({"\n  rank ", ranks[r], "  ", calls[r]});
  return text +
         "\ncall the same collectives in the same order, with the same shapes, dtypes, roots and names, on "
         "every rank";
}

}  // namespace tapestry::distributed
