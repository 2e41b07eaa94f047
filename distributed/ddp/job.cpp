#include "tapestry/distributed/ddp/job.h"

#include <limits>
#include <sstream>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/comm/text.h"

namespace tapestry::distributed {
namespace {

const std::string kGenerators = "generators of rank ";

template <class F>
void for_each_device(const F& fn) {
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda})
    for (int i = 0; i < device_count(type); ++i) fn(Device(type, i));
}

// Returns the states of this rank's generators as "cpu:0 seed offset cpu:1 seed offset".
std::string generator_states() {
  std::string text;
  for_each_device([&](Device device) {
    const auto [seed, offset] = current_generator(device).state();
    text +=
        (text.empty() ? "" : " ") + device.str() + ' ' + std::to_string(seed) + ' ' + std::to_string(offset);
  });
  return text;
}

void set_generator_states(const std::string& text) {
  std::istringstream in(text);
  for (std::string device; in >> device;) {
    std::uint64_t seed = 0, offset = 0;
    check<IoError>(
        !(in >> seed >> offset).fail(), "[resume] the generator states in the checkpoint are \"", text,
        "\", not device, seed and offset in turn; resume from a file that DistributedCheckpointer wrote");
    for_each_device([&](Device d) {
      if (d.str() == device) current_generator(d).set_state({seed, offset});
    });
  }
}

}  // namespace

double GlobalMean::reduce(ProcessGroup& group) {
  double parts[2] = {sum_, count_};
  group.all_reduce(from_blob(parts, {2}, DType::f64), ReduceOp::sum, "mean over ranks").wait();
  sum_ = count_ = 0;
  return parts[1] > 0 ? parts[0] / parts[1] : std::numeric_limits<double>::quiet_NaN();
}

DistributedCheckpointer::DistributedCheckpointer(std::shared_ptr<ProcessGroup> group,
                                                 const std::string& folder, const Options& options)
    : group_(std::move(group)) {
  check(group_ != nullptr,
        "[DistributedCheckpointer] the group is null; pass what init_process_group() returned");
  on_rank_0(*group_, "DistributedCheckpointer",
            [&] { files_ = std::make_unique<nn::Checkpointer>(folder, options); });
}

std::string DistributedCheckpointer::save(const nn::Training& training, const nn::Progress& progress) {
  const std::vector<std::string> states = all_gather_text(*group_, generator_states(), "generators");
  std::string path;
  on_rank_0(*group_, "save", [&] {
    nn::Progress all = progress;
    for (std::size_t r = 0; r < states.size(); ++r) all.extra[kGenerators + std::to_string(r)] = states[r];
    path = files_->save(training, all);
  });
  return broadcast_text(*group_, path, 0, "path of the checkpoint");
}

std::optional<nn::Progress> DistributedCheckpointer::resume(const nn::Training& training) {
  std::string latest;
  on_rank_0(*group_, "resume", [&] {
    files_->lock();
    latest = files_->latest().value_or("");
  });
  latest = broadcast_text(*group_, latest, 0, "path of the checkpoint");
  if (latest.empty()) return {};
  nn::Progress progress;
  on_all_ranks(*group_, "resume", [&] {
    progress = nn::load_checkpoint(latest, training);
    const auto own = progress.extra.find(kGenerators + std::to_string(group_->rank()));
    if (own != progress.extra.end()) {
      set_generator_states(own->second);
    } else {
      const int rank = group_->rank();
      for_each_device(
          [&](Device d) { current_generator(d).manual_seed(rank_seed(default_generator(d).seed(), rank)); });
    }
    std::erase_if(progress.extra, [](const auto& entry) { return entry.first.starts_with(kGenerators); });
  });
  return progress;
}

}  // namespace tapestry::distributed
