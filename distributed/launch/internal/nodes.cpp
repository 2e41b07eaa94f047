#include "tapestry/distributed/launch/internal/nodes.h"

#include <charconv>
#include <sstream>

#include "tapestry/core/error.h"
#include "tapestry/distributed/launch/internal/job_store.h"

namespace tapestry::distributed::launch {
namespace {

// The format is "<status> <restart> <text>".
std::string to_text(const Ending& e) { return concat({e.status, e.restart ? " 1 " : " 0 ", e.text}); }

Ending ending_from(const std::string& text) {
  Ending ending;
  const char* const end = text.data() + text.size();
  const char* at = std::from_chars(text.data(), end, ending.status).ptr;
  if (end - at < 3) return {.text = text};
  ending.restart = at[1] == '1';
  ending.text.assign(at + 3, end);
  return ending;
}

}  // namespace

Nodes::Nodes(std::shared_ptr<Store> store, const LaunchOptions& o, const Hold& hold)
    : store_(prefix_store("launch/", std::move(store))),
      hold_(hold),
      node_(o.node_rank),
      nodes_(o.nnodes),
      launcher_(random_secret()),
      shape_(concat({"--nnodes ", o.nnodes, " --nproc-per-node ", o.nproc_per_node, " --max-restarts ",
                     o.max_restarts})) {}

std::string Nodes::key(const char* what, int number) const { return concat({what, "/", number}); }

bool Nodes::join() {
  const std::string first = store_->compare_set("shape", std::nullopt, shape_);
  check(first == shape_, "[tapestry-run] node ", node_, " was started with ", shape_, ", another one with ",
        first, "; they must be the same on all nodes");
  registered_ = launcher_ + " -1";
  registration_ = hold_("launch/" + key("node", node_), registered_);
  return registration_ != nullptr;
}

// A registration is "<launcher> <attempt that it is ready for>". Node 0 begins an attempt by the list of the
// launchers that are ready for it. A launcher that comes later is not in this list, and waits for the next
// one.
bool Nodes::begin(int attempt) {
  const std::string ready = concat({launcher_, " ", attempt});
  check<DistributedError>(store_->compare_set(key("node", node_), registered_, ready) == ready,
                          "the registration of node ", node_, " has ended");
  registered_ = ready;
  if (node_ == 0) {
    begun_with_.clear();
    std::string all;
    for (int node = 0; node < nodes_; ++node) {
      std::istringstream text(store_->try_get(key("node", node)).value_or(""));
      std::string launcher;
      int ready_for = -1;
      text >> launcher >> ready_for;
      begun_with_.push_back(ready_for == attempt ? launcher : "");
      all += launcher + ' ';
    }
    begun_ = attempt;
    if (missing().empty()) store_->set(key("begin", attempt), all);
  }
  const std::string list = store_->try_get(key("begin", attempt)).value_or("");
  return list.find(launcher_) != std::string::npos;
}

std::string Nodes::missing() const {
  std::string text;
  for (std::size_t node = 0; node < begun_with_.size(); ++node)
    if (begun_with_[node].empty()) text += concat({text.empty() ? "node " : ", node ", node});
  return text;
}

std::string Nodes::launcher_of(int node) {
  const std::string text = store_->try_get(key("node", node)).value_or("");
  return text.substr(0, text.find(' '));
}

std::optional<Ending> Nodes::look(int attempt) {
  try {
    const auto text = store_->try_get(key("end", attempt));
    if (text) know(attempt);
    if (text) return ending_from(*text);
    if (begun_ != attempt || !missing().empty()) return {};
    for (std::size_t node = 0; node < begun_with_.size(); ++node)
      if (launcher_of(static_cast<int>(node)) != begun_with_[node] && !all_done(attempt))
        return end(attempt,
                   {1, true, concat({"node ", node, ": its launcher has ended, or node 0 cannot reach it"})});
    return {};
  } catch (const DistributedError& e) {
    return gone(e);
  }
}

Ending Nodes::end(int attempt, const Ending& ending) {
  try {
    const std::string first = store_->compare_set(key("end", attempt), std::nullopt, to_text(ending));
    know(attempt);
    return ending_from(first);
  } catch (const DistributedError&) {
    return ending;  // node 0's launcher is gone, but this failure happened before
  }
}

Ending Nodes::gone(const DistributedError& error) {
  return {.status = 1,
          .restart = true,
          .text = concat({"the launcher of node 0 does not answer: ", error.what()}),
          .lost = true};
}

void Nodes::done(int attempt) { store_->add(key("done", attempt), 1); }
bool Nodes::all_done(int attempt) {
  const bool all = store_->add(key("done", attempt), 0) >= nodes_;
  if (all) know(attempt);
  return all;
}

void Nodes::know(int attempt) {
  if (attempt <= known_) return;
  store_->add(key("know", attempt), 1);
  known_ = attempt;
}

void Nodes::leave() { store_->add(key("left", known_), 1); }

Nodes::Left Nodes::count_left() {
  return {store_->add(key("know", known_), 0), store_->add(key("left", known_), 0)};
}

}  // namespace tapestry::distributed::launch
