#include "tapestry/distributed/launch/internal/nodes.h"

#include <charconv>

#include "tapestry/core/error.h"

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

Nodes::Nodes(std::shared_ptr<Store> store, const LaunchOptions& o)
    : store_(prefix_store("launch/", std::move(store))),
      node_(o.node_rank),
      nodes_(o.nnodes),
      shape_(concat({"--nnodes ", o.nnodes, " --nproc-per-node ", o.nproc_per_node, " --max-restarts ",
                     o.max_restarts})) {}

std::string Nodes::key(const char* what, int attempt) const { return concat({what, "/", attempt}); }

void Nodes::join() {
  const std::string first = store_->compare_set("shape", std::nullopt, shape_);
  check(first == shape_, "[tapestry-run] node ", node_, " was started with ", shape_, ", another one with ",
        first, "; they must be the same on all nodes");
  check(store_->add(key("node", node_), 1) == 1, "[tapestry-run] a launcher of node ", node_,
        " exists already; give each node a different --node-rank from 0 to ", nodes_ - 1);
}

std::optional<Ending> Nodes::look(int attempt) {
  try {
    const auto text = store_->try_get(key("end", attempt));
    if (text) know(attempt);
    return text ? std::optional(ending_from(*text)) : std::nullopt;
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

Ending Nodes::gone(const DistributedError& error) const {
  return {.status = 1,
          .restart = false,
          .text = concat({"the launcher of node 0 does not answer: ", error.what()})};
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
