#pragma once
// The random cases of every_mode_threads_test.cpp: a model, a mode, and how it trains.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"

namespace mode_cases {

using namespace tapestry;
using namespace tapestry::distributed;

// A mistake of a training loop, which the comparison must find.
enum class Fault {
  none,
  missing_sum,       // the last part of a step is not reduced
  doubled,           // a rank counts twice
  even_divisor,      // ranks with different numbers of samples have equal weights
  even_parts,        // parts of different sizes have equal weights
  local_statistics,  // batch norm over the samples of one rank
  thawed,            // a frozen block is trained
  other_samples,     // rank 1 reads the samples of rank 0
  lost_part,         // a part of the last step is not read
  other_clip,        // the largest norm is another
  lost_input,        // the second input is zero on one rank
};

struct Case {
  std::string mode;
  std::uint64_t seed = 0;
  int members = 2;  // ranks, devices or stages
  int blocks = 4, width = 4;
  bool tied = false, frozen = false, unused = false, second = false, norm = false;
  int parts = 1;              // accumulation steps or micro-batches
  int calls = 1;              // a step of a pipeline is this many calls, whose gradients add up
  bool each = false;          // each part is reduced, and not only the last one
  bool by_copy = false;       // the other parts are reduced in each copy of a sharded model
  bool sums = false;          // gradients are summed over the ranks, and not averaged
  int samples = 8, last = 8;  // in a step, and in the last step
  bool adamw = false;
  double clip = 0;       // 0 does not clip
  bool largest = false;  // clips the largest gradient, and not the norm
  bool small_buckets = false, find_unused = true, static_graph = false;
  bool reshard = false;
  int full_units = 2, units = 0;  // units: bit i makes block i a unit of its own
  Schedule schedule = Schedule::gpipe;
  bool checkpoint = false;
  std::string with = {};      // a strategy's axis beside its pipeline
  int readers = 1;            // along that axis
  int copies = 2;             // of a sharded model, in the mode hsdp
  Fault fault = Fault::none;

  std::string str() const {
    std::string text = concat({mode, " seed ", seed, ", ", members, " members, ", blocks, " blocks of "});
    if (readers > 1) text += with + ", ";
    if (mode == "hsdp") text += concat({copies, " copies, "});
    text += concat({width, ", ", parts, " parts, ", calls, " calls, ", samples, " samples, in the last "});
    text += concat({last, adamw ? ", AdamW" : ", SGD", ", clip ", clip, ", ", schedule_name(schedule)});
    text += concat({", full units ", full_units, ", units ", units, ", reshard ", reshard});
    text += concat({", small buckets ", small_buckets, ", find unused ", find_unused});
    const std::pair<bool, const char*> flags[] = {{tied, "tied"},
                                                  {frozen, "frozen"},
                                                  {unused, "unused"},
                                                  {second, "second input"},
                                                  {norm, "batch norm"},
                                                  {each, "each reduced"},
                                                  {by_copy, "reduced by copy"},
                                                  {sums, "sums"},
                                                  {largest, "clip of the largest"},
                                                  {checkpoint, "checkpoint"},
                                                  {static_graph, "static graph"}};
    for (const auto& [on, name] : flags)
      if (on) text += concat({", ", name});
    return text;
  }
};

inline bool is_pipeline(const Case& c) { return c.mode.ends_with("pipeline"); }
inline bool replicates_on_devices(const Case& c) { return c.mode.starts_with("dp") || c.mode == "sharded"; }
// Tensor parallelism is not among them: it divides language models by their heads and words, which these models
// have not. tests/tensor_parallel/drawn_models_test.cpp draws those: ratios of heads, numbers of words, heads and
// inner features that do not divide, short sequences, and meshes with the other axes.
inline const std::vector<std::string> kModes{
    "ddp",       "zero1",   "zero2",    "fsdp",          "dp",
    "dp-master", "sharded", "pipeline", "rank pipeline", "strategy pipeline",
    "model",     "hsdp"};

inline Case drawn(const std::string& mode, std::uint64_t seed) {
  const auto number = std::find(kModes.begin(), kModes.end(), mode) - kModes.begin();
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(number));
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  Case c{.mode = mode, .seed = seed};
  c.members = pick(2, 4);
  if (mode == "hsdp") {
    c.members = 2 * pick(2, 4);
    c.copies = pick(0, 1) ? 2 : c.members / 2;
  }
  c.blocks = pick(4, 6);
  c.width = pick(1, 9);
  c.tied = pick(0, 1), c.frozen = pick(0, 2) == 0, c.unused = pick(0, 1), c.second = pick(0, 1);
  // DataParallel's batch norm is that of each replica's samples.
  c.norm = pick(0, 1) && !replicates_on_devices(c);
  c.parts = pick(1, 3);
  if (is_pipeline(c) && mode != "strategy pipeline") c.calls = pick(1, 2);
  if (mode == "model") c.tied = false, c.parts = 1;
  // Devices may be more than the samples of a part.
  const int least = replicates_on_devices(c) ? c.parts : 2 * c.parts * c.members;
  c.samples = pick(least, std::max(2 * least, 2 * c.members));
  c.last = pick(least, c.samples);
  c.adamw = pick(0, 1);
  c.clip = pick(0, 1) ? 0.05 : 0;
  c.small_buckets = pick(0, 1), c.find_unused = pick(0, 1);
  c.reshard = pick(0, 1), c.full_units = pick(1, 3), c.units = pick(0, 63);
  c.schedule = std::vector{Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}[random() % 3];
  c.checkpoint = pick(0, 2) == 0 && !c.norm;
  c.each = pick(0, 1), c.sums = pick(0, 1), c.largest = pick(0, 2) == 0;
  c.static_graph = pick(0, 1) && !c.second;
  c.by_copy = pick(0, 1) && mode == "hsdp";
  if (mode == "strategy pipeline" && pick(0, 3) > 0) {
    c.members = pick(2, 3);
    c.norm = false;  // its statistics would be those of one reader's samples
    const std::vector<std::string> axes{"replicate=2", "replicate=2:zero=1", "shard=2", "shard=2:gather=part",
                                        "replicate=2:zero=2"};
    c.with = axes[random() % axes.size()];
    c.readers = 2;
    if (pick(0, 4) == 0) c.with = "replicate=2,shard=2", c.readers = 4, c.members = 2;
  }
  return c;
}

}  // namespace mode_cases
