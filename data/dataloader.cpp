#include "tapestry/data/dataloader.h"

#include <algorithm>
#include <charconv>

namespace tapestry::data {

std::string LoaderState::str() const {
  const std::string text =
      concat({"seed=", seed, " epoch=", epoch, " sample=", sample, " samples=", samples});
  return total > 0 ? concat({text, " total=", total}) : text;
}

LoaderState LoaderState::parse(const std::string& text) {
  LoaderState state;
  const char *at = text.data(), *const end = at + text.size();
  const auto read = [&](std::string_view name, auto& value) {
    const std::string_view rest(at, static_cast<std::size_t>(end - at));
    check(rest.starts_with(name), "[LoaderState] \"", text, "\" is not a loader's state: \"", name,
          "\" is missing");
    const auto [stop, error] = std::from_chars(at + name.size(), end, value);
    check(error == std::errc(), "[LoaderState] \"", text, "\" is not a loader's state: no number after \"",
          name, "\"");
    at = stop;
  };
  read("seed=", state.seed);
  read(" epoch=", state.epoch);
  if (std::string_view(at).starts_with(" batch=")) {
    LoaderState::Batches& old = state.batches.emplace();
    read(" batch=", old.read);
    read(" samples=", state.samples);
    read(" batches=", old.all);
  } else {
    read(" sample=", state.sample);
    read(" samples=", state.samples);
    if (at != end) read(" total=", state.total);
  }
  check(at == end, "[LoaderState] \"", text, "\" is not a loader's state: it goes on after its end");
  return state;
}

namespace detail {

std::uint64_t EpochPlan::sample_seed(std::int64_t index) const {
  return Rng(derive_key(seed, epoch, 1), static_cast<std::uint64_t>(index)).next64();
}

void EpochPlan::rethrow(std::exception_ptr cause, std::int64_t batch, std::int64_t index) const {
  std::string text;
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
    text = "something that is not a std::exception was thrown";
  }
  if (index >= 0)
    throw SampleError(
        concat({"[DataLoader] sample ", index, " (batch ", done + batch, " of epoch ", epoch, "): ", text}),
        index, std::move(cause));
  const std::vector<std::int64_t>& indices = batches[static_cast<std::size_t>(batch)];
  std::string list;
  for (std::size_t i = 0; i < std::min<std::size_t>(indices.size(), 8); ++i)
    list += (i ? ", " : "") + std::to_string(indices[i]);
  if (indices.size() > 8) list += ", ...";
  throw SampleError(
      concat({"[DataLoader] batch ", done + batch, " of epoch ", epoch, " (samples ", list, "): ", text}), -1,
      std::move(cause));
}

void check_order_options(std::int64_t batch_size, bool shuffle, bool drop_last, bool sampler,
                         bool batch_sampler) {
  check(!(sampler && shuffle),
        "[DataLoader] both sampler and shuffle are given; the sampler makes the order");
  check(!(batch_sampler && (sampler || shuffle || drop_last || batch_size != 1)),
        "[DataLoader] batch_sampler excludes batch_size, shuffle, drop_last and sampler; give them to it");
}

LoaderState checked_state(LoaderState state, std::int64_t samples, const BatchSampler& sampler) {
  check(state.samples == samples, "[DataLoader] the state is of a loader with ", state.samples,
        " samples, and this one has ", samples, "; resume with the same data");
  // Its own position would not be that of all ranks.
  check(state.total <= 0 || state.total == sampler.total() || sampler.total() == INT64_MAX,
        "[DataLoader] the state is of an epoch of ", state.total, " samples, and that of this loader has ",
        sampler.total(), "; a sampler of one of several ranks must override ranks() and total()");
  check(state.epoch >= 0, "[DataLoader] the state is of epoch ", state.epoch, ", which does not exist");
  if (state.batches) {
    const auto [read, all] = *state.batches;
    const std::vector<std::vector<std::int64_t>> batches = sampler.batches(state.epoch);
    check(all == static_cast<std::int64_t>(batches.size()), "[DataLoader] the state is of a loader with ",
          all, " batches per epoch, and this one has ", batches.size(),
          "; its version counted batches, so resume with the same batch size");
    check(read >= 0 && read <= all, "[DataLoader] the state is at batch ", read, " of epoch ", state.epoch,
          ", which does not exist");
    state.sample = 0;
    for (auto batch = batches.begin(); batch != batches.begin() + read; ++batch)
      state.sample += static_cast<std::int64_t>(batch->size()) * sampler.ranks();
    state.sample = std::min(state.sample, sampler.total());
    state.batches.reset();
  }
  check(state.sample >= 0 && state.sample <= sampler.total(), "[DataLoader] the state is at sample ",
        state.sample, " of epoch ", state.epoch, ", which does not exist");
  return state;
}

}  // namespace detail
}  // namespace tapestry::data
