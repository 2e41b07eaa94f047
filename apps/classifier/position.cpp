#include "tapestry/apps/classifier/position.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "tapestry/apps/classifier/config.h"

namespace apps {

using tapestry::check;
using tapestry::fail;
using tapestry::IoError;
using tapestry::data::LoaderState;

namespace {

constexpr const char* kOther = "; resume from another checkpoint of this run, or start a new run";

const std::string& extra_value(const tapestry::nn::Progress& saved, const std::string& name) {
  const auto found = saved.extra.find(name);
  check<IoError>(found != saved.extra.end(), "[classifier] the checkpoint has no ", name,
                 ", so another program wrote it; resume a run of the classifier");
  return found->second;
}

double parse_seconds(const std::string& text) {
  double seconds = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  check<IoError>(error == std::errc() && *stop == 0 && std::isfinite(seconds) && seconds >= 0,
                 "[classifier] the checkpoint's seconds are '", text, "', which is not a number of seconds",
                 kOther);
  return seconds;
}

LoaderState resume_loader(tapestry::data::DataLoader<>& images, const std::string& text) {
  try {
    images.load_state(LoaderState::parse(text));
    return images.state();
  } catch (const tapestry::ValueError& e) {
    fail<IoError>("[classifier] the checkpoint's position in the data is invalid: ", e.what(), kOther);
  }
}

}  // namespace

std::string Tally::str() const {
  char text[80];
  std::snprintf(text, sizeof text, "%a %lld %lld", loss, static_cast<long long>(right),
                static_cast<long long>(count));
  return text;
}

Tally Tally::parse(const std::string& text) {
  Tally t;
  long long right = 0, count = 0;
  int end = 0;
  const int read = std::sscanf(text.c_str(), "%la %lld %lld%n", &t.loss, &right, &count, &end);
  check<IoError>(read == 3 && static_cast<std::size_t>(end) == text.size() && 0 <= right && right <= count,
                 "[classifier] the checkpoint's tally '", text, "' is invalid", kOther);
  t.right = right;
  t.count = count;
  return t;
}

tapestry::nn::Progress to_progress(const Position& position, std::int64_t step, const Options& options,
                                   std::optional<double> accuracy) {
  return {.epoch = position.loader.epoch,
          .step = step,
          .metric = accuracy,
          .extra = {{"options", to_json(options)},
                    {"loader", position.loader.str()},
                    {"tally", position.tally.str()},
                    {"seconds", std::to_string(position.seconds)}}};
}

Options options_of(const tapestry::nn::Progress& saved) {
  return options_from_json(extra_value(saved, "options"), "the text of the options in the checkpoint");
}

std::int64_t steps_in_epoch(const Position& position, const Options& options) {
  return (position.loader.sample + options.batch_size - 1) / options.batch_size;
}

Position position_of(const tapestry::nn::Progress& saved, const Options& options,
                     tapestry::data::DataLoader<>& images) {
  Position p{resume_loader(images, extra_value(saved, "loader")), Tally::parse(extra_value(saved, "tally")),
             parse_seconds(extra_value(saved, "seconds"))};
  const LoaderState& at = p.loader;
  const std::int64_t step = steps_in_epoch(p, options), steps = images.size();
  check<IoError>(at.epoch <= options.epochs && (at.epoch < options.epochs || step == 0),
                 "[classifier] the checkpoint is at step ", step, " of epoch ", at.epoch,
                 " (counted from 0), but the run has ", options.epochs, " epochs of ", steps, " steps",
                 kOther);
  check<IoError>(saved.epoch == at.epoch && saved.step == at.epoch * steps + step,
                 "[classifier] the checkpoint is of epoch ", saved.epoch, " and step ", saved.step,
                 ", but its data loader is at step ", step, " of ", steps, " in epoch ", at.epoch, kOther);
  check<IoError>(at.seed == options.seed, "[classifier] the checkpoint's data loader has seed ", at.seed,
                 " and the run has --seed ", options.seed, kOther);
  return p;
}

}  // namespace apps
