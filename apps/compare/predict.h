#pragma once
// What each mode should cost, from what one device and the links were measured to do. Pure functions: the
// same figures give the same prediction, on any machine. docs/reference/prediction.md has the formulas.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/apps/compare/profile.h"
#include "tapestry/apps/compare/result.h"
#include "tapestry/apps/compare/workload.h"

namespace apps::compare {

/// Bytes of one device, at the moment when their sum is largest.
struct MemoryItems {
  double parameters = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< what forward keeps for backward
  double buckets = 0;      ///< of gradients that are averaged; `gradients` are then views of them
  double data = 0;         ///< the batch, outputs and parts of either
  double workspace = 0;    ///< what only one operation needs
  /// With their names, in this order.
  std::vector<std::pair<std::string, double>> items() const;
  double total() const {
    return parameters + gradients + optimizer + activations + buckets + data + workspace;
  }
};

struct Prediction {
  std::string mode;
  int devices = 1;
  bool simulated = false;  ///< of devices that were not there to be measured
  double step_s = 0;
  StepSplit split;                  ///< means over the devices, as measured ones
  std::vector<MemoryItems> memory;  ///< by device or rank

  const MemoryItems& largest() const;  ///< of the device that needs most
};

/// How a backward pass and the averaging of its gradients overlap.
struct Overlap {
  double backward_s = 0;  ///< computing, and standing still for communication meanwhile
  double exposed_s = 0;   ///< communication after it
};

/// Buckets of which bucket i is complete when `ready[i]` seconds of `compute` are done, and then takes
/// `costs[i]` to be averaged, one bucket after another: longer while there is something to compute, which
/// goes on meanwhile at a part of its speed, as `beside` says.
Overlap overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                const AllReduce& beside);

/// The prediction for a mode by its name, on workload.devices devices; none for a mode that this does not
/// know. Modes that split the model need workload.split. Throws ValueError where the workload cannot be: no
/// blocks, a split that does not fit, fewer samples than devices or micro-batches.
std::optional<Prediction> predict(const std::string& mode, const Profile& profile, const Link& link,
                                  const Workload& workload);

/// `workload` on `devices` devices, each like the one that was measured, with cores and memory of its own, so
/// that nothing is slower because others compute too; and with a split for as many. Marked as simulated. None
/// too where a model has fewer blocks than devices and the mode splits it.
std::optional<Prediction> simulate_devices(const std::string& mode, const Profile& profile, const Link& link,
                                           const Workload& workload, int devices);

/// A link with another latency or bandwidth of messages, in seconds and bytes a second, where they are given;
/// it then takes nothing from computing. What an addition costs beside its copy stays as measured.
Link link_with(const Link& measured, std::optional<double> latency_s, std::optional<double> bandwidth);

/// What a prediction is made of, a mode a row, as text_table takes it; memory is the device's that needs
/// most.
std::vector<std::vector<std::string>> prediction_rows(const std::vector<Prediction>& predictions);

}  // namespace apps::compare
